//! File identifiers: assigned by the client from a sequence that an MDT granted.
//!
//! Format decision, permanent: a client's sequence is below 2^40 and holds 2^24 objects, so that `st_ino` = FUSE nodeid
//! = seq * 2^24 + oid: exact, reversible, stable. The root directory is inode 1. A sequence is the index of the MDT that
//! granted it (10 bits) and that MDT's own count (30 bits), so no two MDTs grant the same FID, and a FID alone names the MDT
//! that has the inode.

use crate::{MdtIndex, codec_newtype};
use core::fmt;

/// Number of object ids in one sequence.
pub const OIDS_PER_SEQ: u32 = 1 << 24;
const SEQ_LIMIT: u64 = 1 << 40;
/// Bits of a sequence that count; the bits above them are the index of the MDT.
const COUNT_BITS: u32 = 30;
/// The first count that clients get.
const FIRST_COUNT: u64 = 0x100;
const _: () = assert!((MdtIndex::MAX.0 as u64 + 1) << COUNT_BITS == SEQ_LIMIT);

/// A FID sequence: `MDT index << 30 | count`. 0 belongs to the file system itself (root); of each MDT, the counts below 0x100
/// are reserved, clients get higher ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);
impl Seq {
    /// The first sequence that an MDT grants to a client.
    pub const fn first_of(mdt: MdtIndex) -> Self {
        assert!(mdt.0 <= MdtIndex::MAX.0);
        Self((mdt.0 as u64) << COUNT_BITS | FIRST_COUNT)
    }
    /// The MDT that grants this sequence; beyond [`MdtIndex::MAX`] for a number that is no sequence.
    pub const fn mdt(self) -> MdtIndex {
        let index = self.0 >> COUNT_BITS;
        MdtIndex(if index < u32::MAX as u64 { index as u32 } else { u32::MAX })
    }
    /// Whether the MDT may grant this sequence to a client.
    pub const fn is_grantable_by(self, mdt: MdtIndex) -> bool {
        self.mdt().0 == mdt.0 && self.0 & ((1 << COUNT_BITS) - 1) >= FIRST_COUNT
    }
}

/// An object id inside its sequence, below [`OIDS_PER_SEQ`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Oid(pub u32);

codec_newtype!(Seq(u64), Oid(u32));

/// The identity of a file, directory or other inode. 12 bytes on wire and disk. The default names nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fid {
    /// The sequence, which carries the index of the MDT that granted it.
    pub seq: Seq,
    /// The number within the sequence.
    pub oid: Oid,
}

impl Ord for Fid {
    /// By sequence, then by number: one comparison, because tables make many of them for each request.
    #[inline]
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        let number = |fid: &Self| u128::from(fid.seq.0) << 32 | u128::from(fid.oid.0);
        number(self).cmp(&number(other))
    }
}
impl PartialOrd for Fid {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Fid {
    /// The root directory of every file system, at MDT 0.
    pub const ROOT: Fid = Fid { seq: Seq(0), oid: Oid(1) };

