//! Tasks of one island: boxed futures woken by number. No wakers, no atomics, no threads.
//!
//! Invariants: a task runs to its end, none is dropped half way while the island lives; a future registers the number
//! of the task that polls it; waking a finished task does nothing. The cancellation of a task can be requested: the
//! task may check for it where it waits and can stop waiting.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

/// Number of a task: slot and use count of the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    slot: u32,
    generation: u32,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    generation: u32,
    task: Option<Task>,
    queued: bool,
    cancelled: bool,
}

/// Shared by everything that can wake: the queue of runnable tasks.
pub(crate) struct Executor {
    slots: RefCell<Vec<Slot>>,
    free: RefCell<Vec<u32>>,
    ready: RefCell<VecDeque<TaskId>>,
    current: Cell<Option<TaskId>>,
}

impl Executor {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            slots: RefCell::default(),
            free: RefCell::default(),
            ready: RefCell::default(),
            current: Cell::new(None),
        })
    }

    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + 'static) -> TaskId {
        let mut slots = self.slots.borrow_mut();
        let slot = self.free.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot { generation: 0, task: None, queued: false, cancelled: false });
            (slots.len() - 1) as u32
        });
        let entry = &mut slots[slot as usize];
        entry.task = Some(Box::pin(future));
        entry.queued = true;
        entry.cancelled = false;
        let id = TaskId { slot, generation: entry.generation };
        self.ready.borrow_mut().push_back(id);
        id
    }

    pub(crate) fn wake(&self, id: TaskId) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(id.slot as usize)
            && slot.generation == id.generation
            && !slot.queued
        {
            slot.queued = true;
            self.ready.borrow_mut().push_back(id);
        }
    }

    /// The cancellation of this task was requested.
    pub(crate) fn cancel(&self, id: TaskId) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(id.slot as usize)
            && slot.generation == id.generation
        {
            slot.cancelled = true;
        }
        self.wake(id);
    }
    pub(crate) fn is_cancelled(&self) -> bool {
        let slots = self.slots.borrow();
        self.current.get().and_then(|id| slots.get(id.slot as usize)).is_some_and(|slot| slot.cancelled)
    }

    /// The task that is being polled.
    pub(crate) fn current(&self) -> Option<TaskId> {
        self.current.get()
    }

    /// Polls until nothing is runnable.
    pub(crate) fn run(&self) {
        assert!(self.current.get().is_none(), "an island was entered from inside a visit");
        loop {
            let Some(id) = self.ready.borrow_mut().pop_front() else { break };
            let taken = {
                let mut slots = self.slots.borrow_mut();
                let slot = &mut slots[id.slot as usize];
                if slot.generation != id.generation {
                    continue;
                }
                slot.queued = false;
                slot.task.take()
            };
            let Some(mut task) = taken else { continue };
            self.current.set(Some(id));
            let done = task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            self.current.set(None);
            if done {
                drop(task); // its guards may wake others
                let mut slots = self.slots.borrow_mut();
                let slot = &mut slots[id.slot as usize];
                slot.generation = slot.generation.wrapping_add(1);
                slot.queued = false;
                self.free.borrow_mut().push(id.slot);
            } else {
                self.slots.borrow_mut()[id.slot as usize].task = Some(task);
            }
        }
    }

    /// Drops every task wherever it waits. Tasks refer to owners of the executor: without this the memory of a dead
    /// island would never be freed.
    pub(crate) fn abandon(&self) {
        // Dropping a task may wake others or spawn, in any slot: therefore nothing is borrowed meanwhile, and the loop
        // ends with a round without tasks.
        loop {
            let tasks: Vec<Task> =
                self.slots.borrow_mut().iter_mut().filter_map(|slot| slot.task.take()).collect();
            if tasks.is_empty() {
                break;
            }
        }
        self.ready.borrow_mut().clear();
    }

    /// Tasks that have not ended.
    pub(crate) fn live(&self) -> usize {
        self.slots.borrow().len() - self.free.borrow().len()
    }
}

struct Shared<T> {
    executor: Rc<Executor>,
    value: RefCell<Option<T>>,
    waiter: Cell<Option<TaskId>>,
    dropped: Cell<bool>,
}

/// The sender of a one-shot value. If it is dropped unfulfilled, the waiter gets `None`.
pub struct Promise<T>(Rc<Shared<T>>);

/// The receiver of a one-shot value.
pub struct Awaited<T>(Rc<Shared<T>>);

pub(crate) fn promise<T>(executor: &Rc<Executor>) -> (Promise<T>, Awaited<T>) {
    let shared = Rc::new(Shared {
        executor: executor.clone(),
        value: RefCell::new(None),
        waiter: Cell::new(None),
        dropped: Cell::new(false),
    });
    (Promise(shared.clone()), Awaited(shared))
}

