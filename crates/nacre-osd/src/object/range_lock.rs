//! Byte-range locks of objects inside one island. They order changes of the same bytes, from the first byte written
//! until the record is in the log.
//!
//! Invariants: overlapping requests are granted in the order of their arrival, so none starves; a guard releases its
//! ranges when it is dropped. Several ranges of an object are requested at once, so that nothing can wait between them. Not here: the extent locks of clients (`nacre-dlm`), which outlive an operation.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Extent, ObjectId};

struct QueuedRange {
    serial: u64,
    range: Extent,
    exclusive: bool,
}

struct Queue {
    /// In the order of arrival; granted and waiting alike.
    entries: Vec<QueuedRange>,
    released: Rc<WaitList>,
}

impl Queue {
    /// Nothing that came before stands against the entries of a request, which follow one another.
    fn is_granted(&self, serial: u64) -> bool {
        let Some(at) = self.entries.iter().position(|e| e.serial == serial) else { return false };
        let (before, rest) = self.entries.split_at(at);
        let meets = |e: &QueuedRange, mine: &QueuedRange| {
            // `overlaps` takes an empty range inside another for an overlap.
            (e.exclusive || mine.exclusive)
                && !e.range.is_empty()
                && !mine.range.is_empty()
                && e.range.overlaps(mine.range)
        };
        let own = rest.iter().take_while(|e| e.serial == serial);
        own.into_iter().all(|mine| !before.iter().any(|e| meets(e, mine)))
    }
}

/// All range locks of one target.
pub(crate) struct RangeLocks {
    ctx: Rc<Ctx>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    serial: u64,
    objects: BTreeMap<ObjectId, Queue>,
}

impl RangeLocks {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Rc<Self> {
        Rc::new(Self { ctx: ctx.clone(), state: RefCell::default() })
    }

    /// Waits for the range. An empty range is granted at once and stands against nothing.
    pub(crate) async fn lock(
        self: &Rc<Self>,
        object: ObjectId,
        range: Extent,
        exclusive: bool,
    ) -> RangeGuard {
        self.lock_all(object, &[range], exclusive).await
    }
    /// Waits for several ranges of an object together.
    pub(crate) async fn lock_all(
        self: &Rc<Self>,
        object: ObjectId,
        ranges: &[Extent],
        exclusive: bool,
    ) -> RangeGuard {
        let (guard, released) = {
            let mut state = self.state.borrow_mut();
            state.serial += 1;
            let serial = state.serial;
            let queue = state
                .objects
                .entry(object)
                .or_insert_with(|| Queue { entries: Vec::new(), released: Rc::new(self.ctx.wait_list()) });
            queue.entries.extend(ranges.iter().map(|&range| QueuedRange { serial, range, exclusive }));
            (RangeGuard { locks: self.clone(), object, serial }, queue.released.clone())
        };
        while !guard.is_granted() {
            released.wait().await;
        }
        guard
    }

    /// Locks held or waited for: 0 when the target is idle.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.state.borrow().objects.values().map(|q| q.entries.len()).sum()
    }
}

/// Granted (or, inside `lock_all`, awaited) ranges.
pub(crate) struct RangeGuard {
    locks: Rc<RangeLocks>,
    object: ObjectId,
    serial: u64,
}

impl RangeGuard {
    fn is_granted(&self) -> bool {
        self.locks.state.borrow().objects.get(&self.object).is_some_and(|q| q.is_granted(self.serial))
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut state = self.locks.state.borrow_mut();
        let Some(queue) = state.objects.get_mut(&self.object) else { return };
        queue.entries.retain(|e| e.serial != self.serial);
        queue.released.wake_all();
        if queue.entries.is_empty() {
            state.objects.remove(&self.object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use nacre_types::{Fid, Oid, Seq};

    const OBJECT: ObjectId = ObjectId { fid: Fid::new(Seq(0x100), Oid(1)), stripe: 0 };

    /// Starts the requests in order, each ends when told; returns the order in which they were granted.
    fn grants(requests: &[(u64, u64, bool)], end: &[usize]) -> Vec<Vec<usize>> {
        let ctx = Ctx::new(1);
        let locks = RangeLocks::new(&ctx);
        let granted = Rc::new(RefCell::new(Vec::new()));
        let mut enders = Vec::new();
        for (i, &(from, to, exclusive)) in requests.iter().enumerate() {
            let (end, ended) = ctx.promise::<()>();
            enders.push(Some(end));
            let (locks, granted) = (locks.clone(), granted.clone());
            ctx.spawn(async move {
                let guard = locks.lock(OBJECT, Extent::new(from, to), exclusive).await;
                granted.borrow_mut().push(i);
                ended.await;
                drop(guard);
            });
        }
        ctx.run();
        let mut out = vec![granted.take()];
        for &i in end {
            enders[i].take().unwrap().fulfil(());
            ctx.run();
            out.push(granted.take());
        }
        drop(enders);
        ctx.run();
        assert_eq!((locks.held(), ctx.live_tasks()), (0, 0));
        out
    }

    #[test]
    fn readers_share_and_writers_wait_in_order() {
        let got = grants(&[(0, 10, false), (5, 15, false), (8, 9, true), (0, 20, false)], &[0, 1, 2]);
        assert_eq!(got, [vec![0, 1], vec![], vec![2], vec![3]]);
    }

    #[test]
    fn disjoint_writers_do_not_wait_and_an_empty_range_never() {
        let got = grants(&[(0, 4096, true), (4096, 8192, true), (7, 7, true), (0, u64::MAX, true)], &[0, 1]);
        assert_eq!(got, [vec![0, 1, 2], vec![], vec![3]]);
    }
}
