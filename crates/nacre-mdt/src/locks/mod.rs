//! Locks and the order of changes: file locks, holds of directories, uncommitted changes, turns.

pub(crate) mod change_order;
pub(crate) mod dir_holds;
pub(crate) mod flocks;
pub(crate) mod turns;
