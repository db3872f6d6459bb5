//! System calls with complete results: they handle short reads and writes, interrupts, and kinds of errors.

use bytes::Bytes;
use nacre_node::StoreError;
use rustix::fd::{AsRawFd as _, BorrowedFd};
use rustix::io::Errno;
use std::io::IoSlice;

/// Buffers of one `pwritev`.
const IOV_MAX: usize = 1024;
/// Zeros written at a time. Not more: the page cache of ext4 keeps what one write covers in one large folio, and each small
/// write into a large folio walks all of its buffers (a log record of 544 bytes: 1.0 us into folios of 64 KiB, 2.4 us into
/// those of 1 MiB).
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// `what` names operation and file.
pub(crate) fn store_error(errno: Errno, what: &str) -> StoreError {
    match errno {
        Errno::NOSPC | Errno::DQUOT => StoreError::NoSpace,
        other => StoreError::Device(format!("{what}: {}", std::io::Error::from(other))),
    }
}

/// Calls again when a signal came.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Bytes of all parts.
pub(crate) fn total(data: &[Bytes]) -> u64 {
    data.iter().map(|b| b.len() as u64).sum()
}

/// Writes everything.
///
/// # Errors
/// Those of pwritev(2).
pub fn write_all(fd: BorrowedFd<'_>, offset: u64, data: &[Bytes]) -> Result<(), Errno> {
    let mut at = offset;
    let mut index = 0; // first buffer that is not written whole
    let mut skip = 0; // bytes of it that are
    while let Some(first) = data.get(index) {
        if skip == first.len() {
            index += 1;
            skip = 0;
            continue;
        }
        let head = IoSlice::new(first.get(skip..).unwrap_or_default());
        let rest = data.iter().skip(index + 1).take(IOV_MAX - 1).map(|b| IoSlice::new(b));
        let slices: Vec<IoSlice<'_>> = std::iter::once(head).chain(rest).collect();
        let mut written = retry(|| rustix::io::pwritev(fd, &slices, at))?;
        if written == 0 {
            return Err(Errno::IO);
        }
        at += written as u64;
        while let Some(buffer) = data.get(index) {
            let left = buffer.len() - skip;
            if written < left {
                skip += written;
                break;
            }
            written -= left;
            index += 1;
            skip = 0;
        }
    }
    Ok(())
}

/// Writes `len` zeros.
pub(crate) fn write_zeros(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let n = (len - done).min(ZEROS.len() as u64) as usize;
        let written = retry(|| rustix::io::pwrite(fd, &ZEROS[..n], offset + done))?;
        if written == 0 {
            return Err(Errno::IO);
        }
        done += written as u64;
    }
    Ok(())
}

/// Begins to write back the dirty pages of a range. Waits only while the device's queue is full.
pub(crate) fn start_writeback(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // The outcome does not matter: an error of the write-back stays with the inode until the next sync.
    #[allow(unsafe_code, reason = "docs/unsafe.md")]
    // SAFETY: the call takes a descriptor, which is open as long as it is borrowed, and numbers; it touches no memory.
    let _begun = unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Asks the device for a range, without waiting for it.
pub(crate) fn read_ahead(fd: BorrowedFd<'_>, range: &std::ops::Range<u64>) {
    let len = std::num::NonZeroU64::new(range.end.saturating_sub(range.start));
    // Advice: a file system without a page cache may refuse it.
    let _advised = rustix::fs::fadvise(fd, range.start, len, rustix::fs::Advice::WillNeed);
}

/// Appends up to `len` bytes to `buf`; less only at the end of the file.
pub(crate) fn read_append(
    fd: BorrowedFd<'_>,
    offset: u64,
    len: usize,
    buf: &mut Vec<u8>,
) -> Result<usize, Errno> {
    let mut taken = Vec::with_capacity(len);
    while taken.len() < len {
        let at = offset + taken.len() as u64;
        // The allocation may be larger than asked for: never read more than that.
        if taken.capacity() > len {
            let start = taken.len();
            taken.resize(len, 0);
            let n = retry(|| rustix::io::pread(fd, &mut taken[start..], at))?;
            taken.truncate(start + n);
            if n == 0 {
                break;
            }
            continue;
        }
        if retry(|| rustix::io::pread(fd, rustix::buffer::spare_capacity(&mut taken), at))? == 0 {
            break;
        }
    }
    let n = taken.len();
    if buf.is_empty() {
        *buf = taken;
    } else {
        buf.extend_from_slice(&taken);
    }
    Ok(n)
}

/// Fills the buffer; less only at the end of the file.
pub(crate) fn read_full(fd: BorrowedFd<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buf.len() {
        let n = retry(|| rustix::io::pread(fd, &mut buf[done..], offset + done as u64))?;
        if n == 0 {
            break;
        }
        done += n;
    }
    Ok(done)
}

/// Like [`read_full`] from the page cache only: `Err(AGAIN)` when the disk would be asked.
pub(crate) fn read_cached(fd: BorrowedFd<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buf.len() {
        let part = &mut [std::io::IoSliceMut::new(&mut buf[done..])];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        let n = retry(|| rustix::io::preadv2(fd, part, offset + done as u64, flags))?;
        if n == 0 {
            break;
        }
        done += n;
    }
    Ok(done)
}
