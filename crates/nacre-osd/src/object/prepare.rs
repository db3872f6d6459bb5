//! The first half of a change of an object: it waits, and moves bytes. The second half is `object/apply.rs`.
//!
//! The order inside a prepare is the contract with `object/objects.rs`: range lock, rows, bytes. Changes that cross the
//! object's size are handled here: bytes of a written block beyond the size are undefined (an overwrite that a crash
//! interrupted may have left them), so a change that makes them part of the object writes zeros first.

use crate::engine::credits::Credits;
use crate::error::OsdError;
use crate::maintenance::reclaim::SLICE;
use crate::object::apply::{ObjectChange, Prepared, Stamp};
use crate::object::checksum::{BLOCK_BYTES, block_checksum, zeros};
use crate::object::objects::{Objects, unexpected_result};
use crate::object::range_lock::RangeGuard;
use crate::object::rows::{
    BLOCK_ROW_BYTES_MAX, BLOCKS_PER_REGION, BlockRow, OBJECT_BYTES_MAX, ObjectRow, REGION_BYTES, block_ceil,
    block_floor, block_key, blocks_of, decode_block, object_key, region_of_key, regions_of,
};
use crate::table;
use crate::table::pins::Pins;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Range;
use nacre_node::{FileId, Keep, StoreDone, StoreError, StoreOp, WriteTo};
use nacre_types::{Extent, ObjectId, Owner};

/// Bytes that one transaction allocates at most; longer allocations take several.
const ALLOCATE_SLICE_BYTES: u64 = 1 << 30;

impl Objects {
    /// Writes the bytes of `data` at `offset`; writes of other blocks proceed in parallel. A write must not begin after its
    /// deadline: `admit` is called after every wait, immediately before the first byte is written, and its result is
    /// returned for the transaction.
    ///
    /// # Errors
    /// That of `admit`; `TooLarge`, `Quarantined`; `NoSpace` and others of the store: nothing of the object has changed then
    /// that can be read, except that overwritten bytes may be old or new.
    pub async fn prepare_write<A, E: From<OsdError>>(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        data: Vec<Bytes>,
        to: WriteTo,
        admit: &dyn Fn() -> Result<A, E>,
    ) -> Result<(Prepared, A), E> {
        self.wait_for_writeback().await;
        let bytes: u64 = data.iter().map(|b| b.len() as u64).sum();
        let end = end_of(object, offset, bytes)?;
        if bytes == 0 {
            let nothing = self.prepare_nothing(object).await?;
            return Ok((nothing, admit()?));
        }
        let blocks = blocks_of(offset, end);
        let mut checked = true;
        let (guard, overwrite, pins, offset, sums, zeroed, admitted) = loop {
            let (guard, row, tail) =
                self.lock_to_change(object, vec![blocks_around(offset, end)], end).await?;
            let Some((keep_head, keep_tail)) = self.kept_beside(object, offset, end, row.size).await? else {
                drop(guard);
                self.reclaim_object(object).await?;
                continue;
            };
            let overwrite = self.begin_overwrite(object, &[blocks_of(offset, end.min(row.size))]).await?;
            let mut pins = self.pins_of(object, &regions_of(&blocks)).await?;
            let admitted = admit()?;
            let (offset, data, zeroed) = self.zero_gap(object, row.size, tail, offset, data.clone()).await?;
            if let Some(region) = zeroed {
                pins.merge(self.pins_of(object, &(region..region + 1)).await?);
            }
            let op = StoreOp::WriteChecksummed {
                file: FileId::Blob(object),
                offset,
                data,
                keep_head,
                keep_tail,
                size: row.size.max(end),
                written_to: checked.then_some(row.written_to),
                to,
            };
            match self.ctx().io(op).await {
                Ok(StoreDone::Checksums(sums)) if sums.len() as u64 == blocks.end - blocks.start => {
                    break (guard, overwrite, pins, offset, sums, zeroed, admitted);
                }
                Ok(_) => return Err(unexpected_result("checksummed write").into()),
                // Nothing was written. Missing bytes are marked as lost, and the write is repeated without this check.
                Err(StoreError::Missing { from, .. }) if checked => {
                    drop(guard);
                    self.mark_lost_from(object, from, row.written_to.max(end)).await?;
                    checked = false;
                }
                // Nothing was written.
                Err(StoreError::Mismatch { offset, .. }) => {
                    return Err(self.damaged(object, offset / BLOCK_BYTES).into());
                }
                Err(error) => {
                    self.repair(object, &blocks, row.size).await;
                    return Err(store_error(error, bytes).into());
                }
            }
        };
        // The bytes are on the device already: only rows need room.
        let credits =
            Credits { object_bytes: 0, in_place: true, ..Objects::write_credits(offset, end - offset) };
        let change = ObjectChange::Write { first: blocks.start, sums, end, bytes };
        let prepared = self.prepared(object, guard, pins, credits, change);
        Ok((prepared.zeroed(zeroed).overwriting(overwrite), admitted))
    }

