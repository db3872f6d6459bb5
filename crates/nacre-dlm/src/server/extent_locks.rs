//! The extent locks of a target: resources, holders, a fair queue.
//!
//! Invariants: (1) two granted locks of one resource do not conflict, even if one client holds both; (2) a lock waits
//! exactly while an older lock, granted or waiting, conflicts with it, so a waiter is never overtaken; (3) every waiter is
//! on the watch list of one such lock, so no wake-up is lost; (4) a lock that is in use by a running operation stays until
//! the operation ends, even if its holder cancels it or is evicted.
//! Not here: which locks conflict (`policy/extent.rs`), deadlines and eviction (`nacre-target`), file locks (`flocks.rs`).

use crate::policy::Mode;
use crate::policy::extent::{Forest, NIL, Node, Query, Slot};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use nacre_types::{Extent, Fid, Generation, LockCookie, ObjectId, Oid, Seq};

/// The object of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub [u64; 4]);
impl From<ObjectId> for ResourceId {
    fn from(o: ObjectId) -> Self {
        Self([o.fid.seq.0, u64::from(o.fid.oid.0), 0, u64::from(o.stripe)])
    }
}
impl ResourceId {
    /// The object that this resource was made from; `None` for numbers that no object has.
    pub fn object(self) -> Option<ObjectId> {
        let [seq, oid, 0, stripe] = self.0 else { return None };
        let fid = Fid::new(Seq(seq), Oid(u32::try_from(oid).ok()?));
        Some(ObjectId { fid, stripe: u32::try_from(stripe).ok()? })
    }
}

/// Identifies a lock of this space; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId {
    slot: Slot,
    age: u64,
}

/// The holder of a lock or waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holder {
    /// A client, until it cancels the lock or its export ends.
    Client { export: Generation, cookie: LockCookie },
    /// A running operation of the target.
    Operation,
}

/// A request for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// The object to be locked.
    pub resource: ResourceId,
    /// The requested mode.
    pub mode: Mode,
    /// The requested bytes.
    pub extent: Extent,
    /// The client or operation that sends the request.
    pub holder: Holder,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueued {
    /// The granted or waiting lock.
    pub lock: LockId,
    /// False: [`LockEffect::Granted`] follows.
    pub granted: bool,
}

/// An effect that the target carries out, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockEffect {
    /// A waiting lock is granted.
    Granted { lock: LockId, holder: Holder },
    /// Another request waits for this lock: a blocking callback is due, once per lock and to clients only.
    Blocking { lock: LockId, holder: Holder },
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The client holds as many locks as it may.
    #[error("the client holds {held} locks, its limit")]
    TooMany { held: u32 },
    /// The cookie names another lock of the same client.
    #[error("the cookie names another lock of the client")]
    CookieInUse,
    /// The extent has no bytes.
    #[error("empty extent")]
    EmptyExtent,
}

#[derive(Debug)]
struct Lock {
    resource: ResourceId,
    holder: Holder,
    granted: bool,
    /// Its holder has cancelled it; it stays for the operations that use it.
    released: bool,
    users: u32,
    /// Waiters that are checked again when this lock is removed.
    watchers: Vec<Slot>,
    /// The lock on whose list this waiter is.
    watches: Slot,
}

/// The extent locks of one target.
#[derive(Debug)]
pub struct LockSpace {
    forest: Forest,
    locks: Vec<Option<Lock>>,
    free: Vec<Slot>,
    roots: BTreeMap<ResourceId, Slot>,
    cookies: BTreeMap<(Generation, LockCookie), Slot>,
    held: BTreeMap<Generation, u32>,
    effects: VecDeque<LockEffect>,
    next_age: u64,
    locks_per_client_max: u32,
    waiting: usize,
}

