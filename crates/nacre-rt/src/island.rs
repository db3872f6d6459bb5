//! An island: single-threaded logic that any thread may enter, one at a time.
//!
//! This is the only way in. A visit is: enter, set the clocks, take in one event, run every task that can run,
//! write the log bytes, sort the effects (frames into outboxes, the rest onto this thread's queue), leave.
//!
//! Invariants: (1) one thread inside; (2) no part of the logic leaves: only effects come out, which are `Send`; (3) no
//! effect of a visit is carried out before its log writes are; (4) a dead island accepts no event, and its end is
//! reported once, after its last store operation has ended, so that the code that reopens the store has exclusive
//! access. A panic is caught here: the logic is dropped, and the process and the other islands continue.

use crate::clock;
use crate::conn::{Conn, Out};
use crate::driver::{self, Work};
use crate::entry::{EntryLock, Waited};
use crate::stats::IslandStats;
use crate::sync_thread::SyncThread;
use nacre_node::{
    ConnId, Ctx, Effect, Event, IoTicket, Logic, Origin, Permit, Revoked, Store, StoreDone, StoreError,
    StoreOp,
};
use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The reason of an island's end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndReason {
    /// The planned stop is complete.
    #[error("stopped")]
    Stopped,
    /// The island cannot continue (a failed log).
    #[error("{0}")]
    Fatal(String),
    /// The island must not be used (`nacre_node::Effect::Refused`).
    #[error("{0}")]
    Refused(String),
    /// [`crate::Node::kill_island`] or [`crate::Node::shutdown`].
    #[error("ended from outside")]
    Killed,
    /// A bug; the text is that of the panic.
    #[error("panicked: {0}")]
    Panicked(String),
}

/// Receives the replies and notifications of an island for its front end.
pub trait DoorSink: Send + Sync {
    /// Called outside the island by the thread that left it, in the order of the effects of a visit. Must not block;
    /// may deliver events, also to `island` (they are queued).
    fn door(&self, island: &IslandRef, item: Box<dyn Any + Send>);
}

/// The node as its islands know it.
pub(crate) trait Host: Send + Sync {
    /// Bytes that may wait for a peer.
    fn send_queue_bytes_max(&self) -> usize;
    /// The deadline of an island is earlier than before.
    fn wake_timers_before(&self, at: u64);
    /// Owns a thread until the node ends.
    fn keep_thread(&self, thread: JoinHandle<()>);
    /// Carries out [`Effect::Open`]; `conn` is known to the island and its outbox is held.
    fn open(self: Arc<Self>, island: &IslandRef, conn: Arc<Conn>, address: &str, target: &str);
    /// Carries out [`Effect::Io`].
    fn start_io(self: Arc<Self>, island: IslandRef, ticket: IoTicket, op: StoreOp);
    /// No operation of the island runs any more.
    fn ended(self: Arc<Self>, island: &IslandRef, reason: &EndReason);
}

/// A closed value: reached only by [`Confined::enter`], one thread at a time.
struct Confined<L> {
    lock: EntryLock,
    value: UnsafeCell<L>,
}

// SAFETY: `L` holds `Rc`s and is not `Send`. Moving it between threads is sound as long as no two threads reach
// one of its `Rc`s at the same time: (1) the value is built by a `Send` closure, so no `Rc` comes in from outside;
// (2) it is reached only in `enter`, under the lock, whose release and acquire order the accesses; (3) nothing
// non-`Send` goes out: results of `enter` are `Send`, and a `Logic` cannot put an `Rc` into a thread-local or a
// global, because logic lives in `no_std` crates with an allow-list of dependencies (ARCHITECTURE.md) that have
// neither; (4) it is dropped inside `enter`, or together with the last reference to the island.
#[allow(unsafe_code, reason = "the island type; docs/unsafe.md")]
unsafe impl<L> Send for Confined<L> {}
// SAFETY: as above; `&Confined` gives nothing but `enter`.
#[allow(unsafe_code, reason = "the island type; docs/unsafe.md")]
unsafe impl<L> Sync for Confined<L> {}

