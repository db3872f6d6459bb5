//! Extent locks of OSTs, held for the time of one operation; those of an append until the last piece of its call
//! (`long_append`).
//!
//! Invariants: (1) locks of one operation are taken in (stripe, offset) order; (2) every lock that was asked for is
//! cancelled, also when the operation fails: dropping [`HeldExtent`] sends the cancel. Not here: waiting for a callback
//! (`waits`), operations of this mount among each other (`ranges`), keeping locks with what they cover (the cache to come).

use crate::client::Client;
use crate::data::stripes::Laid;
use crate::locks::pending::{Registered, Waits};
use crate::targets::target::Target;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::RefCell;
use nacre_node::Ctx;
use nacre_types::Codec;
use nacre_types::{Errno, Extent, Fid, LockCookie, ObjectId};
use nacre_wire::Opcode;
use nacre_wire::ost::{Cancel, Enqueue, LockBlocking, LockGranted, LockMode, ObjectState, Read};

/// A lock that was asked for, and whose operation goes on.
struct Asked {
    ost: Rc<Target>,
    object: ObjectId,
    laid: u32,
    extent: Extent,
    /// Others wait for it, and the OST is told that it is still needed.
    wanted_back: bool,
}

/// The extent locks of the operations under way.
#[derive(Clone, Default)]
pub(crate) struct ExtentLocks {
    /// Locks that are held or asked for, until their cancel is answered; a grant brings the object as it is then.
    waits: Waits<ObjectState>,
    asked: Rc<RefCell<BTreeMap<LockCookie, Asked>>>,
}

impl ExtentLocks {
    pub(crate) fn is_idle(&self) -> bool {
        self.waits.is_idle()
    }
    pub(crate) fn ask_again(&self) {
        self.waits.ask_again();
    }
    /// Takes the callbacks of an OST, and hears when it forgets them.
    pub(crate) fn listen(&self, ctx: &Rc<Ctx>, ost: &Rc<Target>) {
        let (this, ctx, weak) = (self.clone(), ctx.clone(), Rc::downgrade(ost));
        ost.peer.on_callback(Box::new(move |frame| match Opcode::from_number(frame.header.opcode) {
            Some(Opcode::LockGranted) => {
                this.waits.take(frame, |grant: LockGranted| (grant.cookie, grant.state));
            }
            Some(Opcode::LockBlocking) => {
                if let (Ok(LockBlocking { cookie }), Some(ost)) =
                    (LockBlocking::from_slice(&frame.body), weak.upgrade())
                {
                    this.wanted_back(&ctx, ost, cookie);
                }
            }
            _ => {}
        }));
        ost.peer.on_restarted(self.waits.asks_again());
        ost.peer.on_evicted(self.waits.asks_again());
    }

    fn wanted_back(&self, ctx: &Rc<Ctx>, ost: Rc<Target>, cookie: LockCookie) {
        if let Some(lock) = self.asked.borrow_mut().get_mut(&cookie) {
            // It goes at the end of its operation, without being asked for.
            if !core::mem::replace(&mut lock.wanted_back, true) {
                ctx.spawn(self.clone().show_use(ctx.clone(), cookie));
            }
        } else if !self.waits.knows(cookie) {
            // The OST has lost the cancel with the end of its log. It finds a lock by the cookie; of which object is not
            // known here.
            let object = ObjectId { fid: Fid::default(), stripe: 0 };
            ctx.spawn(async move { drop(ost.call(&Cancel { object, cookie }).await) });
        }
    }
    /// An OST evicts whoever keeps what others wait for and does nothing with it. An operation over several objects does
    /// nothing with the locks of one OST while it waits for another one that is away: a small read says that it goes on.
    async fn show_use(self, ctx: Rc<Ctx>, cookie: LockCookie) {
        loop {
            let Some(ost) = self.asked.borrow().get(&cookie).map(|lock| lock.ost.clone()) else { return };
            ctx.sleep(ost.peer.with_import(|import| import.lease().length()) / 3).await;
            let request = match self.asked.borrow().get(&cookie) {
                Some(&Asked { object, laid, extent, .. }) => {
                    Read { object, laid, offset: extent.start, len: 1, lock: cookie }
                }
                None => return,
            };
            // Refused when the lock has gone meanwhile.
            let _ = ost.call(&request).await;
        }
    }
}

/// A granted lock. Dropping it gives it back, without waiting for the answer.
pub(crate) struct HeldExtent {
    ctx: Rc<Ctx>,
    locks: ExtentLocks,
    ost: Rc<Target>,
    object: ObjectId,
    pub(crate) cookie: LockCookie,
    registered: Rc<Registered<ObjectState>>,
    /// The object as it was when the lock was granted.
    pub(crate) state: ObjectState,
}
impl Drop for HeldExtent {
    fn drop(&mut self) {
        self.locks.asked.borrow_mut().remove(&self.cookie);
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
        let registered = Rc::new(self.locks.waits.register(&self.ctx, self.new_cookie()));
        let cookie = registered.cookie;
        let asked = Asked { ost: ost.clone(), object, laid, extent, wanted_back: false };
        self.locks.asked.borrow_mut().insert(cookie, asked);
        // From here on the request may be queued at the OST: the guard withdraws it whatever happens.
        let mut held = HeldExtent {
            ctx: self.ctx.clone(),
            locks: self.locks.clone(),
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
