//! The thread of a ring: takes requests on the CPU of their callers, executes them, commits replies.
//!
//! One turn: decided replies become commits; the ring is entered once, which submits them and waits; new requests are
//! delivered to the mount's island. A reply that is decided on another thread (after a sync, or on a server's reply) is
//! posted (`hub.rs`).
//!
//! **Held requests.** A request that waits (for a lock, for its servers) keeps its slot. The kernel gives a request a slot
//! only when the request is created or when another slot is committed. So when every slot of a queue is held, new slots
//! are registered, up to [`SLOTS_MAX`]. Those are not given to requests that wait in the kernel already. To fetch these,
//! the thread causes requests of its own ("kicks": replies to a RETRIEVE of no bytes); each commit of a kick fetches one
//! waiting request, until a commit fetches none. A RETRIEVE needs a regular file that the kernel has: that of a held lock
//! or read. (Without such a file no held request waits for another one.) Near the bound, waiting locks are refused with
//! ENOLCK, so that the request that ends a wait always finds a slot.
//!
//! **Signals.** The kernel sends no INTERRUPT for a signal that came before the request had reached us. So when a lock
//! begins to wait, its caller is examined once: if a signal is pending then, the lock request is interrupted here.

use super::hub::{Hub, Post, Ticket};
use super::ring::{Completion, LEAD, Ring, WAKE};
use super::slots::{ENTRY_AT, HEADER_BYTES, OPERATION_AT, PAYLOAD_BYTES};
use crate::abi::{self, Field, InHeader, OutHeader, UringEntry, op};
use crate::buffers::BufferPool;
use crate::caller;
use crate::device::Channel;
use crate::front::FuseSource;
use crate::gate::Terms;
use crate::request::FuseRequest;
use bytes::Bytes;
use nacre_node::Event;
use nacre_rt::{IdlePoll, Leader, Node, Server};
use nacre_types::Errno;
use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tracing::{debug, error, warn};

/// Slots of a queue at first: requests of one CPU that are usually in progress at a time.
const SLOTS_AT_FIRST: usize = 8;
/// Requests of one CPU that can be held at a time. A slot is a megabyte of address space.
const SLOTS_MAX: usize = 4096;
/// Slots that waiting locks must leave.
const SLOTS_RESERVED: usize = 64;
/// Slots whose buffers may stay in memory after large requests. The kernel prefers the slot that was committed last, so a
/// stream finds its buffer in memory again.
const WARM_MAX: usize = 16;
/// Unlike any number that the kernel gives to a request.
const KICK: u64 = 1 << 62;

/// One queue of the connection: that of one CPU.
#[derive(Clone, Copy)]
struct Queue {
    /// Its number is that of the CPU.
    cpu: u16,
    slots: usize,
    /// Of them in the kernel, waiting for a request.
    free: usize,
    slots_max: usize,
    /// All its slots were held: requests may wait for one in the kernel.
    starved: bool,
    /// A kick has not been committed yet.
    kicking: bool,
}
impl Queue {
    fn new(cpu: u16) -> Self {
        Self { cpu, slots: 0, free: 0, slots_max: SLOTS_MAX, starved: false, kicking: false }
    }
}

/// A ring before and after its thread runs.
pub(super) struct RingServer {
    hub: Arc<Hub>,
    ring: Mutex<Option<Ring>>,
    /// CPUs that it serves: its own, and offline ones.
    queues: Vec<u16>,
    channel: Arc<Channel>,
    source: OnceLock<Weak<FuseSource>>,
}

impl RingServer {
    pub(super) fn new(queues: Vec<u16>, channel: &Arc<Channel>) -> io::Result<Self> {
        Ok(Self {
            hub: Arc::new(Hub::new()?),
            ring: Mutex::new(Some(Ring::new()?)),
            queues,
            channel: channel.clone(),
            source: OnceLock::new(),
        })
    }
    /// The thread ends when the kernel has returned the slots.
    pub(super) fn mount_is_gone(&self) {
        self.hub.mount_is_gone();
    }
    pub(super) fn attach(&self, source: &Arc<FuseSource>) {
        let _first = self.source.set(Arc::downgrade(source));
    }
    /// Makes the kernel fall back to /dev/fuse, instead of running the ring.
    pub(super) fn refuse(&self) -> io::Result<()> {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(mut ring), Some(fd)) = (ring, self.channel.poll_fd()) else { return Ok(()) };
        ring.enable(fd)?;
        ring.refuse()
    }
}

