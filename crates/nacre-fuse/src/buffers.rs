//! Memory for the kernel's requests: buffers for a read(2) of /dev/fuse, and the parts of them that requests keep.
//!
//! A written payload may be kept for seconds, until it is stable on its object target. Invariants: the memory that a
//! request keeps is at most an eighth larger than the request, so that a bound on kept payloads bounds the memory;
//! buffers are never zeroed; at most [`FREE_MAX`] of them are kept for the next request.

use crate::abi::{Field as _, InHeader};
use crate::device::MAX_WRITE_BYTES;
use bytes::Bytes;
use nacre_rt::{SharedBuffer, SharedMemory};
use rustix::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Header and arguments of a WRITE. Its payload begins at a page, so that a store can pass it to the device as it is.
const WRITE_FRONT_BYTES: usize = InHeader::BYTES + 40;
/// Room for header, arguments and names in front of the largest payload.
const BUFFER_BYTES: usize = MAX_WRITE_BYTES as usize + (64 << 10);
/// A request of this length stays in the buffer that it was read into. A shorter one is copied into memory of its own
/// length: a copy costs less than a tenth of what the rest of a write costs.
const LEND_MIN_BYTES: usize = BUFFER_BYTES / 8 * 7;
/// Free buffers that are kept.
const FREE_MAX: usize = 8;

/// Read buffers that are not in use.
#[derive(Debug, Default)]
pub struct BufferPool {
    free: Mutex<Vec<Vec<u8>>>,
    /// Large requests are there, as long as it has room.
    shared: Option<SharedMemory>,
}

impl BufferPool {
    /// A pool of buffers that servers on this machine can look into.
    pub fn new(shared: Option<SharedMemory>) -> Self {
        Self { free: Mutex::default(), shared }
    }
    /// Reads one request from the kernel.
    ///
    /// # Errors
    /// Those of read(2).
    pub(crate) fn read(self: &Arc<Self>, fd: impl AsFd) -> rustix::io::Result<Bytes> {
        if let Some(mut buffer) = self.take_shared(WRITE_FRONT_BYTES, MAX_WRITE_BYTES as usize) {
            let len = rustix::io::read(fd, buffer.space())?;
            return Ok(match buffer.space().get(..len) {
                Some(request) if len < LEND_MIN_BYTES => Bytes::copy_from_slice(request),
                _ => buffer.filled(len),
            });
        }
        let mut buffer = self.take();
        match rustix::io::read(fd, rustix::buffer::spare_capacity(&mut buffer)) {
            Ok(_) => Ok(self.keep(buffer)),
            Err(error) => {
                self.give(buffer);
                Err(error)
            }
        }
    }
    fn take_shared(&self, front: usize, payload: usize) -> Option<SharedBuffer> {
        self.shared.as_ref()?.take(front, payload)
    }
    /// An empty buffer whose spare capacity holds the largest request.
    pub fn take(&self) -> Vec<u8> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        free.unwrap_or_else(|| Vec::with_capacity(BUFFER_BYTES))
    }
    /// The content of a buffer, in memory that is released with the last reference: the buffer itself if the request
    /// fills it, a copy otherwise.
    pub fn keep(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        if buffer.len() >= LEND_MIN_BYTES {
            return Bytes::from_owner(Loan { pool: self.clone(), buffer });
        }
        let copy = Bytes::copy_from_slice(&buffer);
        self.give(buffer);
        copy
    }
    /// The same for a request in several pieces, of which the last one is the payload.
    pub(crate) fn keep_parts(self: &Arc<Self>, parts: &[&[u8]]) -> Bytes {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if !(LEND_MIN_BYTES..=BUFFER_BYTES).contains(&len) {
            return Bytes::from(parts.concat());
        }
        let payload = parts.last().map_or(0, |payload| payload.len());
        if let Some(mut buffer) = self.take_shared(len - payload, payload) {
            let mut space = buffer.space();
            for part in parts {
                let (front, rest) = space.split_at_mut(part.len());
                front.copy_from_slice(part);
                space = rest;
            }
            return buffer.filled(len);
        }
        let mut buffer = self.take();
        parts.iter().for_each(|part| buffer.extend_from_slice(part));
        self.keep(buffer)
    }
    /// Returns a buffer to the pool.
    pub fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < FREE_MAX {
            free.push(buffer);
        }
    }
}

/// A buffer that belongs to the request in it.
struct Loan {
    pool: Arc<BufferPool>,
    buffer: Vec<u8>,
}
impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}
impl Drop for Loan {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_same_whether_it_was_copied_or_stays_in_its_buffer() {
        let pool = Arc::new(BufferPool::default());
        let shared = Arc::new(BufferPool::new(Some(SharedMemory::create().unwrap())));
        for len in [0, 1, 100, 8193, LEND_MIN_BYTES - 1, LEND_MIN_BYTES, BUFFER_BYTES] {
            let content: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut buffer = pool.take();
            assert!(buffer.is_empty() && buffer.capacity() >= BUFFER_BYTES, "{len}");
            buffer.extend_from_slice(&content);
            let kept = pool.keep(buffer);
            assert_eq!(kept, content);
            for (pool, at) in [(&pool, len / 3), (&shared, len / 3), (&shared, len.min(WRITE_FRONT_BYTES))] {
                let (front, back) = content.split_at(at);
                assert_eq!(pool.keep_parts(&[front, back]), content);
            }
        }
    }

    #[test]
    fn the_payload_of_a_write_begins_at_a_page_of_shared_memory() {
        let pool = Arc::new(BufferPool::new(Some(SharedMemory::create().unwrap())));
        let payload = vec![7; MAX_WRITE_BYTES as usize];
        let mut request = vec![1; WRITE_FRONT_BYTES];
        let kept = pool.keep_parts(&[&request[..40], &request[40..], &payload]);
        request.extend_from_slice(&payload);
        let (end, start) = std::io::pipe().unwrap();
        let mut read = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| std::io::Write::write_all(&mut &start, &request).unwrap());
            while read.len() < request.len() {
                read.extend_from_slice(&pool.read(&end).unwrap());
            }
        });
        assert!(kept == request && read == request);
        assert_eq!(kept[WRITE_FRONT_BYTES..].as_ptr().align_offset(4096), 0);
    }

    #[test]
    fn free_buffers_are_used_again_and_their_number_is_bounded() {
        let pool = Arc::new(BufferPool::default());
        let buffers: Vec<_> = (0..FREE_MAX + 3).map(|_| pool.take()).collect();
        let first = buffers.first().map(|b| b.as_ptr());
        buffers.into_iter().for_each(|b| pool.give(b));
        assert_eq!(pool.free.lock().unwrap().len(), FREE_MAX);
        let again: Vec<_> = (0..FREE_MAX).map(|_| pool.take()).collect();
        assert_eq!(again.last().map(|b| b.as_ptr()), first);
    }
}
