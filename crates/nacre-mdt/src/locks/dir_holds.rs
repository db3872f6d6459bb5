//! Holds of directories: the clients that may serve a directory (its name, its attributes) from their cache, and the
//! end of a hold before another client changes the directory.
//!
//! Rules: a hold is claimed before the rows are read, and the reply grants it only if it still stands then. A change
//! checks in its own visit whether another client holds a directory that it changes, and if so revokes the hold, waits, and
//! begins again. A hold ends with the acknowledgement of its revoke; with the connection epoch or the export of its
//! client; or, after a restart, which forgets holds, with the leases of the clients that have not connected again. A
//! client's own change does not end its hold: the reply has the new state of the directory. A grant never waits, and a
//! directory is not held for a while after a revoke, so that a directory in which several clients work is not revoked
//! again and again. Bounded per client; at the bound the oldest hold is revoked once it has stood for a while.
//!
//! Not here: the requests (`service/holds.rs`), and the client's side (`nacre-client/src/cache/dirs.rs`).

use crate::rows::dir_change::{DirChange, only_name};
use crate::rows::row::Inode;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, WaitList};
use nacre_target::{ExportId, RevokedLock, TargetCore};
use nacre_types::{Fid, Instant, Transno, Xid};
use nacre_wire::Opcode;
use nacre_wire::mdt::{DirGrant, DirTail, RevokeDir};
use nacre_wire::params::MdtParam;

/// Holds of one client, unless the parameter says otherwise.
const HOLDS_PER_CLIENT: u16 = MdtParam::DirHoldsMax.row().default_u16();
/// At the limit, a hold stands for this time before another one takes its place: a client that walks through a large tree asks
/// for each directory once, and would otherwise end a hold with each.
const MIN_HOLD_TIME: Duration = Duration::from_secs(30);
/// For this time after a revoke no client is granted a hold of the directory.
const REVOKE_PAUSE: Duration = Duration::from_secs(1);

/// A hold that will be granted unless it ends before the reply.
pub(crate) struct HoldClaim {
    export: ExportId,
    fid: Fid,
    serial: u64,
    /// Changes up to this are in the rows that are read from now on.
    seen: Transno,
}

#[derive(Debug, Clone, Copy)]
struct Hold {
    serial: u64,
    /// The callback that revokes it.
    revoke: Option<Xid>,
}

#[derive(Debug, Default)]
struct ClientHolds {
    /// By serial, the oldest first, with the time of the grant.
    holds: BTreeMap<u64, (Fid, Instant)>,
    /// Number of revokes that the client was ever sent.
    revokes: u64,
    /// Revokes that it has not acknowledged, by callback.
    revoking: BTreeMap<Xid, Fid>,
}

#[derive(Debug, Default)]
struct HoldTable {
    dirs: BTreeMap<Fid, BTreeMap<ExportId, Hold>>,
    clients: BTreeMap<ExportId, ClientHolds>,
    /// Directories of which no hold is granted until a time.
    paused: BTreeMap<Fid, Instant>,
    /// The same pauses in the order of their ends. A prolonged pause is there more than once.
    pauses: VecDeque<(Instant, Fid)>,
    serial: u64,
}

impl HoldTable {
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
        if self.paused.get(&fid).is_some_and(|until| *until > now + REVOKE_PAUSE / 2) {
            return;
        }
        self.paused.insert(fid, now + REVOKE_PAUSE);
        self.pauses.push_back((now + REVOKE_PAUSE, fid));
    }
    fn is_paused(&self, now: Instant, fid: Fid) -> bool {
        let revoked = || self.dirs.get(&fid).is_some_and(|holds| holds.values().any(|h| h.revoke.is_some()));
        self.paused.get(&fid).is_some_and(|until| now < *until) || revoked()
    }
}

/// The holds of all clients.
pub(crate) struct DirHolds {
    table: RefCell<HoldTable>,
    limit: Cell<usize>,
    /// Number of revokes that were sent.
    revokes: Cell<u64>,
    /// Woken when a hold ends.
    ended: WaitList,
}

impl DirHolds {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        Self {
            table: RefCell::default(),
            limit: Cell::new(usize::from(HOLDS_PER_CLIENT)),
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

    /// The client has a new connection epoch, with which all its holds have ended. The number of its revokes continues,
    /// because those that it has not acknowledged are resent.
    pub(crate) fn connected(&self, export: ExportId) {
        let mut table = self.table.borrow_mut();
        let Some(client) = table.clients.get_mut(&export) else { return };
        for (fid, _) in core::mem::take(&mut client.holds).into_values() {
            table.remove(export, fid);
        }
        drop(table);
        self.ended.wake_all();
    }
    /// The client has disconnected, or its lease has expired.
    pub(crate) fn drop_export(&self, export: ExportId) {
        self.connected(export);
        self.table.borrow_mut().clients.remove(&export);
    }
    /// The client has acknowledged a callback, perhaps a revoke.
    pub(crate) fn acknowledged(&self, export: ExportId, callback: Xid) {
        let mut table = self.table.borrow_mut();
        let revoked = table.clients.get_mut(&export).and_then(|client| client.revoking.remove(&callback));
        let Some(fid) = revoked else { return };
        table.remove(export, fid);
        drop(table);
        self.ended.wake_all();
    }
    /// Ends a hold whose directory is gone.
    fn forget(&self, export: ExportId, fid: Fid) {
        self.table.borrow_mut().remove(export, fid);
        self.ended.wake_all();
    }

