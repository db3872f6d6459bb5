//! The store: operations of the store port on files below the directory.
//!
//! Invariants: a file's entry is durable after `Sync` (its directory is synced if it has changed); chunk 0 of a blob
//! exists whenever another chunk does (it is created first and removed last), so one lookup tells whether the blob
//! exists; the length of a blob ends with its last chunk that is not empty.

use crate::blob::Piece;
use crate::cache::{Cache, Key, Open};
use crate::device;
use crate::direct::{Past, may_write, write_past_cache};
use crate::dirs::{Dirs, OPEN_DIR, names};
use crate::eof_blocks::EofBlocks;
use crate::inodes::{Inodes, free_for_blobs};
use crate::open::{Lock, exists, remove, remove_chunks};
use crate::pace::Pace;
use crate::path::{Place, chunk_dir, chunk_path, parse_blob, parse_number, path};
use crate::probe::Features;
use crate::raw::{retry, store_error, total, write_all, write_zeros};
use crate::read_buffers::ReadBuffers;
use bytes::Bytes;
use nacre_node::{FileId, FileKind, ReadFrom, Store, StoreDone, StoreError, StoreOp, StoreSpace, WriteTo};
use nacre_osd::checksum::{ChecksummedWrite, checksummed};
use nacre_types::ObjectId;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How a store is run.
#[derive(Debug, Clone)]
pub struct FsConfig {
    /// Descriptors of files kept open (two of the store itself come on top).
    pub descriptors_max: usize,
    /// Bytes of one file of a blob. Part of the format: tests only change it.
    pub chunk_bytes: u64,
}
impl Default for FsConfig {
    fn default() -> Self {
        // ext4 holds 16 TiB in a file of 4 KiB blocks, less one block.
        Self { descriptors_max: 1024, chunk_bytes: 4 << 40 }
    }
}

/// Bytes that a thread moves itself instead of handing them to an I/O thread.
pub(crate) const INLINE_BYTES_MAX: u64 = 256 << 10;
/// Bytes that a thread reads from the page cache itself: such a read never waits, and takes less time than waking another
/// thread.
pub(crate) const INLINE_READ_MAX: u64 = 1 << 20;

/// A store on a directory. Dropping it gives the lock back. The parts that other files use directly never change, but for one
/// flag, which is only ever set.
pub struct FsStore {
    pub(crate) dirs: Dirs,
    /// `None`: on a read-only medium that was never served from here, nobody can serve it.
    _lock: Option<OwnedFd>,
    read_only: bool,
    path: String,
    cache: Cache,
    buffers: ReadBuffers,
    pub(crate) features: Features,
    /// Set when the kernel says that reads cannot be tried.
    pub(crate) no_cached_reads: AtomicBool,
    pub(crate) chunk_bytes: u64,
    /// Of the file system below, see `device.rs`.
    device: u64,
    overwrites_in_place: bool,
    eof_blocks: EofBlocks,
    inodes: Inodes,
    pace: Pace,
    /// The rest of a listing of blobs that is under way.
    listing: Mutex<Listing>,
}

#[derive(Default)]
struct Listing {
    after: Option<FileId>,
    rest: std::vec::IntoIter<ObjectId>,
}

impl FsStore {
    pub(crate) fn new(dirs: Dirs, lock: Lock, path: String, features: Features, config: &FsConfig) -> Self {
        Self {
            device: device::number(dirs.root()),
            overwrites_in_place: device::overwrites_in_place(dirs.root()),
            eof_blocks: EofBlocks::of(dirs.root()),
            dirs,
            _lock: lock.fd,
            read_only: lock.read_only,
            path,
            cache: Cache::new(config.descriptors_max),
            buffers: ReadBuffers::default(),
            no_cached_reads: AtomicBool::new(!features.cached_read),
            features,
            chunk_bytes: config.chunk_bytes,
            inodes: Inodes::default(),
            pace: Pace::default(),
            listing: Mutex::default(),
        }
    }

    /// The features of the underlying file system.
    pub fn features(&self) -> &Features {
        &self.features
    }
    /// Files that are open now, directories not counted.
    pub fn descriptors(&self) -> usize {
        self.cache.len()
    }