impl<L> Confined<L> {
    fn build(make: impl FnOnce() -> L + Send) -> Self {
        Self { lock: EntryLock::new(), value: UnsafeCell::new(make()) }
    }

    fn enter<R: Send>(&self, f: impl FnOnce(&mut L, Waited) -> R) -> R {
        struct Unlock<'a>(&'a EntryLock);
        impl Drop for Unlock<'_> {
            fn drop(&mut self) {
                self.0.unlock();
            }
        }
        let _visiting = driver::visiting();
        let waited = self.lock.lock();
        let _unlock = Unlock(&self.lock);
        // SAFETY: the lock is held until `_unlock` drops, after the borrow has ended, and `visiting` asserts that
        // this thread is not inside already.
        #[allow(unsafe_code, reason = "the island type; docs/unsafe.md")]
        let value = unsafe { &mut *self.value.get() };
        f(value, waited)
    }
}

/// Room that the list of an island's effects keeps; a visit rarely has more of them.
const EFFECTS_KEPT: usize = 64;

/// The state inside the entry lock.
struct Inside {
    /// `None`: dead.
    logic: Option<Box<dyn Logic>>,
    conns: BTreeMap<ConnId, Arc<Conn>>,
    log_ops: Vec<StoreOp>,
    /// Without elements between visits; kept for its memory.
    effects: Vec<Effect>,
}

/// The shared part of an island. The parts that other files use directly never change, or guard their own state.
pub(crate) struct Island {
    name: String,
    confined: Confined<Inside>,
    host: Arc<dyn Host>,
    pub(crate) store: Option<Arc<dyn Store>>,
    /// Held by store operations under way; revoked at the end of the island.
    pub(crate) store_permit: Permit,
    pub(crate) sync_thread: Mutex<Option<SyncThread>>,
    door: OnceLock<Arc<dyn DoorSink>>,
    alive: AtomicBool,
    /// Nanoseconds; `u64::MAX` = none.
    deadline: AtomicU64,
    end: Mutex<End>,
    end_told: Condvar,
    pub(crate) stats: IslandStats,
}

#[derive(Default)]
struct End {
    reason: Option<EndReason>,
    told: bool,
}

/// A handle on an island. Events that reach a dead one are dropped.
#[derive(Clone)]
pub struct IslandRef(Arc<Island>);

impl From<Arc<Island>> for IslandRef {
    fn from(island: Arc<Island>) -> Self {
        Self(island)
    }
}
impl std::fmt::Debug for IslandRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "island {}", self.0.name)
    }
}
impl IslandRef {
    pub(crate) fn build(
        host: Arc<dyn Host>,
        name: &str,
        store: Option<Arc<dyn Store>>,
        make: impl FnOnce(&Rc<Ctx>) -> Box<dyn Logic> + Send,
    ) -> Self {
        Self(Arc::new(Island {
            name: name.to_owned(),
            confined: Confined::build(|| {
                // Times that start while the island is built (a connection, a lease) start now.
                let ctx = Ctx::with_key(clock::random(), clock::secret());
                ctx.set_time(clock::now(), clock::wall());
                Inside {
                    logic: Some(make(&ctx)),
                    conns: BTreeMap::new(),
                    log_ops: Vec::new(),
                    effects: Vec::new(),
                }
            }),
            host,
            store,
            store_permit: Permit::new(),
            sync_thread: Mutex::new(None),
            door: OnceLock::new(),
            alive: AtomicBool::new(true),
            deadline: AtomicU64::new(u64::MAX),
            end: Mutex::default(),
            end_told: Condvar::new(),
            stats: IslandStats::default(),
        }))
    }

