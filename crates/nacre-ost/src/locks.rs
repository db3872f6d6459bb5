//! Extent locks of objects: the lock space with an async face.
//!
//! Invariants: an operation holds its lock as a guard, from before it looks at the object until its reply stands;
//! a request under a client's lock pins that lock, so that neither a cancel nor an eviction lets a stranger in
//! while bytes move; a client that had to wait is told as soon as its turn has come, with the object's state.
//! Not here: which locks a restart brings back (`nacre_target::PersistentLocks`), which request needs which lock (`service.rs`), deadlines
//! (the export's lease).

use crate::object::Store;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::RefCell;
use nacre_dlm::policy::Mode;
use nacre_dlm::server::{
    Enqueued, Holder, LockEffect, LockError, LockId, LockRequest, LockSpace, ResourceId,
};
use nacre_node::Promise;
use nacre_osd::{OsdError, Table, table};
use nacre_target::{ExportId, PersistentLocks, RevokedLock, TargetCore};
use nacre_types::{Errno, Extent, LockCookie, ObjectId};
use nacre_wire::Opcode;
use nacre_wire::ost::{Enqueue, LockBlocking, LockGranted, LockMode, ObjectState};

/// Rows of persistent locks; the value is the request.
pub(crate) const PERSISTENT_LOCKS: Table = Table(table::OST_FIRST + 2);
/// Locks that one client may hold or await.
pub(crate) const LOCKS_PER_CLIENT_MAX: u32 = 65_536;
/// Locks of a vanished client that are dropped before other tasks get their turn.
const DROP_SLICE: usize = 256;

/// The locks of one OST.
pub(crate) struct Locks {
    core: Rc<TargetCore>,
    store: Rc<Store>,
    space: RefCell<LockSpace>,
    persistent: PersistentLocks<Enqueue>,
    /// Operations that wait, by their lock.
    waiting: RefCell<BTreeMap<LockId, Promise<()>>>,
}

/// Ends the operation's hold when dropped.
pub(crate) struct Held {
    locks: Rc<Locks>,
    lock: LockId,
    kind: Kind,
}
#[derive(Clone, Copy)]
enum Kind {
    /// The operation's own lock.
    Own,
    /// A client's lock in use.
    Used(ExportId, LockCookie),
}

impl Drop for Held {
    fn drop(&mut self) {
        match self.kind {
            Kind::Own => {
                self.locks.space.borrow_mut().cancel(self.lock);
            }
            Kind::Used(export, cookie) => {
                self.locks.core.revoked_lock_used(export, RevokedLock::Cookie(cookie));
                self.locks.space.borrow_mut().unuse(self.lock);
            }
        }
        self.locks.carry_out();
    }
}

fn mode(wire: LockMode) -> Mode {
    match wire {
        LockMode::Pr => Mode::Pr,
        LockMode::Pw => Mode::Pw,
        LockMode::Ex => Mode::Ex,
    }
}

/// What a client asks for, under its own name for it.
fn clients(export: ExportId, args: &Enqueue) -> LockRequest {
    LockRequest {
        resource: args.object.into(),
        mode: mode(args.mode),
        extent: args.extent,
        holder: Holder::Client { export, cookie: args.cookie },
    }
}

fn refused(e: LockError) -> Errno {
    match e {
        LockError::TooMany { .. } => Errno::ENOLCK,
        LockError::CookieInUse => Errno::EPROTO,
        LockError::EmptyExtent => Errno::EINVAL,
    }
}

impl Locks {
    /// The locks that were kept are there after [`Self::restore_persistent`].
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
    /// Brings back the locks that were kept, once the recovery is over: changes that are made again were covered by
    /// locks that may have been given back since, and take no client's lock.
    pub(crate) fn restore_persistent(&self) {
        let mut space = self.space.borrow_mut();
        for (export, args) in self.persistent.all() {
            if !space.enqueue(clients(export, &args)).is_ok_and(|lock| lock.granted) {
                tracing::error!(target_name = %self.core.name, object = %args.object, "a kept lock meets another one");
            }
        }
    }

    /// The lock under which a request of `export` works: the client's own, if it names one by `cookie`, or one of
    /// the server's for the time of the operation, for which this waits.
    ///
    /// # Errors
    /// `ESTALE`: the client holds no such lock (any more: it was evicted, or the target started again), so it
    /// must enqueue again. `EPROTO`: the lock does not cover the request.
    pub(crate) async fn hold(
        self: &Rc<Self>,
        export: ExportId,
        cookie: LockCookie,
        object: ObjectId,
        mode: Mode,
        extent: Extent,
    ) -> Result<Held, Errno> {
        if cookie == LockCookie(0) {
            self.hold_own(object, mode, extent).await
        } else {
            self.use_clients(export, cookie, object, mode, extent)
        }
    }

