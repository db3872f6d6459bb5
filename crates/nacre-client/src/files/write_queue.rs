//! Small kept writes that wait to be sent to their OST together, see `data/write_batches.rs`.
//!
//! Pure: not here is how they are sent. Bounded by the dirty bytes of the mount, of which they are a part.

use crate::files::table::Open;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use nacre_node::Promise;
use nacre_types::{Failure, ObjectId};
use nacre_wire::ost::{ManyWrite, ObjectState, WRITE_MANY_BYTES_MAX, WRITES_MAX};

/// Bytes of one object that were kept, on their way to its OST.
pub(crate) struct KeptWrite {
    open: Rc<Open>,
    evictions: u64,
    write: ManyWrite,
    data: Vec<Bytes>,
}
impl KeptWrite {
    pub(crate) fn new(open: &Rc<Open>, evictions: u64, write: ManyWrite, data: Vec<Bytes>) -> Self {
        Self { open: open.clone(), evictions, write, data }
    }
    /// The handle through which it is sent, and how often this mount had been evicted when the bytes left their file.
    pub(crate) fn allowed_by(&self) -> (&Open, u64) {
        (&self.open, self.evictions)
    }
    pub(crate) fn request(&self) -> &ManyWrite {
        &self.write
    }
    pub(crate) fn data(&self) -> &[Bytes] {
        &self.data
    }
    /// The order of the writes in a request.
    pub(crate) fn place(&self) -> (ObjectId, u64) {
        (self.write.object, self.write.offset)
    }
}

/// A write that waits for a batch.
pub(crate) struct WaitingWrite {
    kept: KeptWrite,
    outcome: Promise<Result<ObjectState, Failure>>,
}
impl WaitingWrite {
    pub(crate) fn new(kept: KeptWrite, outcome: Promise<Result<ObjectState, Failure>>) -> Self {
        Self { kept, outcome }
    }
    pub(crate) fn kept(&self) -> &KeptWrite {
        &self.kept
    }
    pub(crate) fn end(self, outcome: Result<ObjectState, Failure>) {
        self.outcome.fulfil(outcome);
    }
}

/// The small writes for one OST that are not sent yet.
#[derive(Default)]
pub(crate) struct WriteQueue {
    waiting: RefCell<VecDeque<WaitingWrite>>,
    bytes: Cell<u64>,
    /// Batches under way.
    under_way: Cell<u32>,
    /// A task has been started that takes the next batch.
    is_starting: Cell<bool>,
}
impl WriteQueue {
    /// Adds a write. True: the caller starts a task that calls [`Self::due`], once the other writes of this visit are
    /// here as well.
    pub(crate) fn push(&self, waiting: WaitingWrite) -> bool {
        self.bytes.set(self.bytes.get() + u64::from(waiting.kept.write.len));
        self.waiting.borrow_mut().push_back(waiting);
        (self.under_way.get() == 0 || self.is_full()) && !self.is_starting.replace(true)
    }
    fn is_full(&self) -> bool {
        self.waiting.borrow().len() >= WRITES_MAX || self.bytes.get() >= WRITE_MANY_BYTES_MAX
    }
    /// Takes the writes of the next batch, which is under way from then on.
    pub(crate) fn due(&self) -> Option<Vec<WaitingWrite>> {
        self.is_starting.set(false);
        if self.waiting.borrow().is_empty() || (self.under_way.get() > 0 && !self.is_full()) {
            return None;
        }
        let (mut due, mut bytes) = (Vec::new(), 0);
        let mut waiting = self.waiting.borrow_mut();
        while let Some(next) = waiting.front().map(|next| u64::from(next.kept.write.len))
            && due.len() < WRITES_MAX
            && bytes + next <= WRITE_MANY_BYTES_MAX
        {
            bytes += next;
            due.extend(waiting.pop_front());
        }
        self.bytes.set(self.bytes.get() - bytes);
        self.under_way.set(self.under_way.get() + 1);
        Some(due)
    }
    /// A batch has its results.
    pub(crate) fn ended(&self) {
        self.under_way.set(self.under_way.get() - 1);
    }
}
