//! The files of a mount with dirty bytes: written by a program, and not at the OSTs yet.
//!
//! Bounded: by `llite.*.max_dirty_mb` for all files together (the caller waits for room). Not here: when bytes may be kept, and
//! their way to the OSTs (`data/write_back.rs`, which has the rules).

use crate::files::dirty_bytes::{DirtyBytes, Run};
use crate::files::table::Open;
use crate::files::write_queue::WriteQueue;
use crate::kept_log::{self, KeptLog, KeptMemory, LogPlace, LoggedFile};
use crate::targets::target::{RPC_BYTES_MIN, Target};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, WaitList};
use nacre_types::{Extent, Failure, Fid, Instant, MdtIndex, OstIndex, Timestamp};
use nacre_wire::ost::EXTENT_TAX;
use nacre_wire::params::MountParam;

/// A piece takes as much room as so many bytes: it needs memory beside its bytes, and a request.
const PIECE_ROOM: u64 = 4096;
/// Pieces of one file beyond which it is flushed at once: each needs memory beside its bytes, and a request.
const PIECES_MAX: usize = 8192;

/// The part of a grant that dirty bytes need.
fn charge(bytes: &DirtyBytes) -> u64 {
    bytes.bytes() + bytes.pieces() as u64 * EXTENT_TAX
}

/// The dirty bytes of one file.
pub(crate) struct DirtyFile {
    /// The handle that has written last: the OSTs are asked through it.
    open: RefCell<Rc<Open>>,
    /// They have granted space for the bytes.
    osts: Vec<Rc<Target>>,
    bytes: RefCell<DirtyBytes>,
    /// When the latest byte was written.
    mtime: Cell<Timestamp>,
    logged: LoggedFile,
    /// Ranges under way to the OSTs.
    sending: Cell<usize>,
    /// The task that flushes later is to do so now.
    is_due: Cell<bool>,
    due: WaitList,
    clean: WaitList,
}

impl DirtyFile {
    pub(crate) fn fid(&self) -> Fid {
        self.open.borrow().file.fid
    }
    /// The handle that has written last, and when.
    pub(crate) fn last_write(&self) -> (Rc<Open>, Timestamp) {
        (self.open.borrow().clone(), self.mtime.get())
    }
    pub(crate) fn is_clean(&self) -> bool {
        self.bytes.borrow().is_empty() && self.sending.get() == 0
    }
    pub(crate) fn flush_now(&self) {
        self.is_due.set(true);
        self.due.wake_all();
    }
    /// Waits until the file is to be flushed, at the latest until `at`.
    pub(crate) async fn due(&self, ctx: &Ctx, at: Instant) {
        if !self.is_due.get() {
            let _due = ctx.timeout(at, self.due.wait()).await;
        }
        self.is_due.set(false);
    }
    /// Ranges with dirty bytes, none longer than a request.
    pub(crate) fn ranges(&self) -> Vec<Extent> {
        self.bytes.borrow().ranges()
    }
    fn charge(&self, before: u64, after: u64) {
        self.osts.iter().for_each(|ost| ost.grant().charge(before, after));
    }
    /// Whether every byte of a range is dirty.
    pub(crate) fn covers(&self, range: Extent) -> bool {
        self.bytes.borrow().cover(range)
    }
    /// Copies the dirty bytes from `offset` on over `out`.
    pub(crate) fn copy_over(&self, offset: u64, out: &mut [u8]) {
        self.bytes.borrow().copy_over(offset, out);
    }
}

/// The outcome of keeping bytes.
pub(crate) struct Kept {
    file: Rc<DirtyFile>,
    is_first: bool,
    full: Option<Extent>,
}
impl Kept {
    pub(crate) fn file(&self) -> &Rc<DirtyFile> {
        &self.file
    }
    /// Whether the file had no dirty bytes: it needs a task that flushes it.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }
    /// A range that fills a request.
    pub(crate) fn full(&self) -> Option<Extent> {
        self.full
    }
}

/// The dirty files of a mount.
pub(crate) struct DirtyFiles {
    is_on: Cell<bool>,
    /// `None`: what is kept may be lost with the process.
    log: Option<KeptLog>,
    files: RefCell<BTreeMap<Fid, Rc<DirtyFile>>>,
    /// Bytes that are dirty or under way, and their bound.
    bytes: Cell<u64>,
    bytes_max: Cell<u64>,
    /// Pieces that are dirty, and those under way.
    pieces: Cell<usize>,
    room: WaitList,
    /// Those under way that are sent with others.
    queues: RefCell<BTreeMap<OstIndex, Rc<WriteQueue>>>,
}

