//! The client side of locks: the locks that a mount has been granted.

mod granted_flocks;

pub use granted_flocks::GrantedFlocks;
