//! The data locks that an OST has granted: while this mount has that of a file, no other client changes the bytes of the file
//! which that OST stores.
//!
//! Rules: (1) the reply to a read counts only with the lock that it grants itself: the lock may have been lost and granted
//! again since the read was executed. (2) Locks are used while the mount is connected to the OST and within two thirds of its
//! lease. They survive a new connection to the same start of the OST; a restart and an eviction end them all. (3) A lost lock
//! is returned when the kernel has dropped what it kept under it (`returns`).
//! Not here: what the kernel keeps (`pages`).

use crate::cache::kernel::{KernelCache, Stale};
use crate::cache::returns::Returns;
use crate::targets::lock_returns::{LocksOfTarget, return_locks};
use crate::targets::target::Target;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::cell::{Cell, RefCell};
use nacre_dlm::client::GrantedInodeLocks;
use nacre_dlm::server::InodeGrant;
use nacre_node::Ctx;
use nacre_types::{Codec, ConnEpoch, Extent, Fid, InodeBits, InodeMode, Instant, ObjectId, OstIndex};
use nacre_wire::Frame;
use nacre_wire::mdt::{LockTail, RevokeAnswer, RevokeInodeLocks};
use nacre_wire::ost::ObjectState;

/// What the kernel keeps under data locks.
pub(super) trait KeptBytes {
    fn kernel(&self) -> Option<Rc<dyn KernelCache>>;
    /// The lock of a file at an OST has ended: what the kernel has to drop, and a value that is dropped when it has. `None`:
    /// nothing.
    fn lost(&self, fid: Fid, ost: OstIndex) -> Option<(Box<dyn Any>, Extent)>;
}

/// Files of which locks are kept, unless the parameter says otherwise.
const LRU_SIZE: usize = 100_000;

/// What is known of a file under its lock.
#[derive(Debug, Default)]
struct Locked {
    /// Differs from that of every earlier lock.
    serial: u64,
    /// States of its objects, by stripe.
    states: BTreeMap<u32, ObjectState>,
}

/// The data locks of one OST.
pub(crate) struct DataLocks {
    ctx: Rc<Ctx>,
    index: OstIndex,
    ost: Rc<Target>,
    kept: Weak<dyn KeptBytes>,
    locks: RefCell<GrantedInodeLocks>,
    /// Counts the starts of the OST and the generations of this client there: locks end with them.
    era: Cell<ConnEpoch>,
    /// Frames of earlier connections have no effect on locks.
    era_began: Cell<ConnEpoch>,
    files: RefCell<BTreeMap<Fid, Locked>>,
    serials: Cell<u64>,
    returns: Returns,
    revokes: Cell<u64>,
    cancels: Cell<u64>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

impl LocksOfTarget for DataLocks {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn target(&self) -> &Rc<Target> {
        &self.ost
    }
    fn returns(&self) -> &Returns {
        &self.returns
    }
    async fn report(&self, _: &[Fid], _: bool) {
        // Opens are matters of the MDT.
    }
    fn kernel(&self) -> Option<Rc<dyn KernelCache>> {
        self.kept.upgrade()?.kernel()
    }
}

impl DataLocks {
    pub(super) fn new(
        ctx: &Rc<Ctx>,
        index: OstIndex,
        ost: Rc<Target>,
        kept: Weak<dyn KeptBytes>,
    ) -> Rc<Self> {
        Rc::new(Self {
            ctx: ctx.clone(),
            index,
            ost,
            kept,
            locks: RefCell::new(GrantedInodeLocks::new(LRU_SIZE)),
            era: Cell::default(),
            era_began: Cell::default(),
            files: RefCell::default(),
            serials: Cell::new(0),
            returns: Returns::default(),
            revokes: Cell::new(0),
            cancels: Cell::new(0),
            hits: Cell::new(0),
            misses: Cell::new(0),
        })
    }
    pub(crate) fn ost(&self) -> &Rc<Target> {
        &self.ost
    }
    /// The number of locks, and its bound.
    pub(crate) fn lock_count(&self) -> (usize, usize) {
        let locks = self.locks.borrow();
        (locks.len(), locks.limit())
    }
    /// Locks that the OST has revoked, and those that were returned without a revoke.
    pub(crate) fn ends(&self) -> (u64, u64) {
        (self.revokes.get(), self.cancels.get())
    }
    /// States of objects that were known, and those that were not.
    pub(crate) fn answers(&self) -> (u64, u64) {
        (self.hits.get(), self.misses.get())
    }
    /// Sets the number of files of which locks are kept.
    pub(crate) fn set_limit(self: &Rc<Self>, limit: usize) {
        self.locks.borrow_mut().set_limit(limit);
        self.cancel_surplus();
        return_locks(self);
    }