impl Server for RingServer {
    fn run(&self, node: &Node) {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(ring), Some(source)) = (ring, self.source.get().and_then(Weak::upgrade)) else { return };
        let queues = self.queues.iter().map(|&cpu| Queue::new(cpu)).collect();
        let mut turns = Turns {
            node,
            hub: &self.hub,
            channel: &self.channel,
            pool: self.channel.pool().clone(),
            source,
            ring,
            queues,
            requests: Vec::new(),
            kicked: BTreeSet::new(),
            next_kick: KICK,
            posts: Vec::new(),
            written: Vec::new(),
            warm: 0,
            cpu: self.queues.first().copied(),
            idle_poll: node.idle_poll(),
            leader: Leader::new(node),
            waiting: Vec::new(),
        };
        let ended = catch_unwind(AssertUnwindSafe(|| turns.run()));
        let error = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => io::Error::other("a bug"),
        };
        error!(%error, cpus = ?self.queues, "a ring failed; the mount is given up");
        turns.source.end();
    }
    fn stop(&self) {
        self.hub.stop();
    }
}

/// State of a slot.
#[derive(Clone, Copy)]
struct SlotState {
    queue: usize,
    /// Of the request in it; 0 = none.
    commit_id: u64,
    /// Of the request in it, if that is one of an open regular file.
    file: Option<u64>,
    /// Its payload buffer may be in memory.
    large: bool,
    dead: bool,
}

struct Turns<'a> {
    node: &'a Node,
    hub: &'a Arc<Hub>,
    channel: &'a Arc<Channel>,
    pool: Arc<BufferPool>,
    source: Arc<FuseSource>,
    ring: Ring,
    queues: Vec<Queue>,
    /// By slot.
    requests: Vec<SlotState>,
    /// Slots that were committed after a kick in this turn.
    kicked: BTreeSet<u32>,
    next_kick: u64,
    /// Without elements between turns; kept for their memory.
    posts: Vec<Post>,
    written: Vec<Terms>,
    /// Slots whose buffers may be in memory.
    warm: usize,
    /// This thread's CPU.
    cpu: Option<u16>,
    idle_poll: IdlePoll,
    leader: Leader<'a>,
    /// Requests that may have no reply yet, by slot and number, without locks that wait: those say nothing of replies that are
    /// about to come.
    waiting: Vec<(u32, u64)>,
}

