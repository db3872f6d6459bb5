//! The rows that the next attempt of an operation needs in memory.

use crate::rows::ancestry::AncestorWalks;
use crate::rows::table::{self, ENTRY, INODE, SEQUENCE};
use alloc::vec::Vec;
use nacre_osd::{Osd, OsdError, Pins, RowKey, Table};
use nacre_types::name::{DISCRIMINATORS, HashKey, cookie_base};
use nacre_types::{Fid, Name};
use smallvec::SmallVec;

/// More rows than a range of names has.
const RANGE_ROWS: u32 = DISCRIMINATORS as u32 + 1;

/// Keys and ranges to fetch, and the walks to make, before the next attempt.
#[derive(Debug, Default, Clone)]
pub(crate) struct ReadSet {
    /// In no order; a key may be there more than once.
    keys: Vec<RowKey>,
    ranges: SmallVec<[(RowKey, RowKey); 1]>,
    walks: AncestorWalks,
}

impl ReadSet {
    /// The row of one inode.
    pub(crate) fn of_inode(fid: Fid) -> Self {
        // Most operations need two or three more.
        let mut read_set = Self { keys: Vec::with_capacity(4), ..Self::default() };
        read_set.inode(fid);
        read_set
    }
    /// One row.
    pub(crate) fn of_key(table: Table, key: &[u8]) -> Self {
        let mut read_set = Self::default();
        read_set.key(table, key);
        read_set
    }
    pub(crate) fn key(&mut self, table: Table, key: &[u8]) {
        self.keys.push(RowKey::new(table, key));
    }
    pub(crate) fn inode(&mut self, fid: Fid) {
        self.key(INODE, &fid.key());
    }
    /// The rows that tell whether a client may use this FID for a new inode.
    pub(crate) fn new_fid(&mut self, fid: Fid) {
        self.inode(fid);
        self.key(SEQUENCE, &table::sequence(fid.seq));
    }
    /// The rows that `name` may have in `dir`.
    pub(crate) fn name(&mut self, hash: HashKey, dir: Fid, name: Name<'_>) {
        let (from, to) = table::entries_of_hash(dir, cookie_base(hash, name.as_bytes()));
        self.ranges.push((RowKey::new(ENTRY, &from), RowKey::new(ENTRY, &to)));
    }
    /// The row that `name` has in `dir`, if it is there and was the first one of its hash: one key instead of a range, which
    /// runs would be searched for. An operation that finds another row there asks for the range.
    pub(crate) fn present_name(&mut self, hash: HashKey, dir: Fid, name: Name<'_>) {
        let (first, _) = table::entries_of_hash(dir, cookie_base(hash, name.as_bytes()));
        self.key(ENTRY, &first);
    }
    /// Adds everything that is in `other`.
    pub(crate) fn merge(&mut self, other: ReadSet) {
        self.keys.extend(other.keys);
        self.ranges.extend(other.ranges);
        self.walks.merge(other.walks);
    }
    pub(crate) fn walks_mut(&mut self) -> &mut AncestorWalks {
        &mut self.walks
    }
    /// Reads everything in the set and pins it.
    pub(crate) async fn fetch(&mut self, osd: &Osd) -> Result<Pins, OsdError> {
        self.remove_duplicates();
        osd.fetch_set(&self.keys, &self.ranges, RANGE_ROWS).await
    }
    /// The same, if nothing has to be read for it.
    pub(crate) fn fetch_now(&mut self, osd: &Osd) -> Option<Pins> {
        self.remove_duplicates();
        osd.fetch_now(&self.keys, &self.ranges, RANGE_ROWS).ok()?
    }
    fn remove_duplicates(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.dedup();
    }
    #[cfg(test)]
    pub(crate) fn holds(&self, table: Table, key: &[u8]) -> bool {
        let key = RowKey::new(table, key);
        self.keys.contains(&key) || self.ranges.iter().any(|(from, to)| *from <= key && key < *to)
    }
    #[cfg(test)]
    pub(crate) fn holds_range(&self, table: Table, from: &[u8], to: &[u8]) -> bool {
        let (from, to) = (RowKey::new(table, from), RowKey::new(table, to));
        self.ranges.iter().any(|(f, end)| *f <= from && to <= *end)
    }
}
