//! The context of an island: its clocks, random numbers, tasks, timers and effects.

use crate::event::{ConnId, Effect, IoTicket};
use crate::executor::{Awaited, Executor, Promise, TaskId, WaitList, promise};
use crate::store::{StoreDone, StoreError, StoreOp};
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use core::time::Duration;
use nacre_types::{Instant, Secret, Timestamp};

/// splitmix64: for seeds and jitter, not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);
impl Rng {
    /// Any seed is good, 0 too; the same seed gives the same numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// The next number, uniform over all of `u64`.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Below `n`; 0 for `n == 0`.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next_u64() % n }
    }
}

/// Effects of most visits: there is room for them from the start.
const VISIT_EFFECTS: usize = 4;

struct Sleep<'a> {
    ctx: &'a Ctx,
    at: Instant,
    key: Option<(Instant, u64)>,
}
impl Future for Sleep<'_> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.ctx.now() >= self.at {
            return Poll::Ready(());
        }
        // A timer that has fired is removed, so it is set again if it fired early.
        let set = self.key.is_some_and(|key| self.ctx.timers.borrow().contains_key(&key));
        if !set && let Some(task) = self.ctx.executor.current() {
            let key = (self.at, self.ctx.next_serial());
            self.ctx.timers.borrow_mut().insert(key, task);
            self.key = Some(key);
        }
        Poll::Pending
    }
}
impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.ctx.timers.borrow_mut().remove(&key);
        }
    }
}

/// Shared by all parts of one island. Never leaves the island.
pub struct Ctx {
    executor: Rc<Executor>,
    now: Cell<Instant>,
    wall: Cell<Timestamp>,
    rng: RefCell<Rng>,
    /// Secrets are derived from it: they cannot be computed from other random numbers of this island.
    key: Secret,
    secrets: Cell<u64>,
    effects: RefCell<Vec<Effect>>,
    io: RefCell<BTreeMap<u64, Promise<Result<StoreDone, StoreError>>>>,
    timers: RefCell<BTreeMap<(Instant, u64), TaskId>>,
    serial: Cell<u64>,
    barred: Cell<bool>,
}

impl Ctx {
    /// For tests and tools: secrets are only as good as the seed.
    pub fn new(seed: u64) -> Rc<Self> {
        let mut rng = Rng::new(seed ^ 0x5ec2_e75e_c2e7_5ec2);
        let mut key = [0; 16];
        key.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        Self::with_key(seed, Secret::new(key))
    }
    /// With a key of the kernel's generator for [`Ctx::secret`].
    pub fn with_key(seed: u64, key: Secret) -> Rc<Self> {
        Rc::new(Self {
            executor: Executor::new(),
            now: Cell::default(),
            wall: Cell::default(),
            rng: RefCell::new(Rng::new(seed)),
            key,
            secrets: Cell::new(0),
            effects: RefCell::default(),
            io: RefCell::default(),
            timers: RefCell::default(),
            serial: Cell::new(1),
            barred: Cell::new(false),
        })
    }

    // ---- for the logic

