//! Calls that wait for a callback of a target.
//!
//! Invariants: (1) a cookie is known here before its request leaves, so a callback that overtakes the reply finds it;
//! (2) nobody asks again without a reason: a callback is repeated until it has come, and a target that has forgotten who
//! waits makes itself known (another instance, an eviction).

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, WaitList};
use nacre_types::{Codec, LockCookie};
use nacre_wire::Frame;

/// One call.
struct Call<T> {
    came: Cell<Option<T>>,
    /// Its target may not know any more who waits.
    forgotten: Cell<bool>,
    changed: WaitList,
}

/// The calls that wait, or hold what they waited for. Bounded by the operations under way.
pub(crate) struct Waits<T>(Rc<RefCell<BTreeMap<LockCookie, Rc<Call<T>>>>>);

impl<T> Default for Waits<T> {
    fn default() -> Self {
        Self(Rc::default())
    }
}
impl<T> Clone for Waits<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: 'static> Waits<T> {
    pub(crate) fn is_idle(&self) -> bool {
        self.0.borrow().is_empty()
    }
    pub(crate) fn knows(&self, cookie: LockCookie) -> bool {
        self.0.borrow().contains_key(&cookie)
    }
    pub(crate) fn register(&self, ctx: &Ctx, cookie: LockCookie) -> Registered<T> {
        let (came, forgotten, changed) = (Cell::default(), Cell::default(), ctx.wait_list());
        let call = Rc::new(Call { came, forgotten, changed });
        self.0.borrow_mut().insert(cookie, call.clone());
        Registered { waits: self.clone(), cookie, call }
    }
    /// A callback: for whom, and what it brings.
    pub(crate) fn take<'a, C: Codec<'a>>(&self, frame: &'a Frame, read: impl FnOnce(C) -> (LockCookie, T)) {
        match C::from_slice(&frame.body) {
            Ok(callback) => {
                let (cookie, what) = read(callback);
                if let Some(call) = self.0.borrow().get(&cookie) {
                    call.came.set(Some(what));
                    call.changed.wake_all();
                }
            }
            Err(error) => {
                let opcode = frame.header.opcode;
                tracing::error!(opcode, %error, "a lock callback cannot be read, it is ignored");
            }
        }
    }
    /// Whoever waits asks again. What came from the process that is gone is nothing; those who wait for another target are
    /// told what they know.
    pub(crate) fn ask_again(&self) {
        for call in self.0.borrow().values() {
            call.came.set(None);
            call.forgotten.set(true);
            call.changed.wake_all();
        }
    }
    /// What does that.
    pub(crate) fn asks_again(&self) -> Box<dyn Fn()> {
        let waits = self.clone();
        Box::new(move || waits.ask_again())
    }
}

/// A place among the calls that wait.
pub(crate) struct Registered<T> {
    waits: Waits<T>,
    pub(crate) cookie: LockCookie,
    call: Rc<Call<T>>,
}
impl<T> Drop for Registered<T> {
    fn drop(&mut self) {
        self.waits.0.borrow_mut().remove(&self.cookie);
    }
}
impl<T> Registered<T> {
    /// Its request is about to be sent.
    pub(crate) fn asks(&self) {
        self.call.forgotten.set(false);
    }
    /// Whether the target may have forgotten it since.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.call.forgotten.get()
    }
    /// What the callback brings; `None` when it is time to ask again.
    pub(crate) async fn heard(&self) -> Option<T> {
        while !self.is_forgotten() {
            if let Some(what) = self.call.came.take() {
                return Some(what);
            }
            self.call.changed.wait().await;
        }
        None
    }
}
