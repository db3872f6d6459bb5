//! [`Osd`]: the engine of one target, made of parts that each own their state.
//!
//! Decisions are made by the parts, which are synchronous and do no I/O. The tasks and operations that wait are in the
//! files of their concern (`log/commit.rs`, `table/read.rs`, `engine/reserve.rs`, `maintenance/`). No borrow of
//! the state is held across an await.

use crate::engine::config::OsdConfig;
use crate::engine::room::{Reservation, Room};
use crate::engine::stable::StableMark;
use crate::engine::state::State;
use crate::engine::stats::OsdStats;
use crate::engine::superblock::{Label, Super};
use crate::engine::tx::Tx;
use crate::error::OsdError;
use crate::log::progress::LogProgress;
use crate::maintenance::background::Background;
use crate::table::accounts::Usage;
use crate::table::pins::Pins;
use crate::table::{self, Table};
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, Ref, RefCell, RefMut};
use nacre_node::{Ctx, Effect, StoreOp};
use nacre_types::{Identity, ObjectId, Transno};

/// Unsynced log bytes that start a sync without a request.
const GROUP_BYTES_MAX: u64 = 8 << 20;

/// One target's storage. Lives on the target's island.
pub struct Osd {
    ctx: Rc<Ctx>,
    config: OsdConfig,
    label: Label,
    superblock: RefCell<Super>,
    was_clean: bool,
    state: RefCell<State>,
    /// Copies of log positions, which may be read while a transaction is open.
    log: LogProgress,
    stable: StableMark,
    room: Room,
    background: Background,
    failed: RefCell<Option<String>>,
    stats: Cell<OsdStats>,
}

impl Osd {
    pub(crate) fn new(
        ctx: &Rc<Ctx>,
        config: OsdConfig,
        superblock: Super,
        was_clean: bool,
        state: State,
        last_lsn: u64,
    ) -> Self {
        Self {
            ctx: ctx.clone(),
            config,
            label: superblock.label.clone(),
            superblock: RefCell::new(superblock),
            was_clean,
            log: LogProgress::new(ctx, state.last_transno(), last_lsn),
            state: RefCell::new(state),
            stable: StableMark::default(),
            room: Room::new(ctx),
            background: Background::new(ctx),
            failed: RefCell::new(None),
            stats: Cell::new(OsdStats::default()),
        }
    }

    // ---- parts

