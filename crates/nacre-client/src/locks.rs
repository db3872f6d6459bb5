//! Extent locks of OSTs, held for the time of one operation.
//!
//! Invariants: (1) a cookie is known here before its request leaves, so a callback that overtakes the reply finds
//! it; (2) locks of one operation are taken in (stripe, offset) order; (3) every lock that was asked for is
//! cancelled, also when the operation fails: dropping [`HeldExtent`] sends the cancel. Not here: operations of
//! this mount among each other (`ranges`), keeping locks with what they cover (the cache to come).

use crate::client::Client;
use crate::target::Target;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::RefCell;
use core::time::Duration;
use nacre_node::{Ctx, Peer, Promise};
use nacre_types::{Codec, Errno, Extent, LockCookie, ObjectId};
use nacre_wire::ost::{Cancel, Enqueue, LockGranted, LockMode, ObjectState};
use nacre_wire::{Frame, Opcode};

/// A waiting request is repeated this often: a server that was restarted has forgotten who waits.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// With each grant: which start of the OST it came from.
type Waiting = RefCell<BTreeMap<LockCookie, Promise<(ObjectState, Option<u64>)>>>;

/// Requests that wait for a grant. Bounded by the operations under way.
#[derive(Default)]
pub(crate) struct ExtentLocks {
    waiting: Rc<Waiting>,
}

impl ExtentLocks {
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
    /// Takes the callbacks of an OST.
    pub(crate) fn listen(&self, peer: &Rc<Peer>) {
        let (waiting, from) = (self.waiting.clone(), Rc::downgrade(peer));
        peer.on_callback(Box::new(move |frame| {
            let instance = from.upgrade().and_then(|peer| peer.with_import(|import| import.instance()));
            granted(&waiting, instance, frame);
        }));
    }
}

fn granted(waiting: &Waiting, instance: Option<u64>, frame: &Frame) {
    // `LockBlocking` needs no answer: these locks go at the end of their operation anyway.
    if frame.header.opcode != Opcode::LockGranted.number() {
        return;
    }
    match LockGranted::from_slice(&frame.body) {
        Ok(grant) => {
            let promise = waiting.borrow_mut().remove(&grant.cookie);
            if let Some(promise) = promise {
                promise.fulfil((grant.state, instance));
            }
        }
        Err(error) => tracing::error!(%error, "a lock callback of an OST cannot be read, it is ignored"),
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
    pub(crate) async fn lock_extent(
        &self,
        ost: &Rc<Target>,
        object: ObjectId,
        mode: LockMode,
        extent: Extent,
        kept: bool,
    ) -> Result<HeldExtent, Errno> {
        let cookie = self.new_cookie();
        let (promise, mut grant) = self.ctx.promise();
        self.locks.waiting.borrow_mut().insert(cookie, promise);
        // From here on the request may be queued at the OST: the guard withdraws it whatever happens.
        let mut held = HeldExtent {
            ctx: self.ctx.clone(),
            ost: ost.clone(),
            object,
            cookie,
            state: ObjectState::default(),
        };
        loop {
            let answer = ost.call(&Enqueue { object, cookie, mode, extent, kept }).await;
            match answer {
                Ok(reply) if reply.granted => {
                    self.locks.waiting.borrow_mut().remove(&cookie);
                    held.state = reply.state;
                    return Ok(held);
                }
                Ok(_) => {}
                Err(e) => {
                    self.locks.waiting.borrow_mut().remove(&cookie);
                    return Err(e);
                }
            }
            if let Some(Some((state, by))) = self.ctx.timeout(self.ctx.now() + ASK_AGAIN, &mut grant).await {
                if by == ost.peer.with_import(|import| import.instance()) {
                    held.state = state;
                    return Ok(held);
                }
                // Granted by a process that is gone, while the answer was on its way: its successor let us wait.
                let (promise, again) = self.ctx.promise();
                self.locks.waiting.borrow_mut().insert(cookie, promise);
                grant = again;
            }
        }
    }
}
