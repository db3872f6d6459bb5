//! The part of locks that is common to all kinds and targets.
//!
//! - `callbacks.rs`: callbacks to clients, and revoked locks that a client has to return.
//! - `deadlines.rs`: deadlines for the return of revoked locks; a client that misses one is evicted.
//! - `persistent.rs`: locks that a restart restores from rows.
//! - `restart_wait.rs`: the wait after a restart for locks that no row restores.
//! - `uncommitted.rs`: acknowledge or commit: changes that other clients must not build upon yet.
//!
//! Not here: conflicts between locks and their grants (`nacre-dlm`), messages and resources (the services).

pub(crate) mod callbacks;
pub(crate) mod deadlines;
pub(crate) mod persistent;
pub(crate) mod restart_wait;
pub(crate) mod uncommitted;
