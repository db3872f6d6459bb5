//! The async face of the engine: what handlers call, and what waits.
//!
//! Everything that decides is in values below ([`State`], [`crate::engine::superblock::Super`]); this file and its
//! neighbours (`engine/open.rs`, `table/read.rs`, `log/commit.rs`, `engine/reserve.rs`, `maintenance/flush.rs`) connect them to tasks and to the store
//! port. No borrow of the state is held across an await.

use crate::engine::reserve::{Reservation, Room};
use crate::engine::state::State;
use crate::engine::superblock::{Label, Super};
use crate::engine::tx::Tx;
use crate::error::OsdError;
use crate::table::accounts::Usage;
use crate::table::pins::Pins;
use crate::table::{self, Table};
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, Effect, StoreOp, WaitList};
use nacre_types::{Identity, Instant, ObjectId, Transno};

/// Bounds and intervals of one target's engine.
#[derive(Debug, Clone)]
pub struct OsdConfig {
    /// Unwritten changes in memory, bytes; writers are slowed from half of it on.
    pub dirty_bytes_max: u64,
    /// Clean rows kept, bytes.
    pub cache_bytes_max: u64,
    /// Bound of the log, and so of recovery time.
    pub log_bytes_max: u64,
    /// Age of the oldest unsynced change, milliseconds.
    pub commit_interval_ms: u32,
    /// Ballast file, bytes (at most 1/16 of the device).
    pub ballast_bytes: u64,
    /// Log segments that earlier openings may leave behind; beyond that a start writes them to a run.
    pub old_segments_max: usize,
    /// Tables whose rows are looked for by ranges that share this many key bytes: the filters of runs answer for
    /// such a range without a read.
    pub bloom_prefixes: Vec<(Table, u8)>,
}
impl Default for OsdConfig {
    fn default() -> Self {
        Self {
            dirty_bytes_max: 256 << 20,
            cache_bytes_max: 256 << 20,
            log_bytes_max: 256 << 20,
            commit_interval_ms: 1000,
            ballast_bytes: 64 << 20,
            old_segments_max: 8,
            bloom_prefixes: [(table::BLOCK, crate::object::rows::OBJECT_KEY_BYTES)].into(),
        }
    }
}

/// Counters for parameters and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OsdStats {
    pub transactions: u64,
    pub log_bytes_written: u64,
    pub syncs: u64,
    pub flushes: u64,
    pub merges: u64,
    /// Bytes of the runs that flushes, and that merges, have written.
    pub flush_bytes_written: u64,
    pub merge_bytes_written: u64,
    pub cold_reads: u64,
    pub corrupt_blocks: u64,
    pub slowed_writers: u64,
    /// Most rows in memory that one deletion of a range has met.
    pub range_rows_max: u64,
    /// Transactions that wrote more than they had reserved: a bug of a handler.
    pub credits_exceeded: u64,
    pub account_underflows: u64,
    // What there is now.
    pub rows_in_memory: u64,
    pub dirty_bytes: u64,
    pub clean_bytes: u64,
    pub log_bytes: u64,
    pub runs: u64,
    pub run_bytes: u64,
    /// Indexes and filters of runs, in memory.
    pub run_index_bytes: u64,
}

/// One target's storage. Lives on the target's island.
pub struct Osd {
    pub(crate) ctx: Rc<Ctx>,
    pub(crate) config: OsdConfig,
    pub(crate) label: Label,
    pub(crate) superblock: RefCell<Super>,
    pub(crate) was_clean: bool,
    pub(crate) state: RefCell<State>,
    // Copies that may be read while a transaction is open.
    pub(crate) last_transno: Cell<u64>,
    pub(crate) last_lsn: Cell<u64>,
    pub(crate) committed: Cell<u64>,
    pub(crate) committed_lsn: Cell<u64>,
    pub(crate) stable: Cell<Option<Transno>>,
    pub(crate) stable_held: Cell<bool>,
    /// Becomes it when the transaction of the first number is committed.
    pub(crate) stable_next: Cell<Option<(Transno, Transno)>>,
    pub(crate) wanted_lsn: Cell<u64>,
    pub(crate) unsynced_since: Cell<Option<Instant>>,
    /// Of `OsdStats::log_bytes_written`, when the latest sync began.
    pub(crate) bytes_at_sync: Cell<u64>,
    pub(crate) failed: RefCell<Option<String>>,
    /// `stop` was called: background work ends.
    pub(crate) halting: Cell<bool>,
    /// Background tasks that have not ended.
    pub(crate) tasks: Cell<u32>,
    pub(crate) room: Room,
    /// A merge is under way.
    pub(crate) merging: Cell<bool>,
    /// A background task has found the device full.
    pub(crate) device_full: Cell<bool>,
    pub(crate) flush_asked: Cell<bool>,
    pub(crate) stats: Cell<OsdStats>,
    /// Wakes the committer.
    pub(crate) commit_kick: WaitList,
    /// Wakes the commit timer.
    pub(crate) unsynced_kick: WaitList,
    /// Somebody's commit has ended, or the engine has failed.
    pub(crate) commit_done: WaitList,
    /// Wakes the flusher.
    pub(crate) flush_kick: WaitList,
    pub(crate) log_kick: WaitList,
    /// Room has become free.
    pub(crate) room_kick: WaitList,
    pub(crate) merge_kick: WaitList,
    /// Cuts the pauses of background tasks short, and tells of their ends.
    pub(crate) halt_kick: WaitList,
}