    /// The parts as they are; check those from outside with [`Fid::is_valid`].
    pub const fn new(seq: Seq, oid: Oid) -> Self {
        Self { seq, oid }
    }
    /// The MDT that has the inode.
    pub const fn mdt(self) -> MdtIndex {
        self.seq.mdt()
    }
    /// The inode number. Exact inverse of [`Fid::from_ino`] for every valid FID.
    pub const fn ino(self) -> u64 {
        (self.seq.0 << 24) | self.oid.0 as u64
    }
    /// Exact inverse of [`Fid::ino`].
    pub const fn from_ino(ino: u64) -> Self {
        Self { seq: Seq(ino >> 24), oid: Oid((ino & 0xff_ffff) as u32) }
    }
    /// Whether the numbers are in the ranges of the format. FIDs from the wire are validated with it.
    pub const fn is_valid(self) -> bool {
        self.seq.0 < SEQ_LIMIT && self.oid.0 < OIDS_PER_SEQ && (self.seq.0 != 0 || self.oid.0 != 0)
    }
    /// Big-endian key bytes, so that table order is numeric order.
    pub fn key(self) -> [u8; 12] {
        let mut k = [0u8; 12];
        k[..8].copy_from_slice(&self.seq.0.to_be_bytes());
        k[8..].copy_from_slice(&self.oid.0.to_be_bytes());
        k
    }
    /// Inverse of [`Fid::key`] on the first 12 bytes; `None` if there are fewer.
    pub fn from_key(key: &[u8]) -> Option<Self> {
        let seq = u64::from_be_bytes(key.get(..8)?.try_into().ok()?);
        let oid = u32::from_be_bytes(key.get(8..12)?.try_into().ok()?);
        Some(Self { seq: Seq(seq), oid: Oid(oid) })
    }
    /// Parses `[0xSEQ:0xOID:0x0]`, brackets optional.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
        let mut parts = text.split(':').map(|p| match p.strip_prefix("0x") {
            Some(h) => u64::from_str_radix(h, 16).ok(),
            None => p.parse().ok(),
        });
        let (seq, oid, ver) = (parts.next()??, parts.next()??, parts.next()??);
        let fid = Self { seq: Seq(seq), oid: Oid(u32::try_from(oid).ok()?) };
        (ver == 0 && parts.next().is_none() && fid.is_valid()).then_some(fid)
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}:{:#x}:0x0]", self.seq.0, self.oid.0)
    }
}
impl fmt::Debug for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'a> crate::Codec<'a> for Fid {
    #[inline]
    fn encode(&self, w: &mut crate::Writer) {
        self.seq.encode(w);
        self.oid.encode(w);
    }
    #[inline]
    fn decode(r: &mut crate::Reader<'a>) -> Result<Self, crate::DecodeError> {
        Ok(Self { seq: Seq::decode(r)?, oid: Oid::decode(r)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn inode_number_text_and_key_are_exact_inverses() {
        for fid in
            [Fid::ROOT, Fid::new(Seq(SEQ_LIMIT - 1), Oid(OIDS_PER_SEQ - 1)), Fid::new(Seq(0x100), Oid(1))]
        {
            assert_eq!(Fid::from_ino(fid.ino()), fid);
            assert_eq!(Fid::parse(&fid.to_string()), Some(fid));
            assert_eq!(Fid::from_key(&fid.key()), Some(fid));
        }
        assert_eq!(Fid::ROOT.ino(), 1);
        assert_eq!(Fid::parse("[0x1:0x2]"), None);
    }

    #[test]
    fn a_sequence_names_the_mdt_that_grants_it() {
        assert_eq!(Fid::ROOT.mdt(), MdtIndex::ROOT);
        assert_eq!(Seq::first_of(MdtIndex::ROOT), Seq(0x100), "the first MDT counts from there");
        for mdt in [MdtIndex::ROOT, MdtIndex(1), MdtIndex::MAX] {
            let first = Seq::first_of(mdt);
            let next_mdt = Seq((u64::from(mdt.0) + 1) << COUNT_BITS);
            let last = Seq(next_mdt.0 - 1);
            assert_eq!((first.mdt(), last.mdt()), (mdt, mdt));
            assert!(first.is_grantable_by(mdt) && last.is_grantable_by(mdt));
            assert!(Fid::new(last, Oid(1)).is_valid());
            assert!(!Seq(first.0 - 1).is_grantable_by(mdt), "reserved");
            assert!(!next_mdt.is_grantable_by(mdt) && !Seq(next_mdt.0 + 0x100).is_grantable_by(mdt));
        }
        assert!(Seq(SEQ_LIMIT).mdt() > MdtIndex::MAX && Seq(u64::MAX).mdt() > MdtIndex::MAX);
    }
}
