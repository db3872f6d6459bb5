//! [`Objects`]: the entry of the object layer. Reads, sync and state; changes are prepared in `object/prepare.rs`.
//!
//! A change has two halves. *Prepare* locks the byte range (`object/range_lock.rs`), reads the rows that it needs and
//! writes the bytes to the blob; *apply* puts the rows into the caller's transaction and releases the range. Because
//! the range stays locked in between, the checksums in the rows are those of the bytes in the blob, and a replay in the
//! order of transnos gives the same bytes.
//!
//! Invariants: (1) a block that is not marked as written reads as zeros, whatever the blob holds; so a truncate or
//! destroy changes rows only, and the blob is truncated once that is durable (`maintenance/reclaim.rs`). (2) Bytes of a
//! written block at or beyond the size are never used: a change that extends the object over them writes zeros first.
//! (3) Block rows of a range change only under its exclusive range lock; size and block count of the object are
//! merged at apply, so writers of different ranges do not wait for each other. (4) A change that was prepared and not
//! applied leaves matching checksums, and its new blocks are released. (5) The file of an object is at least
//! [`ObjectRow::written_to`] long; bytes of a written block beyond its end are lost, not zeros (`object/lost.rs`).
//!
//! Every read is verified (`object/verify.rs`), and so are the bytes that a change keeps. Regions are marked before they are
//! overwritten (`object/overwrite.rs`).

use crate::engine::credits::Credits;
use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::maintenance::reclaim::ReclaimTask;
use crate::maintenance::scrub_status::Scrub;
use crate::maintenance::writeback::Writeback;
use crate::object::cache_trust::CacheTrust;
use crate::object::checksum::{BLOCK_BYTES, zeros};
use crate::object::logged_blocks::Logged;
use crate::object::marks::Overwrites;
use crate::object::range_lock::RangeLocks;
use crate::object::rows::{
    BLOCK_ROW_BYTES_MAX, ObjectRow, REGION_BYTES, ReclaimRow, block_ceil, block_floor, block_key, blocks_of,
    decode_block, decode_object, decode_reclaim, object_key, region_of_key, regions_of,
};
use crate::object::tasks::ObjectTasks;
use crate::object::unverified::Unverified;
use crate::table;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use core::future::Future;
use core::pin::Pin;
use nacre_node::{Ctx, StoreError, join_all};
use nacre_types::{Extent, ObjectId};

/// Bounds and intervals of the object layer.
#[derive(Debug, Clone)]
pub struct ObjectsConfig {
    /// Age of the oldest object bytes that are not on stable storage, milliseconds.
    pub stable_interval_ms: u32,
    /// Objects with unstable bytes; writers wait beyond it.
    pub unstable_objects_max: usize,
    /// Unstable bytes; writers wait beyond it.
    pub unstable_bytes_max: u64,
    /// Syncs of objects at a time.
    pub syncs_in_flight_max: usize,
}
impl Default for ObjectsConfig {
    fn default() -> Self {
        Self {
            stable_interval_ms: 1000,
            unstable_objects_max: 64 << 10,
            unstable_bytes_max: 1 << 30,
            syncs_in_flight_max: 8,
        }
    }
}

/// The byte objects of one target. Lives on the target's island.
pub struct Objects {
    ctx: Rc<Ctx>,
    osd: Rc<Osd>,
    config: ObjectsConfig,
    locks: Rc<RangeLocks>,
    writeback: Writeback,
    scrub: Scrub,
    reclaim: ReclaimTask,
    tasks: ObjectTasks,
    /// Objects whose sync or repair failed since the start; the flag in the row lasts beyond it.
    quarantined: RefCell<BTreeSet<ObjectId>>,
    /// Bytes of changes after this one may have been lost with the machine, until `object/rechecksum.rs` has verified all
    /// objects.
    unverified: Unverified,
    cache_trust: CacheTrust,
    overwrites: Rc<Overwrites>,
    logged: Logged,
}

