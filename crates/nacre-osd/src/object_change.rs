//! Changes of byte objects in two halves: prepare (waits, moves bytes), apply (rows, in the caller's transaction).
//!
//! The order inside a prepare is the contract with `object.rs`: range lock, rows, bytes. What crosses the object's
//! size is handled here: bytes of a written block beyond it may be anything (an overwrite that a crash cut off), so
//! a change that makes them part of the object writes zeros first.

use crate::error::OsdError;
use crate::object::{Objects, wrong_answer};
use crate::object_rows::{
    BLOCKS_PER_REGION, BlockRow, OBJECT_BYTES_MAX, ObjectRow, REGION_BYTES, SECTORS_PER_BLOCK, block_ceil,
    block_floor, block_key, blocks_of, decode_block, decode_object, mask_of, object_key, region_of_key,
    regions_of,
};
use crate::range_lock::RangeGuard;
use crate::reclaim::SLICE;
use crate::summed::{BLOCK_BYTES, block_sum, zeros};
use crate::tx::{Credits, Pins, Tx, table};
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Range;
use nacre_node::{FileId, StoreDone, StoreError, StoreOp};
use nacre_types::{Codec, Extent, ObjectId, Owner, Timestamp};

/// Most bytes that one allocation puts into one transaction; longer ones are cut.
const ALLOCATE_SLICE_BYTES: u64 = 1 << 30;

/// What a change says of the object besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Charged when the change makes the object; an object that exists keeps its owner.
    pub owner: Owner,
    /// Never moves the object's time back.
    pub mtime: Timestamp,
}

enum Change {
    /// Blocks from `first` on hold data with these sums.
    Write {
        first: u64,
        sums: Vec<u32>,
        end: u64,
        bytes: u64,
    },
    /// Blocks are allocated; the size grows to `size`.
    Allocate {
        blocks: Range<u64>,
        size: u64,
    },
    /// The object shrinks: blocks beyond go. `freed`: allocated blocks in regions after that of the new end.
    Shrink {
        size: u64,
        freed: u64,
        last_sum: Option<u32>,
    },
    /// The object grows by a hole.
    Grow {
        size: u64,
    },
    Destroy,
    SetOwner {
        owner: Owner,
    },
    Nothing,
}

/// A change whose bytes are in place and whose range is locked. Apply it in a transaction. One that is dropped
/// instead never was, except that bytes it has overwritten stay overwritten.
#[must_use = "the range of the object stays locked until it is applied or dropped"]
pub struct Prepared {
    inner: Option<Inner>,
    pins: Pins,
    credits: Credits,
}
struct Inner {
    objects: Rc<Objects>,
    object: ObjectId,
    change: Change,
    /// Given back when the rows are in the transaction.
    _guard: RangeGuard,
}

impl Prepared {
    /// Upper bound of what `apply` puts into the transaction.
    pub fn credits(&self) -> Credits {
        self.credits
    }
    /// The rows that `apply` looks at: to be merged into the pins of the transaction.
    pub fn take_pins(&mut self) -> Pins {
        core::mem::take(&mut self.pins)
    }
    /// Puts rows and accounting into the transaction and gives the range back. To be called last in the closure:
    /// a transaction that fails after it leaves sums behind that do not fit the bytes. The row is as it is now.
    ///
    /// # Errors
    /// `Corrupt` when a row cannot be read.
    ///
    /// # Panics
    /// When the pins of the transaction lack those of [`Prepared::take_pins`].
    pub fn apply(mut self, tx: &mut Tx<'_>, stamp: &Stamp) -> Result<ObjectRow, OsdError> {
        let inner = self.inner.take().expect("taken here only, and `apply` consumes");
        inner.apply(tx, stamp)
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            let objects = inner.objects.clone();
            if let Some(blocks) = inner.blocks_to_settle() {
                objects.ctx.clone().spawn(inner.settle(blocks));
            }
        }
    }
}

