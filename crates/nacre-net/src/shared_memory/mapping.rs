//! Mappings of the shared memory.

use rustix::fd::AsFd;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::sync::atomic::AtomicU32;

/// A mapping of the beginning of a file that cannot shrink.
pub(super) struct Mapping {
    base: *mut c_void,
    bytes: usize,
}

// SAFETY: a range of addresses; what may be read and written through it is up to the functions below.
#[allow(unsafe_code, reason = "docs/unsafe.md")]
unsafe impl Send for Mapping {}
// SAFETY: the same.
#[allow(unsafe_code, reason = "docs/unsafe.md")]
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file that has as many.
    pub(super) fn new(fd: impl AsFd, bytes: usize, writable: bool) -> rustix::io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        #[allow(unsafe_code, reason = "docs/unsafe.md")]
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0) }?;
        Ok(Self { base, bytes })
    }
    pub(super) fn len(&self) -> usize {
        self.bytes
    }
    /// The offset of `bytes`, if they lie in the mapping.
    pub(super) fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.base as usize)?;
        (offset.checked_add(bytes.len())? <= self.bytes).then_some(offset)
    }
    /// A word of the first page.
    ///
    /// # Panics
    /// If it lies outside the mapping.
    pub(super) fn word(&self, index: usize) -> &AtomicU32 {
        let at = index * size_of::<AtomicU32>();
        assert!(at + size_of::<AtomicU32>() <= self.bytes, "word {index} is outside the mapping");
        // SAFETY: in the mapping, aligned because a mapping begins at a page; both processes use it atomically only.
        #[allow(unsafe_code, reason = "docs/unsafe.md")]
        unsafe {
            &*self.base.cast::<u8>().wrapping_add(at).cast::<AtomicU32>()
        }
    }
    /// Bytes that nobody writes to while the slice is used: the caller holds a buffer, or a loan that is not returned yet.
    ///
    /// # Panics
    /// If they lie outside the mapping.
    pub(super) fn slice(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.bytes), "{offset}+{len} is outside");
        // SAFETY: in the mapping, which cannot shrink; initialized by the kernel. A peer that breaks the rule of loans changes
        // bytes that were its own message; their checksums show that.
        #[allow(unsafe_code, reason = "docs/unsafe.md")]
        unsafe {
            std::slice::from_raw_parts(self.base.cast::<u8>().wrapping_add(offset), len)
        }
    }
    /// Bytes of a buffer that belongs to the caller alone.
    ///
    /// # Panics
    /// If they lie outside the mapping.
    #[allow(clippy::mut_from_ref, reason = "the owner gives each buffer to one caller at a time")]
    pub(super) fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.bytes), "{offset}+{len} is outside");
        // SAFETY: as above, in a writable mapping; the only caller is `SharedBuffer`, whose buffer nobody else has.
        #[allow(unsafe_code, reason = "docs/unsafe.md")]
        unsafe {
            std::slice::from_raw_parts_mut(self.base.cast::<u8>().wrapping_add(offset), len)
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by `new`; every slice borrows from `self`.
        #[allow(unsafe_code, reason = "docs/unsafe.md")]
        let unmapped = unsafe { munmap(self.base, self.bytes) };
        if let Err(error) = unmapped {
            tracing::warn!(%error, "cannot unmap shared memory");
        }
    }
}
