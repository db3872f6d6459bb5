//! The writer: sends many frames with one `sendmsg`, and continues where the socket was full. Long bulk
//! is lent to a peer on this machine instead, in shared memory (`shared_memory/`).

use crate::shared_memory::{Lender, SharedMemory};
use crate::sum;
use bytes::Bytes;
use nacre_wire::{Frame, HEADER_BYTES, flags};
use rustix::fd::AsFd;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// Buffers per system call: a frame without bulk has two.
const PIECES_MAX: usize = 128;

/// Result of [`Writer::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// All frames have been sent.
    All,
    /// The socket is full: call again when it is writable.
    Blocked,
}

/// The sending side of a connection: frames that wait for room in the socket.
#[derive(Debug)]
pub struct Writer {
    pieces: VecDeque<Bytes>,
    /// Bytes of the first buffer that have been sent.
    offset: usize,
    sent_bytes: u64,
    /// Whether bodies get a checksum (not over a unix socket, where the kernel copies memory to memory).
    sums: bool,
    lender: Option<Lender>,
}

impl Writer {
    /// `sums`: whether bodies get a checksum.
    pub fn new(sums: bool) -> Self {
        Self { pieces: VecDeque::new(), offset: 0, sent_bytes: 0, sums, lender: None }
    }
    /// From now on bulk is lent where that is possible: the peer has mapped the memory.
    pub fn lend_with(&mut self, lender: Option<Lender>) {
        self.lender = lender;
    }
    /// Queues a frame behind those before. The caller bounds the queue (outbox). Returns whether its bulk is lent to the peer.
    pub fn push(&mut self, mut frame: Frame) -> bool {
        let table = self.lender.as_ref().and_then(|lender| lender.lend(&frame.bulk));
        let is_lent = table.is_some();
        if let Some(table) = table {
            frame.header.flags |= flags::SHARED_BULK;
            frame.bulk = vec![table];
        }
        let body_sum = if self.sums { sum::of_parts(&frame.body, &frame.bulk) } else { 0 };
        let header = frame.encode_header(body_sum, sum::crc32c);
        // A small body travels with its header: one allocation and one piece instead of two.
        let mut head = Vec::with_capacity(HEADER_BYTES + frame.body.len().min(SMALL_BODY));
        head.extend_from_slice(&header);
        if frame.body.len() <= SMALL_BODY {
            head.extend_from_slice(&frame.body);
            self.pieces.push_back(Bytes::from(head));
        } else {
            self.pieces.push_back(Bytes::from(head));
            self.pieces.push_back(frame.body);
        }
        self.pieces.extend(frame.bulk.into_iter().filter(|b| !b.is_empty()));
        is_lent
    }
    /// Bytes that the socket has taken so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }
    /// Whether the socket has taken everything.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Sends until nothing waits or the socket is full. `calls` counts the system calls.
    ///
    /// # Errors
    /// Those of `sendmsg`: the connection is broken. A peer that is gone raises no signal.
    pub fn send(&mut self, fd: impl AsFd, calls: &mut u64) -> io::Result<Sent> {
        while !self.pieces.is_empty() {
            *calls += 1;
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let mut count = 0;
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                let skip = if count == 0 { self.offset } else { 0 };
                *slice = IoSlice::new(&piece[skip..]);
                count += 1;
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&fd, &slices[..count], &mut SendAncillaryBuffer::default(), flags) {
                Ok(sent) => {
                    self.sent_bytes += sent as u64;
                    self.advance(sent);
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(Sent::Blocked),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Sent::All)
    }

    /// Sends the frames that were queued, at least one, and passes the descriptor of `memory` along with them. Returns whether
    /// the socket has taken all of them.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_with(&mut self, fd: impl AsFd, memory: &SharedMemory, calls: &mut u64) -> io::Result<Sent> {
        let Some(first) = self.pieces.front() else { return Ok(Sent::All) };
        *calls += 1;
        let descriptors = [memory.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        attached.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&fd, &[IoSlice::new(&first[self.offset..])], &mut attached, flags) {
            Ok(sent) => {
                self.sent_bytes += sent as u64;
                self.advance(sent);
            }
            Err(rustix::io::Errno::AGAIN) => return Ok(Sent::Blocked),
            Err(error) => return Err(error.into()),
        }
        self.send(fd, calls)
    }

    fn advance(&mut self, mut sent: usize) {
        while let Some(first) = self.pieces.front() {
            let left = first.len() - self.offset;
            if sent < left {
                self.offset += sent;
                return;
            }
            sent -= left;
            self.offset = 0;
            self.pieces.pop_front();
        }
    }
}

const SMALL_BODY: usize = 1024;
