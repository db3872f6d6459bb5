//! Write-back of object bytes: tracks the objects whose bytes are not on stable storage, and syncs them.
//!
//! The task advances `last_stable` and records it in a row. A restart therefore claims no more than was durable, and syncs
//! only objects that were changed later. The device begins to write an object's bytes early ([`EARLY_BYTES`]), so that a
//! later sync finds little to do.
//!
//! Many objects are synced in one step if the store has one (`maintenance/sync_many.rs`).
//!
//! Invariants: an object is in [`Unstable`] from the apply of a write until a sync that began after it has
//! succeeded; a failed sync is never repeated (the kernel has dropped the pages): the object is quarantined. The device
//! reports an error only once, so a sync for a caller returns only after the syncs of the object that were under way.

use crate::error::OsdError;
use crate::object::objects::{Objects, unexpected_result};
use crate::object::rows::{ObjectRow, decode_object, object_key};
use crate::table;
use crate::table::pins::Pins;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, FileId, StoreDone, StoreError, StoreOp, WaitList, join_all};
use nacre_types::{Codec, Extent, Instant, ObjectId, Transno};

/// Bytes of an object that are written before the device begins with them.
pub const EARLY_BYTES: u64 = 8 << 20;

/// The state of the write-back task.
pub(crate) struct Writeback {
    /// Syncs under way, numbered in the order of their start.
    syncing: RefCell<BTreeSet<(ObjectId, u64)>>,
    syncs: Cell<u64>,
    unstable: RefCell<Unstable>,
    /// Wakes the task.
    work: WaitList,
    /// The task has nothing to do and no timer.
    is_idle: Cell<bool>,
    /// When many objects may be synced in one step again.
    many_after: Cell<Instant>,
}
impl Writeback {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            syncing: RefCell::default(),
            syncs: Cell::new(0),
            unstable: RefCell::default(),
            work: ctx.wait_list(),
            is_idle: Cell::new(false),
            many_after: Cell::default(),
        }
    }
    /// The task checks for work, or ends.
    pub(crate) fn wake(&self) {
        self.work.wake_all();
    }
    /// Every change whose bytes may not be stable was made by this process.
    pub(crate) fn knows_all(&self) -> bool {
        self.unstable.borrow().former.is_none()
    }
    pub(crate) fn many_after(&self) -> &Cell<Instant> {
        &self.many_after
    }
    /// A sync of the object begins: later writes are counted separately. `None`: its bytes are stable, or another sync of
    /// them has begun.
    pub(crate) fn take(&self, object: ObjectId) -> Option<Taken> {
        self.unstable.borrow_mut().take(object)
    }
    /// The sync of these bytes has ended, and its outcome is recorded.
    pub(crate) fn ended(&self, object: ObjectId, taken: Taken) {
        self.unstable.borrow_mut().ended(object, taken);
    }
}

/// Objects with bytes that are not stable.
#[derive(Default)]
struct Unstable {
    objects: BTreeMap<ObjectId, Taken>,
    /// Oldest write of each, those whose sync is under way included.
    ages: BTreeSet<(Transno, ObjectId)>,
    bytes: u64,
    /// The latest write.
    newest: Transno,
    /// After a crash: bytes that the former process wrote from this transno on may not be stable yet.
    former: Option<Transno>,
    /// The error because of which they cannot be made stable.
    former_failed: Option<OsdError>,
}
/// Bytes of an object that are not stable.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    oldest: Transno,
    bytes: u64,
    /// Of these, bytes with which the device has not begun, and the range in which they lie.
    waiting: u64,
    range: Extent,
}

