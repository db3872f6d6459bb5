//! The rows that the next attempt of an operation needs in memory.

use crate::rows::ancestry::AncestorWalks;
use crate::rows::table::{self, ENTRY, INODE};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use nacre_osd::{Osd, OsdError, Pins, Table};
use nacre_types::name::{DISCRIMINATORS, HashKey, cookie_base};
use nacre_types::{Fid, Name};

/// Keys and ranges to fetch, and the walks to make, before the next attempt.
#[derive(Debug, Default, Clone)]
pub(crate) struct ReadSet {
    keys: BTreeSet<(Table, Vec<u8>)>,
    ranges: BTreeSet<(Table, Vec<u8>, Vec<u8>)>,
    walks: AncestorWalks,
}

impl ReadSet {
    /// The row of one inode.
    pub(crate) fn of_inode(fid: Fid) -> Self {
        let mut read_set = Self::default();
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
        self.keys.insert((table, key.to_vec()));
    }
    pub(crate) fn inode(&mut self, fid: Fid) {
        self.key(INODE, &fid.key());
    }
    /// The rows that `name` may have in `dir`.
    pub(crate) fn name(&mut self, hash: HashKey, dir: Fid, name: Name<'_>) {
        let (from, to) = table::entries_of_hash(dir, cookie_base(hash, name.as_bytes()));
        self.ranges.insert((ENTRY, from.to_vec(), to.to_vec()));
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
    pub(crate) async fn fetch(&self, osd: &Osd) -> Result<Pins, OsdError> {
        let keys: Vec<(Table, &[u8])> = self.keys.iter().map(|(t, k)| (*t, &k[..])).collect();
        let mut pins = osd.fetch(&keys).await?;
        for (table, from, to) in &self.ranges {
            osd.fetch_range(*table, from, to, DISCRIMINATORS as u32 + 1, &mut pins).await?;
        }
        Ok(pins)
    }
    #[cfg(test)]
    pub(crate) fn holds(&self, table: Table, key: &[u8]) -> bool {
        self.keys.iter().any(|(t, k)| *t == table && k == key)
            || self.ranges.iter().any(|(t, from, to)| *t == table && from[..] <= *key && *key < to[..])
    }
    #[cfg(test)]
    pub(crate) fn holds_range(&self, table: Table, from: &[u8], to: &[u8]) -> bool {
        self.ranges.iter().any(|(t, f, end)| *t == table && f[..] <= *from && *to <= end[..])
    }
}
