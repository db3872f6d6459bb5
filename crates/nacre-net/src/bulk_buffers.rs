//! Memory for received bulk. Parts of some length begin at a page, so that a store can pass them to the device as they are.
//! Large ones are reused: each 4 KiB of fresh memory cost a page fault and a page of zeros.
//!
//! Invariant: a large buffer is returned when the last reference to the bytes in it is dropped, and at most [`FREE_MAX`] are
//! kept.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// What a device may ask of addresses and lengths.
const ALIGN: usize = 4096;
/// Bytes of a buffer that is reused, and the longest part that bulk is received in.
pub(crate) const LARGE: usize = 1 << 20;
/// Shorter parts begin anywhere: a page more for each would be too much.
const ALIGNED_MIN: usize = 16 * ALIGN;
/// Shorter parts get memory of their own length: whoever keeps them would keep a large buffer.
const REUSE_MIN: usize = LARGE / 8 * 7;
/// Large buffers that are kept while nobody uses them.
const FREE_MAX: usize = 32;

type Free = Arc<Mutex<Vec<Vec<u8>>>>;

/// Large buffers that are not in use. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct BulkBuffers(Free);

impl BulkBuffers {
    /// A buffer that is there already, for the next of `left` bytes. `None` if there is none, or if they would leave most of
    /// it unused.
    pub(crate) fn reuse_for(&self, left: usize) -> Option<BulkBuffer> {
        if left < REUSE_MIN {
            return None;
        }
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let start = bytes.as_ptr().align_offset(ALIGN);
        Some(BulkBuffer { start, bytes, len: left.min(LARGE), filled: 0, home: Some(self.0.clone()) })
    }
    /// A new buffer for `len` bytes, at most [`LARGE`].
    pub(crate) fn make(&self, len: usize) -> BulkBuffer {
        let is_aligned = len >= ALIGNED_MIN;
        let bytes = vec![0; len + if is_aligned { ALIGN } else { 0 }];
        let start = if is_aligned { bytes.as_ptr().align_offset(ALIGN) } else { 0 };
        let home = (len == LARGE).then(|| self.0.clone());
        BulkBuffer { start, bytes, len, filled: 0, home }
    }
}

/// A part of bulk that is being received.
pub(crate) struct BulkBuffer {
    bytes: Vec<u8>,
    /// Where the part begins, and how long it will be.
    start: usize,
    len: usize,
    filled: usize,
    home: Option<Free>,
}

impl BulkBuffer {
    /// A part that needs no memory.
    pub(crate) fn empty() -> Self {
        Self { bytes: Vec::new(), start: 0, len: 0, filled: 0, home: None }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The bytes that are missing.
    pub(crate) fn rest(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start + self.filled..self.start + self.len]
    }
    pub(crate) fn missing(&self) -> usize {
        self.len - self.filled
    }
    /// `n` bytes were put at the start of [`Self::rest`].
    pub(crate) fn advance(&mut self, n: usize) {
        self.filled += n.min(self.missing());
    }
    /// The part as it was received.
    pub(crate) fn finish(self) -> Bytes {
        Bytes::from_owner(self)
    }
}
impl AsRef<[u8]> for BulkBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.filled]
    }
}
impl Drop for BulkBuffer {
    fn drop(&mut self) {
        let Some(home) = &self.home else { return };
        let mut free = home.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < FREE_MAX {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_parts_begin_at_a_page_and_large_buffers_come_back_with_the_last_reference() {
        let buffers = BulkBuffers::default();
        let free = || buffers.0.lock().map(|free| free.len()).unwrap_or(99);
        for len in [1, 5000, ALIGNED_MIN, LARGE] {
            let mut part = buffers.make(len);
            assert_eq!(part.missing(), len);
            part.rest().fill(7);
            part.advance(len);
            let bytes = part.finish();
            assert!(len < ALIGNED_MIN || bytes.as_ptr().align_offset(ALIGN) == 0, "{len}");
            assert_eq!(bytes, vec![7; len]);
            let last = bytes.slice(len - 1..);
            drop(bytes);
            assert_eq!(free(), 0, "a byte is in use");
            drop(last);
            assert_eq!(free(), usize::from(len == LARGE), "only large ones are kept");
        }
        assert!(buffers.reuse_for(REUSE_MIN - 1).is_none());
        let mut again = buffers.reuse_for(REUSE_MIN).unwrap();
        assert_eq!((again.missing(), free()), (REUSE_MIN, 0));
        again.rest().fill(9);
        again.advance(REUSE_MIN);
        assert_eq!(again.finish(), vec![9; REUSE_MIN]);
        assert!(buffers.reuse_for(LARGE).is_some_and(|again| again.missing() == LARGE));
        let many: Vec<_> = (0..2 * FREE_MAX).map(|_| buffers.make(LARGE)).collect();
        drop(many);
        assert_eq!(free(), FREE_MAX);
    }
}
