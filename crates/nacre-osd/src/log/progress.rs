//! Positions in the log (appended, requested to be committed, committed) and the wait lists of tasks that wait for
//! them.
//!
//! Invariant: positions never move back, and `committed_lsn <= last_lsn`. Not here: the sync itself (`log/commit.rs`).

use core::cell::Cell;
use core::future::Future;
use nacre_node::{Ctx, WaitList};
use nacre_types::Instant;

pub(crate) struct LogProgress {
    last_transno: Cell<u64>,
    last_lsn: Cell<u64>,
    /// Records up to this one are to be committed without further delay.
    requested_lsn: Cell<u64>,
    committed_lsn: Cell<u64>,
    committed_transno: Cell<u64>,
    /// Time at which the oldest unsynced record was appended.
    unsynced_since: Cell<Option<Instant>>,
    /// Bytes written to the log when the latest sync began.
    bytes_at_sync: Cell<u64>,
    commit_requested: WaitList,
    first_unsynced: WaitList,
    commit_ended: WaitList,
    segment_used: WaitList,
}

impl LogProgress {
    /// Creates the state of a log that is durable up to `last_transno` and `last_lsn`.
    pub(crate) fn new(ctx: &Ctx, last_transno: u64, last_lsn: u64) -> Self {
        Self {
            last_transno: Cell::new(last_transno),
            last_lsn: Cell::new(last_lsn),
            requested_lsn: Cell::new(0),
            committed_lsn: Cell::new(last_lsn),
            committed_transno: Cell::new(last_transno),
            unsynced_since: Cell::new(None),
            bytes_at_sync: Cell::new(0),
            commit_requested: ctx.wait_list(),
            first_unsynced: ctx.wait_list(),
            commit_ended: ctx.wait_list(),
            segment_used: ctx.wait_list(),
        }
    }
    pub(crate) fn last_transno(&self) -> u64 {
        self.last_transno.get()
    }
    /// Records that a transaction was appended. A replayed transaction has a lower number and changes nothing.
    pub(crate) fn advance_transno(&self, transno: u64) {
        self.last_transno.set(self.last_transno.get().max(transno));
    }
    pub(crate) fn last_lsn(&self) -> u64 {
        self.last_lsn.get()
    }
    pub(crate) fn committed_lsn(&self) -> u64 {
        self.committed_lsn.get()
    }
    pub(crate) fn committed_transno(&self) -> u64 {
        self.committed_transno.get()
    }
    pub(crate) fn unsynced_since(&self) -> Option<Instant> {
        self.unsynced_since.get()
    }
    /// Returns the bytes appended since the latest sync began, given the total of `bytes_written`.
    pub(crate) fn bytes_since_sync(&self, bytes_written: u64) -> u64 {
        bytes_written - self.bytes_at_sync.get()
    }

    /// Records that the log was appended up to `lsn`.
    pub(crate) fn appended(&self, lsn: u64, now: Instant) {
        self.last_lsn.set(lsn);
        if self.unsynced_since.get().is_none() {
            self.unsynced_since.set(Some(now));
            self.first_unsynced.wake_all();
        }
    }
    /// Requests a commit of everything appended so far.
    pub(crate) fn request_commit(&self) {
        if self.requested_lsn.get() < self.last_lsn.get() {
            self.requested_lsn.set(self.last_lsn.get());
            self.commit_requested.wake_all();
        }
    }
    pub(crate) fn is_commit_requested(&self) -> bool {
        self.requested_lsn.get() > self.committed_lsn.get()
    }
    /// Records that a sync of everything appended so far begins.
    pub(crate) fn sync_begins(&self, bytes_written: u64) {
        self.unsynced_since.set(None);
        self.bytes_at_sync.set(bytes_written);
    }
    /// Records that a sync has made everything up to `lsn` and `transno` durable.
    pub(crate) fn committed(&self, lsn: u64, transno: u64) {
        self.committed_lsn.set(lsn);
        self.committed_transno.set(transno);
        self.commit_ended.wake_all();
        self.segment_used.wake_all();
    }
    /// Wakes the task that creates log segments in advance.
    pub(crate) fn wake_segment_maker(&self) {
        self.segment_used.wake_all();
    }
    /// Wakes every waiter after the engine has failed or stopped; each checks for that.
    pub(crate) fn wake_all(&self) {
        for list in [&self.commit_requested, &self.first_unsynced, &self.commit_ended, &self.segment_used] {
            list.wake_all();
        }
    }

    pub(crate) fn commit_request(&self) -> impl Future<Output = ()> + '_ {
        self.commit_requested.wait()
    }
    pub(crate) fn first_unsynced_record(&self) -> impl Future<Output = ()> + '_ {
        self.first_unsynced.wait()
    }
    pub(crate) fn commit_end(&self) -> impl Future<Output = ()> + '_ {
        self.commit_ended.wait()
    }
    pub(crate) fn segment_use(&self) -> impl Future<Output = ()> + '_ {
        self.segment_used.wait()
    }
}