    /// A lock of the operation itself; waits for whoever came before.
    pub(crate) async fn hold_own(
        self: &Rc<Self>,
        object: ObjectId,
        mode: Mode,
        extent: Extent,
    ) -> Result<Held, Errno> {
        let request = LockRequest { resource: object.into(), mode, extent, holder: Holder::Operation };
        let Enqueued { lock, granted } = self.space.borrow_mut().enqueue(request).map_err(refused)?;
        let held = Held { locks: self.clone(), lock, kind: Kind::Own };
        if !granted {
            let (promise, turn) = self.core.ctx.promise();
            self.waiting.borrow_mut().insert(lock, promise);
            self.carry_out();
            turn.await.ok_or(Errno::ESHUTDOWN)?;
        }
        Ok(held)
    }

    fn use_clients(
        self: &Rc<Self>,
        export: ExportId,
        cookie: LockCookie,
        object: ObjectId,
        mode: Mode,
        extent: Extent,
    ) -> Result<Held, Errno> {
        let mut space = self.space.borrow_mut();
        self.core.revoked_lock_used(export, RevokedLock::Cookie(cookie));
        let Some(lock) = space.covering(export, cookie, object.into(), mode, extent) else {
            return Err(if space.knows(export, cookie) { Errno::EPROTO } else { Errno::ESTALE });
        };
        let used = space.use_lock(lock);
        assert!(used, "a covering lock is granted");
        Ok(Held { locks: self.clone(), lock, kind: Kind::Used(export, cookie) })
    }

    /// A client asks for a lock that it names and keeps. True: granted now.
    ///
    /// # Errors
    /// `ENOLCK` at the limit of locks per client, `EPROTO` when the cookie names another lock, `EINVAL` for an
    /// empty extent.
    pub(crate) async fn enqueue(self: &Rc<Self>, export: ExportId, args: &Enqueue) -> Result<bool, Errno> {
        if args.cookie == LockCookie(0) {
            return Err(Errno::EPROTO);
        }
        let answer = self.space.borrow_mut().enqueue(clients(export, args)).map_err(refused)?;
        self.carry_out();
        if args.kept {
            self.persistent.request(export, args);
        }
        if answer.granted
            && let Err(error) = self.persistent.granted(export, args.cookie).await
        {
            drop(self.cancel(export, args.cookie).await); // a stopped engine answers nobody
            return Err(error);
        }
        Ok(answer.granted)
    }

    /// What a client may have changed under this lock of its own.
    pub(crate) fn written_under(&self, export: ExportId, cookie: LockCookie) -> Option<ObjectId> {
        self.space.borrow().changing(export, cookie)?.object()
    }

    /// A client lets go. Unknown cookies are fine: the cancel may be a resent one.
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
        self.carry_out();
        Ok(())
    }

    /// Drops everything that a vanished client holds or awaits.
    pub(crate) async fn drop_owner(self: &Rc<Self>, export: ExportId) {
        if let Err(error) = self.persistent.end_client(export).await {
            tracing::warn!(target_name = %self.core.name, %error, "rows of locks stay until the next start");
            return;
        }
        loop {
            let done = self.space.borrow_mut().remove_client(export, DROP_SLICE);
            self.carry_out();
            if done {
                return;
            }
            self.core.ctx.yield_now().await;
        }
    }

    /// Locks that exist, and those of them that wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let space = self.space.borrow();
        (space.len(), space.waiting())
    }

    /// Does what the lock space asks for: wakes operations, tells clients.
    fn carry_out(self: &Rc<Self>) {
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
                    self.core.ctx.spawn(self.clone().tell_granted(lock, export, cookie));
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

    async fn tell_granted(self: Rc<Self>, lock: LockId, export: ExportId, cookie: LockCookie) {
        let resource = self.space.borrow().resource(lock);
        let Some(object) = resource.and_then(ResourceId::object) else { return };
        let state = match self.persistent.granted(export, cookie).await {
            Ok(()) => self.store.state(object).await,
            Err(error) => Err(error),
        };
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                // The client must not wait for ever, and must not believe a size: without the lock its next
                // request is refused, it asks again, and that answer is the error.
                tracing::error!(%object, %error, "the state of a locked object cannot be read");
                drop(self.cancel(export, cookie).await); // a stopped engine answers nobody
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
