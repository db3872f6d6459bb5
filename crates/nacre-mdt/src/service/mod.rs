//! The metadata target as a service: the loop around an operation, batches, reads, start, parameters.

mod attempt;
mod batch;
mod clients;
pub(crate) mod params;
mod read;
pub(crate) mod reconstruct;
pub(crate) mod start;
