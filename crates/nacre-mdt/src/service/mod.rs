//! The metadata target as a service: dispatch, the loop around an operation, reads, file locks, clients, start, parameters.

mod attempt;
mod batch;
pub(crate) mod bounds;
mod clients;
mod dispatch;
mod flocks;
mod inode_locks;
mod kept_writes;
mod lookup;
mod operations;
pub(crate) mod params;
mod read;
mod reconstruct;
mod reports;
mod sequences;
mod start;
mod walk;
