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
pub mod summed;
mod tx;

pub use engine::{Label, Osd, OsdConfig, Reservation};
pub use error::OsdError;
pub use object::{BLOCK_BYTES, REGION_BYTES};
pub use tx::{Credits, Pins, Table, Tx, table};