impl Unstable {
    /// Returns the range with which the device is to begin, if enough bytes wait in it.
    fn add(&mut self, object: ObjectId, transno: Transno, range: Extent) -> Option<Extent> {
        let bytes = range.end - range.start;
        self.bytes += bytes;
        self.newest = self.newest.max(transno);
        let new = Taken { oldest: transno, bytes: 0, waiting: 0, range };
        let entry = self.objects.entry(object).or_insert(new);
        entry.bytes += bytes;
        self.ages.insert((entry.oldest, object));
        if entry.waiting == 0 {
            entry.range = range;
        } else if bytes > 0 {
            entry.range = Extent::new(entry.range.start.min(range.start), entry.range.end.max(range.end));
        }
        entry.waiting += bytes;
        if entry.waiting < EARLY_BYTES {
            return None;
        }
        entry.waiting = 0;
        Some(entry.range)
    }
    fn take(&mut self, object: ObjectId) -> Option<Taken> {
        self.objects.remove(&object)
    }
    fn ended(&mut self, object: ObjectId, taken: Taken) {
        self.bytes -= taken.bytes;
        self.ages.remove(&(taken.oldest, object));
    }
    fn oldest(&self) -> Option<Transno> {
        let oldest = self.ages.first().map(|&(transno, _)| transno);
        oldest.into_iter().chain(self.former).min()
    }
    /// Every write up to this transno is stable.
    fn stable(&self) -> Transno {
        self.oldest().map_or(self.newest, |oldest| self.newest.min(Transno(oldest.0.saturating_sub(1))))
    }
}

/// A caller that needs an earlier stable point than the next round would record waits so often, and so long each time, for
/// overwrites that are under way.
const STABLE_ROUNDS_MAX: usize = 1000;
const STABLE_PAUSE: Duration = Duration::from_millis(10);

/// Row of `TARGET`: the bytes of every write up to this number are stable.
pub const STABLE_KEY: &[u8] = b"stable";

impl Objects {
    /// The oldest transno whose bytes are not stable.
    pub fn oldest_unstable(&self) -> Option<Transno> {
        self.writeback().unstable.borrow().oldest()
    }

    /// The bytes of `range` were written, by a change that gets this transno. Empty: blocks were allocated.
    pub(crate) fn note_unstable(&self, object: ObjectId, transno: Transno, range: Extent) {
        let was_pressed = self.is_half_full();
        self.logged().note(object, range);
        let early = self.writeback().unstable.borrow_mut().add(object, transno, range);
        if let Some(range) = early {
            let ctx = self.ctx().clone();
            let op = StoreOp::StartWriteback {
                file: FileId::Blob(object),
                offset: range.start,
                len: range.end - range.start,
            };
            // The next sync reports what fails.
            self.ctx().spawn(async move { drop(ctx.io(op).await) });
        }
        if self.writeback().is_idle.get() || (self.is_half_full() && !was_pressed) {
            self.writeback().work.wake_all();
        }
    }
    /// The object is destroyed: its bytes need not become stable.
    pub(crate) fn forget_unstable(&self, object: ObjectId) {
        {
            let mut unstable = self.writeback().unstable.borrow_mut();
            if let Some(taken) = unstable.take(object) {
                unstable.ended(object, taken);
            }
        }
        self.logged().forget(object);
        self.tasks().made_progress();
    }

    /// The transno that may be recorded as stable now, if it is higher than before and the previous record is durable.
    /// It stays below the overwrites that are under way.
    fn next_stable(&self) -> Option<Transno> {
        if self.osd().stable().pending(self.osd().last_committed()).is_some() {
            return None;
        }
        let stable = self.writeback().unstable.borrow().stable();
        let overwritten = self.overwrites().earliest().map(|t| Transno(t.0.saturating_sub(1)));
        let stable = overwritten.map_or(stable, |below| stable.min(below));
        (stable > self.osd().stable().recorded() && !self.osd().stable().is_frozen()).then_some(stable)
    }

    /// Waits while too many bytes or objects are unstable. (Write-back runs from half of the bound on.)
    pub(crate) async fn wait_for_writeback(&self) {
        while self.is_full() {
            self.tasks().progress().await;
        }
    }
    fn is_full(&self) -> bool {
        let unstable = self.writeback().unstable.borrow();
        unstable.objects.len() >= self.config().unstable_objects_max
            || unstable.bytes >= self.config().unstable_bytes_max
    }
    fn is_half_full(&self) -> bool {
        let unstable = self.writeback().unstable.borrow();
        unstable.objects.len() >= self.config().unstable_objects_max / 2
            || unstable.bytes >= self.config().unstable_bytes_max / 2
            || self.logged().is_half_full()
    }