impl Objects {
    /// Starts the background tasks (write-back, reclaim; after a crash also the deletion of orphans and the sync
    /// of bytes that the former process wrote).
    /// One per [`Osd`].
    ///
    /// # Errors
    /// The target's own rows cannot be read.
    pub async fn start(ctx: &Rc<Ctx>, osd: &Rc<Osd>, config: ObjectsConfig) -> Result<Rc<Self>, OsdError> {
        let objects = Rc::new(Self {
            ctx: ctx.clone(),
            osd: osd.clone(),
            config,
            locks: RangeLocks::new(ctx),
            writeback: Writeback::new(ctx),
            scrub: Scrub::new(ctx),
            reclaim: ReclaimTask::new(ctx),
            tasks: ObjectTasks::new(ctx),
            quarantined: RefCell::default(),
            unverified: Unverified::default(),
            cache_trust: CacheTrust::new(osd.was_clean()),
            overwrites: Rc::default(),
            logged: Logged::default(),
        });
        objects.begin_stable().await?;
        objects.begin_unverified().await?;
        objects.begin_logged().await?;
        objects.spawn_task(objects.clone().write_back());
        objects.spawn_task(objects.clone().reclaim());
        if !osd.was_clean() {
            objects.spawn_task(objects.clone().delete_orphans());
            objects.spawn_task(objects.clone().sync_former());
        }
        Ok(objects)
    }

    /// Spawns a task that `stop` waits for.
    pub(crate) fn spawn_task(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.tasks.begins();
        let objects = self.clone();
        self.ctx.spawn(async move {
            task.await;
            objects.tasks.ended();
        });
    }

    /// The engine below.
    pub fn osd(&self) -> &Rc<Osd> {
        &self.osd
    }

    /// Makes all object bytes stable and ends the background tasks. Stop the engine after this.
    pub async fn stop(&self) {
        self.tasks.stop();
        self.writeback.wake();
        self.scrub.wake();
        self.reclaim.wake();
        // The reclaim task may be waiting for this commit; if it fails, that task gets the same error.
        drop(self.osd().commit(self.osd().last_transno()).await);
        while self.tasks.is_any_running() {
            self.tasks().progress().await;
        }
    }

    /// The object's row; all zero for an object that does not exist.
    ///
    /// # Errors
    /// Those of the engine. None for a quarantined object: its state is known, only its bytes are not.
    pub async fn state(&self, object: ObjectId) -> Result<ObjectRow, OsdError> {
        Ok(self.row(object).await?.unwrap_or_default())
    }

