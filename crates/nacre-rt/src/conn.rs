//! One end of a connection: its outbox and its other end.
//!
//! Two islands of one process are connected by two such ends that name each other; frames are passed on without
//! encoding. Otherwise the other end is a socket.
//!
//! Invariants: frames of an island enter the outbox inside its visit; only the holder of the send token sends them; a
//! local end is drained in slices, so that one busy pair does not occupy a thread forever.

use crate::driver::{self, Work};
use crate::entry::{Guarded, Spin};
use crate::island::{Island, IslandRef};
use nacre_node::{Claim, ConnId, Event, Next, Outbox, OutboxError};
use nacre_wire::Frame;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

/// Frames delivered to the other island before other work gets its turn.
const SLICE: usize = 64;

/// An item in an outbox.
#[derive(Debug)]
pub(crate) enum Out {
    /// For the opener of a local connection: it is open.
    Opened,
    Frame {
        frame: Frame,
        /// The number of the entry into the island that sends it.
        entry: u64,
    },
    /// The last item.
    Close(String),
}

pub(crate) enum Link {
    Local { island: Weak<Island>, conn: ConnId },
    Socket(Arc<dyn Remote>),
}

/// The other end in another process.
pub(crate) trait Remote: Send + Sync {
    /// For people.
    fn peer(&self) -> &str;
    /// The peer may send large frames from now on.
    fn admit(&self);
    /// Sends the frames in the outbox of `conn`, whose send token the caller holds.
    fn drain(&self, conn: &Arc<Conn>);
    /// Ends the connection; its loop detects the end and reports this reason to the island.
    fn break_off(&self, reason: String);
}

/// One end of a connection of an island. Its parts guard their own state.
pub(crate) struct Conn {
    /// The number by which the owning island knows this end.
    pub(crate) id: ConnId,
    pub(crate) outbox: Guarded<Outbox<Out>>,
    /// Set once, before the send token is first free.
    pub(crate) link: OnceLock<Link>,
}

impl Conn {
    /// An end that is being opened: its outbox is held.
    pub(crate) fn opening(id: ConnId, bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { id, outbox: Guarded::new(Outbox::held(bytes_max)), link: OnceLock::new() })
    }
    pub(crate) fn linked(id: ConnId, link: Link, bytes_max: usize) -> Arc<Self> {
        let bytes_max = match link {
            // The frames belong to the sender's memory: slots and grants bound them, not this queue.
            Link::Local { .. } => usize::MAX,
            Link::Socket(_) => bytes_max,
        };
        Arc::new(Self { id, outbox: Guarded::new(Outbox::new(bytes_max)), link: OnceLock::from(link) })
    }

    pub(crate) fn is_socket(&self) -> bool {
        matches!(self.link.get(), Some(Link::Socket(_)))
    }

    pub(crate) fn push(&self, out: Out) -> Result<(), OutboxError> {
        let cost = match &out {
            Out::Frame { frame, .. } => match self.link.get() {
                Some(Link::Local { .. }) => 0,
                _ => frame.cost(),
            },
            Out::Opened | Out::Close(_) => 0,
        };
        self.outbox.with(|o| o.push(out, cost))
    }

    /// The peer is a client: it may send large frames.
    pub(crate) fn admit(&self) {
        if let Some(Link::Socket(link)) = self.link.get() {
            link.admit();
        }
    }
    /// A text about the other end, for people.
    pub(crate) fn peer_text(&self) -> String {
        match self.link.get() {
            Some(Link::Socket(link)) => link.peer().to_owned(),
            Some(Link::Local { .. }) => "an island of this process".to_owned(),
            None => "a peer that has not replied yet".to_owned(),
        }
    }
    /// Closes a socket without sending waiting frames; `true` if its loop notifies the island.
    pub(crate) fn break_off(&self, reason: &str) -> bool {
        self.outbox.with(Outbox::close);
        match self.link.get() {
            Some(Link::Socket(link)) => {
                link.break_off(reason.to_owned());
                true
            }
            Some(Link::Local { .. }) | None => false,
        }
    }

    /// Sends the frames in the outbox, unless another thread does so: that thread will see them.
    pub(crate) fn drain(self: &Arc<Self>) {
        // The outbox of a connection that is being opened is held.
        let Some(link) = self.link.get() else { return };
        match link {
            Link::Local { island, conn } if self.take_token_soon() => self.drain_local(island, *conn),
            Link::Socket(link) if self.outbox.with(Outbox::take_token) => link.drain(self),
            Link::Local { .. } | Link::Socket(_) => {}
        }
    }

    /// Takes the token. If another thread has it and is visiting the other island for its own frame, waits for it
    /// briefly: if this frame were left to that thread, its reply would need a wake-up of this thread on another CPU.
    fn take_token_soon(&self) -> bool {
        /// The holder needs the lock of the outbox too.
        const TURNS_BETWEEN_LOOKS: usize = 16;
        let mut claim = self.outbox.with(Outbox::take_token_or_wait);
        if claim != Claim::Waiting {
            return claim == Claim::Taken;
        }
        let mut spin = Spin::begin();
        while claim == Claim::Waiting {
            let goes_on = (0..TURNS_BETWEEN_LOOKS).all(|_| spin.again());
            claim = self.outbox.with(if goes_on { Outbox::wait_for_token } else { Outbox::end_wait });
        }
        claim == Claim::Taken
    }

    fn drain_local(self: &Arc<Self>, peer: &Weak<Island>, at_peer: ConnId) {
        let peer = peer.upgrade().map(IslandRef::from);
        for _ in 0..SLICE {
            let out = match self.outbox.with(Outbox::take_next) {
                Next::Item(out) => out,
                Next::Released => return,
            };
            let Some(peer) = &peer else { continue };
            match out {
                Out::Opened => peer.visit_once(Event::Opened { conn: at_peer }),
                Out::Frame { frame, entry } => driver::with_events(|events| {
                    events.push_back(Event::Frame { conn: at_peer, frame });
                    self.take_frames(entry, at_peer, events);
                    peer.visit(events);
                }),
                Out::Close(reason) => {
                    peer.visit_once(Event::Closed { conn: at_peer, reason, absent: false });
                    self.outbox.with(Outbox::close);
                }
            }
            if self.outbox.with(Outbox::pass_token_on) {
                return;
            }
        }
        self.outbox.with(Outbox::give_back);
        driver::push(Work::Drain(self.clone()));
    }
    /// Takes further frames of the same entry. Frames of other entries are left to the threads that wait for them.
    fn take_frames(&self, entry: u64, at_peer: ConnId, events: &mut VecDeque<Event>) {
        let is_of_entry = |out: &Out| matches!(out, Out::Frame { entry: of, .. } if *of == entry);
        self.outbox.with(|o| {
            while events.len() < driver::EVENTS_PER_ENTRY
                && let Some(Out::Frame { frame, .. }) = o.take_next_if(is_of_entry)
            {
                events.push_back(Event::Frame { conn: at_peer, frame });
            }
        });
    }
}
