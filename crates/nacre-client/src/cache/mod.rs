//! What a mount may answer without asking: inodes and names under locks of their MDT, and what the kernel was given of them.
//!
//! `metadata` is the front; `tables` combines `inodes`, `entries`, `in_flight` (own changes without a reply) and the locks;
//! `returns` gives locks back; `answers` has the answers for the calls; `kernel` is the interface to the kernel's cache.

mod answers;
mod entries;
pub(crate) mod in_flight;
mod inodes;
pub(crate) mod kernel;
pub(crate) mod metadata;
mod returns;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