impl DirtyFiles {
    pub(crate) fn new(ctx: &Ctx, is_on: bool, log: Option<KeptLog>) -> Rc<Self> {
        let bytes_max = u64::from(MountParam::MaxDirtyMb.row().default_u32()) << 20;
        Rc::new(Self {
            is_on: Cell::new(is_on),
            log,
            files: RefCell::default(),
            bytes: Cell::new(0),
            bytes_max: Cell::new(bytes_max),
            pieces: Cell::new(0),
            room: ctx.wait_list(),
            queues: RefCell::default(),
        })
    }
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }
    /// Whether bytes are kept from now on; those that are dirty are flushed at once.
    pub(crate) fn set_on(&self, on: bool) {
        self.is_on.set(on);
        self.flush_now();
    }
    /// Has all files flushed at once.
    pub(crate) fn flush_now(&self) {
        self.files.borrow().values().for_each(|file| file.flush_now());
    }
    /// Bytes that are dirty or under way.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max.get()
    }
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        self.bytes_max.set(bytes_max);
        self.room.wake_all();
    }
    pub(crate) fn log(&self) -> Option<&KeptLog> {
        self.log.as_ref()
    }
    /// Whether writes like this one are kept.
    pub(crate) fn takes(&self, offset: u64, data: &Bytes) -> bool {
        self.is_on() && self.log.as_ref().is_none_or(|log| log.takes(offset, data))
    }
    /// Whether there is no room for a write of so many bytes.
    pub(crate) fn is_full(&self, len: u64) -> bool {
        self.bytes.get().max(self.pieces.get() as u64 * PIECE_ROOM) >= self.bytes_max.get()
            || self.log.as_ref().is_some_and(|log| {
                let files = self.files.borrow();
                files.len() >= kept_log::FILES_MAX
                    || !log.has_room(len, || files.values().map(|file| file.logged.since()).min())
            })
    }
    /// Where the log of kept writes ends.
    pub(crate) fn log_place(&self) -> LogPlace {
        self.log.as_ref().map_or_else(LogPlace::default, KeptLog::place)
    }
    /// The OSTs have all bytes of a file that were kept before `place`, or they are lost.
    pub(crate) fn left_before(&self, file: &DirtyFile, place: LogPlace) {
        if let Some(log) = &self.log {
            log.sent(file.fid(), &file.logged, place);
            self.room.wake_all();
        }
    }
    fn memory(&self) -> Option<Arc<dyn KeptMemory>> {
        self.log.as_ref()?.memory().cloned()
    }
    /// Waits until bytes have left.
    pub(crate) async fn room(&self) {
        self.room.wait().await;
    }
    /// The small writes for an OST that wait to be sent.
    pub(crate) fn queue(&self, ost: OstIndex) -> Rc<WriteQueue> {
        self.queues.borrow_mut().entry(ost).or_default().clone()
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.files.borrow().is_empty()
    }
    /// Whether bytes of a file are dirty or under way.
    pub(crate) fn has(&self, fid: Fid) -> bool {
        self.files.borrow().contains_key(&fid)
    }
    pub(crate) fn get(&self, fid: Fid) -> Option<Rc<DirtyFile>> {
        self.files.borrow().get(&fid).cloned()
    }
    pub(crate) fn all(&self) -> Vec<Rc<DirtyFile>> {
        self.files.borrow().values().cloned().collect()
    }
    /// Waits until all bytes of these files that are dirty now are at the OSTs, or lost.
    pub(crate) async fn flushed(&self, fids: &[Fid]) {
        for file in fids.iter().filter_map(|fid| self.get(*fid)) {
            while !file.is_clean() {
                file.flush_now();
                file.clean.wait().await;
            }
        }
    }
    /// Keeps the bytes of a write through a handle.
    pub(crate) fn keep(
        &self,
        ctx: &Ctx,
        open: &Rc<Open>,
        osts: Vec<Rc<Target>>,
        offset: u64,
        data: &Bytes,
        mtime: Timestamp,
    ) -> Kept {
        let known = self.get(open.file.fid);
        let is_first = known.is_none();
        let file = known.unwrap_or_else(|| {
            // A change of the limit takes effect once the file has had no dirty bytes.
            // Servers in this process take the bytes from where they are: short requests cost little, and begin sooner.
            let limits = osts.iter().map(|ost| ost.rpc_bytes_max()).min().filter(|_| self.memory().is_none());
            let piece_bytes = limits.unwrap_or(RPC_BYTES_MIN);
            Rc::new(DirtyFile {
                open: RefCell::new(open.clone()),
                osts,
                bytes: RefCell::new(DirtyBytes::new(piece_bytes, self.memory())),
                mtime: Cell::new(mtime),
                logged: LoggedFile::default(),
                sending: Cell::new(0),
                is_due: Cell::new(false),
                due: ctx.wait_list(),
                clean: ctx.wait_list(),
            })
        });
        if is_first {
            self.files.borrow_mut().insert(open.file.fid, file.clone());
        }
        let (full, pieces) = {
            let mut bytes = file.bytes.borrow_mut();
            let (before, pieces, charged) = (bytes.bytes(), bytes.pieces(), charge(&bytes));
            bytes.write(offset, data);
            self.bytes.set(self.bytes.get() + bytes.bytes() - before);
            self.pieces.set(self.pieces.get() + bytes.pieces() - pieces);
            file.charge(charged, charge(&bytes));
            (bytes.full_piece(offset), bytes.pieces())
        };
        *file.open.borrow_mut() = open.clone();
        file.mtime.set(mtime);
        if let Some(log) = &self.log {
            log.kept(&open.file, &file.logged, is_first, (offset, mtime), data);
        }
        if pieces >= PIECES_MAX {
            file.flush_now();
        }
        Kept { file, is_first, full }
    }
    /// Takes the dirty bytes of a range, if it has any; they are under way until [`DirtyFiles::sent`].
    pub(crate) fn begin(&self, file: &DirtyFile, range: Extent) -> Option<SentBytes> {
        let mut bytes = file.bytes.borrow_mut();
        let (pieces, before) = (bytes.pieces(), charge(&bytes));
        let runs = bytes.take(range);
        self.pieces.set(self.pieces.get() + bytes.pieces() + runs.len() - pieces);
        if !runs.is_empty() {
            file.sending.set(file.sending.get() + 1);
        }
        let after = charge(&bytes);
        if after > before {
            file.charge(before, after); // a piece was cut into two
        }
        (!runs.is_empty()).then(|| SentBytes { runs, charged: before.saturating_sub(after) })
    }
    /// Some runs, with so many bytes, have arrived at the OSTs, or are lost.
    pub(crate) fn left(&self, runs: usize, bytes: u64) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
        self.pieces.set(self.pieces.get().saturating_sub(runs));
        self.room.wake_all();
    }
    /// What [`Self::begin`] has taken is not under way any more.
    pub(crate) fn sent(&self, file: &DirtyFile, charged: u64) {
        file.charge(charged, 0);
        file.sending.set(file.sending.get() - 1);
        self.forget_if_clean(file);
    }
    fn forget_if_clean(&self, file: &DirtyFile) {
        if !file.is_clean() {
            return;
        }
        let fid = file.fid();
        self.left_before(file, self.log_place());
        if self.get(fid).is_some_and(|listed| core::ptr::eq(Rc::as_ptr(&listed), file)) {
            self.files.borrow_mut().remove(&fid);
        }
        file.flush_now(); // its task ends
        file.clean.wake_all();
    }
    /// An MDT has evicted this mount: the dirty bytes of its files are lost.
    pub(crate) fn evicted(&self, mdt: MdtIndex) {
        for file in self.all().into_iter().filter(|file| file.fid().mdt() == mdt) {
            if let Some(lost_bytes) = self.begin(&file, Extent::ALL) {
                let lost = lost_bytes.len();
                self.left(lost_bytes.runs.len(), lost);
                let state = &file.open.borrow().file;
                tracing::error!(fid = %state.fid, lost,
                    "the MDT has evicted this mount while it kept bytes that the OSTs did not have: they are lost. A \
                     handle that is still open reports EIO at its next fsync or close");
                state.write_failed(Failure::EIO);
                self.sent(&file, lost_bytes.charged);
            }
        }
    }
}

/// Dirty bytes that were taken from their file to be sent.
pub(crate) struct SentBytes {
    runs: Vec<Run>,
    /// The part of the grants of OSTs that they need until they have arrived.
    charged: u64,
}

impl SentBytes {
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }
    pub(crate) fn into_runs(self) -> Vec<Run> {
        self.runs
    }
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }
    pub(crate) fn len(&self) -> u64 {
        self.runs.iter().map(Run::len).sum()
    }
    /// The bytes of a file that are all dirty, in one piece.
    pub(crate) fn all_bytes(&self) -> Bytes {
        let mut end = 0;
        for run in &self.runs {
            debug_assert_eq!(run.offset(), end, "all bytes of the file are dirty");
            end += run.len();
        }
        let mut parts = self.runs.iter().flat_map(Run::data);
        match (parts.next(), parts.next()) {
            (Some(only), None) => only.clone(),
            _ => {
                let mut all = Vec::with_capacity(usize::try_from(end).unwrap_or(0));
                self.runs.iter().flat_map(Run::data).for_each(|part| all.extend_from_slice(part));
                all.into()
            }
        }
    }
}
