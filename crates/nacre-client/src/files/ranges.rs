//! Order among the operations of this mount on one file: a fair range lock.
//!
//! Invariants: (1) two overlapping holders are both shared; (2) no operation overtakes an earlier conflicting waiter, so
//! none starves; (3) a ticket is released with its guard, also when the operation fails. The servers see one holder per client;
//! the order of the operations of this client is decided here. Not here: other mounts (`locks`).

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use nacre_node::{Ctx, WaitList};
use nacre_types::Extent;

/// Whether holders of overlapping ranges may be there together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    Shared,
    Exclusive,
}

struct Ticket {
    extent: Extent,
    share: Share,
    /// Created by the first operation that waits for its end.
    ended: Option<Rc<WaitList>>,
}

/// The queue of one file: tickets in the order of arrival, those that run and those that wait.
#[derive(Default)]
pub(crate) struct RangeLock {
    queue: Rc<RefCell<BTreeMap<u64, Ticket>>>,
    next: Cell<u64>,
}

impl RangeLock {
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.borrow().is_empty()
    }
    /// Waits until no earlier ticket conflicts.
    pub(crate) async fn acquire(&self, ctx: &Ctx, extent: Extent, share: Share) -> RangeGuard {
        let ticket = self.next.get();
        self.next.set(ticket + 1);
        self.queue.borrow_mut().insert(ticket, Ticket { extent, share, ended: None });
        let guard = RangeGuard { queue: self.queue.clone(), ticket };
        while let Some(ended) = self.blocker(ctx, ticket, extent, share) {
            ended.wait().await;
        }
        guard
    }

    /// The end of the last earlier ticket that conflicts. Each waiter waits only for the one before it, so that an end
    /// wakes few tasks.
    fn blocker(&self, ctx: &Ctx, ticket: u64, extent: Extent, share: Share) -> Option<Rc<WaitList>> {
        let mut queue = self.queue.borrow_mut();
        let mut earlier = queue.range_mut(..ticket).rev().map(|(_, other)| other);
        let blocker = earlier.find(|other| {
            other.extent.overlaps(extent) && (share == Share::Exclusive || other.share == Share::Exclusive)
        })?;
        Some(blocker.ended.get_or_insert_with(|| Rc::new(ctx.wait_list())).clone())
    }
}

/// A place in the queue; dropping it lets the next ones go.
pub(crate) struct RangeGuard {
    queue: Rc<RefCell<BTreeMap<u64, Ticket>>>,
    ticket: u64,
}
impl Drop for RangeGuard {
    fn drop(&mut self) {
        let ticket = self.queue.borrow_mut().remove(&self.ticket);
        if let Some(ended) = ticket.and_then(|ticket| ticket.ended) {
            ended.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use nacre_types::{Instant, Timestamp};

    /// Starts operations in order, each holding its range until `release`; returns who ran in each round.
    fn rounds(operations: &[(u64, u64, Share)]) -> Vec<Vec<usize>> {
        let ctx = Ctx::new(1);
        ctx.set_time(Instant(0), Timestamp::default());
        let lock = Rc::new(RangeLock::default());
        let running: Rc<RefCell<Vec<usize>>> = Rc::default();
        let release = Rc::new(ctx.wait_list());
        for (i, &(start, end, share)) in operations.iter().enumerate() {
            let (ctx, lock, running, release) = (ctx.clone(), lock.clone(), running.clone(), release.clone());
            ctx.clone().spawn(async move {
                let _held = lock.acquire(&ctx, Extent::new(start, end), share).await;
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

    /// Polls of `n` operations that come at once, every tenth of which writes, and end one after the other.
    fn polls(n: u64) -> u64 {
        let ctx = Ctx::new(1);
        ctx.set_time(Instant(0), Timestamp::default());
        let lock = Rc::new(RangeLock::default());
        let polls = Rc::new(Cell::new(0));
        let running = Rc::new(RefCell::new(Vec::new()));
        for i in 0..n {
            let (ctx, lock, polls, running) = (ctx.clone(), lock.clone(), polls.clone(), running.clone());
            ctx.clone().spawn(async move {
                let share = if i % 10 == 0 { Share::Exclusive } else { Share::Shared };
                let mut acquired = Box::pin(lock.acquire(&ctx, Extent::ALL, share));
                let counted = core::future::poll_fn(|cx| {
                    polls.set(polls.get() + 1);
                    acquired.as_mut().poll(cx)
                });
                let _held = counted.await;
                let (end, ended) = ctx.promise::<()>();
                running.borrow_mut().push(end);
                ended.await;
            });
        }
        loop {
            ctx.run();
            let Some(end) = running.borrow_mut().pop() else { break };
            end.fulfil(());
        }
        assert_eq!(ctx.live_tasks(), 0);
        polls.get()
    }

    #[test]
    fn who_waits_is_not_woken_by_everybody() {
        assert!(polls(1000) < 5000, "{}", polls(1000));
    }
}