    /// Until when locks may be used. `None`: not now.
    pub(super) fn usable_until(&self) -> Option<Instant> {
        let until = self.ost.peer.with_import(|import| import.lease().usable_until())?;
        (self.ost.peer.is_connected() && self.ctx.now() < until).then_some(until)
    }
    /// The serial of a lock that may be used now. Counts as a use.
    pub(super) fn serial(&self, fid: Fid) -> Option<u64> {
        self.usable_until()?;
        let era = Some(self.era.get());
        let has = self.locks.borrow_mut().covers(era, fid, InodeMode::Pr, InodeBits::DATA);
        has.then(|| self.files.borrow().get(&fid).map(|locked| locked.serial))?
    }
    /// The state of an object that cannot have changed since it was seen. Counted as a hit or a miss.
    pub(crate) fn state(&self, object: ObjectId) -> Option<ObjectState> {
        let known = || {
            self.files.borrow().get(&object.fid).and_then(|locked| locked.states.get(&object.stripe).copied())
        };
        let state = self.serial(object.fid).and_then(|_| known());
        let count = if state.is_some() { &self.hits } else { &self.misses };
        count.set(count.get() + 1);
        state
    }
    /// Notes what a read under the lock has seen.
    pub(super) fn note_state(&self, object: ObjectId, state: ObjectState) {
        if let Some(locked) = self.files.borrow_mut().get_mut(&object.fid) {
            locked.states.insert(object.stripe, state);
        }
    }
    /// This mount changes the file.
    pub(super) fn forget_states(&self, fid: Fid) {
        if let Some(locked) = self.files.borrow_mut().get_mut(&fid) {
            locked.states.clear();
        }
    }

    /// Processes the reply to a read of an object: the serial of the lock that it grants.
    pub(super) fn granted(self: &Rc<Self>, frame: &Frame, fid: Fid) -> Option<u64> {
        let bytes = frame.lock_tail().filter(|_| frame.header.epoch >= self.era_began.get())?;
        let tail = match LockTail::from_slice(bytes) {
            Ok(tail) => tail,
            Err(error) => {
                tracing::error!(target_name = %self.ost.name, %error, "the lock that a reply grants cannot be read, and is not used");
                return None;
            }
        };
        let mut serial = None;
        for grant in tail.granted.iter().filter(|grant| grant.fid == fid) {
            let taken = InodeGrant { bits: grant.bits, mode: grant.mode, number: grant.number };
            let bits = self.locks.borrow_mut().granted(self.era.get(), fid, taken);
            if bits.contains(InodeBits::DATA) {
                let mut files = self.files.borrow_mut();
                let locked = files.entry(fid).or_insert_with(|| {
                    self.serials.set(self.serials.get() + 1);
                    Locked { serial: self.serials.get(), ..Locked::default() }
                });
                serial = Some(locked.serial);
            }
        }
        self.cancel_surplus();
        return_locks(self);
        serial
    }

    // ---- the ends of locks

    /// Processes a callback: the locks have ended when this returns, and are returned in the background.
    pub(crate) fn revoked(self: &Rc<Self>, frame: &Frame) {
        if frame.header.epoch < self.era_began.get() {
            return;
        }
        match RevokeInodeLocks::from_slice(&frame.body) {
            Ok(RevokeInodeLocks { revokes }) => {
                self.revokes.set(self.revokes.get() + revokes.len() as u64);
                let mut answers = Vec::with_capacity(revokes.len());
                for revoke in revokes {
                    let ended = self.locks.borrow_mut().revoked(
                        self.era.get(),
                        revoke.fid,
                        revoke.wanted,
                        revoke.bits,
                        revoke.number,
                    );
                    if revoke.wanted == InodeMode::Ex && ended.contains(InodeBits::DATA) {
                        self.lost(revoke.fid);
                    }
                    let converted = revoke.wanted == InodeMode::Pr;
                    answers.push(RevokeAnswer { number: revoke.number, converted });
                }
                self.returns.add(Vec::new(), answers, Vec::new());
            }
            Err(error) => {
                tracing::error!(target_name = %self.ost.name, %error, "a revoke cannot be read: no lock of this OST is used until it restarts");
                self.cancel_all();
                self.locks.borrow_mut().distrust();
            }
        }
        return_locks(self);
    }
    /// The OST was restarted, or has evicted this client: all locks have ended.
    pub(crate) fn ended(self: &Rc<Self>, restarted: bool) {
        self.era_began.set(self.ost.peer.with_import(|import| import.epoch()));
        self.era.set(ConnEpoch(self.era.get().0 + 1));
        self.locks.borrow_mut().enter(self.era.get());
        self.returns.all_ended(Vec::new(), restarted);
        let fids: Vec<Fid> = self.files.borrow().keys().copied().collect();
        fids.into_iter().for_each(|fid| self.lost(fid));
        return_locks(self);
    }
    /// Returns all locks.
    pub(super) fn cancel_all(&self) {
        let fids: Vec<Fid> = self.files.borrow().keys().copied().collect();
        for fid in fids {
            let cancel = self.locks.borrow_mut().cancel(fid, InodeBits::ALL);
            self.lost(fid);
            self.returns.add(Vec::new(), Vec::new(), cancel.into_iter().collect());
        }
    }
    /// Drops locks beyond the limit; they wait to be returned.
    fn cancel_surplus(&self) {
        let cancels = self.locks.borrow_mut().cancel_surplus(|_| false);
        self.cancels.set(self.cancels.get() + cancels.len() as u64);
        cancels.iter().for_each(|cancel| self.lost(cancel.fid));
        self.returns.add(Vec::new(), Vec::new(), cancels);
    }
    /// The lock of a file has ended: before it is returned, the kernel drops what it keeps under it.
    fn lost(&self, fid: Fid) {
        self.files.borrow_mut().remove(&fid);
        if let Some((guard, range)) = self.kept.upgrade().and_then(|kept| kept.lost(fid, self.index)) {
            self.returns.add(alloc::vec![Stale::Pages { fid, range }], Vec::new(), Vec::new());
            self.returns.add_guard(guard);
        }
    }
}
