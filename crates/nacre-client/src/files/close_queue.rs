//! Closes that wait to be sent together, see `closes`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_node::Promise;
use nacre_types::Failure;
use nacre_wire::mdt::{BATCH_MAX, Close};

/// A close that waits for a batch.
pub(crate) struct WaitingClose {
    close: Close,
    outcome: Promise<Result<(), Failure>>,
}

impl WaitingClose {
    pub(super) fn new(close: Close, outcome: Promise<Result<(), Failure>>) -> Self {
        Self { close, outcome }
    }
    pub(super) fn request(&self) -> &Close {
        &self.close
    }
    pub(super) fn end(self, outcome: Result<(), Failure>) {
        self.outcome.fulfil(outcome);
    }
}

/// The closes for one MDT that are not sent yet. Bounded by the handles that a client may have open at the MDT.
#[derive(Default)]
pub(crate) struct CloseQueue {
    waiting: RefCell<VecDeque<WaitingClose>>,
    /// Batches of closes under way.
    under_way: Cell<u32>,
}
impl CloseQueue {
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.borrow().is_empty() && self.under_way.get() == 0
    }
    /// Adds a close.
    pub(super) fn push(&self, waiting: WaitingClose) {
        self.waiting.borrow_mut().push_back(waiting);
    }
    /// Takes the closes of the next batch, which is under way from then on.
    pub(super) fn due(&self) -> Option<Vec<WaitingClose>> {
        let mut waiting = self.waiting.borrow_mut();
        let full = waiting.len() >= BATCH_MAX;
        if waiting.is_empty() || (self.under_way.get() > 0 && !full) {
            return None;
        }
        self.under_way.set(self.under_way.get() + 1);
        let count = waiting.len().min(BATCH_MAX);
        Some(waiting.drain(..count).collect())
    }
    /// A batch has its reply.
    pub(super) fn replied(&self) {
        self.under_way.set(self.under_way.get() - 1);
    }
}
