//! Requests to the background tasks of the engine, and the end of these tasks.

use core::cell::Cell;
use core::future::Future;
use nacre_node::{Ctx, WaitList};

pub(crate) struct Background {
    /// `Osd::stop` was called: background work ends.
    is_stopping: Cell<bool>,
    /// Tasks that have not ended.
    running: Cell<u32>,
    flush_requested: Cell<bool>,
    is_merging: Cell<bool>,
    flush_wake: WaitList,
    merge_wake: WaitList,
    removal_wake: WaitList,
    /// Flushes and merges that have failed.
    failures: Cell<u64>,
    /// Ends the pauses of background tasks early, and reports the ends of tasks.
    stop_wake: WaitList,
}

impl Background {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            is_stopping: Cell::new(false),
            running: Cell::new(0),
            flush_requested: Cell::new(false),
            is_merging: Cell::new(false),
            flush_wake: ctx.wait_list(),
            merge_wake: ctx.wait_list(),
            removal_wake: ctx.wait_list(),
            failures: Cell::new(0),
            stop_wake: ctx.wait_list(),
        }
    }

    pub(crate) fn stop(&self) {
        self.is_stopping.set(true);
    }
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }
    pub(crate) fn task_begins(&self) {
        self.running.set(self.running.get() + 1);
    }
    pub(crate) fn task_ended(&self) {
        self.running.set(self.running.get() - 1);
        self.stop_wake.wake_all();
    }
    pub(crate) fn is_any_running(&self) -> bool {
        self.running.get() > 0
    }
    /// Completes when a task ends or the engine stops.
    pub(crate) fn stop_event(&self) -> impl Future<Output = ()> + '_ {
        self.stop_wake.wait()
    }

    /// Requests a flush of all changes, whatever their size.
    pub(crate) fn request_flush(&self) {
        self.flush_requested.set(true);
        self.flush_wake.wake_all();
    }
    pub(crate) fn is_flush_requested(&self) -> bool {
        self.flush_requested.get()
    }
    /// Requests made before this call are served; a later one asks for another flush.
    pub(crate) fn take_flush_request(&self) {
        self.flush_requested.set(false);
    }
    /// The flusher checks again whether a flush is due.
    pub(crate) fn wake_flusher(&self) {
        self.flush_wake.wake_all();
    }
    pub(crate) fn flush_event(&self) -> impl Future<Output = ()> + '_ {
        self.flush_wake.wait()
    }

    pub(crate) fn set_merging(&self, merging: bool) {
        self.is_merging.set(merging);
    }
    pub(crate) fn is_merging(&self) -> bool {
        self.is_merging.get()
    }
    /// The merger checks again whether a merge is due.
    pub(crate) fn wake_merger(&self) {
        self.merge_wake.wake_all();
    }
    pub(crate) fn merge_event(&self) -> impl Future<Output = ()> + '_ {
        self.merge_wake.wait()
    }

    /// There may be removals that are worth a flush.
    pub(crate) fn note_removals(&self) {
        self.removal_wake.wake_all();
    }
    pub(crate) fn removal_event(&self) -> impl Future<Output = ()> + '_ {
        self.removal_wake.wait()
    }

    /// Flushes and merges that have failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.get()
    }
    pub(crate) fn note_failure(&self) {
        self.failures.set(self.failures.get() + 1);
    }

    /// The engine has failed or stops: every task looks again.
    pub(crate) fn wake_all(&self) {
        for list in [&self.flush_wake, &self.merge_wake, &self.removal_wake, &self.stop_wake] {
            list.wake_all();
        }
    }
}