    /// Sets the size. Truncated bytes leave the object at once, and the device when the change is durable.
    pub async fn prepare_truncate(
        self: &Rc<Self>,
        object: ObjectId,
        size: u64,
    ) -> Result<Prepared, OsdError> {
        end_of(object, size, 0)?;
        let (guard, row, tail) =
            self.lock_to_change(object, vec![blocks_around(size, u64::MAX)], size).await?;
        let grows = size > row.size;
        let zeroed = match tail {
            Some(_) => Some(self.zero_tail(object, row.size).await?),
            None => None,
        };
        let region = size / REGION_BYTES;
        let mut pins = self.pins_of(object, &(region..region + 1)).await?;
        if let Some(region) = zeroed {
            pins.merge(self.pins_of(object, &(region..region + 1)).await?);
        }
        let change = if grows {
            ObjectChange::Grow { size }
        } else {
            let last = size / BLOCK_BYTES;
            let is_cut =
                !size.is_multiple_of(BLOCK_BYTES) && size < row.size && self.is_written(object, last).await?;
            if is_cut {
                self.unlog_before(object, last..last + 1).await?;
            }
            let last_checksum =
                if is_cut { Some(self.checksum_up_to(object, size, row.size).await?) } else { None };
            let freed = if size == 0 { 0 } else { self.allocated_from(object, region + 1).await? };
            self.thin(object, if size == 0 { 0 } else { region + 1 }).await?;
            ObjectChange::Shrink { size, freed, last_checksum }
        };
        let credits = Objects::small_credits(!grows);
        Ok(self.prepared(object, guard, pins, credits, change).zeroed(zeroed))
    }

    /// Allocates the blocks of a range, so that later writes to it cannot run out of space. `keep_size` as in fallocate(2).
    /// The stamp is that of the later `apply`: a long range takes several transactions. `admit`: see
    /// [`Self::prepare_write`].
    ///
    /// # Errors
    /// Those of [`Self::prepare_write`].
    pub async fn prepare_allocate<A, E: From<OsdError>>(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        len: u64,
        keep_size: bool,
        stamp: &Stamp,
        admit: &dyn Fn() -> Result<A, E>,
    ) -> Result<(Prepared, A), E> {
        let end = end_of(object, offset, len)?;
        if len == 0 {
            let nothing = self.prepare_nothing(object).await?;
            return Ok((nothing, admit()?));
        }
        let new_end = if keep_size { 0 } else { end };
        let (guard, row, tail) =
            self.lock_to_change(object, vec![blocks_around(offset, end)], new_end).await?;
        let admitted = admit()?;
        let file = FileId::Blob(object);
        if let Err(error) = self.ctx().io(StoreOp::Allocate { file, offset, len }).await {
            self.release_unused(object, offset).await;
            return Err(store_error(error, len).into());
        }
        let size = if keep_size { row.size } else { row.size.max(end) };
        let zeroed = match tail {
            Some(_) => Some(self.zero_tail(object, row.size).await?),
            None => None,
        };
        // Long ranges: all but the last slice is allocated by transactions of its own, without a change of size.
        let mut at = offset;
        while end - at > ALLOCATE_SLICE_BYTES {
            let slice = blocks_of(at, block_floor(at + ALLOCATE_SLICE_BYTES));
            at = slice.end * BLOCK_BYTES;
            if let Err(error) = self.allocate_slice(object, slice, stamp).await {
                self.release_unused(object, offset).await;
                return Err(error.into());
            }
        }
        let blocks = blocks_of(at, end);
        let mut pins = self.pins_of(object, &regions_of(&blocks)).await?;
        if let Some(region) = zeroed {
            pins.merge(self.pins_of(object, &(region..region + 1)).await?);
        }
        let credits = allocate_credits(&blocks);
        let change = ObjectChange::Allocate { blocks, size };
        Ok((self.prepared(object, guard, pins, credits, change).zeroed(zeroed), admitted))
    }

