//! The client side of locks: the locks that a mount has been granted.

mod granted_flocks;
mod inode_locks;
mod local_flocks;

pub use granted_flocks::GrantedFlocks;
pub use inode_locks::{CANCELS_MAX, EpochChange, GrantedInodeLocks, InodeCancel};
pub use local_flocks::{LOCAL_FLOCKS_MAX, LocalFlocks, LocalOutcome, OwnedLock};
