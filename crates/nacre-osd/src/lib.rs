//! One transaction engine for all stores: ordered tables and byte objects over the store port.
//!
//! Write-ahead log + ordered memtable + group commit + sorted runs. Tables hold rows (key bytes → value bytes);
//! objects hold bytes with a block row per 256 KiB. A change is one closure over a [`Tx`]; it gets the next
//! [`Transno`] of the target and is in the log before the visit that made it ends.
#![no_std]
extern crate alloc;

mod engine;
mod error;
mod object;
mod object_change;
pub mod object_rows;
mod range_lock;
mod reclaim;
pub mod summed;
mod tx;
mod writeback;

pub use engine::{Label, Osd, OsdConfig, Reservation};
pub use error::OsdError;
pub use object::{Objects, ObjectsConfig};
pub use object_change::{Prepared, Stamp};
pub use object_rows::{OBJECT_BYTES_MAX, ObjectRow, REGION_BYTES};
pub use summed::BLOCK_BYTES;
pub use tx::{Credits, Pins, Table, Tx, table};