    /// Reads at most `len` bytes, short at the object's end; what was never written is zeros. The row is as of
    /// the moment of the read.
    ///
    /// # Errors
    /// `Quarantined`; `Lost` where written bytes are gone, `Damaged` where they are not those that were written; those of
    /// store and engine.
    pub async fn read(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        len: u32,
    ) -> Result<(ObjectRow, Vec<Bytes>), OsdError> {
        let end = offset.saturating_add(u64::from(len));
        let range = Extent::new(block_floor(offset), block_ceil(end));
        let _guard = self.locks().lock(object, range, false).await;
        let row = self.healthy_row(object).await?.unwrap_or_default();
        let end = end.min(row.size);
        if offset >= end {
            return Ok((row, Vec::new()));
        }
        let (runs, expected) = self.written_runs(object, offset, end).await?;
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            return Ok((row, zeros(end - offset)));
        };
        // One read over all of it: the holes in between are seldom and small, and come from memory.
        let (start, stop) = (block_floor(first.start), block_ceil(last.end).min(row.size));
        match self.read_verified(object, start, stop, &expected).await? {
            Ok(bytes) => Ok((row, assemble(offset, end, start, &bytes, &runs))),
            Err(_) => Ok((row, self.read_pieces(object, offset, end, row.size, &runs).await?)),
        }
    }

    /// Syncs the object: its bytes and rows are on stable storage when this returns. A few blocks go into the log with the
    /// rows (`object/logged.rs`).
    ///
    /// # Errors
    /// `Quarantined` when bytes could not be written, `Lost` when they are gone; those of the engine.
    pub async fn sync(self: &Rc<Self>, object: ObjectId) -> Result<(), OsdError> {
        type Half<'a> = Pin<Box<dyn Future<Output = Result<(), OsdError>> + 'a>>;
        self.healthy_row(object).await?;
        if self.log_bytes(object).await? {
            self.osd().commit(self.osd().last_transno()).await?;
            self.other_syncs_ended(object).await;
            return self.healthy_row(object).await.map(drop);
        }
        let last = self.osd().last_transno();
        let halves: Vec<Half<'_>> =
            vec![Box::pin(self.sync_bytes(object, false)), Box::pin(self.osd().commit(last))];
        join_all(halves).await.into_iter().collect::<Result<(), _>>()?;
        self.osd().commit(self.logged().deleted()).await?;
        self.other_syncs_ended(object).await;
        self.healthy_row(object).await.map(drop)
    }

    /// Upper bound of the rows and device bytes of a write of `len` bytes at `offset`. A prepared write needs less:
    /// [`crate::Prepared::credits`].
    pub fn write_credits(offset: u64, len: u64) -> Credits {
        let blocks = blocks_of(offset, offset.saturating_add(len));
        let regions = regions_of(&blocks);
        let regions = u32::try_from(regions.end - regions.start).unwrap_or(u32::MAX);
        Credits {
            rows: regions.saturating_add(3),
            // Regions and that of the old end; object and reclaim row.
            row_bytes: regions.saturating_add(1).saturating_mul(BLOCK_ROW_BYTES_MAX).saturating_add(256),
            object_bytes: (blocks.end - blocks.start).saturating_mul(BLOCK_BYTES),
            ..Credits::default()
        }
    }
    /// Upper bound for truncate, destroy and change of owner.
    pub fn small_credits(frees: bool) -> Credits {
        Credits { rows: 7, row_bytes: 1152, frees, ..Credits::default() }
    }

    // ---- parts, for the other files of this layer

    pub(crate) fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    pub(crate) fn config(&self) -> &ObjectsConfig {
        &self.config
    }
    pub(crate) fn locks(&self) -> &Rc<RangeLocks> {
        &self.locks
    }
    pub(crate) fn writeback(&self) -> &Writeback {
        &self.writeback
    }
    pub(crate) fn scrub(&self) -> &Scrub {
        &self.scrub
    }
    pub(crate) fn reclaim_task(&self) -> &ReclaimTask {
        &self.reclaim
    }
    pub(crate) fn cache_trust(&self) -> &CacheTrust {
        &self.cache_trust
    }
    pub(crate) fn overwrites(&self) -> &Rc<Overwrites> {
        &self.overwrites
    }
    pub(crate) fn logged(&self) -> &Logged {
        &self.logged
    }
    pub(crate) fn tasks(&self) -> &ObjectTasks {
        &self.tasks
    }
    pub(crate) fn unverified(&self) -> &Unverified {
        &self.unverified
    }
    /// The object returns errors from now on; `false`: it did so before.
    pub(crate) fn begin_quarantine(&self, object: ObjectId) -> bool {
        self.quarantined.borrow_mut().insert(object)
    }
    /// The row of the object has the flag, or the object is destroyed.
    pub(crate) fn end_quarantine(&self, object: ObjectId) {
        self.quarantined.borrow_mut().remove(&object);
    }

    // ---- rows

    pub(crate) async fn row(&self, object: ObjectId) -> Result<Option<ObjectRow>, OsdError> {
        let row = self.osd().get(table::OBJECT, &object_key(object)).await?;
        row.map(|bytes| decode_object(object, &bytes)).transpose()
    }
    /// The row of an object that may be used.
    pub(crate) async fn healthy_row(&self, object: ObjectId) -> Result<Option<ObjectRow>, OsdError> {
        let row = self.row(object).await?;
        if row.is_some_and(|r| r.is_quarantined()) || self.quarantined.borrow().contains(&object) {
            return Err(OsdError::Quarantined(object));
        }
        Ok(row)
    }
    pub(crate) async fn reclaim_row(&self, object: ObjectId) -> Result<Option<ReclaimRow>, OsdError> {
        let row = self.osd().get(table::RECLAIM, &object_key(object)).await?;
        row.map(|bytes| decode_reclaim(object, &bytes)).transpose()
    }

    /// Written pieces of `offset..end`, joined where they touch, in order, and the checksums of their blocks.
    async fn written_runs(
        &self,
        object: ObjectId,
        offset: u64,
        end: u64,
    ) -> Result<(Vec<Extent>, Vec<(u64, u32)>), OsdError> {
        let blocks = blocks_of(offset, end);
        let regions = regions_of(&blocks);
        let limit = u32::try_from(regions.end - regions.start).unwrap_or(u32::MAX);
        let (from, to) = (block_key(object, regions.start), block_key(object, regions.end));
        let rows = self.osd().scan(table::BLOCK, &from, &to, limit).await?;
        let mut runs: Vec<Extent> = Vec::new();
        let mut expected = Vec::new();
        for (key, value) in rows {
            let region = region_of_key(&key).unwrap_or_default();
            let row = decode_block(object, region, &value)?;
            let base = region * 64;
            expected.extend(self.expected(object, region, &row, &blocks));
            for block in blocks.start.max(base)..blocks.end.min(base + 64) {
                if !row.is_written(block) {
                    continue;
                }
                let start = (block * BLOCK_BYTES).max(offset);
                let stop = ((block + 1) * BLOCK_BYTES).min(end);
                if row.is_lost(block) {
                    return Err(OsdError::Lost { object, from: start, to: stop });
                }
                match runs.last_mut() {
                    Some(run) if run.end == start => run.end = stop,
                    _ => runs.push(Extent::new(start, stop)),
                }
            }
        }
        Ok((runs, expected))
    }
    /// Reads one run after the other, where a read over all of them met the end of a file. In holes between them that is
    /// nothing: a chunk of a blob ends with its last written block.
    async fn read_pieces(
        &self,
        object: ObjectId,
        offset: u64,
        end: u64,
        size: u64,
        runs: &[Extent],
    ) -> Result<Vec<Bytes>, OsdError> {
        let mut out = Vec::new();
        let mut at = offset;
        for run in runs {
            out.extend(zeros(run.start - at));
            at = run.start;
            while at < run.end {
                let stop = run.end.min((at / REGION_BYTES + 1) * REGION_BYTES);
                let row = self.block_row(object, at / REGION_BYTES).await?;
                let (first, last) = (block_floor(at), block_ceil(stop).min(size));
                let blocks = self.read_required(object, &row, first, last).await?;
                out.push(blocks.slice((at - first) as usize..(stop - first) as usize));
                at = stop;
            }
        }
        out.extend(zeros(end - at));
        Ok(out)
    }
}

/// Assembles the result of a read: bytes in written runs, zeros elsewhere. `bytes` begin at `start`.
fn assemble(offset: u64, end: u64, start: u64, bytes: &Bytes, runs: &[Extent]) -> Vec<Bytes> {
    let mut out = Vec::with_capacity(runs.len());
    let mut at = offset;
    for run in runs {
        out.extend(zeros(run.start.saturating_sub(at)));
        out.push(bytes.slice((run.start - start) as usize..(run.end - start) as usize));
        at = run.end;
    }
    out.extend(zeros(end.saturating_sub(at)));
    out
}

/// The error for a store that returns another kind of result than its operation has.
pub(crate) fn unexpected_result(what: &str) -> OsdError {
    OsdError::Store(StoreError::Device(alloc::format!("{what} returned an unexpected result")))
}
