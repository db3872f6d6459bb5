//! The engine of one target: opening, transactions, and reservations of room.
//!
//! `open.rs` opens and stops a store with the help of its `superblock.rs`. A handler reserves room (`credits.rs`,
//! `reserve.rs`) and changes rows in a transaction (`tx.rs`); `state.rs` holds the synchronous state behind both, and `osd.rs` connects
//! it to tasks and to the store port.

pub(crate) mod credits;
pub(crate) mod open;
pub(crate) mod osd;
pub(crate) mod reserve;
pub(crate) mod state;
pub(crate) mod superblock;
pub(crate) mod tx;
