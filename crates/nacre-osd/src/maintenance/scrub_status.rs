//! The state of the scrub of a target: the latest pass, what it has found, and its rate. The pass: `maintenance/scrub.rs`.
//!
//! Invariant: a pass has a number, and the number changes when it ends or is stopped, so that the task of an older pass
//! recognizes that it is not wanted any more.

use alloc::vec::Vec;
use core::cell::{Cell, Ref, RefCell, RefMut};
use core::future::Future;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Instant, ObjectId, Timestamp};

/// Places of damage that are listed and logged; further ones are only counted.
pub(crate) const DAMAGE_MAX: usize = 1000;

/// What is wrong with bytes that were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// The device returns other bytes than were written.
    Checksum,
    /// The file of the object does not have them.
    Lost,
    /// The device returns an error.
    Unreadable,
    /// The whole object: a sync of it failed.
    Quarantined,
    /// The rows that describe the object cannot be read, and so its bytes are not verified.
    Rows,
}

/// The state of the latest pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScrubState {
    /// There was none since the target started.
    #[default]
    Never,
    /// It is under way.
    Running,
    /// It was stopped before its end.
    Stopped,
    /// It has come to its end.
    Finished,
    /// The objects cannot be listed; the log has the reason.
    Failed,
}

/// A damaged part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// The object.
    pub object: ObjectId,
    /// The first bad byte.
    pub from: u64,
    /// The end of the bad bytes.
    pub to: u64,
    /// What is wrong with them.
    pub kind: DamageKind,
}

/// What the latest pass has done.
#[derive(Debug, Clone, Default)]
pub struct ScrubStatus {
    /// Whether it runs, or how it ended.
    pub state: ScrubState,
    /// When it began.
    pub started: Timestamp,
    /// When it ended; zero while it runs.
    pub ended: Timestamp,
    /// Objects that were inspected to their end.
    pub objects: u64,
    /// Allocated blocks that were passed, in bytes: its progress towards the bytes in use.
    pub bytes: u64,
    /// Blocks that were compared with their checksums, in bytes.
    pub verified_bytes: u64,
    /// Regions that were left out because their verification after a crash has not ended.
    pub unverified_regions: u64,
    /// Damaged places, those beyond the list included.
    pub damaged_places: u64,
    /// Bytes of these places.
    pub damaged_bytes: u64,
    /// The first places, in the order of the objects.
    pub damage: Vec<Damage>,
}

/// The scrub of one target.
pub(crate) struct Scrub {
    status: RefCell<ScrubStatus>,
    /// Number of the current pass. The task of another one ends.
    pass: Cell<u64>,
    /// Bytes per second; 0: no limit.
    rate: Cell<u64>,
    /// When the next piece may be read.
    due: Cell<Instant>,
    wake: WaitList,
}

impl Scrub {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            status: RefCell::default(),
            pass: Cell::new(0),
            rate: Cell::new(0),
            due: Cell::default(),
            wake: ctx.wait_list(),
        }
    }
    pub(crate) fn status(&self) -> Ref<'_, ScrubStatus> {
        self.status.borrow()
    }
    pub(crate) fn status_mut(&self) -> RefMut<'_, ScrubStatus> {
        self.status.borrow_mut()
    }
    /// The number of the current pass.
    pub(crate) fn pass(&self) -> u64 {
        self.pass.get()
    }
    pub(crate) fn rate(&self) -> u64 {
        self.rate.get()
    }
    /// A new rate, in bytes per second, which holds at once.
    pub(crate) fn set_rate(&self, rate: u64) {
        self.rate.set(rate);
        self.due.set(Instant::default());
        self.wake();
    }
    pub(crate) fn due(&self) -> Instant {
        self.due.get()
    }
    pub(crate) fn set_due(&self, due: Instant) {
        self.due.set(due);
    }
    /// Completes when a pause may end early.
    pub(crate) fn event(&self) -> impl Future<Output = ()> + '_ {
        self.wake.wait()
    }
    /// A pause ends: the pass checks whether it goes on.
    pub(crate) fn wake(&self) {
        self.wake.wake_all();
    }
    /// Whether a pass runs.
    pub(crate) fn is_running(&self) -> bool {
        self.status.borrow().state == ScrubState::Running
    }
    /// The current pass ends. `at`: now.
    pub(crate) fn end(&self, state: ScrubState, at: Timestamp) {
        let mut status = self.status.borrow_mut();
        (status.state, status.ended) = (state, at);
        self.pass.set(self.pass.get() + 1);
    }
}
