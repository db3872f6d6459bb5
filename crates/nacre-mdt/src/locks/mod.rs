//! Locks and the order of changes: file locks, uncommitted changes, turns.

pub(crate) mod change_order;
pub(crate) mod flocks;
pub(crate) mod turns;
