//! Rows of byte objects: their keys and values.
//!
//! OBJECT: object key → [`ObjectRow`]. BLOCK: object key + region number (BE) → [`BlockRow`], one per 256 KiB
//! that has allocated blocks. RECLAIM: object key → [`ReclaimRow`]. An object key is the FID's key and the
//! stripe, big-endian, so that table order is numeric order. Layout: docs/disk-format.md.

use crate::error::OsdError;
use crate::object::checksum::BLOCK_BYTES;
use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;
use nacre_types::{Codec, ObjectId, Owner, Reader, Timestamp, Writer, codec_struct};

/// Bytes described by one block row.
pub const REGION_BYTES: u64 = 256 << 10;
/// Greatest size of an object: what `off_t` can say.
pub const OBJECT_BYTES_MAX: u64 = i64::MAX as u64;
pub(crate) const BLOCKS_PER_REGION: u64 = REGION_BYTES / BLOCK_BYTES;
const _: () = assert!(BLOCKS_PER_REGION == 64, "a mask has 64 bits");
/// Units of `ObjectRow::blocks` in a block.
pub(crate) const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES / 512;

codec_struct! {
    /// The state of an object. All zero for an object that does not exist.
    #[derive(Copy, Default)]
    pub struct ObjectRow {
        /// Bytes of the object; holes count.
        pub size: u64,
        /// Allocated space in units of 512 bytes.
        pub blocks: u64,
        /// Charged for the object and its blocks.
        pub owner: Owner,
        /// The latest of the writes' times.
        pub mtime: Timestamp,
        /// Transno of the last change.
        pub version: u64,
        /// [`ObjectRow::QUARANTINED`] or 0.
        pub flags: u8,
        /// The blob has been written up to here: its file is at least so long. (Not beyond the size; blocks before it
        /// may be holes.)
        pub written_to: u64,
    }
}
impl ObjectRow {
    /// Bytes of the object were lost: it returns EIO until it is destroyed.
    pub const QUARANTINED: u8 = 1;
    /// Whether [`Self::QUARANTINED`] is set.
    pub fn is_quarantined(&self) -> bool {
        self.flags & Self::QUARANTINED != 0
    }
}

codec_struct! {
    /// The blob holds blocks from byte `from` on that no row speaks of. They may be freed once `transno`, the
    /// change that let go of them or a later truncate, is durable.
    #[derive(Copy)]
    pub struct ReclaimRow { pub transno: u64, pub from: u64 }
}

/// Masks and version of a block row.
const BLOCK_ROW_HEAD_BYTES: u32 = 4 * 8;
/// Most bytes of a block row with its key.
pub(crate) const BLOCK_ROW_BYTES_MAX: u32 = 24 + BLOCK_ROW_HEAD_BYTES + 64 * 4;

/// Allocation and checksums of the 64 blocks of a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRow {
    /// Blocks that are charged to the owner, a bit for each; those of `written` are among them.
    pub allocated: u64,
    /// Blocks that hold data; the others read as zeros whatever the blob says.
    pub written: u64,
    /// Written blocks whose bytes were found to be gone: EIO until they are overwritten as a whole or cut off.
    pub lost: u64,
    /// Transno of the last change of bytes: whether they have to be on the device.
    pub version: u64,
    /// Sums of written blocks (see `object/checksum.rs`); 0 for others.
    pub sums: [u32; 64],
}
impl Default for BlockRow {
    fn default() -> Self {
        Self { allocated: 0, written: 0, lost: 0, version: 0, sums: [0; 64] }
    }
}
impl BlockRow {
    /// `block`: its number in the object, or in the region.
    pub fn is_written(&self, block: u64) -> bool {
        self.written & bit(block) != 0
    }
    /// `block`: its number in the object, or in the region.
    pub fn is_lost(&self, block: u64) -> bool {
        self.lost & bit(block) != 0
    }
    /// The bytes of a written block are gone.
    pub(crate) fn mark_lost(&mut self, block: u64) {
        self.lost |= bit(block) & self.written;
    }
    /// Marks a block as holding data with this checksum. True if it was not allocated before.
    pub(crate) fn set(&mut self, block: u64, sum: u32) -> bool {
        let fresh = self.allocated & bit(block) == 0;
        self.allocated |= bit(block);
        self.written |= bit(block);
        self.lost &= !bit(block);
        if let Some(slot) = self.sums.get_mut((block % BLOCKS_PER_REGION) as usize) {
            *slot = sum;
        }
        fresh
    }
    /// Blocks hold no data any more; they stay allocated.
    pub(crate) fn unwrite(&mut self, mask: u64) {
        let allocated = self.allocated;
        self.clear(mask);
        self.allocated = allocated;
    }
    /// Forgets blocks; returns how many of them were allocated.
    pub(crate) fn clear(&mut self, mask: u64) -> u64 {
        let gone = u64::from((self.allocated & mask).count_ones());
        self.allocated &= !mask;
        self.written &= !mask;
        self.lost &= !mask;
        for (i, sum) in self.sums.iter_mut().enumerate() {
            if mask & (1 << i) != 0 {
                *sum = 0;
            }
        }
        gone
    }

