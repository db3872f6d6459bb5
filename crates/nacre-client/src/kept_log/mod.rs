//! The log of kept writes: a mount whose servers are in its own process writes each write that it keeps in memory to a log in
//! its store as well, before the call returns, so that a process that is killed loses no acknowledged write.
//!
//! The store is a few segments of the page cache, never synced: they survive the process, not the machine. (A write that
//! was synced, or that another mount has seen, is at the OSTs.) When the process starts again, the OSTs execute the writes
//! that are left ([`kept_writes`]) before they serve a client, so no other mount can have changed these bytes since.
//!
//! - `record.rs`: the format; `read.rs`: what is left in a log.
//!
//! Invariants: (1) the writes of a visit are executed before its effects, replies included (`nacre_node::Logic::log_writes`).
//! (2) Records are numbered; those of a file up to a number are void from the moment on when the OSTs have their bytes, and
//! before this mount lets another change the file: a record says so. (3) A segment is written anew when all writes in it
//! are void ([`KeptLog::has_room`]). Every segment in which a file has writes has its layout, too.
//!
//! (4) The bytes of long writes are not in the log: it names their place in memory that survives the process. They stay there
//! until no OST needs them any more; then the place is that of other bytes, and whoever reads the log sees that.
//!
//! Bounded: [`SEGMENTS`] of [`SEGMENT_BYTES`]. Not here: which writes are kept (`data/write_back.rs`).

mod read;
mod record;

pub use read::{KeptWrites, kept_writes};
pub use record::{SEGMENT_BYTES, SEGMENTS};

#[cfg(test)]
mod tests;

use crate::files::state::FileState;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use core::fmt::Debug;
use nacre_node::{FileId, StoreOp};
use nacre_types::{Boot, Fid, KeptPlace, Timestamp};
use record::{FileRecord, HEAD_BYTES, KeptRecord, PlacedRecord, Record, SegmentRecord, VoidRecord};

/// Longer writes are sent to the OSTs at once: a request costs little for each of their bytes, and a copy much. The log names
/// the place of those that need no copy ([`KeptMemory`]).
pub(crate) const WRITE_BYTES_MAX: u64 = 64 << 10;
/// A shorter write has no place of its own in memory.
pub(crate) const PLACED_BYTES_MIN: usize = 256 << 10;
/// Part of a segment in which only void records are written, so that there is always room for them.
const RESERVED_BYTES: u64 = SEGMENT_BYTES / 4;
/// Most bytes of the records beside the data of a write: the layout of a widely striped file.
const BESIDE_DATA_BYTES: u64 = 4096;
/// Files with writes in the log. Each needs a few void records.
pub(crate) const FILES_MAX: usize = 8192;

/// Memory that survives the process, in which requests of the kernel are received.
pub trait KeptMemory: Debug + Send + Sync {
    /// Where these bytes lie in it. They stay there as long as somebody has them.
    fn place_of(&self, bytes: &Bytes) -> Option<KeptPlace>;
    /// The log that knows the places has ended: nothing in this memory is to change until what is left was read.
    fn log_ended(&self);
}

/// What a log needs to know of its machine.
#[derive(Debug, Clone)]
pub struct KeptLogConfig {
    /// The present start of the machine.
    pub boot: Boot,
    /// `None`: only the bytes of short writes are kept.
    pub memory: Option<Arc<dyn KeptMemory>>,
    /// Where in a file its writes are those of a stream: long ones are kept from there on. Before, they go through the page
    /// cache of the store, where the next reader finds them.
    pub streams_from: u64,
}

/// The log of a mount. Its record of a file is [`LoggedFile`].
pub(crate) struct KeptLog {
    /// Of the mount: its writes are executed once.
    id: u64,
    config: KeptLogConfig,
    /// Segments begun so far.
    begun: Cell<u64>,
    /// Bytes of the current segment that are written.
    end: Cell<u64>,
    /// Number of the latest record.
    serial: Cell<u64>,
    /// The records of this visit.
    pending: RefCell<Vec<Bytes>>,
    pending_at: Cell<u64>,
    writes: RefCell<Vec<StoreOp>>,
}

/// What the log has of a file.
#[derive(Debug, Default)]
pub(crate) struct LoggedFile {
    /// The segment, by the number of those begun, that has the earliest write that may not be void.
    since: Cell<u64>,
    /// The segment that has its layout, as well.
    described_in: Cell<u64>,
    /// The latest write.
    serial: Cell<u64>,
    /// Writes up to this one are void.
    void_to: Cell<u64>,
}

/// A place in the log: what comes later is not before it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LogPlace {
    serial: u64,
    segment: u64,
}

impl LoggedFile {
    /// The earliest segment that must stay for this file.
    pub(crate) fn since(&self) -> u64 {
        self.since.get()
    }
}

