//! Extent locks of OSTs. An operation holds its locks until it ends; an append that comes in pieces holds them until its
//! last piece (`long_append`).
//!
//! Invariants: (1) locks of one operation are taken in (stripe, offset) order; (2) every requested lock is
//! cancelled, also when the operation fails: dropping [`GrantedExtent`] sends the cancel. Not here: waiting for a
//! callback (`pending`), the order of operations of this mount (`ranges`).

use crate::data::stripes::Laid;
use crate::locks::pending::{PendingLock, PendingLocks};
use crate::targets::target::Target;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::RefCell;
use nacre_node::Ctx;
use nacre_types::Codec;
use nacre_types::{Extent, Failure, Fid, LockCookie, ObjectId};
use nacre_wire::Opcode;
use nacre_wire::ost::{Cancel, Enqueue, LockBlocking, LockGranted, LockMode, ObjectState, Read};

/// A requested lock whose operation is under way.
struct Requested {
    ost: Rc<Target>,
    object: ObjectId,
    laid: u32,
    extent: Extent,
    /// The OST has revoked the lock, and is notified that it is still in use.
    revoked: bool,
}

/// The extent locks of the operations under way.
#[derive(Clone, Default)]
pub(crate) struct ExtentLocks {
    /// Locks that are granted or requested, until their cancel has its reply; a grant brings the object as it is then.
    pending: PendingLocks<ObjectState>,
    requested: Rc<RefCell<BTreeMap<LockCookie, Requested>>>,
}

impl ExtentLocks {
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_idle()
    }
    pub(crate) fn retry_all(&self) {
        self.pending.retry_all();
    }
    /// Handles the callbacks of an OST, and its restarts and evictions.
    pub(crate) fn listen(&self, ctx: &Rc<Ctx>, ost: &Rc<Target>) {
        let (this, ctx, weak) = (self.clone(), ctx.clone(), Rc::downgrade(ost));
        ost.peer.on_callback(Box::new(move |frame| match Opcode::from_number(frame.header.opcode) {
            Some(Opcode::LockGranted) => {
                this.pending.handle_callback(frame, |grant: LockGranted| (grant.cookie, grant.state));
            }
            Some(Opcode::LockBlocking) => {
                if let (Ok(LockBlocking { cookie }), Some(ost)) =
                    (LockBlocking::from_slice(&frame.body), weak.upgrade())
                {
                    this.revoked(&ctx, ost, cookie);
                }
            }
            Some(Opcode::ReturnGrant) => {
                if let Some(ost) = weak.upgrade() {
                    ctx.spawn(ost.return_unused_grant());
                }
            }
            _ => {}
        }));
        ost.peer.on_restarted(self.pending.retry_handler());
        ost.peer.on_evicted(self.pending.retry_handler());
    }

    fn revoked(&self, ctx: &Rc<Ctx>, ost: Rc<Target>, cookie: LockCookie) {
        if let Some(lock) = self.requested.borrow_mut().get_mut(&cookie) {
            // The lock is cancelled at the end of its operation in any case.
            if !core::mem::replace(&mut lock.revoked, true) {
                ctx.spawn(self.clone().keep_in_use(ctx.clone(), cookie));
            }
        } else if !self.pending.contains(cookie) {
            // The OST has lost the cancel with the end of its log. It finds a lock by the cookie; of which object is not
            // known here.
            let object = ObjectId { fid: Fid::default(), stripe: 0 };
            ctx.spawn(async move { drop(ost.call(&Cancel { object, cookie }).await) });
        }
    }
    /// An OST evicts a client that keeps a revoked lock without using it. An operation over several objects does not use the
    /// locks of one OST while it waits for another one that is away: a small read shows that the operation is under way.
    async fn keep_in_use(self, ctx: Rc<Ctx>, cookie: LockCookie) {
        loop {
            let Some(ost) = self.requested.borrow().get(&cookie).map(|lock| lock.ost.clone()) else { return };
            ctx.sleep(ost.peer.with_import(|import| import.lease().length()) / 3).await;
            let request = match self.requested.borrow().get(&cookie) {
                Some(&Requested { object, laid, extent, .. }) => {
                    Read { object, laid, offset: extent.start, len: 1, lock: cookie }
                }
                None => return,
            };
            // Refused when the lock has gone meanwhile.
            let _ = ost.call(&request).await;
        }
    }
}

