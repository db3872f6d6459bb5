//! The memory of a ring's slots: a header and a payload buffer each, written by the kernel and by this process in
//! turns.
//!
//! Invariants: a slot belongs to the kernel from the moment its command is put into the ring until the command's
//! completion has been seen, and this process does not access its memory meanwhile (asserted); its address never
//! changes. Memory that the kernel may still write to is never freed: if a ring ends with commands under way, their memory
//! is leaked on purpose. Untouched memory costs address space only.

use crate::device::MAX_WRITE_BYTES;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the kernel's struct iovec is written with 64-bit fields");

/// `fuse_uring_req_header`: 128 bytes of request or reply header, 128 of the operation's structure, 32 of the ring's.
pub(super) const HEADER_BYTES: usize = 288;
pub(super) const OPERATION_AT: usize = 128;
pub(super) const ENTRY_AT: usize = 256;
/// Headers do not share a line of the cache.
const HEADER_STRIDE: usize = 320;
pub(super) const PAYLOAD_BYTES: usize = MAX_WRITE_BYTES as usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Ours,
    Kernel,
}

/// The kernel's `struct iovec`.
#[repr(C)]
struct Part {
    base: u64,
    bytes: u64,
}

struct Slot {
    owner: Owner,
    header: *mut u8,
    payload: *mut u8,
    /// Read by the kernel when the slot is registered.
    parts: Box<[Part; 2]>,
}

/// A mapping.
struct Area {
    base: *mut c_void,
    bytes: usize,
}

/// All slots of one ring.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    areas: Vec<Area>,
}

// SAFETY: the pointers are into private mappings that only this value hands out; nothing of it is bound to a thread.
#[allow(unsafe_code, reason = "docs/unsafe.md")]
unsafe impl Send for Slots {}

impl Slots {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Creates `count` more slots, which belong to this process at first.
    pub(super) fn grow(&mut self, count: usize) -> rustix::io::Result<()> {
        let headers = map((HEADER_STRIDE * count).next_multiple_of(4096))?;
        self.areas.push(headers);
        let (headers, payloads) =
            (self.areas.last().map_or(std::ptr::null_mut(), |a| a.base), map(PAYLOAD_BYTES * count)?);
        let payload_base = payloads.base;
        self.areas.push(payloads);
        for n in 0..count {
            let header = headers.cast::<u8>().wrapping_add(n * HEADER_STRIDE);
            let payload = payload_base.cast::<u8>().wrapping_add(n * PAYLOAD_BYTES);
            let parts = Box::new([
                Part { base: header as u64, bytes: HEADER_BYTES as u64 },
                Part { base: payload as u64, bytes: PAYLOAD_BYTES as u64 },
            ]);
            self.slots.push(Slot { owner: Owner::Ours, header, payload, parts });
        }
        Ok(())
    }

    /// Addresses of header and payload of a slot, for the kernel.
    pub(super) fn parts_address(&self, slot: u32) -> u64 {
        self.slots.get(slot as usize).map_or(0, |s| std::ptr::from_ref(&*s.parts) as u64)
    }
    pub(super) fn is_ours(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|s| s.owner == Owner::Ours)
    }
    /// From here on the kernel writes to it.
    pub(super) fn give(&mut self, slot: u32) {
        let slot = self.slot(slot);
        slot.owner = Owner::Kernel;
    }
    /// Its command has been completed.
    pub(super) fn take_back(&mut self, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.owner = Owner::Ours;
        }
    }

    /// Header and payload.
    pub(super) fn memory(&mut self, slot: u32) -> (&mut [u8; HEADER_BYTES], &mut [u8]) {
        let slot = self.slot(slot);
        // SAFETY: mapped with HEADER_STRIDE bytes until `self` is dropped; ours, so the kernel does not write; the
        // borrow of `self` excludes every other reference.
        #[allow(unsafe_code, reason = "docs/unsafe.md")]
        let header = unsafe { &mut *slot.header.cast::<[u8; HEADER_BYTES]>() };
        // SAFETY: the same with PAYLOAD_BYTES bytes; the two do not overlap.
        #[allow(unsafe_code, reason = "docs/unsafe.md")]
        let payload = unsafe { std::slice::from_raw_parts_mut(slot.payload, PAYLOAD_BYTES) };
        (header, payload)
    }

    /// Returns the memory behind a payload buffer to the system; it reads as zeros then.
    pub(super) fn release_payload(&mut self, slot: u32) {
        let payload = self.slot(slot).payload.cast::<c_void>();
        // SAFETY: private anonymous memory of ours, to which no reference exists while `self` is borrowed.
        #[allow(unsafe_code, reason = "docs/unsafe.md")]
        let released = unsafe { madvise(payload, PAYLOAD_BYTES, Advice::LinuxDontNeed) };
        if let Err(error) = released {
            tracing::debug!(%error, "cannot give the memory of a payload buffer back");
        }
    }

    /// A slot that belongs to this process.
    fn slot(&mut self, slot: u32) -> &mut Slot {
        let slot = self.slots.get_mut(slot as usize).expect("slots are never taken away");
        assert!(slot.owner == Owner::Ours, "the kernel may be writing to this slot");
        slot
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if self.slots.iter().any(|s| s.owner == Owner::Kernel) {
            // The kernel cancels the commands of a closed ring later, on its own. The memory that it reads and writes
            // must stay.
            std::mem::forget(std::mem::take(&mut self.slots));
            return;
        }
        for area in self.areas.drain(..) {
            // SAFETY: a mapping made by `map`; no command refers to it any more, and no reference outlives `self`.
            #[allow(unsafe_code, reason = "docs/unsafe.md")]
            let unmapped = unsafe { munmap(area.base, area.bytes) };
            if let Err(error) = unmapped {
                tracing::warn!(%error, "cannot unmap the buffers of a ring");
            }
        }
    }
}

/// Anonymous memory; small pages, because most requests touch the first bytes of a payload buffer only.
fn map(bytes: usize) -> rustix::io::Result<Area> {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
    #[allow(unsafe_code, reason = "docs/unsafe.md")]
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
    // SAFETY: our mapping, not used yet; the advice changes no contents.
    #[allow(unsafe_code, reason = "docs/unsafe.md")]
    let advised = unsafe { madvise(base, bytes, Advice::LinuxNoHugepage) };
    if let Err(error) = advised {
        tracing::debug!(%error, "large pages stay on for the buffers of a ring");
    }
    Ok(Area { base, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_memory_of_their_own_that_outlives_growth() {
        let mut slots = Slots::default();
        slots.grow(2).unwrap();
        for slot in 0..2 {
            let (header, payload) = slots.memory(slot);
            header.fill(slot as u8 + 1);
            payload.fill(slot as u8 + 1);
        }
        slots.grow(3).unwrap();
        assert_eq!(slots.len(), 5);
        for slot in 0..2 {
            let (header, payload) = slots.memory(slot);
            assert!(header.iter().chain(payload.iter()).all(|b| *b == slot as u8 + 1));
        }
        slots.release_payload(1);
        assert!(slots.memory(1).1.iter().all(|b| *b == 0));
        assert!(slots.memory(0).1.iter().all(|b| *b == 1));
        slots.give(4);
        assert!(!slots.is_ours(4));
        let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| slots.memory(4).0[0]));
        assert!(looked.is_err(), "the kernel's memory was looked at");
        slots.take_back(4);
        assert!(slots.is_ours(4) && !slots.is_ours(5));
    }
}