    /// Claims a hold for a client, before the rows are read. `None`: there is none for it now.
    pub(crate) fn claim(&self, core: &TargetCore, export: ExportId, fid: Fid) -> Option<HoldClaim> {
        let mut table = self.table.borrow_mut();
        let (now, seen) = (core.ctx.now(), core.osd.last_transno());
        if table.is_paused(now, fid) {
            return None;
        }
        if let Some(Hold { serial, .. }) = table.holds(export, fid) {
            return Some(HoldClaim { export, fid, serial, seen });
        }
        let client = table.clients.entry(export).or_default();
        if client.holds.len() >= self.limit.get() {
            let above = client.holds.len() > self.limit.get(); // the limit was lowered
            let mut oldest = client.holds.first_key_value().map(|(_, hold)| *hold);
            oldest = oldest.filter(|(_, since)| above || now >= *since + MIN_HOLD_TIME);
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
        Some(HoldClaim { export, fid, serial, seen })
    }

    /// The number of revokes that the client was sent before, if the hold still stands.
    fn stands(&self, claim: &HoldClaim) -> Option<u64> {
        let table = self.table.borrow();
        let hold = table.holds(claim.export, claim.fid)?;
        let stands = hold.serial == claim.serial && hold.revoke.is_none();
        stands.then(|| table.clients.get(&claim.export).map_or(0, |c| c.revokes))
    }

    /// Sends the client the revoke of its hold, once.
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
        // Without a number the export is gone or about to go, and its holds with it.
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

    /// The tail of the reply to the read of `inode`, which was claimed before. Nothing may be waited for after this.
    pub(crate) fn grant(&self, claim: HoldClaim, inode: &Inode) -> Option<DirTail> {
        if !inode.attr.is_dir() || inode.attr.nlink == 0 || claim.fid != inode.attr.fid {
            self.forget(claim.export, claim.fid);
            return None;
        }
        let revokes = self.stands(&claim)?;
        let (parent, name) = only_name(inode);
        let granted = Some(DirGrant { revokes, seen: claim.seen, parent, name });
        Some(DirTail { granted, changed: Vec::new(), removed: Vec::new() })
    }

    /// Whether a client other than `own` holds one of these directories.
    pub(crate) fn is_held_by_others(&self, own: Option<ExportId>, dirs: &[DirChange]) -> bool {
        let table = self.table.borrow();
        dirs.iter().any(|dir| table.others(own, dir.fid()).next().is_some())
    }
    /// Revokes the holds that clients other than `own` have on these directories, and waits until there are none.
    pub(crate) async fn revoke_others(&self, core: &TargetCore, own: Option<ExportId>, fids: &[Fid]) {
        let held = || -> Vec<(ExportId, Fid)> {
            let table = self.table.borrow();
            fids.iter().flat_map(|fid| table.others(own, *fid).map(|(export, _)| (export, *fid))).collect()
        };
        // All of them have to be free at one time. The pause prevents that a directory which is free already is held anew
        // while another is waited for; a hold that was granted during a long wait is revoked as well.
        loop {
            let held = held();
            if held.is_empty() {
                return;
            }
            let now = core.ctx.now();
            fids.iter().for_each(|fid| self.table.borrow_mut().pause(now, *fid));
            held.into_iter().for_each(|(export, fid)| self.revoke(core, export, fid));
            self.ended.wait().await;
        }
    }

    /// The tail of the reply to a change: the new state of the directories that its client holds.
    pub(crate) fn tail_of_change(&self, export: ExportId, dirs: Vec<DirChange>) -> Option<DirTail> {
        let holds_any = |table: &HoldTable| table.clients.get(&export).is_some_and(|c| !c.holds.is_empty());
        if !holds_any(&self.table.borrow()) {
            return None;
        }
        let mut tail = DirTail { granted: None, changed: Vec::new(), removed: Vec::new() };
        for dir in dirs {
            let fid = dir.fid();
            if self.table.borrow().holds(export, fid).is_none() {
                continue;
            }
            tail.changed.retain(|state| state.attr.fid != fid);
            match dir {
                DirChange::State(state) => tail.changed.push(state),
                DirChange::Removed(fid) => {
                    self.forget(export, fid);
                    tail.removed.push(fid);
                }
            }
        }
        Some(tail)
    }
}
