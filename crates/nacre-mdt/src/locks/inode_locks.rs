//! Locks of inodes: the parts of inodes that clients may cache, and the revokes before others change them.
//!
//! `nacre_dlm::server::InodeLocks` decides; this module connects it with exports. Callbacks of one visit to one client go out
//! in one frame. A client has at most [`FRAMES_MAX`] unacknowledged frames of revokes, and further revokes wait for its next
//! acknowledgement, so a client is not evicted because of the number of its revokes. The acknowledgement means only that the
//! client has the callback; the client returns the bits by `CancelInodeLocks`, at most one lease after the revoke.
//!
//! A change that waits for longer than [`SLOT_TIMEOUT`] is refused, so that its client can use the slot; its ticket keeps
//! its place. The client asks when the ticket is ready, and then sends the change again.
//!
//! Locks survive a new connection of their client, which resends callbacks; they end with the export. After a restart,
//! which forgets them, changes wait for the clients that may rely on former ones (`nacre_target`, `restart_wait.rs`).
//!
//! Not here: what a change means for locks (`rows/lock_changes.rs`), the requests (`service/inode_locks.rs`).

use crate::rows::lock_changes::LockHolders;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::{RangeBounds, RangeInclusive};
use core::time::Duration;
use nacre_dlm::server::{InodeClaim, InodeLockEffect, InodeLocks, RevokeAck, Ticket};
use nacre_node::{Ctx, Promise};
use nacre_target::{ExportId, RevokedLock, TargetCore};
use nacre_types::{Errno, Fid, InodeBits, InodeMode, Instant, Xid};
use nacre_wire::Opcode;
use nacre_wire::mdt::{CancelInodeLocks, INODE_LOCKS_MAX, InodeGrant, InodeRevoke, RevokeInodeLocks};
use nacre_wire::params::MdtParam;

/// Inodes of which one client may have locks, unless the parameter says otherwise.
const LOCKS_PER_CLIENT: u32 = MdtParam::InodeLocksMax.row().default_u32();
/// Unacknowledged frames of revokes to one client.
const FRAMES_MAX: usize = 8;
/// A change keeps its slot for this time while it waits for locks.
pub(crate) const SLOT_TIMEOUT: Duration = Duration::from_millis(5);
/// The place of a parked change is kept for this time, unless its client asks for it.
const PARKED_TIMEOUT: Duration = Duration::from_secs(10);
/// The place of a parked change is kept for this time after its client was notified that it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(1);
/// Locks of a client that is gone that are removed in one visit.
const DROPPED_AT_A_TIME: usize = 1024;

/// The revokes to one client.
#[derive(Default)]
struct Revokes {
    /// Not sent yet.
    waiting: VecDeque<InodeRevoke>,
    /// Frames that the client has not acknowledged.
    frames: Vec<Xid>,
}

/// The inode locks of all clients.
pub(crate) struct InodeLockTable {
    ctx: Rc<Ctx>,
    locks: RefCell<InodeLocks>,
    revokes: RefCell<BTreeMap<ExportId, Revokes>>,
    /// Changes that wait until their ticket is ready.
    waiting: RefCell<BTreeMap<Ticket, Promise<()>>>,
    /// Changes without a slot, by the request that was refused.
    parked: RefCell<BTreeMap<(ExportId, Xid), Parked>>,
    /// No place of a parked change is to be given up before.
    overdue_at: Cell<Instant>,
}

/// The place of a change without a slot.
#[derive(Clone, Copy)]
struct Parked {
    ticket: Ticket,
    /// Its place is released at this time. `None`: its client waits for it.
    until: Option<Instant>,
}

