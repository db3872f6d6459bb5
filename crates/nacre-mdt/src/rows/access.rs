//! The accesses of a change that matter to changes of other clients: the inodes and names that it reads and writes.
//!
//! The order of conflicting changes is decided by these sets (`locks/change_order.rs`). An inode counts by changes of its own
//! attributes and a name by its directory and hash, so different names in one directory do not conflict. The release of a
//! file lock counts as a write: if the release were lost, the replay of another client could not get the lock again.

use crate::rows::table;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use nacre_target::ConflictKey;
use nacre_types::Fid;
use nacre_types::name::DISCRIMINATORS;

/// The unit of conflict: an inode, the names of one hash in a directory, or the file locks of one mode on a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AccessKey([u8; 20]);

impl AccessKey {
    pub(crate) fn inode(fid: Fid) -> Self {
        // No name has this cookie.
        Self(table::entry(fid, 0))
    }
    /// File locks of a file: those for reading, which exclude writers, or those for writing, which exclude everybody.
    pub(crate) fn file_lock(fid: Fid, writing: bool) -> Self {
        // No name has these cookies either.
        Self(table::entry(fid, 1 + u64::from(writing)))
    }
    pub(crate) fn name(dir: Fid, cookie: u64) -> Self {
        Self(table::entry(dir, cookie - cookie % DISCRIMINATORS))
    }
}

impl ConflictKey for AccessKey {
    fn neighbours(&self) -> RangeInclusive<Self> {
        *self..=*self
    }
    fn conflicts(&self, other: &Self) -> bool {
        self == other
    }
}

/// The read set and the write set of one change.
#[derive(Debug, Default)]
pub(crate) struct AccessSet {
    reads: Vec<AccessKey>,
    writes: Vec<AccessKey>,
    turn: Option<u64>,
}

impl AccessSet {
    /// An empty set for the next attempt of a request that has this turn (`locks/turns.rs`).
    pub(crate) fn with_turn(turn: Option<u64>) -> Self {
        Self { turn, ..Self::default() }
    }
    pub(crate) fn read(&mut self, key: AccessKey) {
        self.reads.push(key);
    }
    pub(crate) fn write(&mut self, key: AccessKey) {
        self.writes.push(key);
    }
    pub(crate) fn writes(&self) -> &[AccessKey] {
        &self.writes
    }
    pub(crate) fn all(&self) -> impl Iterator<Item = &AccessKey> {
        self.reads.iter().chain(&self.writes)
    }
    /// The turn of the request, if it has waited before.
    pub(crate) fn turn(&self) -> Option<u64> {
        self.turn
    }
}
