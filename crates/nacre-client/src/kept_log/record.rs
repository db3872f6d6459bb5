//! The format of the log of kept writes (docs/disk-format.md).
//!
//! A record is {crc32c of the rest, length of the rest, number, kind, fields}; a write's bytes follow its fields. A segment
//! begins with a record that says whose it is.

use alloc::vec::Vec;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use nacre_types::{Boot, Codec, Component, Fid, KeptPlace, Owner, Reader, Timestamp, Writer, codec_struct};

/// Segments of a log.
pub const SEGMENTS: u64 = 4;
/// Bytes of each.
pub const SEGMENT_BYTES: u64 = 8 << 20;

/// Checksum and length.
pub(super) const HEAD_BYTES: u64 = 8;
const MAGIC: u64 = u64::from_le_bytes(*b"NACREKPT");
/// Version 1 had no [`Record::Placed`].
const VERSION: u32 = 2;

codec_struct! {
    /// The first record of a segment.
    pub struct SegmentRecord {
        /// [`MAGIC`].
        pub magic: u64,
        /// [`VERSION`].
        pub version: u32,
        /// Identity of the log.
        pub log: u64,
        /// The start of the machine during which the log was written.
        pub boot: Boot,
    }
}
impl SegmentRecord {
    pub(super) fn new(log: u64, boot: Boot) -> Self {
        Self { magic: MAGIC, version: VERSION, log, boot }
    }
    pub(super) fn is_ours(&self) -> bool {
        self.magic == MAGIC && (1..=VERSION).contains(&self.version)
    }
}
codec_struct! {
    /// Where the bytes of a file lie.
    pub struct FileRecord { pub fid: Fid, pub owner: Owner, pub component: Component }
}
codec_struct! {
    /// A write; its bytes follow.
    pub struct KeptRecord { pub fid: Fid, pub offset: u64, pub mtime: Timestamp }
}
codec_struct! {
    /// A write whose bytes lie in memory that survives the process.
    pub struct PlacedRecord {
        /// The file.
        pub fid: Fid,
        /// Where in the file.
        pub offset: u64,
        /// When it was written.
        pub mtime: Timestamp,
        /// Its bytes.
        pub len: u64,
        /// Where they are.
        pub place: KeptPlace,
    }
}
codec_struct! {
    /// The OSTs have the writes of a file up to this number.
    pub struct VoidRecord { pub fid: Fid, pub serial: u64 }
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    Segment(SegmentRecord),
    File(FileRecord),
    Kept(KeptRecord),
    Void(VoidRecord),
    Placed(PlacedRecord),
}

impl Record {
    /// Everything but the bytes of a write.
    pub(super) fn encode(&self, serial: u64, data: Option<&Bytes>) -> Bytes {
        let mut w = Writer::new();
        w.raw(&[0; HEAD_BYTES as usize]);
        serial.encode(&mut w);
        match self {
            Self::Segment(record) => (1u8, record.to_vec()),
            Self::File(record) => (2, record.to_vec()),
            Self::Kept(record) => (3, record.to_vec()),
            Self::Void(record) => (4, record.to_vec()),
            Self::Placed(record) => (5, record.to_vec()),
        }
        .encode(&mut w);
        let len = w.buf.len() - HEAD_BYTES as usize + data.map_or(0, Bytes::len);
        w.buf[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        let sum = sum_of(&[&w.buf[4..], data.map_or(&[][..], |data| &data[..])]);
        w.buf[..4].copy_from_slice(&sum.to_le_bytes());
        Bytes::from(w.buf)
    }
    /// The record at the beginning of `bytes`, its number, the bytes of its write, and where the next one begins. `None`: there
    /// is none.
    pub(super) fn decode(bytes: &Bytes) -> Option<(Self, u64, Bytes, usize)> {
        let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (sum, len) = (number(0)?, usize::try_from(number(4)?).ok()?);
        let end = (HEAD_BYTES as usize).checked_add(len).filter(|end| *end <= bytes.len())?;
        if sum_of(&[&bytes[4..end]]) != sum {
            return None;
        }
        let mut r = Reader::new(&bytes[HEAD_BYTES as usize..end]);
        let serial = u64::decode(&mut r).ok()?;
        let kind = u8::decode(&mut r).ok()?;
        let fields = r.bytes().ok()?;
        let data = bytes.slice(end - r.left()..end);
        let record = match kind {
            1 => Self::Segment(SegmentRecord::from_slice(fields).ok()?),
            2 => Self::File(FileRecord::from_slice(fields).ok()?),
            3 => Self::Kept(KeptRecord::from_slice(fields).ok()?),
            4 => Self::Void(VoidRecord::from_slice(fields).ok()?),
            5 => Self::Placed(PlacedRecord::from_slice(fields).ok()?),
            _ => return None,
        };
        Some((record, serial, data, end))
    }
}

fn sum_of(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// The records of a segment, in order; empty if it was written by another start of the machine.
pub(super) fn records(mut bytes: Bytes, boot: Boot) -> Vec<(Record, u64, Bytes)> {
    let mut records: Vec<(Record, u64, Bytes)> = Vec::new();
    while let Some((record, serial, data, next)) = Record::decode(&bytes) {
        let is_next = match records.last() {
            None => matches!(&record, Record::Segment(first) if first.is_ours() && first.boot == boot),
            // Behind the latest record there may be records of the segment before.
            Some((_, last, _)) => serial == last + 1,
        };
        if !is_next {
            break;
        }
        records.push((record, serial, data));
        bytes = bytes.slice(next..);
    }
    records
}