    /// Masks and version, then the checksums of written blocks in order.
    pub fn encode(&self) -> Vec<u8> {
        let len = BLOCK_ROW_HEAD_BYTES as usize + 4 * self.written.count_ones() as usize;
        let mut w = Writer { buf: Vec::with_capacity(len) };
        for word in [self.allocated, self.written, self.lost, self.version] {
            word.encode(&mut w);
        }
        for (i, sum) in self.sums.iter().enumerate() {
            if self.written & (1 << i) != 0 {
                sum.encode(&mut w);
            }
        }
        w.buf
    }
    /// `None` if the bytes are short, or if a block is written but not allocated, or lost but not written.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        let mut word = || u64::decode(&mut r).ok();
        let mut row =
            Self { allocated: word()?, written: word()?, lost: word()?, version: word()?, sums: [0; 64] };
        for (i, sum) in row.sums.iter_mut().enumerate() {
            if row.written & (1 << i) != 0 {
                *sum = u32::decode(&mut r).ok()?;
            }
        }
        (row.written & !row.allocated == 0 && row.lost & !row.written == 0).then_some(row)
    }
}

fn bit(block: u64) -> u64 {
    1 << (block % BLOCKS_PER_REGION)
}

/// Bits of `region` that lie in a range of blocks.
pub(crate) fn mask_of(region: u64, blocks: &Range<u64>) -> u64 {
    let base = region * BLOCKS_PER_REGION;
    let from = blocks.start.saturating_sub(base).min(64);
    let to = blocks.end.saturating_sub(base).min(64);
    let below = |n: u64| if n >= 64 { u64::MAX } else { (1 << n) - 1 };
    if from >= to { 0 } else { below(to) & !below(from) }
}

/// Regions that a range of blocks touches.
pub(crate) fn regions_of(blocks: &Range<u64>) -> Range<u64> {
    if blocks.is_empty() {
        return 0..0;
    }
    blocks.start / BLOCKS_PER_REGION..blocks.end.div_ceil(BLOCKS_PER_REGION)
}

/// Blocks that a range of bytes touches.
pub(crate) fn blocks_of(offset: u64, end: u64) -> Range<u64> {
    if offset >= end {
        return 0..0;
    }
    offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)
}

/// Rounds down to a block.
pub(crate) fn block_floor(offset: u64) -> u64 {
    offset / BLOCK_BYTES * BLOCK_BYTES
}

/// Rounds up to a block; `u64::MAX` (to the end) stays.
pub(crate) fn block_ceil(offset: u64) -> u64 {
    offset.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES)
}

/// All block rows of an object share so much of their key.
pub(crate) const OBJECT_KEY_BYTES: u8 = 16;

/// Key of an object's rows.
pub fn object_key(object: ObjectId) -> [u8; 16] {
    let mut key = [0; 16];
    key[..12].copy_from_slice(&object.fid.key());
    key[12..].copy_from_slice(&object.stripe.to_be_bytes());
    key
}

/// Inverse of [`object_key`] on the first 16 bytes.
pub fn object_of_key(key: &[u8]) -> Option<ObjectId> {
    Some(ObjectId {
        fid: nacre_types::Fid::from_key(key)?,
        stripe: u32::from_be_bytes(key.get(12..16)?.try_into().ok()?),
    })
}

/// Key of a region's block row.
pub fn block_key(object: ObjectId, region: u64) -> [u8; 24] {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&object_key(object));
    key[16..].copy_from_slice(&region.to_be_bytes());
    key
}

/// Region of a block row's key.
pub fn region_of_key(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(16..24)?.try_into().ok()?))
}

