//! The return of locks to the MDT: first the kernel forgets the names and attributes that depend on them, then handles that
//! end late do so, then the opens and file locks made under the locks are reported, then the closes kept under them are
//! sent, and then the locks are given back.
//!
//! One task per MDT does this in rounds. Locks that end during a round are returned by the next round, all together,
//! so a lock is never returned while the kernel still forgets what depends on it. After a restart of the MDT, the task
//! reports that this mount and its kernel no longer use locks of an earlier start. A lock under which bytes are kept is
//! returned when the OSTs have them; other locks do not wait for that.
//!
//! The bit OPEN alone is returned beside the rounds. The kernel has nothing under it, and a change of this mount may wait for
//! its return (the MDT has to know the opens of a file first), while the kernel cannot forget a name before that change has ended.

use crate::cache::kernel::Stale;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use nacre_dlm::client::InodeCancel;
use nacre_types::{Fid, InodeBits};
use nacre_wire::mdt::RevokeAck;

/// The bits under which handles are opened and closed, and file locks taken, without a request.
pub(crate) const OF_HANDLES: InodeBits = InodeBits::OPEN.with(InodeBits::SIZE).with(InodeBits::WRITE_BACK);

/// The pending work of the next round, in the order of the fields.
#[derive(Default)]
struct Due {
    /// Names and inodes that the kernel has to forget.
    stale: Vec<Stale>,
    /// The bits that have ended: handles may have to end, opens and file locks to be reported, and kept closes to be sent.
    ended: Vec<(Fid, InodeBits)>,
    /// The MDT was restarted: all opens have to be reported, all closes sent, and then reported that no lock of an
    /// earlier start is used.
    former_locks_ended: bool,
    acks: Vec<RevokeAck>,
    cancels: Vec<InodeCancel>,
}
impl Due {
    fn is_empty(&self) -> bool {
        self.stale.is_empty()
            && self.ended.is_empty()
            && self.acks.is_empty()
            && self.cancels.is_empty()
            && !self.former_locks_ended
    }
}

/// The return of a lock under which bytes of a file are kept: it waits until the OSTs have them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AfterFlush {
    fid: Fid,
    ack: Option<RevokeAck>,
    cancel: Option<InodeCancel>,
}
impl AfterFlush {
    pub(crate) fn fid(&self) -> Fid {
        self.fid
    }
    pub(crate) fn acknowledgement(&self) -> Option<RevokeAck> {
        self.ack
    }
    pub(crate) fn cancellation(&self) -> Option<InodeCancel> {
        self.cancel
    }
    pub(super) fn ack(fid: Fid, ack: RevokeAck) -> Self {
        Self { fid, ack: Some(ack), cancel: None }
    }
    pub(super) fn cancel(cancel: InodeCancel) -> Self {
        Self { fid: cancel.fid, ack: None, cancel: Some(cancel) }
    }
}

/// The queue. Bounded by the number of locks.
#[derive(Default)]
pub(crate) struct Returns {
    due: RefCell<Due>,
    /// The names that the kernel is told to forget in the round under way, and whether it is told to forget all.
    names: RefCell<Vec<(Fid, Bytes)>>,
    are_all: Cell<bool>,
    after_flush: RefCell<Vec<AfterFlush>>,
    opens: RefCell<Vec<(Fid, RevokeAck)>>,
    is_running: Cell<bool>,
}

