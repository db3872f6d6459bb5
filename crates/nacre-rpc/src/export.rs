//! One client as a target sees it: which requests are executed, get their reply from a reply record, or are dropped.
//!
//! Invariants: (1) a request with a tag is executed once per xid: a copy of a running one is dropped, a copy of a
//! finished one gets the reply of its record, a copy of an abandoned one is executed; (2) the record with the client's
//! highest transno is never released before a newer one; (3) at most one record and one running request per tag, so
//! everything here is bounded by the number of tags, by [`RUNNING_MAX`] and by `UNTAGGED_MAX`; (4) callbacks are kept
//! until acknowledged.
//! Only [`Export::admit`] decides about requests. Not here: how records are stored and read back.

use crate::record::ReplyRecord;
use crate::slots::TAG_MAX;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{ConnEpoch, Errno, Generation, ProtocolOutcome, Tag, Transno, Xid};
use nacre_wire::{Class, Frame, Header, Kind, Opcode, flags};

/// Requests of one client that may be executed at the same time. A correct client stays far below.
pub const RUNNING_MAX: usize = 1024;
/// Requests without a tag that are remembered; a client that exceeds the bound must reconnect.
const UNTAGGED_MAX: usize = 1 << 20;
/// Callbacks that may wait for their acknowledgement.
const CALLBACKS_MAX: usize = 16_384;

/// The decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// The request is new: its handler runs, and then reports the reply to the export.
    Execute,
    /// The request was executed before: the handler reconstructs the reply from this record.
    Reply(ReplyRecord),
    /// Another copy is being executed, or its sender has a newer connection.
    Drop,
    /// The request breaks a rule of the protocol or a bound; the reply is this error.
    Error(Errno),
}

/// The client does not acknowledge callbacks and must be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{CALLBACKS_MAX} callbacks are not acknowledged")]
pub struct CallbacksFull;

#[derive(Debug)]
struct Running {
    tag: Tag,
    /// Epoch of the copy that is executed.
    began: ConnEpoch,
    /// Epoch of the latest copy: the reply is sent there.
    epoch: ConnEpoch,
}

/// The latest request of a tag.
#[derive(Debug)]
struct TagUse {
    xid: Xid,
    epoch: ConnEpoch,
}

/// The export of one client.
#[derive(Debug)]
pub struct Export {
    generation: Generation,
    epoch: ConnEpoch,
    tags_max: u16,
    last_xid: Xid,
    last_transno: Transno,
    /// Xid of the change with that transno.
    newest: Xid,
    records: BTreeMap<Xid, ReplyRecord>,
    tags: BTreeMap<Tag, TagUse>,
    /// Sorted by xid. There are few, and the latest is almost always the last.
    running: Vec<(Xid, Running)>,
    /// Requests of this epoch without a tag that must run once only; on one connection none is sent twice.
    untagged: BTreeSet<Xid>,
    callbacks: BTreeMap<Xid, Frame>,
    next_callback: u64,
    records_max: usize,
    released_by_xid: u64,
    released_by_tag: u64,
}

impl Export {
    /// An export without connection, requests or records; `generation` names it for good.
    pub fn new(generation: Generation) -> Self {
        Self {
            generation,
            epoch: ConnEpoch(0),
            tags_max: 0,
            last_xid: Xid(0),
            last_transno: Transno(0),
            newest: Xid(0),
            records: BTreeMap::new(),
            tags: BTreeMap::new(),
            running: Vec::new(),
            untagged: BTreeSet::new(),
            callbacks: BTreeMap::new(),
            next_callback: 1,
            records_max: 0,
            released_by_xid: 0,
            released_by_tag: 0,
        }
    }

    /// Restores an export after a restart, from the store.
    pub fn restore(
        generation: Generation,
        last_transno: Transno,
        records: impl IntoIterator<Item = ReplyRecord>,
    ) -> Self {
        let mut export = Self::new(generation);
        for record in records {
            export.remember(record);
        }
        export.last_transno = export.last_transno.max(last_transno);
        // The limit that was agreed before the restart is not known, and resent requests keep their tags.
        export.tags_max = TAG_MAX;
        export
    }