    pub(crate) fn buffers(&self) -> &ReadBuffers {
        &self.buffers
    }
    /// For error texts: operation, file, directory.
    pub(crate) fn what(&self, op: &str, file: FileId) -> String {
        format!("{op} {}/{}", self.path, path(file))
    }
    pub(crate) fn fail(&self, op: &'static str, file: FileId) -> impl Fn(Errno) -> StoreError + '_ {
        move |errno| store_error(errno, &self.what(op, file))
    }
    /// The same of an operation that needs only the directory of the file, which is there as long as nobody removes it.
    fn fail_in_dir(&self, op: &'static str, file: FileId) -> impl Fn(Errno) -> StoreError + '_ {
        move |errno| match errno {
            Errno::NOENT | Errno::STALE => {
                StoreError::Gone(format!("{}: {}", self.what(op, file), std::io::Error::from(errno)))
            }
            other => store_error(other, &self.what(op, file)),
        }
    }

    // ---- descriptors

    /// The open file or chunk; `None` if it does not exist and `make` is false. Chunk 0 is made before others.
    pub(crate) fn open_chunk(
        &self,
        file: FileId,
        chunk: u64,
        make: bool,
    ) -> Result<Option<Arc<Open>>, StoreError> {
        let key = Key { file, chunk };
        if let Some(open) = self.cache.get(key) {
            return Ok(Some(open));
        }
        let opened = match (file, chunk) {
            (FileId::Blob(object), 1..) => self.open_far_chunk(object, chunk, make),
            _ => self.open_first(file, make),
        };
        let Some(open) = opened.map_err(self.fail_in_dir("opening", file))? else { return Ok(None) };
        Ok(Some(self.cache.put(key, open)))
    }

    fn open_first(&self, file: FileId, make: bool) -> Result<Option<Open>, Errno> {
        let path = path(file);
        if make {
            // Most of those that are to be made are not there: a write looks at the length of a file that is, and so opens it
            // first.
            match self.create_first(file, &path) {
                Err(Errno::EXIST) => {}
                made => {
                    let fd = made?;
                    self.dirs.changed(Place::of(file));
                    return Ok(Some(Open::new(fd, false)));
                }
            }
        }
        let fd = match self.open_at(&path, OFlags::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        let has_chunks = match file {
            FileId::Blob(object) => self.has_chunk_dir(object)?,
            _ => false,
        };
        Ok(Some(Open::new(fd, has_chunks)))
    }

    fn open_far_chunk(&self, object: ObjectId, chunk: u64, make: bool) -> Result<Option<Open>, Errno> {
        let path = chunk_path(object, chunk);
        match self.open_at(&path, OFlags::empty()) {
            Ok(fd) => return Ok(Some(Open::new(fd, false))),
            Err(Errno::NOENT) if !make => return Ok(None),
            Err(Errno::NOENT) => {}
            Err(e) => return Err(e),
        }
        self.inodes.take(self.dirs.root())?;
        let first = self.open_chunk(FileId::Blob(object), 0, true).map_err(|e| match e {
            StoreError::NoSpace => Errno::NOSPC,
            _ => Errno::IO,
        })?;
        match rustix::fs::mkdirat(self.dirs.root(), chunk_dir(object), Mode::RWXU) {
            Ok(()) => self.dirs.changed(Place::of(FileId::Blob(object))),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        let fd = self.open_at(&path, OFlags::CREATE)?;
        if let Some(first) = first {
            first.set_has_chunks();
        }
        Ok(Some(Open::new(fd, false)))
    }

    /// Creates a run or the first file of a blob.
    fn create_first(&self, file: FileId, path: &str) -> Result<OwnedFd, Errno> {
        if matches!(file, FileId::Blob(_))
            && let Err(errno) = self.inodes.take(self.dirs.root())
        {
            // A blob that is there needs no inode.
            return Err(if exists(self.dirs.root(), path)? { Errno::EXIST } else { errno });
        }
        self.open_at(path, OFlags::CREATE | OFlags::EXCL)
    }
    fn open_at(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let access = if self.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = flags | access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        self.with_descriptor(|| rustix::fs::openat(self.dirs.root(), path, flags, Mode::RUSR | Mode::WUSR))
    }
    /// A directory, for a listing or a sync.
    pub(crate) fn open_dir(&self, path: &str) -> Result<OwnedFd, Errno> {
        self.with_descriptor(|| rustix::fs::openat(self.dirs.root(), path, OPEN_DIR, Mode::empty()))
    }
    /// Opens a file. If the process has no descriptor left, cached descriptors are closed and the open is repeated: a
    /// sync that failed for this reason would cost an object, or the target.
    fn with_descriptor(&self, open: impl Fn() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
        loop {
            match retry(&open) {
                Err(Errno::MFILE | Errno::NFILE) if self.cache.shrink() => {}
                other => return other,
            }
        }
    }
    fn sync_dir_of(&self, file: FileId) -> Result<(), StoreError> {
        let place = Place::of(file);
        let synced = self.dirs.sync(place, || self.open_dir(&place.path()));
        synced.map_err(self.fail_in_dir("syncing the directory of", file))
    }
    fn has_chunk_dir(&self, object: ObjectId) -> Result<bool, Errno> {
        exists(self.dirs.root(), &chunk_dir(object))
    }

    fn forget(&self, file: FileId) {
        self.cache.remove(Key { file, chunk: 0 });
    }

    // ---- operations

    fn create(&self, file: FileId, len: u64) -> Result<(), StoreError> {
        if let FileId::Blob(object) = file {
            self.delete_blob(object)?;
        }
        let open = match self.open_chunk(file, 0, true)? {
            Some(open) => open,
            None => return Err(StoreError::NotFound { file }),
        };
        // Real zeros, not extents marked as unwritten: a sync of a log segment must not need the journal.
        let filled = rustix::fs::ftruncate(open.fd(), 0).and_then(|()| write_zeros(open.fd(), 0, len));
        if let Err(errno) = filled {
            self.delete(file)?;
            return Err(self.fail("making", file)(errno));
        }
        Ok(())
    }

    fn replace(&self, file: FileId, data: Bytes) -> Result<(), StoreError> {
        let dir = self.dirs.root();
        let old = path(file);
        let new = format!("{old}.new");
        let replaced = (|| {
            let fd = self.open_at(&new, OFlags::CREATE | OFlags::TRUNC)?;
            write_all(rustix::fd::AsFd::as_fd(&fd), 0, &[data])?;
            retry(|| rustix::fs::fsync(&fd))?;
            rustix::fs::renameat(dir, &new, dir, &old)
        })();
        if let Err(errno) = replaced {
            // The old content stands; the new file would only take space.
            let _tidied = remove(dir, &new);
            return Err(self.fail_in_dir("replacing", file)(errno));
        }
        self.forget(file);
        self.dirs.changed(Place::of(file));
        self.sync_dir_of(file)
    }

    /// Syncs data and entry of a file, or the absence of its entry.
    fn sync(&self, file: FileId) -> Result<(), StoreError> {
        if let Some(first) = self.open_chunk(file, 0, false)? {
            if first.has_chunks()
                && let FileId::Blob(object) = file
            {
                self.sync_chunks(object)?;
            }
            retry(|| rustix::fs::fdatasync(first.fd())).map_err(self.fail("syncing", file))?;
        }
        self.sync_dir_of(file)
    }
    /// The same for a file that is in use. A log segment or run without a name takes writes and syncs, but nobody would read
    /// it again; of blobs [`Self::held`] knows more.
    fn sync_in_use(&self, file: FileId) -> Result<(), StoreError> {
        self.sync(file)?;
        if !matches!(file, FileId::Log(_) | FileId::Run(_)) {
            return Ok(());
        }
        // One that is not there has been deleted here.
        let Some(open) = self.open_chunk(file, 0, false)? else { return Ok(()) };
        match rustix::fs::fstat(open.fd()) {
            Ok(stat) if stat.st_nlink == 0 => Err(self.fail_in_dir("syncing", file)(Errno::NOENT)),
            Ok(_) => Ok(()),
            Err(errno) => Err(self.fail("looking at", file)(errno)),
        }
    }

    /// Syncs a blob and looks whether it is as long as what was written to it, under its name.
    fn sync_written(&self, file: FileId, len: u64) -> Result<(), StoreError> {
        self.sync(file)?;
        self.must_hold(file, len)
    }
    fn must_hold(&self, file: FileId, len: u64) -> Result<(), StoreError> {
        let held = match (len, file) {
            (0, _) => return Ok(()),
            (_, FileId::Blob(object)) => self.held(object)?,
            _ => self.len(file)?.unwrap_or(0),
        };
        if held < len { Err(StoreError::Missing { file, from: held, to: len }) } else { Ok(()) }
    }
    /// Syncs the whole file system below, and looks whether each blob is as long as what was written to it.
    fn sync_many(&self, files: &[(FileId, u64)]) -> Result<StoreDone, StoreError> {
        if !self.features.sync_all {
            return Err(StoreError::Unsupported);
        }
        retry(|| rustix::fs::syncfs(self.dirs.root()))
            .map_err(self.fail("syncing everything for", FileId::Super))?;
        Ok(StoreDone::Synced(files.iter().map(|&(file, len)| self.must_hold(file, len)).collect()))
    }
    /// Every chunk of a blob is written back as far as the device takes it, and forgotten by the cache.
    fn refresh(&self, file: FileId) -> Result<(), StoreError> {
        let FileId::Blob(object) = file else { return Ok(()) };
        let Some(first) = self.open_chunk(file, 0, false)? else { return Ok(()) };
        let far = if first.has_chunks() { self.far_chunks(object)? } else { Vec::new() };
        for chunk in std::iter::once(0).chain(far) {
            let Some(open) = self.open_chunk(file, chunk, false)? else { continue };
            // Bytes that the device has refused are detected when they are read from it.
            let _ = retry(|| rustix::fs::fdatasync(open.fd()));
            rustix::fs::fadvise(open.fd(), 0, None, rustix::fs::Advice::DontNeed)
                .map_err(self.fail("forgetting the cache of", file))?;
        }
        Ok(())
    }
    /// Length of the open file of a blob; 0 if the file has lost its name. Its descriptor is then closed, because bytes
    /// that are written through it are in no file.
    fn held(&self, object: ObjectId) -> Result<u64, StoreError> {
        let file = FileId::Blob(object);
        let Some(open) = self.open_chunk(file, 0, false)? else { return Ok(0) };
        let stat = rustix::fs::fstat(open.fd()).map_err(self.fail("looking at", file))?;
        if stat.st_nlink == 0 {
            self.forget(file);
            return Ok(0);
        }
        if open.has_chunks() {
            return Ok(self.blob_len(object)?.unwrap_or(0));
        }
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Length of a blob, from its open file; `None` if it must be looked up by its name.
    fn open_len(&self, object: ObjectId) -> Option<u64> {
        let open = self.open_chunk(FileId::Blob(object), 0, false).ok()??;
        let stat = rustix::fs::fstat(open.fd()).ok()?;
        let is_whole = stat.st_nlink > 0 && !open.has_chunks();
        u64::try_from(stat.st_size).ok().filter(|_| is_whole)
    }

    fn delete(&self, file: FileId) -> Result<(), StoreError> {
        if let FileId::Blob(object) = file {
            return self.delete_blob(object);
        }
        self.forget(file);
        let place = Place::of(file);
        remove(self.dirs.root(), &path(file)).map_err(self.fail("deleting", file))?;
        self.dirs.changed(place);
        Ok(())
    }

    fn delete_blob(&self, object: ObjectId) -> Result<(), StoreError> {
        let file = FileId::Blob(object);
        let has_chunks = match self.cache.get(Key { file, chunk: 0 }) {
            Some(open) => open.has_chunks(),
            None => self.has_chunk_dir(object).map_err(self.fail("deleting", file))?,
        };
        if has_chunks {
            for chunk in self.far_chunks(object)? {
                self.cache.remove(Key { file, chunk });
            }
            remove_chunks(self.dirs.root(), &chunk_dir(object))
                .map_err(self.fail("deleting chunks of", file))?;
        }
        self.forget(file);
        remove(self.dirs.root(), &path(file)).map_err(self.fail("deleting", file))?;
        self.dirs.changed(Place::of(file));
        Ok(())
    }

    pub(crate) fn forget_chunk(&self, object: ObjectId, chunk: u64) {
        self.cache.remove(Key { file: FileId::Blob(object), chunk });
    }

    fn list(&self, kind: FileKind, after: Option<FileId>, limit: usize) -> Result<Vec<FileId>, StoreError> {
        if kind == FileKind::Blob {
            return self.list_blobs(after, limit);
        }
        let (place, make): (_, fn(u64) -> FileId) = match kind {
            FileKind::Log => (Place::Log, FileId::Log),
            FileKind::Run | FileKind::Blob => (Place::Runs, FileId::Run),
        };
        let found = self.names(place)?;
        let mut files: Vec<FileId> = found.iter().filter_map(|n| parse_number(n)).map(make).collect();
        files.sort_unstable();
        Ok(files.into_iter().filter(|f| after.is_none_or(|a| *f > a)).take(limit).collect())
    }

    fn names(&self, place: Place) -> Result<Vec<String>, StoreError> {
        let path = place.path();
        let found = self.open_dir(&path).and_then(|dir| names(dir.as_fd()));
        found.map_err(|errno| store_error(errno, &format!("listing {}/{path}", self.path)))
    }

    /// Directories are in the order of hashes, results in that of ids: a listing is a snapshot of the names made at
    /// its first page. Nothing is opened or looked at for it.
    fn list_blobs(&self, after: Option<FileId>, limit: usize) -> Result<Vec<FileId>, StoreError> {
        let mut rest = {
            let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
            let taken = std::mem::take(&mut *listing);
            if after.is_some() && taken.after == after { taken.rest } else { Vec::new().into_iter() }
        };
        if rest.len() == 0 {
            let mut all = Vec::new();
            for place in (0..=u8::MAX).map(Place::Objects) {
                all.extend(self.names(place)?.iter().filter_map(|n| parse_blob(n)));
            }
            all.retain(|&object| after.is_none_or(|a| FileId::Blob(object) > a));
            all.sort_unstable();
            rest = all.into_iter();
        }
        let out: Vec<FileId> = rest.by_ref().take(limit).map(FileId::Blob).collect();
        if let (Some(&last), true) = (out.last(), rest.len() > 0) {
            let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
            *listing = Listing { after: Some(last), rest };
        }
        Ok(out)
    }

    /// By name, without opening: a listing must not push out the descriptors in use.
    fn len(&self, file: FileId) -> Result<Option<u64>, StoreError> {
        if let FileId::Blob(object) = file {
            return self.blob_len(object);
        }
        self.stat(file, &path(file))
    }
    pub(crate) fn stat(&self, file: FileId, path: &str) -> Result<Option<u64>, StoreError> {
        match rustix::fs::statat(self.dirs.root(), path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(u64::try_from(stat.st_size).unwrap_or(0))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.fail("looking at", file)(errno)),
        }
    }

    /// Asked for every few moments, so that a store whose directory is gone is found out although nothing is written.
    fn space(&self) -> Result<StoreSpace, StoreError> {
        if rustix::fs::fstat(self.dirs.root()).is_ok_and(|stat| stat.st_nlink == 0) {
            return Err(StoreError::Gone(format!("the directory {} was removed", self.path)));
        }
        let root = self.dirs.root();
        let ask = || {
            rustix::fs::fstatvfs(root)
                .map_err(|errno| store_error(errno, &format!("statfs of {}", self.path)))
        };
        let mut s = ask()?;
        let block = s.f_frsize;
        let bytes = |blocks: u64| blocks.saturating_mul(block);
        if !self.read_only && self.eof_blocks.free_if_short(root, bytes(s.f_bavail), bytes(s.f_blocks)) {
            s = ask()?;
        }
        Ok(StoreSpace {
            bytes_total: bytes(s.f_blocks),
            bytes_free: bytes(s.f_bfree),
            bytes_avail: bytes(s.f_bavail),
            files_free: free_for_blobs(&s),
            device: self.device,
            overwrites_in_place: self.overwrites_in_place,
        })
    }

    /// One piece of a write.
    pub(crate) fn write_piece(
        &self,
        file: FileId,
        piece: Piece,
        data: &[Bytes],
        to: WriteTo,
    ) -> Result<(), StoreError> {
        let make = matches!(file, FileId::Blob(_) | FileId::Run(_));
        let Some(open) = self.open_chunk(file, piece.chunk, make)? else {
            return Err(StoreError::NotFound { file });
        };
        if to == WriteTo::PastCache
            && may_write(piece.offset, data)
            && self.write_past_cache(&open, piece.offset, data).map_err(self.fail("writing", file))?
        {
            return Ok(());
        }
        write_all(open.fd(), piece.offset, data).map_err(self.fail("writing", file))
    }
    /// Whether the file of these bytes is being written past the cache.
    pub(crate) fn is_written_past_cache(&self, file: FileId, offset: u64) -> bool {
        let open = || self.open_chunk(file, offset / self.chunk_bytes, false).ok().flatten();
        !self.pace.is_idle() && open().is_some_and(|open| open.past_cache().load(Ordering::Relaxed) > 0)
    }
    /// `false`: the bytes are to go through the cache.
    fn write_past_cache(&self, open: &Open, offset: u64, data: &[Bytes]) -> Result<bool, Errno> {
        let bytes = total(data);
        if !self.pace.begin(bytes, Instant::now()) {
            return Ok(false);
        }
        open.past_cache().fetch_add(1, Ordering::Relaxed);
        let written = write_past_cache(open.fd(), offset, data);
        open.past_cache().fetch_sub(1, Ordering::Relaxed);
        self.pace.end(bytes, Instant::now());
        if written == Ok(Past::Never) {
            self.pace.never();
        }
        written.map(|past| past == Past::Written)
    }

    fn read_file(&self, file: FileId, offset: u64, len: u32) -> Result<Bytes, StoreError> {
        if let FileId::Blob(object) = file {
            return self.read_blob(object, offset, len);
        }
        let Some(open) = self.open_chunk(file, 0, false)? else {
            return Err(StoreError::NotFound { file });
        };
        let mut buf = Vec::new();
        crate::raw::read_append(open.fd(), offset, len as usize, &mut buf)
            .map_err(self.fail("reading", file))?;
        Ok(buf.into())
    }

    fn truncate(&self, file: FileId, len: u64) -> Result<(), StoreError> {
        if let FileId::Blob(object) = file {
            return self.truncate_blob(object, len);
        }
        let make = matches!(file, FileId::Run(_));
        let Some(open) = self.open_chunk(file, 0, make)? else {
            return Err(StoreError::NotFound { file });
        };
        rustix::fs::ftruncate(open.fd(), len).map_err(self.fail("truncating", file))
    }

    fn allocate(&self, file: FileId, offset: u64, len: u64) -> Result<(), StoreError> {
        for piece in self.pieces(file, offset, len) {
            let Some(open) = self.open_chunk(file, piece.chunk, true)? else { continue };
            match retry(|| {
                rustix::fs::fallocate(open.fd(), FallocateFlags::KEEP_SIZE, piece.offset, piece.len)
            }) {
                // ZFS and others cannot set blocks aside: then this is a wish, and the reservation of the target an
                // estimate.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(errno) => return Err(self.fail("allocating", file)(errno)),
            }
        }
        Ok(())
    }

    fn punch(&self, file: FileId, offset: u64, len: u64) -> Result<(), StoreError> {
        for piece in self.pieces(file, offset, len) {
            let Some(open) = self.open_chunk(file, piece.chunk, false)? else { continue };
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match retry(|| rustix::fs::fallocate(open.fd(), hole, piece.offset, piece.len)) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    let fail = self.fail("punching", file);
                    let size = rustix::fs::fstat(open.fd()).map_err(&fail)?.st_size;
                    let end = (piece.offset + piece.len).min(u64::try_from(size).unwrap_or(0));
                    let len = end.saturating_sub(piece.offset);
                    write_zeros(open.fd(), piece.offset, len).map_err(&fail)?;
                }
                Err(errno) => return Err(self.fail("punching", file)(errno)),
            }
        }
        Ok(())
    }

    fn zero(&self, file: FileId, offset: u64, len: u64) -> Result<(), StoreError> {
        let zeros = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        for piece in self.pieces(file, offset, len) {
            let Some(open) = self.open_chunk(file, piece.chunk, false)? else { continue };
            match retry(|| rustix::fs::fallocate(open.fd(), zeros, piece.offset, piece.len)) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.punch(file, offset, len)?;
                    return self.allocate(file, offset, len);
                }
                Err(errno) => return Err(self.fail("zeroing", file)(errno)),
            }
        }
        Ok(())
    }

