//! The connection with the kernel: a descriptor of /dev/fuse, requests read from it, replies and notifications written
//! to it.
//!
//! Invariants: a reply goes to the descriptor its request was read from (the kernel keeps them apart per clone); a
//! read buffer has room for the largest WRITE (`buffers.rs`).

use crate::abi::{self, Field};
use crate::buffers::BufferPool;
use crate::request::FuseRequest;
use bytes::Bytes;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSlice};
use std::sync::Arc;
use tracing::{error, warn};

/// Largest payload of one WRITE and one READ.
pub const MAX_WRITE_BYTES: u32 = 1 << 20;
/// In pages, as INIT wants it; also the kernel's default limit (`fs.fuse.max_pages_limit`).
pub(crate) const MAX_PAGES: u16 = 256;
/// One descriptor of a connection with the kernel.
pub struct Channel {
    /// `None` only in tests and measurements.
    fd: Option<OwnedFd>,
    pool: Arc<BufferPool>,
}

/// Result of reading a request.
pub enum Read {
    Request(FuseRequest),
    /// No request is available.
    Empty,
    /// The file system is unmounted, or the connection was aborted.
    Gone,
}

impl Channel {
    pub(crate) fn new(fd: OwnedFd, pool: Arc<BufferPool>) -> Self {
        Self { fd: Some(fd), pool }
    }
    /// A channel without a kernel, for tests and measurements: replies that are sent to it are lost.
    pub fn detached() -> Self {
        Self { fd: None, pool: Arc::default() }
    }

    pub(crate) fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }

    /// The descriptor, for polling.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Reads one request if there is one; the descriptor is non-blocking.
    ///
    /// # Errors
    /// Those of read(2) that neither mean "nothing there" nor "unmounted".
    pub fn read(self: &Arc<Self>) -> rustix::io::Result<Read> {
        let Some(fd) = &self.fd else { return Ok(Read::Gone) };
        let data = loop {
            match self.pool.read(fd) {
                Ok(data) => break data,
                // EINTR: a signal. ENOENT: the caller was interrupted while the request was in transit.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Ok(Read::Empty),
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Read::Gone),
                Err(error) => return Err(error),
            }
        };
        let len = data.len();
        match FuseRequest::parse(data, self.clone()) {
            Ok(request) => Ok(Read::Request(request.with_callers_groups())),
            Err(abi::Short) => {
                error!(len, "the kernel sent a request that is not one; it is dropped");
                Ok(Read::Empty)
            }
        }
    }

    /// Writes a reply. The kernel discards it if the request was interrupted or the mount has ended.
    pub(crate) fn write_reply(&self, head: &[u8], bulk: &[Bytes]) {
        let Some(fd) = &self.fd else { return };
        let written = if bulk.is_empty() {
            rustix::io::write(fd, head)
        } else {
            let mut parts = Vec::with_capacity(1 + bulk.len());
            parts.push(IoSlice::new(head));
            parts.extend(bulk.iter().map(|part| IoSlice::new(part)));
            rustix::io::writev(fd, &parts)
        };
        match written {
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::CONNABORTED) => {}
            Err(e) => {
                let header = abi::OutHeader::take(&mut { head });
                warn!(error = %e, ?header, "the kernel refused a reply; its caller gets an input/output error");
                // The request still waits in the kernel: without a reply its caller would hang.
                if let Ok(header) = header {
                    let mut again = [0; abi::OutHeader::BYTES];
                    let eio = -nacre_types::Errno::EIO.number();
                    abi::OutHeader { len: 16, error: eio, unique: header.unique }.put_in_front(&mut again);
                    let _ = rustix::io::write(fd, &again);
                }
            }
        }
    }

    /// Writes a notification; may block as long as the kernel waits for replies to other requests.
    ///
    /// # Errors
    /// Those of the kernel; ENOENT if it does not know the inode or name.
    pub fn write_notification(&self, bytes: &[u8]) -> rustix::io::Result<()> {
        let Some(fd) = &self.fd else { return Err(Errno::NODEV) };
        rustix::io::write(fd, bytes).map(drop)
    }

    /// A further descriptor of the same connection, with its own queue of requests in progress: one per loop.
    ///
    /// # Errors
    /// Of opening /dev/fuse, and of the ioctl (EINVAL on a kernel without it).
    pub fn clone_channel(&self) -> rustix::io::Result<Channel> {
        let Some(fd) = &self.fd else { return Err(Errno::NODEV) };
        let new = open_device()?;
        clone_ioctl::attach(&new, fd.as_fd())?;
        Ok(Channel::new(new, self.pool.clone()))
    }
}

/// Opens /dev/fuse, non-blocking.
pub(crate) fn open_device() -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags, open};
    open(c"/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

mod clone_ioctl {
    #![allow(unsafe_code, reason = "FUSE_DEV_IOC_CLONE has no safe wrapper; see docs/unsafe.md")]
    use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
    use rustix::ioctl::{Setter, ioctl, opcode};

    /// `_IOR(229, 0, uint32_t)`.
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

    /// Makes `new` (fresh from open) a further descriptor of the connection of `old`.
    pub(super) fn attach(new: &OwnedFd, old: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let old = old.as_raw_fd().cast_unsigned();
        // SAFETY: CLONE reads a u32 through the pointer and writes nothing; Setter passes a pointer to a u32.
        let request = unsafe { Setter::<CLONE, u32>::new(old) };
        // SAFETY: `new` is a descriptor of /dev/fuse, where this number has that meaning.
        unsafe { ioctl(new, request) }
    }
}
