//! The store: a map of sparse files behind one lock per file.

use crate::sparse::SparseFile;
use bytes::Bytes;
use nacre_node::{FileId, FileKind, Store, StoreDone, StoreError, StoreOp, StoreSpace};
use nacre_osd::checksum::{ChecksummedWrite, checksummed, write_checksummed};
use nacre_types::{Fid, ObjectId, Oid, Seq};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

type File = Arc<Mutex<SparseFile>>;

/// See the crate. Lock order: `files`, then one file.
pub struct MemStore {
    files: RwLock<BTreeMap<FileId, File>>,
    device: Arc<Device>,
}

/// The state that stores on one device share.
struct Device {
    /// 0: one store has it for itself.
    number: u64,
    capacity_bytes: u64,
    used_bytes: AtomicU64,
}

impl MemStore {
    /// An empty store that holds at most `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self::on(0, capacity_bytes)
    }
    /// An empty store on a device with a number, which others may share.
    pub fn on(number: u64, capacity_bytes: u64) -> Self {
        let device = Device { number, capacity_bytes, used_bytes: AtomicU64::new(0) };
        Self { files: RwLock::default(), device: Arc::new(device) }
    }
    /// Another empty store on the same device: they share its space.
    pub fn beside(&self) -> Self {
        Self { files: RwLock::default(), device: self.device.clone() }
    }

    fn find(&self, file: FileId) -> Option<File> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&file).cloned()
    }
    /// The file; a blob or run is made if it is not there.
    fn writable(&self, file: FileId) -> Result<File, StoreError> {
        if let Some(found) = self.find(file) {
            return Ok(found);
        }
        match file {
            FileId::Blob(_) | FileId::Run(_) => {
                let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
                Ok(files.entry(file).or_default().clone())
            }
            FileId::Super | FileId::Ballast | FileId::Mark | FileId::Log(_) => {
                Err(StoreError::NotFound { file })
            }
        }
    }

    fn charge(&self, bytes: u64) -> Result<(), StoreError> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.device.capacity_bytes);
        match self.device.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(()),
            Err(_) => Err(StoreError::NoSpace),
        }
    }
    fn credit(&self, bytes: u64) {
        self.device.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Puts a new file in the place of an old one.
    fn replace(&self, file: FileId, new: SparseFile, charged: u64) -> Result<(), StoreError> {
        self.charge(charged)?;
        let old = {
            let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
            files.insert(file, Arc::new(Mutex::new(new)))
        };
        self.forget(file, old);
        Ok(())
    }
    fn forget(&self, file: FileId, old: Option<File>) {
        if let Some(old) = old {
            let old = lock(&old);
            self.credit(charge_of(file, &old));
        }
    }

    fn write(&self, file: FileId, offset: u64, data: &[Bytes]) -> Result<(), StoreError> {
        if data.iter().all(Bytes::is_empty) {
            return Ok(());
        }
        let found = self.writable(file)?;
        let mut found = lock(&found);
        self.write_locked(file, &mut found, offset, data)
    }
    fn write_locked(
        &self,
        file: FileId,
        to: &mut SparseFile,
        offset: u64,
        data: &[Bytes],
    ) -> Result<(), StoreError> {
        let len = data.iter().map(|b| b.len() as u64).sum();
        if offset.checked_add(len).is_none() {
            return Err(StoreError::Device(format!("write of {file:?} at {offset}: beyond 2^64")));
        }
        let growth = if is_allocated_whole(file) {
            (offset + len).saturating_sub(to.len())
        } else {
            to.growth(offset, len)
        };
        self.charge(growth)?;
        let mut at = offset;
        for bytes in data {
            to.write(at, bytes);
            at += bytes.len() as u64;
        }
        Ok(())
    }

    fn write_checksummed(&self, file: FileId, args: ChecksummedWrite<'_>) -> Result<StoreDone, StoreError> {
        self.check_reaches(file, args.must_reach())?;
        let found = self.writable(file)?;
        let found = std::cell::RefCell::new(lock(&found));
        write_checksummed(
            file,
            args,
            |at, buf| Ok(found.borrow().read(at, buf)),
            |at, bytes| self.write_locked(file, &mut found.borrow_mut(), at, bytes),
        )
        .map(StoreDone::Checksums)
    }
    fn check_reaches(&self, file: FileId, len: u64) -> Result<(), StoreError> {
        match self.len(file).unwrap_or(0) {
            from if from < len => Err(StoreError::Missing { file, from, to: len }),
            _ => Ok(()),
        }
    }
    fn len(&self, file: FileId) -> Option<u64> {
        self.find(file).map(|found| lock(&found).len())
    }

    fn read(&self, file: FileId, offset: u64, len: u32) -> Result<StoreDone, StoreError> {
        match (self.find(file), file) {
            (Some(found), _) => Ok(StoreDone::Bytes(lock(&found).read_bytes(offset, len))),
            (None, FileId::Blob(_)) => Ok(StoreDone::Bytes(Bytes::new())),
            (None, _) => Err(StoreError::NotFound { file }),
        }
    }
    fn read_written(&self, file: FileId, offset: u64, len: u32) -> Result<StoreDone, StoreError> {
        let bytes = self.find(file).map(|found| lock(&found).read_bytes(offset, len)).unwrap_or_default();
        if bytes.len() < len as usize {
            let (from, to) = (offset + bytes.len() as u64, offset + u64::from(len));
            return Err(StoreError::Missing { file, from, to });
        }
        Ok(checksummed(bytes))
    }

    fn truncate(&self, file: FileId, len: u64) -> Result<(), StoreError> {
        let found = match (self.find(file), file) {
            (Some(found), _) => found,
            (None, FileId::Blob(_)) if len == 0 => return Ok(()),
            (None, _) => self.writable(file)?,
        };
        let mut found = lock(&found);
        let before = charge_of(file, &found);
        if is_allocated_whole(file) {
            self.charge(len.saturating_sub(before))?;
        }
        found.truncate(len);
        self.credit(before.saturating_sub(charge_of(file, &found)));
        Ok(())
    }
    /// The space counts as used from now on, whatever memory it takes.
    fn allocate(&self, file: FileId, offset: u64, len: u64) -> Result<(), StoreError> {
        if is_allocated_whole(file) {
            return Err(StoreError::Unsupported);
        }
        let found = self.writable(file)?;
        let mut found = lock(&found);
        self.charge(found.growth(offset, len))?;
        found.allocate(offset, len);
        Ok(())
    }
    fn zero(&self, file: FileId, offset: u64, len: u64) {
        if let Some(found) = self.find(file) {
            lock(&found).zero(offset, len);
        }
    }
    fn punch(&self, file: FileId, offset: u64, len: u64) {
        if let Some(found) = self.find(file) {
            let freed = lock(&found).punch(offset, len);
            if !is_allocated_whole(file) {
                self.credit(freed);
            }
        }
    }
    fn delete(&self, file: FileId) {
        let old = self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&file);
        self.forget(file, old);
    }

    fn list(&self, kind: FileKind, after: Option<FileId>, limit: u32) -> Vec<FileId> {
        let (first, last) = kind_range(kind);
        if after.is_some_and(|after| after >= last) {
            return Vec::new();
        }
        let from = after.map_or(Bound::Included(first), |after| Bound::Excluded(after.max(first)));
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.range((from, Bound::Included(last))).take(limit as usize).map(|(&id, _)| id).collect()
    }
    fn space(&self) -> StoreSpace {
        let used = self.device.used_bytes.load(Ordering::Relaxed);
        let free = self.device.capacity_bytes.saturating_sub(used);
        StoreSpace {
            bytes_total: self.device.capacity_bytes,
            bytes_free: free,
            bytes_avail: free,
            files_free: None,
            device: self.device.number,
            overwrites_in_place: true,
        }
    }

    fn run(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        match op {
            StoreOp::Create { file, len } => {
                let charged = if is_allocated_whole(file) { len } else { 0 };
                self.replace(file, SparseFile::with_len(len), charged)?;
            }
            StoreOp::Replace { file, data } => {
                let mut new = SparseFile::default();
                new.write(0, &data);
                self.replace(file, new, data.len() as u64)?;
            }
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
            StoreOp::Punch { file, offset, len } => self.punch(file, offset, len),
            StoreOp::Zero { file, offset, len } => self.zero(file, offset, len),
            StoreOp::Sync { .. }
            | StoreOp::SyncAside { .. }
            | StoreOp::StartWriteback { .. }
            | StoreOp::Refresh { .. } => {}
            StoreOp::SyncWritten { file, len, .. } => self.check_reaches(file, len)?,
            StoreOp::SyncMany { files } => {
                let results = files.into_iter().map(|(file, len)| self.check_reaches(file, len)).collect();
                return Ok(StoreDone::Synced(results));
            }
            StoreOp::Delete { file } => self.delete(file),
            StoreOp::List { kind, after, limit } => {
                return Ok(StoreDone::List(self.list(kind, after, limit)));
            }
            StoreOp::Len { file } => return Ok(StoreDone::Len(self.len(file))),
            StoreOp::Space => return Ok(StoreDone::Space(self.space())),
        }
        Ok(StoreDone::Unit)
    }
}