    /// Syncs the bytes of one object.
    ///
    /// # Errors
    /// `Quarantined`: they are lost. `Lost`: some of the object are, the others are on the device.
    ///
    /// `aside`: no request waits.
    pub(crate) async fn sync_bytes(&self, object: ObjectId, aside: bool) -> Result<(), OsdError> {
        let taken = self.writeback().take(object);
        self.sync_taken(object, taken, aside).await
    }
    /// The same for bytes whose sync was tried together with others.
    pub(crate) async fn sync_taken(
        &self,
        object: ObjectId,
        taken: Option<Taken>,
        aside: bool,
    ) -> Result<(), OsdError> {
        let number = self.writeback().syncs.get() + 1;
        self.writeback().syncs.set(number);
        self.writeback().syncing.borrow_mut().insert((object, number));
        let result = self.sync_taken_now(object, taken, aside).await;
        self.writeback().syncing.borrow_mut().remove(&(object, number));
        self.tasks().made_progress();
        result
    }
    /// Waits for the syncs of the object that are under way: one of them may have got the error that the device reports
    /// once, and has not quarantined the object yet.
    pub(crate) async fn other_syncs_ended(&self, object: ObjectId) {
        let last = self.writeback().syncs.get();
        let is_any =
            || self.writeback().syncing.borrow().range((object, 0)..=(object, last)).next().is_some();
        while is_any() && !self.osd().has_failed() {
            self.tasks().progress().await;
        }
    }
    async fn sync_taken_now(
        &self,
        object: ObjectId,
        taken: Option<Taken>,
        aside: bool,
    ) -> Result<(), OsdError> {
        let serial = self.logged().serial();
        // If the row cannot be read, the length is unknown; the bytes are synced all the same.
        let row = self.row(object).await;
        let len = row.as_ref().map_or(0, |row| self.expected_length(row.as_ref()));
        let result = self.ctx().io(StoreOp::SyncWritten { file: FileId::Blob(object), len, aside }).await;
        let result = match self.sync_ended(object, result).await {
            Ok(()) => self.unlog(object, serial).await.and(row.map(drop)),
            Err(error) => Err(error),
        };
        // No later write is reported stable before the outcome of this sync is known, and none at all once the target has
        // stopped.
        if let Some(taken) = taken
            && !self.osd().has_failed()
        {
            self.writeback().ended(object, taken);
        }
        result
    }
    pub(crate) async fn sync_ended(
        &self,
        object: ObjectId,
        result: Result<StoreDone, StoreError>,
    ) -> Result<(), OsdError> {
        match result {
            Ok(StoreDone::Unit) => Ok(()),
            Ok(_) => Err(unexpected_result("sync")),
            Err(StoreError::Stopped) => Err(StoreError::Stopped.into()),
            // The present bytes were synced. The object may have been truncated meanwhile.
            Err(StoreError::Missing { from, .. }) => {
                let to = self.expected_length(self.row(object).await?.as_ref());
                if from < to { Err(OsdError::Lost { object, from, to }) } else { Ok(()) }
            }
            // The whole target is affected, not only this object.
            Err(StoreError::NoSpace) => {
                self.osd().no_room_underneath(object);
                Err(self.osd().check_alive().err().unwrap_or(OsdError::Store(StoreError::NoSpace)))
            }
            // If the device fails the log as well, the target stops: after the next start clients replay the writes that
            // were not stable. Only an object whose own bytes cannot be written is quarantined.
            Err(error) => {
                self.osd().probe().await?;
                self.quarantine(object, &error).await;
                Err(OsdError::Quarantined(object))
            }
        }
    }

