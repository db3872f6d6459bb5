//! The engine of one target: opening, transactions, and reservations of room.
//!
//! `open.rs` opens a store, `stop.rs` stops it, `format.rs` formats it; `superblock.rs` is the file that identifies it. A
//! handler reserves room (`credits.rs`, `reserve.rs`) and changes rows in a transaction (`tx.rs`). `osd.rs` joins the
//! parts, each of which owns its state: `state.rs` (rows and the open transaction), `room.rs`, `stable.rs`,
//! `log/progress.rs` and `maintenance/background.rs`.

pub(crate) mod ballast;
pub(crate) mod config;
pub(crate) mod credits;
pub(crate) mod files;
pub(crate) mod format;
pub(crate) mod full_device;
pub(crate) mod open;
pub(crate) mod osd;
pub(crate) mod reserve;
pub(crate) mod room;
pub(crate) mod stable;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod stop;
pub(crate) mod superblock;
pub(crate) mod tx;
