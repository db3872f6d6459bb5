//! Connections to other processes.
//!
//! A socket belongs to one loop. One thread at a time reads it and delivers its frames to the island: the loop's own, or a
//! leader (`leader.rs`). A thread that leaves an island writes, if it holds the send token of the connection; if the socket is
//! full, the token stays with the socket, and its loop continues when there is room.
//!
//! Invariants: frames enter the island in the order of the stream; a lost connection notifies its island once; before
//! its island has accepted a peer as a client ([`nacre_node::Effect::Admit`]) no more than a Connect of a few KiB is
//! read from it; only the loop takes a socket off its list (others shut it down and the loop sees the end); no
//! handshake takes longer than [`crate::Config::handshake_max`].
//!
//! An inbound connection is read only while the bytes that wait to be sent on it, and the bulk that came from it, are
//! within their bounds. A pause is never permanent: after [`crate::Config::pause_max`] one frame is read, so that a
//! cancel or a ping behind large requests arrives. Connections that this side has opened are always read: otherwise two
//! ends could wait for each other.

use crate::budget::BulkShare;
use crate::clock;
use crate::conn::{Conn, Link, Out, Remote};
use crate::driver::{self, Work};
use crate::event_loop::{Command, LoopHandle};
use crate::gate::Place;
use crate::io::Class;
use crate::island::IslandRef;
use crate::node::{Node, Shared};
use crate::progress::Progress;
use nacre_net::{
    Accepted, Address, BulkBuffers, Candidate, Decoder, Lender, Limits, NetError, Received, Scratch, Sent,
    SharedMemory, Writer,
};
use nacre_node::{ConnId, Event, Next, Origin, Outbox};
use nacre_types::{Errno, Instant};
use nacre_wire::{Frame, FrameError, Kind, Opcode, flags};
use rustix::event::epoll::EventFlags;
use rustix::fd::OwnedFd;
use rustix::net::Shutdown;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Reads of one socket before others get their turn.
const READS_PER_TURN: usize = 16;
/// Frames and bytes that are sent to the socket together.
const BATCH_FRAMES: usize = 64;
const BATCH_BYTES: usize = 1 << 20;

/// The part of a socket that its loop and the senders share.
pub(crate) struct SocketLink {
    fd: OwnedFd,
    /// For people.
    peer: String,
    /// Origin of the peer, for an accepted connection.
    origin: Origin,
    /// It is a unix socket, which passes descriptors.
    is_unix: bool,
    /// The island has accepted its peer as a client.
    admitted: AtomicBool,
    /// Only the holder of the send token accesses it; the mutex is never contended.
    writer: Mutex<Writer>,
    /// Index of the loop, and its name for the socket.
    at: OnceLock<(usize, u64)>,
    node: OnceLock<Arc<Shared>>,
    /// The reason of the close, if this side closed it.
    broken_off: OnceLock<String>,
    blocked: Mutex<Blocked>,
    /// Number of times that all waiting bytes were sent.
    unblocked: AtomicU64,
    /// The place behind the listener's gate, held while the descriptor is open.
    _place: Option<Place>,
}

/// The waiter for room in the socket.
#[derive(Default)]
struct Blocked {
    /// The connection whose send token the socket holds.
    conn: Option<Arc<Conn>>,
    /// The loop has dropped the socket: no thread will continue.
    over: bool,
}

/// A socket as its loop knows it.
pub(crate) struct Socket {
    link: Arc<SocketLink>,
    decoder: Decoder,
    /// Its limits are those of clients.
    admitted: bool,
    phase: Phase,
    deadline: Option<Instant>,
    received_bytes: u64,
    received_frames: u64,
    incoming: Progress,
    outgoing: Progress,
    /// Accounting of received bulk; `None` for connections that this side has opened.
    bulk: Option<BulkShare>,
    paused: Option<Paused>,
    sharing: Sharing,
}

/// Whether bulk is shared with the peer.
enum Sharing {
    No,
    /// Outbound: the memory of this process has been passed, and the lender is used once the peer has mapped it.
    Offered(Lender),
    /// Outbound: frames of this process are lent.
    Lends(SharedMemory),
    /// Inbound: the peer has passed the descriptor of its memory.
    Passed(OwnedFd),
}