    /// As registered with the node, unique in it.
    pub fn name(&self) -> &str {
        &self.0.name
    }
    /// False once the island has ended, after a stop or a panic.
    pub fn is_alive(&self) -> bool {
        self.0.alive.load(Ordering::Acquire)
    }
    /// Of the entries so far.
    pub fn stats(&self) -> &IslandStats {
        &self.0.stats
    }
    /// Delivers an event and does the work that follows on this thread.
    pub fn deliver(&self, event: Event) {
        driver::deliver(self, event);
    }
    /// Sets the receiver of [`Effect::Door`]. Once per island, before the first door event.
    pub fn set_door(&self, sink: Arc<dyn DoorSink>) {
        let first = self.0.door.set(sink).is_ok();
        assert!(first, "island {} has a door sink already", self.0.name);
    }

    pub(crate) fn inner(&self) -> &Island {
        &self.0
    }
    pub(crate) fn host(&self) -> Arc<dyn Host> {
        self.0.host.clone()
    }
    pub(crate) fn same(&self, other: &IslandRef) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
    pub(crate) fn downgrade(&self) -> std::sync::Weak<Island> {
        Arc::downgrade(&self.0)
    }

    /// One entry for all `events`, which are taken in one after the other.
    pub(crate) fn visit(&self, events: &mut VecDeque<Event>) {
        self.enter(None, events);
    }
    pub(crate) fn visit_once(&self, event: Event) {
        self.visit(&mut VecDeque::from([event]));
    }
    /// A peer has connected: `conn` is registered in the visit that notifies the island.
    pub(crate) fn accept(&self, conn: Arc<Conn>, from: String, origin: Origin) {
        let id = conn.id;
        self.enter(Some(conn), &mut VecDeque::from([Event::Accepted { conn: id, from, origin }]));
    }
    pub(crate) fn door(&self, item: Box<dyn Any + Send>) {
        match self.0.door.get() {
            Some(sink) => sink.door(self, item),
            None => tracing::warn!(
                island = self.name(),
                "a reply for a front end is lost: no front end is attached"
            ),
        }
    }

    fn enter(&self, accepted: Option<Arc<Conn>>, events: &mut VecDeque<Event>) {
        let before = clock::now();
        self.0.confined.enter(|inside, waited| {
            let start = if waited == Waited::No { before } else { clock::now() };
            self.0.stats.entered(waited, start - before);
            let visited = catch_unwind(AssertUnwindSafe(|| self.inside(inside, accepted, events, start)));
            if let Err(panic) = visited {
                self.die(inside, EndReason::Panicked(panic_text(panic.as_ref())));
            }
        });
    }

    /// The visit itself. A panic ends the island: no effect of the visit has left.
    fn inside(
        &self,
        inside: &mut Inside,
        accepted: Option<Arc<Conn>>,
        events: &mut VecDeque<Event>,
        now: nacre_types::Instant,
    ) {
        if let Some(conn) = accepted {
            match inside.logic {
                Some(_) => drop(inside.conns.insert(conn.id, conn)),
                None => close(&conn, format!("{} has just ended", self.0.name)),
            }
        }
        while !events.is_empty() {
            self.take_in(inside, events, now);
        }
    }

    /// Takes in events as far as they may share the write of the log and the sorting of effects.
    fn take_in(&self, inside: &mut Inside, events: &mut VecDeque<Event>, now: nacre_types::Instant) {
        let Inside { logic: slot, conns, log_ops, effects } = inside;
        let Some(logic) = slot.as_mut() else { return events.clear() };
        while let Some(event) = events.pop_front() {
            if Self::is_expected(conns, &event) {
                nacre_node::visit(logic.as_mut(), now, clock::wall(), event);
            }
            if logic.ctx().ends_something() {
                break;
            }
        }
        logic.log_writes(log_ops);
        if let Err(error) = self.write_log(log_ops) {
            logic.log_failed(&error);
            return self.die(inside, EndReason::Fatal(format!("log of {}: {error}", self.0.name)));
        }
        logic.ctx().swap_effects(effects);
        self.set_deadline(logic.ctx().deadline());
        let end = self.sort(conns, effects);
        effects.shrink_to(EFFECTS_KEPT);
        if let Some(reason) = end {
            self.die(inside, reason);
        }
    }

