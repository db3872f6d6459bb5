//! Room before a transaction: memory, log, space on the device. A transaction itself cannot fail for room.
//!
//! Beyond half of a bound writers are slowed in proportion; at the bound they wait until a flush has made room. On
//! a full device changes that free something go on: each store holds a ballast file that is given up for them and
//! for flush and merge, and made again when there is room. Accounting of space is an estimate between two
//! questions to the device, on the safe side.

use crate::engine::credits::Credits;
use crate::engine::osd::Osd;
use crate::error::OsdError;
use alloc::rc::Rc;
use core::cell::Cell;
use core::time::Duration;
use nacre_node::{Ctx, FileId, StoreDone, StoreError, StoreOp, StoreSpace};
use nacre_types::Instant;

/// Delay of a writer just below the bound.
const SLOW_MAX: Duration = Duration::from_millis(10);
/// Age of the device's answer that is still good.
const SPACE_AGE: Duration = Duration::from_secs(1);
const ROW_OVERHEAD: u64 = 160;
/// Room in the log for the engine's own records, on a full device.
const NOTES_BYTES: u64 = 8 << 10;
/// How often who waits for room in the log of a full device looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What is promised and not used yet, and what the device has.
#[derive(Default)]
pub(crate) struct Room {
    promised: Rc<Promised>,
    space: Cell<StoreSpace>,
    asked_at: Cell<Option<Instant>>,
    /// Promised since the device was asked.
    taken: Cell<u64>,
    ballast_given: Cell<bool>,
    /// Segments are made smaller than they should be, or not at all: what cannot be appended must not be begun.
    pub(crate) tight: Cell<bool>,
    /// No segment can be made, and there is no ballast any more.
    pub(crate) stuck: Cell<bool>,
}
#[derive(Default)]
struct Promised {
    count: Cell<u32>,
    row_bytes: Cell<u64>,
    object_bytes: Cell<u64>,
}

/// Room for one transaction; given back when dropped unused.
pub struct Reservation {
    credits: Credits,
    row_bytes: u64,
    promised: Rc<Promised>,
}
impl Reservation {
    fn new(credits: Credits, row_bytes: u64, promised: &Rc<Promised>) -> Self {
        promised.row_bytes.set(promised.row_bytes.get() + row_bytes);
        promised.object_bytes.set(promised.object_bytes.get() + credits.object_bytes);
        promised.count.set(promised.count.get() + 1);
        Self { credits, row_bytes, promised: promised.clone() }
    }
    pub(crate) fn credits(&self) -> Credits {
        self.credits
    }
}
impl Drop for Reservation {
    fn drop(&mut self) {
        let p = &self.promised;
        p.count.set(p.count.get() - 1);
        p.row_bytes.set(p.row_bytes.get() - self.row_bytes);
        p.object_bytes.set(p.object_bytes.get() - self.credits.object_bytes);
    }
}

/// How full something with a bound is.
fn fullness(used: u64, max: u64) -> f64 {
    used as f64 / max.max(1) as f64
}

