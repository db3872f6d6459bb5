//! Locks of inodes: the parts of inodes that clients may cache, and the revokes before others change them.
//!
//! `nacre_dlm::server::InodeLocks` decides; this module connects it with exports. Callbacks of one visit to one client go out
//! in one frame. A client has at most [`FRAMES_MAX`] unacknowledged frames of revokes, and further revokes wait for its next
//! acknowledgement, so a client is not evicted because of the number of its revokes. The acknowledgement means only that the
//! client has the callback; the client returns the bits by `CancelInodeLocks`, at most one lease after the revoke.
//!
//! A change that waits for longer than [`SLOT_TIMEOUT`] is refused and parked: its client has the slot back, and its ticket
//! keeps its place. The client asks when it is ready and sends the change again.
//!
//! Locks survive a new connection of their client, which resends callbacks; they end with the export. After a restart,
//! which forgets them, changes wait for the clients that may rely on former ones (`nacre_target`, `restart_wait.rs`).
//!
//! An MDT has one table for the parts of its inodes, an OST one for the bytes of files that it stores (DATA).
//!
//! Not here: which bits a change concerns, and the requests (the services).

use crate::clients::rows::ExportId;
use crate::locks::deadlines::RevokedLock;
use crate::request::{Reply, ReplyTail, Request};
use crate::target_core::TargetCore;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;
use nacre_dlm::server::{InodeClaim, InodeLockEffect, InodeLocks, RevokeAnswer as Answer, Ticket};
use nacre_node::{Ctx, Promise};
use nacre_types::{Codec, Errno, Fid, InodeBits, InodeMode, Instant, Xid};
use nacre_wire::mdt::{
    CancelInodeLocks, INODE_LOCKS_MAX, InodeGrant, InodeRevoke, LockTail, RevokeInodeLocks,
};
use nacre_wire::target::Empty;
use nacre_wire::{Opcode, flags};

/// Unacknowledged frames of revokes to one client.
const FRAMES_MAX: usize = 8;
/// A change keeps its slot for this time while it waits for locks.
pub const SLOT_TIMEOUT: Duration = Duration::from_millis(5);
/// The place of a parked change is kept for this time, unless its client asks for it.
const PARKED_TIMEOUT: Duration = Duration::from_secs(10);
/// The place of a parked change is kept for this time after its client was told that it is ready.
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

/// The inode locks of all clients of a target.
pub struct InodeLockTable {
    ctx: Rc<Ctx>,
    locks: RefCell<InodeLocks>,
    revokes: RefCell<BTreeMap<ExportId, Revokes>>,
    /// Changes that wait until their ticket is ready.
    waiting: RefCell<BTreeMap<Ticket, Promise<()>>>,
    /// Changes without a slot, by the request that was refused.
    parked: RefCell<BTreeMap<(ExportId, Xid), Parked>>,
}

/// The place of a change without a slot.
#[derive(Clone, Copy)]
struct Parked {
    ticket: Ticket,
    /// It is given up then. `None`: its client waits for it.
    until: Option<Instant>,
}

impl InodeLockTable {
    /// An empty table; a client may have locks on `locks_per_client` inodes.
    pub fn new(ctx: &Rc<Ctx>, locks_per_client: usize) -> Self {
        Self {
            ctx: ctx.clone(),
            locks: RefCell::new(InodeLocks::new(locks_per_client)),
            revokes: RefCell::default(),
            waiting: RefCell::default(),
            parked: RefCell::default(),
        }
    }
    /// The number of inodes of which one client may have locks.
    pub fn limit(&self) -> usize {
        self.locks.borrow().limit()
    }
    /// Sets that number.
    pub fn set_limit(&self, limit: usize) {
        self.locks.borrow_mut().set_limit(limit);
    }
    /// The number of locks.
    pub fn count(&self) -> usize {
        self.locks.borrow().len()
    }
    /// Number of revokes so far.
    pub fn revoke_count(&self) -> u64 {
        self.locks.borrow().revokes()
    }
    /// Number of changes that wait for locks.
    pub fn waiting_count(&self) -> usize {
        self.locks.borrow().waiting()
    }

    // ---- grants

