//! Verification of reads: the bytes of written blocks must have the checksums of their rows.
//!
//! A mismatch is read once more, from the device. If it does not match then, the block is damaged: reads and changes
//! that need this block fail, all others succeed. Overwriting the block as a whole, or truncating it, repairs it.
//!
//! Not verified: regions whose bytes may have changed with the loss of a process or machine (`object/overwrite.rs`), until
//! `object/rechecksum.rs` has looked at them.

use crate::error::OsdError;
use crate::object::checksum::BLOCK_BYTES;
use crate::object::objects::{Objects, unexpected_result};
use crate::object::rows::{BLOCKS_PER_REGION, BlockRow};
use bytes::Bytes;
use core::ops::Range;
use nacre_node::{FileId, ReadFrom, StoreDone, StoreError, StoreOp};
use nacre_types::ObjectId;

impl Objects {
    /// The checksums (number of the block, crc32c) of those of `blocks` that lie in a region and must match.
    pub(crate) fn expected<'a>(
        &self,
        object: ObjectId,
        region: u64,
        row: &'a BlockRow,
        blocks: &Range<u64>,
    ) -> impl Iterator<Item = (u64, u32)> + use<'a> {
        let is_unverified = self.unverified().may_differ(object, region, row.version);
        let blocks = if is_unverified { 0..0 } else { blocks.clone() };
        let all = (region * BLOCKS_PER_REGION..).zip(row.sums);
        all.filter(move |(block, _)| blocks.contains(block) && row.is_written(*block) && !row.is_lost(*block))
    }

    /// Reads bytes that are written, or in holes between written ones. `from` begins a block, `to` ends one or is the
    /// object's size. The inner `Err` says where the file ends, if that is before `to`.
    ///
    /// # Errors
    /// `Damaged` if a block does not match; those of the store.
    pub(crate) async fn read_verified(
        &self,
        object: ObjectId,
        from: u64,
        to: u64,
        expected: &[(u64, u32)],
    ) -> Result<Result<Bytes, u64>, OsdError> {
        let mut first_found = None;
        for source in [ReadFrom::Cache, ReadFrom::Device] {
            let (bytes, sums) = match self.read_summed(object, from, to, source).await? {
                Ok(read) => read,
                Err(end) => return Ok(Err(end)),
            };
            let sum_of = |block: u64| sums.get((block - from / BLOCK_BYTES) as usize);
            let wrong = expected.iter().find(|(block, sum)| sum_of(*block) != Some(sum));
            let Some(&(wrong, _)) = wrong else {
                if let Some(block) = first_found {
                    tracing::warn!(target_name = %self.osd().label().name, %object, offset = block * BLOCK_BYTES,
                        "a block did not match its checksum and does at the second read: suspect the memory or the device");
                }
                return Ok(Ok(bytes));
            };
            if source == ReadFrom::Device {
                return Err(self.damaged(object, wrong));
            }
            first_found = Some(wrong);
        }
        Err(unexpected_result("read"))
    }
    /// Reads bytes without comparing their checksums.
    pub(crate) async fn read_summed(
        &self,
        object: ObjectId,
        from: u64,
        to: u64,
        source: ReadFrom,
    ) -> Result<Result<(Bytes, alloc::vec::Vec<u32>), u64>, OsdError> {
        let len = u32::try_from(to.saturating_sub(from)).expect("at most a request or a region");
        let file = FileId::Blob(object);
        match self.ctx().io(StoreOp::ReadWritten { file, offset: from, len, from: source }).await {
            Ok(StoreDone::Checksummed(bytes, sums)) => Ok(Ok((bytes, sums))),
            Ok(_) => Err(unexpected_result("read")),
            Err(StoreError::Missing { from, .. }) => Ok(Err(from)),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn damaged(&self, object: ObjectId, block: u64) -> OsdError {
        let from = block * BLOCK_BYTES;
        OsdError::Damaged { object, from, to: from + BLOCK_BYTES }
    }
}
