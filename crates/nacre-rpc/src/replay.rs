//! Answered changes that the target may still lose: kept until it says that they are safe.
//!
//! Invariants: in transno order; a change is kept until `last_committed` passes it, a write of data until
//! `last_stable` does; with each the reply is kept, because the change must come out the same again. Both lists
//! are bounded, and a full list holds callers back: an entry that was forgotten could not be replayed, and what was
//! acknowledged would be lost with the target's machine. The bounds count memory: beside the bytes of request and reply each
//! entry counts [`ReplayList::ENTRY_BYTES`]. So bytes must not come as a small part of a large buffer. Requests that are
//! under way are not counted: a list exceeds its bound by at most what they carry.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Transno, Xid};
use nacre_wire::{Frame, Opcode};

/// A change as it was sent, the number it was given, and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayEntry {
    pub request: Frame,
    pub transno: Transno,
    pub reply: Bytes,
}

#[derive(Debug)]
struct Kept {
    request: Frame,
    reply: Bytes,
}
impl Kept {
    fn cost(&self) -> usize {
        ReplayList::ENTRY_BYTES + self.request.cost() + self.reply.len()
    }
}

/// Changes of one kind.
#[derive(Debug, Default)]
struct List {
    entries: BTreeMap<(Transno, Xid), Kept>,
    bytes: usize,
}
impl List {
    fn insert(&mut self, key: (Transno, Xid), kept: Kept) {
        self.bytes += kept.cost();
        if let Some(old) = self.entries.insert(key, kept) {
            self.bytes -= old.cost();
        }
    }
    fn remove(&mut self, key: (Transno, Xid)) -> Option<Kept> {
        let kept = self.entries.remove(&key)?;
        self.bytes -= kept.cost();
        Some(kept)
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
    fn first(&self) -> Option<(&(Transno, Xid), &Kept)> {
        self.entries.first_key_value()
    }
}

/// The replay list of one import.
#[derive(Debug, Default)]
pub struct ReplayList {
    changes: List,
    /// Writes of data, with the bytes, and truncates.
    writes: List,
    /// Replayed in the recovery under way, with their numbers as of now.
    done: Vec<ReplayEntry>,
}

/// Kept until its bytes are stable, not only its rows committed.
pub(crate) fn is_data(request: &Frame) -> bool {
    Opcode::from_number(request.header.opcode).is_some_and(Opcode::changes_bytes)
}

impl ReplayList {
    /// Changes that may be kept: a second's worth at the pace of the fastest target.
    pub const ENTRIES_MAX: usize = 1 << 18;
    pub const BYTES_MAX: usize = 128 << 20;
    /// Data that may be kept.
    pub const DATA_BYTES_MAX: usize = 32 << 20;
    /// Memory of an entry beyond its bytes: its place in the tree, the descriptions of its buffers, and what encoding
    /// and allocator leave unused.
    pub const ENTRY_BYTES: usize = 768;

    /// Keeps a change that was replied to.
    pub fn keep(&mut self, transno: Transno, request: Frame, reply: Bytes) {
        let key = (transno, request.header.xid);
        if !is_data(&request) {
            self.changes.insert(key, Kept { request, reply });
        } else {
            self.writes.insert(key, Kept { request, reply });
        }
    }
    /// Forgets what can no longer be lost.
    pub(crate) fn safe(&mut self, last_committed: Transno, last_stable: Transno) {
        self.changes.safe(last_committed);
        self.writes.safe(last_stable);
    }
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
    /// No further change may be made before some are committed.
    pub fn is_full(&self) -> bool {
        self.changes.entries.len() >= Self::ENTRIES_MAX || self.changes.bytes >= Self::BYTES_MAX
    }
    /// No further data may be written before some is stable.
    pub fn is_data_full(&self) -> bool {
        self.writes.bytes >= Self::DATA_BYTES_MAX
    }
    /// From here on the target is asked to make data stable, so that there is room again before the list is full.
    pub(crate) fn is_data_pressed(&self) -> bool {
        self.writes.bytes >= Self::DATA_BYTES_MAX / 2
    }
    /// The next change to replay.
    pub(crate) fn first(&self) -> Option<ReplayEntry> {
        let lists = [self.changes.first(), self.writes.first()];
        let (key, kept) = lists.into_iter().flatten().min_by_key(|(key, _)| **key)?;
        Some(ReplayEntry { request: kept.request.clone(), transno: key.0, reply: kept.reply.clone() })
    }
    /// The change `(transno, xid)` was replayed and has the number `now` (0: it could not be done again).
    pub(crate) fn replayed(&mut self, transno: Transno, xid: Xid, now: Transno) {
        let key = (transno, xid);
        let kept = self.changes.remove(key).or_else(|| self.writes.remove(key));
        if let Some(Kept { request, reply }) = kept
            && now != Transno(0)
        {
            self.done.push(ReplayEntry { request, transno: now, reply });
        }
    }
    /// The replay is over, or will begin again: everything is in the list under its newest number.
    pub(crate) fn settle(&mut self) {
        for entry in core::mem::take(&mut self.done) {
            self.keep(entry.transno, entry.request, entry.reply);
        }
    }
    pub fn len(&self) -> usize {
        self.changes.entries.len() + self.writes.entries.len() + self.done.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn bytes(&self) -> usize {
        self.changes.bytes + self.writes.bytes
    }
}
