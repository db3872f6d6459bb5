//! Extent locks of OSTs, held for the time of one operation.
//!
//! Invariants: (1) locks of one operation are taken in (stripe, offset) order; (2) every lock that was asked for is
//! cancelled, also when the operation fails: dropping [`HeldExtent`] sends the cancel. Not here: waiting for a callback
//! (`waits`), operations of this mount among each other (`ranges`), keeping locks with what they cover (the cache to come).

use crate::client::Client;
use crate::stripes::Laid;
use crate::target::Target;
use crate::waits::{Registered, Waits};
use alloc::boxed::Box;
use alloc::rc::Rc;
use nacre_node::Ctx;
use nacre_types::Codec;
use nacre_types::{Errno, Extent, Fid, LockCookie, ObjectId};
use nacre_wire::Opcode;
use nacre_wire::ost::{Cancel, Enqueue, LockBlocking, LockGranted, LockMode, ObjectState};

/// Locks that are held or asked for, until their cancel is answered; a grant brings the object as it is then.
pub(crate) type ExtentLocks = Waits<ObjectState>;

impl ExtentLocks {
    /// Takes the callbacks of an OST, and hears when it forgets them.
    pub(crate) fn listen(&self, ctx: &Rc<Ctx>, ost: &Rc<Target>) {
        let (waits, ctx, weak) = (self.clone(), ctx.clone(), Rc::downgrade(ost));
        ost.peer.on_callback(Box::new(move |frame| {
            if frame.header.opcode == Opcode::LockGranted.number() {
                waits.take(frame, |grant: LockGranted| (grant.cookie, grant.state));
            } else if frame.header.opcode == Opcode::LockBlocking.number()
                && let Ok(LockBlocking { cookie }) = LockBlocking::from_slice(&frame.body)
                && !waits.knows(cookie)
                && let Some(ost) = weak.upgrade()
            {
                // The OST has lost the cancel with the end of its log. Locks that are held go at the end of their
                // operation, without being asked for. It finds a lock by the cookie; of which object is not known here.
                let object = ObjectId { fid: Fid::default(), stripe: 0 };
                ctx.spawn(async move { drop(ost.call(&Cancel { object, cookie }).await) });
            }
        }));
        ost.peer.on_restarted(self.asks_again());
        ost.peer.on_evicted(self.asks_again());
    }
}

/// A granted lock. Dropping it gives it back, without waiting for the answer.
pub(crate) struct HeldExtent {
    ctx: Rc<Ctx>,
    ost: Rc<Target>,
    object: ObjectId,
    pub(crate) cookie: LockCookie,
    registered: Rc<Registered<ObjectState>>,
    /// The object as it was when the lock was granted.
    pub(crate) state: ObjectState,
}
impl Drop for HeldExtent {
    fn drop(&mut self) {
        let (ost, cancel) = (self.ost.clone(), Cancel { object: self.object, cookie: self.cookie });
        let registered = self.registered.clone();
        self.ctx.spawn(async move {
            // An error means that the export, and the lock with it, is gone.
            let _ = ost.call(&cancel).await;
            drop(registered);
        });
    }
}

impl Client {
    /// Takes a lock; waits for those who hold conflicting ones. One that is `kept` survives a kill of the OST's process.
    /// With `leaves` the wait ends with EINTR once nobody wants the operation any more.
    pub(crate) async fn lock_extent(
        &self,
        ost: &Rc<Target>,
        Laid { object, laid }: Laid,
        mode: LockMode,
        extent: Extent,
        kept: bool,
        leaves: bool,
    ) -> Result<HeldExtent, Errno> {
        let registered = Rc::new(self.locks.register(&self.ctx, self.new_cookie()));
        let cookie = registered.cookie;
        // From here on the request may be queued at the OST: the guard withdraws it whatever happens.
        let mut held = HeldExtent {
            ctx: self.ctx.clone(),
            ost: ost.clone(),
            object,
            cookie,
            registered: registered.clone(),
            state: ObjectState::default(),
        };
        loop {
            registered.asks();
            let reply = ost.call(&Enqueue { object, laid, cookie, mode, extent, kept }).await?;
            if reply.granted {
                held.state = reply.state;
                return Ok(held);
            }
            let heard = registered.heard();
            let heard =
                if !leaves { heard.await } else { self.ctx.while_wanted(heard).await.ok_or(Errno::EINTR)? };
            if let Some(state) = heard {
                held.state = state;
                return Ok(held);
            }
        }
    }
}
