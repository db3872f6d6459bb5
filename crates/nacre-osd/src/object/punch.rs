//! Zeros inside an object, and the space of blocks that hold none of its bytes.
//!
//! Blocks that a range covers as a whole are no longer marked as written, so they read as zeros whatever the blob
//! holds. The caller writes zeros to the rest ([`Objects::partly_covered`]). The range stays locked until that is
//! durable: a crash must not bring back the checksums of bytes that a later write has overwritten, or that were freed.
//! Only then is space freed, in the blob first. A crash in between leaves blocks allocated that hold nothing, as
//! fallocate(2) does.
//!
//! The blob holds the old bytes durably until it is synced after that, or for good if the space stays allocated. A later
//! write of a part of a block puts zeros beside its bytes, which no client makes again after a loss of the machine. So the
//! transaction requests a reclaim, which makes zeros of the old bytes durably (`maintenance/reclaim.rs`), and such a write
//! waits for it (`kept_beside` in `object/prepare.rs`).

use crate::engine::credits::Credits;
use crate::error::OsdError;
use crate::object::apply::{ObjectChange, Prepared, block_of_tx};
use crate::object::checksum::BLOCK_BYTES;
use crate::object::objects::Objects;
use crate::object::rows::{
    BLOCK_ROW_BYTES_MAX, BLOCKS_PER_REGION, BlockRow, SECTORS_PER_BLOCK, block_ceil, block_floor, block_key,
    decode_block, decode_object, mask_of, object_key, region_of_key, regions_of,
};
use crate::table;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use nacre_types::{Codec, Extent, ObjectId};

/// Block rows that one transaction changes.
const SLICE: u32 = 64;

/// Blocks of one region: a mask.
type Selected = (u64, u64);

impl Objects {
    /// The parts of `range` that hold bytes of the object and lie in blocks which the range does not cover as a whole.
    ///
    /// # Errors
    /// Those of the engine.
    pub async fn partly_covered(&self, object: ObjectId, range: Extent) -> Result<Vec<Extent>, OsdError> {
        let size = self.state(object).await?.size;
        let (first, last) = (block_floor(range.start), block_floor(range.end));
        let head = Extent::new(range.start, range.end.min(block_ceil(range.start)));
        let tail = Extent::new(range.start.max(last), range.end);
        let mut parts = Vec::new();
        for part in [head, tail] {
            let part = Extent::new(part.start, part.end.min(size));
            let again = part.start >= last && first == last && !parts.is_empty();
            if part.start < part.end && !again && self.holds_bytes(object, part.start).await? {
                parts.push(part);
            }
        }
        Ok(parts)
    }
    async fn holds_bytes(&self, object: ObjectId, at: u64) -> Result<bool, OsdError> {
        let block = at / BLOCK_BYTES;
        Ok(self.block_row(object, block / BLOCKS_PER_REGION).await?.is_written(block))
    }

    /// Blocks that lie in `range` as a whole read as zeros from now on, durably when this returns. `frees`: their space is
    /// free; otherwise they stay allocated. Takes transactions of its own; the size stays what it is.
    ///
    /// # Errors
    /// `Quarantined`; those of store and engine: some of the blocks may be zeros then.
    pub async fn zero_blocks(
        self: &Rc<Self>,
        object: ObjectId,
        range: Extent,
        frees: bool,
    ) -> Result<(), OsdError> {
        let blocks = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
        if blocks.is_empty() {
            return Ok(());
        }
        self.refresh(object).await?;
        let locked = Extent::new(blocks.start * BLOCK_BYTES, blocks.end.saturating_mul(BLOCK_BYTES));
        let _guard = self.locks().lock(object, locked, true).await;
        if self.healthy_row(object).await?.is_none() {
            return Ok(());
        }
        self.unlog_before(object, blocks.clone()).await?;
        let old_bytes_from = Some(locked.start);
        let zeroed =
            self.each_slice(object, &blocks, |row| row.written, BlockRow::unwrite, old_bytes_from).await?;
        if zeroed || frees {
            self.osd().commit(self.osd().last_transno()).await?;
        }
        if frees {
            let empty = |row: &BlockRow| row.allocated & !row.written;
            let clear = |row: &mut BlockRow, mask| {
                row.clear(mask);
            };
            self.each_slice(object, &blocks, empty, clear, None).await?;
        }
        Ok(())
    }

