//! The incremental decoder: takes bytes in pieces of any size and returns frames.
//!
//! Invariants: lengths are checked against the limits before memory is reserved; memory for a frame is reserved in
//! steps, each no larger than the part that has arrived (or [`STEP_MIN`]), so that a sender cannot reserve memory by a
//! large length alone; after an error the decoder refuses all input (a byte stream cannot be resynchronized). Bulk
//! arrives as a list of buffers (`bulk_buffers.rs`), and is never copied again; or it lies in memory that the peer shares
//! (`shared_memory/`), and only the table of its parts arrives.

use crate::bulk_buffers::{BulkBuffer, BulkBuffers, LARGE};
use crate::shared_memory::PeerMemory;
use crate::sum;
use bytes::Bytes;
use crc_fast::Digest;
use nacre_wire::{
    Frame, FrameError, HEADER_BYTES, Header, Kind, Lengths, MAX_BODY_BYTES, MAX_BULK_BYTES, flags,
};
use rustix::fd::OwnedFd;
use std::io;
use std::sync::Arc;

/// The first piece of memory for a part of a frame.
const STEP_MIN: usize = 256 << 10;
/// From this size on it pays to read from the socket directly into the frame's buffer.
const DIRECT_MIN: usize = 16 << 10;

/// The limits of frames at the present stage of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest body; a header with a longer one breaks the connection.
    pub body_bytes_max: u32,
    /// Most bytes of bulk, likewise.
    pub bulk_bytes_max: u32,
}
impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes_max: MAX_BODY_BYTES, bulk_bytes_max: MAX_BULK_BYTES }
    }
}

enum State {
    Header { bytes: [u8; HEADER_BYTES], filled: usize },
    Parts(Box<Parts>),
    Broken(FrameError),
}

/// A frame whose header has been received.
struct Parts {
    header: Header,
    lengths: Lengths,
    body: Vec<u8>,
    bulk: Vec<Bytes>,
    bulk_filled: usize,
    /// The part of the bulk that is being filled.
    part: BulkBuffer,
    sum: Option<Digest>,
}

/// The receiving side of a connection.
pub struct Decoder {
    limits: Limits,
    state: State,
    memory: Memory,
    shared: Option<Arc<PeerMemory>>,
}

/// Where memory for frames comes from.
struct Memory {
    buffers: BulkBuffers,
    reserved_bytes: u64,
}

impl Decoder {
    /// Waits for the first header. Bulk is received into memory of `buffers`.
    pub fn new(limits: Limits, buffers: BulkBuffers) -> Self {
        Self { limits, state: State::start(), memory: Memory { buffers, reserved_bytes: 0 }, shared: None }
    }
    /// From now on frames may have their bulk in the memory behind a descriptor that the peer has passed.
    ///
    /// # Errors
    /// It is not memory that can be shared. Bulk travels in the socket then.
    pub fn share(&mut self, memory: &OwnedFd) -> io::Result<()> {
        self.shared = Some(PeerMemory::open(memory)?);
        Ok(())
    }
    /// Applies to frames whose header has not been received yet.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }
    /// Total of bytes allocated for frames so far.
    pub fn reserved_bytes(&self) -> u64 {
        self.memory.reserved_bytes
    }
    /// Whether the stream is between two frames, where its end is clean.
    pub fn is_between_frames(&self) -> bool {
        matches!(self.state, State::Header { filled: 0, .. })
    }

    /// Takes bytes and passes the frames that they complete to `out`.
    ///
    /// # Errors
    /// The stream is invalid: close the connection. Frames passed on before are valid.
    pub fn feed(&mut self, mut input: &[u8], out: &mut impl FnMut(Frame)) -> Result<(), FrameError> {
        loop {
            if let State::Broken(error) = self.state {
                return Err(error);
            }
            if input.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.step(&mut input, out) {
                self.state = State::Broken(error);
            }
        }
    }

    /// The memory to read into without a copy, if a large part is missing; then call [`Decoder::filled`].
    pub fn direct(&mut self) -> Option<&mut [u8]> {
        match &mut self.state {
            State::Parts(parts) if parts.body_is_full() && parts.part.missing() >= DIRECT_MIN => {
                Some(parts.part.rest())
            }
            _ => None,
        }
    }
    /// `n` bytes have been read into the memory of [`Decoder::direct`].
    ///
    /// # Errors
    /// As [`Decoder::feed`].
    pub fn filled(&mut self, n: usize, out: &mut impl FnMut(Frame)) -> Result<(), FrameError> {
        let State::Parts(parts) = &mut self.state else { return Ok(()) };
        parts.part.advance(n);
        parts.close_part(&mut self.memory);
        self.give_if_complete(out).inspect_err(|error| self.state = State::Broken(*error))
    }