    /// Claims bits for a client, before the rows are read.
    pub fn claim(
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
    /// What the reply to the read grants. Nothing may be waited for after this.
    pub fn grant(&self, claim: InodeClaim) -> Option<InodeGrant> {
        let fid = claim.fid();
        let grant = self.locks.borrow_mut().stands(claim)?;
        Some(InodeGrant { fid, mode: grant.mode, bits: grant.bits, number: grant.number })
    }
    /// Takes back claimed bits that the rows do not permit, before they are granted.
    pub fn take_back(&self, core: &TargetCore, claim: InodeClaim, bits: InodeBits) -> InodeClaim {
        let claim = self.locks.borrow_mut().take_back(claim, bits);
        self.carry_out(core);
        claim
    }

    // ---- changes

    /// The bits of an inode that a client has.
    pub fn held(&self, export: ExportId, fid: Fid) -> InodeBits {
        self.locks.borrow().held(export, fid).all()
    }
    /// Whether clients other than `own` have any of these bits.
    pub fn conflicts(&self, own: Option<ExportId>, broken: &[(Fid, InodeBits)]) -> bool {
        !broken.is_empty() && self.locks.borrow().conflicts(own, broken)
    }
    /// A place among the changes that wait for locks; it is given up when it is dropped.
    pub fn enter(&self, own: Option<ExportId>) -> Result<Waiting<'_>, Errno> {
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
    pub fn park(&self, export: ExportId, change: Xid, waiting: Waiting<'_>) {
        let until = Some(self.ctx.now() + PARKED_TIMEOUT);
        let parked = Parked { ticket: waiting.into_ticket(), until };
        let old = self.parked.borrow_mut().insert((export, change), parked);
        old.into_iter().for_each(|old| self.leave(old.ticket));
    }
    /// Waits until a parked change is ready; an unknown one is. Its place is kept for a while.
    pub async fn ready(&self, export: ExportId, change: Xid) {
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
        keep(Some(self.ctx.now() + READY_TIMEOUT));
    }
    /// Gives up the places of changes whose clients have not come back for them.
    fn drop_overdue(&self) {
        if self.parked.borrow().is_empty() {
            return;
        }
        let now = self.ctx.now();
        self.unpark(|_, parked| parked.until.is_some_and(|until| until <= now));
    }
    /// A change of a client has been applied: the places of its parked changes that are ready are given up. It was one of
    /// them as a rule, and nobody is granted their bits as long as they are kept.
    pub fn change_applied(&self, export: ExportId) {
        if !self.parked.borrow().is_empty() {
            self.unpark(|of, parked| of == export && self.locks.borrow().is_ready(parked.ticket));
        }
    }
    fn unpark(&self, which: impl Fn(ExportId, &Parked) -> bool) {
        let mut left = Vec::new();
        self.parked.borrow_mut().retain(|(export, _), parked| {
            let leaves = which(*export, parked);
            if leaves {
                left.push(parked.ticket);
            }
            !leaves
        });
        left.into_iter().for_each(|ticket| self.leave(ticket));
    }
    fn leave(&self, ticket: Ticket) {
        self.waiting.borrow_mut().remove(&ticket);
        self.locks.borrow_mut().leave(ticket, self.ctx.now());
    }

    // ---- ends of locks

    /// The request by which a client returns locks.
    ///
    /// # Errors
    /// EINVAL if it names more locks than a request may, EPROTO if it cannot be read.
    pub fn handle_cancel(&self, core: &TargetCore, request: &Request) -> Result<Reply, Errno> {
        let returned: CancelInodeLocks = request.args()?;
        if returned.answers.len() > INODE_LOCKS_MAX || returned.cancels.len() > INODE_LOCKS_MAX {
            return Err(Errno::EINVAL);
        }
        if returned.instance == core.instance() {
            self.returned(core, request.export, &returned);
        }
        Ok(Reply::of(&Empty {}))
    }
    /// A client returns locks.
    fn returned(&self, core: &TargetCore, export: ExportId, returned: &CancelInodeLocks) {
        for answer in &returned.answers {
            let how = if answer.converted { Answer::Converted } else { Answer::Dropped };
            self.locks.borrow_mut().acknowledged(export, answer.number, how);
            core.lock_returned(export, RevokedLock::Inode(answer.number));
        }
        for cancel in &returned.cancels {
            self.locks.borrow_mut().cancelled(export, cancel.fid, cancel.bits, cancel.number);
        }
        self.carry_out(core);
    }
    /// An inode of the client's locks is gone by its own change.
    pub fn forget_inode(&self, core: &TargetCore, export: ExportId, fid: Fid) {
        self.locks.borrow_mut().forget_inode(export, fid);
        self.carry_out(core);
    }
    /// The inode is gone by a change of somebody who has no lock of it: all locks on it end without a revoke.
    pub fn forget_holders(&self, core: &TargetCore, fid: Fid) {
        let holders: Vec<ExportId> = self.locks.borrow().of_inode(fid).map(|lock| lock.holder).collect();
        for holder in holders {
            self.locks.borrow_mut().forget_inode(holder, fid);
        }
        self.carry_out(core);
    }
    /// The client is gone.
    pub async fn drop_export(&self, core: &TargetCore, export: ExportId) {
        self.revokes.borrow_mut().remove(&export);
        self.unpark(|of, _| of == export);
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
    pub fn acknowledged(&self, core: &TargetCore, export: ExportId, callback: Xid) {
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

/// The place of a change among those that wait for locks.
pub struct Waiting<'a> {
    table: &'a InodeLockTable,
    ticket: Ticket,
    is_parked: bool,
}
impl Waiting<'_> {
    /// Revokes the locks of others on these bits and waits until there are none.
    pub async fn until_free(&self, core: &TargetCore, broken: &[(Fid, InodeBits)]) -> Result<(), Errno> {
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

/// The addition to a reply that tells of locks. `None`: it tells nothing.
pub fn lock_tail(tail: LockTail) -> Option<ReplyTail> {
    let says_something = !(tail.granted.is_empty() && tail.changed.is_empty() && tail.removed.is_empty());
    says_something.then(|| ReplyTail { flag: flags::LOCKS, bytes: tail.to_vec() })
}