    /// The label that mkfs has written.
    pub fn label(&self) -> &Label {
        &self.label
    }
    /// The context of the island.
    pub fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    /// The bounds it was opened with.
    pub fn config(&self) -> &OsdConfig {
        &self.config
    }
    pub(crate) fn state(&self) -> Ref<'_, State> {
        self.state.borrow()
    }
    pub(crate) fn state_mut(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }
    pub(crate) fn log(&self) -> &LogProgress {
        &self.log
    }
    pub(crate) fn stable(&self) -> &StableMark {
        &self.stable
    }
    pub(crate) fn room(&self) -> &Room {
        &self.room
    }
    pub(crate) fn background(&self) -> &Background {
        &self.background
    }
    pub(crate) fn log_epoch(&self) -> u32 {
        self.superblock.borrow().log_epoch
    }
    /// The superblock of a planned stop, where the log ends at `last_lsn`.
    pub(crate) fn clean_superblock(&self, last_lsn: u64) -> Super {
        let mut superblock = self.superblock.borrow_mut();
        let epoch = superblock.log_epoch;
        superblock.clean = true;
        superblock.epoch_ends.push((epoch, last_lsn));
        superblock.clone()
    }

    // ---- identity

    /// How often this store was opened, including this time.
    pub fn instance(&self) -> u64 {
        self.superblock.borrow().instance
    }
    /// The target's identity and the openings of its store, including this one.
    pub fn identity(&self) -> Identity {
        self.superblock.borrow().identity()
    }
    /// Whether the store had been stopped as planned before this opening.
    pub fn was_clean(&self) -> bool {
        self.was_clean
    }

    // ---- transactions

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
    /// [`Osd::transact`] of a change that was lost and is replayed under its old number (`None`: a new change).
    /// Numbers of replayed changes lie below those of this epoch, so `last_transno` does not move.
    ///
    /// # Errors
    /// Those of the closure.
    pub fn transact_at<T, E>(
        &self,
        replayed: Option<Transno>,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, E>,
    ) -> Result<(Transno, T), E> {
        let (transno, value, bytes) = {
            let mut state = self.state.borrow_mut();
            let (transno, value) = state.transact(replayed, pins, change)?;
            (transno, value, state.last_record_bytes())
        };
        let credits = reservation.credits();
        drop(reservation);
        let exceeded = bytes > credits.record_bytes();
        // Room that was reserved for others may be gone: a bug of the handler, found by every test that meets it.
        debug_assert!(
            !exceeded,
            "transaction {transno:?} wrote {bytes} bytes of log, reserved were {credits:?}"
        );
        self.count(|s| {
            s.transactions += 1;
            s.log_bytes_written += bytes;
            s.credits_exceeded += u64::from(exceeded);
        });
        self.log.advance_transno(transno.0);
        self.appended();
        Ok((transno, value))
    }
    /// Applies one change. An `Err` of the closure leaves nothing behind and uses no transno.
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
    /// Called after every record that was appended to the log.
    pub(crate) fn appended(&self) {
        let state = self.state.borrow();
        self.log.appended(state.log.last_lsn(), self.ctx.now());
        if self.log.bytes_since_sync(self.stats.get().log_bytes_written) > GROUP_BYTES_MAX {
            self.log.request_commit();
        }
        if state.log.ready_count() == 0 {
            self.log.wake_segment_maker();
        }
        if self.flush_wanted() {
            self.background.wake_flusher();
        }
        if self.removals_pay() {
            self.background.note_removals();
        }
    }
    /// The log bytes of this visit (see `nacre_node::Logic::log_writes`).
    pub fn log_writes(&self, out: &mut Vec<StoreOp>) {
        self.state.borrow_mut().log.take_writes(out);
    }
    /// The next transaction gets a number of the next epoch (high 32 bits). Nothing is written: the epoch is durable
    /// with that transaction, and so is the end of the epoch before.
    pub fn raise_epoch(&self) {
        let mut state = self.state.borrow_mut();
        state.raise_epoch();
        self.log.advance_transno(state.last_transno());
    }
    /// The latest transno that was given to a change.
    pub fn last_transno(&self) -> Transno {
        Transno(self.log.last_transno())
    }
    /// Every change up to this transno is durable.
    pub fn last_committed(&self) -> Transno {
        Transno(self.log.committed_transno())
    }

    // ---- stable bytes of objects

    /// The bytes of every write up to this transno are on stable storage, and this fact is durable: a restart reports
    /// no lower number. Without an object layer everything committed is stable.
    pub fn last_stable(&self) -> Transno {
        self.stable.get(self.last_committed())
    }
    /// There is an object layer, and `stable` is its number at its start.
    pub fn begin_stable(&self, stable: Transno) {
        self.stable.begin(stable);
    }
    /// Freezes the stable transno while clients replay: bytes of changes that the log holds may be lost, so that a
    /// sync proves nothing.
    pub fn freeze_stable(&self, frozen: bool) {
        self.stable.freeze(frozen);
    }
    /// The transaction `row` records that `stable` is stable; the number counts when that transaction is committed.
    pub fn note_stable(&self, row: Transno, stable: Transno) {
        self.stable.record(row, stable);
    }

    // ---- usage and counters

    /// Usage of an owner: (bytes, objects). `kind`: 0 user, 1 group, 2 project.
    ///
    /// # Errors
    /// `Stopped`.
    pub async fn usage(&self, kind: u8, id: u32) -> Result<(u64, u64), OsdError> {
        self.check_alive()?;
        let usage = self.state.borrow().usage(kind, id);
        Ok((usage.bytes, usage.objects))
    }
    /// Usage of all owners together.
    pub fn usage_total(&self) -> Usage {
        self.state.borrow().accounts.total()
    }
    pub(crate) fn count(&self, change: impl FnOnce(&mut OsdStats)) {
        let mut s = self.stats.get();
        change(&mut s);
        self.stats.set(s);
    }
    pub(crate) fn log_bytes_written(&self) -> u64 {
        self.stats.get().log_bytes_written
    }
    /// Counters since the opening, and present sizes.
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
            account_underflows: state.accounts.underflows(),
            range_rows_max: state.mem.deleted_rows_max(),
            ..self.stats.get()
        }
    }

    // ---- failure and stop

    /// A log write failed: the engine refuses everything from now on.
    pub fn log_failed(&self, reason: &str) {
        self.fail("the log could not be made durable", reason);
    }
    /// The store has no room for bytes that it has already accepted: the target stops. No object is to blame, and
    /// live clients write the bytes again after the next start.
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
        self.wake_all();
    }
    /// Background work ends, and reservations are refused.
    pub(crate) fn begin_stop(&self) {
        self.background.stop();
        self.wake_all();
    }
    /// Everything is refused from now on: records that were appended after the end of the log would be lost.
    pub(crate) fn end_stop(&self) {
        *self.failed.borrow_mut() = Some(String::from("stopped as planned"));
        self.wake_all();
    }
    fn wake_all(&self) {
        self.log.wake_all();
        self.room.wake_all();
        self.background.wake_all();
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
    /// Fails when the engine has failed or stops.
    pub(crate) fn check_running(&self) -> Result<(), OsdError> {
        self.check_alive()?;
        match self.background.is_stopping() {
            true => Err(OsdError::Stopped(String::from("as planned"))),
            false => Ok(()),
        }
    }
}
