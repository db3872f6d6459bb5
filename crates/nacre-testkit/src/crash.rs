//! A device that tracks which writes were synced, and can lose the others.
//!
//! Crashes: the process dies (everything executed stays), the machine dies (any part of the unsynced writes may stay, in
//! sectors of 512 bytes; files created or deleted since may exist or not), the store is mounted again (reads return the
//! content of the device), or a copy of the device takes its place. After a crash, stores that were handed out before
//! return `Stopped`: no write from before the crash reaches the device after it.
//!
//! Invariants: bytes that the device has refused, in a failed sync or when the kernel wrote them back, are read as
//! written until the store is mounted again, and no later sync makes them durable (the kernel marks such pages clean);
//! a run is a function of the operations and the random source.

use bytes::Bytes;
use nacre_node::{FileId, FileKind, Rng, Store, StoreDone, StoreError, StoreOp, StoreSpace};
use nacre_osd::checksum::{ChecksummedWrite, checksummed, write_checksummed};
use nacre_osd_mem::SparseFile;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Unit that a disk writes atomically.
const SECTOR_BYTES: u64 = 512;

/// Kind of operation that a fault waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOp {
    Create,
    Read,
    /// Plain and checksummed.
    Write,
    Sync,
    Replace,
    Delete,
    Truncate,
    Allocate,
    /// An early write-back that the device refuses: the next sync of the file reports it.
    Writeback,
}

/// An operation that will fail.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Kind of the operation that fails.
    pub op: FaultOp,
    /// Only on files of this kind.
    pub on: Option<FileKind>,
    /// 1: the next one.
    pub nth: u64,
    /// The result of the operation.
    pub error: StoreError,
}

/// The device. Clones are the same device.
#[derive(Clone)]
pub struct CrashDevice(Arc<Mutex<Disk>>);

/// A store of one life of the device.
struct Life {
    disk: Arc<Mutex<Disk>>,
    number: u64,
}

#[derive(Default)]
struct Disk {
    life: u64,
    files: BTreeMap<FileId, Content>,
    /// State at the barrier: a crash goes back to it.
    frozen: Option<BTreeMap<FileId, Content>>,
    capacity_bytes: u64,
    faults: Vec<Fault>,
    refuses: bool,
    full_underneath: bool,
    keeps_pages: bool,
    changes: u64,
    stop_at: Option<u64>,
}

#[derive(Clone, Default)]
struct Content {
    durable: Option<SparseFile>,
    now: Option<SparseFile>,
    /// The operations from `durable` to `now`, in order.
    pending: Vec<UnsyncedChange>,
    /// Blocks of a blob under pages that the device has refused. As on ext4: the pages are taken for written, so that
    /// what is written to them later is on no device either, although a sync succeeds, until the cache forgets them.
    stuck: BTreeSet<u64>,
    /// The error of an early write-back, which the next sync reports.
    writeback_error: Option<StoreError>,
}

#[derive(Clone)]
enum UnsyncedChange {
    Make { len: u64 },
    Write { offset: u64, data: Bytes },
    Truncate { len: u64 },
    Allocate { offset: u64, len: u64 },
    Punch { offset: u64, len: u64 },
    Zero { offset: u64, len: u64 },
    Delete,
}

