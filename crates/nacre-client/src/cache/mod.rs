//! What a mount may answer without asking: inodes and names under locks of their MDT, and what the kernel was given of them.
//!
//! `metadata` is the front; `tables` combines `inodes`, `entries`, `in_flight` (own changes without a reply) and the locks;
//! `data_locks` has the locks of bytes, `pages` the bytes that the kernel keeps under them; `returns` gives locks back; `answers` has the answers for the calls; `kernel` is the interface to the kernel's cache.

mod answers;
pub(crate) mod data_locks;
mod entries;
pub(crate) mod in_flight;
mod inodes;
pub(crate) mod kernel;
pub(crate) mod metadata;
pub(crate) mod pages;
pub(crate) mod returns;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
