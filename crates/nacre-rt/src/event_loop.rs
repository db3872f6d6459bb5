//! An event loop: one thread and one epoll descriptor with its ready entries; on loop 0 also the timers.
//!
//! Invariants: one thread at a time serves the entries, under their lock: the loop's own, or a leader. Other threads put
//! commands into the inbox and wake the loop through its eventfd; between two sleeps of the loop they do this only once.
//! Before the loop polls the kernel again, it has finished the work that follows from an event, or has worked for its full
//! turn.
//!
//! Leaders: the threads of front ends (`leader.rs`) can serve what loop 0 watches. Meanwhile loop 0 has only its timers and
//! commands; every [`LOOK`] it looks whether something waits that a leader should have served.
//!
//! Helpers: loop 0 serves the sources of front ends. When it has been busy for [`crate::Config::help_after`] without a
//! pause, the next loop watches them too (EPOLLEXCLUSIVE, its own descriptor); a helper that is woken while loop 0
//! sleeps stops watching, because an unneeded second reader costs wake-ups.

use crate::entry::Guarded;
use crate::idle_poll::IdlePoll;
use crate::island::IslandRef;
use crate::listen::{Accepting, Listener};
use crate::node::{Node, RtError, Shared, Source, SourceId, SourceState};
use crate::socket::Socket;
use crate::stats::NodeStats;
use crate::{clock, driver};
use nacre_node::Event;
use nacre_types::Instant;
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The longest sleep: CLOCK_BOOTTIME continues during a suspend, the clock of epoll does not.
const SLEEP_MAX: Duration = Duration::from_secs(5);
const EVENTS_PER_TURN: usize = 64;
/// A wait in the kernel that is shorter than this does not count as a pause.
const PAUSE_MIN: Duration = Duration::from_micros(3);
/// Needless wake-ups after which a helper stops.
const HELP_NEEDLESS_MAX: u32 = 8;

/// Time for which a source without urgent messages is not watched.
const SOURCE_REST: Duration = Duration::from_millis(2);
/// Interval at which loop 0 looks at what leaders serve: one of them may be busy for a while.
const LOOK: Duration = Duration::from_millis(10);
/// Interval at which a paused socket is checked.
const PAUSE_LOOK: Duration = Duration::from_millis(5);

const WAKE_TOKEN: u64 = 0;

/// The part of a loop that other threads access.
pub(crate) struct LoopHandle {
    epoll: OwnedFd,
    wakeup: OwnedFd,
    inbox: Mutex<Vec<Command>>,
    watches: Guarded<Watches>,
    /// Time until which the loop sleeps (nanoseconds); 0 = awake.
    sleeps_until: AtomicU64,
    /// Loops above 0: watches the sources.
    helps: AtomicBool,
}

pub(crate) enum Command {
    AddSource(SourceId, Arc<dyn Source>),
    RemoveSource(SourceId),
    AddListener(u64, Listener),
    AddSocket(u64, Box<Socket>),
}

/// An entry that a loop watches.
enum Watched {
    Source(Arc<dyn Source>),
    Listener(Listener),
    Socket(Box<Socket>),
}

impl LoopHandle {
    pub(crate) fn new() -> Result<Self, RtError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| RtError::system("cannot make an epoll descriptor", e))?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| RtError::system("cannot make an eventfd", e))?;
        epoll::add(&epoll, &wakeup, epoll::EventData::new_u64(WAKE_TOKEN), epoll::EventFlags::IN)
            .map_err(|e| RtError::system("cannot watch an eventfd", e))?;
        Ok(Self {
            epoll,
            wakeup,
            inbox: Mutex::default(),
            watches: Guarded::new(Watches::new()),
            sleeps_until: AtomicU64::new(0),
            helps: AtomicBool::new(false),
        })
    }

    pub(crate) fn wake(&self, stats: &NodeStats) {
        // SeqCst: the sleeping loop publishes its sleep and then reads what was just written here.
        if self.sleeps_until.swap(0, Ordering::SeqCst) != 0 {
            stats.loop_wakeups.add(1);
            if let Err(error) = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes()) {
                tracing::error!(%error, "cannot wake an event loop");
            }
        }
    }
    pub(crate) fn wake_if_sleeping_beyond(&self, at: u64, stats: &NodeStats) {
        if at < self.sleeps_until.load(Ordering::SeqCst) {
            self.wake(stats);
        }
    }
    pub(crate) fn command(&self, command: Command, stats: &NodeStats) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.wake(stats);
    }
    pub(crate) fn watch(
        &self,
        fd: impl AsFd,
        token: u64,
        flags: epoll::EventFlags,
    ) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }
    pub(crate) fn watch_for(
        &self,
        fd: impl AsFd,
        token: u64,
        flags: epoll::EventFlags,
    ) -> rustix::io::Result<()> {
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token), flags)
    }
    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        if let Err(error) = epoll::delete(&self.epoll, fd) {
            tracing::debug!(%error, "descriptor was not watched");
        }
    }
    /// Readable when something that the loop watches is ready.
    pub(crate) fn ready_fd(&self) -> &OwnedFd {
        &self.epoll
    }
    fn is_asleep(&self) -> bool {
        self.sleeps_until.load(Ordering::SeqCst) != 0
    }
}

