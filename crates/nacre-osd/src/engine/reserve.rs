//! Reservation of room before a transaction: memory, log, space on the device. A transaction itself cannot fail for
//! lack of room.
//!
//! Beyond half of a bound, writers are slowed in proportion; at the bound they wait until a flush has made room. Before a
//! change is refused, log and tables give back what they can (`maintenance/give_back.rs`). On a full device, changes that
//! free space continue: the ballast is released for them (`engine/ballast.rs`). Changes that need no new space continue as
//! well, in the room that others leave to log and tables, down to what a flush and a merge need.

use crate::engine::credits::Credits;
use crate::engine::osd::Osd;
use crate::engine::room::Reservation;
use crate::error::OsdError;
use alloc::boxed::Box;
use core::time::Duration;
use nacre_node::{StoreDone, StoreOp, StoreSpace};

/// Delay of a writer just below the bound.
const SLOW_MAX: Duration = Duration::from_millis(10);
const ROW_OVERHEAD: u64 = 160;
/// Room in the log for the engine's own records on a full device.
const NOTES_BYTES: u64 = 8 << 10;
/// How long a change waits for space of log and tables before it is refused.
const GIVE_BACK_MAX: Duration = Duration::from_secs(5);
/// Segments of the log, in lengths of one copy, for which changes leave room on the device: all of a log, and for changes
/// in place one segment with its two copies.
const SEGMENTS_KEPT: u64 = 8;
const SEGMENTS_KEPT_IN_PLACE: u64 = 2;
/// Interval at which a change that waits for log room on a full device checks again.
const LOG_ROOM_INTERVAL: Duration = Duration::from_millis(10);

/// The part of a bound that is used.
fn fullness(used: u64, max: u64) -> f64 {
    used as f64 / max.max(1) as f64
}

/// Bytes that a change takes in memory at most.
fn row_bytes(credits: &Credits) -> u64 {
    u64::from(credits.row_bytes) + u64::from(credits.rows) * ROW_OVERHEAD
}
/// Bytes that a change takes on the device at most.
fn needed_bytes(credits: &Credits) -> u64 {
    row_bytes(credits) + credits.object_bytes
}

/// The room in memory and log for a change.
enum RoomFor {
    /// It has to wait until a segment can be made.
    Nothing,
    /// It has to wait for a flush.
    NothingBeforeFlush,
    /// `full`: the part of the bounds that is used with it.
    Enough { full: f64 },
}

impl Osd {
    /// Waits for memory and log room, checks space on the device.
    ///
    /// # Errors
    /// `NoSpace`, `Stopped`.
    pub async fn reserve(&self, credits: Credits) -> Result<Reservation, OsdError> {
        match self.try_reserve(credits).await {
            Err(OsdError::NoSpace { .. }) => {
                // Others may have freed space during this wait, even if nothing was given back.
                Box::pin(self.give_back(self.ctx().now() + GIVE_BACK_MAX)).await?;
                self.try_reserve(credits).await
            }
            reserved => reserved,
        }
    }
    async fn try_reserve(&self, credits: Credits) -> Result<Reservation, OsdError> {
        let mut slowed = false;
        loop {
            match self.room_for(&credits)? {
                RoomFor::Nothing => {
                    let deadline = self.ctx().now() + LOG_ROOM_INTERVAL;
                    let _freed = self.ctx().timeout(deadline, self.room().change()).await;
                }
                RoomFor::NothingBeforeFlush => self.room().change().await,
                RoomFor::Enough { full } if full > 0.5 && !slowed => {
                    slowed = true;
                    self.count(|s| s.slowed_writers += 1);
                    // The delay grows with the square of the distance beyond half of the bound, so it is short at first.
                    let way = (full - 0.5) * 2.0;
                    self.ctx().sleep(SLOW_MAX.mul_f64(way * way)).await;
                }
                RoomFor::Enough { .. } => break,
            }
        }
        self.check_space(&credits).await?;
        self.check_running()?;
        Ok(self.room().reserve(credits, row_bytes(&credits)))
    }
    /// Like `reserve`, if there is room enough. `None`: the change has to wait for it, is slowed, or fails.
    pub fn reserve_now(&self, credits: Credits) -> Option<Reservation> {
        let room = matches!(self.room_for(&credits), Ok(RoomFor::Enough { full }) if full <= 0.5);
        let fresh = self.room().is_space_fresh(self.ctx().now());
        if !room || !fresh || self.free_bytes_for(&credits) < needed_bytes(&credits) {
            return None;
        }
        self.room().take(credits.object_bytes);
        Some(self.room().reserve(credits, row_bytes(&credits)))
    }
    /// Whether memory and log have room for a change now. Wakes the tasks that make room.
    fn room_for(&self, credits: &Credits) -> Result<RoomFor, OsdError> {
        self.check_running()?;
        let (row_bytes, needed_bytes) = (row_bytes(credits), needed_bytes(credits));
        let promised = self.room().reserved_row_bytes();
        let (memory, log, room, record, body_max, changed) = {
            let state = self.state();
            let bytes = state.mem.bytes();
            let changed = bytes.active + bytes.frozen;
            // Credits are an upper bound, mostly far above what is written.
            let record = match self.room().is_tight() {
                true => row_bytes.min(state.log.ready_body() / 2),
                false => row_bytes,
            };
            let log_max = self.config().log_bytes_max.max(8 * state.log.segment_bytes());
            (
                fullness(changed + row_bytes, self.config().dirty_bytes_max),
                fullness(state.log.bytes(), log_max),
                state.log.room(record).saturating_sub(promised),
                record,
                state.log.body_bytes_max(),
                changed > 0,
            )
        };
        if credits.record_bytes() > body_max {
            return Err(OsdError::NoSpace { needed_bytes });
        }
        let full = memory.max(log);
        if full >= 0.5 {
            self.background().wake_flusher();
        }
        // A change that frees space continues as long as it can: the log may still grow into the room of the ballast. A
        // change in place waits for the flush that makes room, unless it would take the room of the ballast.
        let continues = credits.frees || credits.in_place && !self.is_full();
        if self.room().is_device_full() && !continues && (full >= 1.0 || room < record) {
            return Err(OsdError::NoSpace { needed_bytes });
        }
        if self.room().is_tight() && room < record + NOTES_BYTES {
            if self.room().is_stuck() && promised == 0 {
                return Err(OsdError::NoSpace { needed_bytes });
            }
            self.log().wake_segment_maker();
            return Ok(RoomFor::Nothing);
        }
        Ok(if full >= 1.0 && changed { RoomFor::NothingBeforeFlush } else { RoomFor::Enough { full } })
    }