    /// The client has connected. The frames of [`Export::callbacks`] must be resent after the connect reply.
    ///
    /// # Errors
    /// [`ProtocolOutcome::StaleEpoch`] when the epoch is not newer: a delayed copy of an earlier connect.
    pub fn connect(&mut self, epoch: ConnEpoch, max_mod_rpcs: u16) -> Result<(), ProtocolOutcome> {
        if epoch <= self.epoch {
            return Err(ProtocolOutcome::StaleEpoch);
        }
        self.epoch = epoch;
        self.untagged.clear();
        // Requests of a higher limit that was agreed earlier may still be outstanding.
        self.tags_max = self.tags_max.max(max_mod_rpcs.saturating_add(2)).min(TAG_MAX);
        for frame in self.callbacks.values_mut() {
            frame.header.epoch = epoch;
        }
        Ok(())
    }

    /// Decides about a request. After `Execute` the caller executes it and then calls [`Export::finish`].
    pub fn admit(&mut self, header: &Header, class: Class) -> Admission {
        if header.epoch < self.epoch {
            return Admission::Drop;
        }
        if header.epoch > self.epoch || header.xid == Xid(0) {
            return Admission::Error(Errno::EPROTO);
        }
        let replay = header.has(flags::REPLAY);
        if !replay {
            self.handle_last_xid(header.last_xid);
        }
        if class == Class::Import {
            return Admission::Execute;
        }
        if header.xid <= self.last_xid && !replay {
            return Admission::Error(Errno::EPROTO);
        }
        if let Some((_, running)) = self.running_at(header.xid).ok().and_then(|at| self.running.get_mut(at)) {
            running.epoch = header.epoch;
            return Admission::Drop;
        }
        // The bytes of a write may be lost although its rows are not: its replay is always executed.
        let data = replay && header.is_kept_until_stable();
        if let Some(record) = self.records.get(&header.xid).filter(|_| !data) {
            return Admission::Reply(record.clone());
        }
        if self.running.len() >= RUNNING_MAX {
            return Admission::Error(Errno::EPROTO);
        }
        match class {
            Class::Modify | Class::Close => {
                if header.tag == Tag(0) || header.tag.0 > self.tags_max {
                    return Admission::Error(Errno::EPROTO);
                }
                if !replay && let Some(refusal) = self.take_tag(header) {
                    return refusal;
                }
            }
            Class::Read if header.runs_once() => {
                if self.untagged.len() >= UNTAGGED_MAX {
                    return Admission::Error(Errno::EPROTO);
                }
                if !self.untagged.insert(header.xid) {
                    return Admission::Drop;
                }
            }
            Class::Read | Class::Callback | Class::Import => {}
        }
        let running = Running { tag: header.tag, began: header.epoch, epoch: header.epoch };
        let at = self.running_at(header.xid).unwrap_or_else(|at| at);
        self.running.insert(at, (header.xid, running));
        Admission::Execute
    }

    /// The rules of a tag: one request at a time, xids increase.
    fn take_tag(&mut self, header: &Header) -> Option<Admission> {
        if let Some(tag_use) = self.tags.get(&header.tag) {
            if header.xid < tag_use.xid {
                return Some(Admission::Error(Errno::EPROTO));
            }
            if header.xid == tag_use.xid {
                if tag_use.epoch == header.epoch {
                    return Some(Admission::Drop); // a duplicate of a request that failed and left no record
                }
            } else {
                let old = tag_use.xid;
                self.release(old);
            }
        }
        self.tags.insert(header.tag, TagUse { xid: header.xid, epoch: header.epoch });
        None
    }

    /// The client has every reply up to `last_xid` (a request's header, or a `Kind::Ack`).
    pub fn handle_last_xid(&mut self, last_xid: Xid) {
        if last_xid <= self.last_xid {
            return;
        }
        self.last_xid = last_xid;
        if !self.untagged.is_empty() {
            self.untagged = self.untagged.split_off(&last_xid);
        }
        // Every record except the one with the highest transno: the search skips one record at most.
        let newest = self.newest;
        while let Some((&xid, _)) = self.records.range(..=last_xid).find(|(xid, _)| **xid != newest) {
            self.records.remove(&xid);
            self.released_by_xid += 1;
        }
    }

    /// Whether the record of this request must be stored: not if its tag was used again meanwhile.
    pub fn keeps_record(&self, tag: Tag, xid: Xid) -> bool {
        self.tags.get(&tag).is_none_or(|newest| newest.xid <= xid)
    }