    /// Time of this visit.
    pub fn now(&self) -> Instant {
        self.now.get()
    }
    /// Wall clock of this visit.
    pub fn wall(&self) -> Timestamp {
        self.wall.get()
    }
    /// The island's next random number: for jitter and ids, not for secrets.
    pub fn random(&self) -> u64 {
        self.rng.borrow_mut().next_u64()
    }
    /// A new secret. Not from [`Ctx::random`], whose numbers reveal the next ones.
    pub fn secret(&self) -> Secret {
        let number = self.secrets.replace(self.secrets.get() + 1);
        self.key.derive(&number.to_le_bytes())
    }
    /// Spawns a task, which starts within this visit.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) -> TaskId {
        self.executor.spawn(future)
    }
    /// Requests cooperative cancellation of a task: it continues, and may check for the cancellation where it waits.
    pub fn cancel(&self, task: TaskId) {
        self.executor.cancel(task);
    }
    /// A value to be awaited by one task: the promise delivers it, from anywhere in the island.
    pub fn promise<T>(&self) -> (Promise<T>, Awaited<T>) {
        promise(&self.executor)
    }
    /// A list of tasks that wait for a condition on state of the island.
    pub fn wait_list(&self) -> WaitList {
        WaitList::new(&self.executor)
    }
    /// Carried out after the visit, in the order of the pushes.
    pub fn push(&self, effect: Effect) {
        self.effects.borrow_mut().push(effect);
    }
    /// A new outbound connection number.
    pub fn next_conn(&self) -> ConnId {
        ConnId(self.next_serial())
    }
    fn next_serial(&self) -> u64 {
        let n = self.serial.get();
        self.serial.set(n + 1);
        n
    }

    /// Runs a store operation outside the island.
    ///
    /// # Errors
    /// Those of the store; `Stopped` if the driver drops it unexecuted.
    pub async fn io(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        if self.barred.get() && !op.only_reads() {
            return core::future::pending().await;
        }
        let ticket = self.next_serial();
        let (promise, done) = self.promise();
        self.io.borrow_mut().insert(ticket, promise);
        self.push(Effect::Io { ticket: IoTicket(ticket), op });
        done.await.unwrap_or(Err(StoreError::Stopped))
    }

    /// From now on no change reaches the store, and operations that wait for one wait until the island ends: for tests
    /// of the loss of a machine. The island itself discards its log writes, for which no task waits.
    pub fn raise_barrier(&self) {
        self.barred.set(true);
    }
    /// Whether [`Ctx::raise_barrier`] was called.
    pub fn is_barred(&self) -> bool {
        self.barred.get()
    }

    /// Completes at `at`. If it is dropped earlier, it leaves no timer behind.
    pub fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> + '_ {
        Sleep { ctx: self, at, key: None }
    }
    /// Completes after `d`, at the first visit that is not earlier.
    pub async fn sleep(&self, d: Duration) {
        self.sleep_until(self.now() + d).await;
    }
    /// The future's value, or `None` at the time `at`. The future is dropped then: use it only with futures that may be
    /// dropped (promises, wait lists).
    pub async fn timeout<T>(&self, at: Instant, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut timer = pin!(self.sleep_until(at));
        core::future::poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
    /// The future's value, or `None` once the cancellation of the running task was requested. The future is dropped
    /// then, as by [`Ctx::timeout`].
    pub async fn while_wanted<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        core::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if self.executor.is_cancelled() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
    /// Lets every other runnable task run once; called between slices of long work.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        core::future::poll_fn(|_| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            if let Some(task) = self.executor.current() {
                self.executor.wake(task);
            }
            Poll::Pending
        })
        .await;
    }

    /// Suspends the running task until the next visit, so that requests that have arrived meanwhile are accepted first.
    /// Called between slices of work without a bound; [`Ctx::yield_now`] stays within the visit.
    pub async fn next_visit(&self) {
        // No timer fires before the clock advances, and the clock does not advance within a visit.
        self.sleep_until(Instant(self.now().0 + 1)).await;
    }

    // ---- for the driver

    /// Called at the begin of a visit. Monotonic time never moves back: an earlier `now` is ignored.
    pub fn set_time(&self, now: Instant, wall: Timestamp) {
        self.now.set(self.now.get().max(now));
        self.wall.set(wall);
    }
    /// Delivers the result of [`Effect::Io`]; the ticket of an operation that nobody awaits is ignored.
    pub fn complete_io(&self, ticket: IoTicket, result: Result<StoreDone, StoreError>) {
        let promise = self.io.borrow_mut().remove(&ticket.0);
        if let Some(promise) = promise {
            promise.fulfil(result);
        }
    }
    /// Fires due timers and polls tasks until none is runnable.
    pub fn run(&self) {
        loop {
            self.executor.run();
            let due = {
                let mut timers = self.timers.borrow_mut();
                match timers.first_key_value() {
                    Some((&key, _)) if key.0 <= self.now() => timers.remove(&key),
                    _ => None,
                }
            };
            match due {
                Some(task) => self.executor.wake(task),
                None => break,
            }
        }
    }
    /// Empties the list of effects: the driver carries them out after the visit.
    pub fn take_effects(&self) -> Vec<Effect> {
        let effects = &mut *self.effects.borrow_mut();
        if effects.is_empty() {
            return Vec::new();
        }
        core::mem::replace(effects, Vec::with_capacity(VISIT_EFFECTS))
    }
    /// Whether an effect waits that ends a connection or the island. It must be carried out before the next event, which
    /// may come from what it ends.
    pub fn ends_something(&self) -> bool {
        let ends = |effect: &Effect| {
            matches!(effect, Effect::Close { .. } | Effect::Stopped | Effect::Fatal(_) | Effect::Refused(_))
        };
        self.effects.borrow().iter().any(ends)
    }
    /// The same as [`Self::take_effects`], in exchange for an empty list, so that its memory is used again.
    pub fn swap_effects(&self, empty: &mut Vec<Effect>) {
        core::mem::swap(&mut *self.effects.borrow_mut(), empty);
    }
    /// The time of the next [`crate::Event::Timer`] for the island.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.borrow().first_key_value().map(|(key, _)| key.0)
    }
    /// Drops the tasks of an island that has ended, wherever they wait. Only for drivers, and only after the logic has
    /// been dropped: a task of a living island always runs to its end.
    pub fn abandon(&self) {
        self.executor.abandon();
        let io = core::mem::take(&mut *self.io.borrow_mut());
        drop(io);
        self.timers.borrow_mut().clear();
        self.effects.borrow_mut().clear();
    }
    /// Tasks that have not ended (a leak check for tests).
    pub fn live_tasks(&self) -> usize {
        self.executor.live()
    }
}