impl<T> Promise<T> {
    /// Delivers the value and wakes the task that awaits it. A promise that is dropped instead delivers `None`.
    pub fn fulfil(self, value: T) {
        *self.0.value.borrow_mut() = Some(value);
        // Drop wakes.
    }
}
impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.dropped.set(true);
        if let Some(task) = self.0.waiter.take() {
            self.0.executor.wake(task);
        }
    }
}
impl<T> Future for Awaited<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(value) = self.0.value.borrow_mut().take() {
            return Poll::Ready(Some(value));
        }
        if self.0.dropped.get() {
            return Poll::Ready(None);
        }
        self.0.waiter.set(self.0.executor.current());
        Poll::Pending
    }
}

/// Tasks that wait for a condition to change. The waiter checks its condition again when it wakes.
pub struct WaitList {
    executor: Rc<Executor>,
    waiters: RefCell<Waiters>,
    round: Cell<u64>,
}
/// The tasks in order of arrival, and indexed for lookup, because there may be thousands.
#[derive(Default)]
struct Waiters {
    order: Vec<TaskId>,
    known: BTreeSet<TaskId>,
}
impl WaitList {
    pub(crate) fn new(executor: &Rc<Executor>) -> Self {
        Self { executor: executor.clone(), waiters: RefCell::default(), round: Cell::new(0) }
    }
    /// Wakes every task that waits now; tasks that begin to wait later need another call.
    pub fn wake_all(&self) {
        self.round.set(self.round.get() + 1);
        for task in core::mem::take(&mut *self.waiters.borrow_mut()).order {
            self.executor.wake(task);
        }
    }
    /// Completes at the next `wake_all`.
    pub fn wait(&self) -> impl Future<Output = ()> + '_ {
        let start = self.round.get();
        core::future::poll_fn(move |_| {
            if self.round.get() != start {
                return Poll::Ready(());
            }
            if let Some(task) = self.executor.current() {
                let mut waiters = self.waiters.borrow_mut();
                if waiters.known.insert(task) {
                    waiters.order.push(task);
                }
            }
            Poll::Pending
        })
    }
}

/// Runs futures side by side in one task; results in the order of the futures.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut pending: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = pending.iter().map(|_| None).collect();
    core::future::poll_fn(move |cx| {
        let mut waiting = false;
        for (future, result) in pending.iter_mut().zip(&mut results) {
            if result.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(results.drain(..).flatten().collect()) }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abandoned_tasks_give_back_what_they_hold() {
        let ex = Executor::new();
        let held = Rc::new(());
        for _ in 0..100 {
            let (mine, (_tx, rx)) = (held.clone(), promise::<u32>(&ex));
            let keep = ex.clone();
            ex.spawn(async move {
                let _both = (mine, keep, _tx);
                rx.await;
            });
        }
        ex.run();
        assert_eq!((Rc::strong_count(&held), ex.live()), (101, 100));
        ex.abandon();
        assert_eq!((Rc::strong_count(&held), Rc::strong_count(&ex)), (1, 1));
    }

    #[test]
    fn a_task_that_spawns_when_it_is_abandoned_gives_everything_back_too() {
        struct Guard(Rc<Executor>);
        impl Drop for Guard {
            fn drop(&mut self) {
                let held = self.0.clone();
                self.0.spawn(async move { drop(held) });
            }
        }
        let ex = Executor::new();
        ex.spawn(async {}); // its slot is free for the next, before that of the task that waits
        let (guard, (_tx, rx)) = (Guard(ex.clone()), promise::<u32>(&ex));
        ex.spawn(async move {
            rx.await;
            drop(guard);
        });
        ex.run();
        ex.abandon();
        drop(_tx);
        assert_eq!(Rc::strong_count(&ex), 1);
    }

    #[test]
    fn tasks_meet_through_promises_and_slots_are_reused() {
        let ex = Executor::new();
        let (tx, rx) = promise::<u32>(&ex);
        let got = Rc::new(Cell::new(0));
        let g = got.clone();
        ex.spawn(async move { g.set(rx.await.unwrap_or(99)) });
        ex.run();
        assert_eq!(got.get(), 0);
        tx.fulfil(5);
        ex.run();
        assert_eq!((got.get(), ex.live()), (5, 0));
        let (tx, rx) = promise::<u32>(&ex);
        let g = got.clone();
        ex.spawn(async move { g.set(rx.await.unwrap_or(99)) });
        drop(tx);
        ex.run();
        assert_eq!((got.get(), ex.slots.borrow().len()), (99, 1));
    }
}
