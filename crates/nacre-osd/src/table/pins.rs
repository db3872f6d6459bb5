//! Pins: rows and ranges that a handler has fetched, and that its transaction may read.

use crate::table::key::Key;
use crate::table::memtable::{Slot, Ticket};
use alloc::vec::Vec;

/// Rows and ranges that `fetch` has read for a transaction. They stay in memory until this value is dropped.
#[derive(Default)]
pub struct Pins {
    /// Sorted.
    keys: Vec<(Key, Slot)>,
    /// Half open; a key in such a range that has no row is absent.
    ranges: Vec<(Key, Key)>,
    /// Of the first fetch: it keeps the rows of later ones as well.
    ticket: Option<Ticket>,
}

impl Pins {
    /// Adds the rows and ranges of another fetch.
    pub fn merge(&mut self, other: Pins) {
        self.keys.extend(other.keys);
        self.sort();
        self.ranges.extend(other.ranges);
        other.ticket.into_iter().for_each(|ticket| self.hold(ticket));
    }
    pub(crate) fn hold(&mut self, ticket: Ticket) {
        if self.ticket.as_ref().is_none_or(|held| ticket.is_older_than(held)) {
            self.ticket = Some(ticket);
        }
    }
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.keys.reserve_exact(keys);
    }
    pub(crate) fn push(&mut self, key: Key, slot: Slot) {
        self.keys.push((key, slot));
    }
    pub(crate) fn sort(&mut self) {
        // A key may be pinned twice, once as absent: the entry with a row is sorted first.
        self.keys.sort_unstable();
    }
    pub(crate) fn push_range(&mut self, from: Key, to: Key) {
        self.ranges.push((from, to));
    }
    /// The slot of a pinned key; `NO_SLOT` when the key was absent.
    pub(crate) fn slot(&self, key: &Key) -> Option<Slot> {
        let at = self.keys.partition_point(|(k, _)| k < key);
        self.keys.get(at).filter(|(k, _)| k == key).map(|(_, slot)| *slot)
    }
    /// Whether a pinned range holds the key.
    pub(crate) fn covers(&self, key: &Key) -> bool {
        self.ranges.iter().any(|(from, to)| from <= key && key < to)
    }
    /// Whether one pinned range holds all keys with `from <= key < to`.
    pub(crate) fn covers_range(&self, from: &Key, to: &Key) -> bool {
        self.ranges.iter().any(|(f, t)| f <= from && to <= t)
    }
}
