//! Acknowledge or commit, for metadata (see `nacre_target::Uncommitted`).
//!
//! Keys: an inode counts by its own changes and a name by its directory and hash, so different names in one directory do
//! not conflict. Of file locks the release counts: a client that is granted a lock which another client has just released
//! could not get it again in replay.
//!
//! With `mdt.*.commit_on_sharing` a change of another client has to be committed even if that client has the reply: then
//! no change builds on one that the simultaneous loss of the machine and of that client would take away.

use crate::mdt::Mdt;
use crate::rows::table;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use nacre_target::{ConflictKey, Request};
use nacre_types::name::DISCRIMINATORS;
use nacre_types::{Fid, Transno};

/// An inode, the names of one hash in a directory, or what file locks keep others from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key([u8; 20]);
impl Key {
    pub(crate) fn inode(fid: Fid) -> Self {
        // No name has this cookie.
        Self(table::entry(fid, 0))
    }
    /// File locks: of reading (those keep writers out), or of writing (they keep everybody out).
    pub(crate) fn file_lock(fid: Fid, writing: bool) -> Self {
        // No name has these cookies either.
        Self(table::entry(fid, 1 + u64::from(writing)))
    }
    pub(crate) fn name(dir: Fid, cookie: u64) -> Self {
        Self(table::entry(dir, cookie - cookie % DISCRIMINATORS))
    }
}

/// What an operation looked at and what it changed.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) seen: Vec<Key>,
    pub(crate) made: Vec<Key>,
    /// The turn of the request, if it has waited (`turns.rs`).
    pub(crate) turn: Option<u64>,
}

/// What a change has to wait for before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// The end of a turn: its owner came earlier, and this change would put rows in its way.
    Turn(u64),
    /// The commit of what it builds on.
    Commit(Transno),
}

impl ConflictKey for Key {
    fn neighbours(&self) -> RangeInclusive<Self> {
        *self..=*self
    }
    fn conflicts(&self, other: &Self) -> bool {
        self == other
    }
}

impl Mdt {
    /// What comes first.
    pub(crate) fn must_wait_for(&self, request: &Request, touched: &Touched) -> Option<First> {
        let turn = self.turns.before(request.export, touched).map(First::Turn);
        turn.or_else(|| self.must_be_committed(request, touched).map(First::Commit))
    }
    /// The transno up to which changes must be committed before this one may build on them.
    fn must_be_committed(&self, request: &Request, touched: &Touched) -> Option<Transno> {
        let committed = self.core.osd.last_committed();
        let mut uncommitted = self.uncommitted.borrow_mut();
        uncommitted.prune(0, |change| change.transno <= committed);
        let keys = touched.seen.iter().chain(&touched.made);
        keys.flat_map(|key| uncommitted.conflicting(*key))
            .filter(|change| change.export != request.export && change.transno > committed)
            .filter(|change| self.commit_on_sharing.get() || !self.core.is_acknowledged(change))
            .map(|change| change.transno)
            .max()
    }
    /// Records a change: until it is committed or its client has the reply, conflicting changes of others wait.
    pub(crate) fn record_uncommitted(&self, request: &Request, transno: Transno, touched: Touched) {
        let mut uncommitted = self.uncommitted.borrow_mut();
        for key in touched.made {
            uncommitted.record(request, key, transno);
        }
    }
}