    /// Marks blocks as allocated in a transaction of its own, under the lock of the caller.
    async fn allocate_slice(
        self: &Rc<Self>,
        object: ObjectId,
        slice: Range<u64>,
        stamp: &Stamp,
    ) -> Result<(), OsdError> {
        let guard = self.locks().lock(object, Extent::new(0, 0), true).await;
        let pins = self.pins_of(object, &regions_of(&slice)).await?;
        let credits = allocate_credits(&slice);
        let room = self.osd().reserve(credits).await?;
        let change = ObjectChange::Allocate { blocks: slice, size: 0 };
        let prepared = self.prepared(object, guard, Pins::default(), credits, change);
        self.osd().transact(&pins, room, |tx| prepared.apply(tx, stamp)).map(drop)
    }

    /// Removes the object, even a quarantined one. Idempotent.
    pub async fn prepare_destroy(self: &Rc<Self>, object: ObjectId) -> Result<Prepared, OsdError> {
        let guard = self.locks().lock(object, Extent::ALL, true).await;
        self.thin(object, 0).await?;
        let pins = self.pins_of(object, &(0..0)).await?;
        Ok(self.prepared(object, guard, pins, Objects::small_credits(true), ObjectChange::Destroy))
    }
    /// Prepares the deletion of block rows from a region on.
    async fn thin(&self, object: ObjectId, region: u64) -> Result<(), OsdError> {
        self.osd().thin(table::BLOCK, &block_key(object, region), &block_key(object, u64::MAX)).await
    }

    /// Charges the object to another owner; nothing if it does not exist.
    pub async fn prepare_set_owner(
        self: &Rc<Self>,
        object: ObjectId,
        owner: Owner,
    ) -> Result<Prepared, OsdError> {
        let guard = self.locks().lock(object, Extent::new(0, 0), true).await;
        let pins = self.pins_of(object, &(0..0)).await?;
        Ok(self.prepared(
            object,
            guard,
            pins,
            Objects::small_credits(false),
            ObjectChange::SetOwner { owner },
        ))
    }

    async fn prepare_nothing(self: &Rc<Self>, object: ObjectId) -> Result<Prepared, OsdError> {
        self.healthy_row(object).await?;
        let guard = self.locks().lock(object, Extent::new(0, 0), false).await;
        let pins = self.pins_of(object, &(0..0)).await?;
        Ok(self.prepared(object, guard, pins, Objects::small_credits(false), ObjectChange::Nothing))
    }

    pub(crate) fn prepared(
        self: &Rc<Self>,
        object: ObjectId,
        guard: RangeGuard,
        pins: Pins,
        credits: Credits,
        change: ObjectChange,
    ) -> Prepared {
        Prepared::new(self, object, change, guard, pins, credits)
    }