impl Osd {
    /// Waits for memory and log room, checks space on the device.
    ///
    /// # Errors
    /// `NoSpace`, `Stopped`.
    pub async fn reserve(&self, credits: Credits) -> Result<Reservation, OsdError> {
        let row_bytes = u64::from(credits.row_bytes) + u64::from(credits.rows) * ROW_OVERHEAD;
        let needed_bytes = row_bytes + credits.object_bytes;
        let mut slowed = false;
        loop {
            self.halted()?;
            let promised = self.room.promised.row_bytes.get();
            let (memory, log, room, record, body_max, changed) = {
                let state = self.state.borrow();
                let bytes = state.mem.bytes();
                let changed = bytes.active + bytes.frozen;
                // What is reserved is an upper bound, mostly far from what is written.
                let record = match self.room.tight.get() {
                    true => row_bytes.min(state.log.ready_body() / 2),
                    false => row_bytes,
                };
                let log_max = self.config.log_bytes_max.max(4 * state.log.segment_bytes());
                (
                    fullness(changed + row_bytes, self.config.dirty_bytes_max),
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
                self.flush_kick.wake_all();
            }
            // A change that frees goes on as long as it can: the log may still grow into the ballast's room.
            if self.device_full.get() && !credits.frees && (full >= 1.0 || room < record) {
                return Err(OsdError::NoSpace { needed_bytes });
            }
            if self.room.tight.get() && room < record + NOTES_BYTES {
                if self.room.stuck.get() && promised == 0 {
                    return Err(OsdError::NoSpace { needed_bytes });
                }
                self.log_kick.wake_all();
                let until = self.ctx.now() + LOOK_AGAIN;
                let _made = self.ctx.timeout(until, self.room_kick.wait()).await;
                continue;
            }
            if full >= 1.0 && changed {
                self.room_kick.wait().await;
                continue;
            }
            if full > 0.5 && !slowed {
                slowed = true;
                self.count(|s| s.slowed_writers += 1);
                // Gentle at first: the square of the way from half the bound to the bound.
                let way = (full - 0.5) * 2.0;
                self.ctx.sleep(SLOW_MAX.mul_f64(way * way)).await;
                continue;
            }
            break;
        }
        self.check_space(&credits, needed_bytes).await?;
        self.halted()?;
        Ok(Reservation::new(credits, row_bytes, &self.room.promised))
    }

    /// Reservations that were neither used nor given back.
    pub(crate) fn reserved(&self) -> u32 {
        self.room.promised.count.get()
    }
    /// Bytes that may still be promised to changes that do not free.
    fn free_bytes(&self) -> u64 {
        let state = self.state.borrow();
        let bytes = state.mem.bytes();
        // Changed rows become a run; the log needs its next segments; ballast that is missing must come back.
        let ballast = if self.room.ballast_given.get() { self.ballast_bytes() } else { 0 };
        // A merge writes all runs once more before the old ones go.
        let kept = bytes.active + bytes.frozen + 2 * state.log.segment_bytes() + ballast + state.runs.bytes();
        self.room.space.get().bytes_avail.saturating_sub(self.room.taken.get()).saturating_sub(kept)
    }
    async fn check_space(&self, credits: &Credits, needed: u64) -> Result<(), OsdError> {
        let now = self.ctx.now();
        let fresh = self.room.asked_at.get().is_some_and(|at| now.saturating_since(at) < SPACE_AGE);
        if !fresh || (self.free_bytes() < needed && !credits.frees) {
            self.ask_space().await?;
        }
        if self.free_bytes() < needed {
            if !credits.frees {
                return Err(OsdError::NoSpace { needed_bytes: needed });
            }
            if self.room.space.get().bytes_avail < needed {
                self.give_ballast().await;
            }
        }
        self.room.taken.set(self.room.taken.get() + credits.object_bytes);
        Ok(())
    }
    pub(crate) async fn ask_space(&self) -> Result<StoreSpace, OsdError> {
        // Many may find the answer too old at once: one question is enough.
        self.room.asked_at.set(Some(self.ctx.now()));
        match self.ctx.io(StoreOp::Space).await? {
            StoreDone::Space(space) => {
                self.room.space.set(space);
                self.room.taken.set(self.room.promised.object_bytes.get());
                if self.room.ballast_given.get() {
                    self.log_kick.wake_all();
                }
                Ok(space)
            }
            other => Err(OsdError::Stopped(alloc::format!("the store answered {other:?} to Space"))),
        }
    }
    /// Honest numbers: device space less ballast and reservations.
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

    // ---- ballast

    pub(crate) async fn make_ballast(ctx: &Ctx, config: &crate::OsdConfig) -> Result<(), OsdError> {
        let device_bytes = match ctx.io(StoreOp::Space).await? {
            StoreDone::Space(s) => s.bytes_total,
            _ => 0,
        };
        let len = config.ballast_bytes.min(device_bytes / 16);
        match ctx.io(StoreOp::Create { file: FileId::Ballast, len }).await {
            Ok(_) => Ok(()),
            Err(StoreError::NoSpace) => {
                ctx.io(StoreOp::Delete { file: FileId::Ballast }).await?;
                Err(OsdError::NoSpace { needed_bytes: len })
            }
            Err(e) => Err(e.into()),
        }
    }
    /// Length of the ballast on this device.
    fn ballast_bytes(&self) -> u64 {
        self.config.ballast_bytes.min(self.room.space.get().bytes_total / 16)
    }
    /// Whether the ballast is there after a restart.
    pub(crate) async fn find_ballast(&self) -> Result<(), OsdError> {
        let len = self.ctx.io(StoreOp::Len { file: FileId::Ballast }).await?;
        self.room.ballast_given.set(!matches!(len, StoreDone::Len(Some(n)) if n > 0));
        Ok(())
    }
    /// The ballast was given up and could not be made again.
    pub(crate) fn is_full(&self) -> bool {
        self.room.ballast_given.get()
    }
    pub(crate) async fn ballast_makes_room_for(&self, bytes: u64) -> bool {
        let space = self.ask_space().await.unwrap_or_default();
        space.bytes_avail + self.ballast_bytes() >= bytes
    }
    /// Gives up the ballast: only for what frees space in the end.
    pub(crate) async fn give_ballast(&self) {
        if self.room.ballast_given.replace(true) {
            return;
        }
        tracing::warn!(target_name = %self.label.name, "the device is full: ballast given up, delete something");
        if let Err(error) = self.ctx.io(StoreOp::Delete { file: FileId::Ballast }).await {
            tracing::error!(target_name = %self.label.name, %error, "ballast could not be deleted");
        }
        self.room.asked_at.set(None);
        self.room_kick.wake_all();
    }
    /// Makes the ballast again when there is more than enough room.
    pub(crate) async fn restore_ballast(&self) {
        if !self.room.ballast_given.get() || self.free_bytes() < self.ballast_bytes() {
            return;
        }
        if Self::make_ballast(&self.ctx, &self.config).await.is_ok() {
            self.room.ballast_given.set(false);
            self.room.asked_at.set(None);
            tracing::info!(target_name = %self.label.name, "ballast made again");
        }
    }
}
