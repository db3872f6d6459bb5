//! The client side of locks: the locks that a mount has been granted.

mod granted_flocks;
mod inode_locks;

pub use granted_flocks::GrantedFlocks;
pub use inode_locks::{CANCELS_MAX, EpochChange, GrantedInodeLocks, InodeCancel};
