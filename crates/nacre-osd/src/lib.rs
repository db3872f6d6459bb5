//! One transaction engine for all stores: ordered tables and byte objects over the store port.
//!
//! Write-ahead log + ordered memtable + group commit + sorted runs. Tables hold rows (key bytes → value bytes);
//! objects hold bytes with a block row per 256 KiB. A change is one closure over a [`Tx`]; it gets the next
//! `Transno` of the target and is in the log before the visit that made it ends.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod accounts;
mod bloom;
pub mod check;
mod commit;
mod crc;
mod engine;
mod error;
mod flush;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod interval;
mod key;
mod log;
mod mark;
mod memtable;
mod merge;
mod object;
mod object_apply;
mod object_change;
mod object_lost;
mod object_repair;
mod object_restore;
mod object_resum;
pub mod object_rows;
mod object_scan;
mod offline;
mod open;
mod orphan;
mod pages;
mod range_lock;
mod read;
mod reclaim;
mod replay;
#[cfg(test)]
#[path = "../../../fuzz/support/replay.rs"]
mod replay_corpus;
mod reserve;
mod run;
mod run_set;
mod state;
pub mod summed;
mod superblock;
mod thin;
mod tiers;
mod tx;
mod writeback;

pub use accounts::Usage;
pub use engine::{Osd, OsdConfig, OsdStats};
pub use error::OsdError;
pub use object::{Objects, ObjectsConfig};
pub use object_apply::{Prepared, Stamp};
pub use object_resum::UNSUMMED_KEY;
pub use object_rows::{OBJECT_BYTES_MAX, ObjectRow, REGION_BYTES};
pub use offline::offline;
pub use pages::{Page, Pages, key_after};
pub use reserve::Reservation;
pub use state::Save;
pub use summed::BLOCK_BYTES;
pub use superblock::{FORMAT_VERSION, Label, label_of};
pub use tx::{Credits, Pins, Table, Tx, table};
pub use writeback::STABLE_KEY;
