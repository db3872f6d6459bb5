//! Decoders of hostile bytes allocate in proportion to the bytes that arrived, whatever these bytes claim.
#![allow(unsafe_code, reason = "a counting allocator is an unsafe trait; it only passes calls on")]

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "support/messages.rs"]
mod messages;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Bytes per byte of input: the largest element of a list against the least that one takes on the wire.
const RATIO: usize = 256;
const FIXED: usize = 4096;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|n| n.set(n.get() + layout.size()));
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and `ptr` came from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocated_by(work: impl FnOnce()) -> usize {
    let before = ALLOCATED.with(Cell::get);
    work();
    ALLOCATED.with(Cell::get) - before
}

#[test]
fn hostile_bytes_cost_no_more_than_a_multiple_of_their_number() {
    let ones = vec![1u8; 4096];
    for message in messages::all() {
        let mut inputs = vec![ones.clone(), vec![0; 4096], vec![0xff; 4096]];
        // Every four bytes in turn claim to be a huge length or count, or just what is left.
        for at in 0..message.sample.len().saturating_sub(3) {
            for claim in [u32::MAX, 1 << 20, (message.sample.len() - at) as u32] {
                let mut bytes = message.sample.clone();
                bytes[at..at + 4].copy_from_slice(&claim.to_le_bytes());
                bytes.extend_from_slice(&ones[..64]);
                inputs.push(bytes);
            }
        }
        for bytes in inputs {
            let cost = allocated_by(|| drop((message.decode)(&bytes)));
            let bound = FIXED + RATIO * bytes.len();
            assert!(cost <= bound, "{}: {cost} bytes allocated for {} bytes", message.name, bytes.len());
        }
    }
}
