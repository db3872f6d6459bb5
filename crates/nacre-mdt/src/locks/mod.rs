//! Locks and the order of changes: file locks, locks of inodes, holds of directories, uncommitted changes, turns.

pub(crate) mod change_order;
pub(crate) mod dir_holds;
pub(crate) mod flocks;
pub(crate) mod inode_locks;
pub(crate) mod turns;
