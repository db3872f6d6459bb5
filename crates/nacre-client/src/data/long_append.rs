//! Appends that are longer than one request of the kernel: their pieces stay together.
//!
//! The kernel splits a write(2) into requests of at most 1 MiB and sends each one when the previous one has its reply.
//! Between them the file stays locked: against other mounts by extent locks on all of its objects, against other calls
//! of this mount by a range lock. The locks are released after the last piece; at the close of the handle; at any call
//! that the kernel would not allow during such a write; or when no piece has arrived for a second (the caller was
//! killed, or cannot read its own buffer), so that others do not wait for long. A piece that arrives after that is
//! appended at the current end of the file.
//!
//! A piece is recognised by its handle and by the offset that the kernel gives it, which is the end of the previous
//! piece. (The offset is not the place in the file: it continues from the end of the file as this mount's kernel
//! assumed it.) Bounded: one such append per file, and 2 GiB per call, which is the kernel's limit.

use crate::files::ranges::RangeGuard;
use crate::locks::extents::GrantedExtent;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_types::{Instant, OpenHandle};

/// The locks of an append, one for each object, in the order of the stripes.
pub(crate) type AppendLocks = Vec<(Rc<Target>, GrantedExtent)>;

/// An append whose next piece has not arrived, with the locks that this piece needs.
pub(crate) struct PendingAppend {
    handle: OpenHandle,
    /// Where the kernel will say that the next piece goes.
    next_offset: u64,
    /// Bytes that the call has left.
    rest: u64,
    locks: AppendLocks,
    order: RangeGuard,
}

impl PendingAppend {
    /// Bytes that the call has left, the extent locks, and the place among the operations of this mount.
    pub(super) fn into_parts(self) -> (u64, AppendLocks, RangeGuard) {
        (self.rest, self.locks, self.order)
    }
}

/// The append of a file that has pieces to come.
#[derive(Default)]
pub(crate) struct LongAppend {
    pending: RefCell<Option<PendingAppend>>,
    /// The locks are released at this time.
    deadline: Cell<Instant>,
    /// A task waits for the deadline.
    watched: Cell<bool>,
}

impl LongAppend {
    /// The locks, if this is the next piece. Any other append releases them.
    pub(crate) fn next_piece(&self, handle: OpenHandle, offset: u64, len: u64) -> Option<PendingAppend> {
        let pending = self.pending.take()?;
        (pending.handle == handle && pending.next_offset == offset && len <= pending.rest).then_some(pending)
    }
    /// Releases the locks: the mount no longer waits for a further piece.
    pub(crate) fn end(&self) {
        drop(self.pending.take());
    }
    /// The same, when a handle is closed.
    pub(crate) fn end_of(&self, handle: OpenHandle) {
        if self.pending.borrow().as_ref().is_some_and(|pending| pending.handle == handle) {
            self.end();
        }
    }
    /// Keeps the locks for the next piece until `deadline`. True: a task must be started that waits for the deadline.
    pub(super) fn keep(
        &self,
        piece: &Piece,
        locks: AppendLocks,
        order: RangeGuard,
        deadline: Instant,
    ) -> bool {
        let Piece { handle, offset, len, rest } = *piece;
        *self.pending.borrow_mut() =
            Some(PendingAppend { handle, next_offset: offset + len, rest, locks, order });
        self.deadline.set(deadline);
        !self.watched.replace(true)
    }
    pub(super) fn deadline(&self) -> Instant {
        self.deadline.get()
    }
    /// The deadline has passed; true if locks were released.
    pub(super) fn expire(&self) -> bool {
        self.watched.set(false);
        self.pending.take().is_some()
    }
}

/// A piece that has been written, and the bytes that follow it.
pub(crate) struct Piece {
    handle: OpenHandle,
    offset: u64,
    len: u64,
    rest: u64,
}
impl Piece {
    /// The `len` bytes that the kernel has sent for `offset`; `rest` bytes of the call follow.
    pub(super) fn new(handle: OpenHandle, offset: u64, len: u64, rest: u64) -> Self {
        Self { handle, offset, len, rest }
    }
}
