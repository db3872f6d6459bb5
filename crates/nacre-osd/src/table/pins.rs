//! Pins: rows and ranges that a handler has fetched, and that its transaction may read.
//!
//! A row that is in memory needs no list: a fetch marks it as used, and rows that were used since the oldest live fetch
//! stay in memory. So a transaction may read every row that was used since its own fetch, and only the keys that have no
//! row are listed.

use crate::table::key::Key;
use crate::table::memtable::Ticket;
use alloc::vec::Vec;

/// Rows and ranges that `fetch` has read for a transaction. They stay in memory until this value is dropped.
#[derive(Default)]
pub struct Pins {
    /// Fetched keys that had no row, sorted.
    absent: Vec<Key>,
    /// Half open; a key in such a range that has no row is absent.
    ranges: Vec<(Key, Key)>,
    /// Of the first fetch: it keeps the rows of later ones as well.
    ticket: Option<Ticket>,
}

impl Pins {
    /// Adds the rows and ranges of another fetch.
    pub fn merge(&mut self, other: Pins) {
        self.absent.extend(other.absent);
        self.sort();
        self.ranges.extend(other.ranges);
        other.ticket.into_iter().for_each(|ticket| self.hold(ticket));
    }
    pub(crate) fn hold(&mut self, ticket: Ticket) {
        if self.ticket.as_ref().is_none_or(|held| ticket.is_older_than(held)) {
            self.ticket = Some(ticket);
        }
    }
    /// Adds a key that has no row. Sort when all are added.
    pub(crate) fn push_absent(&mut self, key: Key) {
        self.absent.push(key);
    }
    pub(crate) fn sort(&mut self) {
        self.absent.sort_unstable();
    }
    pub(crate) fn push_range(&mut self, from: Key, to: Key) {
        self.ranges.push((from, to));
    }
    /// Whether a row that was used at this serial stays in memory.
    pub(crate) fn holds(&self, touch: u64) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| ticket.serial() <= touch)
    }
    /// Whether a key without a row was fetched.
    pub(crate) fn is_absent(&self, key: &Key) -> bool {
        self.absent.binary_search(key).is_ok() || self.ranges.iter().any(|(from, to)| from <= key && key < to)
    }
    /// Whether one pinned range holds all keys with `from <= key < to`.
    pub(crate) fn covers_range(&self, from: &Key, to: &Key) -> bool {
        self.ranges.iter().any(|(f, t)| f <= from && to <= t)
    }
}