pub(crate) fn decode_object(object: ObjectId, bytes: &[u8]) -> Result<ObjectRow, OsdError> {
    ObjectRow::from_slice(bytes)
        .map_err(|e| OsdError::Corrupt { what: format!("the row of object {object}: {e}") })
}

pub(crate) fn decode_block(object: ObjectId, region: u64, bytes: &[u8]) -> Result<BlockRow, OsdError> {
    BlockRow::decode(bytes)
        .ok_or_else(|| OsdError::Corrupt { what: format!("block row {region} of object {object}") })
}

pub(crate) fn decode_reclaim(object: ObjectId, bytes: &[u8]) -> Result<ReclaimRow, OsdError> {
    ReclaimRow::from_slice(bytes)
        .map_err(|e| OsdError::Corrupt { what: format!("the reclaim row of object {object}: {e}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Fid, Oid, Seq};

    #[test]
    fn a_block_row_comes_back_and_holds_only_sums_of_written_blocks() {
        let mut row = BlockRow::default();
        assert!(row.set(64 + 3, 0xdead_beef));
        assert!(!row.set(3, 7));
        row.allocated |= 1 << 63;
        let bytes = row.encode();
        assert_eq!(bytes.len(), 32 + 4);
        assert_eq!(BlockRow::decode(&bytes), Some(row.clone()));
        assert_eq!(BlockRow::decode(&bytes[..35]), None);
        assert_eq!(row.clear(!0), 2);
        assert_eq!(row, BlockRow::default());
        let lies = BlockRow { written: 1, ..BlockRow::default() };
        assert_eq!(BlockRow::decode(&lies.encode()), None, "written but not allocated");
        let lies = BlockRow { allocated: 3, written: 1, lost: 2, ..BlockRow::default() };
        assert_eq!(BlockRow::decode(&lies.encode()), None, "lost but not written");
    }

    #[test]
    fn bytes_on_disk_are_those_of_the_format() {
        let object = ObjectId { fid: Fid::new(Seq(0x102), Oid(3)), stripe: 4 };
        let key = [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(block_key(object, 9), key);
        assert_eq!(object_key(object), key[..16]);
        let mut row = BlockRow::default();
        row.set(1, 0x0403_0201);
        row.allocated |= 4;
        (row.lost, row.version) = (2, 5);
        let words = [6u64, 2, 2, 5].map(u64::to_le_bytes).concat();
        assert_eq!(row.encode(), [&words[..], &[1, 2, 3, 4]].concat());
        let reclaim = ReclaimRow { transno: 1, from: 4096 };
        assert_eq!(reclaim.to_vec(), [1, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
        let row = ObjectRow {
            size: 1,
            blocks: 8,
            owner: Owner { uid: 2, gid: 3, projid: 4 },
            mtime: Timestamp::from_nanos(0),
            version: 5,
            flags: ObjectRow::QUARANTINED,
            written_to: 1,
        };
        let bytes = row.to_vec();
        assert_eq!(
            bytes[..28],
            [1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]
        );
        assert_eq!(bytes[28 + 12..], [5, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes.len(), 28 + 12 + 17);
        assert_eq!(ObjectRow::from_slice(&bytes), Ok(row));
    }

    #[test]
    fn masks_cut_ranges_at_regions() {
        assert_eq!(mask_of(0, &(0..64)), u64::MAX);
        assert_eq!(mask_of(1, &(63..66)), 0b11);
        assert_eq!(mask_of(0, &(63..66)), 1 << 63);
        assert_eq!(mask_of(2, &(63..66)), 0);
        assert_eq!(regions_of(&(63..65)), 0..2);
        assert_eq!(blocks_of(OBJECT_BYTES_MAX - 1, OBJECT_BYTES_MAX).end, 1 << 51);
        assert_eq!(block_ceil(OBJECT_BYTES_MAX), 1 << 63);
    }

    #[test]
    fn keys_sort_like_their_numbers() {
        let a = ObjectId { fid: Fid::new(Seq(0x100), Oid(1)), stripe: 255 };
        let b = ObjectId { stripe: 256, ..a };
        assert!(object_key(a) < object_key(b));
        assert!(block_key(a, u64::MAX) < block_key(b, 0));
        assert_eq!(object_of_key(&block_key(b, 9)), Some(b));
        assert_eq!(region_of_key(&block_key(b, 9)), Some(9));
    }
}
