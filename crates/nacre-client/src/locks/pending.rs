//! Lock requests that wait for a callback of a target.
//!
//! Invariants: (1) a cookie is known here before its request leaves, so a callback that overtakes the reply finds it;
//! (2) a request is never repeated on a timer: a callback is resent until it is acknowledged, so a request is repeated
//! only if its target may have lost it (another instance of the target, an eviction).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, WaitList};
use nacre_types::{Codec, LockCookie};
use nacre_wire::mdt::{FlockGranted, FlockOutcome};
use nacre_wire::{Frame, Opcode};

/// One request.
struct Pending<T> {
    granted: Cell<Option<T>>,
    /// The target may have lost the request.
    forgotten: Cell<bool>,
    changed: WaitList,
}

/// Requests that wait, or whose locks are in use. Bounded by the operations under way.
pub(crate) struct PendingLocks<T>(Rc<RefCell<BTreeMap<LockCookie, Rc<Pending<T>>>>>);

impl<T> Default for PendingLocks<T> {
    fn default() -> Self {
        Self(Rc::default())
    }
}
impl<T> Clone for PendingLocks<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: 'static> PendingLocks<T> {
    pub(crate) fn is_idle(&self) -> bool {
        self.0.borrow().is_empty()
    }
    pub(crate) fn contains(&self, cookie: LockCookie) -> bool {
        self.0.borrow().contains_key(&cookie)
    }
    pub(crate) fn register(&self, ctx: &Ctx, cookie: LockCookie) -> PendingLock<T> {
        let (granted, forgotten, changed) = (Cell::default(), Cell::default(), ctx.wait_list());
        let pending = Rc::new(Pending { granted, forgotten, changed });
        self.0.borrow_mut().insert(cookie, pending.clone());
        PendingLock { table: self.clone(), cookie, pending }
    }
    /// Handles a callback; `read` returns its cookie and its result.
    pub(crate) fn handle_callback<'a, C: Codec<'a>>(
        &self,
        frame: &'a Frame,
        read: impl FnOnce(C) -> (LockCookie, T),
    ) {
        match C::from_slice(&frame.body) {
            Ok(callback) => {
                let (cookie, result) = read(callback);
                if let Some(pending) = self.0.borrow().get(&cookie) {
                    pending.granted.set(Some(result));
                    pending.changed.wake_all();
                }
            }
            Err(error) => {
                let opcode = frame.header.opcode;
                tracing::error!(opcode, %error, "a lock callback cannot be read, it is ignored");
            }
        }
    }
    /// Makes every request be sent again, and discards grants that the previous server instance sent. Requests to other targets
    /// get the same reply again.
    pub(crate) fn retry_all(&self) {
        for pending in self.0.borrow().values() {
            pending.granted.set(None);
            pending.forgotten.set(true);
            pending.changed.wake_all();
        }
    }
    /// A handler that calls [`PendingLocks::retry_all`].
    pub(crate) fn retry_handler(&self) -> Box<dyn Fn()> {
        let table = self.clone();
        Box::new(move || table.retry_all())
    }
}

/// File locks that wait at the MDT.
pub(crate) type PendingFlocks = PendingLocks<FlockOutcome>;

impl PendingFlocks {
    /// A callback of the MDT.
    pub(crate) fn handle(&self, frame: &Frame) {
        if frame.header.opcode == Opcode::FlockGranted.number() {
            self.handle_callback(frame, |grant: FlockGranted| (grant.cookie, grant.outcome));
        }
    }
}

/// The registration of one request.
pub(crate) struct PendingLock<T> {
    table: PendingLocks<T>,
    cookie: LockCookie,
    pending: Rc<Pending<T>>,
}
impl<T> Drop for PendingLock<T> {
    fn drop(&mut self) {
        self.table.0.borrow_mut().remove(&self.cookie);
    }
}
impl<T> PendingLock<T> {
    pub(crate) fn cookie(&self) -> LockCookie {
        self.cookie
    }
    /// The request is about to be sent.
    pub(crate) fn requested(&self) {
        self.pending.forgotten.set(false);
    }
    /// Whether the target may have lost the request since.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.pending.forgotten.get()
    }
    /// The result that the callback brings; `None` when the request must be sent again.
    pub(crate) async fn granted(&self) -> Option<T> {
        while !self.is_forgotten() {
            if let Some(result) = self.pending.granted.take() {
                return Some(result);
            }
            self.pending.changed.wait().await;
        }
        None
    }
}
