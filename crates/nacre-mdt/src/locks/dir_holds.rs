//! Holds: which clients may answer for a directory (its name, its attributes) out of their memory, and how that ends
//! before somebody else changes it.
//!
//! Rules: a hold is claimed before the rows are read, and the reply grants it only if it has stood since; a
//! change looks in its own visit whether another client holds what it changes, and if so revokes, waits and begins anew.
//! The acknowledgement of the revoke is the end of the hold; it ends as well with the connection epoch, the export, or
//! (after a restart, which forgets holds) the leases of those who have not connected again. A client's own change does
//! not end its hold: the reply brings what became of the directory. A grant waits for nothing, and there is none for a
//! while after a revoke, so that a directory in which several clients work does not go to and fro. Bounded per client; at
//! the bound the oldest hold makes room once it has stood for a while.
//! Not here: what the client does with it (`nacre-client/src/dirs.rs`).

use crate::mdt::Mdt;
use crate::rows::row::Inode;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, WaitList};
use nacre_target::{ExportId, ReplyTail, Request, RevokedLock, TargetCore};
use nacre_types::{Codec, Fid, Instant, Transno, Xid};
use nacre_wire::mdt::{DirGrant, DirState, DirTail, RevokeDir};
use nacre_wire::{Opcode, flags};

/// Holds of one client, unless set otherwise.
const LIMIT: usize = 1024;
/// At the limit a hold is kept for so long before another one takes its place: whoever walks through a large tree asks for
/// each directory once, and would otherwise end a hold with each.
const KEPT: Duration = Duration::from_secs(30);
/// After a revoke a directory is not held by anybody for so long.
const PAUSE: Duration = Duration::from_secs(1);

/// What a transaction makes of a directory.
#[derive(Debug, Clone)]
pub(crate) enum DirChange {
    State(DirState),
    Removed(Fid),
}
impl DirChange {
    pub(crate) fn of(inode: &Inode) -> Self {
        if inode.attr.nlink == 0 {
            return Self::Removed(inode.attr.fid);
        }
        let reply = inode.reply();
        let (parent, name) = link(inode);
        Self::State(DirState { attr: reply.attr, kill_priv: reply.kill_priv, parent, name })
    }
    fn fid(&self) -> Fid {
        match self {
            Self::State(state) => state.attr.fid,
            Self::Removed(fid) => *fid,
        }
    }
}

/// The one name of a directory; the root has an empty one in itself.
fn link(inode: &Inode) -> (Fid, Bytes) {
    inode.links.first().map_or((inode.attr.fid, Bytes::new()), |l| (l.parent, l.name.clone()))
}

/// A hold that is granted unless it ends before the reply.
pub(crate) struct Claim {
    export: ExportId,
    fid: Fid,
    serial: u64,
    /// Changes up to this are in what is read from now on.
    seen: Transno,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    serial: u64,
    /// The callback that revokes it.
    revoke: Option<Xid>,
}

#[derive(Debug, Default)]
struct Client {
    /// By serial, the oldest first; since when.
    holds: BTreeMap<u64, (Fid, Instant)>,
    /// Revokes that it was sent in its life, and those that it has not acknowledged, by their callbacks.
    revokes: u64,
    revoking: BTreeMap<Xid, Fid>,
}

#[derive(Debug, Default)]
struct Table {
    dirs: BTreeMap<Fid, BTreeMap<ExportId, Hold>>,
    clients: BTreeMap<ExportId, Client>,
    paused: BTreeMap<Fid, Instant>,
    /// The same in the order of their ends; one that was prolonged is there more than once.
    pauses: VecDeque<(Instant, Fid)>,
    serial: u64,
}

impl Table {
    fn others(&self, own: Option<ExportId>, fid: Fid) -> impl Iterator<Item = (ExportId, Hold)> + '_ {
        let holds = self.dirs.get(&fid).into_iter().flatten();
        holds.map(|(export, hold)| (*export, *hold)).filter(move |(export, _)| Some(*export) != own)
    }
    fn holds(&self, export: ExportId, fid: Fid) -> Option<Hold> {
        self.dirs.get(&fid)?.get(&export).copied()
    }
    fn remove(&mut self, export: ExportId, fid: Fid) {
        let Some(holds) = self.dirs.get_mut(&fid) else { return };
        if let (Some(hold), Some(client)) = (holds.remove(&export), self.clients.get_mut(&export)) {
            client.holds.remove(&hold.serial);
            hold.revoke.and_then(|callback| client.revoking.remove(&callback));
        }
        if holds.is_empty() {
            self.dirs.remove(&fid);
        }
    }
    fn pause(&mut self, now: Instant, fid: Fid) {
        while let Some((until, fid)) = self.pauses.front().copied()
            && until <= now
        {
            self.pauses.pop_front();
            if self.paused.get(&fid) == Some(&until) {
                self.paused.remove(&fid);
            }
        }
        if self.paused.get(&fid).is_some_and(|until| *until > now + PAUSE / 2) {
            return;
        }
        self.paused.insert(fid, now + PAUSE);
        self.pauses.push_back((now + PAUSE, fid));
    }
    fn is_paused(&self, now: Instant, fid: Fid) -> bool {
        let revoked = || self.dirs.get(&fid).is_some_and(|holds| holds.values().any(|h| h.revoke.is_some()));
        self.paused.get(&fid).is_some_and(|until| now < *until) || revoked()
    }
}

