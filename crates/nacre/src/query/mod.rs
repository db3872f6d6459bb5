//! How a command finds the nacre processes of this machine and sends requests to them.
//!
//! [`filesystems`] chooses the file system that a command applies to, [`tool`] is a blocking connection to one island,
//! [`watch`] sends requests through a mount that may never reply, [`users`] names the processes that use a mount.

pub(crate) mod filesystems;
pub(crate) mod tool;
pub(crate) mod users;
pub(crate) mod watch;
