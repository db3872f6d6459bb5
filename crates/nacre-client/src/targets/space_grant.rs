//! Space that an OST keeps for bytes that this mount has in memory, so that a kept write never meets ENOSPC later.
//!
//! Both sides count: the grant shrinks with each write under it that succeeds, by its bytes and `EXTENT_TAX`; the mount keeps no more than
//! the grant covers, and has it renewed before it is used up. A grant ends with the process of its OST: what is in memory is
//! then covered again by the next one, which asks for it, too. Not here: when bytes are kept (`data/write_back.rs`).

use core::cell::Cell;
use nacre_node::{Ctx, WaitList};
use nacre_types::Instant;

/// The grant of one OST.
pub(crate) struct SpaceGrant {
    granted: Cell<u64>,
    /// The part of it that bytes in memory need.
    used: Cell<u64>,
    /// Start of the OST that has granted it.
    instance: Cell<u64>,
    is_asking: Cell<bool>,
    /// What writes have used since the OST was asked: its reply may be older than they are.
    consumed: Cell<u64>,
    replied: WaitList,
    retry_at: Cell<Instant>,
    /// It was used since the last look.
    is_busy: Cell<bool>,
}

impl SpaceGrant {
    pub(super) fn new(ctx: &Ctx) -> Self {
        Self {
            granted: Cell::new(0),
            used: Cell::new(0),
            instance: Cell::new(0),
            is_asking: Cell::new(false),
            consumed: Cell::new(0),
            replied: ctx.wait_list(),
            retry_at: Cell::default(),
            is_busy: Cell::new(false),
        }
    }
    /// The part that is not used. `instance`: the present start of the OST.
    pub(crate) fn room(&self, instance: u64) -> u64 {
        if self.instance.replace(instance) != instance {
            self.granted.set(0);
        }
        self.granted.get().saturating_sub(self.used.get())
    }
    /// Begins to ask the OST. False: it has been asked, or it has just had no room.
    pub(super) fn begin(&self, now: Instant) -> bool {
        now >= self.retry_at.get() && self.begin_request()
    }
    /// Begins to return what is not used: no write is kept under it any more. Returns the rest, which the OST is to be told.
    /// `None`: the OST has been asked for more, and its reply comes first.
    pub(super) fn begin_return(&self) -> Option<u64> {
        self.begin_request().then(|| {
            self.granted.set(self.granted.get().min(self.used.get()));
            self.used.get()
        })
    }
    fn begin_request(&self) -> bool {
        let begins = !self.is_asking.replace(true);
        if begins {
            self.consumed.set(0);
        }
        begins
    }
    /// Waits until the OST has replied, if it has been asked.
    pub(super) async fn replied(&self) {
        if self.is_asking.get() {
            self.replied.wait().await;
        }
    }
    /// The OST has granted this much in all. `retry_at`: it has less room than was wanted.
    pub(super) fn end(&self, granted: Option<u64>, retry_at: Option<Instant>) {
        let granted = granted.map(|bytes| bytes.saturating_sub(self.consumed.get()));
        self.granted.set(granted.unwrap_or(self.granted.get()));
        self.retry_at.set(retry_at.unwrap_or_default());
        self.is_asking.set(false);
        self.replied.wake_all();
    }
    /// Whether it was not used since the last call, and is to be returned.
    pub(super) fn take_idle(&self) -> bool {
        let is_idle = !self.is_busy.replace(false) && self.used.get() == 0 && !self.is_asking.get();
        is_idle && self.granted.get() > 0
    }
    /// All of it, and the part that is used.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.granted.get(), self.used.get())
    }
    /// Bytes in memory need so much more, or less.
    pub(crate) fn charge(&self, before: u64, after: u64) {
        self.used.set((self.used.get() + after).saturating_sub(before));
        self.is_busy.set(true);
    }
    /// The OST has evicted this mount, and its grant with it.
    pub(crate) fn lost(&self) {
        self.granted.set(0);
    }
    /// The OST has counted a write under the grant.
    pub(crate) fn consumed(&self, bytes: u64) {
        self.granted.set(self.granted.get().saturating_sub(bytes));
        self.consumed.set(self.consumed.get().saturating_add(bytes));
    }
}
