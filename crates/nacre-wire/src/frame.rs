//! The frame: a fixed header, a body, and bulk bytes that no decoder looks at.

use crate::opcode::{KeptUntil, Opcode};
use crate::status::Status;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Codec, ConnEpoch, Reader, Tag, Transno, Writer, Xid, codec_enum};

/// Bytes of an encoded header, checksum included.
pub const HEADER_BYTES: usize = 96;
/// Largest body that is accepted: a readdir page or a batch.
pub const MAX_BODY_BYTES: u32 = 2 << 20;
/// Largest bulk that is accepted.
pub const MAX_BULK_BYTES: u32 = 16 << 20;

/// Where the checksum of the header lies: at its end.
const SUM_AT: usize = HEADER_BYTES - 4;
const MAGIC: u32 = 0x6e63_7265;
const VERSION: u16 = 26;

codec_enum! {
    /// The kind of a frame.
    pub enum Kind: u8 {
        /// First frame of a connection: the body is the name of the target (or island) that is wanted.
        Hello = 1,
        /// Reply to `Hello`: `status` 0, or an errno with a sentence as the body.
        HelloReply = 2,
        Request = 3,
        Reply = 4,
        /// Server to client: state that the client must learn (a lock was granted, a lock is wanted).
        Callback = 5,
        /// Client to server: callback `xid` has been received.
        CallbackAck = 6,
        /// Client to server, without a reply: acknowledges all replies up to `last_xid`.
        Ack = 7,
    }
}

/// Bits of [`Header::flags`].
pub mod flags {
    /// The request was sent before on another connection epoch.
    pub const RESENT: u32 = 1;
    /// The request is a replay of a change whose reply had this `transno`.
    pub const REPLAY: u32 = 2;
    /// The reply comes from a reply record, the request was not executed again.
    pub const RECONSTRUCTED: u32 = 4;
    /// The server has stopped renewing the lease of this export (a callback deadline has passed).
    pub const LEASE_ENDING: u32 = 8;
    /// Hello of a client that passes memory for bulk with it; HelloReply: the server has mapped it. Any later frame of that
    /// client: its bulk is a table of parts of this memory.
    pub const SHARED_BULK: u32 = 16;
    // 32 is free.
    /// A ping: the sender has nothing more to replay.
    pub const REPLAY_DONE: u32 = 64;
    /// Reply: the versions before the change follow its body, four u64. Replay: the attached reply has them.
    pub const VERSIONS: u32 = 128;
    /// Request: the sender takes the locks of inodes that the reply may grant (see [`crate::mdt::LockTail`]).
    pub const MAY_LOCK: u32 = 1024;
    /// Request, with `MAY_LOCK`: the sender keeps bytes that it writes, under `InodeBits::WRITE_BACK`.
    pub const MAY_WRITE_BACK: u32 = 4096;
    /// Write: uses space that a [`crate::ost::Grant`] has reserved.
    pub const GRANTED: u32 = 8192;
    /// Reply: a [`crate::mdt::LockTail`] follows the body, and its length as u32; versions follow after it.
    pub const LOCKS: u32 = 2048;
}

/// The header of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Decides who handles the frame and which of the other fields have a meaning.
    pub kind: Kind,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Number of an [`crate::Opcode`]; kept as a number so that unknown ones can be refused.
    pub opcode: u16,
    /// Reply: the result of the request.
    pub status: Status,
    /// Request and its reply carry the same xid.
    pub xid: Xid,
    /// Slot of a modifying request, 0 = none.
    pub tag: Tag,
    /// Request: the sender has the replies to every xid up to this.
    pub last_xid: Xid,
    /// Reply: the change's number, 0 = changed nothing. Replay: the number it must get again.
    pub transno: Transno,
    /// Reply: every change up to this survives the loss of the server's machine.
    pub last_committed: Transno,
    /// Reply of an OST: the bytes of writes up to this are on stable storage.
    pub last_stable: Transno,
    /// The sender's connection epoch: a frame of an earlier connection is dropped.
    pub epoch: ConnEpoch,
    /// Milliseconds of the server's clock, 0 = none. Reply: when it was sent. Request: deadline after which the change
    /// must not begin ([`is_expired`]).
    pub clock_ms: u32,
    /// Job of the caller, 0 = none.
    pub job: u64,
}

/// Whether a deadline on a clock that wraps around has passed; half of all values count as later ones. 0 is no deadline.
pub fn is_expired(now_ms: u32, deadline_ms: u32) -> bool {
    deadline_ms != 0 && (now_ms.wrapping_sub(deadline_ms) as i32) > 0
}

