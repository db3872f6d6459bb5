//! Changes with a reply that the target may still lose: kept until the target reports them as safe.
//!
//! Invariants: the list is in transno order; a change is kept until `last_committed` passes it, a change of bytes until
//! `last_stable` does; the reply is kept with it, because the replay must have the same outcome. Both lists are
//! bounded, and a full list holds callers back: a forgotten entry could not be replayed, and an acknowledged change
//! would be lost with the target's machine. The bounds count memory: besides the bytes of request and reply, each entry
//! counts as [`ReplayList::ENTRY_BYTES`]. Therefore an entry must not be a small slice of a large buffer, which would
//! stay in memory as a whole. Requests under way are not counted, so a list exceeds its bound by at most their size.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Transno, Xid};
use nacre_wire::Frame;

/// A change as it was sent, its transno, and its reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayEntry {
    /// The request as it was first sent.
    pub request: Frame,
    /// Transno of the change.
    pub transno: Transno,
    /// Body of the reply.
    pub reply: Bytes,
}

/// A change with its reply.
#[derive(Debug)]
struct Acknowledged {
    request: Frame,
    reply: Bytes,
}
impl Acknowledged {
    fn cost(&self) -> usize {
        ReplayList::ENTRY_BYTES + self.request.cost() + self.reply.len()
    }
}

/// Changes of one kind.
#[derive(Debug, Default)]
struct List {
    entries: BTreeMap<(Transno, Xid), Acknowledged>,
    bytes: usize,
}
impl List {
    fn insert(&mut self, key: (Transno, Xid), change: Acknowledged) {
        self.bytes += change.cost();
        if let Some(old) = self.entries.insert(key, change) {
            self.bytes -= old.cost();
        }
    }
    fn remove(&mut self, key: (Transno, Xid)) -> Option<Acknowledged> {
        let change = self.entries.remove(&key)?;
        self.bytes -= change.cost();
        Some(change)
    }
    fn pop_first(&mut self) -> bool {
        match self.entries.pop_first() {
            Some((_, old)) => {
                self.bytes -= old.cost();
                true
            }
            None => false,
        }
    }
    fn safe(&mut self, up_to: Transno) {
        while self.entries.first_key_value().is_some_and(|(key, _)| key.0 <= up_to) {
            self.pop_first();
        }
    }
    fn first(&self) -> Option<(&(Transno, Xid), &Acknowledged)> {
        self.entries.first_key_value()
    }
}

/// The replay list of one import.
#[derive(Debug, Default)]
pub struct ReplayList {
    changes: List,
    /// Writes of data, with the bytes, and truncates.
    writes: List,
    /// Changes that were replayed in the recovery under way, under their new transnos.
    done: Vec<ReplayEntry>,
}

impl ReplayList {
    /// Changes that may be kept: those of a second at the rate of the fastest target.
    pub const ENTRIES_MAX: usize = 1 << 18;
    /// Memory of the kept changes.
    pub const BYTES_MAX: usize = 128 << 20;
    /// Memory of the kept changes of bytes.
    pub const DATA_BYTES_MAX: usize = 32 << 20;
    /// Memory of an entry beyond its bytes: its place in the tree, the descriptions of its buffers, and the unused rest of
    /// buffers and allocations.
    pub const ENTRY_BYTES: usize = 768;

    /// Keeps a change that has its reply.
    pub fn keep(&mut self, transno: Transno, request: Frame, reply: Bytes) {
        let key = (transno, request.header.xid);
        if !request.header.is_kept_until_stable() {
            self.changes.insert(key, Acknowledged { request, reply });
        } else {
            self.writes.insert(key, Acknowledged { request, reply });
        }
    }
    /// Forgets changes that the target can no longer lose.
    pub(crate) fn safe(&mut self, last_committed: Transno, last_stable: Transno) {
        self.changes.safe(last_committed);
        self.writes.safe(last_stable);
    }
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
    /// Whether callers must wait until changes are committed.
    pub fn is_full(&self) -> bool {
        self.changes.entries.len() >= Self::ENTRIES_MAX || self.changes.bytes >= Self::BYTES_MAX
    }
    /// Whether writers must wait until data is stable.
    pub fn is_data_full(&self) -> bool {
        self.writes.bytes >= Self::DATA_BYTES_MAX
    }
    /// Whether the target should be asked to make data stable, so that there is room again before the list is full.
    pub(crate) fn is_data_pressed(&self) -> bool {
        self.writes.bytes >= Self::DATA_BYTES_MAX / 2
    }
    /// The next change to replay.
    pub(crate) fn first(&self) -> Option<ReplayEntry> {
        let lists = [self.changes.first(), self.writes.first()];
        let (key, change) = lists.into_iter().flatten().min_by_key(|(key, _)| **key)?;
        Some(ReplayEntry { request: change.request.clone(), transno: key.0, reply: change.reply.clone() })
    }
    /// The change `(transno, xid)` was replayed and has the transno `now` (0: it could not be executed).
    pub(crate) fn replayed(&mut self, transno: Transno, xid: Xid, now: Transno) {
        let key = (transno, xid);
        let change = self.changes.remove(key).or_else(|| self.writes.remove(key));
        if let Some(Acknowledged { request, reply }) = change
            && now != Transno(0)
        {
            self.done.push(ReplayEntry { request, transno: now, reply });
        }
    }
    /// The replay is over, or begins again: puts replayed changes back into the list under their newest transnos.
    pub(crate) fn settle(&mut self) {
        for entry in core::mem::take(&mut self.done) {
            self.keep(entry.transno, entry.request, entry.reply);
        }
    }
    /// Number of kept changes.
    pub fn len(&self) -> usize {
        self.changes.entries.len() + self.writes.entries.len() + self.done.len()
    }
    /// Whether no change is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Memory of the kept changes.
    pub fn bytes(&self) -> usize {
        self.changes.bytes + self.writes.bytes
    }
}
