//! Answered changes that the target may still lose: kept until `last_committed` passes them.
//!
//! Invariants: in transno order; the list is bounded in entries and bytes. What falls out
//! at the bound can no longer be replayed: it is counted, and the count is shown.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_types::{Transno, Xid};
use nacre_wire::Frame;

/// A change as it was sent, with the number it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayEntry {
    pub request: Frame,
    pub transno: Transno,
}

/// The replay list of one import.
#[derive(Debug, Default)]
pub struct ReplayList {
    entries: BTreeMap<(Transno, Xid), Frame>,
    /// Replayed in the recovery under way, with their numbers as of now.
    done: Vec<ReplayEntry>,
    bytes: usize,
    dropped: u64,
}

impl ReplayList {
    /// Bounds of the list.
    pub const ENTRIES_MAX: usize = 65_536;
    pub const BYTES_MAX: usize = 64 << 20;

    pub(crate) fn keep(&mut self, transno: Transno, request: Frame) {
        self.bytes += request.cost();
        if let Some(old) = self.entries.insert((transno, request.header.xid), request) {
            self.bytes -= old.cost();
        }
        while self.entries.len() > Self::ENTRIES_MAX || self.bytes > Self::BYTES_MAX {
            let Some((_, old)) = self.entries.pop_first() else { break };
            self.bytes -= old.cost();
            self.dropped += 1;
        }
    }
    /// Forgets what can no longer be lost.
    pub(crate) fn committed(&mut self, last_committed: Transno) {
        while let Some(first) = self.entries.first_entry()
            && first.key().0 <= last_committed
        {
            self.bytes -= first.remove().cost();
        }
    }
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.done.clear();
        self.bytes = 0;
    }
    /// The next change to replay.
    pub(crate) fn first(&self) -> Option<ReplayEntry> {
        let (key, request) = self.entries.first_key_value()?;
        Some(ReplayEntry { request: request.clone(), transno: key.0 })
    }
    /// The change `(transno, xid)` was replayed and has the number `now` (0: it could not be done again).
    pub(crate) fn replayed(&mut self, transno: Transno, xid: Xid, now: Transno) {
        if let Some(request) = self.entries.remove(&(transno, xid)) {
            self.bytes -= request.cost();
            if now != Transno(0) {
                self.done.push(ReplayEntry { request, transno: now });
            }
        }
    }
    /// The replay is over, or will begin again: everything is in the list under its newest number.
    pub(crate) fn settle(&mut self) {
        for entry in core::mem::take(&mut self.done) {
            self.keep(entry.transno, entry.request);
        }
    }
    pub fn len(&self) -> usize {
        self.entries.len() + self.done.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn bytes(&self) -> usize {
        self.bytes
    }
    /// Entries that fell out at the bound.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
