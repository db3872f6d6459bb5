//! The client side of locks: what a mount has been granted.

mod granted_flocks;

pub use granted_flocks::GrantedFlocks;