/// A connection whose reading is paused.
#[derive(Clone, Copy)]
struct Paused {
    /// The time at which it is read for one frame.
    until: Instant,
    /// It is read until this number of frames has arrived.
    frames: Option<u64>,
}

enum Phase {
    /// Outbound: waiting for the socket to open, then for the reply to Hello.
    Connecting(Opening, Candidate),
    Greeting(Opening),
    /// Inbound: the peer has not sent its Hello yet.
    Unnamed,
    Open {
        island: IslandRef,
        conn: Arc<Conn>,
    },
    /// A refusal is being sent.
    Ended,
}

/// An outbound connection that is being opened.
#[derive(Clone)]
struct Opening {
    node: Arc<Shared>,
    island: IslandRef,
    conn: Arc<Conn>,
    target: String,
    rest: VecDeque<Candidate>,
    /// Each address tried so far has refused the connection.
    absent: bool,
}

// ---- opening

/// Carries out [`nacre_node::Effect::Open`] for an address of another process.
pub(crate) fn connect(
    node: &Arc<Shared>,
    island: &IslandRef,
    conn: Arc<Conn>,
    address: Address,
    target: &str,
) {
    let (island, target) = (island.clone(), target.to_owned());
    let opening = Opening { node: node.clone(), island, conn, target, rest: VecDeque::new(), absent: true };
    match nacre_net::local_candidates(&address) {
        Some(found) => opening.try_each(found.into()),
        // The name service may be slow, so it does not run on a loop.
        None => node.io_pool.run(
            node,
            Class::Metadata,
            Box::new(move |_| {
                match nacre_net::candidates(&address) {
                    Ok(found) => opening.try_each(found.into()),
                    Err(error) => Opening { absent: false, ..opening }.failed(&error),
                }
                driver::run();
            }),
        ),
    }
}

impl Opening {
    fn try_each(mut self, mut rest: VecDeque<Candidate>) {
        let mut last = None;
        while let Some(candidate) = rest.pop_front() {
            match nacre_net::connect(&candidate) {
                Ok(fd) => {
                    self.rest = rest;
                    return self.hand_to_loop(fd, candidate);
                }
                Err(error) => {
                    self.absent &= error.is_absence();
                    last = Some(error);
                }
            }
        }
        let none = || NetError::Handshake("the address has no place to connect to".to_owned());
        self.absent &= last.is_some();
        self.failed(&last.unwrap_or_else(none));
    }

    fn hand_to_loop(self, fd: OwnedFd, candidate: Candidate) {
        let node = self.node.clone();
        let link = SocketLink::new(fd, candidate.to_string(), candidate.sums(), Origin::Network, None);
        let socket = Box::new(Socket::new(link, Phase::Connecting(self, candidate), node.bulk_buffers()));
        node.sockets.fetch_add(1, Ordering::Relaxed);
        if let Some(handle) = node.loops.get(node.loop_for_new_socket()) {
            handle.command(Command::AddSocket(node.token(), socket), &node.stats);
        }
    }

    fn failed(&self, error: &NetError) {
        let push = if self.absent { driver::push_absent } else { driver::push_closed };
        push(&self.island, self.conn.id, error.to_string());
    }
}