    fn run(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        if self.read_only && !op.only_reads() {
            return Err(StoreError::Device(format!("{} was opened for reading only", self.path)));
        }
        match op {
            StoreOp::Create { file, len } => self.create(file, len).map(|()| StoreDone::Unit),
            StoreOp::Write { file, offset, data } => {
                self.write(file, offset, &data, WriteTo::Cache).map(|()| StoreDone::Unit)
            }
            StoreOp::WriteChecksummed { file, offset, data, keep_head, keep_tail, size, written_to, to } => {
                let args = ChecksummedWrite { offset, data: &data, keep_head, keep_tail, size, written_to };
                self.write_checksummed(file, args, to).map(StoreDone::Checksums)
            }
            StoreOp::Read { file, offset, len } => self.read_file(file, offset, len).map(StoreDone::Bytes),
            StoreOp::ReadWritten { file, offset, len, from } => {
                let bytes = match from {
                    ReadFrom::Cache => self.read_written(file, offset, len),
                    ReadFrom::Device => {
                        self.forget_cached(file, offset, u64::from(len));
                        self.read_written(file, offset, len)
                    }
                    ReadFrom::PastCache => self.read_device(file, offset, len),
                };
                bytes.map(checksummed)
            }
            StoreOp::Truncate { file, len } => self.truncate(file, len).map(|()| StoreDone::Unit),
            StoreOp::Allocate { file, offset, len } => {
                self.allocate(file, offset, len).map(|()| StoreDone::Unit)
            }
            StoreOp::Punch { file, offset, len } => self.punch(file, offset, len).map(|()| StoreDone::Unit),
            StoreOp::Zero { file, offset, len } => self.zero(file, offset, len).map(|()| StoreDone::Unit),
            StoreOp::Sync { file } => self.sync_in_use(file).map(|()| StoreDone::Unit),
            StoreOp::SyncAside { file } => self.sync(file).map(|()| StoreDone::Unit),
            StoreOp::Refresh { file } => self.refresh(file).map(|()| StoreDone::Unit),
            StoreOp::StartWriteback { file, offset, len } => {
                self.start_writeback(file, offset, len);
                Ok(StoreDone::Unit)
            }
            StoreOp::SyncMany { files } => self.sync_many(&files),
            StoreOp::SyncWritten { file, len, .. } => self.sync_written(file, len).map(|()| StoreDone::Unit),
            StoreOp::Replace { file, data } => self.replace(file, data).map(|()| StoreDone::Unit),
            StoreOp::Delete { file } => self.delete(file).map(|()| StoreDone::Unit),
            StoreOp::List { kind, after, limit } => {
                self.list(kind, after, limit as usize).map(StoreDone::List)
            }
            StoreOp::Len { file } => self.len(file).map(StoreDone::Len),
            StoreOp::Space => self.space().map(StoreDone::Space),
        }
    }
}