impl LockSpace {
    /// An empty space; a client may hold or await `locks_per_client_max` locks. No client may know `seed`.
    pub fn new(locks_per_client_max: u32, seed: u64) -> Self {
        Self {
            forest: Forest::new(seed),
            locks: Vec::new(),
            free: Vec::new(),
            roots: BTreeMap::new(),
            cookies: BTreeMap::new(),
            held: BTreeMap::new(),
            effects: VecDeque::new(),
            next_age: 1,
            locks_per_client_max,
            waiting: 0,
        }
    }

    /// Requests a lock. A client's request is idempotent by its cookie: a resend returns the present state.
    ///
    /// # Errors
    /// See [`LockError`]; nothing has changed then. An operation's request fails for an empty extent only.
    pub fn enqueue(&mut self, request: LockRequest) -> Result<Enqueued, LockError> {
        if request.extent.is_empty() {
            return Err(LockError::EmptyExtent);
        }
        if let Holder::Client { export, cookie } = request.holder {
            if let Some(&slot) = self.cookies.get(&(export, cookie)) {
                return self.present_state(slot, &request);
            }
            let held = self.held.get(&export).copied().unwrap_or(0);
            if held >= self.locks_per_client_max {
                return Err(LockError::TooMany { held });
            }
            self.held.insert(export, held + 1);
        }
        let slot = self.add(&request);
        if let Holder::Client { export, cookie } = request.holder {
            self.cookies.insert((export, cookie), slot);
        }
        let granted = match self.blocker(slot) {
            None => {
                self.set_granted(slot);
                true
            }
            Some(blocker) => {
                self.watch(slot, blocker);
                self.waiting += 1;
                self.notify_holders(slot);
                false
            }
        };
        Ok(Enqueued { lock: self.id(slot), granted })
    }

    /// Cancels a lock or a waiting request. Returns false if it does not exist (any more).
    pub fn cancel(&mut self, lock: LockId) -> bool {
        match self.slot(lock) {
            Some(slot) => self.release(slot),
            None => false,
        }
    }

    /// Like [`LockSpace::cancel`], by the client's cookie.
    pub fn cancel_cookie(&mut self, export: Generation, cookie: LockCookie) -> bool {
        match self.cookies.get(&(export, cookie)) {
            Some(&slot) => self.release(slot),
            None => false,
        }
    }

    /// Removes up to `at_most` locks and waiting requests of a client whose export has ended; returns true when none is
    /// left. Locks in use by running operations stay until these end.
    pub fn remove_client(&mut self, export: Generation, at_most: usize) -> bool {
        let from = (export, LockCookie(0));
        let to = (export, LockCookie(u64::MAX));
        let mut slots: Vec<Slot> =
            self.cookies.range(from..=to).take(at_most).map(|(_, &slot)| slot).collect();
        // Youngest first, so that none of the waiting ones is granted in between.
        slots.sort_by_key(|&slot| core::cmp::Reverse(self.forest.node(slot).age));
        for &slot in &slots {
            self.release(slot);
        }
        slots.len() < at_most || self.cookies.range(from..=to).next().is_none()
    }

    /// The granted lock `cookie` of a client if it covers `mode` on `extent` of `resource`.
    pub fn covering(
        &self,
        export: Generation,
        cookie: LockCookie,
        resource: ResourceId,
        mode: Mode,
        extent: Extent,
    ) -> Option<LockId> {
        let &slot = self.cookies.get(&(export, cookie))?;
        let (lock, node) = (self.lock(slot), self.forest.node(slot));
        let covers = lock.granted
            && lock.resource == resource
            && node.mode.covers(mode)
            && node.extent.contains(extent);
        covers.then(|| self.id(slot))
    }

    /// The resource that a client may change under the granted lock with this cookie.
    pub fn changing(&self, export: Generation, cookie: LockCookie) -> Option<ResourceId> {
        let &slot = self.cookies.get(&(export, cookie))?;
        let lock = self.lock(slot);
        (lock.granted && self.forest.node(slot).mode.covers(Mode::Pw)).then_some(lock.resource)
    }