/// The holds of all clients.
pub(crate) struct Dirs {
    table: RefCell<Table>,
    limit: Cell<usize>,
    /// Revokes that were sent.
    revokes: Cell<u64>,
    /// A hold has ended.
    ended: WaitList,
}

impl Dirs {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        Self {
            table: RefCell::default(),
            limit: Cell::new(LIMIT),
            revokes: Cell::new(0),
            ended: ctx.wait_list(),
        }
    }
    pub(crate) fn count(&self) -> usize {
        self.table.borrow().clients.values().map(|c| c.holds.len()).sum()
    }
    pub(crate) fn limit(&self) -> usize {
        self.limit.get()
    }
    pub(crate) fn revokes(&self) -> u64 {
        self.revokes.get()
    }
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.set(limit);
    }

    /// The client believes in none of its holds any more: it has a new connection epoch. Its revokes are counted on,
    /// because those that it has not acknowledged are sent again.
    pub(crate) fn connected(&self, export: ExportId) {
        let mut table = self.table.borrow_mut();
        let Some(client) = table.clients.get_mut(&export) else { return };
        for (fid, _) in core::mem::take(&mut client.holds).into_values() {
            table.remove(export, fid);
        }
        drop(table);
        self.ended.wake_all();
    }
    /// It has left, or its lease is over.
    pub(crate) fn drop_export(&self, export: ExportId) {
        self.connected(export);
        self.table.borrow_mut().clients.remove(&export);
    }
    /// The client has taken in a callback, perhaps a revoke.
    pub(crate) fn acknowledged(&self, export: ExportId, callback: Xid) {
        let mut table = self.table.borrow_mut();
        let revoked = table.clients.get_mut(&export).and_then(|client| client.revoking.remove(&callback));
        let Some(fid) = revoked else { return };
        table.remove(export, fid);
        drop(table);
        self.ended.wake_all();
    }
    fn forget(&self, export: ExportId, fid: Fid) {
        self.table.borrow_mut().remove(export, fid);
        self.ended.wake_all();
    }

    fn claim(&self, core: &TargetCore, export: ExportId, fid: Fid) -> Option<Claim> {
        let mut table = self.table.borrow_mut();
        let (now, seen) = (core.ctx.now(), core.osd.last_transno());
        if table.is_paused(now, fid) {
            return None;
        }
        if let Some(Hold { serial, .. }) = table.holds(export, fid) {
            return Some(Claim { export, fid, serial, seen });
        }
        let client = table.clients.entry(export).or_default();
        if client.holds.len() >= self.limit.get() {
            let above = client.holds.len() > self.limit.get(); // it was lowered
            let mut oldest = client.holds.first_key_value().map(|(_, hold)| *hold);
            oldest = oldest.filter(|(_, since)| above || now >= *since + KEPT);
            drop(table);
            if let Some((oldest, _)) = oldest {
                self.revoke(core, export, oldest);
            }
            return None;
        }
        table.serial += 1;
        let serial = table.serial;
        table.clients.entry(export).or_default().holds.insert(serial, (fid, now));
        table.dirs.entry(fid).or_default().insert(export, Hold { serial, revoke: None });
        Some(Claim { export, fid, serial, seen })
    }

    /// Revokes that the client was sent before, if the hold stands.
    fn stands(&self, claim: &Claim) -> Option<u64> {
        let table = self.table.borrow();
        let hold = table.holds(claim.export, claim.fid)?;
        let stands = hold.serial == claim.serial && hold.revoke.is_none();
        stands.then(|| table.clients.get(&claim.export).map_or(0, |c| c.revokes))
    }

    /// Tells the client that its hold ends, once.
    fn revoke(&self, core: &TargetCore, export: ExportId, fid: Fid) {
        let number = {
            let mut table = self.table.borrow_mut();
            if table.holds(export, fid).is_none_or(|hold| hold.revoke.is_some()) {
                return;
            }
            let client = table.clients.entry(export).or_default();
            client.revokes += 1;
            self.revokes.set(self.revokes.get() + 1);
            client.revokes
        };
        // Without a number the export is gone or will be, and its holds with it.
        let sent = core.callback(export, Opcode::RevokeDir, &RevokeDir { fid, number }).unwrap_or(Xid(0));
        let mut table = self.table.borrow_mut();
        if let Some(hold) = table.dirs.get_mut(&fid).and_then(|holds| holds.get_mut(&export)) {
            hold.revoke = Some(sent);
        }
        if let Some(client) = table.clients.get_mut(&export) {
            client.revoking.insert(sent, fid);
        }
        if sent != Xid(0) {
            core.revoked(export, RevokedLock::Callback(sent), "the hold of a directory");
        }
    }
}