impl CrashDevice {
    /// An empty device for so many bytes; operations beyond them fail with NoSpace.
    pub fn new(capacity_bytes: u64) -> Self {
        Self(Arc::new(Mutex::new(Disk { capacity_bytes, ..Disk::default() })))
    }
    fn lock(&self) -> MutexGuard<'_, Disk> {
        lock(&self.0)
    }

    /// The device as a store, until the next crash.
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::new(Life { disk: self.0.clone(), number: self.lock().life })
    }

    /// Another device with the same files, as after `cp -a` of a target's directory: it also has the bytes that were not synced.
    pub fn copy(&self) -> Self {
        let disk = self.lock();
        let all = |content: &Content| Content {
            durable: content.now.clone(),
            now: content.now.clone(),
            ..Content::default()
        };
        let files = disk.files.iter().map(|(file, content)| (*file, all(content))).collect();
        Self(Arc::new(Mutex::new(Disk { capacity_bytes: disk.capacity_bytes, files, ..Disk::default() })))
    }

    /// The process dies: what was executed stays.
    pub fn kill_process(&self) {
        let mut disk = self.lock();
        disk.next_life();
    }

    /// The machine dies: of what was not synced any part stays.
    pub fn power_loss(&self, rng: &mut Rng) {
        let mut disk = self.lock();
        disk.next_life();
        for content in disk.files.values_mut() {
            content.lose(rng);
        }
        disk.files.retain(|_, content| content.now.is_some());
    }

    /// The kernel writes everything back, and the device refuses it: what was written is read from the cache, and is on
    /// no device. That files were made, cut and deleted is in the journal.
    pub fn refuse_writeback(&self) {
        self.lock().files.iter_mut().for_each(|(file, content)| content.refused(*file));
    }
    /// The same on a file system that writes such pages again when they are changed again. From now on the cache forgets
    /// no page of a file because it is told to: for the kernel that is an advice.
    pub fn refuse_writeback_and_keep_pages(&self) {
        self.refuse_writeback();
        let mut disk = self.lock();
        disk.keeps_pages = true;
        disk.files.values_mut().for_each(|content| content.stuck.clear());
    }
    /// From now on the device refuses what is written back, until the next crash: syncs fail.
    pub fn refuse_syncs(&self) {
        self.lock().refuses = true;
    }
    /// From now on the device has no room for what is written back, until the next crash: syncs of objects fail. The log
    /// has its blocks.
    pub fn run_full_underneath(&self) {
        self.lock().full_underneath = true;
    }
    /// The process dies and the store is mounted again: dirty pages are written, clean pages that no device has are lost.
    pub fn remount(&self) {
        let mut disk = self.lock();
        let (refuses, full) = (disk.refuses, disk.full_underneath);
        disk.next_life();
        for (file, content) in &mut disk.files {
            if refuses || full && matches!(file, FileId::Blob(_)) {
                content.refused(*file);
            }
            content.synced();
            content.forgotten();
        }
        disk.files.retain(|_, content| content.now.is_some());
    }
    /// Another device with what this one holds now, of what was not synced any part.
    pub fn copy_unsynced(&self, rng: &mut Rng) -> Self {
        let (files, capacity_bytes) = {
            let disk = self.lock();
            (disk.files.clone(), disk.capacity_bytes)
        };
        let copy = Self(Arc::new(Mutex::new(Disk { files, capacity_bytes, ..Disk::default() })));
        copy.power_loss(rng);
        copy
    }

    /// Later changes are executed but do not survive any crash: as if the device were set read-only unnoticed.
    pub fn barrier(&self) {
        let mut disk = self.lock();
        disk.frozen = Some(disk.files.clone());
    }

    /// Adds a fault; each fires once.
    pub fn fail(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// Faults that have not fired.
    pub fn faults_left(&self) -> usize {
        self.lock().faults.len()
    }

    /// Operations so far that change the device or sync: the points at which it can crash.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }
    /// After `n` more changes everything returns `Stopped` until the next crash.
    pub fn stop_after(&self, n: u64) {
        let mut disk = self.lock();
        disk.stop_at = Some(disk.changes + n);
    }
    /// Whether `stop_after` has come true.
    pub fn is_stopped(&self) -> bool {
        let disk = self.lock();
        disk.stop_at.is_some_and(|at| disk.changes >= at)
    }

    /// Damages a byte of a file, where the disk has it and where it is read.
    pub fn flip(&self, file: FileId, offset: u64) {
        let mut disk = self.lock();
        let Some(content) = disk.files.get_mut(&file) else { return };
        for image in [&mut content.durable, &mut content.now].into_iter().flatten() {
            let mut byte = [0];
            if image.read(offset, &mut byte) == 1 {
                image.write(offset, &[!byte[0]]);
            }
        }
    }
}

fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    fn next_life(&mut self) {
        self.life += 1;
        self.stop_at = None;
        self.refuses = false;
        self.full_underneath = false;
        if let Some(frozen) = self.frozen.take() {
            self.files = frozen;
        }
    }

    fn used(&self) -> u64 {
        self.files.values().filter_map(|c| c.now.as_ref()).map(SparseFile::used_bytes).sum()
    }

    /// Whether a fault is due for this operation.
    fn fault(&mut self, op: &StoreOp) -> Option<StoreError> {
        let (kind, file) = kind_of(op)?;
        if self.refuses && matches!(kind, FaultOp::Sync | FaultOp::Replace) {
            return Some(StoreError::Device("the device refuses what is written back".into()));
        }
        if self.full_underneath && kind == FaultOp::Sync && matches!(file, FileId::Blob(_)) {
            return Some(StoreError::NoSpace);
        }
        let on = match file {
            FileId::Log(_) => Some(FileKind::Log),
            FileId::Run(_) => Some(FileKind::Run),
            FileId::Blob(_) => Some(FileKind::Blob),
            FileId::Super | FileId::Ballast | FileId::Mark => None,
        };
        let mut due = None;
        for (i, fault) in self.faults.iter_mut().enumerate() {
            if fault.op == kind && (fault.on.is_none() || fault.on == on) {
                fault.nth = fault.nth.saturating_sub(1);
                if fault.nth == 0 && due.is_none() {
                    due = Some(i);
                }
            }
        }
        due.map(|i| self.faults.remove(i).error)
    }

    fn now(&self, file: FileId) -> Option<&SparseFile> {
        self.files.get(&file)?.now.as_ref()
    }
    fn change(&mut self, file: FileId, change: UnsyncedChange) {
        let content = self.files.entry(file).or_default();
        apply(&mut content.now, &change);
        content.pending.push(change);
    }
    /// Makes a blob or run that is not there.
    fn make(&mut self, file: FileId) -> Result<(), StoreError> {
        if self.now(file).is_some() {
            return Ok(());
        }
        match file {
            FileId::Blob(_) | FileId::Run(_) => {
                self.change(file, UnsyncedChange::Make { len: 0 });
                Ok(())
            }
            FileId::Super | FileId::Ballast | FileId::Mark | FileId::Log(_) => {
                Err(StoreError::NotFound { file })
            }
        }
    }
    fn write(&mut self, file: FileId, offset: u64, data: &[Bytes]) -> Result<(), StoreError> {
        let len: u64 = data.iter().map(|b| b.len() as u64).sum();
        if len == 0 {
            return Ok(());
        }
        let growth = match self.now(file) {
            Some(now) => now.growth(offset, len),
            None => len,
        };
        if self.capacity_bytes != u64::MAX && self.used() + growth > self.capacity_bytes {
            return Err(StoreError::NoSpace);
        }
        self.make(file)?;
        let mut at = offset;
        for bytes in data {
            self.change(file, UnsyncedChange::Write { offset: at, data: bytes.clone() });
            at += bytes.len() as u64;
        }
        Ok(())
    }

    fn sync(&mut self, file: FileId) {
        let Some(content) = self.files.get_mut(&file) else { return };
        content.synced();
        if content.now.is_none() && content.durable.is_none() {
            self.files.remove(&file);
        }
    }
    /// An early write-back: unsynced bytes may be durable from now on, and those that the device refuses are lost although
    /// the call reports nothing.
    fn start_writeback(&mut self, file: FileId, op: &StoreOp) {
        let error = self.fault(op);
        if let (Some(error), Some(content)) = (error, self.files.get_mut(&file)) {
            content.refused(file);
            content.writeback_error = Some(error);
        }
    }
    fn must_reach(&self, file: FileId, to: u64) -> Result<(), StoreError> {
        match self.now(file).map_or(0, SparseFile::len) {
            held if held < to => Err(StoreError::Missing { file, from: held, to }),
            _ => Ok(()),
        }
    }

    fn read(&self, file: FileId, offset: u64, len: u32) -> Result<StoreDone, StoreError> {
        match (self.now(file), file) {
            (Some(now), _) => Ok(StoreDone::Bytes(now.read_bytes(offset, len))),
            (None, FileId::Blob(_)) => Ok(StoreDone::Bytes(Bytes::new())),
            (None, _) => Err(StoreError::NotFound { file }),
        }
    }
    fn read_written(&self, file: FileId, offset: u64, len: u32) -> Result<StoreDone, StoreError> {
        let bytes = self.now(file).map(|now| now.read_bytes(offset, len)).unwrap_or_default();
        if bytes.len() < len as usize {
            let (from, to) = (offset + bytes.len() as u64, offset + u64::from(len));
            return Err(StoreError::Missing { file, from, to });
        }
        Ok(checksummed(bytes))
    }
    fn write_checksummed(
        &mut self,
        file: FileId,
        args: ChecksummedWrite<'_>,
    ) -> Result<StoreDone, StoreError> {
        self.must_reach(file, args.must_reach())?;
        let this = RefCell::new(self);
        write_checksummed(
            file,
            args,
            |at, buf| Ok(this.borrow().now(file).map_or(0, |f| f.read(at, buf))),
            |at, bytes| this.borrow_mut().write(file, at, bytes),
        )
        .map(StoreDone::Checksums)
    }
    fn truncate(&mut self, file: FileId, len: u64) -> Result<(), StoreError> {
        if !(len == 0 && matches!(file, FileId::Blob(_)) && self.now(file).is_none()) {
            self.make(file)?;
            self.change(file, UnsyncedChange::Truncate { len });
        }
        Ok(())
    }
    fn allocate(&mut self, file: FileId, offset: u64, len: u64) -> Result<(), StoreError> {
        self.make(file)?;
        let growth = self.now(file).map_or(0, |now| now.growth(offset, len));
        if self.used().saturating_add(growth) > self.capacity_bytes {
            return Err(StoreError::NoSpace);
        }
        self.change(file, UnsyncedChange::Allocate { offset, len });
        Ok(())
    }
    fn refresh(&mut self, file: FileId) {
        let is_refused = self.refuses || self.full_underneath;
        if let Some(content) = self.files.get_mut(&file) {
            if is_refused {
                content.refused(file);
            }
            content.synced();
            if !self.keeps_pages {
                content.forgotten();
            }
        }
    }
    fn list(&self, kind: FileKind, after: Option<FileId>, limit: u32) -> Vec<FileId> {
        let is_listed = |file: FileId| is_of_kind(file, kind) && after.is_none_or(|a| file > a);
        let present = self.files.iter().filter(|(file, content)| is_listed(**file) && content.now.is_some());
        present.map(|(&file, _)| file).take(limit as usize).collect()
    }
    fn space(&self) -> StoreSpace {
        let free = self.capacity_bytes.saturating_sub(self.used());
        StoreSpace {
            bytes_total: self.capacity_bytes,
            bytes_free: free,
            bytes_avail: free,
            files_free: None,
            device: 0,
            overwrites_in_place: true,
        }
    }

    /// The error of an operation that a fault, or a refused early write-back before it, makes fail.
    fn injected_error(&mut self, op: &StoreOp) -> Option<StoreError> {
        let synced = match *op {
            StoreOp::Sync { file } | StoreOp::SyncWritten { file, .. } | StoreOp::SyncAside { file } => {
                Some(file)
            }
            _ => None,
        };
        if let Some(error) = synced.and_then(|file| self.files.get_mut(&file)?.writeback_error.take()) {
            return Some(error);
        }
        if let StoreOp::SyncMany { files } = op {
            return self.injected_error_of_many(files);
        }
        let error = self.fault(op)?;
        if let Some(file) = synced
            && let Some(content) = self.files.get_mut(&file)
        {
            content.refused(file);
        }
        Some(error)
    }

    /// The step does not tell whose error it is; the blob's own sync does.
    fn injected_error_of_many(&mut self, files: &[(FileId, u64)]) -> Option<StoreError> {
        for &(file, _) in files {
            if let Some(error) = self.fault(&StoreOp::SyncAside { file })
                && let Some(content) = self.files.get_mut(&file)
            {
                content.refused(file);
                content.writeback_error = Some(error);
            }
        }
        let failed = |(file, _): &(FileId, u64)| {
            self.files.get(file).is_some_and(|content| content.writeback_error.is_some())
        };
        files.iter().any(failed).then(|| StoreError::Device("one of many".into()))
    }

    fn run(&mut self, op: StoreOp) -> Result<StoreDone, StoreError> {
        let is_change = !op.only_reads();
        if self.stop_at.is_some_and(|at| self.changes >= at) {
            return Err(StoreError::Stopped);
        }
        self.changes += u64::from(is_change);
        if let StoreOp::StartWriteback { file, .. } = op {
            self.start_writeback(file, &op);
            return Ok(StoreDone::Unit);
        }
        match self.injected_error(&op) {
            Some(error) => Err(error),
            None => self.execute(op),
        }
    }

    fn execute(&mut self, op: StoreOp) -> Result<StoreDone, StoreError> {
        match op {
            StoreOp::Create { file, len } => self.change(file, UnsyncedChange::Make { len }),
            StoreOp::Write { file, offset, data } => self.write(file, offset, &data)?,
            StoreOp::WriteChecksummed {
                file, offset, data, keep_head, keep_tail, size, written_to, ..
            } => {
                let args = ChecksummedWrite { offset, data: &data, keep_head, keep_tail, size, written_to };
                return self.write_checksummed(file, args);
            }
            StoreOp::Read { file, offset, len } => return self.read(file, offset, len),
            StoreOp::ReadWritten { file, offset, len, .. } => return self.read_written(file, offset, len),
            StoreOp::Truncate { file, len } => self.truncate(file, len)?,
            StoreOp::Allocate { file, offset, len } => self.allocate(file, offset, len)?,
            StoreOp::Punch { file, offset, len } if self.now(file).is_some() => {
                self.change(file, UnsyncedChange::Punch { offset, len });
            }
            StoreOp::Zero { file, offset, len } if self.now(file).is_some() => {
                self.change(file, UnsyncedChange::Zero { offset, len });
            }
            StoreOp::Delete { file } if self.now(file).is_some() => {
                self.change(file, UnsyncedChange::Delete);
            }
            StoreOp::Punch { .. }
            | StoreOp::Zero { .. }
            | StoreOp::Delete { .. }
            | StoreOp::StartWriteback { .. } => {}
            StoreOp::Sync { file } | StoreOp::SyncAside { file } => self.sync(file),
            StoreOp::Refresh { file } => self.refresh(file),
            StoreOp::SyncWritten { file, len, .. } => {
                self.sync(file);
                self.must_reach(file, len)?;
            }
            StoreOp::SyncMany { files } => {
                let sync_one = |(file, len): (FileId, u64)| {
                    self.sync(file);
                    self.must_reach(file, len)
                };
                return Ok(StoreDone::Synced(files.into_iter().map(sync_one).collect()));
            }
            StoreOp::Replace { file, data } => {
                let mut new = SparseFile::default();
                new.write(0, &data);
                let content = Content { durable: Some(new.clone()), now: Some(new), ..Content::default() };
                self.files.insert(file, content);
            }
            StoreOp::List { kind, after, limit } => {
                return Ok(StoreDone::List(self.list(kind, after, limit)));
            }
            StoreOp::Len { file } => return Ok(StoreDone::Len(self.now(file).map(SparseFile::len))),
            StoreOp::Space => return Ok(StoreDone::Space(self.space())),
        }
        Ok(StoreDone::Unit)
    }
}