    /// Locks whole blocks, given in order, for a change that makes the object at least `end` long. Also locks the blocks from
    /// the old size on to the first of these behind it, if bytes of the old last block become part of the object. Returns the
    /// row under the lock and the start of that block.
    pub(crate) async fn lock_to_change(
        self: &Rc<Self>,
        object: ObjectId,
        mut blocks: Vec<Extent>,
        end: u64,
    ) -> Result<(RangeGuard, ObjectRow, Option<u64>), OsdError> {
        self.refresh(object).await?;
        loop {
            let guard = self.locks().lock_all(object, &blocks, true).await;
            let row = self.healthy_row(object).await?;
            let reclaim = self.reclaim_row(object).await?;
            let Some(row) = row else {
                if reclaim.is_some() {
                    // The object is destroyed, and its blob is not deleted yet.
                    drop(guard);
                    self.reclaim_object(object).await?;
                    continue;
                }
                return Ok((guard, ObjectRow::default(), None));
            };
            let last = row.size / BLOCK_BYTES;
            let crosses = end > row.size && !row.size.is_multiple_of(BLOCK_BYTES);
            if !crosses || !self.is_written(object, last).await? {
                return Ok((guard, row, None));
            }
            let tail = last * BLOCK_BYTES;
            let is_locked = blocks.iter().any(|locked| locked.start <= tail && tail < locked.end);
            if !is_locked && let Some(behind) = blocks.iter_mut().find(|locked| locked.start > tail) {
                drop(guard);
                behind.start = tail;
                continue;
            }
            if reclaim.is_some() {
                // The bytes beyond the size may be on the device, as durable data until the truncate is.
                drop(guard);
                self.reclaim_object(object).await?;
                continue;
            }
            return Ok((guard, row, Some(tail)));
        }
    }

    /// Before a write beyond the size: zeros from the size to the end of its block, if that block (`tail`) is written.
    /// Returns the write with such zeros in front if it begins in the same block, and otherwise the region of the block.
    async fn zero_gap(
        &self,
        object: ObjectId,
        size: u64,
        tail: Option<u64>,
        offset: u64,
        mut data: Vec<Bytes>,
    ) -> Result<(u64, Vec<Bytes>, Option<u64>), OsdError> {
        match tail {
            Some(tail) if offset > size && block_floor(offset) == tail => {
                let mut padded = zeros(offset - size);
                padded.append(&mut data);
                Ok((size, padded, None))
            }
            Some(_) if offset > size => Ok((offset, data, Some(self.zero_tail(object, size).await?))),
            _ => Ok((offset, data, None)),
        }
    }

    /// Zeros from the size to the end of its block, whose bytes before it must be there; returns its region.
    pub(crate) async fn zero_tail(&self, object: ObjectId, size: u64) -> Result<u64, OsdError> {
        let region = size / REGION_BYTES;
        let row = self.block_row(object, region).await?;
        let kept = self.read_required(object, &row, block_floor(size), size).await?;
        let mut data = vec![kept];
        data.extend(zeros(block_ceil(size) - size));
        let op = StoreOp::Write { file: FileId::Blob(object), offset: block_floor(size), data };
        self.ctx().io(op).await.map_err(|error| store_error(error, BLOCK_BYTES))?;
        Ok(region)
    }

    pub(crate) async fn pins_of(&self, object: ObjectId, regions: &Range<u64>) -> Result<Pins, OsdError> {
        let key = object_key(object);
        let mut pins = self.osd().fetch(&[(table::OBJECT, &key), (table::RECLAIM, &key)]).await?;
        if !regions.is_empty() {
            let (from, to) = (block_key(object, regions.start), block_key(object, regions.end));
            let limit = u32::try_from(regions.end - regions.start).unwrap_or(u32::MAX);
            self.osd().fetch_range(table::BLOCK, &from, &to, limit, &mut pins).await?;
        }
        Ok(pins)
    }