impl InodeLockTable {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        Self {
            ctx: ctx.clone(),
            locks: RefCell::new(InodeLocks::new(LOCKS_PER_CLIENT as usize)),
            revokes: RefCell::default(),
            waiting: RefCell::default(),
            parked: RefCell::default(),
            overdue_at: Cell::new(Instant(u64::MAX)),
        }
    }
    pub(crate) fn limit(&self) -> usize {
        self.locks.borrow().limit()
    }
    pub(crate) fn set_limit(&self, limit: usize) {
        self.locks.borrow_mut().set_limit(limit);
    }
    pub(crate) fn count(&self) -> usize {
        self.locks.borrow().len()
    }
    /// Number of revokes so far.
    pub(crate) fn revoke_count(&self) -> u64 {
        self.locks.borrow().revokes()
    }
    /// Number of changes that wait for locks.
    pub(crate) fn waiting_count(&self) -> usize {
        self.locks.borrow().waiting()
    }

    // ---- grants

    /// Claims bits for a client, before the rows are read.
    pub(crate) fn claim(
        &self,
        core: &TargetCore,
        export: ExportId,
        fid: Fid,
        wanted: InodeBits,
    ) -> Option<InodeClaim> {
        self.drop_overdue();
        let claim = self.locks.borrow_mut().claim(export, fid, InodeMode::Pr, wanted, core.ctx.now());
        self.carry_out(core);
        claim
    }
    /// The bits that the reply to the read grants. The caller must not wait for anything afterwards.
    pub(crate) fn grant(&self, claim: InodeClaim) -> Option<InodeGrant> {
        let fid = claim.fid();
        let grant = self.locks.borrow_mut().stands(claim)?;
        Some(InodeGrant { fid, mode: grant.mode, bits: grant.bits, number: grant.number })
    }
    /// Takes back claimed bits that the rows do not permit, before they are granted.
    pub(crate) fn take_back(&self, core: &TargetCore, claim: InodeClaim, bits: InodeBits) -> InodeClaim {
        let claim = self.locks.borrow_mut().take_back(claim, bits);
        self.carry_out(core);
        claim
    }
    /// Adds bits that an earlier start has granted to a client, and that it may still use.
    pub(crate) fn restore(&self, export: ExportId, fid: Fid, bits: InodeBits) {
        self.locks.borrow_mut().restore(export, fid, InodeMode::Pr, bits, self.ctx.now());
    }

    // ---- changes

    /// The view of the locks that a transaction needs.
    pub(crate) fn holders(&self, own: Option<ExportId>, tells_sender: bool, former: bool) -> Holders<'_> {
        Holders { locks: &self.locks, own, tells_sender, former }
    }
    /// Whether clients other than `own` have any of these bits.
    pub(crate) fn conflicts(&self, own: Option<ExportId>, broken: &[(Fid, InodeBits)]) -> bool {
        !broken.is_empty() && self.locks.borrow().conflicts(own, broken)
    }
    /// A place among the changes that wait for locks; it is given up when it is dropped.
    pub(crate) fn enter(&self, own: Option<ExportId>) -> Result<Waiting<'_>, Errno> {
        let entered = self.locks.borrow_mut().enter(own, InodeMode::Ex, self.ctx.now());
        match entered {
            Ok(ticket) => Ok(Waiting { table: self, ticket, is_parked: false }),
            Err(error) => {
                tracing::warn!(%error, "a change cannot wait for locks");
                Err(Errno::EBUSY)
            }
        }
    }

    /// Keeps the place of a change whose request is refused.
    pub(crate) fn park(&self, export: ExportId, change: Xid, waiting: Waiting<'_>) {
        let until = self.ctx.now() + PARKED_TIMEOUT;
        self.overdue_at.set(self.overdue_at.get().min(until));
        let parked = Parked { ticket: waiting.into_ticket(), until: Some(until) };
        let old = self.parked.borrow_mut().insert((export, change), parked);
        old.into_iter().for_each(|old| self.leave(old.ticket));
    }
    /// Waits until a parked change is ready, and keeps its place for a while. A change that is not parked counts as
    /// ready.
    pub(crate) async fn ready(&self, export: ExportId, change: Xid) {
        let key = (export, change);
        let keep = |until| {
            let mut parked = self.parked.borrow_mut();
            let parked = parked.get_mut(&key)?;
            parked.until = until;
            Some(parked.ticket)
        };
        let Some(ticket) = keep(None) else { return };
        if !self.locks.borrow().is_ready(ticket) {
            let (promise, ready) = self.ctx.promise();
            self.waiting.borrow_mut().insert(ticket, promise);
            ready.await;
        }
        let until = self.ctx.now() + READY_TIMEOUT;
        self.overdue_at.set(self.overdue_at.get().min(until));
        keep(Some(until));
    }
    /// Gives up the places of changes whose clients have not come back for them.
    fn drop_overdue(&self) {
        let now = self.ctx.now();
        if now < self.overdue_at.get() {
            return; // a search for each claim would cost as much as there are changes
        }
        let is_overdue = |parked: &Parked| parked.until.is_some_and(|until| until <= now);
        let keys = self.parked_where(.., is_overdue);
        self.unpark(&keys);
        let next = self.parked.borrow().values().filter_map(|parked| parked.until).min();
        self.overdue_at.set(next.unwrap_or(Instant(u64::MAX)));
    }
    /// A change of a client has been applied: the places of its parked changes that are ready are released. The change
    /// was probably one of them, and no client is granted their bits while a place is kept.
    pub(crate) fn change_applied(&self, export: ExportId) {
        let is_ready = |parked: &Parked| self.locks.borrow().is_ready(parked.ticket);
        self.unpark(&self.parked_where(changes_of(export), is_ready));
    }
    fn parked_where(
        &self,
        changes: impl RangeBounds<(ExportId, Xid)>,
        which: impl Fn(&Parked) -> bool,
    ) -> Vec<(ExportId, Xid)> {
        let parked = self.parked.borrow();
        parked.range(changes).filter(|(_, parked)| which(parked)).map(|(key, _)| *key).collect()
    }
    fn unpark(&self, changes: &[(ExportId, Xid)]) {
        for change in changes {
            let left = self.parked.borrow_mut().remove(change);
            left.into_iter().for_each(|parked| self.leave(parked.ticket));
        }
    }
    fn leave(&self, ticket: Ticket) {
        self.waiting.borrow_mut().remove(&ticket);
        self.locks.borrow_mut().leave(ticket, self.ctx.now());
    }

    /// Revokes the access times of inodes from other clients, without waiting.
    pub(crate) fn revoke_access_times(&self, core: &TargetCore, own: Option<ExportId>, fids: &[Fid]) {
        if fids.is_empty() {
            return;
        }
        let mut locks = self.locks.borrow_mut();
        fids.iter().for_each(|fid| locks.revoke_from_others(own, *fid, InodeBits::ATIME));
        drop(locks);
        self.carry_out(core);
    }

    // ---- ends of locks

    /// A client returns locks.
    pub(crate) fn returned(&self, core: &TargetCore, export: ExportId, returned: &CancelInodeLocks) {
        for ack in &returned.acks {
            let how = if ack.converted { RevokeAck::Converted } else { RevokeAck::Dropped };
            self.locks.borrow_mut().acknowledged(export, ack.number, how);
            core.lock_returned(export, RevokedLock::Inode(ack.number));
        }
        for number in &returned.flushing {
            core.revoked_lock_used(export, RevokedLock::Inode(*number));
        }
        for cancel in &returned.cancels {
            self.locks.borrow_mut().cancelled(export, cancel.fid, cancel.bits, cancel.number);
        }
        self.carry_out(core);
    }
    /// An inode of the client's locks is gone by its own change.
    pub(crate) fn forget_inode(&self, core: &TargetCore, export: ExportId, fid: Fid) {
        self.locks.borrow_mut().forget_inode(export, fid);
        self.carry_out(core);
    }
    /// The client is gone.
    pub(crate) async fn drop_export(&self, core: &TargetCore, export: ExportId) {
        self.revokes.borrow_mut().remove(&export);
        self.unpark(&self.parked_where(changes_of(export), |_| true));
        loop {
            let done = self.locks.borrow_mut().drop_holder(export, DROPPED_AT_A_TIME);
            self.carry_out(core);
            if done {
                return;
            }
            self.ctx.yield_now().await;
        }
    }
    /// The client has acknowledged a callback, perhaps one with revokes.
    pub(crate) fn acknowledged(&self, core: &TargetCore, export: ExportId, callback: Xid) {
        if let Some(revokes) = self.revokes.borrow_mut().get_mut(&export) {
            revokes.frames.retain(|frame| *frame != callback);
        }
        self.send(core, export);
    }

    // ---- effects

    /// Carries out what the table has decided: sends revokes, and wakes changes whose turn has come.
    fn carry_out(&self, core: &TargetCore) {
        let mut clients: Vec<ExportId> = Vec::new();
        loop {
            let effect = self.locks.borrow_mut().poll_effect();
            match effect {
                None => break,
                Some(InodeLockEffect::Ready(ticket)) => {
                    if let Some(promise) = self.waiting.borrow_mut().remove(&ticket) {
                        promise.fulfil(());
                    }
                }
                Some(InodeLockEffect::Revoke(revoke)) => {
                    let export = revoke.holder;
                    if !clients.contains(&export) {
                        clients.push(export);
                    }
                    let mut revokes = self.revokes.borrow_mut();
                    revokes.entry(export).or_default().waiting.push_back(InodeRevoke {
                        fid: revoke.fid,
                        bits: revoke.bits,
                        wanted: revoke.wanted,
                        number: revoke.number,
                    });
                }
            }
        }
        clients.into_iter().for_each(|export| self.send(core, export));
    }
    /// Sends revokes that wait, as far as the client has acknowledged earlier ones.
    fn send(&self, core: &TargetCore, export: ExportId) {
        loop {
            let revokes: Vec<InodeRevoke> = {
                let mut clients = self.revokes.borrow_mut();
                let Some(client) = clients.get_mut(&export) else { return };
                if client.waiting.is_empty() && client.frames.is_empty() {
                    clients.remove(&export);
                    return;
                }
                if client.frames.len() >= FRAMES_MAX || client.waiting.is_empty() {
                    return;
                }
                let count = client.waiting.len().min(INODE_LOCKS_MAX);
                client.waiting.drain(..count).collect()
            };
            let numbers: Vec<u64> = revokes.iter().map(|revoke| revoke.number).collect();
            // Without a callback the export is gone or about to go, and its locks with it.
            let sent = core.callback(export, Opcode::RevokeInodeLocks, &RevokeInodeLocks { revokes });
            let Some(frame) = sent else { return };
            if let Some(client) = self.revokes.borrow_mut().get_mut(&export) {
                client.frames.push(frame);
            }
            for number in numbers {
                core.revoked(export, RevokedLock::Inode(number), "the lock of an inode");
            }
        }
    }
}

