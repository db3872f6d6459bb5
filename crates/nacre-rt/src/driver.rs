//! The work of a thread after it has left an island: one queue per thread.
//!
//! A message inside the process is a call: [`deliver`] puts (island, event) at the end of this thread's queue and,
//! unless the thread is already processing it, works until the queue is empty. No work is handed to another thread.
//!
//! Events in the queue that follow each other and are for one island are taken in at one entry.
//!
//! Invariants: (1) no island is entered from inside a visit (asserted); (2) the effects of one visit are carried out in
//! their order; (3) the work that follows from one event is done before the thread asks the kernel for the next one, up
//! to [`WORK_PER_TURN`] pieces, so that islands that send to each other cannot starve the sockets.

use crate::conn::Conn;
use crate::island::{EndReason, IslandRef};
use nacre_node::{ConnId, Event, IoTicket, Origin, StoreOp};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Pieces of work between two polls of the kernel.
pub(crate) const WORK_PER_TURN: usize = 4096;
/// Events that an island takes in at one entry. Other threads wait meanwhile, and a few events save most of what there is
/// to save: the exchange of the lock, the write of the log, and the way of the island's data from one CPU to another.
pub(crate) const EVENTS_PER_ENTRY: usize = 4;

/// One piece of work outside all islands.
pub(crate) enum Work {
    Event(IslandRef, Event),
    /// Registers `conn` with the island and notifies it.
    Accept {
        island: IslandRef,
        conn: Arc<Conn>,
        from: String,
        origin: Origin,
    },
    /// Sends the frames in the outbox, unless another thread does so.
    Drain(Arc<Conn>),
    /// The connection is open: releases the send token of its creator, then as `Drain`.
    StartSending(Arc<Conn>),
    Open {
        island: IslandRef,
        conn: Arc<Conn>,
        address: String,
        target: String,
    },
    Io {
        island: IslandRef,
        ticket: IoTicket,
        op: StoreOp,
    },
    Door(IslandRef, Box<dyn Any + Send>),
    /// No operation of the island runs any more: report its end.
    Ended(IslandRef, EndReason),
}

/// Maximum number of delayed sends: a limit on the delay that one saved system call may cause.
const HELD_MAX: usize = 8;

struct Thread {
    queue: RefCell<VecDeque<Work>>,
    /// Without elements between visits; kept for its memory.
    events: RefCell<VecDeque<Event>>,
    /// Connections whose sends wait for the end of [`together`]; `None` outside of it.
    held: RefCell<Option<Vec<Arc<Conn>>>>,
    working: Cell<bool>,
    visiting: Cell<bool>,
    /// Index of the event loop that runs on this thread.
    event_loop: Cell<Option<usize>>,
    /// Whether the thread polls the kernel between two turns of work.
    takes_turns: Cell<bool>,
}

thread_local! {
    static THREAD: Thread = const { Thread {
        queue: RefCell::new(VecDeque::new()),
        events: RefCell::new(VecDeque::new()),
        held: RefCell::new(None),
        working: Cell::new(false),
        visiting: Cell::new(false),
        event_loop: Cell::new(None),
        takes_turns: Cell::new(false),
    } };
}

/// Puts work at the end of this thread's queue.
pub(crate) fn push(work: Work) {
    THREAD.with(|t| t.queue.borrow_mut().push_back(work));
}

/// Runs `f` with an empty list of events, and keeps the memory of the list.
pub(crate) fn with_events(f: impl FnOnce(&mut VecDeque<Event>)) {
    let mut events = THREAD.with(|t| t.events.take());
    f(&mut events);
    events.clear();
    THREAD.with(|t| t.events.replace(events));
}

/// Moves the events at the front of this thread's queue to `events`, as far as they are for `island`.
fn take_events(island: &IslandRef, events: &mut VecDeque<Event>) {
    THREAD.with(|t| {
        let mut queue = t.queue.borrow_mut();
        let is_next = |work: &mut Work| matches!(work, Work::Event(to, _) if to.same(island));
        while events.len() < EVENTS_PER_ENTRY
            && let Some(Work::Event(_, event)) = queue.pop_front_if(is_next)
        {
            events.push_back(event);
        }
    });
}