impl Content {
    fn synced(&mut self) {
        for change in self.pending.drain(..) {
            match &change {
                UnsyncedChange::Write { offset, data } if !self.stuck.is_empty() => {
                    for (offset, data) in blocks_of(*offset, data) {
                        if !self.stuck.contains(&(offset / BLOCK)) {
                            apply(&mut self.durable, &UnsyncedChange::Write { offset, data });
                        }
                    }
                    continue;
                }
                UnsyncedChange::Make { .. } | UnsyncedChange::Delete => self.stuck.clear(),
                UnsyncedChange::Truncate { len } => {
                    drop(self.stuck.split_off(&len.div_ceil(BLOCK)));
                }
                UnsyncedChange::Write { .. }
                | UnsyncedChange::Allocate { .. }
                | UnsyncedChange::Punch { .. }
                | UnsyncedChange::Zero { .. } => {}
            }
            apply(&mut self.durable, &change);
        }
    }
    /// Empties the cache: reads return the bytes of the device.
    fn forgotten(&mut self) {
        self.now = self.durable.clone();
        self.stuck.clear();
    }
    /// The device has refused the bytes; the pages are clean from now on.
    fn refused(&mut self, file: FileId) {
        let mut stuck = BTreeSet::new();
        for change in &self.pending {
            if let (FileId::Blob(_), UnsyncedChange::Write { offset, data }) = (file, change) {
                stuck.extend(blocks_of(*offset, data).map(|(offset, _)| offset / BLOCK));
            }
        }
        self.pending.retain(|change| !matches!(change, UnsyncedChange::Write { .. }));
        self.synced();
        self.stuck.extend(stuck);
    }
    /// The machine dies: a part of `pending` has reached the disk.
    fn lose(&mut self, rng: &mut Rng) {
        let pending = std::mem::take(&mut self.pending);
        // All or nothing is as likely as something in between: both find other bugs.
        let (prefix, torn) = match rng.below(4) {
            0 => (0, false),
            1 => (pending.len(), false),
            2 => (rng.below(pending.len() as u64 + 1) as usize, false),
            _ => (0, true),
        };
        for (i, change) in pending.iter().enumerate() {
            if i < prefix {
                apply(&mut self.durable, change);
            } else if torn {
                tear(&mut self.durable, change, rng);
            }
        }
        self.forgotten();
    }
}