impl Mdt {
    /// A hold for the sender of a read, if it wants one and may have it. Before the read.
    pub(crate) fn claim(&self, request: &Request, fid: Fid) -> Option<Claim> {
        let wanted = request.header.has(flags::MAY_HOLD) && self.core.may_have_volatile_locks(request.export);
        wanted.then(|| self.dirs.claim(&self.core, request.export, fid))?
    }
    /// The tail of the reply to that read. Nothing may be waited for after this.
    pub(crate) fn granted(&self, claim: Option<Claim>, inode: &Inode) -> Option<ReplyTail> {
        let claim = claim?;
        if !inode.attr.is_dir() || inode.attr.nlink == 0 || claim.fid != inode.attr.fid {
            self.dirs.forget(claim.export, claim.fid);
            return None;
        }
        let revokes = self.dirs.stands(&claim)?;
        let (parent, name) = link(inode);
        let granted = Some(DirGrant { revokes, seen: claim.seen, parent, name });
        let tail = DirTail { granted, changed: Vec::new(), removed: Vec::new() };
        Some(ReplyTail { flag: flags::DIRS, bytes: tail.to_vec() })
    }

    /// Whether a change of these directories has to wait for others.
    pub(crate) fn is_held(&self, request: Option<&Request>, dirs: &[DirChange]) -> bool {
        let own = request.map(|r| r.export);
        let table = self.dirs.table.borrow();
        !dirs.is_empty() && self.core.former_locks_deadline().is_some()
            || dirs.iter().any(|dir| table.others(own, dir.fid()).next().is_some())
    }
    /// Waits until nobody else holds them.
    pub(crate) async fn end_holds(&self, request: Option<&Request>, dirs: &[DirChange]) {
        self.core.former_locks_ended().await;
        let own = request.map(|r| r.export);
        let fids: Vec<Fid> = dirs.iter().map(DirChange::fid).collect();
        let held = || -> Vec<(ExportId, Fid)> {
            let table = self.dirs.table.borrow();
            fids.iter().flat_map(|fid| table.others(own, *fid).map(|(export, _)| (export, *fid))).collect()
        };
        // All of them have to be free at one time. The pause keeps one that is free already from being held anew
        // while another is waited for; what was granted after a long wait is revoked again.
        loop {
            let held = held();
            if held.is_empty() {
                return;
            }
            let now = self.core.ctx.now();
            fids.iter().for_each(|fid| self.dirs.table.borrow_mut().pause(now, *fid));
            held.into_iter().for_each(|(export, fid)| self.dirs.revoke(&self.core, export, fid));
            self.dirs.ended.wait().await;
        }
    }

    /// A change is made: its client learns what became of the directories that it holds.
    pub(crate) fn dirs_changed(&self, request: Option<&Request>, dirs: Vec<DirChange>) {
        let Some(request) = request.filter(|_| !dirs.is_empty()) else { return };
        let export = request.export;
        let holds_any = |table: &Table| table.clients.get(&export).is_some_and(|c| !c.holds.is_empty());
        if !holds_any(&self.dirs.table.borrow()) {
            return;
        }
        let mut tail = DirTail { granted: None, changed: Vec::new(), removed: Vec::new() };
        for dir in dirs {
            let fid = dir.fid();
            if self.dirs.table.borrow().holds(export, fid).is_none() {
                continue;
            }
            tail.changed.retain(|state| state.attr.fid != fid);
            match dir {
                DirChange::State(state) => tail.changed.push(state),
                DirChange::Removed(fid) => {
                    self.dirs.forget(export, fid);
                    tail.removed.push(fid);
                }
            }
        }
        self.core.set_reply_tail(request, ReplyTail { flag: flags::DIRS, bytes: tail.to_vec() });
    }
}
