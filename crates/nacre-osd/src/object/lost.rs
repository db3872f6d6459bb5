//! Bytes that rows describe and no file has: a blob was deleted or truncated by hand, or by fsck.
//!
//! A blob is written up to the end of its last written block, and its length is known ([`ObjectRow::written_to`]). So a
//! written block beyond the end of its file is lost. Lost bytes are never read as zeros: reads of them fail, and so do
//! changes that need the old bytes. A write that extends the file again would put a hole in their place. Therefore the
//! block is first marked in its row; the mark is removed when the block is overwritten as a whole or truncated.
//!
//! After the loss of a machine, bytes of writes that were not stable may be missing without damage: regions that were
//! changed after the last stable write are handled by `object/rechecksum.rs` until it has verified them.
//! Not here: bytes that are present and wrong (`object/verify.rs`).

use crate::engine::credits::Credits;
use crate::error::OsdError;
use crate::object::checksum::BLOCK_BYTES;
use crate::object::objects::{Objects, unexpected_result};
use crate::object::rows::{
    BLOCKS_PER_REGION, BlockRow, REGION_BYTES, block_key, blocks_of, decode_block, region_of_key,
};
use crate::table;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{FileId, ReadFrom, StoreDone, StoreOp};
use nacre_types::{Extent, ObjectId};

impl Objects {
    /// Reads and verifies bytes `from..to` of written blocks of one region that a change needs; `from` begins a block, `to`
    /// ends one or is the object's size. Bytes that were lost with the machine count as zeros, as they will when
    /// `object/rechecksum.rs` has written them.
    pub(crate) async fn read_required(
        &self,
        object: ObjectId,
        row: &BlockRow,
        from: u64,
        to: u64,
    ) -> Result<Bytes, OsdError> {
        let expected: Vec<_> =
            self.expected(object, from / REGION_BYTES, row, &blocks_of(from, to)).collect();
        match self.read_verified(object, from, to, &expected).await? {
            Ok(bytes) if !row.is_lost(from / BLOCK_BYTES) => Ok(bytes),
            Ok(_) | Err(_) => self.read_present(object, row, from, to).await,
        }
    }
    /// The same for bytes that a failed write may have changed: they are not verified.
    pub(crate) async fn read_present(
        &self,
        object: ObjectId,
        row: &BlockRow,
        from: u64,
        to: u64,
    ) -> Result<Bytes, OsdError> {
        if row.is_lost(from / BLOCK_BYTES) {
            return Err(OsdError::Lost { object, from, to });
        }
        let is_unverified = self.unverified().may_differ(object, from / REGION_BYTES, row.version);
        match self.read_summed(object, from, to, ReadFrom::Cache).await? {
            Ok((bytes, _)) => Ok(bytes),
            Err(_) if is_unverified => {
                let len = u32::try_from(to - from).expect("at most a region");
                match self.ctx().io(StoreOp::Read { file: FileId::Blob(object), offset: from, len }).await? {
                    StoreDone::Bytes(bytes) => {
                        let mut whole = bytes.to_vec();
                        whole.resize(len as usize, 0);
                        Ok(whole.into())
                    }
                    _ => Err(unexpected_result("read")),
                }
            }
            Err(end) => Err(OsdError::Lost { object, from: from.max(end), to }),
        }
    }

    /// Marks written blocks between `from`, where the file ends, and `to` as lost if they had to be on the device. The
    /// caller holds no lock of the object.
    pub(crate) async fn mark_lost_from(
        self: &Rc<Self>,
        object: ObjectId,
        from: u64,
        to: u64,
    ) -> Result<(), OsdError> {
        let mut next = block_key(object, from / REGION_BYTES);
        let last = block_key(object, to.div_ceil(REGION_BYTES));
        loop {
            let rows =
                self.osd().scan(table::BLOCK, &next, &last, crate::maintenance::reclaim::SLICE).await?;
            if rows.is_empty() {
                return Ok(());
            }
            for (key, value) in rows {
                let region = region_of_key(&key).unwrap_or_default();
                next = block_key(object, region + 1);
                let row = decode_block(object, region, &value)?;
                if row.written & !row.lost != 0 && !self.unverified().may_differ(object, region, row.version)
                {
                    self.mark_lost_region(object, region).await?;
                }
            }
            self.ctx().yield_now().await;
        }
    }
    async fn mark_lost_region(self: &Rc<Self>, object: ObjectId, region: u64) -> Result<(), OsdError> {
        let start = region.saturating_mul(REGION_BYTES);
        let range = Extent::new(start, start.saturating_add(REGION_BYTES));
        let _guard = self.locks().lock(object, range, true).await;
        let size = self.row(object).await?.unwrap_or_default().size;
        let end = size.min(range.end);
        if start >= end {
            return Ok(());
        }
        match self.read_summed(object, start, end, ReadFrom::Cache).await? {
            Ok(_) => Ok(()),
            Err(file_end) => self.mark_lost(object, region, file_end, size).await.map(drop),
        }
    }

    /// Marks the written blocks of a region that are not completely below `file_end`, where the file ends. Returns how
    /// many were not marked before. The caller holds the lock of the region.
    pub(crate) async fn mark_lost(
        self: &Rc<Self>,
        object: ObjectId,
        region: u64,
        file_end: u64,
        size: u64,
    ) -> Result<u64, OsdError> {
        let pins = self.pins_of(object, &(region..region + 1)).await?;
        let mut row = self.block_row(object, region).await?;
        let (mut fresh, mut from, mut to) = (0, u64::MAX, 0);
        for block in region * BLOCKS_PER_REGION..(region + 1) * BLOCKS_PER_REGION {
            let end = ((block + 1) * BLOCK_BYTES).min(size);
            if row.is_written(block) && !row.is_lost(block) && file_end < end {
                row.mark_lost(block);
                (fresh, from, to) = (fresh + 1, from.min(block * BLOCK_BYTES), end);
            }
        }
        if fresh == 0 {
            return Ok(0);
        }
        let credits = Credits { object_bytes: 0, frees: true, ..Objects::write_credits(0, REGION_BYTES) };
        let room = self.osd().reserve(credits).await?;
        self.osd().transact(&pins, room, |tx| {
            tx.put(table::BLOCK, &block_key(object, region), row.encode());
            Ok::<(), OsdError>(())
        })?;
        tracing::error!(target_name = %self.osd().label().name, %object, from, to, blocks = fresh,
            "bytes of an object are lost: its file ends before them; they return EIO until they are overwritten or truncated");
        Ok(fresh)
    }
}