    /// After a close no event comes from a connection, even if some are still in progress.
    fn is_expected(conns: &mut BTreeMap<ConnId, Arc<Conn>>, event: &Event) -> bool {
        match event {
            Event::Frame { conn, .. } | Event::Opened { conn } => conns.contains_key(conn),
            Event::Closed { conn, .. } => match conns.remove(conn) {
                Some(end) => {
                    end.outbox.with(nacre_node::Outbox::close);
                    true
                }
                None => false,
            },
            Event::Start
            | Event::Accepted { .. }
            | Event::IoDone { .. }
            | Event::Timer
            | Event::Door(_)
            | Event::Stop => true,
        }
    }

    fn write_log(&self, ops: &mut Vec<StoreOp>) -> Result<(), StoreError> {
        if ops.is_empty() {
            return Ok(());
        }
        let Some(store) = &self.0.store else {
            return Err(StoreError::Device("the island has no store".to_owned()));
        };
        ops.drain(..).try_for_each(|op| store.execute(op).map(drop))
    }

    /// Moves frames into their outboxes, and all other effects onto this thread's queue. `Some`: the island ends.
    fn sort(&self, conns: &mut BTreeMap<ConnId, Arc<Conn>>, effects: &mut Vec<Effect>) -> Option<EndReason> {
        let mut drained: Option<ConnId> = None;
        let entry = self.0.stats.visits();
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { conn, frame } => {
                    // The connection has just been lost: the frame counts as lost in transit.
                    let Some(end) = conns.get(&conn) else { continue };
                    if let Err(error) = end.push(Out::Frame { frame, entry }) {
                        self.overrun(conns, conn, &error);
                    } else if drained != Some(conn) {
                        driver::push(Work::Drain(end.clone()));
                        drained = Some(conn);
                    }
                }
                Effect::Open { conn, address, target } => {
                    let end = Conn::opening(conn, self.0.host.send_queue_bytes_max());
                    let known = conns.insert(conn, end.clone());
                    assert!(known.is_none(), "{conn:?} of {} was opened twice", self.0.name);
                    driver::push(Work::Open { island: self.clone(), conn: end, address, target });
                }
                Effect::Admit { conn } => {
                    if let Some(end) = conns.get(&conn) {
                        end.admit();
                    }
                }
                Effect::Close { conn } => {
                    if let Some(end) = conns.remove(&conn) {
                        close(&end, format!("closed by {}", self.0.name));
                    }
                }
                Effect::Io { ticket, op } => {
                    driver::push(Work::Io { island: self.clone(), ticket, op });
                }
                Effect::Door(item) => driver::push(Work::Door(self.clone(), item)),
                Effect::Stopped => return Some(EndReason::Stopped),
                Effect::Fatal(text) => return Some(EndReason::Fatal(text)),
                Effect::Refused(text) => return Some(EndReason::Refused(text)),
            }
        }
        None
    }

    /// The peer does not receive its frames.
    fn overrun(
        &self,
        conns: &mut BTreeMap<ConnId, Arc<Conn>>,
        conn: ConnId,
        error: &nacre_node::OutboxError,
    ) {
        let Some(end) = conns.get(&conn) else { return };
        if let nacre_node::OutboxError::Full { .. } = error {
            let peer = end.peer_text();
            tracing::warn!(island = self.name(), peer, %error, "peer does not keep up, connection closed");
            let reason = format!("does not keep up: {error}");
            if !end.break_off(&reason) {
                driver::push_closed(self, conn, format!("{peer} {reason}"));
            }
        }
    }

    fn set_deadline(&self, deadline: Option<nacre_types::Instant>) {
        let at = deadline.map_or(u64::MAX, |d| d.0);
        if self.0.deadline.load(Ordering::Relaxed) != at {
            // SeqCst: pairs with the timer loop, which publishes the end of its sleep and then checks again.
            self.0.deadline.store(at, Ordering::SeqCst);
            self.0.host.wake_timers_before(at);
        }
    }
    pub(crate) fn deadline(&self) -> u64 {
        self.0.deadline.load(Ordering::SeqCst)
    }
    /// Takes the deadline if it has passed (the visit that follows sets the next one), else returns its time.
    pub(crate) fn take_due(&self, now: nacre_types::Instant) -> Result<(), u64> {
        let at = self.0.deadline.load(Ordering::SeqCst);
        if at > now.0 {
            return Err(at);
        }
        self.0.deadline.store(u64::MAX, Ordering::SeqCst);
        Ok(())
    }

    /// Drops the logic, closes its connections, and arranges the report of its end.
    fn die(&self, inside: &mut Inside, reason: EndReason) {
        let Some(logic) = inside.logic.take() else { return };
        inside.log_ops.clear();
        let give_back = || {
            let ctx = logic.ctx().clone();
            drop(logic);
            ctx.abandon();
        };
        if catch_unwind(AssertUnwindSafe(give_back)).is_err() {
            tracing::warn!(island = self.name(), "the island panicked again while it was dropped");
        }
        self.0.alive.store(false, Ordering::Release);
        self.0.deadline.store(u64::MAX, Ordering::SeqCst);
        for end in std::mem::take(&mut inside.conns).into_values() {
            close(&end, format!("{} has ended: {reason}", self.0.name));
        }
        self.lock_end().reason = Some(reason.clone());
        match self.0.store_permit.revoke() {
            Revoked::Idle => driver::push(Work::Ended(self.clone(), reason)),
            Revoked::InUse => {}   // the last operation says it
            Revoked::Already => {} // it had died before
        }
    }

    /// A store operation has ended on this thread, which therefore notifies the island and does the work that follows.
    pub(crate) fn io_done(&self, ticket: IoTicket, result: Result<StoreDone, StoreError>) {
        self.end_store_use();
        driver::push(Work::Event(self.clone(), Event::IoDone { ticket, result }));
        driver::run();
    }

    /// Ends the use of the permit of a store operation.
    fn end_store_use(&self) {
        if self.0.store_permit.end() {
            let reason = self.lock_end().reason.clone().unwrap_or(EndReason::Stopped);
            driver::push(Work::Ended(self.clone(), reason));
        }
    }

    /// No operation of the island runs any more.
    pub(crate) fn ended(&self, reason: EndReason) {
        drop(self.0.sync_thread.lock().unwrap_or_else(PoisonError::into_inner).take());
        match &reason {
            EndReason::Stopped => tracing::info!(island = self.name(), "island stopped"),
            EndReason::Killed => tracing::info!(island = self.name(), "island ended from outside"),
            // The process that runs the island logs the reason, with the consequences.
            EndReason::Refused(_) => tracing::debug!(island = self.name(), "island ended: it was refused"),
            EndReason::Fatal(text) => tracing::error!(island = self.name(), reason = %text, "island ended"),
            EndReason::Panicked(text) => {
                tracing::error!(island = self.name(), panic = %text, "island ended by a bug");
            }
        }
        self.host().ended(self, &reason);
        self.lock_end().told = true;
        self.0.end_told.notify_all();
    }

    /// Waits until the end has been reported; `None` after `limit`.
    pub fn wait_end(&self, limit: Duration) -> Option<EndReason> {
        let (end, _) = self
            .0
            .end_told
            .wait_timeout_while(self.lock_end(), limit, |end| !end.told)
            .unwrap_or_else(PoisonError::into_inner);
        end.told.then(|| end.reason.clone()).flatten()
    }

    /// Ends the island from outside, as a crash would.
    pub(crate) fn kill(&self) {
        self.0.confined.enter(|inside, _| self.die(inside, EndReason::Killed));
    }

    fn lock_end(&self) -> std::sync::MutexGuard<'_, End> {
        self.0.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes an end after sending the frames in its outbox.
fn close(end: &Arc<Conn>, reason: String) {
    if end.push(Out::Close(reason)).is_ok() {
        driver::push(Work::Drain(end.clone()));
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no text)".to_owned())
}
