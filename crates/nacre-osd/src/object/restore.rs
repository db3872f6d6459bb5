//! Restoring bytes after an unclean start: replayed bytes of a committed write are written where they were lost.
//!
//! The rows of such a write are in the log. They describe the final content of its blocks, including later writes, a
//! truncate, or the removal of the object. So replayed bytes are written only to blocks whose content does not match
//! its checksum, and a client whose view is older than that of others cannot bring back old bytes. (A block whose latest
//! overwrite was cut off does not match either. Therefore bytes are stable, and not replayed, before another client may
//! overwrite them: `nacre-ost/src/uncommitted.rs`.) A block that does match is rewritten with its own bytes: they may be only
//! in the kernel's cache, on pages that a failed sync has marked clean, and no later sync would write those.

use crate::error::OsdError;
use crate::object::checksum::{BLOCK_BYTES, block_checksum};
use crate::object::objects::{Objects, unexpected_result};
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
    /// Writes `data` of a replayed write, whose rows exist, to the blocks that have lost it. Rows do not change.
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
    /// The same for a replayed truncate: bytes beyond `size` are zeros until later writes are replayed.
    ///
    /// # Errors
    /// Those of the store and of the engine.
    pub async fn restore_truncate(self: &Rc<Self>, object: ObjectId, size: u64) -> Result<(), OsdError> {
        self.restore_zeros(object, Extent::new(size, u64::MAX)).await
    }
    /// The same for a range of zeros.
    ///
    /// # Errors
    /// Those of the store and of the engine.
    pub async fn restore_zeros(self: &Rc<Self>, object: ObjectId, range: Extent) -> Result<(), OsdError> {
        let zeros = |from, to| Bytes::from(vec![0; usize::try_from(to - from).expect("at most a block")]);
        self.restore_range(object, range.start, range.end, zeros).await
    }

    /// Writes bytes to the written blocks of a range whose content does not match their checksum.
    async fn restore_range(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        end: u64,
        bytes: impl Fn(u64, u64) -> Bytes,
    ) -> Result<(), OsdError> {
        self.refresh(object).await?;
        // A file that is shorter than its stable bytes is damaged: this is recorded before the file grows again.
        let written_to = self.row(object).await?.unwrap_or_default().written_to;
        if let StoreDone::Len(len) = self.ctx().io(StoreOp::Len { file: FileId::Blob(object) }).await?
            && len.unwrap_or(0) < written_to
        {
            self.mark_lost_from(object, len.unwrap_or(0), written_to).await?;
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
                    let held = self.read_padded(object, block, (first + BLOCK_BYTES).min(row.size)).await?;
                    match block_checksum(&held) == sum {
                        true => self.rewrite(object, first, held).await?,
                        false => self.rewrite(object, from, bytes(from, to)).await?,
                    }
                }
            }
            if rows.is_empty() {
                return Ok(());
            }
        }
    }
    async fn rewrite(&self, object: ObjectId, offset: u64, lost: Bytes) -> Result<(), OsdError> {
        let range = Extent::new(offset, offset + lost.len() as u64);
        self.note_unstable(object, self.osd().last_transno(), range);
        let op = StoreOp::Write { file: FileId::Blob(object), offset, data: vec![lost] };
        match self.ctx().io(op).await? {
            StoreDone::Unit => Ok(()),
            _ => Err(unexpected_result("write")),
        }
    }
}
