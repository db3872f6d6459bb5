//! Locks that this mount requests from its targets, and the leases that limit their use.
//!
//! `extents` takes extent locks at OSTs (`acquire` for an operation), `flocks` file locks at the MDT
//! (`file_flocks`: those of one file; `local_flocks`: those that the MDT does not know yet); `pending` keeps the calls that
//! wait for a lock callback; `under_lease` limits operations under file locks to the MDT's lease.

mod acquire;
pub(crate) mod extents;
pub(crate) mod file_flocks;
mod flocks;
pub(crate) mod local_flocks;
pub(crate) mod pending;
pub(crate) mod under_lease;
