//! Locks and the order of changes: file locks, locks of inodes, uncommitted changes, turns.

pub(crate) mod change_order;
pub(crate) mod flocks;
pub(crate) mod inode_locks;
pub(crate) mod turns;
