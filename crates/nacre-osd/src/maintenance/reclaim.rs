//! Reclaim: truncates blobs to the length that their rows describe, and makes zeros of bytes that no row describes, once
//! the change that released the bytes is durable: a truncate, a destroy, a hole.
//!
//! Invariants: (1) a RECLAIM row is written in the transaction that releases blocks, and deleted after the blob was
//! durably truncated, so no crash forgets one; (2) nothing is truncated before that transaction is durable, so a machine
//! that dies shows the complete state before it; (3) a second truncation is harmless, because rows decide.

use crate::engine::tx::Tx;
use crate::error::OsdError;
use crate::object::checksum::BLOCK_BYTES;
use crate::object::objects::Objects;
use crate::object::rows::{
    BLOCKS_PER_REGION, REGION_BYTES, ReclaimRow, block_ceil, block_floor, block_key, decode_block,
    decode_reclaim, object_key, object_of_key, region_of_key,
};
use crate::table;
use crate::table::pages::Page;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, FileId, StoreDone, StoreError, StoreOp, WaitList, join_all};
use nacre_types::{Codec, Extent, Instant, ObjectId, Transno};

/// Rows of one round, and blobs that are truncated at the same time.
const ROUND: u32 = 64;
const TRUNCATES_IN_FLIGHT: usize = 8;
/// How long the task collects objects before it begins, unless somebody waits for their space: files that are removed one
/// by one share the sync of their directory.
const COLLECT: Duration = Duration::from_millis(200);
/// Block rows read in one slice.
pub(crate) const SLICE: u32 = 256;

/// The state of the task that truncates blobs.
pub(crate) struct ReclaimTask {
    /// There may be RECLAIM rows; `kick` wakes the task for them.
    may_have_rows: Cell<bool>,
    kick: WaitList,
    /// Somebody waits for space: the task collects no longer.
    is_urgent: Cell<bool>,
    urgent: WaitList,
    /// A blob was truncated, or `freed_to` has advanced.
    freed: WaitList,
    /// Space that changes up to this one have released is free.
    freed_to: Cell<Transno>,
    /// Objects whose blobs cannot be truncated before the next start, because their rows are damaged.
    damaged: RefCell<BTreeSet<ObjectId>>,
}
impl ReclaimTask {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            may_have_rows: Cell::new(true),
            kick: ctx.wait_list(),
            is_urgent: Cell::new(false),
            urgent: ctx.wait_list(),
            freed: ctx.wait_list(),
            freed_to: Cell::new(Transno(0)),
            damaged: RefCell::default(),
        }
    }
    /// The task reads the rows again, or ends.
    pub(crate) fn wake(&self) {
        self.kick.wake_all();
        self.hurry();
    }
    fn hurry(&self) {
        self.is_urgent.set(true);
        self.urgent.wake_all();
    }
}

/// What a round of the task has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    /// There may be more rows than it could take.
    Full,
    /// Only rows of changes that were not durable.
    Early,
    /// Nothing.
    Whole,
}

impl Objects {
    /// Called in a change that releases blocks from `from` on: requests their reclaim.
    pub(crate) fn release_blocks(
        &self,
        tx: &mut Tx<'_>,
        object: ObjectId,
        from: u64,
    ) -> Result<(), OsdError> {
        let key = object_key(object);
        let earlier = match tx.get(table::RECLAIM, &key) {
            Some(bytes) => decode_reclaim(object, bytes)?.from,
            None => u64::MAX,
        };
        let row = ReclaimRow { transno: tx.transno().0, from: from.min(earlier) };
        tx.put(table::RECLAIM, &key, row.to_vec());
        self.reclaim_task().may_have_rows.set(true);
        self.reclaim_task().kick.wake_all();
        Ok(())
    }

    /// Waits until space of a truncated or destroyed object was freed, and requests the commit that this depends on.
    /// Returns false if there is nothing to free, or the deadline has passed.
    ///
    /// # Errors
    /// Those of the engine.
    pub async fn wait_for_freed_space(&self, deadline: Instant) -> Result<bool, OsdError> {
        if self.osd().scan(table::RECLAIM, &[], &[0xff; 17], 1).await?.is_empty() {
            return Ok(false);
        }
        self.osd().request_commit();
        self.reclaim_task().hurry();
        Ok(self.ctx().timeout(deadline, self.reclaim_task().freed.wait()).await.is_some())
    }

    /// Waits until all space that changes before this call have released is free, and requests the commit that this
    /// depends on. Returns false if there was none.
    ///
    /// # Errors
    /// Those of the engine.
    pub async fn free_pending(&self, deadline: Instant) -> Result<bool, OsdError> {
        let asked = self.osd().last_transno();
        if self.osd().scan(table::RECLAIM, &[], &[0xff; 17], 1).await?.is_empty() {
            return Ok(false);
        }
        self.osd().request_commit();
        // The task may sleep although there are rows, if those are damaged.
        self.reclaim_task().may_have_rows.set(true);
        self.reclaim_task().kick.wake_all();
        while self.reclaim_task().freed_to.get() < asked
            && self.ctx().now() < deadline
            && !self.tasks().is_stopping()
        {
            self.reclaim_task().hurry();
            let _freed = self.ctx().timeout(deadline, self.reclaim_task().freed.wait()).await;
        }
        Ok(true)
    }

