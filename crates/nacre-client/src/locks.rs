//! Extent locks of OSTs, held for the time of one operation.
//!
//! Invariants: (1) a cookie is known here before its request leaves, so a callback that overtakes the reply finds
//! it; (2) locks of one operation are taken in (stripe, offset) order; (3) every lock that was asked for is
//! cancelled, also when the operation fails: dropping [`HeldExtent`] sends the cancel. A callback is repeated until it
//! has come, and an OST that has forgotten who waits makes itself known (another instance, an eviction): so nobody asks
//! again without a reason. Not here: operations of this mount among each other (`ranges`), keeping locks with what they
//! cover (the cache to come).

use crate::client::Client;
use crate::target::Target;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, Peer, WaitList};
use nacre_types::{Codec, Errno, Extent, LockCookie, ObjectId};
use nacre_wire::ost::{Cancel, Enqueue, LockGranted, LockMode, ObjectState};
use nacre_wire::{Frame, Opcode};

/// A lock that is asked for.
struct Waiting {
    granted: Cell<Option<ObjectState>>,
    /// Its OST may not know any more who waits.
    forgotten: Cell<bool>,
    changed: WaitList,
}

type Table = RefCell<BTreeMap<LockCookie, Rc<Waiting>>>;

/// Requests that wait for a grant. Bounded by the operations under way.
#[derive(Default)]
pub(crate) struct ExtentLocks {
    waiting: Rc<Table>,
}

impl ExtentLocks {
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
    /// Takes the callbacks of an OST, and hears when it forgets them.
    pub(crate) fn listen(&self, peer: &Peer) {
        let waiting = self.waiting.clone();
        peer.on_callback(Box::new(move |frame| granted(&waiting, frame)));
        let forgets = || {
            let waiting = self.waiting.clone();
            Box::new(move || ask_again(&waiting))
        };
        peer.on_restarted(forgets());
        peer.on_evicted(forgets());
    }
    /// Whoever waits asks again.
    pub(crate) fn ask_again(&self) {
        ask_again(&self.waiting);
    }
    fn register(&self, ctx: &Ctx, cookie: LockCookie) -> Registered {
        let (granted, forgotten, changed) = (Cell::default(), Cell::default(), ctx.wait_list());
        let waiting = Rc::new(Waiting { granted, forgotten, changed });
        self.waiting.borrow_mut().insert(cookie, waiting.clone());
        Registered { table: self.waiting.clone(), cookie, waiting }
    }
}

/// A grant of the process that is gone is none. Those who wait at other OSTs are told what they know.
fn ask_again(waiting: &Table) {
    for waiting in waiting.borrow().values() {
        waiting.granted.set(None);
        waiting.forgotten.set(true);
        waiting.changed.wake_all();
    }
}

fn granted(waiting: &Table, frame: &Frame) {
    // `LockBlocking` needs no answer: these locks go at the end of their operation anyway.
    if frame.header.opcode != Opcode::LockGranted.number() {
        return;
    }
    match LockGranted::from_slice(&frame.body) {
        Ok(grant) => {
            if let Some(waiting) = waiting.borrow().get(&grant.cookie) {
                waiting.granted.set(Some(grant.state));
                waiting.changed.wake_all();
            }
        }
        Err(error) => tracing::error!(%error, "a lock callback of an OST cannot be read, it is ignored"),
    }
}

/// A place in the table.
struct Registered {
    table: Rc<Table>,
    cookie: LockCookie,
    waiting: Rc<Waiting>,
}
impl Drop for Registered {
    fn drop(&mut self) {
        self.table.borrow_mut().remove(&self.cookie);
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
        object: ObjectId,
        mode: LockMode,
        extent: Extent,
        kept: bool,
        leaves: bool,
    ) -> Result<HeldExtent, Errno> {
        let cookie = self.new_cookie();
        let registered = self.locks.register(&self.ctx, cookie);
        let waiting = &registered.waiting;
        // From here on the request may be queued at the OST: the guard withdraws it whatever happens.
        let mut held = HeldExtent {
            ctx: self.ctx.clone(),
            ost: ost.clone(),
            object,
            cookie,
            state: ObjectState::default(),
        };
        loop {
            waiting.forgotten.set(false);
            let reply = ost.call(&Enqueue { object, cookie, mode, extent, kept }).await?;
            if reply.granted {
                held.state = reply.state;
                return Ok(held);
            }
            while !waiting.forgotten.get() {
                if let Some(state) = waiting.granted.take() {
                    held.state = state;
                    return Ok(held);
                }
                let turn = waiting.changed.wait();
                if !leaves {
                    turn.await;
                } else if self.ctx.while_wanted(turn).await.is_none() {
                    return Err(Errno::EINTR);
                }
            }
        }
    }
}