/// All changes of a client.
fn changes_of(export: ExportId) -> RangeInclusive<(ExportId, Xid)> {
    (export, Xid(0))..=(export, Xid(u64::MAX))
}

/// The holders of locks, for one attempt of a change.
pub(crate) struct Holders<'a> {
    locks: &'a RefCell<InodeLocks>,
    own: Option<ExportId>,
    tells_sender: bool,
    /// Clients may rely on locks of an earlier start.
    former: bool,
}
impl LockHolders for Holders<'_> {
    fn others(&self, fid: Fid) -> bool {
        self.former || self.locks.borrow().conflicts(self.own, &[(fid, InodeBits::ALL)])
    }
    fn sender(&self, fid: Fid) -> bool {
        self.tells_sender && self.own.is_some_and(|own| !self.locks.borrow().held(own, fid).is_empty())
    }
    fn sender_opens(&self, fid: Fid) -> bool {
        let held = |own| self.locks.borrow().held(own, fid).all();
        self.own.is_some_and(|own| held(own).contains(InodeBits::OPEN))
    }
}

/// The place of a change among those that wait for locks.
pub(crate) struct Waiting<'a> {
    table: &'a InodeLockTable,
    ticket: Ticket,
    is_parked: bool,
}
impl Waiting<'_> {
    /// Revokes the locks of others on these bits and waits until there are none.
    pub(crate) async fn until_free(
        &self,
        core: &TargetCore,
        broken: &[(Fid, InodeBits)],
    ) -> Result<(), Errno> {
        let set = self.table.locks.borrow_mut().set_wants(self.ticket, broken);
        let is_ready = set.map_err(|error| {
            tracing::warn!(%error, "a change cannot wait for locks");
            Errno::EBUSY
        })?;
        if is_ready {
            return Ok(());
        }
        let (promise, ready) = self.table.ctx.promise();
        self.table.waiting.borrow_mut().insert(self.ticket, promise);
        self.table.carry_out(core);
        ready.await;
        Ok(())
    }
    /// The ticket, which from now on stays until it is given up.
    fn into_ticket(mut self) -> Ticket {
        self.is_parked = true;
        self.ticket
    }
}
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_parked {
            self.table.leave(self.ticket);
        }
    }
}