    pub(crate) async fn block_row(&self, object: ObjectId, region: u64) -> Result<BlockRow, OsdError> {
        match self.osd().get(table::BLOCK, &block_key(object, region)).await? {
            Some(bytes) => decode_block(object, region, &bytes),
            None => Ok(BlockRow::default()),
        }
    }
    async fn is_written(&self, object: ObjectId, block: u64) -> Result<bool, OsdError> {
        Ok(self.block_row(object, block / BLOCKS_PER_REGION).await?.is_written(block))
    }
    /// The bytes that a write of `offset..end` keeps of its first and last block. `None`: truncated bytes that are
    /// still in the blob must be removed first, because zeros beside the bytes must not cover them: after a loss no
    /// client replays those zeros.
    pub(crate) async fn kept_beside(
        &self,
        object: ObjectId,
        offset: u64,
        end: u64,
        size: u64,
    ) -> Result<Option<(Keep, Keep)>, OsdError> {
        let (first, last) = (offset / BLOCK_BYTES, (end - 1) / BLOCK_BYTES);
        let head = !offset.is_multiple_of(BLOCK_BYTES);
        let tail = !end.is_multiple_of(BLOCK_BYTES) && end < size;
        let keep_head = self.kept(object, head.then_some(first), size).await?;
        let keep_tail = self.kept(object, tail.then_some(last), size).await?;
        let fills = head != keep_head.is_any() || tail != keep_tail.is_any();
        if fills && self.reclaim_row(object).await?.is_some_and(|cut| end > cut.from) {
            return Ok(None);
        }
        Ok(Some((keep_head, keep_tail)))
    }
    /// The other bytes of this block that a change of a part of it must keep.
    async fn kept(&self, object: ObjectId, block: Option<u64>, size: u64) -> Result<Keep, OsdError> {
        let Some(block) = block else { return Ok(Keep::Nothing) };
        let row = self.block_row(object, block / BLOCKS_PER_REGION).await?;
        if row.is_lost(block) {
            let from = block * BLOCK_BYTES;
            return Err(OsdError::Lost { object, from, to: from + BLOCK_BYTES });
        }
        if !row.is_written(block) {
            return Ok(Keep::Nothing);
        }
        let len = size.saturating_sub(block * BLOCK_BYTES).min(BLOCK_BYTES) as u32;
        let mut sums = self.expected(object, block / BLOCKS_PER_REGION, &row, &(block..block + 1));
        Ok(sums.next().map_or(Keep::Bytes, |(_, sum)| Keep::Verified { sum, len }))
    }

    /// Checksum of the block that contains `to`, over the bytes before it. The object ends at `size`.
    async fn checksum_up_to(&self, object: ObjectId, to: u64, size: u64) -> Result<u32, OsdError> {
        let row = self.block_row(object, to / REGION_BYTES).await?;
        let (from, end) = (block_floor(to), (block_floor(to) + BLOCK_BYTES).min(size));
        let block = self.read_required(object, &row, from, end).await?;
        Ok(block_checksum(&block[..(to - from) as usize]))
    }

    /// Allocated blocks in `region` and after it.
    async fn allocated_from(&self, object: ObjectId, region: u64) -> Result<u64, OsdError> {
        let last = block_key(object, u64::MAX);
        let mut key = block_key(object, region);
        let mut blocks = 0;
        loop {
            let rows = self.osd().scan(table::BLOCK, &key, &last, SLICE).await?;
            for (row_key, value) in &rows {
                let region = region_of_key(row_key).unwrap_or_default();
                blocks += u64::from(decode_block(object, region, value)?.allocated.count_ones());
                key = block_key(object, region + 1);
            }
            if rows.len() < SLICE as usize {
                return Ok(blocks);
            }
            self.ctx().yield_now().await;
        }
    }
}

fn allocate_credits(blocks: &Range<u64>) -> Credits {
    let regions = regions_of(blocks);
    let regions = u32::try_from(regions.end - regions.start).unwrap_or(u32::MAX);
    Credits {
        rows: regions.saturating_add(3),
        // A region that holds data already has its checksums too.
        row_bytes: regions.saturating_add(1).saturating_mul(BLOCK_ROW_BYTES_MAX).saturating_add(256),
        // The bytes are taken from the device already.
        in_place: true,
        ..Credits::default()
    }
}

/// The blocks of a range of bytes, to be locked.
pub(crate) fn blocks_around(offset: u64, end: u64) -> Extent {
    Extent::new(block_floor(offset), block_ceil(end))
}

pub(crate) fn end_of(object: ObjectId, offset: u64, len: u64) -> Result<u64, OsdError> {
    offset.checked_add(len).filter(|&end| end <= OBJECT_BYTES_MAX).ok_or(OsdError::TooLarge(object))
}

pub(crate) fn store_error(error: StoreError, needed_bytes: u64) -> OsdError {
    match error {
        StoreError::NoSpace => OsdError::NoSpace { needed_bytes },
        other => OsdError::Store(other),
    }
}
