//! Locks that this mount requests from its targets, and the leases that limit their use.
//!
//! `extents` takes extent locks at OSTs, `flocks` file locks at the MDT; `pending` keeps the calls that wait for a lock
//! callback; `under_lease` limits operations under file locks to the MDT's lease.

pub(crate) mod extents;
pub(crate) mod flocks;
pub(crate) mod pending;
pub(crate) mod under_lease;