const BLOCK: u64 = 4096;

/// A write, cut at blocks.
fn blocks_of(offset: u64, data: &Bytes) -> impl Iterator<Item = (u64, Bytes)> + '_ {
    let mut at = 0;
    core::iter::from_fn(move || {
        let from = offset + at as u64;
        let len = ((BLOCK - from % BLOCK) as usize).min(data.len() - at);
        at += len;
        (len > 0).then(|| (from, data.slice(at - len..at)))
    })
}

fn apply(image: &mut Option<SparseFile>, change: &UnsyncedChange) {
    match (change, image) {
        (UnsyncedChange::Make { len }, image) => *image = Some(SparseFile::with_len(*len)),
        (UnsyncedChange::Delete, image) => *image = None,
        // Its making was lost.
        (
            UnsyncedChange::Write { .. }
            | UnsyncedChange::Truncate { .. }
            | UnsyncedChange::Allocate { .. }
            | UnsyncedChange::Punch { .. }
            | UnsyncedChange::Zero { .. },
            None,
        ) => {}
        (UnsyncedChange::Write { offset, data }, Some(image)) => {
            image.write(*offset, data);
        }
        (UnsyncedChange::Truncate { len }, Some(image)) => {
            image.truncate(*len);
        }
        (UnsyncedChange::Allocate { offset, len }, Some(image)) => image.allocate(*offset, *len),
        (UnsyncedChange::Punch { offset, len }, Some(image)) => {
            image.punch(*offset, *len);
        }
        (UnsyncedChange::Zero { offset, len }, Some(image)) => image.zero(*offset, *len),
    }
}

