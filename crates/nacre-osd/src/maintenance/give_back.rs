//! Space that log and tables hold without need: given back before a change is refused, and after removals.
//!
//! A flush gives back the full segments of the log. A merge gives back removed rows together with the rows that say so.
//! Both happen in any case when the log is half full and when the runs have become many; but on a small device, or one
//! with little free space, several targets that wait for that hold what files could use. So three events bring them
//! forward: the device runs short ([`Osd::is_short`]), a change is about to be refused ([`Osd::give_back`]), and much was
//! removed ([`Osd::give_back_after_removals`]).
//!
//! Invariants: there is nothing to give back right after a flush and a merge, so a change that is refused for good costs at
//! most one of each, and refused changes in a row cost nothing; a flush or merge that fails ends the wait of those who
//! hope for it. Both work on a full device (`engine/ballast.rs`).

use crate::engine::osd::Osd;
use crate::engine::state::State;
use crate::error::OsdError;
use crate::maintenance::merge::{DELETED_SHARE, DELETED_SHARE_SHORT};
use crate::table::key::Key;
use alloc::rc::Rc;
use core::time::Duration;
use nacre_types::Instant;

/// Room is short if the device has no more free space than so many logs of this target.
const SHORT_LOGS: u64 = 4;
/// While room is short, full log segments are freed from this size on, or from half of the free space on.
const FREED_BYTES_MIN: u64 = 1 << 20;
/// Log and runs are worth a flush after removals if they hold one such part of the device.
const WORTH_PART: u64 = 256;
/// Fewer removals than this cause no flush.
const REMOVALS_MIN: u64 = 256;
/// Removals are collected for so long before they are flushed.
const CALM: Duration = Duration::from_secs(1);
/// Rows of memory that are examined in one visit.
const SLICE: usize = 1024;

impl Osd {
    /// Whether the device has so little free space that log and tables give theirs back early.
    pub(crate) fn is_short(&self) -> bool {
        let config = self.config();
        config.log_part > 0
            && (self.is_full() || self.room().bytes_left() <= config.log_bytes_max.saturating_mul(SHORT_LOGS))
    }
    /// The tasks that give back space look whether there is some, if the device says that room is short.
    pub(crate) fn wake_if_short(&self) {
        if self.is_short() {
            self.background().wake_flusher();
            self.background().wake_merger();
            self.background().note_removals();
        }
    }
    /// Whether room is short and full log segments hold enough for a flush. The less is free, the less has to be in them.
    pub(crate) fn is_log_due_while_short(&self) -> bool {
        let least = (self.room().bytes_left() / 2).clamp(FREED_BYTES_MIN, self.short_log_bytes());
        self.is_short() && self.state().freeable_log_bytes() >= least
    }
    /// Full segments that a log keeps at most while room is short.
    fn short_log_bytes(&self) -> u64 {
        (self.config().log_bytes_max / 4).max(FREED_BYTES_MIN)
    }

    /// Has log and tables give back the space that they do not need, and waits for that. False: they have nothing, or it
    /// could not be given back.
    ///
    /// # Errors
    /// `Stopped`.
    pub async fn give_back(&self, until: Instant) -> Result<bool, OsdError> {
        let (before, failures) = (self.stats(), self.background().failures());
        let is_cut_short = || self.background().failures() != failures || self.ctx().now() >= until;
        while (self.has_flush_to_give() || self.will_merge()) && !is_cut_short() {
            self.check_running()?;
            if self.has_flush_to_give() {
                self.background().request_flush();
            }
            self.background().wake_merger();
            let _ended = self.ctx().timeout(until, self.room().change()).await;
        }
        self.check_running()?;
        let after = self.stats();
        let is_given = (before.flushes, before.merges) != (after.flushes, after.merges);
        if is_given {
            self.ask_space().await?;
        }
        Ok(is_given)
    }
    /// The same if room is short; otherwise nothing is done.
    ///
    /// # Errors
    /// `Stopped`.
    pub async fn give_back_if_short(&self, until: Instant) -> Result<bool, OsdError> {
        self.ask_space().await?;
        if self.is_short() { self.give_back(until).await } else { Ok(false) }
    }
    /// Whether a flush would free log segments, or let a merge drop rows of runs.
    fn has_flush_to_give(&self) -> bool {
        let state = self.state();
        state.mem.is_frozen() || state.freeable_log_bytes() > 0 || hides_much(&state, DELETED_SHARE_SHORT)
    }

    /// Whether a flush after removals gives back a notable part of the device.
    pub(crate) fn removals_pay(&self) -> bool {
        let state = self.state();
        if state.removed().count() < REMOVALS_MIN || self.config().log_part == 0 {
            return false;
        }
        let (log, runs) = (state.freeable_log_bytes(), state.runs.bytes());
        let worth = self.room().space().bytes_total / WORTH_PART;
        let short = self.is_short();
        let share = if short { DELETED_SHARE_SHORT } else { DELETED_SHARE };
        log > 0 && (short || log >= worth) || hides_much(&state, share) && (short || log + runs >= worth)
    }
    /// Task: has removals written to a run and merged with what they hide, when they have been collected for a while.
    pub(crate) async fn give_back_after_removals(self: Rc<Self>) {
        loop {
            if self.check_running().is_err() {
                return;
            }
            if !self.removals_pay() {
                self.background().removal_event().await;
                continue;
            }
            let until = self.ctx().now() + CALM;
            while self.ctx().now() < until && self.check_running().is_ok() {
                let _cut_short = self.ctx().timeout(until, self.background().stop_event()).await;
            }
            if self.removals_pay() {
                self.background().request_flush();
            }
        }
    }

    /// Drops rows of memory that say "removed" about keys that no run has any more.
    pub(crate) async fn drop_absent_rows(&self) {
        let mut at = Some(Key::from_raw(&[]));
        while let Some(from) = at
            && self.check_running().is_ok()
        {
            {
                let state = &mut *self.state_mut();
                let runs = &state.runs;
                at = state
                    .mem
                    .drop_absent(&from, &Key::from_raw(&[u8::MAX; 64]), SLICE, |raw| runs.may_hold(raw));
            }
            self.slice_end().await;
        }
    }
}

/// Whether the deletions in memory and runs together hide so many rows of runs that these are merged after a flush.
fn hides_much(state: &State, share: u64) -> bool {
    let hiding = state.removed().hiding();
    state.mem.has_changes() && hiding >= REMOVALS_MIN && state.runs.would_be_deleted(hiding, share)
}