    /// A change was executed, and its record is in the transaction. The record is not kept if its tag was used again meanwhile.
    pub fn remember(&mut self, record: ReplyRecord) {
        if record.transno > self.last_transno {
            self.last_transno = record.transno;
            let older = core::mem::replace(&mut self.newest, record.xid);
            if older <= self.last_xid && self.records.remove(&older).is_some() {
                self.released_by_xid += 1; // the record was kept only for its transno
            }
        }
        if !self.keeps_record(record.tag, record.xid) {
            return;
        }
        let (xid, tag) = (record.xid, record.tag);
        self.records.insert(xid, record);
        self.records_max = self.records_max.max(self.records.len());
        let tag_use = self.tags.entry(tag).or_insert(TagUse { xid, epoch: ConnEpoch(0) });
        if tag_use.xid < xid {
            let old = core::mem::replace(&mut tag_use.xid, xid);
            self.release(old);
        }
    }

    /// The request that was admitted on epoch `began` was executed. Returns the epoch on which its reply may be sent; `None`: on
    /// no connection, the next copy of the request gets a reply.
    pub fn finish(&mut self, xid: Xid, began: ConnEpoch) -> Option<ConnEpoch> {
        let at = self.running_at(xid).ok()?;
        let (_, running) = self.running.get(at)?;
        let running = Some(running).filter(|running| running.began == began)?.epoch;
        self.running.remove(at);
        (running == self.epoch).then_some(running)
    }
    /// A running request is abandoned: its next copy is executed, even before the task of this one has ended.
    pub fn abandon(&mut self, xid: Xid) {
        if let Ok(at) = self.running_at(xid) {
            self.running.remove(at);
        }
    }
    /// The place of a running request, or the one that it would have.
    fn running_at(&self, xid: Xid) -> Result<usize, usize> {
        match self.running.last() {
            Some((last, _)) if *last >= xid => self.running.binary_search_by_key(&xid, |(xid, _)| *xid),
            _ => Err(self.running.len()),
        }
    }

    fn release(&mut self, xid: Xid) {
        if xid != self.newest && self.records.remove(&xid).is_some() {
            self.released_by_tag += 1;
        }
    }

    // ---- callbacks

    /// Keeps a callback until it is acknowledged. The caller sends the returned frame if the client is connected.
    ///
    /// # Errors
    /// Too many callbacks of the client wait for their acknowledgement: evict it.
    pub fn callback(&mut self, opcode: Opcode, body: Bytes) -> Result<Frame, CallbacksFull> {
        if self.callbacks.len() >= CALLBACKS_MAX {
            return Err(CallbacksFull);
        }
        let mut header = Header::new(Kind::Callback, opcode.number());
        header.xid = Xid(self.next_callback);
        header.epoch = self.epoch;
        self.next_callback += 1;
        let frame = Frame { header, body, bulk: Vec::new() };
        self.callbacks.insert(frame.header.xid, frame.clone());
        Ok(frame)
    }
    /// Callbacks without an acknowledgement, in order, as frames of the current epoch.
    pub fn callbacks(&self) -> Vec<Frame> {
        self.callbacks.values().cloned().collect()
    }
    /// The client has executed the callback, so it is not sent again. Unknown numbers are ignored.
    pub fn handle_callback_ack(&mut self, xid: Xid) {
        self.callbacks.remove(&xid);
    }

    // ---- state

    /// Ties records, opens and locks to this export.
    pub fn generation(&self) -> Generation {
        self.generation
    }
    /// Epoch of the latest connection; requests of earlier ones are dropped.
    pub fn epoch(&self) -> ConnEpoch {
        self.epoch
    }
    /// The client has the replies to all requests up to this.
    pub fn last_xid(&self) -> Xid {
        self.last_xid
    }
    /// The latest change of this client; its record is kept until there is a newer one.
    pub fn last_transno(&self) -> Transno {
        self.last_transno
    }
    /// Requests that are being executed, with their tags.
    pub fn running(&self) -> impl ExactSizeIterator<Item = (Xid, Tag)> + '_ {
        self.running.iter().map(|(xid, r)| (*xid, r.tag))
    }
    /// Records that a resend may still ask for, in the order of their xids.
    pub fn records(&self) -> impl ExactSizeIterator<Item = &ReplyRecord> + '_ {
        self.records.values()
    }
    /// Most records at a time, and how many were released by `last_xid` and by the next use of their tag.
    pub fn record_counts(&self) -> (usize, u64, u64) {
        (self.records_max, self.released_by_xid, self.released_by_tag)
    }
    /// Callbacks that a new connection would send again.
    pub fn unacknowledged_callbacks(&self) -> usize {
        self.callbacks.len()
    }
}
