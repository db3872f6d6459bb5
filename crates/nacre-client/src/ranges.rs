//! Order among the operations of this mount on one file: a fair range lock.
//!
//! Invariants: (1) two overlapping holders are both shared; (2) nobody passes an earlier conflicting waiter, so
//! nobody starves; (3) a ticket goes with its guard, also when the operation fails. The servers see one
//! holder per client; who of this client's operations comes first is decided here. Not here: other mounts (`locks`).

use alloc::collections::BTreeMap;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, WaitList};
use nacre_types::Extent;

/// Whether holders of overlapping ranges may be there together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    Shared,
    Exclusive,
}

/// The queue of one file: tickets in the order of arrival, those that run and those that wait.
pub(crate) struct RangeLock {
    queue: RefCell<BTreeMap<u64, (Extent, Share)>>,
    next: Cell<u64>,
    changed: WaitList,
}

impl RangeLock {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self { queue: RefCell::default(), next: Cell::new(0), changed: ctx.wait_list() }
    }

    /// Waits until no earlier ticket conflicts.
    pub(crate) async fn acquire(&self, extent: Extent, share: Share) -> RangeGuard<'_> {
        let ticket = self.next.get();
        self.next.set(ticket + 1);
        self.queue.borrow_mut().insert(ticket, (extent, share));
        let guard = RangeGuard { lock: self, ticket };
        while self.is_blocked(ticket, extent, share) {
            self.changed.wait().await;
        }
        guard
    }

    fn is_blocked(&self, ticket: u64, extent: Extent, share: Share) -> bool {
        self.queue.borrow().range(..ticket).any(|(_, &(other, other_share))| {
            other.overlaps(extent) && (share == Share::Exclusive || other_share == Share::Exclusive)
        })
    }
}

/// A place in the queue; dropping it lets the next ones go.
pub(crate) struct RangeGuard<'a> {
    lock: &'a RangeLock,
    ticket: u64,
}
impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        self.lock.queue.borrow_mut().remove(&self.ticket);
        self.lock.changed.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::rc::Rc;
    use alloc::vec::Vec;
    use nacre_types::{Instant, Timestamp};

    /// Starts operations in order, each holding its range until `release`; returns who ran in each round.
    fn rounds(operations: &[(u64, u64, Share)]) -> Vec<Vec<usize>> {
        let ctx = Ctx::new(1);
        ctx.set_time(Instant(0), Timestamp::default());
        let lock = Rc::new(RangeLock::new(&ctx));
        let running: Rc<RefCell<Vec<usize>>> = Rc::default();
        let release = Rc::new(ctx.wait_list());
        for (i, &(start, end, share)) in operations.iter().enumerate() {
            let (lock, running, release) = (lock.clone(), running.clone(), release.clone());
            ctx.spawn(async move {
                let _held = lock.acquire(Extent::new(start, end), share).await;
                running.borrow_mut().push(i);
                release.wait().await;
            });
        }
        let mut out = Vec::new();
        loop {
            ctx.run();
            let round = core::mem::take(&mut *running.borrow_mut());
            if round.is_empty() {
                assert_eq!(ctx.live_tasks(), 0);
                return out;
            }
            out.push(round);
            release.wake_all();
        }
    }

    #[test]
    fn writers_of_one_range_run_in_order_and_readers_together() {
        use Share::{Exclusive, Shared};
        let out = rounds(&[(0, 10, Exclusive), (5, 15, Exclusive), (20, 30, Exclusive), (0, 5, Shared)]);
        assert_eq!(out, [alloc::vec![0, 2], alloc::vec![1, 3]]);
        let out = rounds(&[(0, 9, Shared), (0, 9, Shared), (0, 9, Exclusive)]);
        assert_eq!(out, [alloc::vec![0, 1], alloc::vec![2]]);
    }

    #[test]
    fn a_reader_does_not_pass_a_writer_that_waits() {
        use Share::{Exclusive, Shared};
        let out = rounds(&[(0, 9, Shared), (0, 9, Exclusive), (0, 9, Shared)]);
        assert_eq!(out, [alloc::vec![0], alloc::vec![1], alloc::vec![2]]);
    }
}
