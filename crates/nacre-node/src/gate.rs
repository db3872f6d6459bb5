//! A gate: admits a bounded number of tasks at a time, in the order in which they came.
//!
//! Invariant: a task that has called [`Gate::enter`] runs on until it is admitted (tasks are not dropped half way), so
//! no number is skipped.

use crate::ctx::Ctx;
use crate::executor::WaitList;
use core::cell::Cell;

/// Admits at most `limit` tasks at a time.
pub struct Gate {
    limit: u64,
    came: Cell<u64>,
    left: Cell<u64>,
    changed: WaitList,
}
impl Gate {
    /// `limit` is at least 1; with 0 no task would ever be admitted.
    pub fn new(ctx: &Ctx, limit: u64) -> Self {
        Self { limit, came: Cell::new(0), left: Cell::new(0), changed: ctx.wait_list() }
    }
    /// Waits for admission.
    pub async fn enter(&self) -> Inside<'_> {
        let number = self.came.get();
        self.came.set(number + 1);
        let inside = Inside(self);
        while number >= self.left.get() + self.limit {
            self.changed.wait().await;
        }
        inside
    }
}

/// Dropping it admits the next task.
pub struct Inside<'a>(&'a Gate);
impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.left.set(self.0.left.get() + 1);
        self.0.changed.wake_all();
    }
}