impl Store for FsStore {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        self.run(op)
    }

    fn try_execute(&self, op: StoreOp) -> Result<Result<StoreDone, StoreError>, StoreOp> {
        if self.read_only {
            return Err(op);
        }
        match &op {
            StoreOp::Read { file, offset, len } => match self.read_cached(*file, *offset, *len) {
                Some(bytes) => Ok(Ok(StoreDone::Bytes(bytes))),
                None => Err(op),
            },
            StoreOp::ReadWritten { file, offset, len, from: ReadFrom::Cache } => {
                match self.read_cached(*file, *offset, *len) {
                    Some(bytes) if bytes.len() == *len as usize => Ok(Ok(checksummed(bytes))),
                    Some(_) | None => Err(op),
                }
            }
            StoreOp::Write { data, .. } if total(data) <= INLINE_BYTES_MAX => Ok(self.run(op)),
            StoreOp::WriteChecksummed {
                file,
                offset,
                data,
                keep_head,
                keep_tail,
                size,
                written_to,
                to: _,
            } if total(data) <= INLINE_BYTES_MAX => {
                let args = ChecksummedWrite {
                    offset: *offset,
                    data,
                    keep_head: *keep_head,
                    keep_tail: *keep_tail,
                    size: *size,
                    written_to: *written_to,
                };
                match self.write_checksummed_cached(*file, args) {
                    Some(result) => Ok(result.map(StoreDone::Checksums)),
                    None => Err(op),
                }
            }
            StoreOp::Len { file: FileId::Blob(object) } => match self.open_len(*object) {
                Some(len) => Ok(Ok(StoreDone::Len(Some(len)))),
                None => Err(op),
            },
            StoreOp::Space if !self.eof_blocks.may_free() => Ok(self.run(op)),
            _ => Err(op),
        }
    }
}

impl FsStore {
    /// Reads are tried in the page cache until the kernel says that it cannot.
    pub(crate) fn may_read_cached(&self) -> bool {
        !self.no_cached_reads.load(Ordering::Relaxed)
    }
}
