//! Extent locks of objects: the lock space of `nacre_dlm` for tasks and clients.
//!
//! Invariants: an operation holds its lock as a guard, from before it reads the object until its reply is complete. A
//! request under a client's lock pins that lock, so that neither a cancel nor an eviction grants the range to another
//! client while bytes move. A client whose lock request had to wait gets a callback with the state of the object as
//! soon as the lock is granted.
//! Not here: which locks a restart restores (`nacre_target::PersistentLocks`), which request needs which lock
//! (`service/requests.rs`), deadlines (`nacre_target`).

use crate::store::Store;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_dlm::policy::Mode;
use nacre_dlm::server::{
    Enqueued, Holder, LockEffect, LockError, LockId, LockRequest, LockSpace, ResourceId,
};
use nacre_node::{Awaited, Promise};
use nacre_osd::{OsdError, Table, table};
use nacre_target::{ExportId, PersistentLocks, RevokedLock, TargetCore};
use nacre_types::{Errno, Extent, Failure, LockCookie, ObjectId, ProtocolOutcome};
use nacre_wire::Opcode;
use nacre_wire::ost::{Enqueue, LockBlocking, LockGranted, LockMode, ObjectState};

/// Rows of persistent locks; the value is the request.
pub(crate) const PERSISTENT_LOCKS: Table = Table(table::OST_FIRST + 2);
/// Locks that one client may hold or await.
pub(crate) const LOCKS_PER_CLIENT_MAX: u32 = 65_536;
/// Locks of an ended export that are removed before other tasks run.
const REMOVE_SLICE: usize = 256;

/// The locks of one OST.
pub(crate) struct Locks {
    core: Rc<TargetCore>,
    store: Rc<Store>,
    space: RefCell<LockSpace>,
    persistent: PersistentLocks<Enqueue>,
    /// Operations that wait, by their lock.
    waiting: RefCell<BTreeMap<LockId, Promise<()>>>,
}

/// The lock under which an operation runs; released when dropped.
pub(crate) struct LockGuard {
    locks: Rc<Locks>,
    lock: LockId,
    holding: Holding,
}
#[derive(Clone, Copy)]
enum Holding {
    /// The operation's own lock.
    Own,
    /// A client's lock, which stays until the operation ends.
    Pinned(ExportId, LockCookie),
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        match self.holding {
            Holding::Own => {
                self.locks.space.borrow_mut().cancel(self.lock);
            }
            Holding::Pinned(export, cookie) => {
                self.locks.core.revoked_lock_used(export, RevokedLock::Cookie(cookie));
                self.locks.space.borrow_mut().unuse(self.lock);
            }
        }
        self.locks.run_effects();
    }
}

fn mode(wire: LockMode) -> Mode {
    match wire {
        LockMode::Pr => Mode::Pr,
        LockMode::Pw => Mode::Pw,
        LockMode::Ex => Mode::Ex,
    }
}

/// The request of a client, under its own cookie.
fn client_request(export: ExportId, args: &Enqueue) -> LockRequest {
    LockRequest {
        resource: args.object.into(),
        mode: mode(args.mode),
        extent: args.extent,
        holder: Holder::Client { export, cookie: args.cookie },
    }
}

fn errno_of(e: LockError) -> Errno {
    match e {
        LockError::TooMany { .. } => Errno::ENOLCK,
        LockError::CookieInUse => Errno::EPROTO,
        LockError::EmptyExtent => Errno::EINVAL,
    }
}

impl Locks {
    /// Without the persistent locks: see [`Self::restore_persistent`].
    pub(crate) fn new(
        core: &Rc<TargetCore>,
        store: &Rc<Store>,
        persistent: PersistentLocks<Enqueue>,
    ) -> Rc<Self> {
        Rc::new(Self {
            core: core.clone(),
            store: store.clone(),
            space: RefCell::new(LockSpace::new(LOCKS_PER_CLIENT_MAX, core.ctx.random())),
            persistent,
            waiting: RefCell::default(),
        })
    }
    /// Restores the persistent locks, once the recovery is over: replayed changes were covered by locks that may have been
    /// cancelled since, so they use no client's lock.
    pub(crate) fn restore_persistent(&self) {
        let mut space = self.space.borrow_mut();
        for (export, args) in self.persistent.all() {
            if !space.enqueue(client_request(export, &args)).is_ok_and(|lock| lock.granted) {
                tracing::error!(target_name = %self.core.name, object = %args.object, "a persistent lock conflicts with another one");
            }
        }
    }