    /// Pins a granted lock for an operation: the lock stays until [`LockSpace::unuse`]. Returns false if it is not granted.
    pub fn use_lock(&mut self, lock: LockId) -> bool {
        match self.slot(lock) {
            Some(slot) if self.lock(slot).granted => {
                self.lock_mut(slot).users += 1;
                true
            }
            _ => false,
        }
    }

    /// Ends a use: the operation is over.
    ///
    /// # Panics
    /// Without a matching [`LockSpace::use_lock`].
    pub fn unuse(&mut self, lock: LockId) {
        let slot = self.slot(lock).expect("a used lock stays");
        let entry = self.lock_mut(slot);
        entry.users = entry.users.checked_sub(1).expect("every use ends once");
        if entry.users == 0 && entry.released {
            self.remove(slot);
        }
    }

    /// The next effect, in order.
    pub fn poll_effect(&mut self) -> Option<LockEffect> {
        self.effects.pop_front()
    }

    /// Whether the lock exists and is granted.
    pub fn is_granted(&self, lock: LockId) -> bool {
        self.slot(lock).is_some_and(|slot| self.lock(slot).granted)
    }
    /// The resource of a lock.
    pub fn resource(&self, lock: LockId) -> Option<ResourceId> {
        self.slot(lock).map(|slot| self.lock(slot).resource)
    }
    /// Whether a client has a lock or waiting request with this cookie.
    pub fn knows(&self, export: Generation, cookie: LockCookie) -> bool {
        self.cookies.contains_key(&(export, cookie))
    }
    /// The number of locks and waiting requests of a client.
    pub fn held_by(&self, export: Generation) -> u32 {
        self.held.get(&export).copied().unwrap_or(0)
    }
    /// The number of locks, granted or waiting.
    pub fn len(&self) -> usize {
        self.locks.len() - self.free.len()
    }
    /// Whether there is no lock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The number of waiting locks.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
    /// The number of resources with a lock.
    pub fn resources(&self) -> usize {
        self.roots.len()
    }

    // ---- one lock

    fn id(&self, slot: Slot) -> LockId {
        LockId { slot, age: self.forest.node(slot).age }
    }
    fn slot(&self, lock: LockId) -> Option<Slot> {
        let live = self.locks.get(lock.slot as usize)?.is_some();
        (live && self.forest.node(lock.slot).age == lock.age).then_some(lock.slot)
    }
    fn lock(&self, slot: Slot) -> &Lock {
        self.locks[slot as usize].as_ref().expect("slots in lists and indexes are live")
    }
    fn lock_mut(&mut self, slot: Slot) -> &mut Lock {
        self.locks[slot as usize].as_mut().expect("slots in lists and indexes are live")
    }
    fn root(&self, slot: Slot) -> Slot {
        self.roots.get(&self.lock(slot).resource).copied().unwrap_or(NIL)
    }

    fn present_state(&self, slot: Slot, request: &LockRequest) -> Result<Enqueued, LockError> {
        let (lock, node) = (self.lock(slot), self.forest.node(slot));
        let same =
            lock.resource == request.resource && node.mode == request.mode && node.extent == request.extent;
        if !same {
            return Err(LockError::CookieInUse);
        }
        Ok(Enqueued { lock: self.id(slot), granted: lock.granted })
    }

