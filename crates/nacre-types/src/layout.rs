//! Layouts: the placement of a file's bytes in objects on OSTs.
//!
//! A layout is a list of components even while there is one. Objects have no ids of their own: the object of stripe `i`
//! of file `f` is `(f, i)`, so the objects of a file have names before any OST knows them.

use crate::{Fid, OstIndex, codec_struct};
use alloc::vec::Vec;

/// Chunk size of the default layout.
pub const DEFAULT_STRIPE_BYTES: u32 = 1 << 20;
/// Chunk sizes are multiples of this.
pub const STRIPE_BYTES_UNIT: u32 = 64 << 10;
/// Maximum number of stripes of a file.
pub const STRIPES_MAX: u16 = 512;
/// Most bytes of a file that its MDT can keep: no more than a chunk, so that they would all lie in the first object.
pub const DOM_BYTES_MAX: u32 = STRIPE_BYTES_UNIT;

codec_struct! {
    /// Name of an object on its OST.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct ObjectId { pub fid: Fid, pub stripe: u32 }
}
impl core::fmt::Display for ObjectId {
    /// `seq:oid:stripe`, as `lfs getstripe` prints it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:#x}:{:#x}:{:#x}", self.fid.seq.0, self.fid.oid.0, self.stripe)
    }
}

codec_struct! {
    /// Half-open byte range; `end == u64::MAX` means to the end.
    #[derive(Copy, PartialOrd, Ord, Hash)]
    pub struct Extent { pub start: u64, pub end: u64 }
}
impl Extent {
    /// The whole object or file, whatever its size.
    pub const ALL: Extent = Extent { start: 0, end: u64::MAX };
    /// `start` and `end` in bytes; not after `start` means empty.
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }
    /// Whether the range has no byte.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
    /// Whether the ranges have a byte in common; for two that are not empty.
    pub fn overlaps(self, other: Extent) -> bool {
        self.start < other.end && other.start < self.end
    }
    /// Whether every byte of `other` lies in this range.
    pub fn contains(self, other: Extent) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

codec_struct! {
    /// One component: RAID-0 over `stripes` in chunks of `stripe_bytes`.
    pub struct Component {
        /// Range of the file that the component covers.
        pub extent: Extent,
        /// Bytes of a chunk: the next chunk lies on the next stripe.
        pub stripe_bytes: u32,
        /// OST of each stripe, in order; stripe `i` of component 0 is object `(fid, i)`.
        pub stripes: Vec<OstIndex>,
        /// For each OST, the number of replacements when the stripe was laid out (docs/targets.md); empty: all 0.
        pub laid: Vec<u32>,
    }
}

codec_struct! {
    /// Layout of one file.
    pub struct Layout {
        /// Counts the changes of the layout.
        pub generation: u32,
        /// Data on the MDT: the file has no objects yet, its MDT has all of its bytes, and there may be so many. 0: the bytes
        /// are in objects. A file whose bytes have moved to objects stays there.
        pub dom_bytes: u32,
        /// The objects.
        pub components: Vec<Component>,
    }
}

codec_struct! {
    /// A layout as requested by a user, or inherited from a directory.
    #[derive(Copy)]
    pub struct LayoutTemplate {
        /// Number of stripes; -1 = all OSTs, 0 = the file system's default.
        pub stripe_count: i32,
        /// Chunk bytes, a multiple of 64 KiB; 0 = default.
        pub stripe_bytes: u32,
        /// First OST; -1 = chosen round robin.
        pub first_ost: i32,
        /// Bytes of a file that its MDT keeps instead of OSTs, 0 = none; `None` = default.
        pub dom_bytes: Option<u32>,
    }
}
impl Default for LayoutTemplate {
    fn default() -> Self {
        Self { stripe_count: 0, stripe_bytes: 0, first_ost: -1, dom_bytes: None }
    }
}

