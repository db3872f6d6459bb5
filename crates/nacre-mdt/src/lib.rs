//! The metadata target: names, inodes, opens and file locks of a file system.
//!
//! | Folder | Contents |
//! | --- | --- |
//! | `ops` | the operations that change metadata: synchronous functions over the rows of one transaction |
//! | `rows` | tables, the records in them, the transaction as the operations see it, offline verification |
//! | `osts` | the OSTs as this target sees them: connections, space, choice of OSTs, destroys and sizes |
//! | `locks` | file locks, locks of inodes, the order in which conflicting changes are applied |
//! | `service` | dispatch, the loop around an operation, batches, reads, reconstruction of replies, start, parameters |
//!
//! Specification: `docs/disk-format.md` for the rows, `nacre_wire::mdt` for the messages.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

#[cfg(any(test, fuzzing))]
pub mod hostile;
mod locks;
mod mdt;
mod ops;
mod osts;
#[cfg(test)]
#[path = "../../../fuzz/support/replay.rs"]
mod replay_corpus;
mod rows;
mod service;
#[cfg(test)]
mod testing;

pub use mdt::Mdt;
pub use rows::check::check;
pub use rows::{check, row, table};
