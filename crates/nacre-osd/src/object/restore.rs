//! After an unclean start: bytes that a committed write has lost are put back.
//!
//! The rows of such a write are in the log, and say what its blocks held in the end, whatever came after it: a later
//! write, a truncate, the end of the object. So a client's bytes go only into blocks that do not hold what their sums
//! say. Whoever knows of an older state than others (that some later write is stable, say) cannot bring it back that way.
//! A block that does hold it is written again as it is: it may be in the kernel's cache only, on pages that a failed sync
//! has marked clean, and no later sync would write those.

use crate::error::OsdError;
use crate::object::checksum::{BLOCK_BYTES, block_sum};
use crate::object::objects::{Objects, wrong_answer};
use crate::object::rows::{
    BLOCKS_PER_REGION, block_floor, block_key, blocks_of, decode_block, region_of_key, regions_of,
};
use crate::table;
use alloc::rc::Rc;
use alloc::vec;
use bytes::Bytes;
use nacre_node::{FileId, StoreDone, StoreOp};
use nacre_types::{Extent, ObjectId};

/// Rows of one scan.
const SLICE: u32 = 64;

impl Objects {
    /// Puts `data` of a write whose rows are there back where it was lost. Rows do not change.
    ///
    /// # Errors
    /// Those of the store and of the engine.
    pub async fn restore(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        data: &[Bytes],
    ) -> Result<(), OsdError> {
        let data = data.concat();
        let end = offset.saturating_add(data.len() as u64);
        self.restore_range(object, offset, end, |from, to| {
            let place = |at: u64| usize::try_from(at - offset).expect("within the data");
            data.get(place(from)..place(to)).map(Bytes::copy_from_slice).unwrap_or_default()
        })
        .await
    }
    /// The same for a truncate: what follows is zeros until later writes say otherwise.
    ///
    /// # Errors
    /// Those of the store and of the engine.
    pub async fn restore_cut(self: &Rc<Self>, object: ObjectId, size: u64) -> Result<(), OsdError> {
        let zeros = |from, to| Bytes::from(vec![0; usize::try_from(to - from).expect("at most a block")]);
        self.restore_range(object, size, u64::MAX, zeros).await
    }

    /// Puts bytes into the written blocks of a range that do not hold what they should.
    async fn restore_range(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        end: u64,
        bytes: impl Fn(u64, u64) -> Bytes,
    ) -> Result<(), OsdError> {
        // A file that is shorter than what was stable of it is damaged: that is kept in mind before it grows again.
        let written_to = self.row(object).await?.unwrap_or_default().written_to;
        if let StoreDone::Len(len) = self.ctx().io(StoreOp::Len { file: FileId::Blob(object) }).await?
            && len.unwrap_or(0) < written_to
        {
            self.lose(object, len.unwrap_or(0), written_to).await?;
        }
        let _guard = self.locks().lock(object, Extent::new(block_floor(offset), u64::MAX), true).await;
        let Some(row) = self.row(object).await? else { return Ok(()) };
        let end = end.min(row.size);
        if offset >= end {
            return Ok(());
        }
        // Only regions that have a row: the range may be all that a file can be.
        let regions = regions_of(&blocks_of(offset, end));
        let (mut next, last) = (block_key(object, regions.start), block_key(object, regions.end));
        loop {
            let rows = self.osd().scan(table::BLOCK, &next, &last, SLICE).await?;
            for (key, value) in &rows {
                let region = region_of_key(key).unwrap_or_default();
                next = block_key(object, region + 1);
                let row_of_blocks = decode_block(object, region, value)?;
                for (block, sum) in (region * BLOCKS_PER_REGION..).zip(row_of_blocks.sums) {
                    let first = block * BLOCK_BYTES;
                    let (from, to) = (first.max(offset), (first + BLOCK_BYTES).min(end));
                    if !row_of_blocks.is_written(block) || row_of_blocks.is_lost(block) || from >= to {
                        continue;
                    }
                    let held = self.held_by(object, block, (first + BLOCK_BYTES).min(row.size)).await?;
                    match block_sum(&held) == sum {
                        true => self.put_back(object, first, held).await?,
                        false => self.put_back(object, from, bytes(from, to)).await?,
                    }
                }
            }
            if rows.is_empty() {
                return Ok(());
            }
        }
    }
    async fn put_back(&self, object: ObjectId, offset: u64, lost: Bytes) -> Result<(), OsdError> {
        self.note_unstable(object, self.osd().last_transno(), lost.len() as u64);
        let op = StoreOp::Write { file: FileId::Blob(object), offset, data: vec![lost] };
        match self.ctx().io(op).await? {
            StoreDone::Unit => Ok(()),
            _ => Err(wrong_answer("write")),
        }
    }
}