    /// The lock under which a request of `export` works: the client's own, if `cookie` names one, or one of
    /// the server's for the time of the operation, for which this waits.
    ///
    /// # Errors
    /// [`ProtocolOutcome::LockLost`]: the client holds no such lock (any more: it was evicted, or the target started again), so it
    /// must enqueue again. `EPROTO`: the lock does not cover the request.
    pub(crate) async fn lock(
        self: &Rc<Self>,
        export: ExportId,
        cookie: LockCookie,
        object: ObjectId,
        mode: Mode,
        extent: Extent,
    ) -> Result<LockGuard, Failure> {
        if cookie == LockCookie(0) {
            Ok(self.lock_for_operation(object, mode, extent).await?)
        } else {
            self.pin_client_lock(export, cookie, object, mode, extent)
        }
    }

    /// Takes a lock of the operation itself; waits for earlier requests that conflict.
    pub(crate) async fn lock_for_operation(
        self: &Rc<Self>,
        object: ObjectId,
        mode: Mode,
        extent: Extent,
    ) -> Result<LockGuard, Errno> {
        let (guard, turn) = self.request_for_operation(object, mode, extent)?;
        if let Some(turn) = turn {
            self.run_effects();
            turn.await.ok_or(Errno::ESHUTDOWN)?;
        }
        Ok(guard)
    }
    /// Takes several locks of one object; the ranges do not overlap. They are requested together: no other request can come
    /// to wait for one of them while it stands in the way of the next.
    pub(crate) async fn lock_all_for_operation(
        self: &Rc<Self>,
        object: ObjectId,
        mode: Mode,
        extents: &[Extent],
    ) -> Result<Vec<LockGuard>, Errno> {
        let requests = extents.iter().map(|&extent| self.request_for_operation(object, mode, extent));
        let (guards, turns): (Vec<_>, Vec<_>) =
            requests.collect::<Result<Vec<_>, Errno>>()?.into_iter().unzip();
        self.run_effects();
        for turn in turns.into_iter().flatten() {
            turn.await.ok_or(Errno::ESHUTDOWN)?;
        }
        Ok(guards)
    }
    /// Requests a lock of an operation; its turn comes later if an earlier request conflicts.
    fn request_for_operation(
        self: &Rc<Self>,
        object: ObjectId,
        mode: Mode,
        extent: Extent,
    ) -> Result<(LockGuard, Option<Awaited<()>>), Errno> {
        let request = LockRequest { resource: object.into(), mode, extent, holder: Holder::Operation };
        let Enqueued { lock, granted } = self.space.borrow_mut().enqueue(request).map_err(errno_of)?;
        let guard = LockGuard { locks: self.clone(), lock, holding: Holding::Own };
        if granted {
            return Ok((guard, None));
        }
        let (promise, turn) = self.core.ctx.promise();
        self.waiting.borrow_mut().insert(lock, promise);
        Ok((guard, Some(turn)))
    }

    fn pin_client_lock(
        self: &Rc<Self>,
        export: ExportId,
        cookie: LockCookie,
        object: ObjectId,
        mode: Mode,
        extent: Extent,
    ) -> Result<LockGuard, Failure> {
        let mut space = self.space.borrow_mut();
        self.core.revoked_lock_used(export, RevokedLock::Cookie(cookie));
        let Some(lock) = space.covering(export, cookie, object.into(), mode, extent) else {
            return Err(if space.knows(export, cookie) {
                Failure::EPROTO
            } else {
                ProtocolOutcome::LockLost.into()
            });
        };
        let used = space.use_lock(lock);
        assert!(used, "a covering lock is granted");
        Ok(LockGuard { locks: self.clone(), lock, holding: Holding::Pinned(export, cookie) })
    }

