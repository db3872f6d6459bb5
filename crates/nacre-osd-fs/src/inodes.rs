//! The inodes of the file system below that no blob may take.
//!
//! A file system such as ext4 has a fixed number of inodes. Small objects can use them up while there are bytes left, and then
//! no target on it can create the next segment of its log: not even a change that deletes files could be logged. So a
//! blob is refused while only the reserve is left. The kernel is asked before each [`ASK_EVERY`]th blob; the reserve is large
//! enough for the blobs that several stores on the file system create between two questions.

use rustix::fd::BorrowedFd;
use rustix::fs::StatVfs;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blobs created between two questions.
const ASK_EVERY: u64 = 64;
const RESERVE_MAX: u64 = 1024;
/// At most one such part of all inodes is reserved.
const RESERVE_PART: u64 = 32;

/// The inodes that blobs may still take; `None`: the file system makes inodes as it needs them.
pub(crate) fn free_for_blobs(space: &StatVfs) -> Option<u64> {
    let reserve = (space.f_files / RESERVE_PART).min(RESERVE_MAX);
    (space.f_files > 0).then(|| space.f_favail.saturating_sub(reserve))
}

/// Counts the blobs that are created until the kernel is asked again.
#[derive(Debug, Default)]
pub(crate) struct Inodes {
    /// Blobs that may be created without a question.
    unasked: AtomicU64,
}

impl Inodes {
    /// Takes the inode of a new blob.
    ///
    /// # Errors
    /// ENOSPC if only the reserve is left; those of statfs.
    pub(crate) fn take(&self, root: BorrowedFd<'_>) -> Result<(), Errno> {
        let less = |unasked: u64| unasked.checked_sub(1);
        if self.unasked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return Ok(());
        }
        let free = free_for_blobs(&rustix::fs::fstatvfs(root)?).unwrap_or(u64::MAX);
        let others = free.checked_sub(1).ok_or(Errno::NOSPC)?;
        self.unasked.store(others.min(ASK_EVERY - 1), Ordering::Relaxed);
        Ok(())
    }
}