impl Header {
    /// A header without flags: status success, every number 0.
    pub fn new(kind: Kind, opcode: u16) -> Self {
        Self {
            kind,
            flags: 0,
            opcode,
            status: Status::Success,
            xid: Xid(0),
            tag: Tag(0),
            last_xid: Xid(0),
            transno: Transno(0),
            last_committed: Transno(0),
            last_stable: Transno(0),
            epoch: ConnEpoch(0),
            clock_ms: 0,
            job: 0,
        }
    }
    /// Whether any bit of `flag`, a value of [`flags`], is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
    /// Whether the message is a change that a client keeps until its bytes are stable, see [`KeptUntil::Stable`].
    pub fn is_kept_until_stable(&self) -> bool {
        Opcode::from_number(self.opcode).is_some_and(|opcode| opcode.kept_until() == KeptUntil::Stable)
    }
    /// Whether the message is executed at most once per connection although it has no tag, see [`Opcode::runs_once`].
    pub fn runs_once(&self) -> bool {
        Opcode::from_number(self.opcode).is_some_and(Opcode::runs_once)
    }
    /// Whether the message carries a deadline, see [`Opcode::has_deadline`].
    pub fn has_deadline(&self) -> bool {
        Opcode::from_number(self.opcode).is_some_and(Opcode::has_deadline)
    }
}

/// A message: header, encoded body, bulk buffers by reference. Within one process it is passed on without encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Sent before the body; its lengths and checksums are added when it is encoded.
    pub header: Header,
    /// The message of `header.opcode`, encoded; in a reply also the tails that `header.flags` announce.
    pub body: Bytes,
    /// Payload of a read reply or a write request; the concatenation is what counts.
    pub bulk: Vec<Bytes>,
}

/// The reason why a header was refused. The connection is closed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("not a nacre frame (magic {0:#010x})")]
    BadMagic(u32),
    #[error("{}", other_version(*.0))]
    BadVersion(u16),
    #[error("header does not match its checksum")]
    BadChecksum,
    #[error("body does not match its checksum")]
    BadBodyChecksum,
    #[error("{what} of {bytes} bytes is over the limit of {limit}")]
    TooLarge { what: &'static str, bytes: u32, limit: u32 },
    #[error("its bulk is not in shared memory, or not any more")]
    BadShare,
    #[error("unknown frame kind {0}")]
    BadKind(u8),
}

/// Advice about a peer of another release.
fn other_version(theirs: u16) -> String {
    let (age, whom) =
        if theirs < VERSION { ("an older", "the other side") } else { ("a newer", "this side") };
    format!(
        "it speaks protocol version {theirs}, {age} one than {VERSION} here: upgrade {whom}, both need the same release"
    )
}

/// Lengths and body checksum that travel with a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of the body, tails included.
    pub body_bytes: u32,
    /// Bytes of all bulk buffers together.
    pub bulk_bytes: u32,
    /// crc32c of body then bulk; 0 if the transport protects the bytes.
    pub body_sum: u32,
}

impl Frame {
    /// A frame without bulk. `body` is the encoded message.
    pub fn new(header: Header, body: Vec<u8>) -> Self {
        Self { header, body: Bytes::from(body), bulk: Vec::new() }
    }
    /// The tail of a reply with [`flags::LOCKS`]; `None` without one, or if it is malformed.
    pub fn lock_tail(&self) -> Option<&[u8]> {
        self.tail(flags::LOCKS)
    }
    fn tail(&self, flag: u32) -> Option<&[u8]> {
        const VERSIONS_BYTES: usize = 32;
        if !self.header.has(flag) {
            return None;
        }
        let versions = if self.header.has(flags::VERSIONS) { VERSIONS_BYTES } else { 0 };
        let end = self.body.len().checked_sub(versions + 4)?;
        let len = u32::from_le_bytes(self.body.get(end..end + 4)?.try_into().ok()?) as usize;
        self.body.get(end.checked_sub(len)?..end)
    }
    /// Bytes of all bulk buffers together.
    pub fn bulk_len(&self) -> usize {
        self.bulk.iter().map(Bytes::len).sum()
    }
    /// Bytes that this frame counts in a queue.
    pub fn cost(&self) -> usize {
        HEADER_BYTES + self.body.len() + self.bulk_len()
    }
    /// The header as bytes, with lengths and checksums. `body_sum` is computed by the caller (transport).
    pub fn encode_header(&self, body_sum: u32, crc32c: impl Fn(&[u8]) -> u32) -> [u8; HEADER_BYTES] {
        let h = &self.header;
        let mut w = Writer::new();
        MAGIC.encode(&mut w);
        VERSION.encode(&mut w);
        h.kind.encode(&mut w);
        0u8.encode(&mut w);
        h.flags.encode(&mut w);
        h.opcode.encode(&mut w);
        h.tag.encode(&mut w);
        h.status.encode(&mut w);
        (self.body.len() as u32).encode(&mut w);
        h.xid.encode(&mut w);
        h.last_xid.encode(&mut w);
        h.transno.encode(&mut w);
        h.last_committed.encode(&mut w);
        h.last_stable.encode(&mut w);
        h.epoch.encode(&mut w);
        h.clock_ms.encode(&mut w);
        h.job.encode(&mut w);
        (self.bulk_len() as u32).encode(&mut w);
        body_sum.encode(&mut w);
        0u32.encode(&mut w); // reserved
        let sum = crc32c(&w.buf);
        sum.encode(&mut w);
        let mut out = [0u8; HEADER_BYTES];
        out[..w.buf.len()].copy_from_slice(&w.buf);
        out
    }
}