/// A granted lock. Dropping it sends the cancel and does not wait for the reply.
pub(crate) struct GrantedExtent {
    ctx: Rc<Ctx>,
    locks: ExtentLocks,
    ost: Rc<Target>,
    object: ObjectId,
    cookie: LockCookie,
    registration: Rc<PendingLock<ObjectState>>,
    /// The object as it was when the lock was granted.
    state: ObjectState,
}
impl GrantedExtent {
    pub(crate) fn cookie(&self) -> LockCookie {
        self.cookie
    }
    /// The object as it was when the lock was granted, and as this operation has changed it since.
    pub(crate) fn state(&self) -> ObjectState {
        self.state
    }
    /// This operation has written up to here.
    pub(crate) fn written_to(&mut self, end: u64) {
        self.state.size = self.state.size.max(end);
    }
}
impl Drop for GrantedExtent {
    fn drop(&mut self) {
        self.locks.requested.borrow_mut().remove(&self.cookie);
        let (ost, cancel) = (self.ost.clone(), Cancel { object: self.object, cookie: self.cookie });
        let registration = self.registration.clone();
        self.ctx.spawn(async move {
            // An error means that the export, and the lock with it, is gone.
            let _ = ost.call(&cancel).await;
            drop(registration);
        });
    }
}

/// A lock to be requested.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExtentRequest {
    object: Laid,
    mode: LockMode,
    extent: Extent,
    persistent: bool,
    interruptible: bool,
}
impl ExtentRequest {
    pub(super) fn new(object: Laid, mode: LockMode, extent: Extent) -> Self {
        Self { object, mode, extent, persistent: false, interruptible: false }
    }
    /// Sets whether the lock survives a restart of the OST.
    pub(super) fn persistent(self, persistent: bool) -> Self {
        Self { persistent, ..self }
    }
    /// Sets whether the wait ends with EINTR once the caller has cancelled the operation.
    pub(super) fn interruptible(self, interruptible: bool) -> Self {
        Self { interruptible, ..self }
    }
}

impl ExtentLocks {
    /// Requests a lock under a new cookie; waits for conflicting locks of others.
    pub(crate) async fn acquire(
        &self,
        ctx: &Rc<Ctx>,
        cookie: LockCookie,
        ost: &Rc<Target>,
        request: ExtentRequest,
    ) -> Result<GrantedExtent, Failure> {
        let ExtentRequest { object: Laid { object, laid }, mode, extent, persistent, interruptible } =
            request;
        // Not under the lock: others would wait with this writer for a slow sync of the OST.
        if mode != LockMode::Pr {
            ost.data_room().await?;
        }
        let registration = Rc::new(self.pending.register(ctx, cookie));
        let requested = Requested { ost: ost.clone(), object, laid, extent, revoked: false };
        self.requested.borrow_mut().insert(cookie, requested);
        // From here on the request may be queued at the OST: dropping the guard cancels it whatever happens.
        let mut granted = GrantedExtent {
            ctx: ctx.clone(),
            locks: self.clone(),
            ost: ost.clone(),
            object,
            cookie,
            registration: registration.clone(),
            state: ObjectState::default(),
        };
        loop {
            registration.requested();
            let reply = ost.call(&Enqueue { object, laid, cookie, mode, extent, persistent }).await?;
            if reply.granted {
                granted.state = reply.state;
                return Ok(granted);
            }
            let wait = registration.granted();
            let state = if !interruptible {
                wait.await
            } else {
                ctx.while_wanted(wait).await.ok_or(Failure::EINTR)?
            };
            if let Some(state) = state {
                granted.state = state;
                return Ok(granted);
            }
        }
    }
}