impl Turns<'_> {
    fn run(&mut self) -> io::Result<()> {
        let Some(fd) = self.channel.poll_fd() else { return Ok(()) };
        self.ring.enable(fd)?;
        self.ring.watch(self.hub.wake_fd())?;
        for queue in 0..self.queues.len() {
            // A queue of an offline CPU needs one slot, because the kernel requires one.
            let count = if queue == 0 { SLOTS_AT_FIRST } else { 1 };
            self.grow(queue, count)?;
        }
        loop {
            self.take_posts()?;
            self.feed_starved()?;
            let may_wait = self.node.work() && self.kicked.is_empty() && self.may_sleep();
            let entered = self.enter(may_wait);
            self.hub.end_sleep();
            entered?;
            let leads = self.take_completions()?;
            self.node.work();
            let waits = self.waits();
            if let Some(is_readable) = leads {
                self.leader.watched(is_readable, waits);
            }
            if self.is_over() {
                return Ok(());
            }
        }
    }

    /// Submits what was decided, and waits for a completion if there is nothing else to do.
    fn enter(&mut self, may_wait: bool) -> io::Result<()> {
        if !may_wait {
            return self.ring.enter(None).map(drop);
        }
        let waits = self.waits();
        if self.leader.before_sleep(waits)
            && let Some(sockets) = self.leader.fd()
        {
            self.ring.watch_sockets(sockets)?;
        }
        let of_poll = self.idle_poll.bound(Duration::MAX);
        let limit = self.leader.bound(of_poll);
        // Between the requests of a busy caller the clock need not be read: only a sleep to the limit counts.
        let before = (of_poll == Duration::MAX).then(nacre_rt::now);
        let in_time = self.ring.enter(Some(limit))?;
        if !in_time && self.leader.was_idle() {
            self.ring.unwatch_sockets()?;
        }
        match before {
            Some(before) if self.idle_poll.slept(nacre_rt::now() - before) => self.node.count_idle_poll(),
            None if !in_time => drop(self.idle_poll.slept(limit)),
            Some(_) | None => {}
        }
        Ok(())
    }

    /// Whether requests have no reply yet.
    fn waits(&mut self) -> bool {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|(slot, commit_id)| self.holds(*slot, *commit_id));
        self.waiting = waiting;
        !self.waiting.is_empty()
    }
    /// Publishes that the thread sleeps, unless there is work.
    fn may_sleep(&self) -> bool {
        self.hub.begin_sleep() && !self.is_over()
    }
    fn is_over(&self) -> bool {
        self.hub.is_stopping() || (self.hub.is_gone() && self.queues.iter().all(|q| q.free == 0))
    }

    // ---- completions

    /// `Some`: the sockets are not watched any more, and whether they are readable.
    fn take_completions(&mut self) -> io::Result<Option<bool>> {
        let mut leads = None;
        // Entering the ring has executed these commits: if one fetched a request, its completion is here.
        let mut kicked = std::mem::take(&mut self.kicked);
        // Bounded by the number of slots: one command per slot at a time.
        while let Some(Completion { user_data, result, more }) = self.ring.completion() {
            if user_data == WAKE {
                self.hub.clear_wake();
                if !more {
                    self.ring.watch(self.hub.wake_fd())?;
                }
                continue;
            }
            if user_data == LEAD {
                leads = Some(result >= 0);
                if result < 0 {
                    self.not_watched(rustix::io::Errno::from_raw_os_error(-result));
                }
            }
            let Ok(slot) = u32::try_from(user_data) else { continue };
            self.ring.slots.take_back(slot);
            let Some(held) = self.requests.get_mut(slot as usize) else { continue };
            if let Some(queue) = self.queues.get_mut(held.queue) {
                queue.free -= 1;
            }
            if result == 0 {
                if kicked.remove(&slot)
                    && let Some(queue) = self.queues.get_mut(held.queue)
                {
                    queue.kicking = false; // again, there may be more
                }
                self.arrived(slot)?;
            } else {
                held.dead = true;
                self.lost(slot, result);
            }
        }
        for slot in kicked {
            let queue = self.requests.get(slot as usize).and_then(|h| self.queues.get_mut(h.queue));
            if let Some(queue) = queue {
                (queue.kicking, queue.starved) = (false, false);
            }
        }
        Ok(leads)
    }

    /// The watch of the sockets has ended without an event.
    fn not_watched(&mut self, error: rustix::io::Errno) {
        if error != rustix::io::Errno::CANCELED {
            warn!(%error, "the thread of a ring cannot watch the sockets; the event loop does");
            self.leader.refused();
        }
    }

    /// A command that ended without a request.
    fn lost(&mut self, slot: u32, result: i32) {
        let error = rustix::io::Errno::from_raw_os_error(-result);
        match error {
            // The end of the mount.
            rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::CANCELED => {
                self.hub.mount_is_gone();
            }
            // The kernel had already abandoned the request.
            rustix::io::Errno::NOENT => debug!(slot, "the kernel did not know the request of a reply"),
            error => {
                warn!(slot, %error, "the kernel refused a command to a ring");
                let queue = self.requests.get(slot as usize).and_then(|h| self.queues.get_mut(h.queue));
                if let Some(queue) = queue {
                    queue.slots_max = queue.slots;
                }
            }
        }
    }

    /// There is a request in `slot`.
    fn arrived(&mut self, slot: u32) -> io::Result<()> {
        let (header, payload) = self.ring.slots.memory(slot);
        let request = InHeader::take(&mut &header[..]);
        let entry = UringEntry::take(&mut header.get(ENTRY_AT..).unwrap_or_default());
        let (Ok(request), Ok(entry)) = (request, entry) else { return Ok(()) };
        let Some(held) = self.requests.get_mut(slot as usize) else { return Ok(()) };
        held.commit_id = entry.commit_id;
        let of_a_file =
            matches!(request.opcode, op::SETLKW | op::SETLK | op::READ | op::WRITE | op::FSYNC | op::FLUSH);
        held.file = of_a_file.then_some(request.nodeid);
        let payload_len = entry.payload_sz as usize;
        self.warm += usize::from(payload_len > 4096 && !held.large);
        held.large |= payload_len > 4096;
        let queue = held.queue;
        if request.opcode == op::NOTIFY_REPLY {
            self.reply(slot, &plain(request.unique, 0), &[])?;
            self.kicked.insert(slot);
            return Ok(());
        }
        let operation_len = (request.len as usize).wrapping_sub(InHeader::BYTES).wrapping_sub(payload_len);
        let parts = (
            header.get(..InHeader::BYTES),
            header.get(OPERATION_AT..OPERATION_AT.saturating_add(operation_len).min(ENTRY_AT)),
            payload.get(..payload_len),
        );
        let (Some(head), Some(operation), Some(payload)) = parts else {
            error!(slot, len = request.len, payload_len, "the kernel sent a request that is not one");
            return self.reply(slot, &plain(request.unique, -Errno::EIO.number()), &[]);
        };
        let data = self.pool.keep_parts(&[head, operation, payload]);
        let full = self.queues.get(queue).is_some_and(|q| q.slots >= q.slots_max && q.free < SLOTS_RESERVED);
        if full && request.opcode == op::SETLKW {
            return self.reply(slot, &plain(request.unique, -Errno::ENOLCK.number()), &[]);
        }
        let ticket = Ticket::new(self.hub.clone(), slot, entry.commit_id);
        match FuseRequest::parse(data, ticket) {
            Ok(request) => {
                if request.opcode() != op::SETLKW {
                    self.leader.came();
                    self.waiting.push((slot, entry.commit_id));
                }
                let request = request.with_callers_groups();
                self.node.enqueue(&self.source.island(), Event::Door(Box::new(request)));
            }
            Err(abi::Short) => {
                error!(slot, len = request.len, "the kernel sent a request that is not one");
                self.reply(slot, &plain(request.unique, -Errno::EIO.number()), &[])?;
            }
        }
        Ok(())
    }

    // ---- replies

    fn take_posts(&mut self) -> io::Result<()> {
        let mut posts = std::mem::take(&mut self.posts);
        self.hub.take_posts(&mut posts);
        let gate = posts.iter().find_map(|post| match post {
            Post::Reply { terms: Some(terms), .. } => Some(terms.gate().clone()),
            _ => None,
        });
        let pass = gate.as_ref().map(|gate| gate.pass());
        let (mut written, mut waits) = (std::mem::take(&mut self.written), Vec::new());
        for post in posts.drain(..) {
            match post {
                Post::Reply { slot, commit_id, mut head, bulk, terms } if self.holds(slot, commit_id) => {
                    if let (Some(terms), Some(pass)) = (&terms, &pass) {
                        terms.apply(pass, &mut head, nacre_rt::now());
                    }
                    self.reply(slot, &head, &bulk)?;
                    written.extend(terms.map(|terms| *terms));
                }
                Post::Waits { slot, commit_id, pid } => waits.push((slot, commit_id, pid)),
                Post::Reply { .. } => {}
            }
        }
        if pass.is_some() {
            // The kernel takes the replies before the gate is left; the next turn waits for requests.
            self.ring.enter(None)?;
            drop(pass);
            let now = nacre_rt::now();
            written.drain(..).for_each(|terms| terms.check(now));
        }
        (self.posts, self.written) = (posts, written);
        // Not inside the gate, and after all replies: a lock that was granted at once has its own by now, so that its caller
        // need not be examined.
        for (slot, commit_id, pid) in waits {
            if self.holds(slot, commit_id) && caller::has_signal(pid) {
                self.interrupt(commit_id);
            }
        }
        Ok(())
    }

    /// Whether the request is the one in the slot and has no reply yet.
    fn holds(&self, slot: u32, commit_id: u64) -> bool {
        let held = self.requests.get(slot as usize);
        self.ring.slots.is_ours(slot) && held.is_some_and(|h| h.commit_id == commit_id && !h.dead)
    }

    /// Writes a reply into its slot and commits it.
    fn reply(&mut self, slot: u32, head: &[u8], bulk: &[Bytes]) -> io::Result<()> {
        let Some(held) = self.requests.get_mut(slot as usize) else { return Ok(()) };
        let commit_id = std::mem::take(&mut held.commit_id);
        let (head, body) = head.split_at_checked(OutHeader::BYTES).unwrap_or_default();
        let len = body.len() + bulk.iter().map(Bytes::len).sum::<usize>();
        if held.large && len <= 4096 && self.warm > WARM_MAX {
            held.large = false;
            self.warm -= 1;
            self.ring.slots.release_payload(slot);
        }
        self.warm += usize::from(len > 4096 && !held.large);
        held.large |= len > 4096;
        let (header, payload) = self.ring.slots.memory(slot);
        if len > PAYLOAD_BYTES {
            error!(len, "a reply is longer than its buffer; its caller gets an input/output error");
            put_reply(header, &plain(commit_id, -Errno::EIO.number()), commit_id, 0);
        } else {
            let mut to = payload;
            for part in std::iter::once(body).chain(bulk.iter().map(|b| &b[..])) {
                let (here, rest) = to.split_at_mut(part.len());
                here.copy_from_slice(part);
                to = rest;
            }
            put_reply(header, head, commit_id, len as u32);
        }
        let Some(queue) = self.queues.get_mut(held.queue) else { return Ok(()) };
        queue.free += 1;
        self.ring.commit(queue.cpu, slot, commit_id)
    }

    /// As if the kernel had sent INTERRUPT for a request.
    fn interrupt(&self, unique: u64) {
        let mut data = Vec::new();
        let len = (InHeader::BYTES + abi::InterruptIn::BYTES) as u32;
        InHeader { len, opcode: op::INTERRUPT, unique: unique | 1, ..InHeader::default() }.put(&mut data);
        abi::InterruptIn { unique }.put(&mut data);
        if let Ok(request) = FuseRequest::parse(data.into(), self.channel.clone()) {
            self.node.deliver(&self.source.island(), Event::Door(Box::new(request)));
        }
    }

    // ---- slots

    /// A queue all of whose slots are held gets more.
    fn feed_starved(&mut self) -> io::Result<()> {
        for index in 0..self.queues.len() {
            let Some(&Queue { slots, free, slots_max, .. }) = self.queues.get(index) else { continue };
            if free == 0 && slots < slots_max && !self.hub.is_gone() {
                self.grow(index, slots.max(SLOTS_AT_FIRST).min(slots_max - slots))?;
            }
            let Some(queue) = self.queues.get_mut(index) else { continue };
            if free == 0 {
                // An earlier kick may itself wait in the kernel for a slot.
                (queue.starved, queue.kicking) = (true, false);
            }
            if queue.starved && !queue.kicking && queue.free > 0 {
                // The kernel must have the slots before the kick looks for one.
                self.ring.enter(None)?;
                self.kick(index);
            }
        }
        Ok(())
    }
    fn grow(&mut self, index: usize, count: usize) -> io::Result<()> {
        let first = self.ring.slots.len();
        let Some(queue) = self.queues.get_mut(index) else { return Ok(()) };
        if let Err(error) = self.ring.slots.grow(count) {
            // Held requests continue, and every reply serves the next one.
            warn!(%error, slots = queue.slots, cpu = queue.cpu, "no memory for further requests of one CPU");
            queue.slots_max = queue.slots;
            return Ok(());
        }
        for slot in first..first + count {
            let held = SlotState { queue: index, commit_id: 0, file: None, large: false, dead: false };
            self.requests.push(held);
            self.ring.register(queue.cpu, slot as u32)?;
        }
        queue.slots += count;
        queue.free += count;
        Ok(())
    }

    /// Makes a request on the queue, whose commit fetches one that has waited for a slot.
    fn kick(&mut self, index: usize) {
        /// Files that are tried.
        const TRIES: usize = 8;
        let (Some(queue), Some(own)) = (self.queues.get_mut(index), self.cpu) else { return };
        let held = self.requests.iter().filter(|h| h.queue == index && h.commit_id != 0 && !h.dead);
        // The kernel puts the request into the queue of the current CPU, without waiting.
        if queue.cpu != own {
            let _offline = nacre_rt::bind(usize::from(queue.cpu));
        }
        for file in held.filter_map(|h| h.file).take(TRIES) {
            self.next_kick += 2;
            match self.channel.write_notification(&retrieve_nothing(file, self.next_kick)) {
                Ok(()) => {
                    queue.kicking = true;
                    break;
                }
                Err(error) => debug!(%error, file, "no request of our own about this file"),
            }
        }
        if queue.cpu != own {
            let _offline = nacre_rt::bind(usize::from(own));
        }
    }
}

/// Asks the kernel for no bytes of a file's cache: it replies with a request.
fn retrieve_nothing(nodeid: u64, notify_unique: u64) -> Vec<u8> {
    let mut message = Vec::new();
    let len = (OutHeader::BYTES + abi::NotifyRetrieve::BYTES) as u32;
    OutHeader { len, error: abi::notify::RETRIEVE, unique: 0 }.put(&mut message);
    abi::NotifyRetrieve { notify_unique, nodeid, ..Default::default() }.put(&mut message);
    message
}

/// A reply without a body.
fn plain(unique: u64, error: i32) -> Vec<u8> {
    let mut head = Vec::with_capacity(OutHeader::BYTES);
    OutHeader { len: OutHeader::BYTES as u32, error, unique }.put(&mut head);
    head
}

fn put_reply(header: &mut [u8; HEADER_BYTES], head: &[u8], commit_id: u64, payload_sz: u32) {
    if let Some(room) = header.get_mut(..head.len()) {
        room.copy_from_slice(head);
    }
    let entry = UringEntry { commit_id, payload_sz, ..UringEntry::default() };
    entry.put(&mut &mut header[ENTRY_AT..]);
}
