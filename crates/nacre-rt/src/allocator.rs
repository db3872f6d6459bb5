//! The memory of a process of nacre: mimalloc, called so that an ordinary allocation takes its shortest way.
//!
//! The allocator's own Rust interface passes each allocation through the functions for aligned memory, which costs 4 % of
//! the instructions of a create on the metadata target. Its plain functions align to eight bytes whatever the size, and
//! that is enough for nearly everything.

use libmimalloc_sys as sys;
use std::alloc::{GlobalAlloc, Layout};

/// The global allocator of programs and of measurements.
pub struct Allocator;

/// Alignment that the plain functions guarantee.
const PLAIN_ALIGN: usize = 8;

// SAFETY: mimalloc returns null or memory of at least the requested size, with the requested alignment, that belongs to
// nobody else until it is freed. The plain functions align to a word, so that they are used up to `PLAIN_ALIGN` only.
// Memory from either kind of function may be passed to `mi_free` and to both kinds of `realloc`.
#[allow(unsafe_code, reason = "docs/unsafe.md")]
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= PLAIN_ALIGN {
            // SAFETY: any size is allowed.
            return unsafe { sys::mi_malloc(layout.size()) }.cast();
        }
        // SAFETY: a layout's alignment is a power of two.
        unsafe { sys::mi_malloc_aligned(layout.size(), layout.align()) }.cast()
    }
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= PLAIN_ALIGN {
            // SAFETY: as in `alloc`.
            return unsafe { sys::mi_zalloc(layout.size()) }.cast();
        }
        // SAFETY: as in `alloc`.
        unsafe { sys::mi_zalloc_aligned(layout.size(), layout.align()) }.cast()
    }
    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, _layout: Layout) {
        // SAFETY: the caller guarantees that the memory came from this allocator and is not used any more.
        unsafe { sys::mi_free(memory.cast()) }
    }
    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if layout.align() <= PLAIN_ALIGN {
            // SAFETY: as in `dealloc`.
            return unsafe { sys::mi_realloc(memory.cast(), bytes) }.cast();
        }
        // SAFETY: as in `dealloc`; a layout's alignment is a power of two.
        unsafe { sys::mi_realloc_aligned(memory.cast(), bytes, layout.align()) }.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_keeps_its_bytes() {
        for align in [1, 2, 4, 8, 16, 64, 4096] {
            for bytes in (1..200).chain([1000, 1024, 1025, 4096, 5000, 70_000, 3 << 20]) {
                let layout = Layout::from_size_align(bytes, align).unwrap();
                let longer = bytes * 3;
                // SAFETY: the size is not zero; the memory is freed once, with the layout that it has then.
                #[allow(unsafe_code, reason = "docs/unsafe.md")]
                #[allow(clippy::multiple_unsafe_ops_per_block, reason = "one life of one allocation")]
                unsafe {
                    let memory = Allocator.alloc_zeroed(layout);
                    assert!(!memory.is_null() && memory.addr().is_multiple_of(align), "{layout:?}");
                    assert!((0..bytes).all(|at| *memory.add(at) == 0), "{layout:?}");
                    memory.write_bytes(7, bytes);
                    let memory = Allocator.realloc(memory, layout, longer);
                    assert!(!memory.is_null() && memory.addr().is_multiple_of(align), "{layout:?}");
                    assert!((0..bytes).all(|at| *memory.add(at) == 7), "{layout:?}");
                    Allocator.dealloc(memory, Layout::from_size_align(longer, align).unwrap());
                    let memory = Allocator.alloc(layout);
                    assert!(!memory.is_null() && memory.addr().is_multiple_of(align), "{layout:?}");
                    Allocator.dealloc(memory, layout);
                }
            }
        }
    }
}
