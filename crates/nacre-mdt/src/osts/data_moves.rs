//! The files whose bytes are on their way to objects: each of them once. Not here: the way (`move_data.rs`).

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Failure, Fid, Instant};

/// Files whose bytes may be on their way at a time: each keeps them in memory.
const MOVES_MAX: usize = 256;

/// Changes of the bytes wait so long for a round that is not the first.
const HELD_FOR: Duration = Duration::from_secs(1);

/// The files whose bytes are on their way. A move does not end with the request that has begun it.
pub(crate) struct DataMoves {
    ctx: Rc<Ctx>,
    under_way: RefCell<BTreeMap<Fid, Rc<DataMove>>>,
}
impl DataMoves {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        Self { ctx: ctx.clone(), under_way: RefCell::default() }
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.borrow().is_empty()
    }
    pub(crate) fn of(&self, fid: Fid) -> Option<Rc<DataMove>> {
        self.under_way.borrow().get(&fid).cloned()
    }
    /// A new move, of a file that has none: the caller carries it out, and ends it. `None`: there are too many.
    pub(crate) fn begin(&self, fid: Fid) -> Option<Rc<DataMove>> {
        let mut under_way = self.under_way.borrow_mut();
        if under_way.len() >= MOVES_MAX {
            return None;
        }
        let began = self.ctx.now();
        let (ended, held_until) = (self.ctx.wait_list(), Cell::new(None));
        let new = Rc::new(DataMove { fid, began, held_until, ended, result: Cell::new(None) });
        under_way.insert(fid, new.clone());
        Some(new)
    }
    /// Waits until the end of a file's bytes here is committed, if a request has seen it.
    pub(crate) async fn committed(&self, fid: Fid) {
        if let Some(under_way) = self.of(fid) {
            // A request that has to wait for its bytes hears of a failure.
            under_way.ended().await.ok();
        }
    }
    /// Waits before a change of a file's bytes, if the move has to begin again because of such changes: it would never end
    /// beside a client that changes them all the time. Not for long, because an OST may be silent.
    pub(crate) async fn give_way(&self, fid: Fid) {
        if let Some(under_way) = self.of(fid)
            && let Some(at) = under_way.held_until.get()
        {
            self.ctx.timeout(at, under_way.ended()).await;
        }
    }
    /// A round begins that is not the first.
    pub(crate) fn begins_again(&self, this: &DataMove) {
        this.held_until.set(Some(self.ctx.now() + HELD_FOR));
    }
    pub(crate) fn end(&self, this: &DataMove, result: Result<(), Failure>) {
        self.under_way.borrow_mut().remove(&this.fid);
        this.result.set(Some(result));
        this.ended.wake_all();
    }
}

/// The move of a file's bytes.
pub(crate) struct DataMove {
    fid: Fid,
    began: Instant,
    held_until: Cell<Option<Instant>>,
    ended: WaitList,
    result: Cell<Option<Result<(), Failure>>>,
}
impl DataMove {
    pub(crate) fn began(&self) -> Instant {
        self.began
    }
    /// Waits for its end.
    pub(crate) async fn ended(&self) -> Result<(), Failure> {
        loop {
            match self.result.get() {
                Some(result) => return result,
                None => self.ended.wait().await,
            }
        }
    }
}