impl Objects {
    /// Writes the bytes of `data` at `offset`, beside others that write other blocks.
    ///
    /// # Errors
    /// `TooLarge`, `Quarantined`; `NoSpace` and others of the store: nothing of the object has changed then that
    /// can be read, except that overwritten bytes may be old or new.
    pub async fn prepare_write(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        data: Vec<Bytes>,
    ) -> Result<Prepared, OsdError> {
        self.room().await;
        let bytes: u64 = data.iter().map(|b| b.len() as u64).sum();
        let end = end_of(object, offset, bytes)?;
        if bytes == 0 {
            return self.prepare_nothing(object).await;
        }
        let (guard, row, tail) = self.lock_to_change(object, offset, end, end).await?;
        let (mut offset, mut data) = (offset, data);
        if let Some(tail) = tail
            && offset > row.size
        {
            if block_floor(offset) == tail {
                // Same block: the write itself begins at the old size.
                let mut padded = zeros(offset - row.size);
                padded.append(&mut data);
                (offset, data) = (row.size, padded);
            } else {
                self.zero_tail(object, row.size).await?;
            }
        }
        let blocks = blocks_of(offset, end);
        let pins = self.pins_of(object, &regions_of(&blocks)).await?;
        let keep_head = !offset.is_multiple_of(BLOCK_BYTES) && self.is_written(object, blocks.start).await?;
        let keep_tail = !end.is_multiple_of(BLOCK_BYTES)
            && end < row.size
            && self.is_written(object, blocks.end - 1).await?;
        let op = StoreOp::WriteSummed {
            file: FileId::Blob(object),
            offset,
            data,
            keep_head,
            keep_tail,
            size: row.size.max(end),
        };
        let sums = match self.ctx.io(op).await {
            Ok(StoreDone::Sums(sums)) if sums.len() as u64 == blocks.end - blocks.start => sums,
            Ok(_) => return Err(wrong_answer("summed write")),
            Err(error) => {
                self.repair(object, &blocks, row.size).await;
                return Err(store_error(error, bytes));
            }
        };
        // The bytes are on the device already: only rows need room.
        let credits = Credits { object_bytes: 0, ..Objects::write_credits(offset, end - offset) };
        let change = Change::Write { first: blocks.start, sums, end, bytes };
        Ok(self.prepared(object, guard, pins, credits, change))
    }

    /// Sets the size. What is cut off is gone from the object at once, from the device when that is durable.
    pub async fn prepare_truncate(
        self: &Rc<Self>,
        object: ObjectId,
        size: u64,
    ) -> Result<Prepared, OsdError> {
        end_of(object, size, 0)?;
        let (guard, row, tail) = self.lock_to_change(object, size, size, u64::MAX).await?;
        let grows = size > row.size;
        if tail.is_some() {
            self.zero_tail(object, row.size).await?;
        }
        let region = size / REGION_BYTES;
        let pins = self.pins_of(object, &(region..region + 1)).await?;
        let change = if grows {
            Change::Grow { size }
        } else {
            let last = size / BLOCK_BYTES;
            let is_cut =
                !size.is_multiple_of(BLOCK_BYTES) && size < row.size && self.is_written(object, last).await?;
            let last_sum = if is_cut { Some(self.sum_up_to(object, size).await?) } else { None };
            let freed = if size == 0 { 0 } else { self.allocated_from(object, region + 1).await? };
            Change::Shrink { size, freed, last_sum }
        };
        let credits = Objects::small_credits(!grows);
        Ok(self.prepared(object, guard, pins, credits, change))
    }