    /// Task: reads the table at the start and after every release of blocks, until the table is empty.
    pub(crate) async fn reclaim(self: Rc<Self>) {
        let interval = Duration::from_millis(u64::from(self.config().stable_interval_ms));
        let mut was_full = false;
        while !self.tasks().is_stopping() {
            if !self.reclaim_task().may_have_rows.take() {
                self.reclaim_task().kick.wait().await;
                continue;
            }
            let until = self.ctx().now() + COLLECT;
            while !was_full && !self.reclaim_task().is_urgent.get() && self.ctx().now() < until {
                let _urgent = self.ctx().timeout(until, self.reclaim_task().urgent.wait()).await;
            }
            self.reclaim_task().is_urgent.set(false);
            match self.reclaim_round().await {
                Ok(round) => {
                    was_full = round == Round::Full;
                    let may_be_more = round != Round::Whole || self.reclaim_task().may_have_rows.get();
                    self.reclaim_task().may_have_rows.set(may_be_more);
                }
                Err(OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped)) => break,
                Err(error) => {
                    tracing::warn!(%error, "space of objects cannot be freed, trying again");
                    self.reclaim_task().may_have_rows.set(true);
                    let at = self.ctx().now() + interval;
                    while self.ctx().now() < at && !self.tasks().is_stopping() {
                        let _woken = self.ctx().timeout(at, self.tasks().stop_request()).await;
                    }
                }
            }
        }
    }

    /// Truncates up to [`ROUND`] blobs.
    async fn reclaim_round(&self) -> Result<Round, OsdError> {
        let before = self.osd().last_transno();
        let mut objects = Vec::new();
        let mut pages = self.osd().pages(table::RECLAIM, ROUND);
        while objects.len() < ROUND as usize
            && let Some(page) = pages.next_or_damage().await?
        {
            // The objects of rows in a damaged block are unknown: their space stays in use.
            let Page::Rows(rows) = page else { continue };
            for (key, value) in rows {
                let Some(object) = object_of_key(&key) else { continue };
                if self.reclaim_task().damaged.borrow().contains(&object) {
                    continue;
                }
                match decode_reclaim(object, &value) {
                    Ok(row) => objects.push((object, Transno(row.transno))),
                    Err(error) => self.skip_damaged(object, &error),
                }
            }
        }
        let all_seen = objects.len() < ROUND as usize;
        let earliest = objects.iter().map(|(_, transno)| *transno).min().unwrap_or_default();
        self.osd().committed(earliest).await?;
        // Space that can be freed now does not wait for the commit of later changes.
        let committed = self.osd().last_committed();
        let (ready, later): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|(_, transno)| *transno <= committed);
        let next = RefCell::new(ready.into_iter().map(|(object, _)| object));
        let workers = (0..TRUNCATES_IN_FLIGHT).map(|_| async {
            loop {
                let Some(object) = next.borrow_mut().next() else { return Ok(()) };
                match self.reclaim_object(object).await {
                    Err(error @ OsdError::Corrupt { .. }) => self.skip_damaged(object, &error),
                    other => other?,
                }
            }
        });
        join_all(workers).await.into_iter().collect::<Result<(), OsdError>>()?;
        if all_seen {
            let first_left = later.iter().map(|(_, transno)| Transno(transno.0.saturating_sub(1))).min();
            self.reclaim_task()
                .freed_to
                .set(self.reclaim_task().freed_to.get().max(first_left.unwrap_or(before).min(before)));
            self.reclaim_task().freed.wake_all();
        }
        Ok(match (all_seen, later.is_empty()) {
            (false, _) => Round::Full,
            (true, false) => Round::Early,
            (true, true) => Round::Whole,
        })
    }

    /// Skips an object whose rows are damaged: its space stays in use until the next start, which tries again.
    fn skip_damaged(&self, object: ObjectId, error: &OsdError) {
        if self.reclaim_task().damaged.borrow_mut().insert(object) {
            tracing::error!(target_name = %self.osd().label().name, %object, %error, "space of an object cannot be freed");
        }
    }

    /// Truncates one blob now, and requests the commit that this depends on. Does nothing without a RECLAIM row.
    pub(crate) async fn reclaim_object(&self, object: ObjectId) -> Result<(), OsdError> {
        let mut locked_from = u64::MAX;
        loop {
            let Some(row) = self.reclaim_row(object).await? else { return Ok(()) };
            self.osd().commit(Transno(row.transno)).await?;
            locked_from = locked_from.min(row.from);
            let _guard = self.locks().lock(object, Extent::new(locked_from, u64::MAX), true).await;
            if self.reclaim_row(object).await? != Some(row) {
                continue;
            }
            let state = self.row(object).await?;
            // What a failed write has released may be far behind the end, to which the blob is cut.
            let end = state.as_ref().map_or(u64::MAX, |state| block_floor(state.size));
            if end < locked_from {
                locked_from = end;
                continue;
            }
            match state {
                None => {
                    self.io(StoreOp::Delete { file: FileId::Blob(object) }).await?;
                    // The row is deleted only when the blob cannot reappear.
                    self.io(StoreOp::Sync { file: FileId::Blob(object) }).await?;
                }
                Some(state) => {
                    let keep = state.size.max(self.allocated_end(object, state.size).await?);
                    self.clear_unwritten(object, row.from, block_ceil(keep)).await?;
                    self.punch(object, state.size, block_ceil(state.size)).await?;
                    self.truncate_blob(object, keep).await?;
                    // The row may go only when those bytes cannot come back: zeros that a later write puts before itself in
                    // a block are not made again by its client when a machine is lost.
                    self.io(StoreOp::Sync { file: FileId::Blob(object) }).await?;
                }
            }
            return self.forget_reclaim(object).await;
        }
    }

    async fn forget_reclaim(&self, object: ObjectId) -> Result<(), OsdError> {
        let key = object_key(object);
        let pins = self.osd().fetch(&[(table::RECLAIM, &key)]).await?;
        let room = self.osd().reserve(Objects::small_credits(true)).await?;
        self.osd()
            .transact(&pins, room, |tx| {
                tx.delete(table::RECLAIM, &key);
                Ok(())
            })
            .map(|_| self.reclaim_task().freed.wake_all())
    }

    /// Makes zeros of the blocks of `from..end` that hold no data: of a hole by freeing it, and otherwise in place.
    async fn clear_unwritten(&self, object: ObjectId, from: u64, end: u64) -> Result<(), OsdError> {
        let (mut at, last) = (block_ceil(from), block_key(object, u64::MAX));
        let mut key = block_key(object, at / REGION_BYTES);
        // The blocks up to `at` are done, but for a run of these bounds that may go on.
        let mut unwritten: Option<Extent> = None;
        while at < end {
            let rows = self.osd().scan(table::BLOCK, &key, &last, SLICE).await?;
            let full = rows.len() == SLICE as usize;
            for (row_key, value) in rows {
                let region = region_of_key(&row_key).unwrap_or_default();
                let row = decode_block(object, region, &value)?;
                for block in region * BLOCKS_PER_REGION..(region + 1) * BLOCKS_PER_REGION {
                    let start = block * BLOCK_BYTES;
                    if row.allocated & (1 << (block % BLOCKS_PER_REGION)) == 0 || start < at || start >= end {
                        continue;
                    }
                    let stop = start + BLOCK_BYTES;
                    self.punch(object, at, start).await?;
                    at = stop;
                    unwritten = match (unwritten, row.is_written(block)) {
                        (Some(run), false) if run.end == start => Some(Extent::new(run.start, stop)),
                        (run, is_written) => {
                            self.zero_run(object, run).await?;
                            (!is_written).then(|| Extent::new(start, stop))
                        }
                    };
                }
                key = block_key(object, region + 1);
            }
            if !full {
                break;
            }
        }
        self.zero_run(object, unwritten).await?;
        self.punch(object, at, end).await
    }
    async fn zero_run(&self, object: ObjectId, run: Option<Extent>) -> Result<(), OsdError> {
        let Some(run) = run else { return Ok(()) };
        let (file, len) = (FileId::Blob(object), run.end - run.start);
        self.io(StoreOp::Zero { file, offset: run.start, len }).await
    }
    /// Truncates a blob that is longer.
    async fn truncate_blob(&self, object: ObjectId, len: u64) -> Result<(), OsdError> {
        let file = FileId::Blob(object);
        match self.ctx().io(StoreOp::Len { file }).await? {
            StoreDone::Len(Some(now)) if now > len => self.io(StoreOp::Truncate { file, len }).await,
            _ => Ok(()),
        }
    }
    /// Frees a range of a blob.
    pub(crate) async fn punch(&self, object: ObjectId, from: u64, to: u64) -> Result<(), OsdError> {
        if from >= to {
            return Ok(());
        }
        self.io(StoreOp::Punch { file: FileId::Blob(object), offset: from, len: to - from }).await
    }

    /// End of the last allocated block at or beyond `from`, or 0.
    async fn allocated_end(&self, object: ObjectId, from: u64) -> Result<u64, OsdError> {
        let last = block_key(object, u64::MAX);
        let mut key = block_key(object, from / crate::object::rows::REGION_BYTES);
        let mut end = 0;
        loop {
            let rows = self.osd().scan(table::BLOCK, &key, &last, SLICE).await?;
            let full = rows.len() == SLICE as usize;
            if let Some((row_key, value)) = rows.last() {
                let region = region_of_key(row_key).unwrap_or_default();
                let row = decode_block(object, region, value)?;
                end = (region * 64 + u64::from(64 - row.allocated.leading_zeros())) * BLOCK_BYTES;
                key = block_key(object, region + 1);
            }
            if !full {
                return Ok(end);
            }
        }
    }

    pub(crate) async fn io(&self, op: StoreOp) -> Result<(), OsdError> {
        self.ctx().io(op).await?;
        Ok(())
    }
}
