//! Appends that are longer than one request of the kernel: their pieces stay together.
//!
//! The kernel splits a write(2) into requests of at most 1 MiB and sends each one when the one before is answered. Between them
//! the file stays locked: against other mounts by extent locks on all of its objects, against other calls of this mount by a
//! range lock. That ends with the last piece; with the close of the handle; with any call that the kernel would not let happen
//! during such a write; or when no piece has come for [`PATIENCE`] (the caller was killed, or cannot read its own buffer), so
//! that nobody waits for long. Then the rest, should it come, goes to the end of the file as it is by then.
//!
//! A piece is recognised by its handle and by the offset that the kernel gives it: it goes on where the one before ended. (The
//! offsets say nothing about the place in the file: that is what this mount's kernel believed its end to be.) Bounded: one
//! such append per file, and 2 GiB per call, which is the kernel's limit.

use crate::client::Client;
use crate::files::open::FileState;
use crate::files::ranges::RangeGuard;
use crate::locks::extents::HeldExtent;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_types::{Fid, Instant, OpenHandle};

/// How long the file stays locked without a further piece. Longer than a busy machine keeps a caller from its CPU, and much
/// shorter than a lease.
const PATIENCE: Duration = Duration::from_secs(1);

/// The locks of an append, one for each object, in the order of the stripes.
pub(crate) type AppendLocks = Vec<(Rc<Target>, HeldExtent)>;

/// What the next piece needs.
pub(crate) struct Kept {
    handle: OpenHandle,
    /// Where the kernel will say that the next piece goes.
    next_offset: u64,
    /// Bytes that the call has left.
    pub(crate) rest: u64,
    pub(crate) locks: AppendLocks,
    pub(crate) order: RangeGuard,
}

/// The append of a file that has pieces to come.
#[derive(Default)]
pub(crate) struct LongAppend {
    kept: RefCell<Option<Kept>>,
    /// When the locks are given up.
    until: Cell<Instant>,
    /// A task looks after the time.
    watched: Cell<bool>,
}

impl LongAppend {
    /// The locks, if this is the next piece. Any other append ends what was kept.
    pub(crate) fn next_piece(&self, handle: OpenHandle, offset: u64, len: u64) -> Option<Kept> {
        let kept = self.kept.take()?;
        (kept.handle == handle && kept.next_offset == offset && len <= kept.rest).then_some(kept)
    }
    /// No further piece is waited for.
    pub(crate) fn end(&self) {
        drop(self.kept.take());
    }
    /// The same, when a handle is closed.
    pub(crate) fn end_of(&self, handle: OpenHandle) {
        if self.kept.borrow().as_ref().is_some_and(|kept| kept.handle == handle) {
            self.end();
        }
    }
}

/// A piece that has been written, and what follows it.
pub(crate) struct Piece {
    pub(crate) handle: OpenHandle,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) rest: u64,
}

impl Client {
    /// Keeps the file locked until the next piece.
    pub(crate) fn await_next_piece(
        &self,
        file: &FileState,
        piece: &Piece,
        locks: AppendLocks,
        order: RangeGuard,
    ) {
        let Piece { handle, offset, len, rest } = *piece;
        let long = &file.long_append;
        *long.kept.borrow_mut() = Some(Kept { handle, next_offset: offset + len, rest, locks, order });
        long.until.set(self.ctx.now() + PATIENCE);
        if !long.watched.replace(true) {
            self.ctx.spawn(self.me().watch_long_append(file.fid));
        }
    }

    async fn watch_long_append(self: Rc<Self>, fid: Fid) {
        loop {
            // Looked up each time: a reference would keep the state of a file that nobody uses any more.
            let Some(until) = self.files.used(fid).map(|file| file.long_append.until.get()) else { return };
            if until <= self.ctx.now() {
                break;
            }
            self.ctx.sleep_until(until).await;
        }
        if let Some(file) = self.files.used(fid) {
            file.long_append.watched.set(false);
            if file.long_append.kept.borrow().is_some() {
                tracing::debug!(%fid, "a long append has had no further piece for a second: others may come in between");
                file.long_append.end();
            }
        }
    }
}