/// A piece of a file range that lies in one object, contiguous there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripePiece {
    /// Index into the component's stripes and the object's stripe number.
    pub stripe: u32,
    /// The OST that has the object.
    pub ost: OstIndex,
    /// Where in the object.
    pub object_offset: u64,
    /// Where in the file.
    pub file_offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Component {
    /// Records the current number of replacements of each OST in the layout.
    pub fn lay_out(&mut self, replaced: impl Fn(OstIndex) -> u32) {
        let laid = self.stripes.iter().map(|ost| replaced(*ost));
        self.laid = if laid.clone().all(|n| n == 0) { Vec::new() } else { laid.collect() };
    }
    /// The number of replacements of the OST when a stripe was laid out: if the OST has a higher one now, a missing
    /// object is lost.
    pub fn laid(&self, stripe: u32) -> u32 {
        self.laid.get(stripe as usize).copied().unwrap_or(0)
    }

    fn geometry(&self) -> (u64, u64) {
        (u64::from(self.stripe_bytes.max(1)), self.stripes.len().max(1) as u64)
    }

    /// Cuts a file range into pieces, in file order. Neighbouring chunks of a one-stripe file are one piece.
    pub fn pieces(&self, offset: u64, len: u64) -> Vec<StripePiece> {
        let (chunk, count) = self.geometry();
        let end = offset.saturating_add(len);
        let mut at = offset;
        let mut out = Vec::new();
        while at < end {
            let number = at / chunk;
            let stripe = number % count;
            let stop = if count == 1 { end } else { end.min((number + 1).saturating_mul(chunk)) };
            let Some(&ost) = self.stripes.get(stripe as usize) else { break };
            out.push(StripePiece {
                stripe: stripe as u32,
                ost,
                object_offset: self.object_offset(at),
                file_offset: at,
                len: stop - at,
            });
            at = stop;
        }
        out
    }

    /// Where byte `offset` of the file lies in the object that holds it.
    pub fn object_offset(&self, offset: u64) -> u64 {
        let (chunk, count) = self.geometry();
        (offset / chunk / count) * chunk + offset % chunk
    }

    /// File size if object `stripe` has `object_size` bytes and nothing lies beyond it; 0 for an empty object.
    pub fn file_size(&self, stripe: u32, object_size: u64) -> u64 {
        let (chunk, count) = self.geometry();
        let Some(last) = object_size.checked_sub(1) else { return 0 };
        let number = (last / chunk).saturating_mul(count).saturating_add(u64::from(stripe));
        number.saturating_mul(chunk).saturating_add(last % chunk + 1)
    }

    /// Size of object `stripe` in a file of `file_size` bytes without holes: its size after a truncate.
    pub fn object_size(&self, stripe: u32, file_size: u64) -> u64 {
        let (chunk, count) = self.geometry();
        let row = chunk * count;
        let rest = file_size % row;
        let before = u64::from(stripe) * chunk;
        (file_size / row) * chunk + rest.saturating_sub(before).min(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn component(stripe_bytes: u32, count: u32) -> Component {
        Component {
            extent: Extent::ALL,
            stripe_bytes,
            stripes: (0..count).map(OstIndex).collect(),
            laid: vec![],
        }
    }

    #[test]
    fn sizes_of_objects_and_file_agree() {
        for count in 1..5 {
            let c = component(4, count);
            for size in 0..100 {
                let objects: Vec<u64> = (0..count).map(|s| c.object_size(s, size)).collect();
                assert_eq!(objects.iter().sum::<u64>(), size);
                let file = (0..count).map(|s| c.file_size(s, objects[s as usize])).max();
                assert_eq!(file, Some(size), "{count} {objects:?}");
            }
        }
    }

    #[test]
    fn pieces_cover_the_range_once_and_in_order() {
        let c = component(4, 3);
        let pieces = c.pieces(2, 13);
        assert_eq!(pieces.iter().map(|p| p.len).collect::<Vec<_>>(), vec![2, 4, 4, 3]);
        assert_eq!(pieces.iter().map(|p| p.stripe).collect::<Vec<_>>(), vec![0, 1, 2, 0]);
        assert_eq!(pieces.iter().map(|p| p.object_offset).collect::<Vec<_>>(), vec![2, 0, 0, 4]);
    }
}
