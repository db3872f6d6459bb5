//! Extent locks of OSTs, held for the time of one operation.
//!
//! Invariants: (1) locks of one operation are taken in (stripe, offset) order; (2) every lock that was asked for is
//! cancelled, also when the operation fails: dropping [`HeldExtent`] sends the cancel. Not here: waiting for a callback
//! (`waits`), operations of this mount among each other (`ranges`), keeping locks with what they cover (the cache to come).

use crate::client::Client;
use crate::stripes::Laid;
use crate::target::Target;
use crate::waits::Waits;
use alloc::boxed::Box;
use alloc::rc::Rc;
use nacre_node::{Ctx, Peer};
use nacre_types::{Errno, Extent, LockCookie, ObjectId};
use nacre_wire::Opcode;
use nacre_wire::ost::{Cancel, Enqueue, LockGranted, LockMode, ObjectState};

/// Requests that wait for a grant, which brings the object as it is then.
pub(crate) type ExtentLocks = Waits<ObjectState>;

impl ExtentLocks {
    /// Takes the callbacks of an OST, and hears when it forgets them.
    pub(crate) fn listen(&self, peer: &Peer) {
        let waits = self.clone();
        peer.on_callback(Box::new(move |frame| {
            // `LockBlocking` needs no answer: these locks go at the end of their operation anyway.
            if frame.header.opcode == Opcode::LockGranted.number() {
                waits.take(frame, |grant: LockGranted| (grant.cookie, grant.state));
            }
        }));
        peer.on_restarted(self.asks_again());
        peer.on_evicted(self.asks_again());
    }
}

/// A granted lock. Dropping it gives it back, without waiting for the answer.
pub(crate) struct HeldExtent {
    ctx: Rc<Ctx>,
    ost: Rc<Target>,
    object: ObjectId,
    pub(crate) cookie: LockCookie,
    /// The object as it was when the lock was granted.
    pub(crate) state: ObjectState,
}
impl Drop for HeldExtent {
    fn drop(&mut self) {
        let (ost, cancel) = (self.ost.clone(), Cancel { object: self.object, cookie: self.cookie });
        self.ctx.spawn(async move {
            // An error means that the export, and the lock with it, is gone.
            let _ = ost.call(&cancel).await;
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
        let registered = self.locks.register(&self.ctx, self.new_cookie());
        let cookie = registered.cookie;
        // From here on the request may be queued at the OST: the guard withdraws it whatever happens.
        let mut held = HeldExtent {
            ctx: self.ctx.clone(),
            ost: ost.clone(),
            object,
            cookie,
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
