//! Tables, pins, credits and the open transaction.

use alloc::vec::Vec;
use nacre_types::{Owner, Transno};

/// Number of a table. Rows of a table are ordered by key bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table(pub u8);

/// Who owns which table numbers. Numbers are for ever.
pub mod table {
    use super::Table;
    /// Engine: totals, per-owner accounting, run list.
    pub const ENGINE: Table = Table(0);
    pub const ACCOUNTING: Table = Table(1);
    /// Object rows and block rows.
    pub const OBJECT: Table = Table(2);
    pub const BLOCK: Table = Table(3);
    /// Objects whose blob holds more than their rows say (truncated or destroyed, not cut yet).
    pub const RECLAIM: Table = Table(4);
    /// Common to all targets (`nacre-target`).
    pub const TARGET: Table = Table(8);
    pub const CLIENT: Table = Table(9);
    pub const REPLY: Table = Table(10);
    /// First number of the MDT's, the OST's and the MGS's own tables.
    pub const MDT_FIRST: u8 = 32;
    pub const OST_FIRST: u8 = 64;
    pub const MGS_FIRST: u8 = 96;
}

/// Upper bound of what a transaction may write, reserved before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credits {
    pub rows: u32,
    /// Keys and values together.
    pub row_bytes: u32,
    /// New object bytes on the device.
    pub object_bytes: u64,
    /// This change frees space in the end (unlink, destroy): it may use the ballast.
    pub frees: bool,
}

/// Rows held in memory for a transaction: what `fetch` has read.
#[derive(Default)]
pub struct Pins {
    _private: (),
}

impl Pins {
    /// Takes over what another fetch has read.
    pub fn merge(&mut self, other: Pins) {
        let _ = other;
    }
}

/// An open transaction: reads see the pinned rows and the changes so far. Synchronous; cannot fail for room.
pub struct Tx<'a> {
    _engine: core::marker::PhantomData<&'a ()>,
}

impl Tx<'_> {
    /// The number this transaction gets if it commits.
    pub fn transno(&self) -> Transno {
        Transno(0)
    }
    /// The row, or `None`.
    ///
    /// # Panics
    /// When the key was neither fetched into the pins nor written in this transaction: a bug.
    pub fn get(&self, table: Table, key: &[u8]) -> Option<&[u8]> {
        let _ = (table, key);
        None
    }
    /// Whether `get` may be called: false sends the handler back to `fetch` (its first read chose other keys).
    pub fn is_pinned(&self, table: Table, key: &[u8]) -> bool {
        let _ = (table, key);
        false
    }
    pub fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        let _ = (table, key, value);
    }
    pub fn delete(&mut self, table: Table, key: &[u8]) {
        let _ = (table, key);
    }
    /// Deletes every row with `from <= key < to`.
    pub fn delete_range(&mut self, table: Table, from: &[u8], to: &[u8]) {
        let _ = (table, from, to);
    }
    /// Charges (or, negative, credits) an owner.
    pub fn account(&mut self, owner: Owner, bytes: i64, objects: i64) {
        let _ = (owner, bytes, objects);
    }
}
