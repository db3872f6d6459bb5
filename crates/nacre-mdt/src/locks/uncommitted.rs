//! Acknowledge or commit: what a client has changed and may not know of yet is not built upon by others.
//!
//! Why: A makes X and its reply is lost; B sees X, makes X/f and is answered; the machine dies. B replays X/f and finds no
//! X, because A will only resend after the replay: answered work would be lost by a single failure. So a change
//! of one client that meets rows which another has changed, who is not known to have the reply, waits until they are
//! committed. Reads wait for nothing: what they saw comes back with the resend.
//!
//! Names count by directory and hash, inodes by their own change: names in one directory do not meet. Of file locks the
//! release counts: who gets one that another has just given up could not get it again in replay. Other programs of the
//! same client are no others: their answers leave in order, or what they leave behind is committed (`answers.rs` of
//! nacre-target). Bounded by what is uncommitted; with one client nothing is kept.
//!
//! Whether there are several clients is asked in the visit of the transaction: one that has waited may have begun while its
//! client was alone. What was made before another client came is committed: its connect waits for that.
//!
//! `mdt.*.commit_on_sharing` does not ask whether the other client has the reply: then nobody builds on what two losses
//! at once, of the machine and of that client, would take away.

use crate::mdt::Mdt;
use crate::rows::table;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use nacre_target::{ExportId, Request};
use nacre_types::name::DISCRIMINATORS;
use nacre_types::{Fid, Transno, Xid};

/// An inode, the names of one hash in a directory, or what file locks keep others from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key([u8; 20]);
impl Key {
    pub(crate) fn inode(fid: Fid) -> Self {
        // No name has this cookie.
        Self(table::entry(fid, 0))
    }
    /// File locks: of reading (those keep writers out), or of writing (they keep everybody out).
    pub(crate) fn file_lock(fid: Fid, writing: bool) -> Self {
        // No name has these cookies either.
        Self(table::entry(fid, 1 + u64::from(writing)))
    }
    pub(crate) fn name(dir: Fid, cookie: u64) -> Self {
        Self(table::entry(dir, cookie - cookie % DISCRIMINATORS))
    }
}

/// What an operation looked at and what it changed.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) seen: Vec<Key>,
    pub(crate) made: Vec<Key>,
    /// The turn of the request, if it has waited (`turns.rs`).
    pub(crate) turn: Option<u64>,
}

/// What a change has to wait for before it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// The end of a turn: its owner came earlier, and this change would put rows in its way.
    Turn(u64),
    /// The commit of what it builds on.
    Commit(Transno),
}

#[derive(Debug, Clone, Copy)]
struct Change {
    export: ExportId,
    xid: Xid,
    transno: Transno,
}

/// Changes that are not committed, by what they changed.
#[derive(Debug, Default)]
pub(crate) struct Held {
    latest: BTreeMap<Key, Change>,
    order: VecDeque<(Transno, Key)>,
}
impl Held {
    fn committed(&mut self, last_committed: Transno) {
        while let Some((transno, key)) = self.order.front().copied()
            && transno <= last_committed
        {
            self.order.pop_front();
            if self.latest.get(&key).is_some_and(|c| c.transno <= transno) {
                self.latest.remove(&key);
            }
        }
    }
}

impl Mdt {
    /// Whether changes of this request have to be told apart from those of others.
    pub(crate) fn tracks(&self, request: &Request) -> bool {
        self.core.config.ack_or_commit
            && request.replayed_transno().is_none()
            && self.core.has_several_clients()
    }
    /// What comes first.
    pub(crate) fn must_wait_for(&self, request: &Request, touched: &Touched) -> Option<First> {
        let turn = self.turns.before(request.export, touched).map(First::Turn);
        turn.or_else(|| self.must_be_committed(request, touched).map(First::Commit))
    }
    /// Up to where has to be committed before this may be built upon.
    fn must_be_committed(&self, request: &Request, touched: &Touched) -> Option<Transno> {
        let mut held = self.held.borrow_mut();
        held.committed(self.core.osd.last_committed());
        let others = touched.seen.iter().chain(&touched.made).filter_map(|key| held.latest.get(key));
        others
            .filter(|c| c.export != request.export)
            .filter(|c| self.commit_on_sharing.get() || !self.core.has_reply(c.export, c.xid))
            .map(|c| c.transno)
            .max()
    }
    /// Until it is committed or its client has the reply, others wait.
    pub(crate) fn hold(&self, request: &Request, transno: Transno, touched: Touched) {
        let mut held = self.held.borrow_mut();
        let change = Change { export: request.export, xid: request.header.xid, transno };
        for key in touched.made {
            held.latest.insert(key, change);
            held.order.push_back((transno, key));
        }
    }
}