impl Header {
    /// Decodes and checks a header; lengths are within the limits when this returns.
    ///
    /// # Errors
    /// Every kind of [`FrameError`] but `BadBodyChecksum`; the caller closes the connection.
    pub fn decode(
        bytes: &[u8; HEADER_BYTES],
        crc32c: impl Fn(&[u8]) -> u32,
    ) -> Result<(Header, Lengths), FrameError> {
        let mut r = Reader::new(bytes);
        let short = |_| FrameError::BadChecksum;
        let magic = u32::decode(&mut r).map_err(short)?;
        if magic != MAGIC {
            return Err(FrameError::BadMagic(magic));
        }
        let version = u16::decode(&mut r).map_err(short)?;
        if version != VERSION {
            return Err(FrameError::BadVersion(version));
        }
        let sum =
            u32::from_le_bytes([bytes[SUM_AT], bytes[SUM_AT + 1], bytes[SUM_AT + 2], bytes[SUM_AT + 3]]);
        if crc32c(&bytes[..SUM_AT]) != sum {
            return Err(FrameError::BadChecksum);
        }
        let kind = u8::decode(&mut r).map_err(short)?;
        let kind = Kind::from_number(kind).ok_or(FrameError::BadKind(kind))?;
        let mut header = Header::new(kind, 0);
        let mut lengths = Lengths { body_bytes: 0, bulk_bytes: 0, body_sum: 0 };
        let fields = &mut || -> Result<(), nacre_types::DecodeError> {
            let _reserved = u8::decode(&mut r)?;
            header.flags = Codec::decode(&mut r)?;
            header.opcode = Codec::decode(&mut r)?;
            header.tag = Codec::decode(&mut r)?;
            header.status = Codec::decode(&mut r)?;
            lengths.body_bytes = Codec::decode(&mut r)?;
            header.xid = Codec::decode(&mut r)?;
            header.last_xid = Codec::decode(&mut r)?;
            header.transno = Codec::decode(&mut r)?;
            header.last_committed = Codec::decode(&mut r)?;
            header.last_stable = Codec::decode(&mut r)?;
            header.epoch = Codec::decode(&mut r)?;
            header.clock_ms = Codec::decode(&mut r)?;
            header.job = Codec::decode(&mut r)?;
            lengths.bulk_bytes = Codec::decode(&mut r)?;
            lengths.body_sum = Codec::decode(&mut r)?;
            Ok(())
        };
        fields().map_err(short)?;
        for (what, bytes, limit) in
            [("body", lengths.body_bytes, MAX_BODY_BYTES), ("bulk", lengths.bulk_bytes, MAX_BULK_BYTES)]
        {
            if bytes > limit {
                return Err(FrameError::TooLarge { what, bytes, limit });
            }
        }
        Ok((header, lengths))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u32 {
        bytes.iter().fold(7, |s, &b| s.wrapping_mul(31).wrapping_add(u32::from(b)))
    }

    #[test]
    fn a_header_comes_back_and_a_flipped_bit_is_refused() {
        let mut h = Header::new(Kind::Request, 17);
        h.xid = Xid(5);
        h.tag = Tag(3);
        h.status = Status::from_number(4101);
        h.last_stable = Transno(77);
        let frame = Frame::new(h.clone(), alloc::vec![1, 2, 3]);
        let bytes = frame.encode_header(9, sum);
        let (back, lengths) = Header::decode(&bytes, sum).unwrap();
        assert_eq!((back, lengths.body_bytes, lengths.body_sum), (h, 3, 9));
        for bit in 0..HEADER_BYTES * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bad, sum).is_err(), "bit {bit}");
        }
    }
}
