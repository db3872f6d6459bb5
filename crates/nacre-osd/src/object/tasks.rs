//! The background tasks of the object layer: their number, their progress, and the request to stop.

use core::cell::Cell;
use core::future::Future;
use nacre_node::{Ctx, WaitList};

pub(crate) struct ObjectTasks {
    is_stopping: Cell<bool>,
    running: Cell<u32>,
    /// Wakes once, at the stop.
    stop_requested: WaitList,
    progress: WaitList,
}

impl ObjectTasks {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self {
            is_stopping: Cell::new(false),
            running: Cell::new(0),
            stop_requested: ctx.wait_list(),
            progress: ctx.wait_list(),
        }
    }
    pub(crate) fn begins(&self) {
        self.running.set(self.running.get() + 1);
    }
    pub(crate) fn ended(&self) {
        self.running.set(self.running.get() - 1);
        self.progress.wake_all();
    }
    pub(crate) fn is_any_running(&self) -> bool {
        self.running.get() > 0
    }
    pub(crate) fn stop(&self) {
        self.is_stopping.set(true);
        self.stop_requested.wake_all();
    }
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.get()
    }
    pub(crate) fn stop_request(&self) -> impl Future<Output = ()> + '_ {
        self.stop_requested.wait()
    }
    /// Bytes became stable, or need not become stable any more.
    pub(crate) fn made_progress(&self) {
        self.progress.wake_all();
    }
    /// Completes when bytes became stable or a task ended.
    pub(crate) fn progress(&self) -> impl Future<Output = ()> + '_ {
        self.progress.wait()
    }
}