// ---- the loop's side

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Socket {
    fn new(link: Arc<SocketLink>, phase: Phase, buffers: &BulkBuffers) -> Self {
        Self {
            link,
            decoder: Decoder::new(Limits::hello(), buffers.clone()),
            admitted: false,
            phase,
            deadline: None,
            received_bytes: 0,
            received_frames: 0,
            incoming: Progress::default(),
            outgoing: Progress::default(),
            bulk: None,
            paused: None,
            sharing: Sharing::No,
        }
    }
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.link.fd
    }
    pub(crate) fn accepted(accepted: Accepted, place: Place, buffers: &BulkBuffers) -> Self {
        let Accepted { fd, peer, sums, administrator, same_host, .. } = accepted;
        let origin = match (administrator, same_host) {
            (true, _) => Origin::Administrator,
            (false, true) => Origin::Host,
            (false, false) => Origin::Network,
        };
        Self::new(SocketLink::new(fd, peer, sums, origin, Some(place)), Phase::Unnamed, buffers)
    }

    /// The loop takes the socket over.
    pub(crate) fn start(&mut self, shared: &Arc<Shared>, handle: &LoopHandle, token: u64) -> bool {
        let index = driver::event_loop().unwrap_or(0);
        self.deadline = Some(clock::now() + shared.config.handshake_max);
        let _once = self.link.at.set((index, token));
        let _once = self.link.node.set(shared.clone());
        let flags = match self.phase {
            Phase::Connecting(..) => EventFlags::OUT,
            _ => EventFlags::IN,
        };
        match handle.watch(&self.link.fd, token, flags) {
            Ok(()) => true,
            Err(error) => {
                self.lost(&format!("the socket cannot be watched: {error}"));
                false
            }
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
    pub(crate) fn timed_out(&mut self, shared: &Shared) {
        if matches!(self.phase, Phase::Unnamed) {
            shared.complain(&self.link.peer, "it never said what it wants");
        }
        self.lost("no reply in time");
    }
    /// Disconnects a peer that neither completes its frames nor receives ours; returns whether it did. With
    /// `stood_still` this process was the one that stood still.
    pub(crate) fn check_progress(&mut self, shared: &Shared, now: Instant, stood_still: bool) -> bool {
        if stood_still {
            self.incoming.forget();
            self.outgoing.forget();
        }
        if self.is_paused() {
            self.incoming.forget(); // it is not asked for more
        }
        let max = shared.config.stall_max;
        let (bytes, frames) = (self.received_bytes, self.received_frames);
        let within = !self.decoder.is_between_frames();
        let (waits, sent, ends) = self.link.sending();
        let what = if self.incoming.is_stalled(now, within, bytes, frames, max) {
            "began a frame and does not go on with it"
        } else if self.outgoing.is_stalled(now, waits, sent, ends, max) {
            "does not read what it is sent"
        } else {
            return false;
        };
        let reason = format!("{what}, for {} s", max.as_secs_f64());
        shared.complain(&self.link.peer, &reason);
        self.lost(&reason);
        true
    }

    /// Handles readiness; `false` when the socket has ended.
    pub(crate) fn ready(&mut self, shared: &Arc<Shared>, flags: EventFlags) -> bool {
        if let Phase::Connecting(..) = self.phase {
            return self.connected();
        }
        if flags.contains(EventFlags::OUT) {
            self.link.resume();
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return true;
        }
        match self.read(shared, flags.intersects(EventFlags::HUP | EventFlags::ERR)) {
            Ok(()) => true,
            Err(reason) => {
                self.lost(&reason);
                false
            }
        }
    }

    fn connected(&mut self) -> bool {
        let Phase::Connecting(opening, candidate) = &self.phase else { return true };
        let (mut opening, candidate) = (opening.clone(), candidate.clone());
        let greeted = nacre_net::connect_result(&self.link.fd, &candidate).and_then(|()| {
            self.sharing = self.link.greet(&opening)?;
            self.link.watch_for(EventFlags::IN);
            Ok(())
        });
        match greeted {
            Ok(()) => {
                self.phase = Phase::Greeting(opening);
                true
            }
            Err(error) => {
                self.phase = Phase::Ended;
                opening.absent &= error.is_absence();
                match opening.rest.is_empty() {
                    true => opening.failed(&error),
                    false => {
                        let rest = opening.rest.clone();
                        opening.try_each(rest);
                    }
                }
                false
            }
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.is_some_and(|paused| paused.frames.is_none())
    }
    /// Checks whether a paused connection may be read again; `true`: not yet.
    pub(crate) fn stays_paused(&mut self, shared: &Shared) -> bool {
        let stays = self.must_pause(shared);
        if !stays {
            self.link.watch_reads(true);
        }
        stays
    }
    fn must_pause(&mut self, shared: &Shared) -> bool {
        let (Phase::Open { conn, .. }, Some(bulk)) = (&self.phase, &self.bulk) else { return false };
        let config = &shared.config;
        let is_full = conn.outbox.with(|o| o.queued_bytes()) > config.send_queue_pause_bytes
            || bulk.own() > 0 && shared.bulk.used() > config.bulk_bytes_max;
        if !is_full {
            self.paused = None;
            return false;
        }
        let now = clock::now();
        let (until, came) = (now + config.pause_max, self.received_frames);
        let paused = self.paused.get_or_insert_with(|| {
            shared.stats.reads_paused.add(1);
            Paused { until, frames: None }
        });
        match paused.frames {
            None if now >= paused.until => paused.frames = Some(came + 1),
            Some(frames) if came >= frames => *paused = Paused { until, frames: None },
            Some(_) | None => {}
        }
        paused.frames.is_none()
    }

    /// Reads available bytes and puts the frames onto this thread's queue. `Err`: the connection has ended. With `ends`
    /// the peer has closed, and the connection is read in any case.
    fn read(&mut self, shared: &Arc<Shared>, ends: bool) -> Result<(), String> {
        for _ in 0..READS_PER_TURN {
            if !ends && self.must_pause(shared) {
                self.link.watch_reads(false);
                return Ok(());
            }
            let mut frames = Vec::new();
            self.look_if_admitted();
            let received = match self.phase {
                Phase::Unnamed if self.link.is_unix => self.receive_greeting(&mut frames),
                _ => SCRATCH.with(|scratch| {
                    nacre_net::receive(
                        &self.link.fd,
                        &mut self.decoder,
                        &mut scratch.borrow_mut(),
                        &mut |frame| frames.push(frame),
                    )
                }),
            };
            shared.stats.frames_received.add(frames.len() as u64);
            self.received_frames += frames.len() as u64;
            if let Ok(Received::Bytes { bytes, .. }) = received {
                self.received_bytes += bytes as u64;
            }
            for frame in frames {
                self.take_frame(shared, frame)?;
            }
            if let Sharing::Lends(memory) = &self.sharing {
                memory.look_for_returns();
            }
            match received {
                Ok(Received::Bytes { drained: false, .. }) => {}
                Ok(Received::Bytes { drained: true, .. } | Received::Nothing) => return Ok(()),
                Ok(Received::End) if self.decoder.is_between_frames() => {
                    return Err("closed by the peer".to_owned());
                }
                Ok(Received::End) => return Err("closed by the peer in the middle of a frame".to_owned()),
                Err(NetError::Frame(error)) => {
                    let sentence = error.to_string();
                    match self.phase {
                        Phase::Greeting(_) => shared.complain_again(&self.link.peer, &sentence),
                        _ => shared.complain(&self.link.peer, &sentence),
                    }
                    if matches!((&self.phase, error), (Phase::Unnamed, FrameError::BadVersion(_))) {
                        // Its header shows the peer which side has the older version.
                        let _unsent = self.link.write_now(nacre_net::hello_refused(Errno::EPROTO, &sentence));
                    }
                    return Err(sentence);
                }
                Err(error) => return Err(error.to_string()),
            }
            driver::run();
        }
        Ok(())
    }

    fn receive_greeting(&mut self, frames: &mut Vec<Frame>) -> Result<Received, NetError> {
        let mut passed = None;
        let received = nacre_net::receive_greeting(&self.link.fd, &mut self.decoder, &mut passed, &mut |f| {
            frames.push(f)
        });
        if let Some(descriptor) = passed {
            self.sharing = Sharing::Passed(descriptor);
        }
        received
    }

    fn take_frame(&mut self, shared: &Arc<Shared>, mut frame: Frame) -> Result<(), String> {
        match &self.phase {
            Phase::Open { island, conn } => {
                if matches!(frame.header.kind, Kind::Hello | Kind::HelloReply) {
                    shared.complain(&self.link.peer, "it greeted twice");
                    return Err("greeted twice".to_owned());
                }
                let connects =
                    (frame.header.kind, frame.header.opcode) == (Kind::Request, Opcode::Connect.number());
                if !self.admitted && !connects && !self.link.admitted.load(Ordering::Acquire) {
                    shared.complain(&self.link.peer, "a message before connect");
                    return Err("a message before connect".to_owned());
                }
                if let Some(share) = &self.bulk {
                    frame.bulk = frame.bulk.into_iter().map(|bytes| share.hold(bytes)).collect();
                }
                driver::push(Work::Event(island.clone(), Event::Frame { conn: conn.id, frame }));
                Ok(())
            }
            Phase::Greeting(opening) => {
                let Opening { island, conn, .. } = opening.clone();
                if let Err(error) = nacre_net::read_hello_reply(&frame) {
                    if error.is_absence() {
                        self.phase = Phase::Ended;
                        self.link.shut_down();
                        self.link.abandon();
                        driver::push_absent(&island, conn.id, format!("{}: {error}", self.link.peer));
                    }
                    return Err(error.to_string());
                }
                self.sharing =
                    match (std::mem::replace(&mut self.sharing, Sharing::No), &shared.config.shared_memory) {
                        (Sharing::Offered(lender), Some(memory)) if frame.header.has(flags::SHARED_BULK) => {
                            self.link.lock_writer().lend_with(Some(lender));
                            Sharing::Lends(memory.clone())
                        }
                        _ => Sharing::No,
                    };
                shared.stats.connections_opened.add(1);
                if conn.link.set(Link::Socket(self.link.clone())).is_err() {
                    unreachable!("a connection is opened once");
                }
                driver::push(Work::Event(island.clone(), Event::Opened { conn: conn.id }));
                driver::push(Work::StartSending(conn.clone()));
                self.open(island, conn);
                Ok(())
            }
            Phase::Unnamed => self.take_hello(shared, &frame),
            Phase::Connecting(..) | Phase::Ended => Err("unexpected frame".to_owned()),
        }
    }

    fn take_hello(&mut self, shared: &Arc<Shared>, frame: &Frame) -> Result<(), String> {
        let name = nacre_net::read_hello(frame).map_err(|error| {
            shared.complain(&self.link.peer, &error.to_string());
            error.to_string()
        })?;
        let Some(island) = Node::from(shared.clone()).island(name).filter(IslandRef::is_alive) else {
            shared.stats.connections_refused.add(1);
            let known: Vec<_> =
                Node::from(shared.clone()).islands().iter().map(|i| i.name().to_owned()).collect();
            let sentence = format!("no target {name} is served here (there are: {})", known.join(", "));
            // Normal while servers start: clients retry.
            tracing::debug!(peer = self.link.peer, wanted = name, "connection refused, no such target");
            let refusal = nacre_net::hello_refused(Errno::ENOENT, &sentence);
            return Err(match self.link.write_now(refusal) {
                Ok(()) => sentence,
                Err(error) => error.to_string(),
            });
        };
        shared.stats.connections_accepted.add(1);
        let id = shared.inbound_id();
        let conn = Conn::linked(id, Link::Socket(self.link.clone()), shared.config.send_queue_bytes_max);
        let mut reply = nacre_net::hello_reply();
        if frame.header.has(flags::SHARED_BULK)
            && let Sharing::Passed(memory) = std::mem::replace(&mut self.sharing, Sharing::No)
        {
            match self.decoder.share(&memory) {
                Ok(()) => reply = nacre_net::sharing(reply),
                Err(error) => {
                    tracing::debug!(peer = self.link.peer, %error, "the memory of a peer is not used")
                }
            }
        }
        self.sharing = Sharing::No;
        let _fresh = conn.push(Out::Frame { frame: reply, entry: 0 });
        let from = self.link.peer.clone();
        let origin = self.link.origin;
        driver::push(Work::Accept { island: island.clone(), conn: conn.clone(), from, origin });
        driver::push(Work::Drain(conn.clone()));
        self.bulk = Some(shared.bulk.share());
        self.decoder.set_limits(Limits::connect());
        self.deadline = None;
        self.phase = Phase::Open { island, conn };
        Ok(())
    }

    /// No large frame is buffered for a peer before the island has accepted it as a client. A client waits for its
    /// connect reply before it sends more, and that reply is sent later.
    fn look_if_admitted(&mut self) {
        if !self.admitted && self.link.admitted.load(Ordering::Acquire) {
            self.admitted = true;
            self.decoder.set_limits(Limits::default());
        }
    }

    fn open(&mut self, island: IslandRef, conn: Arc<Conn>) {
        self.decoder.set_limits(Limits::default());
        self.admitted = true;
        self.deadline = None;
        self.phase = Phase::Open { island, conn };
    }

    /// The connection has ended: notifies its island after the received frames.
    fn lost(&mut self, reason: &str) {
        let (island, conn): (IslandRef, ConnId) = match std::mem::replace(&mut self.phase, Phase::Ended) {
            Phase::Connecting(opening, _) | Phase::Greeting(opening) => (opening.island, opening.conn.id),
            Phase::Open { island, conn } => (island, conn.id),
            Phase::Unnamed | Phase::Ended => return self.link.shut_down(),
        };
        self.link.shut_down();
        self.link.abandon();
        let reason = self.link.broken_off.get().map_or(reason, String::as_str);
        driver::push_closed(&island, conn, format!("{}: {reason}", self.link.peer));
    }
}

// ---- the sender's side

impl Remote for SocketLink {
    fn peer(&self) -> &str {
        &self.peer
    }
    fn admit(&self) {
        self.admitted.store(true, Ordering::Release);
    }

    fn drain(&self, conn: &Arc<Conn>) {
        let mut batch = VecDeque::new();
        let (mut frames, mut lent) = (0, 0);
        let mut calls = 0;
        loop {
            conn.outbox.with(|o| o.take_batch(&mut batch, BATCH_FRAMES, BATCH_BYTES));
            if batch.is_empty() {
                match conn.outbox.with(Outbox::take_next) {
                    Next::Item(out) => batch.push_back(out),
                    Next::Released => break,
                }
            }
            let mut close = false;
            let mut writer = self.lock_writer();
            for out in batch.drain(..) {
                match out {
                    Out::Frame { frame, .. } => {
                        frames += 1;
                        lent += u64::from(writer.push(frame));
                    }
                    Out::Close(_) => close = true,
                    Out::Opened => {}
                }
            }
            let sent = writer.send(&self.fd, &mut calls);
            drop(writer);
            match sent {
                Ok(Sent::All) if !close => {}
                Ok(Sent::Blocked) if !close => {
                    self.stats(|s| s.sends_blocked.add(1));
                    if self.wait_for_room(conn) {
                        self.watch_for(EventFlags::IN | EventFlags::OUT);
                        break; // the token stays with the socket
                    }
                    conn.outbox.with(Outbox::close);
                }
                // Closed, perhaps because the peer does not read: the loop detects the end.
                Ok(Sent::All | Sent::Blocked) => {
                    conn.outbox.with(Outbox::close);
                    self.shut_down();
                }
                Err(error) => {
                    conn.outbox.with(Outbox::close);
                    self.break_off(format!("send failed: {error}"));
                }
            }
        }
        self.stats(|s| {
            s.frames_sent.add(frames);
            s.frames_shared.add(lent);
            s.sends.add(calls);
        });
    }
    fn break_off(&self, reason: String) {
        let _first_reason_counts = self.broken_off.set(reason);
        self.shut_down();
    }
}

impl SocketLink {
    fn new(fd: OwnedFd, peer: String, sums: bool, origin: Origin, place: Option<Place>) -> Arc<Self> {
        Arc::new(Self {
            fd,
            peer,
            origin,
            is_unix: !sums,
            admitted: AtomicBool::new(false),
            writer: Mutex::new(Writer::new(sums)),
            at: OnceLock::new(),
            node: OnceLock::new(),
            broken_off: OnceLock::new(),
            blocked: Mutex::default(),
            unblocked: AtomicU64::new(0),
            _place: place,
        })
    }

    /// There is room again: the socket holds the send token and continues.
    fn resume(&self) {
        let Some(conn) = self.lock_blocked().conn.take() else { return };
        let mut calls = 0;
        let sent = self.lock_writer().send(&self.fd, &mut calls);
        self.stats(|s| s.sends.add(calls));
        match sent {
            Ok(Sent::Blocked) if self.wait_for_room(&conn) => return,
            Ok(Sent::Blocked) => conn.outbox.with(Outbox::close),
            Ok(Sent::All) => {
                self.unblocked.fetch_add(1, Ordering::Relaxed);
                self.watch_for(EventFlags::IN);
            }
            Err(error) => {
                conn.outbox.with(Outbox::close);
                self.break_off(format!("send failed: {error}"));
            }
        }
        self.drain(&conn);
    }

    /// Whether bytes wait for room, the bytes sent so far, and the number of times that all waiting bytes were sent.
    fn sending(&self) -> (bool, u64, u64) {
        let waits = self.lock_blocked().conn.is_some();
        (waits, self.lock_writer().sent_bytes(), self.unblocked.load(Ordering::Relaxed))
    }

    /// Leaves the send token with the socket; `false` if its loop has dropped the socket.
    fn wait_for_room(&self, conn: &Arc<Conn>) -> bool {
        let mut blocked = self.lock_blocked();
        if !blocked.over {
            blocked.conn = Some(conn.clone());
        }
        !blocked.over
    }

    /// The loop drops the socket: waiting bytes are discarded.
    fn abandon(&self) {
        self.lock_writer().lend_with(None);
        let conn = {
            let mut blocked = self.lock_blocked();
            blocked.over = true;
            blocked.conn.take()
        };
        if let Some(conn) = conn {
            conn.outbox.with(|o| {
                o.close();
                o.give_back();
            });
        }
    }

    /// Sends the Hello, and the memory for bulk with it if the server is on this machine.
    fn greet(&self, opening: &Opening) -> Result<Sharing, NetError> {
        let hello = nacre_net::hello(&opening.target);
        let memory = opening.node.config.shared_memory.as_ref().filter(|_| self.is_unix);
        let Some((memory, lender)) = memory.and_then(|memory| Some((memory, memory.lender(&self.fd)?)))
        else {
            return self.write_now(hello).map(|()| Sharing::No);
        };
        self.write_with(nacre_net::sharing(hello), Some(memory)).map(|()| Sharing::Offered(lender))
    }

    /// Sends a frame of the handshake, while no other thread sends. The frame is small and the socket is new, so there
    /// is room.
    fn write_now(&self, frame: Frame) -> Result<(), NetError> {
        self.write_with(frame, None)
    }
    fn write_with(&self, frame: Frame, memory: Option<&SharedMemory>) -> Result<(), NetError> {
        let mut writer = self.lock_writer();
        writer.push(frame);
        let mut calls = 0;
        let sent = match memory {
            Some(memory) => writer.send_with(&self.fd, memory, &mut calls),
            None => writer.send(&self.fd, &mut calls),
        };
        match sent {
            Ok(Sent::All) => Ok(()),
            Ok(Sent::Blocked) => Err(NetError::Handshake("the peer does not read".to_owned())),
            Err(error) => Err(NetError::Io { what: "send".to_owned(), cause: error }),
        }
    }

    pub(crate) fn shut_down(&self) {
        if let Err(error) = rustix::net::shutdown(&self.fd, Shutdown::Both) {
            tracing::debug!(peer = self.peer, %error, "socket was not connected any more");
        }
    }

    /// Watches the socket for input, or stops watching. Under the lock: a sender that found the socket full has
    /// registered for room before, or registers after this.
    fn watch_reads(&self, wanted: bool) {
        let blocked = self.lock_blocked();
        let mut flags = if wanted { EventFlags::IN } else { EventFlags::empty() };
        if blocked.conn.is_some() {
            flags |= EventFlags::OUT;
        }
        self.watch_for(flags);
    }
    fn watch_for(&self, flags: EventFlags) {
        if let (Some(node), Some(&(index, token))) = (self.node.get(), self.at.get())
            && let Some(handle) = node.loops.get(index)
            && let Err(error) = handle.watch_for(&self.fd, token, flags)
        {
            tracing::debug!(peer = self.peer, %error, "socket is not watched any more");
        }
    }
    fn stats(&self, f: impl FnOnce(&crate::NodeStats)) {
        if let Some(node) = self.node.get() {
            f(&node.stats);
        }
    }
    fn lock_blocked(&self) -> MutexGuard<'_, Blocked> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
