//! One transaction engine for all stores: ordered tables and byte objects over the store port.
//!
//! Write-ahead log + ordered memtable + group commit + sorted runs. Tables hold rows (key bytes → value bytes);
//! objects hold bytes with a block row per 256 KiB. A change is one closure over a [`Tx`]; it gets the next
//! `Transno` of the target and is in the log before the visit that made it ends.
#![no_std]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod check;
mod combine;
mod crc;
mod engine;
mod error;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod log;
mod maintenance;
mod object;
mod offline;
#[cfg(test)]
#[path = "../../../fuzz/support/replay.rs"]
mod replay_corpus;
pub mod table;

pub use engine::config::OsdConfig;
pub use engine::credits::Credits;
pub use engine::osd::Osd;
pub use engine::room::Reservation;
pub use engine::state::Save;
pub use engine::stats::OsdStats;
pub use engine::superblock::{FORMAT_VERSION, Label, label_of};
pub use engine::tx::Tx;
pub use error::OsdError;
pub use maintenance::scrub_status::{Damage, DamageKind, ScrubState, ScrubStatus};
pub use maintenance::writeback::{EARLY_BYTES, STABLE_KEY};
pub use object::apply::{Prepared, Stamp};
pub use object::checksum::{self, BLOCK_BYTES};
pub use object::objects::{Objects, ObjectsConfig};
pub use object::prepare_many::{ObjectWrites, PreparedMany};
pub use object::rechecksum::UNVERIFIED_KEY;
pub use object::rows::{self as object_rows, OBJECT_BYTES_MAX, ObjectRow, REGION_BYTES};
pub use offline::offline;
pub use table::Table;
pub use table::accounts::Usage;
pub use table::key::Key as RowKey;
pub use table::pages::{Page, Pages, key_after};
pub use table::pins::Pins;