pub(crate) fn add_source(node: &Node, id: SourceId, source: &Arc<dyn Source>) -> Result<(), RtError> {
    let shared = node.shared();
    for handle in &shared.loops {
        handle.command(Command::AddSource(id, source.clone()), &shared.stats);
    }
    Ok(())
}
pub(crate) fn remove_source(node: &Node, id: SourceId) {
    let shared = node.shared();
    for handle in &shared.loops {
        handle.command(Command::RemoveSource(id), &shared.stats);
    }
}

/// The thread of loop `index`.
pub(crate) fn run(node: &Node, index: usize) {
    driver::set_event_loop(index);
    let shared = node.shared();
    if shared.config.pin {
        pin(index);
    }
    let Some(handle) = shared.loops.get(index) else { return };
    let mut event_loop = EventLoop {
        at: At { node, shared, handle, index },
        busy_since: clock::now(),
        idle_poll: IdlePoll::new(shared.config.idle_poll),
    };
    let mut events = room_for_events();
    while !shared.is_stopping() {
        event_loop.turn(&mut events);
    }
    // They refer to the node, which owns them.
    drop(handle.watches.with(|watches| std::mem::take(&mut watches.entries)));
}

fn pin(index: usize) {
    let cpu = index % std::thread::available_parallelism().map_or(1, usize::from);
    if let Err(error) = crate::cpu::bind(cpu) {
        tracing::warn!(index, %error, "cannot bind an event loop to its CPU");
    }
}

/// Room for the events of a turn.
pub(crate) fn room_for_events() -> Vec<epoll::Event> {
    Vec::with_capacity(EVENTS_PER_TURN)
}

/// Serves what loop 0 watches, on the thread of a leader. `events`: without elements between turns.
pub(crate) fn lead(node: &Node, events: &mut Vec<epoll::Event>) {
    let shared = node.shared();
    let Some(handle) = shared.loops.first() else { return };
    let at = At { node, shared, handle, index: 0 };
    handle.watches.with(|watches| {
        at.poll(events, Duration::ZERO);
        for event in events.drain(..) {
            // A wake-up is for the loop's own thread.
            if event.data.u64() != WAKE_TOKEN {
                at.dispatch(watches, event.data.u64(), event.flags);
            }
        }
    });
}

/// What a loop watches.
struct Watches {
    entries: BTreeMap<u64, Watched>,
    /// Entries that may have a deadline: sockets in their handshake, listeners that pause.
    timed: BTreeSet<u64>,
    /// Sockets whose reading is paused because of their bytes in memory.
    paused: BTreeSet<u64>,
    /// Sources that are not watched for the moment, until these times.
    resting: BTreeMap<u64, Instant>,
    /// Time of the last check of sockets for progress.
    swept: Instant,
    needless: u32,
}
impl Watches {
    fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            timed: BTreeSet::new(),
            paused: BTreeSet::new(),
            resting: BTreeMap::new(),
            swept: clock::now(),
            needless: 0,
        }
    }
}

/// The loop that a thread serves.
#[derive(Clone, Copy)]
struct At<'a> {
    node: &'a Node,
    shared: &'a Arc<Shared>,
    handle: &'a LoopHandle,
    index: usize,
}

