//! Accounting of room: what transactions have reserved, what the device has, and whether the ballast is there.
//!
//! Between two queries of the device, free space is an estimate that is never too high. Waiting for room:
//! `engine/reserve.rs`.

use crate::engine::credits::Credits;
use alloc::rc::Rc;
use core::cell::Cell;
use core::future::Future;
use core::time::Duration;
use nacre_node::{Ctx, StoreSpace, WaitList};
use nacre_types::Instant;

/// The device is asked again for its space after this time.
const SPACE_AGE_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Room {
    reserved: Rc<Reserved>,
    space: Cell<StoreSpace>,
    asked_at: Cell<Option<Instant>>,
    /// Object bytes reserved since the device was asked.
    taken: Cell<u64>,
    ballast_released: Cell<bool>,
    /// Segments are made smaller than they should be, or not at all: a record that cannot be appended must not be
    /// begun.
    is_tight: Cell<bool>,
    /// No segment can be made, and the ballast is gone.
    is_stuck: Cell<bool>,
    /// A background task has found the device full.
    device_full: Cell<bool>,
    freed: WaitList,
}
#[derive(Default)]
struct Reserved {
    count: Cell<u32>,
    row_bytes: Cell<u64>,
    object_bytes: Cell<u64>,
}

/// Room for one transaction; returned when it is dropped unused.
pub struct Reservation {
    credits: Credits,
    row_bytes: u64,
    reserved: Rc<Reserved>,
}
impl Reservation {
    pub(crate) fn credits(&self) -> Credits {
        self.credits
    }
}
impl Drop for Reservation {
    fn drop(&mut self) {
        let r = &self.reserved;
        r.count.set(r.count.get() - 1);
        r.row_bytes.set(r.row_bytes.get() - self.row_bytes);
        r.object_bytes.set(r.object_bytes.get() - self.credits.object_bytes);
    }
}

impl Room {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            reserved: Rc::default(),
            space: Cell::default(),
            asked_at: Cell::new(None),
            taken: Cell::new(0),
            ballast_released: Cell::new(false),
            is_tight: Cell::new(false),
            is_stuck: Cell::new(false),
            device_full: Cell::new(false),
            freed: ctx.wait_list(),
        }
    }

    pub(crate) fn reserve(&self, credits: Credits, row_bytes: u64) -> Reservation {
        let r = &self.reserved;
        r.row_bytes.set(r.row_bytes.get() + row_bytes);
        r.object_bytes.set(r.object_bytes.get() + credits.object_bytes);
        r.count.set(r.count.get() + 1);
        Reservation { credits, row_bytes, reserved: r.clone() }
    }
    /// Reservations that were neither used nor returned.
    pub(crate) fn reservations(&self) -> u32 {
        self.reserved.count.get()
    }
    pub(crate) fn reserved_row_bytes(&self) -> u64 {
        self.reserved.row_bytes.get()
    }

    /// The space that the device reported last.
    pub(crate) fn space(&self) -> StoreSpace {
        self.space.get()
    }
    pub(crate) fn set_space(&self, space: StoreSpace) {
        self.space.set(space);
        self.taken.set(self.reserved.object_bytes.get());
    }
    /// Object bytes are going to be taken from the reported space.
    pub(crate) fn take(&self, object_bytes: u64) {
        self.taken.set(self.taken.get() + object_bytes);
    }
    /// Bytes of the reported space that are not taken.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.space.get().bytes_avail.saturating_sub(self.taken.get())
    }
    pub(crate) fn asks_device(&self, now: Instant) {
        self.asked_at.set(Some(now));
    }
    pub(crate) fn is_space_fresh(&self, now: Instant) -> bool {
        self.asked_at.get().is_some_and(|at| now.saturating_since(at) < SPACE_AGE_MAX)
    }
    pub(crate) fn forget_space(&self) {
        self.asked_at.set(None);
    }

    pub(crate) fn is_ballast_released(&self) -> bool {
        self.ballast_released.get()
    }
    /// Returns the value before.
    pub(crate) fn set_ballast_released(&self, released: bool) -> bool {
        self.ballast_released.replace(released)
    }
    pub(crate) fn is_tight(&self) -> bool {
        self.is_tight.get()
    }
    pub(crate) fn set_tight(&self, tight: bool) {
        self.is_tight.set(tight);
    }
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_stuck.get()
    }
    pub(crate) fn set_stuck(&self, stuck: bool) {
        self.is_stuck.set(stuck);
    }
    pub(crate) fn is_device_full(&self) -> bool {
        self.device_full.get()
    }
    pub(crate) fn set_device_full(&self, full: bool) {
        self.device_full.set(full);
    }

    /// Room may have become free: waiters look again.
    pub(crate) fn wake_all(&self) {
        self.freed.wake_all();
    }
    pub(crate) fn change(&self) -> impl Future<Output = ()> + '_ {
        self.freed.wait()
    }
}
