//! Pins: rows and ranges that a handler has fetched, and that its transaction may read.
//!
//! A row that is in memory needs no list: a fetch marks it as used, and rows that were used since the oldest live fetch
//! stay in memory. So a transaction may read every row that was used since its own fetch, and only the keys that have no
//! row are listed.

use crate::table::key::Key;
use crate::table::memtable::Ticket;
use smallvec::SmallVec;

/// Rows and ranges that `fetch` has read for a transaction. They stay in memory until this value is dropped.
#[derive(Default)]
pub struct Pins {
    /// Fetched keys that had no row, sorted. Most requests have at most one, and one range.
    absent: SmallVec<[Key; 1]>,
    /// A key in such a range that has no row is absent.
    ranges: SmallVec<[PinnedRange; 1]>,
    /// Of the first fetch: it keeps the rows of later ones as well.
    ticket: Option<Ticket>,
}

/// A range, half open, that was fetched as a whole.
pub(crate) struct PinnedRange {
    from: Key,
    to: Key,
    /// The number of changes of rows ([`crate::table::memtable::Memtable::changes`]) before the fetch, if it found no row.
    empty_at: Option<u64>,
}
impl PinnedRange {
    pub(crate) fn new(from: Key, to: Key, empty_at: Option<u64>) -> Self {
        Self { from, to, empty_at }
    }
    /// Whether there is still no row after so many changes: most names that are looked up to be created do not exist, and
    /// need not be searched again.
    pub(crate) fn is_empty_after(&self, changes: u64) -> bool {
        self.empty_at == Some(changes)
    }
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
    pub(crate) fn push_range(&mut self, range: PinnedRange) {
        self.ranges.push(range);
    }
    /// Whether a row that was used at this serial stays in memory.
    pub(crate) fn holds(&self, touch: u64) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| ticket.serial() <= touch)
    }
    /// Whether a key without a row was fetched.
    pub(crate) fn is_absent(&self, key: &Key) -> bool {
        self.absent.binary_search(key).is_ok()
            || self.ranges.iter().any(|range| range.from <= *key && *key < range.to)
    }
    /// A pinned range that holds all keys with `from <= key < to`.
    pub(crate) fn range(&self, from: &Key, to: &Key) -> Option<&PinnedRange> {
        self.ranges.iter().find(|range| range.from <= *from && *to <= range.to)
    }
}