    /// Bytes that changes which free no space, and need new space, may still reserve.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_bytes_beside(SEGMENTS_KEPT)
    }
    fn free_bytes_for(&self, credits: &Credits) -> u64 {
        self.free_bytes_beside(if credits.in_place { SEGMENTS_KEPT_IN_PLACE } else { SEGMENTS_KEPT })
    }
    fn free_bytes_beside(&self, segments: u64) -> u64 {
        let state = self.state();
        let bytes = state.mem.bytes();
        // Changed rows become a run; the log needs its next segments; a released ballast must be restored.
        let ballast = if self.room().is_ballast_released() { self.ballast_bytes() } else { 0 };
        // A merge writes all runs once more before it deletes the old ones.
        let kept =
            bytes.active + bytes.frozen + segments * state.log.segment_bytes() + ballast + state.runs.bytes();
        self.room().bytes_left().saturating_sub(kept)
    }
    async fn check_space(&self, credits: &Credits) -> Result<(), OsdError> {
        let (now, needed) = (self.ctx().now(), needed_bytes(credits));
        if !self.room().is_space_fresh(now) || (self.free_bytes_for(credits) < needed && !credits.frees) {
            self.ask_space().await?;
        }
        if self.free_bytes_for(credits) < needed {
            if !credits.frees {
                return Err(OsdError::NoSpace { needed_bytes: needed });
            }
            if self.room().space().bytes_avail < needed {
                self.release_ballast().await;
            }
        }
        self.room().take(credits.object_bytes);
        Ok(())
    }
    pub(crate) async fn ask_space(&self) -> Result<StoreSpace, OsdError> {
        // Several tasks may find the reported space too old at once: one question is enough.
        self.room().asks_device(self.ctx().now());
        match self.ctx().io(StoreOp::Space).await? {
            StoreDone::Space(space) => {
                self.room().set_space(space);
                if self.room().is_ballast_released() {
                    self.log().wake_segment_maker();
                }
                self.wake_if_short();
                Ok(space)
            }
            other => Err(OsdError::Stopped(alloc::format!("the store returned {other:?} to Space"))),
        }
    }
    /// Space of the device less ballast and reservations.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn space(&self) -> Result<StoreSpace, OsdError> {
        self.check_alive()?;
        let space = self.ask_space().await?;
        let free = self.free_bytes();
        Ok(StoreSpace {
            bytes_avail: free,
            files_free: Some(space.files_free.unwrap_or(free / 4096)),
            ..space
        })
    }
}
