//! Reads and writes of the device itself, past the page cache. Other readers keep what the cache has of other ranges, and it
//! keeps nothing more.
//!
//! A descriptor of its own is opened for each, because O_DIRECT is a property of the open file and the others of the store
//! use the cache. The kernel writes dirty pages of the range first and then drops them after a write, under the lock of the
//! inode that writes through the cache need, so that everybody sees the latest bytes. A written range is durable after a
//! sync, like any other.

use crate::raw::{retry, write_all};
use bytes::Bytes;
use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Alignment of offset, length and memory that every device accepts.
const ALIGN: usize = 4096;
/// Shorter writes go through the cache: the device would be waited for too often.
const WRITE_MIN: u64 = 1 << 20;

/// Whether a write is long enough to go past the cache, and may be passed to the device as it is.
pub(crate) fn may_write(offset: u64, data: &[Bytes]) -> bool {
    let is_aligned =
        |part: &Bytes| part.len().is_multiple_of(ALIGN) && part.as_ptr().align_offset(ALIGN) == 0;
    crate::raw::total(data) >= WRITE_MIN && offset.is_multiple_of(ALIGN as u64) && data.iter().all(is_aligned)
}

/// The open file and not its name, which may have been given to another file.
fn reopen(fd: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    retry(|| rustix::fs::open(&*path, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()))
}

/// How a write past the cache ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Past {
    Written,
    /// The bytes must go through the cache: the file could not be opened once more.
    NotNow,
    /// The same: the file system has no such writes.
    Never,
}

/// Writes everything, if the file system can. For data as [`may_write`] accepts it.
///
/// # Errors
/// Those of pwritev(2).
pub(crate) fn write_past_cache(fd: BorrowedFd<'_>, offset: u64, data: &[Bytes]) -> Result<Past, Errno> {
    let written = match reopen(fd, OFlags::WRONLY) {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Past::Never),
        Err(_) => return Ok(Past::NotNow),
        Ok(direct) => write_all(direct.as_fd(), offset, data),
    };
    match written {
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Past::Never),
        written => written.map(|()| Past::Written),
    }
}

/// Reads up to `len` bytes; less only at the end of the file. `None`: the file system has no such reads.
///
/// # Errors
/// Those of pread(2).
pub(crate) fn read_past_cache(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Option<Bytes>, Errno> {
    if !offset.is_multiple_of(ALIGN as u64) {
        return Ok(None);
    }
    let Ok(direct) = reopen(fd, OFlags::RDONLY) else { return Ok(None) };
    let whole = len.next_multiple_of(ALIGN);
    let mut buf = vec![0; whole + ALIGN];
    let start = buf.as_ptr().align_offset(ALIGN);
    let mut done = 0;
    while done < whole {
        let space = &mut buf[start + done..start + whole];
        let n = match retry(|| rustix::io::pread(&direct, &mut *space, offset + done as u64)) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) if done == 0 => return Ok(None),
            read => read?,
        };
        done += n;
        // A part of a block ends the file; a read behind it would not be aligned.
        if n == 0 || !n.is_multiple_of(ALIGN) {
            break;
        }
    }
    Ok(Some(Bytes::from(buf).slice(start..start + done.min(len))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn bytes_that_are_not_on_the_device_yet_are_read_and_the_end_of_the_file_is_seen() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..20_000u32).map(|i| (i / 7) as u8).collect();
        file.write_all(&bytes).unwrap();
        let read = |offset, len| read_past_cache(file.as_fd(), offset, len).unwrap();
        let Some(all) = read(0, 20_000) else { return }; // this file system has no such reads
        assert!(all == bytes);
        assert!(read(8192, 100).unwrap() == bytes[8192..8292]);
        assert!(read(16_384, 1 << 20).unwrap() == bytes[16_384..]);
        assert_eq!(read(40_960, 4096).unwrap().len(), 0);
        assert_eq!(read(1, 100), None);
    }
}
