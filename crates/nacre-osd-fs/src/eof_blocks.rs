//! Space that XFS keeps beyond the end of files which grow and stay open.
//!
//! XFS gives a growing file up to as much again, and counts it as used until the file is closed or the device is full. The
//! files of a store stay open, so that on a small device half of the space seems used: writes would be refused although
//! XFS itself would find room for them. So when little is free, XFS is asked to free that space before it is asked how
//! much there is. Only the administrator (`CAP_SYS_ADMIN`) may do that; others see the smaller number, as before.

use rustix::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const XFS_MAGIC: i64 = 0x5846_5342;
/// With more free space than that, or than half of the device, nothing is done: files that grow are laid out better with it.
const SHORT_BYTES: u64 = 4 << 30;
/// How often it is freed at most.
const INTERVAL: Duration = Duration::from_millis(100);

/// The space of one store's file system.
#[derive(Default)]
pub(crate) struct EofBlocks {
    /// It may be freed: XFS, and nothing has been refused.
    is_on: AtomicBool,
    freed_at: Mutex<Option<Instant>>,
}

impl EofBlocks {
    pub(crate) fn of(dir: BorrowedFd<'_>) -> Self {
        let is_xfs = rustix::fs::fstatfs(dir).is_ok_and(|s| s.f_type == XFS_MAGIC);
        Self { is_on: AtomicBool::new(is_xfs), freed_at: Mutex::default() }
    }
    /// Whether asking for the space may take longer than a plain system call.
    pub(crate) fn may_free(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }
    /// Frees it if there is little other space. False: nothing was done.
    pub(crate) fn free_if_short(&self, dir: BorrowedFd<'_>, avail: u64, total: u64) -> bool {
        if !self.may_free() || avail >= SHORT_BYTES.min(total / 2) || !self.is_due() {
            return false;
        }
        let freed = xfs_ioctl::free_eof_blocks(dir);
        if let Err(error) = freed {
            tracing::debug!(%error, "XFS does not free the space beyond the end of files");
            self.is_on.store(false, Ordering::Relaxed);
        }
        freed.is_ok()
    }
    fn is_due(&self) -> bool {
        let mut freed_at = self.freed_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = freed_at.is_none_or(|at| at.elapsed() >= INTERVAL);
        if is_due {
            *freed_at = Some(Instant::now());
        }
        is_due
    }
}

mod xfs_ioctl {
    #![allow(unsafe_code, reason = "XFS_IOC_FREE_EOFBLOCKS has no safe wrapper; see docs/unsafe.md")]
    use rustix::fd::BorrowedFd;
    use rustix::ioctl::{Setter, ioctl, opcode};

    /// `struct xfs_fs_eofblocks`: of all files.
    #[repr(C)]
    struct Request {
        version: u32,
        flags: u32,
        ids: [u32; 3],
        pad32: u32,
        min_file_size: u64,
        pad64: [u64; 12],
    }
    /// `_IOR('X', 58, struct xfs_fs_eofblocks)`. The kernel reads the structure, in spite of the name.
    const FREE: rustix::ioctl::Opcode = opcode::read::<Request>(b'X', 58);
    const VERSION: u32 = 1;
    /// Files with bytes that are not on the device yet are not left out.
    const SYNC: u32 = 1;

    pub(super) fn free_eof_blocks(dir: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let all = Request {
            version: VERSION,
            flags: SYNC,
            ids: [0; 3],
            pad32: 0,
            min_file_size: 0,
            pad64: [0; 12],
        };
        // SAFETY: FREE reads this structure through the pointer and writes nothing.
        let request = unsafe { Setter::<FREE, Request>::new(all) };
        // SAFETY: `dir` is on XFS, where this number has that meaning.
        unsafe { ioctl(dir, request) }
    }
}