impl Store for MemStore {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        self.run(op)
    }
    fn try_execute(&self, op: StoreOp) -> Result<Result<StoreDone, StoreError>, StoreOp> {
        Ok(self.run(op))
    }
}

fn lock(file: &Mutex<SparseFile>) -> MutexGuard<'_, SparseFile> {
    // A panic between two writes leaves a torn write, which a store may have anyway.
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Log, ballast and runs count with their length (their blocks are allocated), blobs with the space that they use.
fn is_allocated_whole(file: FileId) -> bool {
    !matches!(file, FileId::Blob(_))
}
fn charge_of(file: FileId, content: &SparseFile) -> u64 {
    if is_allocated_whole(file) { content.len() } else { content.used_bytes() }
}

/// First and last possible file of a kind.
fn kind_range(kind: FileKind) -> (FileId, FileId) {
    let blob = |seq, oid, stripe| FileId::Blob(ObjectId { fid: Fid::new(Seq(seq), Oid(oid)), stripe });
    match kind {
        FileKind::Log => (FileId::Log(0), FileId::Log(u64::MAX)),
        FileKind::Run => (FileId::Run(0), FileId::Run(u64::MAX)),
        FileKind::Blob => (blob(0, 0, 0), blob(u64::MAX, u32::MAX, u32::MAX)),
    }
}
