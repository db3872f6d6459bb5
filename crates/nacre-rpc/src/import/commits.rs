//! Changes that the target may still lose: its commit numbers, and the list of changes to replay.

use crate::replay::{ReplayEntry, ReplayList};
use bytes::Bytes;
use nacre_types::{Transno, Xid};
use nacre_wire::{Frame, Header, flags};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Commits {
    list: ReplayList,
    /// The target was restarted, and the replay to this instance is not complete.
    replay_due: bool,
    /// The target ends with this process: no change is kept for replay.
    is_local: bool,
    last_committed: Transno,
    last_stable: Transno,
}

impl Commits {
    pub(super) fn list(&self) -> &ReplayList {
        &self.list
    }
    pub(super) fn last_committed(&self) -> Transno {
        self.last_committed
    }
    pub(super) fn last_stable(&self) -> Transno {
        self.last_stable
    }
    pub(super) fn set_local(&mut self, is_local: bool) {
        self.is_local = is_local;
    }
    /// Takes commit numbers from a reply; safe changes leave the list.
    pub(super) fn learn(&mut self, header: &Header) {
        self.last_committed = self.last_committed.max(header.last_committed);
        self.last_stable = self.last_stable.max(header.last_stable);
        self.list.safe(self.last_committed, self.last_stable);
    }
    /// Keeps a change that has its reply, unless the change is safe already.
    pub(super) fn keep(&mut self, mut request: Frame, reply: &Frame) {
        let safe = if request.header.is_kept_until_stable() { self.last_stable } else { self.last_committed };
        if reply.header.transno > safe && !self.is_local {
            request.header.flags |= reply.header.flags & flags::VERSIONS;
            self.list.keep(reply.header.transno, request, reply.body.clone());
        }
    }
    /// Keeps a write that the target has in its log and that has no reply yet.
    pub(super) fn keep_unreplied(&mut self, transno: Transno, request: Frame) {
        if request.header.is_kept_until_stable() {
            self.list.keep(transno, request, Bytes::new());
        }
    }
    /// Commit numbers of another target mean nothing here.
    pub(super) fn forget_numbers(&mut self) {
        self.last_committed = Transno(0);
        self.last_stable = Transno(0);
    }
    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    pub(super) fn replay_due(&self) -> bool {
        self.replay_due
    }
    pub(super) fn begin_replay(&mut self) {
        self.replay_due = true;
    }
    pub(super) fn end_replay(&mut self) {
        self.replay_due = false;
    }
    /// The next change to replay.
    pub(super) fn first(&self) -> Option<ReplayEntry> {
        self.list.first()
    }
    /// The change `(transno, xid)` was replayed and has the transno `now`; 0: it could not be executed.
    pub(super) fn replayed(&mut self, transno: Transno, xid: Xid, now: Transno) {
        self.list.replayed(transno, xid, now);
    }
    /// Replayed changes are in the list under their newest transno.
    pub(super) fn settle(&mut self) {
        self.list.settle();
    }
}
