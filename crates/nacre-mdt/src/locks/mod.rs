//! Locks and the order of changes: file locks, holds of directories, changes that are not committed, turns.

pub(crate) mod dir_holds;
pub(crate) mod flocks;
pub(crate) mod turns;
pub(crate) mod uncommitted;