    /// Changes all blocks of a range that `select` names, some rows at a time. Space of blocks that are no longer allocated
    /// is freed in the blob before. `old_bytes_from`: the blob still holds bytes from there on, and they are to be removed.
    /// Returns whether there were any.
    async fn each_slice(
        self: &Rc<Self>,
        object: ObjectId,
        blocks: &Range<u64>,
        select: impl Fn(&BlockRow) -> u64,
        change: impl Fn(&mut BlockRow, u64),
        old_bytes_from: Option<u64>,
    ) -> Result<bool, OsdError> {
        let regions = regions_of(blocks);
        let (mut next, last) = (block_key(object, regions.start), block_key(object, regions.end));
        let mut any = false;
        loop {
            let rows = self.osd().scan(table::BLOCK, &next, &last, SLICE).await?;
            let mut selected: Vec<Selected> = Vec::new();
            for (key, value) in &rows {
                let region = region_of_key(key).unwrap_or_default();
                next = block_key(object, region + 1);
                let mut row = decode_block(object, region, value)?;
                let mask = select(&row) & mask_of(region, blocks);
                if mask == 0 {
                    continue;
                }
                change(&mut row, mask);
                if row.allocated & mask == 0 {
                    self.free_in_blob(object, region, mask).await?;
                }
                selected.push((region, mask));
            }
            if !selected.is_empty() {
                any = true;
                self.change_rows(object, &selected, &change, old_bytes_from).await?;
            }
            if rows.len() < SLICE as usize {
                return Ok(any);
            }
        }
    }

    async fn free_in_blob(&self, object: ObjectId, region: u64, mask: u64) -> Result<(), OsdError> {
        let base = region * BLOCKS_PER_REGION;
        let mut at = 0;
        while at < BLOCKS_PER_REGION {
            let len = u64::from((mask >> at).trailing_ones());
            if len == 0 {
                at += 1;
                continue;
            }
            self.punch(object, (base + at) * BLOCK_BYTES, (base + at + len) * BLOCK_BYTES).await?;
            at += len;
        }
        Ok(())
    }

    async fn change_rows(
        self: &Rc<Self>,
        object: ObjectId,
        selected: &[Selected],
        change: &impl Fn(&mut BlockRow, u64),
        old_bytes_from: Option<u64>,
    ) -> Result<(), OsdError> {
        let object_key = object_key(object);
        let block_keys: Vec<_> = selected.iter().map(|(region, _)| block_key(object, *region)).collect();
        let mut keys =
            alloc::vec![(table::OBJECT, object_key.as_slice()), (table::RECLAIM, object_key.as_slice())];
        keys.extend(block_keys.iter().map(|key| (table::BLOCK, key.as_slice())));
        let pins = self.osd().fetch(&keys).await?;
        let rows = u32::try_from(selected.len()).unwrap_or(u32::MAX).saturating_add(3);
        let row_bytes = rows.saturating_mul(BLOCK_ROW_BYTES_MAX);
        let room = self.osd().reserve(Credits { rows, row_bytes, frees: true, ..Credits::default() }).await?;
        self.osd()
            .transact(&pins, room, |tx| {
                let Some(bytes) = tx.get(table::OBJECT, &object_key) else { return Ok(()) };
                let mut row = decode_object(object, bytes)?;
                let mut freed = 0;
                for (&(region, mask), key) in selected.iter().zip(&block_keys) {
                    let mut blocks = block_of_tx(tx, object, region)?;
                    let before = blocks.allocated.count_ones();
                    change(&mut blocks, mask);
                    freed += u64::from(before - blocks.allocated.count_ones());
                    if blocks.allocated == 0 {
                        tx.delete(table::BLOCK, key);
                        continue;
                    }
                    self.unverified().changes(object, region, blocks.version);
                    blocks.version = tx.transno().0;
                    tx.put(table::BLOCK, key, blocks.encode());
                }
                row.blocks = row.blocks.saturating_sub(freed * SECTORS_PER_BLOCK);
                row.version = tx.transno().0;
                let bytes = i64::try_from(freed * BLOCK_BYTES).unwrap_or(i64::MAX);
                if bytes != 0 {
                    tx.account(row.owner, -bytes, 0);
                }
                tx.put(table::OBJECT, &object_key, row.to_vec());
                if let Some(from) = old_bytes_from {
                    self.release_blocks(tx, object, from)?;
                }
                Ok::<_, OsdError>(())
            })
            .map(drop)
    }

    /// Nothing but the time of the object changes.
    ///
    /// # Errors
    /// `Quarantined`; those of the engine.
    pub async fn prepare_touch(self: &Rc<Self>, object: ObjectId) -> Result<Prepared, OsdError> {
        let exists = self.healthy_row(object).await?.is_some();
        let guard = self.locks().lock(object, Extent::new(0, 0), true).await;
        let pins = self.pins_of(object, &(0..0)).await?;
        let change = if exists { ObjectChange::Grow { size: 0 } } else { ObjectChange::Nothing };
        Ok(self.prepared(object, guard, pins, Objects::small_credits(false), change))
    }
}