impl KeptLog {
    pub(crate) fn new(id: u64, config: KeptLogConfig) -> Self {
        Self {
            id,
            config,
            begun: Cell::new(0),
            end: Cell::new(SEGMENT_BYTES),
            serial: Cell::new(0),
            pending: RefCell::default(),
            pending_at: Cell::new(0),
            writes: RefCell::default(),
        }
    }
    /// The store operations of this visit, in their order.
    pub(crate) fn take_writes(&self, out: &mut Vec<StoreOp>) {
        self.end_run();
        out.append(&mut self.writes.borrow_mut());
    }
    pub(crate) fn memory(&self) -> Option<&Arc<dyn KeptMemory>> {
        self.config.memory.as_ref()
    }
    /// Whether writes like this one are logged.
    pub(crate) fn takes(&self, offset: u64, data: &Bytes) -> bool {
        data.len() as u64 <= WRITE_BYTES_MAX
            || (offset >= self.config.streams_from && self.place_of(data).is_some())
    }
    fn place_of(&self, data: &Bytes) -> Option<KeptPlace> {
        let memory = self.memory().filter(|_| data.len() >= PLACED_BYTES_MIN)?;
        memory.place_of(data)
    }
    /// Whether a write of `len` bytes can be logged now. `oldest`: the earliest segment that must stay.
    pub(crate) fn has_room(&self, len: u64, oldest: impl FnOnce() -> Option<u64>) -> bool {
        let needed = len.min(WRITE_BYTES_MAX) + BESIDE_DATA_BYTES;
        self.end.get() + needed <= SEGMENT_BYTES - RESERVED_BYTES
            || oldest().is_none_or(|oldest| self.begun.get() + 1 < oldest + SEGMENTS)
    }
    /// Logs a write; there is room for it. `is_first`: all former writes of the file are void.
    pub(crate) fn kept(
        &self,
        file: &FileState,
        logged: &LoggedFile,
        is_first: bool,
        (offset, mtime): (u64, Timestamp),
        data: &Bytes,
    ) {
        let Some(component) = file.known_component() else { return };
        let place = self.place_of(data);
        let logged_bytes = if place.is_some() { 0 } else { data.len() as u64 };
        if self.end.get() + logged_bytes + BESIDE_DATA_BYTES > SEGMENT_BYTES - RESERVED_BYTES {
            self.begin_segment();
        }
        let segment = self.begun.get();
        if is_first {
            logged.since.set(segment);
        }
        if logged.described_in.replace(segment) != segment {
            let file = FileRecord { fid: file.fid, owner: file.owner(), component: (*component).clone() };
            self.append(&Record::File(file), None);
        }
        let fid = file.fid;
        logged.serial.set(match place {
            None => self.append(&Record::Kept(KeptRecord { fid, offset, mtime }), Some(data)),
            Some(place) => {
                let len = data.len() as u64;
                self.append(&Record::Placed(PlacedRecord { fid, offset, mtime, len, place }), None)
            }
        });
    }
    /// Where the log ends for now.
    pub(crate) fn place(&self) -> LogPlace {
        LogPlace { serial: self.serial.get(), segment: self.begun.get() }
    }
    /// The OSTs have all writes of a file that were logged before `place`.
    pub(crate) fn sent(&self, fid: Fid, logged: &LoggedFile, place: LogPlace) {
        logged.since.set(logged.since.get().max(place.segment));
        let to = place.serial.min(logged.serial.get());
        if to <= logged.void_to.get() {
            return;
        }
        logged.void_to.set(to);
        if self.end.get() + HEAD_BYTES + BESIDE_DATA_BYTES > SEGMENT_BYTES {
            self.begin_segment();
        }
        self.append(&Record::Void(VoidRecord { fid, serial: to }), None);
    }

    fn append(&self, record: &Record, data: Option<&Bytes>) -> u64 {
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        let head = record.encode(serial, data);
        let len = head.len() as u64 + data.map_or(0, |data| data.len() as u64);
        self.end.set(self.end.get() + len);
        let mut pending = self.pending.borrow_mut();
        pending.push(head);
        pending.extend(data.cloned());
        serial
    }
    fn begin_segment(&self) {
        self.end_run();
        if self.begun.get() == 0 {
            let create = |segment| StoreOp::Create { file: FileId::Log(segment), len: SEGMENT_BYTES };
            self.writes.borrow_mut().extend((0..SEGMENTS).map(create));
        }
        self.begun.set(self.begun.get() + 1);
        self.end.set(0);
        self.pending_at.set(0);
        self.append(&Record::Segment(SegmentRecord::new(self.id, self.config.boot)), None);
    }
    /// The records that wait become one write.
    fn end_run(&self) {
        let data = core::mem::take(&mut *self.pending.borrow_mut());
        if data.is_empty() {
            return;
        }
        let file = FileId::Log(self.begun.get() % SEGMENTS);
        let offset = self.pending_at.replace(self.end.get());
        self.writes.borrow_mut().push(StoreOp::Write { file, offset, data });
    }
}
impl Drop for KeptLog {
    fn drop(&mut self) {
        if let Some(memory) = self.memory() {
            memory.log_ended();
        }
    }
}