    /// A client requests a lock under a cookie. Returns whether it is granted now.
    ///
    /// # Errors
    /// `ENOLCK` at the limit of locks per client, `EPROTO` when the cookie names another lock, `EINVAL` for an
    /// empty extent.
    pub(crate) async fn enqueue(self: &Rc<Self>, export: ExportId, args: &Enqueue) -> Result<bool, Errno> {
        if args.cookie == LockCookie(0) {
            return Err(Errno::EPROTO);
        }
        let enqueued = self.space.borrow_mut().enqueue(client_request(export, args)).map_err(errno_of)?;
        self.run_effects();
        if args.persistent {
            self.persistent.request(export, args);
        }
        if enqueued.granted
            && let Err(error) = self.persistent.granted(export, args.cookie).await
        {
            drop(self.cancel(export, args.cookie).await); // fails if the engine has stopped: then no reply leaves
            return Err(error);
        }
        Ok(enqueued.granted)
    }

    /// The object that a client may have changed under this lock.
    pub(crate) fn written_under(&self, export: ExportId, cookie: LockCookie) -> Option<ObjectId> {
        self.space.borrow().changing(export, cookie)?.object()
    }

    /// A client cancels a lock. An unknown cookie is no error: the cancel may be a resend.
    ///
    /// # Errors
    /// Those of the engine, which has stopped then.
    pub(crate) async fn cancel(
        self: &Rc<Self>,
        export: ExportId,
        cookie: LockCookie,
    ) -> Result<(), OsdError> {
        self.persistent.end(export, cookie).await?;
        self.space.borrow_mut().cancel_cookie(export, cookie);
        self.core.lock_returned(export, RevokedLock::Cookie(cookie));
        self.run_effects();
        Ok(())
    }

    /// Removes all locks and waiting requests of a client whose export has ended.
    pub(crate) async fn remove_client(self: &Rc<Self>, export: ExportId) {
        if let Err(error) = self.persistent.end_client(export).await {
            tracing::warn!(target_name = %self.core.name, %error, "rows of locks cannot be deleted before the next start");
            return;
        }
        loop {
            let done = self.space.borrow_mut().remove_client(export, REMOVE_SLICE);
            self.run_effects();
            if done {
                return;
            }
            self.core.ctx.yield_now().await;
        }
    }

    /// The number of locks, and how many of them wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let space = self.space.borrow();
        (space.len(), space.waiting())
    }

    /// Carries out the effects of the lock space: wakes operations, sends callbacks to clients.
    fn run_effects(self: &Rc<Self>) {
        loop {
            let Some(effect) = self.space.borrow_mut().poll_effect() else { break };
            match effect {
                LockEffect::Granted { lock, holder: Holder::Operation } => {
                    let promise = self.waiting.borrow_mut().remove(&lock);
                    if let Some(promise) = promise {
                        promise.fulfil(());
                    }
                }
                LockEffect::Granted { lock, holder: Holder::Client { export, cookie } } => {
                    self.core.ctx.spawn(self.clone().send_granted(lock, export, cookie));
                }
                LockEffect::Blocking { holder: Holder::Client { export, cookie }, .. } => {
                    // A task, so that it follows the grant of the same lock.
                    let this = self.clone();
                    self.core.ctx.spawn(async move {
                        this.core.callback(export, Opcode::LockBlocking, &LockBlocking { cookie });
                        if this.space.borrow().knows(export, cookie) {
                            this.core.revoked(export, RevokedLock::Cookie(cookie), "an extent lock");
                        }
                    });
                }
                LockEffect::Blocking { holder: Holder::Operation, .. } => {}
            }
        }
    }

    async fn send_granted(self: Rc<Self>, lock: LockId, export: ExportId, cookie: LockCookie) {
        let resource = self.space.borrow().resource(lock);
        let Some(object) = resource.and_then(ResourceId::object) else { return };
        let state = match self.persistent.granted(export, cookie).await {
            Ok(()) => self.store.state(object).await,
            Err(error) => Err(error),
        };
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                // The client must not wait for ever, and must not use a wrong size: without the lock its next request
                // is refused, it enqueues again, and the reply is the error.
                tracing::error!(%object, %error, "the state of a locked object cannot be read");
                drop(self.cancel(export, cookie).await); // fails if the engine has stopped: then no callback leaves
                self.core.callback(
                    export,
                    Opcode::LockGranted,
                    &LockGranted { cookie, state: ObjectState::default() },
                );
                return;
            }
        };
        if self.space.borrow().is_granted(lock) {
            self.core.callback(export, Opcode::LockGranted, &LockGranted { cookie, state });
        }
    }
}