    /// Allocates the blocks of a range, so that later writes to it find room. `keep_size` as in fallocate(2).
    /// The stamp is that of the later `apply`: a long range takes several transactions.
    pub async fn prepare_allocate(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        len: u64,
        keep_size: bool,
        stamp: &Stamp,
    ) -> Result<Prepared, OsdError> {
        let end = end_of(object, offset, len)?;
        if len == 0 {
            return self.prepare_nothing(object).await;
        }
        let new_end = if keep_size { 0 } else { end };
        let (guard, row, tail) = self.lock_to_change(object, offset, new_end, end).await?;
        let file = FileId::Blob(object);
        if let Err(error) = self.ctx.io(StoreOp::Allocate { file, offset, len }).await {
            self.leak(object, offset).await;
            return Err(store_error(error, len));
        }
        let size = if keep_size { row.size } else { row.size.max(end) };
        if tail.is_some() {
            self.zero_tail(object, row.size).await?;
        }
        // Long ranges: all but the last slice is allocated by transactions of its own, without a change of size.
        let mut at = offset;
        while end - at > ALLOCATE_SLICE_BYTES {
            let slice = blocks_of(at, block_floor(at + ALLOCATE_SLICE_BYTES));
            at = slice.end * BLOCK_BYTES;
            if let Err(error) = self.allocate_slice(object, slice, stamp).await {
                self.leak(object, offset).await;
                return Err(error);
            }
        }
        let blocks = blocks_of(at, end);
        let pins = self.pins_of(object, &regions_of(&blocks)).await?;
        let credits = allocate_credits(&blocks);
        Ok(self.prepared(object, guard, pins, credits, Change::Allocate { blocks, size }))
    }

    /// Marks blocks as allocated in a transaction of its own, under the lock of the caller.
    async fn allocate_slice(
        self: &Rc<Self>,
        object: ObjectId,
        slice: Range<u64>,
        stamp: &Stamp,
    ) -> Result<(), OsdError> {
        let guard = self.locks.lock(object, Extent::new(0, 0), true).await;
        let pins = self.pins_of(object, &regions_of(&slice)).await?;
        let credits = allocate_credits(&slice);
        let room = self.osd.reserve(credits).await?;
        let change = Change::Allocate { blocks: slice, size: 0 };
        let prepared = self.prepared(object, guard, Pins::default(), credits, change);
        self.osd.transact(&pins, room, |tx| prepared.apply(tx, stamp)).map(drop)
    }

    /// Removes the object; idempotent. Works for a quarantined one too.
    pub async fn prepare_destroy(self: &Rc<Self>, object: ObjectId) -> Result<Prepared, OsdError> {
        let guard = self.locks.lock(object, Extent::ALL, true).await;
        let pins = self.pins_of(object, &(0..0)).await?;
        Ok(self.prepared(object, guard, pins, Objects::small_credits(true), Change::Destroy))
    }

    /// Charges the object to another owner; nothing if it does not exist.
    pub async fn prepare_set_owner(
        self: &Rc<Self>,
        object: ObjectId,
        owner: Owner,
    ) -> Result<Prepared, OsdError> {
        let guard = self.locks.lock(object, Extent::new(0, 0), true).await;
        let pins = self.pins_of(object, &(0..0)).await?;
        Ok(self.prepared(object, guard, pins, Objects::small_credits(false), Change::SetOwner { owner }))
    }

    async fn prepare_nothing(self: &Rc<Self>, object: ObjectId) -> Result<Prepared, OsdError> {
        self.healthy_row(object).await?;
        let guard = self.locks.lock(object, Extent::new(0, 0), false).await;
        let pins = self.pins_of(object, &(0..0)).await?;
        Ok(self.prepared(object, guard, pins, Objects::small_credits(false), Change::Nothing))
    }

    fn prepared(
        self: &Rc<Self>,
        object: ObjectId,
        guard: RangeGuard,
        pins: Pins,
        credits: Credits,
        change: Change,
    ) -> Prepared {
        let inner = Inner { objects: self.clone(), object, change, _guard: guard };
        Prepared { inner: Some(inner), pins, credits }
    }

