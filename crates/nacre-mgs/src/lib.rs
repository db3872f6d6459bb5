//! The management server: the targets of each file system, their addresses, and the values that all of them share.
//!
//! [`Registry`] is the list as a value with its rows; [`Mgs`] is the service that reads it. Not here:
//! connections, records and leases (`nacre-target`), file data and names (the other targets).
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(any(test, fuzzing))]
pub mod hostile;
mod registry;
#[cfg(test)]
#[path = "../../../fuzz/support/replay.rs"]
mod replay_corpus;
mod service;

pub use registry::{FsRow, Refused, Register, Registry, TARGETS, TargetRow};
pub use service::Mgs;
