//! Reads of the device itself, past the page cache: other readers keep what the cache has, and it keeps nothing more.
//!
//! A descriptor of its own is opened for each read, because O_DIRECT is a property of the open file and the others of the
//! store use the cache. The kernel writes dirty pages of the range before it reads, so the bytes are the latest.

use crate::raw::retry;
use bytes::Bytes;
use rustix::fd::{AsRawFd as _, BorrowedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Alignment of offset, length and memory that every device accepts.
const ALIGN: usize = 4096;

/// Reads up to `len` bytes; less only at the end of the file. `None`: the file system has no such reads.
///
/// # Errors
/// Those of pread(2).
pub(crate) fn read_past_cache(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Option<Bytes>, Errno> {
    if !offset.is_multiple_of(ALIGN as u64) {
        return Ok(None);
    }
    // The open file and not its name, which may have been given to another file.
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let Ok(direct) = retry(|| rustix::fs::open(&*path, flags, Mode::empty())) else { return Ok(None) };
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
    use rustix::fd::AsFd as _;
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