impl Osd {
    pub fn label(&self) -> &Label {
        &self.label
    }
    pub fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    /// How often this store was opened, this time included.
    pub fn instance(&self) -> u64 {
        self.superblock.borrow().instance
    }
    /// Which target this is, and the openings of its store, this one included.
    pub fn identity(&self) -> Identity {
        self.superblock.borrow().identity()
    }
    /// Whether it had been stopped as planned before this opening.
    pub fn was_clean(&self) -> bool {
        self.was_clean
    }
    /// How often it was opened after it had not been stopped as planned, this time included.
    pub fn unclean_stops(&self) -> u64 {
        self.superblock.borrow().unclean_stops
    }
    /// Rows with `from <= key < to` in key order, at most `limit`. An empty `to` is the end of the table.
    ///
    /// # Errors
    /// `Corrupt`, `Stopped`, `Store`.
    pub async fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: &[u8],
        limit: u32,
    ) -> Result<Vec<(Bytes, Bytes)>, OsdError> {
        if table == table::ACCOUNTING {
            return Ok(self.scan_accounts(from, to, limit));
        }
        self.scan_rows(table, from, to, limit).await
    }
    /// [`Osd::transact`] of a change that was lost and is made again under its old number (`None`: a new one).
    /// Numbers of changes made again lie below those of this epoch, so `last_transno` does not move.
    ///
    /// # Errors
    /// Those of the closure.
    pub fn transact_at<T, E>(
        &self,
        again: Option<Transno>,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<(Transno, T), E> {
        let (transno, value, bytes) = {
            let mut state = self.state.borrow_mut();
            let (transno, value) = state.transact(again, pins, change)?;
            (transno, value, state.last_record_bytes)
        };
        let credits = reservation.credits();
        drop(reservation);
        let exceeded = bytes > credits.record_bytes();
        // What was promised to others may be gone: a bug of the handler, found by every test that runs into it.
        debug_assert!(
            !exceeded,
            "transaction {transno:?} wrote {bytes} bytes of log, reserved were {credits:?}"
        );
        self.count(|s| {
            s.transactions += 1;
            s.log_bytes_written += bytes;
            s.credits_exceeded += u64::from(exceeded);
        });
        self.last_transno.set(self.last_transno.get().max(transno.0));
        self.appended();
        Ok((transno, value))
    }
    /// One change. `Err` of the closure leaves nothing behind and uses no transno.
    ///
    /// # Errors
    /// Those of the closure.
    pub fn transact<T, E>(
        &self,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<(Transno, T), E> {
        self.transact_at(None, pins, reservation, change)
    }
    /// Something was added to the log.
    pub(crate) fn appended(&self) {
        let state = self.state.borrow();
        self.last_lsn.set(state.log.last_lsn);
        if self.unsynced_since.get().is_none() {
            self.unsynced_since.set(Some(self.ctx.now()));
            self.unsynced_kick.wake_all();
        }
        if self.stats.get().log_bytes_written - self.bytes_at_sync.get() > crate::log::commit::GROUP_BYTES_MAX
        {
            self.want_commit();
        }
        if state.log.ready_count() == 0 {
            self.log_kick.wake_all();
        }
        let dirty = state.mem.bytes().active;
        if dirty > self.config.dirty_bytes_max / 2 || state.log.full_bytes() > self.config.log_bytes_max / 2 {
            self.flush_kick.wake_all();
        }
    }
    pub(crate) fn count(&self, change: impl FnOnce(&mut OsdStats)) {
        let mut s = self.stats.get();
        change(&mut s);
        self.stats.set(s);
    }
    /// The bounds it was opened with.
    pub fn config(&self) -> &OsdConfig {
        &self.config
    }
    pub fn stats(&self) -> OsdStats {
        let state = self.state.borrow();
        let bytes = state.mem.bytes();
        OsdStats {
            rows_in_memory: state.mem.rows() as u64,
            dirty_bytes: bytes.active + bytes.frozen,
            clean_bytes: bytes.clean,
            log_bytes: state.log.bytes(),
            runs: state.runs.len() as u64,
            run_bytes: state.runs.bytes(),
            run_index_bytes: state.runs.index_bytes(),
            account_underflows: state.accounts.underflows,
            range_rows_max: state.mem.deleted_rows_max(),
            ..self.stats.get()
        }
    }
    pub fn last_transno(&self) -> Transno {
        Transno(self.last_transno.get())
    }
    pub fn last_committed(&self) -> Transno {
        Transno(self.committed.get())
    }
    /// The bytes of writes up to this are stable, and that they are is durable itself: a restart says no less. Without
    /// an object layer everything committed is.
    pub fn last_stable(&self) -> Transno {
        let Some(stable) = self.stable.get() else { return self.last_committed() };
        match self.stable_next.get() {
            Some((row, next)) if row <= self.last_committed() => {
                self.stable_next.set(None);
                self.stable.set(Some(next));
                next
            }
            _ => stable,
        }
    }
    /// There is an object layer; this is stable now.
    pub fn begin_stable(&self, stable: Transno) {
        self.stable.set(Some(stable));
        self.stable_next.set(None);
    }
    /// While changes that were lost are made again: what the log knows of may have lost its bytes, so that a sync says
    /// nothing.
    pub fn hold_stable(&self, held: bool) {
        self.stable_held.set(held);
    }
    /// The row that says that `stable` is was written by the transaction `row`, and counts when it is committed.
    pub fn note_stable(&self, row: Transno, stable: Transno) {
        self.stable_next.set(Some((row, stable)));
    }
    /// The transaction of such a row that is not committed.
    pub(crate) fn stable_pending(&self) -> Option<Transno> {
        self.last_stable();
        self.stable_next.get().map(|(row, _)| row)
    }
    /// The next transaction gets a number of the next epoch (high 32 bits). Nothing is written: the epoch is raised when
    /// that transaction is in the log, and with it what it says about the one before.
    pub fn raise_epoch(&self) {
        let mut state = self.state.borrow_mut();
        state.last_transno = ((state.last_transno >> 32) + 1) << 32;
        self.last_transno.set(state.last_transno);
    }
    /// Usage of an owner kind by id: (bytes, objects). `kind`: 0 user, 1 group, 2 project.
    ///
    /// # Errors
    /// `Stopped`.
    pub async fn usage(&self, kind: u8, id: u32) -> Result<(u64, u64), OsdError> {
        self.check_alive()?;
        let usage = self.state.borrow().usage(kind, id);
        Ok((usage.bytes, usage.objects))
    }
    /// Usage of everybody.
    pub fn usage_total(&self) -> Usage {
        self.state.borrow().accounts.total()
    }
    /// The log bytes of this visit (see `nacre_node::Logic::log_writes`).
    pub fn log_writes(&self, out: &mut Vec<StoreOp>) {
        self.state.borrow_mut().log.take_writes(out);
    }
    /// A log write failed: the engine refuses everything from now on.
    pub fn log_failed(&self, reason: &str) {
        self.fail("the log could not be made durable", reason);
    }
    /// The store has no room for bytes that it has taken already: the same. No object is to blame, and clients that live
    /// write the bytes again after the next start.
    pub(crate) fn no_room_underneath(&self, object: ObjectId) {
        self.fail(
            "the device under the store is full, although its file system had room",
            &alloc::format!("sync of object {object}: no space"),
        );
    }
    fn fail(&self, what: &str, reason: &str) {
        if self.failed.borrow().is_some() {
            return;
        }
        tracing::error!(target_name = %self.label.name, reason, "{what}, the target stops");
        *self.failed.borrow_mut() = Some(reason.to_string());
        self.ctx.push(Effect::Fatal(alloc::format!(
            "{}: {what} ({reason}); the target stops, restart it when the device is well: what was acknowledged and synced is safe",
            self.label.name
        )));
        self.wake_everybody();
    }
    pub(crate) fn wake_everybody(&self) {
        for list in [
            &self.commit_kick,
            &self.unsynced_kick,
            &self.commit_done,
            &self.flush_kick,
            &self.log_kick,
            &self.room_kick,
            &self.merge_kick,
            &self.halt_kick,
        ] {
            list.wake_all();
        }
    }
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.borrow().is_some()
    }
    pub(crate) fn check_alive(&self) -> Result<(), OsdError> {
        match &*self.failed.borrow() {
            Some(reason) => Err(OsdError::Stopped(reason.clone())),
            None => Ok(()),
        }
    }
}
