//! Closes that wait to be sent together, see `closes`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use nacre_node::Promise;
use nacre_types::Failure;
use nacre_wire::mdt::{BATCH_MAX, Close};

/// Bytes of files in one batch of closes: it is kept for replay, and one transaction stores them.
const DATA_BYTES_MAX: usize = 256 << 10;

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
        let count = batch_len(&waiting);
        let full = count >= BATCH_MAX || count < waiting.len();
        if waiting.is_empty() || (self.under_way.get() > 0 && !full) {
            return None;
        }
        self.under_way.set(self.under_way.get() + 1);
        Some(waiting.drain(..count).collect())
    }
    /// A batch has its reply.
    pub(super) fn replied(&self) {
        self.under_way.set(self.under_way.get() - 1);
    }
}

/// The number of closes that fit into the next batch.
fn batch_len(waiting: &VecDeque<WaitingClose>) -> usize {
    let mut bytes = 0;
    let fits = |waiting: &&WaitingClose| {
        bytes += waiting.close.data.as_ref().map_or(0, Bytes::len);
        bytes <= DATA_BYTES_MAX
    };
    waiting.iter().take(BATCH_MAX).take_while(fits).count().max(1)
}
