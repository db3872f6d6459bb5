//! A shared mapping of a file. Loads and stores copy bytes; no reference into the mapping exists, because other mounts
//! change it at any time.
#![allow(unsafe_code, reason = "docs/unsafe.md")]

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::ops::Range;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

/// Unmapped when dropped.
pub(super) struct Mapping {
    base: *mut c_void,
    len: usize,
    is_writable: bool,
}

impl Mapping {
    /// Maps so many bytes of the beginning of a file; `len` is not 0.
    pub(super) fn new(file: &File, len: usize, is_writable: bool) -> std::io::Result<Self> {
        let len = len.next_multiple_of(PAGE);
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) }?;
        Ok(Self { base, len, is_writable })
    }
    /// In whole pages.
    pub(super) fn len(&self) -> usize {
        self.len
    }
    pub(super) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Copies bytes out. The caller knows that the file is long enough: a page beyond its end raises SIGBUS.
    pub(super) fn load(&self, range: Range<usize>) -> Vec<u8> {
        assert!(range.start <= range.end && range.end <= self.len, "within the mapping");
        let mut bytes = vec![0; range.len()];
        // SAFETY: within the mapping, as asserted.
        let from = unsafe { self.base.cast::<u8>().add(range.start) };
        // SAFETY: `bytes` is so long and a place of its own. Bytes that change meanwhile are old or new.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }
    /// Copies bytes in; the caller knows that the file is long enough.
    pub(super) fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(self.is_writable && offset + bytes.len() <= self.len, "within a writable mapping");
        // SAFETY: within the mapping, as asserted.
        let to = unsafe { self.base.cast::<u8>().add(offset) };
        // SAFETY: `bytes` is a place of its own, and so much of the mapping is writable.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
    /// Completes the stores to a range.
    pub(super) fn sync(&self, range: Range<usize>) -> std::io::Result<()> {
        let start = range.start / PAGE * PAGE;
        assert!(start <= range.end && range.end <= self.len, "within the mapping");
        // SAFETY: within the mapping, as asserted.
        let from = unsafe { self.base.cast::<u8>().add(start) };
        // SAFETY: the call reads no memory of ours, and the range is mapped.
        unsafe { msync(from.cast(), range.end - start, MsyncFlags::SYNC) }?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping: its bytes are only copied.
        let _unmapped = unsafe { munmap(self.base, self.len) };
    }
}