struct EventLoop<'a> {
    at: At<'a>,
    /// End of the last pause in the kernel.
    busy_since: Instant,
    idle_poll: IdlePoll,
}

impl EventLoop<'_> {
    fn turn(&mut self, events: &mut Vec<epoll::Event>) {
        let at = self.at;
        let next = at.handle.watches.with(|watches| {
            at.take_commands(watches);
            let next = at.fire_timers().min(at.entry_deadlines(watches)).min(at.sweep(watches));
            next.min(at.resume_reads(watches)).min(at.watch_rested(watches))
        });
        driver::run();
        self.wait(events, next);
        at.handle.watches.with(|watches| {
            for event in events.drain(..) {
                let (token, flags) = (event.data.u64(), event.flags);
                if token == WAKE_TOKEN {
                    let mut count = [0u8; 8];
                    let _spurious = rustix::io::read(&at.handle.wakeup, &mut count);
                } else {
                    at.dispatch(watches, token, flags);
                }
            }
        });
        self.ask_for_help();
    }

    /// Sleeps until something is ready, at most until `next` (nanoseconds); returns at once if work is left.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, next: u64) {
        let At { shared, handle, index, .. } = self.at;
        let before = clock::now();
        let mut left = Duration::ZERO;
        let mut is_led = false;
        if driver::is_idle() {
            let until = next.min((before + SLEEP_MAX).0);
            handle.sleeps_until.store(until.max(1), Ordering::SeqCst);
            // Writes of threads that could not yet see the sleep are seen here.
            let inbox_empty = handle.inbox.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
            is_led = index == 0 && shared.is_led();
            if inbox_empty && !shared.is_stopping() && self.at.earliest_deadline() >= until {
                left = self.idle_poll.bound(Duration::from_nanos(until.saturating_sub(before.0)));
            }
        }
        if is_led && !left.is_zero() {
            self.at.wait_for_wake_up(left.min(LOOK));
            left = Duration::ZERO;
        }
        events.clear();
        self.at.poll(events, left);
        handle.sleeps_until.store(0, Ordering::SeqCst);
        shared.stats.loop_turns.add(1);
        let after = clock::now();
        if after - before >= PAUSE_MIN {
            self.busy_since = after;
            if self.idle_poll.slept(after - before) {
                shared.stats.idle_polls.add(1);
            }
        }
    }

    /// A loop that has been busy without a pause for a long time lets the next loop watch the sources, too. The next
    /// loop is not woken for that: the kernel wakes it at the next request.
    fn ask_for_help(&mut self) {
        let At { shared, handle, index, .. } = self.at;
        let Some(helper) = shared.loops.get(index + 1) else { return };
        if self.at.watches_sources()
            && clock::now() - self.busy_since > shared.config.help_after
            && !helper.helps.swap(true, Ordering::Acquire)
        {
            self.busy_since = clock::now();
            handle.watches.with(|watches| {
                for (token, entry) in &watches.entries {
                    if let Watched::Source(source) = entry
                        && let Some(fd) = source.fd(index + 1)
                    {
                        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
                        if let Err(error) = helper.watch(fd, *token, flags) {
                            tracing::error!(%error, "a further loop cannot watch the descriptor of a front end");
                        }
                    }
                }
            });
        }
    }
}

