//! Bytes that rows promise and no file has: a blob that somebody deleted or cut, or that fsck took away.
//!
//! A blob is written up to the end of its last written block, and its length is known ([`ObjectRow::written_to`]). So a
//! written block beyond the end of its file is lost. It is never taken for zeros: reads of it fail, and so do changes
//! that need its old bytes. Before a write makes the file longer again, which would put a hole in its place, the block
//! is marked in its row; the mark goes when the block is overwritten as a whole or cut off.
//!
//! After the loss of a machine the bytes of writes that were not stable may be gone without damage: a region that was
//! changed after the last stable write follows `object/rechecksum.rs` until that has looked at it.
//! Not here: bytes that are there and wrong (sums are not checked on reads yet).

use crate::engine::credits::Credits;
use crate::error::OsdError;
use crate::object::checksum::BLOCK_BYTES;
use crate::object::objects::{Objects, wrong_answer};
use crate::object::rows::{
    BLOCKS_PER_REGION, BlockRow, REGION_BYTES, block_key, decode_block, region_of_key,
};
use crate::table;
use alloc::rc::Rc;
use bytes::Bytes;
use nacre_node::{FileId, StoreDone, StoreError, StoreOp};
use nacre_types::{Extent, ObjectId};

impl Objects {
    /// Whether bytes of this version may have been lost with the machine, and nobody has looked at them since.
    pub(crate) fn may_be_gone(&self, version: u64) -> bool {
        self.unverified_since().is_some_and(|stable| version > stable.0)
    }

    /// Bytes of one region, all of them written. `None` in their place: the file ends before `to`, at the answered byte.
    pub(crate) async fn read_written(
        &self,
        object: ObjectId,
        from: u64,
        to: u64,
    ) -> Result<Result<Bytes, u64>, OsdError> {
        let len = u32::try_from(to.saturating_sub(from)).expect("at most a request or a region");
        let file = FileId::Blob(object);
        match self.ctx().io(StoreOp::ReadWritten { file, offset: from, len }).await {
            Ok(StoreDone::Bytes(bytes)) => Ok(Ok(bytes)),
            Ok(_) => Err(wrong_answer("read")),
            Err(StoreError::Missing { from, .. }) => Ok(Err(from)),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes `from..to` of written blocks of one region that a change needs. What was lost with the machine counts as
    /// zeros until `object/rechecksum.rs` has said so.
    pub(crate) async fn needed(
        &self,
        object: ObjectId,
        row: &BlockRow,
        from: u64,
        to: u64,
    ) -> Result<Bytes, OsdError> {
        if row.is_lost(from / BLOCK_BYTES) {
            return Err(OsdError::Lost { object, from, to });
        }
        match self.read_written(object, from, to).await? {
            Ok(bytes) => Ok(bytes),
            Err(_) if self.may_be_gone(row.version) => {
                let len = u32::try_from(to - from).expect("at most a region");
                match self.ctx().io(StoreOp::Read { file: FileId::Blob(object), offset: from, len }).await? {
                    StoreDone::Bytes(bytes) => {
                        let mut whole = bytes.to_vec();
                        whole.resize(len as usize, 0);
                        Ok(whole.into())
                    }
                    _ => Err(wrong_answer("read")),
                }
            }
            Err(end) => Err(OsdError::Lost { object, from: from.max(end), to }),
        }
    }

    /// The file ends at `from`: written blocks between it and `to` that had to be on the device are marked as lost. The
    /// caller holds no lock of the object.
    pub(crate) async fn lose(self: &Rc<Self>, object: ObjectId, from: u64, to: u64) -> Result<(), OsdError> {
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
                if row.written & !row.lost != 0 && !self.may_be_gone(row.version) {
                    self.lose_region(object, region).await?;
                }
            }
            self.ctx().yield_now().await;
        }
    }
    async fn lose_region(self: &Rc<Self>, object: ObjectId, region: u64) -> Result<(), OsdError> {
        let start = region.saturating_mul(REGION_BYTES);
        let range = Extent::new(start, start.saturating_add(REGION_BYTES));
        let _guard = self.locks().lock(object, range, true).await;
        let size = self.row(object).await?.unwrap_or_default().size;
        let end = size.min(range.end);
        if start >= end {
            return Ok(());
        }
        match self.read_written(object, start, end).await? {
            Ok(_) => Ok(()),
            Err(held) => self.mark_lost(object, region, held, size).await.map(drop),
        }
    }

    /// Marks the written blocks of a region that are not whole below `held`, where the file ends; how many were not
    /// marked before. Under the lock of the region.
    pub(crate) async fn mark_lost(
        self: &Rc<Self>,
        object: ObjectId,
        region: u64,
        held: u64,
        size: u64,
    ) -> Result<u64, OsdError> {
        let pins = self.pins_of(object, &(region..region + 1)).await?;
        let mut row = self.block_row(object, region).await?;
        let (mut fresh, mut from, mut to) = (0, u64::MAX, 0);
        for block in region * BLOCKS_PER_REGION..(region + 1) * BLOCKS_PER_REGION {
            let end = ((block + 1) * BLOCK_BYTES).min(size);
            if row.is_written(block) && !row.is_lost(block) && held < end {
                row.lose(block);
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
            "bytes of an object are lost: its file ends before them; they answer EIO until they are overwritten or cut off");
        Ok(fresh)
    }
}
