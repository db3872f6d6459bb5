//! The memory of an inode-bit lock at the MDT, with its place among the locks of its holder.
#![allow(unsafe_code, reason = "a counting allocator is an unsafe trait; it only passes calls on")]

use nacre_dlm::policy::{InodeBits, InodeMode};
use nacre_dlm::server::InodeLocks;
use nacre_types::{Fid, Generation, Instant};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

const BYTES_PER_LOCK_MAX: usize = 200;
const LOCKS: u64 = 20_000;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Blocks of the heap are multiples of 16 bytes and have a header of 8.
        ALLOCATED.with(|n| n.set(n.get().wrapping_add((layout.size() + 8).next_multiple_of(16))));
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        ALLOCATED.with(|n| n.set(n.get().wrapping_sub((layout.size() + 8).next_multiple_of(16))));
        // SAFETY: the caller keeps `dealloc`'s contract, and `ptr` came from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn fid(n: u64) -> Fid {
    Fid::from_ino((0x100 << 24) + 1 + n)
}

/// Bytes per lock of a table after `work`.
fn bytes_per_lock(work: impl FnOnce(&mut InodeLocks)) -> usize {
    let before = ALLOCATED.with(Cell::get);
    let mut table = InodeLocks::new(usize::MAX);
    work(&mut table);
    ALLOCATED.with(Cell::get).wrapping_sub(before) / table.len()
}
fn grant(table: &mut InodeLocks, holder: u64, fid: Fid) {
    let holder = Generation(holder as u32);
    let claim =
        table.claim(holder, fid, InodeMode::Pr, InodeBits::ALL, Instant(0)).expect("nobody else wants it");
    assert!(table.stands(claim).is_some());
}

#[test]
fn a_lock_costs_at_most_200_bytes() {
    let in_order = bytes_per_lock(|table| (0..LOCKS).for_each(|n| grant(table, 1, fid(n))));
    let shared = bytes_per_lock(|table| (0..LOCKS).for_each(|n| grant(table, n % 100, fid(n / 100))));
    let scattered = bytes_per_lock(|table| {
        (0..LOCKS).for_each(|n| grant(table, n % 10, fid(n.wrapping_mul(0x9e37_79b9) % (1 << 24))));
    });
    // Locks come and go: nodes of the trees are only partly full.
    let churned = bytes_per_lock(|table| {
        (0..2 * LOCKS).for_each(|n| grant(table, n % 10, fid(n)));
        (0..2 * LOCKS)
            .filter(|n| n % 3 > 0)
            .for_each(|n| table.forget_inode(Generation((n % 10) as u32), fid(n)));
    });
    let all = [in_order, shared, scattered, churned];
    assert!(all.iter().all(|bytes| *bytes <= BYTES_PER_LOCK_MAX), "bytes per lock: {all:?}");
    println!(
        "bytes per lock: in order {in_order}, shared {shared}, scattered {scattered}, churned {churned}"
    );
}

/// The question of every change, most of which meet no lock of others.
#[test]
fn a_change_without_a_conflict_allocates_nothing() {
    let mut table = InodeLocks::new(usize::MAX);
    (0..1000).for_each(|n| grant(&mut table, 1, fid(n)));
    (1..100).for_each(|holder| grant(&mut table, holder, fid(5000)));
    let before = ALLOCATED.with(Cell::get);
    let changed = [(fid(7), InodeBits::UPDATE), (fid(2000), InodeBits::ALL)];
    assert!(!table.conflicts(Some(Generation(1)), &changed));
    assert!(table.conflicts(Some(Generation(1)), &[(fid(5000), InodeBits::UPDATE)]));
    assert_eq!(ALLOCATED.with(Cell::get), before);
}