    /// Locks the blocks of `offset..locked_end` for a change that makes the object at least `end` long; those from the
    /// old size on too when bytes of its block become part of the object. Answers the row under the lock and the
    /// start of that block.
    async fn lock_to_change(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        end: u64,
        locked_end: u64,
    ) -> Result<(RangeGuard, ObjectRow, Option<u64>), OsdError> {
        let mut from = block_floor(offset);
        loop {
            let guard = self.locks.lock(object, Extent::new(from, block_ceil(locked_end)), true).await;
            let row = self.healthy_row(object).await?;
            let reclaim = self.reclaim_row(object).await?;
            let Some(row) = row else {
                if reclaim.is_some() {
                    // Destroyed, and its blob is not gone yet.
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
            if tail < from {
                drop(guard);
                from = tail;
                continue;
            }
            if let Some(reclaim) = reclaim {
                // The bytes beyond the size may be durable data until the truncate is.
                self.osd.commit(nacre_types::Transno(reclaim.transno)).await?;
            }
            return Ok((guard, row, Some(tail)));
        }
    }

    /// Zeros from the size to the end of its block.
    async fn zero_tail(&self, object: ObjectId, size: u64) -> Result<(), OsdError> {
        let data = zeros(block_ceil(size) - size);
        let op = StoreOp::Write { file: FileId::Blob(object), offset: size, data };
        self.ctx.io(op).await.map(drop).map_err(|error| store_error(error, BLOCK_BYTES))
    }

    async fn pins_of(&self, object: ObjectId, regions: &Range<u64>) -> Result<Pins, OsdError> {
        let key = object_key(object);
        let mut pins = self.osd.fetch(&[(table::OBJECT, &key), (table::RECLAIM, &key)]).await?;
        if !regions.is_empty() {
            let (from, to) = (block_key(object, regions.start), block_key(object, regions.end));
            let limit = u32::try_from(regions.end - regions.start).unwrap_or(u32::MAX);
            self.osd.fetch_range(table::BLOCK, &from, &to, limit, &mut pins).await?;
        }
        Ok(pins)
    }

    async fn block_row(&self, object: ObjectId, region: u64) -> Result<BlockRow, OsdError> {
        match self.osd.get(table::BLOCK, &block_key(object, region)).await? {
            Some(bytes) => decode_block(object, region, &bytes),
            None => Ok(BlockRow::default()),
        }
    }
    async fn is_written(&self, object: ObjectId, block: u64) -> Result<bool, OsdError> {
        Ok(self.block_row(object, block / BLOCKS_PER_REGION).await?.is_written(block))
    }

    /// Sum of the block that `size` cuts, over the bytes before it.
    async fn sum_up_to(&self, object: ObjectId, size: u64) -> Result<u32, OsdError> {
        let offset = block_floor(size);
        let len = u32::try_from(size - offset).expect("less than a block");
        match self.ctx.io(StoreOp::Read { file: FileId::Blob(object), offset, len }).await? {
            StoreDone::Bytes(bytes) => Ok(block_sum(&bytes)),
            _ => Err(wrong_answer("read")),
        }
    }

    /// Allocated blocks in `region` and after it.
    async fn allocated_from(&self, object: ObjectId, region: u64) -> Result<u64, OsdError> {
        let last = block_key(object, u64::MAX);
        let mut key = block_key(object, region);
        let mut blocks = 0;
        loop {
            let rows = self.osd.scan(table::BLOCK, &key, &last, SLICE).await?;
            for (row_key, value) in &rows {
                let region = region_of_key(row_key).unwrap_or_default();
                blocks += u64::from(decode_block(object, region, value)?.allocated.count_ones());
                key = block_key(object, region + 1);
            }
            if rows.len() < SLICE as usize {
                return Ok(blocks);
            }
            self.ctx.yield_now().await;
        }
    }

    /// After a write that failed in the middle, under its lock: blocks that held data get the sums of what they
    /// hold now, blocks that did not are given back. An object that cannot be repaired is taken out of use.
    async fn repair(self: &Rc<Self>, object: ObjectId, blocks: &Range<u64>, size: u64) {
        match self.sum_again(object, blocks, size).await {
            Ok(()) => self.leak(object, blocks.start * BLOCK_BYTES).await,
            Err(error) if is_stopped(&error) => {}
            Err(error) => self.quarantine(object, &error).await,
        }
    }
    async fn sum_again(
        self: &Rc<Self>,
        object: ObjectId,
        blocks: &Range<u64>,
        size: u64,
    ) -> Result<(), OsdError> {
        let mut sums = Vec::new();
        for region in regions_of(blocks) {
            let mask = mask_of(region, blocks) & self.block_row(object, region).await?.written;
            for block in (region * BLOCKS_PER_REGION..).take(64).filter(|b| mask & (1 << (b % 64)) != 0) {
                let end = ((block + 1) * BLOCK_BYTES).min(size);
                sums.push((block, self.sum_of(object, block, end).await?));
            }
        }
        if sums.is_empty() { Ok(()) } else { self.put_sums(object, blocks, &sums).await }
    }
    async fn sum_of(&self, object: ObjectId, block: u64, end: u64) -> Result<u32, OsdError> {
        let offset = block * BLOCK_BYTES;
        let len = u32::try_from(end.saturating_sub(offset)).expect("at most a block");
        match self.ctx.io(StoreOp::Read { file: FileId::Blob(object), offset, len }).await? {
            StoreDone::Bytes(bytes) => Ok(block_sum(&bytes)),
            _ => Err(wrong_answer("read")),
        }
    }
    async fn put_sums(
        self: &Rc<Self>,
        object: ObjectId,
        blocks: &Range<u64>,
        sums: &[(u64, u32)],
    ) -> Result<(), OsdError> {
        let pins = self.pins_of(object, &regions_of(blocks)).await?;
        let bytes = (blocks.end - blocks.start) * BLOCK_BYTES;
        let credits =
            Credits { object_bytes: 0, frees: true, ..Objects::write_credits(0, bytes + REGION_BYTES) };
        let room = self.osd.reserve(credits).await?;
        self.osd
            .transact(&pins, room, |tx| {
                for &(block, sum) in sums {
                    let region = block / BLOCKS_PER_REGION;
                    let mut row = block_of_tx(tx, object, region)?;
                    row.set(block, sum);
                    tx.put(table::BLOCK, &block_key(object, region), row.encode());
                }
                self.note_unstable(object, tx.transno(), bytes);
                Ok::<_, OsdError>(())
            })
            .map(drop)
    }

    /// The blob may hold blocks from `from` on that no row speaks of.
    async fn leak(&self, object: ObjectId, from: u64) {
        let done: Result<(), OsdError> = async {
            let key = object_key(object);
            let pins = self.osd.fetch(&[(table::OBJECT, &key), (table::RECLAIM, &key)]).await?;
            let room = self.osd.reserve(Objects::small_credits(true)).await?;
            self.osd.transact(&pins, room, |tx| self.let_go(tx, object, block_floor(from))).map(drop)
        }
        .await;
        if let Err(error) = done
            && !is_stopped(&error)
        {
            tracing::warn!(%object, %error, "space of a failed write is not given back");
        }
    }
}

impl Inner {
    fn apply(self, tx: &mut Tx<'_>, stamp: &Stamp) -> Result<ObjectRow, OsdError> {
        let object = self.object;
        let key = object_key(object);
        let old = match tx.get(table::OBJECT, &key) {
            Some(bytes) => Some(decode_object(object, bytes)?),
            None => None,
        };
        let is_new = old.is_none();
        let mut row = old.unwrap_or(ObjectRow { owner: stamp.owner, ..ObjectRow::default() });
        let sectors_before = row.blocks;
        match self.change {
            Change::Write { first, sums, end, bytes } => {
                row.blocks += put_sums(tx, object, first, &sums)? * SECTORS_PER_BLOCK;
                row.size = row.size.max(end);
                self.objects.note_unstable(object, tx.transno(), bytes);
            }
            Change::Allocate { blocks, size } => {
                row.blocks += put_allocated(tx, object, &blocks)? * SECTORS_PER_BLOCK;
                row.size = row.size.max(size);
                self.objects.note_unstable(object, tx.transno(), 0);
            }
            Change::Grow { size } => row.size = row.size.max(size),
            // O_TRUNC of a file that never had an object.
            Change::Shrink { .. } if is_new => return Ok(ObjectRow::default()),
            Change::Shrink { size, freed, last_sum } => {
                let freed = shrink(tx, &self.objects, object, &row, size, freed, last_sum)?;
                row.blocks = row.blocks.saturating_sub(freed * SECTORS_PER_BLOCK);
                row.size = size;
            }
            Change::Destroy => return destroy(tx, &self.objects, object, old),
            Change::SetOwner { owner } => {
                if is_new {
                    return Ok(ObjectRow::default());
                }
                let bytes = sectors_as_bytes(row.blocks);
                tx.account(row.owner, -bytes, -1);
                tx.account(owner, bytes, 1);
                row.owner = owner;
            }
            Change::Nothing => return Ok(old.unwrap_or_default()),
        }
        let grown = sectors_as_bytes(row.blocks) - sectors_as_bytes(sectors_before);
        if grown != 0 || is_new {
            tx.account(row.owner, grown, i64::from(is_new));
        }
        row.mtime = row.mtime.max(stamp.mtime);
        row.version = tx.transno().0;
        tx.put(table::OBJECT, &key, row.to_vec());
        Ok(row)
    }

    /// Blocks whose bytes have changed under their rows, or that are in the blob and in no row.
    fn blocks_to_settle(&self) -> Option<Range<u64>> {
        match &self.change {
            Change::Write { first, sums, .. } => Some(*first..*first + sums.len() as u64),
            Change::Allocate { blocks, .. } => Some(blocks.clone()),
            Change::Shrink { .. }
            | Change::Grow { .. }
            | Change::Destroy
            | Change::SetOwner { .. }
            | Change::Nothing => None,
        }
    }

    /// The caller gave up after the bytes were written, under the lock that is still held: overwritten blocks get
    /// sums that fit, everything else of the change is as if it had not been.
    async fn settle(self, blocks: Range<u64>) {
        let (objects, object) = (&self.objects, self.object);
        match objects.row(object).await {
            Ok(Some(row)) => objects.repair(object, &blocks, row.size).await,
            Ok(None) => objects.leak(object, 0).await,
            Err(error) if is_stopped(&error) => {}
            Err(error) => objects.quarantine(object, &error).await,
        }
    }
}

/// Puts the sums of blocks from `first` on; answers how many were not allocated before.
fn put_sums(tx: &mut Tx<'_>, object: ObjectId, first: u64, sums: &[u32]) -> Result<u64, OsdError> {
    let mut fresh = 0;
    let blocks = first..first + sums.len() as u64;
    let mut sums = sums.iter();
    for region in regions_of(&blocks) {
        let mut row = block_of_tx(tx, object, region)?;
        let start = blocks.start.max(region * BLOCKS_PER_REGION);
        let end = blocks.end.min((region + 1) * BLOCKS_PER_REGION);
        for (block, &sum) in (start..end).zip(&mut sums) {
            fresh += u64::from(row.set(block, sum));
        }
        tx.put(table::BLOCK, &block_key(object, region), row.encode());
    }
    Ok(fresh)
}

/// Marks blocks as allocated; answers how many were not before.
fn put_allocated(tx: &mut Tx<'_>, object: ObjectId, blocks: &Range<u64>) -> Result<u64, OsdError> {
    let mut fresh = 0;
    for region in regions_of(blocks) {
        let mut row = block_of_tx(tx, object, region)?;
        let new = mask_of(region, blocks) & !row.allocated;
        if new != 0 {
            fresh += u64::from(new.count_ones());
            row.allocated |= new;
            tx.put(table::BLOCK, &block_key(object, region), row.encode());
        }
    }
    Ok(fresh)
}

/// Rows of a smaller size; answers how many blocks went.
fn shrink(
    tx: &mut Tx<'_>,
    objects: &Objects,
    object: ObjectId,
    row: &ObjectRow,
    size: u64,
    freed_after: u64,
    last_sum: Option<u32>,
) -> Result<u64, OsdError> {
    let freed = if size == 0 {
        tx.delete_range(table::BLOCK, &block_key(object, 0), &block_key(object, u64::MAX));
        row.blocks / SECTORS_PER_BLOCK
    } else {
        let region = size / REGION_BYTES;
        let mut boundary = block_of_tx(tx, object, region)?;
        let before = boundary.clone();
        let gone = mask_of(region, &(size.div_ceil(BLOCK_BYTES)..u64::MAX));
        let freed = freed_after + boundary.clear(gone);
        if let Some(sum) = last_sum {
            boundary.set(size / BLOCK_BYTES, sum);
        }
        if boundary.allocated == 0 {
            tx.delete(table::BLOCK, &block_key(object, region));
        } else if boundary != before {
            tx.put(table::BLOCK, &block_key(object, region), boundary.encode());
        }
        if freed_after > 0 {
            tx.delete_range(table::BLOCK, &block_key(object, region + 1), &block_key(object, u64::MAX));
        }
        freed
    };
    if freed > 0 || last_sum.is_some() {
        objects.let_go(tx, object, block_floor(size))?;
    }
    Ok(freed)
}

fn destroy(
    tx: &mut Tx<'_>,
    objects: &Objects,
    object: ObjectId,
    old: Option<ObjectRow>,
) -> Result<ObjectRow, OsdError> {
    let Some(row) = old else { return Ok(ObjectRow::default()) };
    tx.delete(table::OBJECT, &object_key(object));
    if row.blocks > 0 {
        tx.delete_range(table::BLOCK, &block_key(object, 0), &block_key(object, u64::MAX));
    }
    tx.account(row.owner, -sectors_as_bytes(row.blocks), -1);
    objects.let_go(tx, object, 0)?;
    objects.forget_unstable(object);
    objects.quarantined.borrow_mut().remove(&object);
    Ok(row)
}

fn block_of_tx(tx: &Tx<'_>, object: ObjectId, region: u64) -> Result<BlockRow, OsdError> {
    match tx.get(table::BLOCK, &block_key(object, region)) {
        Some(bytes) => decode_block(object, region, bytes),
        None => Ok(BlockRow::default()),
    }
}

fn sectors_as_bytes(sectors: u64) -> i64 {
    i64::try_from(sectors.saturating_mul(512)).unwrap_or(i64::MAX)
}

fn allocate_credits(blocks: &Range<u64>) -> Credits {
    let regions = regions_of(blocks);
    let regions = u32::try_from(regions.end - regions.start).unwrap_or(u32::MAX);
    Credits {
        rows: regions.saturating_add(2),
        // A region that holds data already has its sums too.
        row_bytes: regions.saturating_mul(24 + 16 + 256).saturating_add(256),
        // They are taken from the device already.
        object_bytes: 0,
        frees: false,
    }
}

fn end_of(object: ObjectId, offset: u64, len: u64) -> Result<u64, OsdError> {
    offset.checked_add(len).filter(|&end| end <= OBJECT_BYTES_MAX).ok_or(OsdError::TooLarge(object))
}

/// The target has ended: nothing is wrong with the object.
fn is_stopped(error: &OsdError) -> bool {
    matches!(error, OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped))
}

fn store_error(error: StoreError, needed_bytes: u64) -> OsdError {
    match error {
        StoreError::NoSpace => OsdError::NoSpace { needed_bytes },
        other => OsdError::Store(other),
    }
}