/// Applies any part of a change.
fn tear(image: &mut Option<SparseFile>, change: &UnsyncedChange, rng: &mut Rng) {
    let UnsyncedChange::Write { offset, data } = change else {
        if rng.below(2) == 0 {
            apply(image, change);
        }
        return;
    };
    let Some(image) = image else { return };
    let mut at = 0;
    while at < data.len() {
        let here = offset + at as u64;
        let n = ((SECTOR_BYTES - here % SECTOR_BYTES) as usize).min(data.len() - at);
        if rng.below(2) == 0 {
            image.write(here, data.get(at..at + n).unwrap_or_default());
        }
        at += n;
    }
}

fn is_of_kind(file: FileId, kind: FileKind) -> bool {
    matches!(
        (file, kind),
        (FileId::Log(_), FileKind::Log) | (FileId::Run(_), FileKind::Run) | (FileId::Blob(_), FileKind::Blob)
    )
}

fn kind_of(op: &StoreOp) -> Option<(FaultOp, FileId)> {
    Some(match op {
        StoreOp::Create { file, .. } => (FaultOp::Create, *file),
        StoreOp::Write { file, .. } | StoreOp::WriteChecksummed { file, .. } => (FaultOp::Write, *file),
        StoreOp::Read { file, .. } | StoreOp::ReadWritten { file, .. } => (FaultOp::Read, *file),
        StoreOp::Truncate { file, .. } | StoreOp::Punch { file, .. } | StoreOp::Zero { file, .. } => {
            (FaultOp::Truncate, *file)
        }
        StoreOp::Allocate { file, .. } => (FaultOp::Allocate, *file),
        StoreOp::Sync { file } | StoreOp::SyncWritten { file, .. } | StoreOp::SyncAside { file } => {
            (FaultOp::Sync, *file)
        }
        StoreOp::Replace { file, .. } => (FaultOp::Replace, *file),
        StoreOp::Delete { file } => (FaultOp::Delete, *file),
        StoreOp::StartWriteback { file, .. } => (FaultOp::Writeback, *file),
        // Faults are those of its blobs.
        StoreOp::SyncMany { .. } => return None,
        StoreOp::Refresh { .. } | StoreOp::List { .. } | StoreOp::Len { .. } | StoreOp::Space => return None,
    })
}

