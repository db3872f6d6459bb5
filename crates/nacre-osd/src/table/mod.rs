//! Rows of ordered tables: the memtable, sorted runs, and reads over both.
//!
//! A lookup begins in `read.rs`: the memtable is searched first, and rows that are not in memory are read from runs.
//! `run.rs` is the format of a run, `run_copies.rs` reads its two copies, `cursor.rs` reads several runs as one.
//! `pages.rs` walks a whole table with bounded memory. `accounts.rs` keeps the usage per owner.
//!
//! This file assigns the numbers of tables. They are part of the disk format and never change.

pub(crate) mod accounts;
pub(crate) mod bloom;
pub(crate) mod cursor;
pub(crate) mod index;
pub(crate) mod interval;
pub(crate) mod key;
pub(crate) mod memtable;
pub(crate) mod pages;
pub(crate) mod pins;
pub(crate) mod read;
pub(crate) mod run;
pub(crate) mod run_copies;
pub(crate) mod run_set;

/// Number of a table. Rows of a table are ordered by key bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table(pub u8);

/// Engine: totals, list of runs.
pub const ENGINE: Table = Table(0);
/// Engine: usage per owner.
pub const ACCOUNTING: Table = Table(1);
/// Rows of objects.
pub const OBJECT: Table = Table(2);
/// Rows of objects' blocks.
pub const BLOCK: Table = Table(3);
/// Objects whose blob is longer than their rows describe: they were truncated or destroyed, but their blob was not yet.
pub const RECLAIM: Table = Table(4);
/// Content of blocks that a sync has put into the log.
pub const LOGGED: Table = Table(5);
/// Records of all targets (`nacre-target`).
pub const TARGET: Table = Table(8);
/// Clients of all targets (`nacre-target`).
pub const CLIENT: Table = Table(9);
/// Reply records of all targets (`nacre-target`).
pub const REPLY: Table = Table(10);
/// First number of the MDT's own tables.
pub const MDT_FIRST: u8 = 32;
/// First number of the OST's own tables.
pub const OST_FIRST: u8 = 64;
/// First number of the MGS's own tables.
pub const MGS_FIRST: u8 = 96;
