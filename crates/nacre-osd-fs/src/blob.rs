//! Blobs split into chunk files, and the reads and writes that must not wait for the disk.

use crate::cache::Open;
use crate::direct::read_past_cache;
use crate::dirs::names;
use crate::path::{chunk_dir, chunk_path, path};
use crate::raw::{read_ahead, read_append, read_cached, read_full, retry, start_writeback};
use crate::read_buffers::ReadBuffers;
use crate::store::{FsStore, INLINE_READ_MAX};
use bytes::Bytes;
use nacre_node::{FileId, StoreError, WriteTo};
use nacre_osd::checksum::{ChecksummedWrite, write_checksummed};
use nacre_types::ObjectId;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// A part of a byte range inside one chunk: a plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) chunk: u64,
    /// Where in the chunk.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Why a write that must not wait was not carried out.
enum Stopped {
    WouldWait,
    Failed(StoreError),
}
impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// How bytes of a descriptor are read: [`read_full`] or [`read_cached`].
type ReadFn = dyn Fn(BorrowedFd<'_>, u64, &mut [u8]) -> Result<usize, Errno>;

impl FsStore {
    /// Cuts a range at chunks. Only blobs have more than one.
    pub(crate) fn pieces(&self, file: FileId, offset: u64, len: u64) -> Vec<Piece> {
        if !matches!(file, FileId::Blob(_)) {
            return vec![Piece { chunk: 0, offset, len }];
        }
        let mut out = Vec::new();
        let (mut at, mut left) = (offset, len);
        while left > 0 {
            let start = at % self.chunk_bytes;
            let len = left.min(self.chunk_bytes - start);
            out.push(Piece { chunk: at / self.chunk_bytes, offset: start, len });
            at = at.saturating_add(len);
            left -= len;
        }
        out
    }

    /// Numbers of the chunks beyond the first, in order.
    pub(crate) fn far_chunks(&self, object: ObjectId) -> Result<Vec<u64>, StoreError> {
        let file = FileId::Blob(object);
        let chunks = match self.open_dir(&chunk_dir(object)) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            other => other.map_err(self.fail("listing chunks of", file))?,
        };
        let found = names(chunks.as_fd()).map_err(self.fail("listing chunks of", file))?;
        let mut out: Vec<u64> = found.iter().filter_map(|n| u64::from_str_radix(n, 16).ok()).collect();
        out.sort_unstable();
        Ok(out)
    }

    /// Syncs the chunks beyond the first and their entries.
    pub(crate) fn sync_chunks(&self, object: ObjectId) -> Result<(), StoreError> {
        let file = FileId::Blob(object);
        let fail = self.fail("syncing", file);
        for chunk in self.far_chunks(object)? {
            if let Some(open) = self.open_chunk(file, chunk, false)? {
                retry(|| rustix::fs::fdatasync(open.fd())).map_err(&fail)?;
            }
        }
        match self.open_dir(&chunk_dir(object)) {
            Ok(chunks) => retry(|| rustix::fs::fsync(&chunks)).map_err(&fail),
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(fail(errno)),
        }
    }

    /// Whether the object has chunks beyond the first; `None`: it does not exist.
    fn has_far_chunks(&self, object: ObjectId) -> Result<Option<bool>, StoreError> {
        Ok(self.open_chunk(FileId::Blob(object), 0, false)?.map(|open| open.has_chunks()))
    }

    pub(crate) fn read_blob(&self, object: ObjectId, offset: u64, len: u32) -> Result<Bytes, StoreError> {
        let Some(has_chunks) = self.has_far_chunks(object)? else { return Ok(Bytes::new()) };
        let mut buf = Vec::new();
        if !has_chunks {
            // One file: pieces beyond it are beyond the end.
            let first = self.pieces(FileId::Blob(object), offset, u64::from(len)).into_iter().next();
            if let Some(piece) = first.filter(|p| p.chunk == 0) {
                self.read_piece(object, piece, &mut buf)?;
            }
            return Ok(buf.into());
        }
        let end = self.blob_len(object)?.unwrap_or(0);
        let want = end.saturating_sub(offset).min(u64::from(len));
        for piece in self.pieces(FileId::Blob(object), offset, want) {
            let got = self.read_piece(object, piece, &mut buf)?;
            // The chunk is shorter than the blob: a hole.
            buf.resize(buf.len() + (piece.len as usize).saturating_sub(got), 0);
        }
        Ok(buf.into())
    }
    /// Reads bytes that were written: all of them are inside the files of their chunks, or it fails.
    pub(crate) fn read_written(&self, file: FileId, offset: u64, len: u32) -> Result<Bytes, StoreError> {
        let FileId::Blob(object) = file else { return Err(StoreError::NotFound { file }) };
        let to = offset + u64::from(len);
        let pieces = self.pieces(file, offset, u64::from(len));
        if let ([piece], true) = (&pieces[..], ReadBuffers::lends(len as usize)) {
            let mut buf = self.buffers().take(len as usize);
            let read = |open: &Open| read_full(open.fd(), piece.offset, buf.space());
            return match self.read_open(object, *piece, read)? as u64 {
                n if n < piece.len => Err(StoreError::Missing { file, from: offset + n, to }),
                _ => Ok(buf.filled(len as usize)),
            };
        }
        let mut buf = Vec::new();
        for piece in pieces {
            if (self.read_piece(object, piece, &mut buf)? as u64) < piece.len {
                return Err(StoreError::Missing { file, from: offset + buf.len() as u64, to });
            }
        }
        Ok(buf.into())
    }
    /// The same from the device. The cache stays as it is, where the file system has such reads.
    pub(crate) fn read_device(&self, file: FileId, offset: u64, len: u32) -> Result<Bytes, StoreError> {
        let to = offset + u64::from(len);
        let mut pieces = Vec::new();
        let mut at = offset;
        for piece in self.pieces(file, offset, u64::from(len)) {
            let open = self.open_chunk(file, piece.chunk, false)?;
            let read = open.map_or(Ok(Some(Bytes::new())), |open| {
                read_past_cache(open.fd(), piece.offset, piece.len as usize)
            });
            let Some(bytes) = read.map_err(self.fail("reading", file))? else {
                self.forget_cached(file, offset, u64::from(len));
                let bytes = self.read_written(file, offset, len);
                self.forget_cached(file, offset, u64::from(len));
                return bytes;
            };
            at += bytes.len() as u64;
            if (bytes.len() as u64) < piece.len {
                return Err(StoreError::Missing { file, from: at, to });
            }
            pieces.push(bytes);
        }
        Ok(if pieces.len() == 1 { pieces.remove(0) } else { pieces.concat().into() })
    }
    /// Fails if the file that holds the last byte before a write ends before it, so that the write would leave a hole.
    /// Chunks before the last one may be shorter: they are not looked at.
    fn must_reach(&self, file: FileId, args: &ChecksummedWrite<'_>) -> Result<(), StoreError> {
        let (reach, written_to) = (args.must_reach(), args.written_to.unwrap_or(0));
        let Some(last) = reach.checked_sub(1) else { return Ok(()) };
        let chunk = last / self.chunk_bytes;
        if chunk < (written_to - 1) / self.chunk_bytes {
            return Ok(());
        }
        let len = match self.open_chunk(file, chunk, false)? {
            None => 0,
            Some(open) => {
                let stat = rustix::fs::fstat(open.fd()).map_err(self.fail("looking at", file))?;
                u64::try_from(stat.st_size).unwrap_or(0)
            }
        };
        let held = chunk * self.chunk_bytes + len;
        if held < reach { Err(StoreError::Missing { file, from: held, to: reach }) } else { Ok(()) }
    }
    fn read_piece(&self, object: ObjectId, piece: Piece, buf: &mut Vec<u8>) -> Result<usize, StoreError> {
        self.read_open(object, piece, |open| read_append(open.fd(), piece.offset, piece.len as usize, buf))
    }
    /// Reads a piece with `read`, and begins to read ahead of it. 0: its file does not exist.
    fn read_open(
        &self,
        object: ObjectId,
        piece: Piece,
        read: impl FnOnce(&Open) -> Result<usize, Errno>,
    ) -> Result<usize, StoreError> {
        let file = FileId::Blob(object);
        let Some(open) = self.open_chunk(file, piece.chunk, false)? else { return Ok(0) };
        let range = piece.offset..piece.offset.saturating_add(piece.len);
        if let Some(more) = open.read_ahead().extend(&range) {
            read_ahead(open.fd(), &more);
        }
        read(&open).map_err(self.fail("reading", file))
    }

    /// Length of a blob by the names of its files; `None` if it does not exist. The last chunk that is not empty
    /// counts: one whose blocks were set aside is empty.
    pub(crate) fn blob_len(&self, object: ObjectId) -> Result<Option<u64>, StoreError> {
        let file = FileId::Blob(object);
        for chunk in self.far_chunks(object)?.into_iter().rev() {
            let len = self.stat(file, &chunk_path(object, chunk))?.unwrap_or(0);
            if len > 0 {
                return Ok(Some(chunk * self.chunk_bytes + len));
            }
        }
        self.stat(file, &path(file))
    }

    pub(crate) fn write(
        &self,
        file: FileId,
        offset: u64,
        data: &[Bytes],
        to: WriteTo,
    ) -> Result<(), StoreError> {
        let len = crate::raw::total(data);
        if len == 0 {
            return Ok(());
        }
        let pieces = self.pieces(file, offset, len);
        if let [piece] = pieces[..] {
            return self.write_piece(file, piece, data, to);
        }
        let mut rest: std::collections::VecDeque<Bytes> = data.iter().cloned().collect();
        for piece in pieces {
            let mut part = Vec::new();
            let mut left = piece.len as usize;
            while left > 0
                && let Some(mut buffer) = rest.pop_front()
            {
                if buffer.len() > left {
                    rest.push_front(buffer.split_off(left));
                }
                left -= buffer.len();
                part.push(buffer);
            }
            self.write_piece(file, piece, &part, to)?;
        }
        Ok(())
    }

    /// A checksummed write, which may wait for the device.
    pub(crate) fn write_checksummed(
        &self,
        file: FileId,
        args: ChecksummedWrite<'_>,
        to: WriteTo,
    ) -> Result<Vec<u32>, StoreError> {
        match self.try_write_checksummed(file, args, &read_full, to) {
            Ok(checksums) => Ok(checksums),
            Err(Stopped::Failed(error)) => Err(error),
            Err(Stopped::WouldWait) => self.write_checksummed(file, args, to),
        }
    }
    /// `None`: it would wait for the device, for bytes that must be kept or for a write past the cache; nothing was written.
    pub(crate) fn write_checksummed_cached(
        &self,
        file: FileId,
        args: ChecksummedWrite<'_>,
    ) -> Option<Result<Vec<u32>, StoreError>> {
        if (args.keep_head.is_any() || args.keep_tail.is_any()) && !self.may_read_cached() {
            return None;
        }
        if self.is_written_past_cache(file, args.offset) {
            return None;
        }
        match self.try_write_checksummed(file, args, self.cached_reader(), WriteTo::Cache) {
            Ok(checksums) => Some(Ok(checksums)),
            Err(Stopped::Failed(error)) => Some(Err(error)),
            Err(Stopped::WouldWait) => None,
        }
    }
    fn try_write_checksummed(
        &self,
        file: FileId,
        args: ChecksummedWrite<'_>,
        read: &ReadFn,
        to: WriteTo,
    ) -> Result<Vec<u32>, Stopped> {
        self.must_reach(file, &args)?;
        write_checksummed(
            file,
            args,
            |offset, buf| {
                // A block never crosses chunks.
                let (chunk, offset) = (offset / self.chunk_bytes, offset % self.chunk_bytes);
                let Some(open) = self.open_chunk(file, chunk, false).map_err(Stopped::Failed)? else {
                    return Ok(0);
                };
                match read(open.fd(), offset, buf) {
                    Ok(n) => Ok(n),
                    Err(Errno::AGAIN | Errno::OPNOTSUPP) => Err(Stopped::WouldWait),
                    Err(errno) => Err(Stopped::Failed(self.fail("reading", file)(errno))),
                }
            },
            |offset, data| self.write(file, offset, data, to).map_err(Stopped::Failed),
        )
    }

    fn cached_reader(&self) -> &'static ReadFn {
        if self.features.in_memory { &read_full } else { &read_cached }
    }

    /// Reads from the page cache; `None` when that does not do.
    pub(crate) fn read_cached(&self, file: FileId, offset: u64, len: u32) -> Option<Bytes> {
        if u64::from(len) > INLINE_READ_MAX || !self.may_read_cached() {
            return None;
        }
        let open = self.open_chunk(file, 0, false).ok()??;
        let range = offset..offset.saturating_add(u64::from(len));
        if open.has_chunks() || open.read_ahead().is_due(&range) {
            return None;
        }
        let mut buf = self.buffers().take(len as usize);
        match self.cached_reader()(open.fd(), offset, buf.space()) {
            Ok(n) => {
                open.read_ahead().note(&range);
                Some(buf.filled(n))
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.no_cached_reads.store(true, Ordering::Relaxed);
                None
            }
            Err(_) => None,
        }
    }

    /// Lets the cache forget what it need not keep of a range: the next read shows what the device has.
    pub(crate) fn forget_cached(&self, file: FileId, offset: u64, len: u64) {
        for piece in self.pieces(file, offset, len) {
            if let Ok(Some(open)) = self.open_chunk(file, piece.chunk, false) {
                let len = std::num::NonZeroU64::new(piece.len);
                // Advice: without it the bytes are read as the cache has them.
                let _advised =
                    rustix::fs::fadvise(open.fd(), piece.offset, len, rustix::fs::Advice::DontNeed);
            }
        }
    }

    /// Begins to write back. A chunk that cannot be opened is left to the sync, which reports the reason; so is a failure
    /// of the write-back itself, which the kernel keeps with the inode.
    pub(crate) fn start_writeback(&self, file: FileId, offset: u64, len: u64) {
        for piece in self.pieces(file, offset, len) {
            if let Ok(Some(open)) = self.open_chunk(file, piece.chunk, false) {
                start_writeback(open.fd(), piece.offset, piece.len);
            }
        }
    }

    pub(crate) fn truncate_blob(&self, object: ObjectId, len: u64) -> Result<(), StoreError> {
        let file = FileId::Blob(object);
        let fail = self.fail("truncating", file);
        // The last chunk is never empty, so that it says how long the blob is.
        let target = len.saturating_sub(1) / self.chunk_bytes;
        let has_chunks = match self.has_far_chunks(object)? {
            None if len == 0 => return Ok(()),
            other => other.unwrap_or(false),
        };
        if has_chunks {
            for chunk in self.far_chunks(object)?.into_iter().rev().filter(|&c| c > target) {
                self.forget_chunk(object, chunk);
                crate::open::remove(self.dirs.root(), &chunk_path(object, chunk)).map_err(&fail)?;
            }
        }
        let Some(open) = self.open_chunk(file, target, true)? else { return Ok(()) };
        rustix::fs::ftruncate(open.fd(), len - target * self.chunk_bytes).map_err(&fail)
    }
}