impl Store for Life {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        let mut disk = lock(&self.disk);
        if disk.life != self.number {
            return Err(StoreError::Stopped);
        }
        disk.run(op)
    }
    fn try_execute(&self, op: StoreOp) -> Result<Result<StoreDone, StoreError>, StoreOp> {
        Ok(self.execute(op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(store: &dyn Store, file: FileId, offset: u64, data: &'static [u8]) {
        store.execute(StoreOp::Write { file, offset, data: vec![Bytes::from_static(data)] }).unwrap();
    }
    fn read(store: &dyn Store, file: FileId) -> Option<Vec<u8>> {
        match store.execute(StoreOp::Read { file, offset: 0, len: 1 << 20 }) {
            Ok(StoreDone::Bytes(bytes)) => Some(bytes.to_vec()),
            Err(StoreError::NotFound { .. }) => None,
            other => panic!("{other:?}"),
        }
    }
    const RUN: FileId = FileId::Run(1);

    #[test]
    fn a_killed_process_loses_nothing_and_its_store_is_dead() {
        let device = CrashDevice::new(u64::MAX);
        let old = device.store();
        write(&*old, RUN, 0, b"abc");
        device.kill_process();
        assert_eq!(old.execute(StoreOp::Space), Err(StoreError::Stopped));
        assert_eq!(read(&*device.store(), RUN).as_deref(), Some(&b"abc"[..]));
    }

    #[test]
    fn a_dead_machine_keeps_what_was_synced_and_any_part_of_the_rest() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let device = CrashDevice::new(u64::MAX);
            let store = device.store();
            write(&*store, RUN, 0, &[1; 1024]);
            store.execute(StoreOp::Sync { file: RUN }).unwrap();
            write(&*store, RUN, 0, &[2; 1024]);
            write(&*store, FileId::Run(2), 0, b"x");
            device.power_loss(&mut Rng::new(seed));
            let store = device.store();
            let got = read(&*store, RUN).unwrap();
            assert_eq!(got.len(), 1024);
            seen.insert((got[0], got[1023], read(&*store, FileId::Run(2)).is_some()));
        }
        assert_eq!(seen.len(), 8, "{seen:?}");
    }

    #[test]
    fn what_a_failed_sync_was_asked_for_never_becomes_durable() {
        for seed in 0..20 {
            let device = CrashDevice::new(u64::MAX);
            let store = device.store();
            write(&*store, RUN, 0, b"old");
            store.execute(StoreOp::Sync { file: RUN }).unwrap();
            write(&*store, RUN, 0, b"new");
            let error = StoreError::Device("EIO".into());
            let on = Some(FileKind::Run);
            device.fail(Fault { op: FaultOp::Sync, on, nth: 1, error: error.clone() });
            assert_eq!(store.execute(StoreOp::Sync { file: RUN }), Err(error));
            store.execute(StoreOp::Sync { file: RUN }).unwrap();
            device.power_loss(&mut Rng::new(seed));
            assert_eq!(read(&*device.store(), RUN).as_deref(), Some(&b"old"[..]));
        }
    }

    #[test]
    fn what_the_device_has_refused_is_read_until_it_is_mounted_again() {
        for written_again in [false, true] {
            let device = CrashDevice::new(u64::MAX);
            let store = device.store();
            write(&*store, RUN, 0, b"old");
            store.execute(StoreOp::Sync { file: RUN }).unwrap();
            write(&*store, RUN, 0, b"new");
            device.refuse_syncs();
            assert!(store.execute(StoreOp::Sync { file: RUN }).is_err());
            device.kill_process();
            let store = device.store();
            assert_eq!(read(&*store, RUN).as_deref(), Some(&b"new"[..]));
            if written_again {
                write(&*store, RUN, 0, b"new");
            }
            store.execute(StoreOp::Sync { file: RUN }).unwrap();
            assert_eq!(
                read(&*device.copy_unsynced(&mut Rng::new(1)).store(), RUN),
                read(&*store, RUN).filter(|_| written_again).or(Some(b"old".into()))
            );
            device.remount();
            let expected = if written_again { b"new" } else { b"old" };
            assert_eq!(read(&*device.store(), RUN).as_deref(), Some(&expected[..]));
        }
    }

    #[test]
    fn behind_a_barrier_and_after_the_stop_nothing_survives() {
        let device = CrashDevice::new(u64::MAX);
        let store = device.store();
        write(&*store, RUN, 0, b"a");
        device.barrier();
        write(&*store, RUN, 0, b"b");
        device.kill_process();
        let store = device.store();
        assert_eq!(read(&*store, RUN).as_deref(), Some(&b"a"[..]));
        device.stop_after(1);
        write(&*store, RUN, 0, b"c");
        assert!(device.is_stopped());
        assert_eq!(store.execute(StoreOp::Delete { file: RUN }), Err(StoreError::Stopped));
        device.kill_process();
        assert_eq!(read(&*device.store(), RUN).as_deref(), Some(&b"c"[..]));
    }

    #[test]
    fn a_full_device_says_so() {
        let device = CrashDevice::new(1000);
        let store = device.store();
        write(&*store, RUN, 0, &[1; 900]);
        let data = vec![Bytes::from_static(&[0; 200])];
        let op = StoreOp::Write { file: RUN, offset: 900, data };
        assert_eq!(store.execute(op), Err(StoreError::NoSpace));
    }
}
