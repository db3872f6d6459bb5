//! What a mount keeps of written data until it is stable: the bound of the replay list is a bound on memory.
#![allow(unsafe_code, reason = "a counting allocator is an unsafe trait; it only passes calls on")]

use bytes::Bytes;
use nacre_fuse::{BufferPool, MAX_WRITE_BYTES};
use nacre_rpc::ReplayList;
use nacre_types::{Codec as _, Fid, LockCookie, ObjectId, Oid, Owner, Seq, Timestamp, Transno, Xid};
use nacre_wire::ost::Write;
use nacre_wire::{Frame, Header, Kind, Opcode};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract, which is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `dealloc`'s contract, and `ptr` came from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Header and arguments of a WRITE, in front of its payload.
const FRONT: usize = 80;
/// What the pool keeps for the next requests.
const POOL_BYTES: usize = 8 * (MAX_WRITE_BYTES as usize + (64 << 10));

/// A write as the mount sends it: the payload is a part of the kernel's request.
fn write(pool: &Arc<BufferPool>, number: u64, len: usize) -> Frame {
    let mut request = pool.take();
    request.resize(FRONT + len, 7);
    let payload = pool.keep(request).slice(FRONT..);
    let args = Write {
        object: ObjectId { fid: Fid { seq: Seq(0x100), oid: Oid(1) }, stripe: 0 },
        laid: 0,
        offset: number * len as u64,
        owner: Owner::default(),
        mtime: Timestamp::default(),
        lock: LockCookie(0),
    };
    let header = Header { xid: Xid(number), ..Header::new(Kind::Request, Opcode::Write as u16) };
    Frame { bulk: vec![payload], ..Frame::new(header, args.to_vec()) }
}

#[test]
fn kept_writes_hold_no_more_memory_than_the_list_counts() {
    let reply = vec![1; 60];
    for len in [1, 100, 4096, 8192, 9216, 64 << 10, 300 << 10, 600 << 10, 1000 << 10, 1 << 20] {
        let before = HELD.load(Ordering::Relaxed);
        let pool = Arc::new(BufferPool::default());
        let mut list = ReplayList::default();
        for number in 1.. {
            list.keep(Transno(number), write(&pool, number, len), Bytes::copy_from_slice(&reply));
            if list.is_data_full() {
                break;
            }
        }
        let held = HELD.load(Ordering::Relaxed) - before;
        let counted = list.bytes();
        assert!(held <= counted + counted / 8 + POOL_BYTES, "{len}: {held} held, {counted} counted");
        drop(list);
        let left = HELD.load(Ordering::Relaxed) - before;
        assert!(left <= POOL_BYTES + 4096, "{len}: {left} left");
    }
}
