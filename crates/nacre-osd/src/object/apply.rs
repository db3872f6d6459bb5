//! The second half of a change of an object: it puts rows and accounting into the caller's transaction.
//!
//! It is synchronous. A prepared change (`object/prepare.rs`) describes the change only; sizes and counts are merged with
//! the rows as they are in the transaction.

use crate::engine::credits::Credits;
use crate::engine::tx::Tx;
use crate::error::OsdError;
use crate::object::checksum::BLOCK_BYTES;
use crate::object::marks::OverwriteGuard;
use crate::object::objects::Objects;
use crate::object::range_lock::RangeGuard;
use crate::object::rows::{
    BLOCKS_PER_REGION, BlockRow, ObjectRow, REGION_BYTES, SECTORS_PER_BLOCK, block_ceil, block_floor,
    block_key, decode_block, decode_object, mask_of, object_key, regions_of,
};
use crate::object::scan::is_stopped;
use crate::table;
use crate::table::pins::Pins;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use nacre_types::{Codec, Extent, ObjectId, Owner, Timestamp};

/// Owner and time that a change gives to the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Charged when the change creates the object; an existing object keeps its owner.
    pub owner: Owner,
    /// Modification time; it never moves back.
    pub mtime: Timestamp,
}

pub(crate) enum ObjectChange {
    /// Blocks from `first` on hold data with these checksums.
    Write {
        first: u64,
        sums: Vec<u32>,
        end: u64,
        bytes: u64,
    },
    /// Several ranges, in order.
    WriteMany {
        parts: Vec<WrittenPart>,
    },
    /// Blocks are allocated; the size grows to `size`.
    Allocate {
        blocks: Range<u64>,
        size: u64,
    },
    /// The object shrinks: blocks beyond its new end are released. `freed`: the allocated blocks in regions after that
    /// of the new end.
    Shrink {
        size: u64,
        freed: u64,
        last_checksum: Option<u32>,
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

/// A range of bytes that was written: its blocks from `first` on have these checksums.
pub(crate) struct WrittenPart {
    first: u64,
    sums: Vec<u32>,
    range: Extent,
}
impl WrittenPart {
    pub(crate) fn new(first: u64, sums: Vec<u32>, range: Extent) -> Self {
        Self { first, sums, range }
    }
}

/// A change whose bytes are written and whose range is locked, to be applied in a transaction. If it is dropped instead,
/// nothing of it remains, except that overwritten bytes stay overwritten.
#[must_use = "the range of the object stays locked until it is applied or dropped"]
pub struct Prepared {
    inner: Option<Inner>,
    pins: Pins,
    credits: Credits,
}
struct Inner {
    objects: Rc<Objects>,
    object: ObjectId,
    change: ObjectChange,
    /// The region in which bytes beyond the old size, in its last block, were overwritten with zeros.
    zeroed: Option<u64>,
    overwrite: Option<OverwriteGuard>,
    /// Released when the rows are in the transaction.
    _guard: RangeGuard,
}

impl Prepared {
    pub(crate) fn new(
        objects: &Rc<Objects>,
        object: ObjectId,
        change: ObjectChange,
        guard: RangeGuard,
        pins: Pins,
        credits: Credits,
    ) -> Self {
        let inner =
            Inner { objects: objects.clone(), object, change, zeroed: None, overwrite: None, _guard: guard };
        Self { inner: Some(inner), pins, credits }
    }
    pub(crate) fn zeroed(mut self, region: Option<u64>) -> Self {
        if let Some(inner) = &mut self.inner {
            inner.zeroed = region;
        }
        self
    }
    /// The write overwrites bytes.
    pub(crate) fn overwriting(mut self, guard: Option<OverwriteGuard>) -> Self {
        if let Some(inner) = &mut self.inner {
            inner.overwrite = guard;
        }
        self
    }
    /// Upper bound of what `apply` puts into the transaction.
    pub fn credits(&self) -> Credits {
        self.credits
    }
    /// Takes the pins of the rows that `apply` reads: to be merged into the pins of the transaction.
    pub fn take_pins(&mut self) -> Pins {
        core::mem::take(&mut self.pins)
    }
    /// Puts rows and accounting into the transaction and releases the range. Call it last in the closure: a transaction
    /// that fails after it leaves checksums that do not match the bytes. Returns the new row.
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
            let blocks = inner.blocks_to_repair();
            if !blocks.is_empty() {
                objects.ctx().clone().spawn(inner.settle(blocks));
            }
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
        if let Some(region) = self.zeroed {
            let mut blocks = block_of_tx(tx, object, region)?;
            self.objects.unverified().changes(object, region, blocks.version);
            blocks.version = tx.transno().0;
            tx.put(table::BLOCK, &block_key(object, region), blocks.encode());
            let end_block = Extent::new(block_floor(row.size), block_ceil(row.size));
            self.objects.note_unstable(object, tx.transno(), end_block);
        }
        match self.change {
            ObjectChange::Write { first, sums, end, bytes } => {
                let parts = core::iter::once((first, &sums[..]));
                row.blocks += put_checksums(tx, &self.objects, object, parts)? * SECTORS_PER_BLOCK;
                row.size = row.size.max(end);
                row.written_to = row.written_to.max(end);
                self.objects.note_unstable(object, tx.transno(), Extent::new(end - bytes, end));
            }
            ObjectChange::WriteMany { parts } => {
                let sums = parts.iter().map(|part| (part.first, &part.sums[..]));
                row.blocks += put_checksums(tx, &self.objects, object, sums)? * SECTORS_PER_BLOCK;
                for WrittenPart { range, .. } in parts {
                    row.size = row.size.max(range.end);
                    row.written_to = row.written_to.max(range.end);
                    self.objects.note_unstable(object, tx.transno(), range);
                }
            }
            ObjectChange::Allocate { blocks, size } => {
                row.blocks += put_allocated(tx, object, &blocks)? * SECTORS_PER_BLOCK;
                row.size = row.size.max(size);
                self.objects.note_unstable(object, tx.transno(), Extent::new(0, 0));
            }
            ObjectChange::Grow { size } => row.size = row.size.max(size),
            // O_TRUNC of a file that never had an object.
            ObjectChange::Shrink { .. } if is_new => return Ok(ObjectRow::default()),
            ObjectChange::Shrink { size, freed, last_checksum } => {
                let freed = shrink(tx, &self.objects, object, &row, size, freed, last_checksum)?;
                row.blocks = row.blocks.saturating_sub(freed * SECTORS_PER_BLOCK);
                row.size = size;
                row.written_to = row.written_to.min(size);
            }
            ObjectChange::Destroy => return destroy(tx, &self.objects, object, old),
            ObjectChange::SetOwner { owner } => {
                if is_new {
                    return Ok(ObjectRow::default());
                }
                let bytes = sectors_as_bytes(row.blocks);
                tx.account(row.owner, -bytes, -1);
                tx.account(owner, bytes, 1);
                row.owner = owner;
            }
            ObjectChange::Nothing => return Ok(old.unwrap_or_default()),
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

    /// Repairs after the caller dropped the change, under the lock that is still held: overwritten blocks get matching
    /// checksums, and the rest of the change is undone.
    async fn settle(self, blocks: Vec<Range<u64>>) {
        let (objects, object) = (&self.objects, self.object);
        match objects.row(object).await {
            Ok(Some(row)) => {
                for range in &blocks {
                    objects.repair(object, range, row.size).await;
                }
            }
            Ok(None) => objects.release_unused(object, 0).await,
            Err(error) if is_stopped(&error) => {}
            Err(error) => objects.quarantine(object, &error).await,
        }
    }

    /// Blocks whose bytes no longer match their rows, or that are in the blob and in no row.
    fn blocks_to_repair(&self) -> Vec<Range<u64>> {
        match &self.change {
            ObjectChange::Write { first, sums, .. } => {
                core::iter::once(*first..*first + sums.len() as u64).collect()
            }
            ObjectChange::WriteMany { parts } => {
                parts.iter().map(|part| part.first..part.first + part.sums.len() as u64).collect()
            }
            ObjectChange::Allocate { blocks, .. } => vec![blocks.clone()],
            ObjectChange::Shrink { .. }
            | ObjectChange::Grow { .. }
            | ObjectChange::Destroy
            | ObjectChange::SetOwner { .. }
            | ObjectChange::Nothing => Vec::new(),
        }
    }
}

/// Puts the checksums of parts, given in order; returns how many blocks were not allocated before. Each row is written once.
fn put_checksums<'a>(
    tx: &mut Tx<'_>,
    objects: &Objects,
    object: ObjectId,
    parts: impl Iterator<Item = (u64, &'a [u32])>,
) -> Result<u64, OsdError> {
    let mut fresh = 0;
    let mut open: Option<(u64, BlockRow)> = None;
    for (first, sums) in parts {
        let blocks = first..first + sums.len() as u64;
        let mut sums = sums.iter();
        for region in regions_of(&blocks) {
            let mut row = match open.take() {
                Some((number, row)) if number == region => row,
                other => {
                    if let Some((number, row)) = other {
                        put_changed(tx, objects, object, number, row);
                    }
                    block_of_tx(tx, object, region)?
                }
            };
            let start = blocks.start.max(region * BLOCKS_PER_REGION);
            let end = blocks.end.min((region + 1) * BLOCKS_PER_REGION);
            for (block, &sum) in (start..end).zip(&mut sums) {
                fresh += u64::from(row.set(block, sum));
            }
            open = Some((region, row));
        }
    }
    if let Some((region, row)) = open {
        put_changed(tx, objects, object, region, row);
    }
    Ok(fresh)
}
/// Puts a row with new checksums, under the version of the transaction.
fn put_changed(tx: &mut Tx<'_>, objects: &Objects, object: ObjectId, region: u64, mut row: BlockRow) {
    objects.unverified().changes(object, region, row.version);
    let version = tx.transno().0;
    // The first row of a region: a crash brings no older one back, unless it undoes a truncate.
    if row.version == 0 && tx.get(table::RECLAIM, &object_key(object)).is_none() {
        let stable = objects.osd().stable().recorded();
        objects.overwrites().is_marked(object, region, version, stable);
    }
    row.version = version;
    tx.put(table::BLOCK, &block_key(object, region), row.encode());
}

/// Marks blocks as allocated; returns how many were not before.
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

/// Rows of a smaller size; returns how many blocks were released.
fn shrink(
    tx: &mut Tx<'_>,
    objects: &Objects,
    object: ObjectId,
    row: &ObjectRow,
    size: u64,
    freed_after: u64,
    last_checksum: Option<u32>,
) -> Result<u64, OsdError> {
    objects.logged().cut(tx, object, size.div_ceil(BLOCK_BYTES));
    let freed = if size == 0 {
        tx.delete_range(table::BLOCK, &block_key(object, 0), &block_key(object, u64::MAX));
        row.blocks / SECTORS_PER_BLOCK
    } else {
        let region = size / REGION_BYTES;
        let mut boundary = block_of_tx(tx, object, region)?;
        let before = boundary.clone();
        let gone = mask_of(region, &(size.div_ceil(BLOCK_BYTES)..u64::MAX));
        let freed = freed_after + boundary.clear(gone);
        if let Some(sum) = last_checksum {
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
    // Also of an earlier truncate whose reclaim is due: it cuts the blob to the new size, under a lock from `ReclaimRow::from`
    // on, and not before this change is durable.
    let is_due = tx.get(table::RECLAIM, &object_key(object)).is_some();
    if freed > 0 || last_checksum.is_some() || is_due {
        objects.release_blocks(tx, object, block_floor(size))?;
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
    objects.logged().cut(tx, object, 0);
    objects.release_blocks(tx, object, 0)?;
    objects.forget_unstable(object);
    objects.end_quarantine(object);
    Ok(row)
}

pub(crate) fn block_of_tx(tx: &Tx<'_>, object: ObjectId, region: u64) -> Result<BlockRow, OsdError> {
    match tx.get(table::BLOCK, &block_key(object, region)) {
        Some(bytes) => decode_block(object, region, bytes),
        None => Ok(BlockRow::default()),
    }
}

fn sectors_as_bytes(sectors: u64) -> i64 {
    i64::try_from(sectors.saturating_mul(512)).unwrap_or(i64::MAX)
}