    /// The length that the file of an object must have.
    pub(crate) fn expected_length(&self, row: Option<&ObjectRow>) -> u64 {
        row.filter(|row| !self.unverified().is_later(row.version)).map_or(0, |row| row.written_to)
    }
    /// Syncs an object in the background, and logs failures.
    pub(crate) async fn sync_in_background(&self, object: ObjectId) {
        let result = self.sync_bytes(object, true).await;
        self.log_background_sync(object, result);
    }
    pub(crate) fn log_background_sync(&self, object: ObjectId, result: Result<(), OsdError>) {
        match result {
            // A quarantine is logged where it begins.
            Ok(())
            | Err(OsdError::Quarantined(_) | OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped)) => {
            }
            Err(error) => {
                tracing::error!(target_name = %self.osd().label().name, %object, %error, "object cannot be synced");
            }
        }
    }

    /// Syncs everything: all bytes written so far are stable when this returns, or their objects return errors.
    ///
    /// # Errors
    /// The error because of which the objects changed by a former process are unknown.
    pub async fn sync_all(&self) -> Result<(), OsdError> {
        self.sync_all_to(self.osd().last_transno()).await
    }
    async fn sync_all_to(&self, last: Transno) -> Result<(), OsdError> {
        while self.oldest_unstable().is_some_and(|oldest| oldest <= last) {
            if !self.writeback().unstable.borrow().objects.is_empty() {
                self.sync_batch().await;
                continue;
            }
            if let Some(error) = self.writeback().unstable.borrow().former_failed.clone() {
                return Err(error);
            }
            self.tasks().progress().await; // other syncs are under way
        }
        // The record of an earlier sync may still wait for the next commit. The caller of this one does not wait for the timer.
        while let Some(row) = self.osd().stable().pending(self.osd().last_committed()) {
            self.osd().commit(row).await?;
        }
        self.note_stable().await;
        Ok(())
    }

    /// Makes the bytes of every change up to `change`, which was applied, stable, and records it durably: no start puts
    /// bytes of these changes back. False: it cannot be done now (clients replay, or objects of a former process cannot be
    /// listed, or the record has no room).
    ///
    /// # Errors
    /// Those of the engine.
    pub async fn make_stable(&self, change: Transno) -> Result<bool, OsdError> {
        for _ in 0..STABLE_ROUNDS_MAX {
            if self.osd().last_stable() >= change {
                return Ok(true);
            }
            {
                let mut unstable = self.writeback().unstable.borrow_mut();
                if self.osd().stable().is_frozen() || unstable.former_failed.is_some() {
                    return Ok(false);
                }
                // A truncate has no bytes, and would not move the stable point.
                unstable.newest = unstable.newest.max(change);
            }
            self.sync_all_to(change).await?;
            self.osd().commit(self.osd().last_transno()).await?;
            if self.osd().last_stable() < change {
                self.ctx().sleep(STABLE_PAUSE).await;
            }
        }
        Ok(false)
    }

    /// Syncs the objects that are unstable now: many of them together, the rest a few at a time.
    async fn sync_batch(&self) {
        let objects = || self.writeback().unstable.borrow().objects.keys().copied().collect::<Vec<_>>();
        self.sync_many(&objects()).await;
        let batch = objects();
        let next = RefCell::new(batch.into_iter());
        let workers = (0..self.config().syncs_in_flight_max.max(1)).map(|_| async {
            loop {
                let Some(object) = next.borrow_mut().next() else { break };
                if self.writeback().unstable.borrow().objects.contains_key(&object) {
                    self.sync_in_background(object).await;
                }
            }
        });
        join_all(workers).await;
    }

    /// Quarantines an object: acknowledged bytes of it are lost.
    pub(crate) async fn quarantine(&self, object: ObjectId, error: &dyn core::fmt::Display) {
        if !self.begin_quarantine(object) {
            return;
        }
        self.logged().forget(object);
        tracing::error!(%object, %error,
            "object bytes lost, the object returns EIO from now on: restore the file from a backup and remove it");
        match self.mark_quarantined(object).await {
            Ok(()) => self.end_quarantine(object),
            Err(error) => {
                tracing::warn!(%object, %error, "the quarantine cannot be recorded and ends with this process");
            }
        }
    }
    async fn mark_quarantined(&self, object: ObjectId) -> Result<(), OsdError> {
        let key = object_key(object);
        let pins = self.osd().fetch(&[(table::OBJECT, &key)]).await?;
        let room = self.osd().reserve(Objects::small_credits(true)).await?;
        self.osd()
            .transact(&pins, room, |tx| {
                let Some(bytes) = tx.get(table::OBJECT, &key) else { return Ok(()) };
                let mut row = decode_object(object, bytes)?;
                row.flags |= ObjectRow::QUARANTINED;
                tx.put(table::OBJECT, &key, row.to_vec());
                Ok(())
            })
            .map(drop)
    }

    /// Records durably up to which write the bytes are stable, if that has advanced.
    async fn note_stable(&self) {
        // Under load the next round records it; at the end of the work this is the last chance.
        while let Some(row) = self.osd().stable().pending(self.osd().last_committed()) {
            if !self.writeback().unstable.borrow().objects.is_empty()
                || self.osd().committed(row).await.is_err()
            {
                return;
            }
        }
        if self.next_stable().is_none() {
            return;
        }
        let reserved = self.osd().reserve(Objects::small_credits(true)).await;
        // Overwrites that began during the wait rely on what is recorded until now.
        let Some(stable) = self.next_stable() else { return };
        let noted = match reserved {
            Ok(room) => self.osd().transact(&Pins::default(), room, |tx| {
                tx.put(table::TARGET, STABLE_KEY, stable.to_vec());
                Ok::<(), OsdError>(())
            }),
            Err(error) => Err(error),
        };
        match noted {
            Ok((row, ())) => self.osd().note_stable(row, stable),
            Err(error) => tracing::debug!(%error, "clients keep their writes for longer"),
        }
    }

    /// Reads at a start up to which write the bytes are stable.
    pub(crate) async fn begin_stable(&self) -> Result<(), OsdError> {
        if self.osd().was_clean() {
            self.osd().begin_stable(self.osd().last_transno());
            return Ok(());
        }
        let stable = match self.osd().get(table::TARGET, STABLE_KEY).await? {
            Some(row) => Transno::from_slice(&row).map_err(|_| unexpected_result("stable row"))?,
            None => Transno(0),
        };
        self.osd().begin_stable(stable);
        self.writeback().unstable.borrow_mut().former = Some(Transno(stable.0 + 1));
        Ok(())
    }

    /// Task after a crash: syncs every object that was changed after the last stable write. The kernel may still hold the
    /// bytes of a killed process.
    pub(crate) async fn sync_former(self: Rc<Self>) {
        match self.sync_changed_since(self.osd().last_stable()).await {
            Ok((synced, unread, newest)) => {
                if unread > 0 {
                    tracing::error!(target_name = %self.osd().label().name, objects = unread,
                        "rows of objects are damaged: the objects return EIO, what their files hold is stable");
                }
                {
                    let mut unstable = self.writeback().unstable.borrow_mut();
                    unstable.former = None;
                    unstable.newest = unstable.newest.max(newest);
                }
                if synced > 0 {
                    tracing::info!(synced, "objects with bytes of the former process are stable");
                }
                self.note_stable().await;
            }
            Err(OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped)) => {}
            Err(error) => {
                tracing::error!(target_name = %self.osd().label().name, %error,
                    "objects changed before a crash cannot be listed: syncs of the whole target fail");
                self.writeback().unstable.borrow_mut().former_failed = Some(error);
            }
        }
        self.cache_trust().work_ended();
    }

    /// Returns how many objects were synced, how many of them have unreadable rows, and the latest change.
    async fn sync_changed_since(self: &Rc<Self>, stable: Transno) -> Result<(u64, u64, Transno), OsdError> {
        let (mut synced, mut unread, mut newest) = (0, 0, stable);
        self.each_object(async |object, row| {
            match row {
                Ok(row) if row.version <= stable.0 => return Ok(true),
                Ok(row) => newest = newest.max(Transno(row.version)),
                Err(_) => unread += 1, // told with the sync
            }
            synced += 1;
            if let Err(error) = self.refresh(object).await {
                tracing::error!(target_name = %self.osd().label().name, %object, %error, "object cannot be read anew");
            }
            self.sync_in_background(object).await;
            Ok(!self.osd().has_failed())
        })
        .await?;
        Ok((synced, unread, newest))
    }

    /// Task: syncs bytes that were written one interval ago, a few objects at a time.
    pub(crate) async fn write_back(self: Rc<Self>) {
        let interval = Duration::from_millis(u64::from(self.config().stable_interval_ms));
        loop {
            self.note_stable().await;
            if self.writeback().unstable.borrow().objects.is_empty() {
                if self.tasks().is_stopping() {
                    break;
                }
                self.writeback().is_idle.set(true);
                self.writeback().work.wait().await;
                self.writeback().is_idle.set(false);
                continue;
            }
            let at = self.ctx().now() + interval;
            while self.ctx().now() < at && !self.tasks().is_stopping() && !self.is_half_full() {
                let _woken = self.ctx().timeout(at, self.writeback().work.wait()).await;
            }
            self.sync_batch().await;
        }
    }
}
