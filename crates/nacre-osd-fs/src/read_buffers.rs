//! Memory for large reads, which is reused: each 4 KiB of fresh memory cost a page fault and a page of zeros, as much time as
//! the copy from the page cache.
//!
//! Invariant: a buffer is returned when the last reference to the bytes in it is dropped, and at most [`FREE_MAX`] are
//! kept.

use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// The largest read that is served from kept memory: a request of the kernel, and the rest of its outer blocks.
const BUFFER_BYTES: usize = (1 << 20) + (8 << 10);
/// Shorter reads get memory of their own length: they would hold a whole buffer.
const LEND_MIN: usize = BUFFER_BYTES / 8 * 7;
/// Free buffers that are kept.
const FREE_MAX: usize = 8;

type Free = Arc<Mutex<Vec<Vec<u8>>>>;

/// Buffers that are not in use.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffers(Free);

/// A buffer in use. It has content of an earlier read until it is filled.
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    len: usize,
    home: Option<Free>,
}

impl ReadBuffers {
    /// Whether a read of this length gets kept memory.
    pub(crate) fn lends(len: usize) -> bool {
        (LEND_MIN..=BUFFER_BYTES).contains(&len)
    }
    pub(crate) fn take(&self, len: usize) -> ReadBuffer {
        if !Self::lends(len) {
            return ReadBuffer { bytes: vec![0; len], len, home: None };
        }
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = kept.unwrap_or_else(|| vec![0; BUFFER_BYTES]);
        ReadBuffer { bytes, len, home: Some(self.0.clone()) }
    }
}

impl ReadBuffer {
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
    /// The first `len` bytes, which were read.
    pub(crate) fn filled(mut self, len: usize) -> Bytes {
        self.len = len.min(self.len);
        match self.home {
            Some(_) => Bytes::from_owner(self),
            None => {
                let mut bytes = std::mem::take(&mut self.bytes);
                bytes.truncate(self.len);
                Bytes::from(bytes)
            }
        }
    }
}
impl AsRef<[u8]> for ReadBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
impl Drop for ReadBuffer {
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
    fn a_large_buffer_comes_back_with_the_last_reference_and_short_reads_hold_none() {
        let buffers = ReadBuffers::default();
        let free = || buffers.0.lock().map(|free| free.len()).unwrap_or(99);
        let mut first = buffers.take(1 << 20);
        first.space().fill(7);
        let bytes = first.filled(1 << 20);
        let part = bytes.slice(100..200);
        drop(bytes);
        assert_eq!(free(), 0, "a part is in use");
        assert_eq!(part, vec![7; 100]);
        drop(part);
        assert_eq!(free(), 1);
        let short = buffers.take(1 << 20).filled(10);
        assert_eq!((short.len(), free()), (10, 0), "used again");
        drop(short);
        let own = buffers.take(4096).filled(4096);
        assert_eq!((own.len(), free()), (4096, 1));
        let many: Vec<_> = (0..2 * FREE_MAX).map(|_| buffers.take(1 << 20)).collect();
        drop(many);
        assert_eq!(free(), FREE_MAX);
    }
}