/// Delivers an event and does all work that follows. If this thread is already processing its queue, the event is
/// appended.
pub(crate) fn deliver(island: &IslandRef, event: Event) {
    push(Work::Event(island.clone(), event));
    run();
}

/// Works until the queue is empty, or, on a thread that works in turns, until the turn is over.
pub(crate) fn run() {
    THREAD.with(|t| {
        assert!(!t.visiting.get(), "work was started from inside a visit to an island");
        if t.working.replace(true) {
            return;
        }
        let _done = ResetOnDrop(&t.working);
        let mut left = if t.takes_turns.get() { WORK_PER_TURN } else { usize::MAX };
        while left > 0 {
            // The borrow ends before the work is done, because the work adds to the queue.
            let Some(work) = t.queue.borrow_mut().pop_front() else { break };
            // Islands catch their own panics. A panic that arrives here is a bug of a front end or of this crate: the
            // thread serves other islands and must not end.
            if catch_unwind(AssertUnwindSafe(|| carry_out(work))).is_err() {
                tracing::error!("a bug outside the islands: one piece of work was lost");
            }
            left -= 1;
        }
    });
}

/// Runs `f` on an event loop; frames for sockets that result from it are sent afterwards, several with one call.
pub(crate) fn together<R>(f: impl FnOnce() -> R) -> R {
    THREAD.with(|t| *t.held.borrow_mut() = Some(Vec::new()));
    let result = f();
    THREAD.with(|t| {
        let held = t.held.borrow_mut().take().unwrap_or_default();
        t.queue.borrow_mut().extend(held.into_iter().map(Work::Drain));
    });
    run();
    result
}

/// Sends the frames in the outbox of `conn`, or defers this to the end of [`together`].
fn drain(conn: &Arc<Conn>) {
    let held = THREAD.with(|t| {
        let mut held = t.held.borrow_mut();
        let list = held.as_mut().filter(|_| conn.is_socket())?;
        list.push(conn.clone());
        Some(if list.len() < HELD_MAX { Vec::new() } else { std::mem::take(list) })
    });
    match held {
        None => conn.drain(),
        Some(list) => list.iter().for_each(Conn::drain),
    }
}

pub(crate) fn is_idle() -> bool {
    THREAD.with(|t| t.queue.borrow().is_empty())
}

pub(crate) fn set_event_loop(index: usize) {
    THREAD.with(|t| t.event_loop.set(Some(index)));
    take_turns();
}
/// Whether this thread returns to its queue after polling the kernel.
pub(crate) fn take_turns() {
    THREAD.with(|t| t.takes_turns.set(true));
}
pub(crate) fn event_loop() -> Option<usize> {
    THREAD.with(|t| t.event_loop.get())
}

/// Marks this thread as inside an island while it lives.
pub(crate) fn visiting() -> impl Drop {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            THREAD.with(|t| t.visiting.set(false));
        }
    }
    THREAD.with(|t| assert!(!t.visiting.replace(true), "an island was entered from inside a visit"));
    Leave
}

struct ResetOnDrop<'a>(&'a Cell<bool>);
impl Drop for ResetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

fn carry_out(work: Work) {
    match work {
        Work::Event(island, event) => with_events(|events| {
            events.push_back(event);
            take_events(&island, events);
            island.visit(events);
        }),
        Work::Accept { island, conn, from, origin } => island.accept(conn, from, origin),
        Work::Drain(conn) => drain(&conn),
        Work::StartSending(conn) => {
            conn.outbox.with(nacre_node::Outbox::give_back);
            conn.drain();
        }
        Work::Open { island, conn, address, target } => island.host().open(&island, conn, &address, &target),
        Work::Io { island, ticket, op } => island.host().start_io(island, ticket, op),
        Work::Door(island, item) => island.door(item),
        Work::Ended(island, reason) => island.ended(reason),
    }
}

/// A connection has ended: notifies the island if it still knows the connection.
pub(crate) fn push_closed(island: &IslandRef, conn: ConnId, reason: String) {
    push(Work::Event(island.clone(), Event::Closed { conn, reason, absent: false }));
}
/// A connection failed because the target is not served at the address.
pub(crate) fn push_absent(island: &IslandRef, conn: ConnId, reason: String) {
    push(Work::Event(island.clone(), Event::Closed { conn, reason, absent: true }));
}