    fn step(&mut self, input: &mut &[u8], out: &mut impl FnMut(Frame)) -> Result<(), FrameError> {
        match &mut self.state {
            State::Header { bytes, filled } => {
                *filled += take(input, &mut bytes[*filled..]);
                if *filled < HEADER_BYTES {
                    return Ok(());
                }
                let (header, lengths) = Header::decode(bytes, sum::crc32c)?;
                self.check(&lengths)?;
                let parts = Parts::new(header, lengths, &mut self.memory);
                self.state = State::Parts(Box::new(parts));
            }
            State::Parts(parts) => parts.feed(input, &mut self.memory),
            State::Broken(error) => return Err(*error),
        }
        self.give_if_complete(out)
    }

    fn check(&self, lengths: &Lengths) -> Result<(), FrameError> {
        for (what, bytes, limit) in [
            ("body", lengths.body_bytes, self.limits.body_bytes_max),
            ("bulk", lengths.bulk_bytes, self.limits.bulk_bytes_max),
        ] {
            if bytes > limit {
                return Err(FrameError::TooLarge { what, bytes, limit });
            }
        }
        Ok(())
    }

    fn give_if_complete(&mut self, out: &mut impl FnMut(Frame)) -> Result<(), FrameError> {
        if !matches!(&self.state, State::Parts(parts) if parts.is_complete()) {
            return Ok(());
        }
        let State::Parts(parts) = std::mem::replace(&mut self.state, State::start()) else { return Ok(()) };
        if let Some(digest) = &parts.sum
            && sum::finish(digest) != parts.lengths.body_sum
        {
            return Err(FrameError::BadBodyChecksum);
        }
        let Parts { mut header, body, mut bulk, .. } = *parts;
        let is_greeting = matches!(header.kind, Kind::Hello | Kind::HelloReply);
        if header.has(flags::SHARED_BULK) && !is_greeting {
            let found = match (&self.shared, bulk.as_slice()) {
                (Some(shared), [table]) => shared.parts(table, self.limits.bulk_bytes_max),
                _ => None,
            };
            bulk = found.ok_or(FrameError::BadShare)?;
            header.flags &= !flags::SHARED_BULK;
        }
        out(Frame { header, body: Bytes::from(body), bulk });
        Ok(())
    }
}

impl State {
    fn start() -> Self {
        State::Header { bytes: [0; HEADER_BYTES], filled: 0 }
    }
}

impl Parts {
    fn new(header: Header, lengths: Lengths, memory: &mut Memory) -> Self {
        let first = (lengths.body_bytes as usize).min(STEP_MIN);
        memory.reserved_bytes += first as u64;
        let mut parts = Self {
            header,
            lengths,
            body: Vec::with_capacity(first),
            bulk: Vec::new(),
            bulk_filled: 0,
            part: BulkBuffer::empty(),
            sum: (lengths.body_sum != 0).then(sum::running),
        };
        if parts.body_is_full() {
            parts.open_part(memory);
        }
        parts
    }
    fn body_is_full(&self) -> bool {
        self.body.len() == self.lengths.body_bytes as usize
    }
    fn is_complete(&self) -> bool {
        self.body_is_full() && self.bulk_filled == self.lengths.bulk_bytes as usize
    }

    fn feed(&mut self, input: &mut &[u8], memory: &mut Memory) {
        if !self.body_is_full() {
            let wanted = self.lengths.body_bytes as usize - self.body.len();
            let piece = split(input, wanted);
            let before = self.body.capacity();
            self.body.extend_from_slice(piece);
            memory.reserved_bytes += (self.body.capacity() - before) as u64;
            if let Some(sum) = &mut self.sum {
                sum.update(piece);
            }
            if self.body_is_full() {
                self.open_part(memory);
            }
        } else {
            let n = take(input, self.part.rest());
            self.part.advance(n);
            self.close_part(memory);
        }
    }

    /// The next part of the bulk: as long as the one received so far, or longer in memory that is there already.
    fn open_part(&mut self, memory: &mut Memory) {
        let left = self.lengths.bulk_bytes as usize - self.bulk_filled;
        let step = left.min(self.bulk_filled.clamp(STEP_MIN, LARGE));
        self.part = match memory.buffers.reuse_for(left) {
            Some(buffer) => buffer,
            None if step == 0 => BulkBuffer::empty(),
            None => {
                memory.reserved_bytes += step as u64;
                memory.buffers.make(step)
            }
        };
    }
    fn close_part(&mut self, memory: &mut Memory) {
        if self.part.missing() > 0 || self.part.is_empty() {
            return;
        }
        let part = std::mem::replace(&mut self.part, BulkBuffer::empty()).finish();
        if let Some(sum) = &mut self.sum {
            sum.update(&part);
        }
        self.bulk_filled += part.len();
        self.bulk.push(part);
        self.open_part(memory);
    }
}

/// Splits at most `len` bytes off the front.
fn split<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (head, tail) = input.split_at(len.min(input.len()));
    *input = tail;
    head
}

/// Moves bytes from the front of `input` to `room`; returns how many.
fn take(input: &mut &[u8], room: &mut [u8]) -> usize {
    let piece = split(input, room.len());
    room[..piece.len()].copy_from_slice(piece);
    piece.len()
}