    fn add(&mut self, request: &LockRequest) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.locks.push(None);
            Slot::try_from(self.locks.len() - 1).expect("clients and their locks are bounded")
        });
        self.locks[slot as usize] = Some(Lock {
            resource: request.resource,
            holder: request.holder,
            granted: false,
            released: false,
            users: 0,
            watchers: Vec::new(),
            watches: NIL,
        });
        self.forest.place(slot, Node::new(request.extent, self.next_age, request.mode));
        self.next_age += 1;
        let root = self.roots.get(&request.resource).copied().unwrap_or(NIL);
        let root = self.forest.insert(root, slot);
        self.roots.insert(request.resource, root);
        slot
    }

    fn release(&mut self, slot: Slot) -> bool {
        let lock = self.lock_mut(slot);
        if lock.released {
            return false;
        }
        lock.released = true;
        let (holder, users) = (lock.holder, lock.users);
        if let Holder::Client { export, cookie } = holder {
            self.cookies.remove(&(export, cookie));
            if let Some(held) = self.held.get_mut(&export) {
                *held -= 1;
                if *held == 0 {
                    self.held.remove(&export);
                }
            }
            // No client is left to be notified.
            if self.forest.node(slot).unnotified {
                self.forest.set_unnotified(self.root(slot), slot, false);
            }
        }
        if users == 0 {
            self.remove(slot);
        }
        true
    }

    fn remove(&mut self, slot: Slot) {
        let resource = self.lock(slot).resource;
        let root = self.forest.remove(self.root(slot), slot);
        if root == NIL {
            self.roots.remove(&resource);
        } else {
            self.roots.insert(resource, root);
        }
        let lock = self.locks[slot as usize].take().expect("a lock is removed once");
        self.free.push(slot);
        if !lock.granted {
            self.waiting -= 1;
        }
        if lock.watches != NIL {
            let watchers = &mut self.lock_mut(lock.watches).watchers;
            if let Some(at) = watchers.iter().position(|&w| w == slot) {
                watchers.swap_remove(at);
            }
        }
        let mut watchers = lock.watchers;
        watchers.sort_by_key(|&w| self.forest.node(w).age);
        for waiter in watchers {
            self.lock_mut(waiter).watches = NIL;
            match self.blocker(waiter) {
                Some(blocker) => self.watch(waiter, blocker),
                None => self.grant(waiter),
            }
        }
    }

    // ---- conflicts

    /// Older locks that conflict with `slot`.
    fn older(&self, slot: Slot) -> Query {
        let node = self.forest.node(slot);
        Query {
            extent: node.extent,
            modes: node.mode.conflicts(),
            age_from: 0,
            age_to: node.age,
            only_unnotified: false,
        }
    }

    /// The youngest older lock that `slot` must wait for.
    fn blocker(&self, slot: Slot) -> Option<Slot> {
        self.forest.youngest(self.root(slot), &self.older(slot))
    }

    fn watch(&mut self, waiter: Slot, blocker: Slot) {
        self.lock_mut(waiter).watches = blocker;
        self.lock_mut(blocker).watchers.push(waiter);
    }

    fn set_granted(&mut self, slot: Slot) {
        self.lock_mut(slot).granted = true;
        if matches!(self.lock(slot).holder, Holder::Client { .. }) {
            self.forest.set_unnotified(self.root(slot), slot, true);
        }
    }

    fn grant(&mut self, slot: Slot) {
        self.set_granted(slot);
        self.waiting -= 1;
        let (lock, holder) = (self.id(slot), self.lock(slot).holder);
        self.effects.push_back(LockEffect::Granted { lock, holder });
        let node = self.forest.node(slot);
        if !node.unnotified || self.waiting == 0 {
            return;
        }
        let younger = Query { age_from: node.age + 1, age_to: u64::MAX, ..self.older(slot) };
        if self.forest.youngest(self.root(slot), &younger).is_some() {
            self.notify(slot);
        }
    }

    /// Queues a blocking callback for every client whose lock blocks the waiter `slot`.
    fn notify_holders(&mut self, slot: Slot) {
        let query = Query { only_unnotified: true, ..self.older(slot) };
        let mut holders = Vec::new();
        self.forest.each(self.root(slot), &query, &mut |older| holders.push(older));
        for older in holders {
            self.notify(older);
        }
    }

    fn notify(&mut self, slot: Slot) {
        self.forest.set_unnotified(self.root(slot), slot, false);
        let (lock, holder) = (self.id(slot), self.lock(slot).holder);
        self.effects.push_back(LockEffect::Blocking { lock, holder });
    }
}