impl Returns {
    pub(crate) fn add(&self, stale: Vec<Stale>, acks: Vec<RevokeAck>, cancels: Vec<InodeCancel>) {
        let mut due = self.due.borrow_mut();
        due.ended.extend(cancels.iter().map(|cancel| (cancel.fid, cancel.bits)));
        due.stale.extend(stale);
        due.acks.extend(acks);
        due.cancels.extend(cancels);
    }
    pub(super) fn add_after_flush(&self, after: AfterFlush) {
        self.after_flush.borrow_mut().push(after);
    }
    /// Returns that have to wait for a flush.
    pub(crate) fn take_after_flush(&self) -> Vec<AfterFlush> {
        core::mem::take(&mut *self.after_flush.borrow_mut())
    }
    /// The bit OPEN is revoked, and nothing else.
    pub(super) fn add_open(&self, fid: Fid, ack: RevokeAck) {
        self.opens.borrow_mut().push((fid, ack));
    }
    /// Returns that have to wait for the reports of opens only.
    pub(crate) fn take_opens(&self) -> Vec<(Fid, RevokeAck)> {
        core::mem::take(&mut *self.opens.borrow_mut())
    }
    /// Bits of an inode are revoked.
    pub(super) fn add_revoked(&self, fid: Fid, bits: InodeBits) {
        self.due.borrow_mut().ended.push((fid, bits));
    }
    #[cfg(test)]
    pub(super) fn take_stale(&self) -> Vec<Stale> {
        core::mem::take(&mut self.due.borrow_mut().stale)
    }
    /// All locks have ended: nothing is returned, and the kernel forgets everything and the pages of these files.
    pub(crate) fn all_ended(&self, restarted: bool, pages: Vec<Fid>) {
        let mut due = self.due.borrow_mut();
        let former_locks_ended = restarted || due.former_locks_ended;
        let stale = pages.into_iter().map(Stale::Pages).chain([Stale::All]).collect();
        *due = Due { stale, former_locks_ended, ..Due::default() };
    }
    /// The names that the kernel is being told to forget, or will be. `None`: all of them.
    pub(super) fn leaving(&self) -> Option<Vec<(Fid, Bytes)>> {
        let due = self.due.borrow();
        let are_all = self.are_all.get() || due.stale.iter().any(|stale| matches!(stale, Stale::All));
        let in_round = self.names.borrow();
        (!are_all).then(|| in_round.iter().cloned().chain(due.stale.iter().filter_map(name)).collect())
    }
    /// Whether the kernel is being told to forget this name, or will be.
    pub(super) fn forgets(&self, parent: Fid, name: &[u8]) -> bool {
        let is_this = |stale: &Stale| match stale {
            Stale::Name { parent: of, name: known, .. } | Stale::Permissions { parent: of, name: known } => {
                *of == parent && known == name
            }
            Stale::All => true,
            Stale::Inode(_) | Stale::Acls(_) | Stale::Pages(_) | Stale::Listing(_) => false,
        };
        self.names.borrow().iter().any(|(of, known)| *of == parent && known == name)
            || self.due.borrow().stale.iter().any(is_this)
    }
    /// Whether the task has to be started.
    pub(crate) fn begin(&self) -> bool {
        !self.due.borrow().is_empty() && !self.is_running.replace(true)
    }
    /// The work of the next round. `None`: there is none, and the task ends.
    pub(crate) fn take(&self) -> Option<DueReturns> {
        let due = core::mem::take(&mut *self.due.borrow_mut());
        *self.names.borrow_mut() = due.stale.iter().filter_map(name).collect();
        self.are_all.set(due.stale.iter().any(|stale| matches!(stale, Stale::All)));
        if due.is_empty() {
            self.is_running.set(false);
            return None;
        }
        Some((due.stale, due.ended, due.former_locks_ended, due.acks, due.cancels))
    }
}

fn name(stale: &Stale) -> Option<(Fid, Bytes)> {
    match stale {
        Stale::Name { parent, name, .. } | Stale::Permissions { parent, name } => {
            Some((*parent, name.clone()))
        }
        Stale::Inode(_) | Stale::Acls(_) | Stale::Pages(_) | Stale::Listing(_) | Stale::All => None,
    }
}

/// Names and inodes that the kernel has to forget, the bits of inodes that have ended, whether the MDT was restarted, and the
/// locks to return.
pub(crate) type DueReturns = (Vec<Stale>, Vec<(Fid, InodeBits)>, bool, Vec<RevokeAck>, Vec<InodeCancel>);