impl At<'_> {
    /// The events that are ready, after `limit` at the latest.
    fn poll(self, events: &mut Vec<epoll::Event>, limit: Duration) {
        let timeout = clock::timespec(limit);
        match epoll::wait(&self.handle.epoll, rustix::buffer::spare_capacity(events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "epoll_wait failed");
            }
        }
    }
    /// Sleeps until another thread wakes the loop, at most for `limit`.
    fn wait_for_wake_up(self, limit: Duration) {
        let mut wakeup = [PollFd::new(&self.handle.wakeup, PollFlags::IN)];
        // Whatever ends the sleep, the loop looks at everything afterwards.
        let _woken = rustix::event::poll(&mut wakeup, Some(&clock::timespec(limit)));
    }

    fn dispatch(self, watches: &mut Watches, token: u64, flags: epoll::EventFlags) {
        let Some(entry) = watches.entries.get_mut(&token) else { return };
        let state = match entry {
            Watched::Source(source) => {
                let read = driver::together(|| {
                    catch_unwind(AssertUnwindSafe(|| source.ready(self.node, self.index)))
                });
                let state = read.unwrap_or_else(|_| {
                    tracing::error!("a bug of a front end: its requests are not read any more");
                    SourceState::Ended
                });
                if self.index > 0 {
                    self.count_needless(watches);
                }
                state
            }
            Watched::Listener(listener) => {
                if listener.ready(self.shared) == Accepting::Rests {
                    watches.timed.insert(token);
                }
                SourceState::More
            }
            Watched::Socket(socket) => {
                let is_open = socket.ready(self.shared, flags);
                if is_open && socket.is_paused() {
                    watches.paused.insert(token);
                }
                driver::run();
                if is_open { SourceState::More } else { SourceState::Ended }
            }
        };
        match (state, watches.entries.get(&token)) {
            (SourceState::More, _) | (_, None) => {}
            (SourceState::Rests, Some(_)) => self.rest(watches, token),
            // Its end affects every loop.
            (SourceState::Ended, Some(Watched::Source(_))) => remove_source(self.node, SourceId(token)),
            (SourceState::Ended, Some(_)) => self.drop_entry(watches, token),
        }
    }

    fn drop_entry(self, watches: &mut Watches, token: u64) {
        match watches.entries.remove(&token) {
            Some(Watched::Source(source)) => {
                let rests = watches.resting.remove(&token).is_some();
                if let Some(fd) = source.fd(self.index)
                    && self.watches_sources()
                    && !rests
                {
                    self.handle.unwatch(fd);
                }
            }
            Some(Watched::Socket(socket)) => {
                self.handle.unwatch(socket.fd());
                self.shared.sockets.fetch_sub(1, Ordering::Relaxed);
            }
            Some(Watched::Listener(listener)) => self.handle.unwatch(listener.fd()),
            None => {}
        }
    }

    fn take_commands(self, watches: &mut Watches) {
        let commands = std::mem::take(&mut *self.handle.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for command in commands {
            match command {
                Command::AddSource(id, source) => self.start_source(watches, id, source),
                Command::RemoveSource(id) => self.drop_entry(watches, id.0),
                Command::AddListener(token, listener) => {
                    let watched = self.handle.watch(listener.fd(), token, epoll::EventFlags::IN);
                    if let Err(error) = watched {
                        tracing::error!(address = %listener.address(), %error, "cannot watch a listening socket");
                    }
                    watches.entries.insert(token, Watched::Listener(listener));
                }
                Command::AddSocket(token, mut socket) => {
                    if socket.start(self.shared, self.handle, token) {
                        watches.timed.insert(token);
                        watches.entries.insert(token, Watched::Socket(socket));
                    } else {
                        self.shared.sockets.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    // ---- timers

    /// Delivers [`Event::Timer`] to islands whose deadline has passed; returns the earliest other deadline.
    fn fire_timers(self) -> u64 {
        if self.index != 0 {
            return u64::MAX;
        }
        let now = clock::now();
        let mut next = u64::MAX;
        let mut due: Vec<IslandRef> = Vec::new();
        self.shared.each_island(|island| match island.take_due(now) {
            Ok(()) => due.push(island.clone()),
            Err(at) => next = next.min(at),
        });
        for island in due {
            driver::push(driver::Work::Event(island, Event::Timer));
            next = 0; // its visit sets a new one
        }
        next
    }
    fn earliest_deadline(self) -> u64 {
        let mut next = u64::MAX;
        if self.index == 0 {
            self.shared.each_island(|island| next = next.min(island.deadline()));
        }
        next
    }
    /// Ends handshakes that take too long and wakes listeners; returns the time of the next one.
    fn entry_deadlines(self, watches: &mut Watches) -> u64 {
        if watches.timed.is_empty() {
            return u64::MAX;
        }
        let now = clock::now();
        let mut next = u64::MAX;
        let mut ended = Vec::new();
        let Watches { timed, entries, .. } = watches;
        timed.retain(|token| {
            let at = match entries.get_mut(token) {
                Some(Watched::Listener(listener)) => listener.deadline(self.handle, *token, now),
                Some(Watched::Socket(socket)) => socket.deadline(),
                Some(Watched::Source(_)) | None => None,
            };
            if let Some(at) = at {
                if at <= now {
                    ended.push(*token);
                }
                next = next.min(at.0);
            }
            at.is_some()
        });
        for token in ended {
            if let Some(Watched::Socket(socket)) = watches.entries.get_mut(&token) {
                socket.timed_out(self.shared);
            }
            self.drop_entry(watches, token);
        }
        next
    }

    /// Resumes reading where there is room again; returns the time of the next check of the others.
    fn resume_reads(self, watches: &mut Watches) -> u64 {
        if watches.paused.is_empty() {
            return u64::MAX;
        }
        let (entries, shared) = (&mut watches.entries, self.shared);
        watches.paused.retain(|token| match entries.get_mut(token) {
            Some(Watched::Socket(socket)) => socket.stays_paused(shared),
            Some(_) | None => false,
        });
        if watches.paused.is_empty() { u64::MAX } else { (clock::now() + PAUSE_LOOK).0 }
    }

    /// Checks sockets for progress from time to time; returns the time of the next check.
    fn sweep(self, watches: &mut Watches) -> u64 {
        let every = (self.shared.config.stall_max / 4).min(SLEEP_MAX);
        let now = clock::now();
        if now < watches.swept + every {
            return (watches.swept + every).0;
        }
        let stood_still = now > watches.swept + 2 * every;
        watches.swept = now;
        if self.index == 0 {
            self.shared.trim_idle_memory();
        }
        let mut ended = Vec::new();
        for (token, entry) in &mut watches.entries {
            if let Watched::Socket(socket) = entry
                && socket.check_progress(self.shared, now, stood_still)
            {
                ended.push(*token);
            }
        }
        for token in ended {
            self.drop_entry(watches, token);
        }
        (now + every).0
    }

    // ---- sources

    fn watches_sources(self) -> bool {
        self.index == 0 || self.handle.helps.load(Ordering::Relaxed)
    }

    fn start_source(self, watches: &mut Watches, id: SourceId, source: Arc<dyn Source>) {
        if self.watches_sources() {
            self.watch_source(id.0, source.as_ref());
        }
        watches.entries.insert(id.0, Watched::Source(source));
    }
    fn watch_source(self, token: u64, source: &dyn Source) {
        let Some(fd) = source.fd(self.index) else { return };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        if let Err(error) = self.handle.watch(fd, token, flags) {
            tracing::error!(%error, "cannot watch the descriptor of a front end");
        }
    }

    /// Does not watch a source for a while.
    fn rest(self, watches: &mut Watches, token: u64) {
        if let Some(Watched::Source(source)) = watches.entries.get(&token)
            && self.watches_sources()
            && let Some(fd) = source.fd(self.index)
        {
            self.handle.unwatch(fd);
            watches.resting.insert(token, clock::now() + SOURCE_REST);
        }
    }
    /// Watches sources again whose rest is over; returns the end of the next rest.
    fn watch_rested(self, watches: &mut Watches) -> u64 {
        if watches.resting.is_empty() {
            return u64::MAX;
        }
        let now = clock::now();
        let rested: Vec<u64> =
            watches.resting.iter().filter(|(_, until)| **until <= now).map(|(token, _)| *token).collect();
        for token in rested {
            watches.resting.remove(&token);
            if let Some(Watched::Source(source)) = watches.entries.get(&token)
                && self.watches_sources()
            {
                self.watch_source(token, source.as_ref());
            }
        }
        watches.resting.values().min().map_or(u64::MAX, |until| until.0)
    }

    /// A helper that is woken while the loop before it sleeps is not needed.
    fn count_needless(self, watches: &mut Watches) {
        let Some(before) = self.shared.loops.get(self.index - 1) else { return };
        watches.needless = if before.is_asleep() { watches.needless + 1 } else { 0 };
        if watches.needless < HELP_NEEDLESS_MAX {
            return;
        }
        watches.needless = 0;
        for entry in watches.entries.values() {
            if let Watched::Source(source) = entry
                && let Some(fd) = source.fd(self.index)
            {
                self.handle.unwatch(fd);
            }
        }
        // Last step: from here on the loop before may add the descriptors again.
        self.handle.helps.store(false, Ordering::Release);
    }
}
