//! What goes into an island and what comes out of it.

use crate::ctx::Ctx;
use crate::store::{StoreDone, StoreError, StoreOp};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::any::Any;
use nacre_types::{Instant, Timestamp};
use nacre_wire::Frame;

/// One end of a connection as its island knows it. Outbound ones are numbered by the island
/// ([`Ctx::next_conn`]), inbound ones by the driver with [`ConnId::INBOUND`] set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);
impl ConnId {
    pub const INBOUND: u64 = 1 << 63;
}

/// Where the peer of an inbound connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// In this process, and it dies with it.
    Process,
    /// On this machine, under the user of this process or as root: the administrator.
    Administrator,
    /// On this machine, under any user.
    Host,
    /// Anywhere else: it may be anybody.
    Network,
}

/// Names a store operation under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoTicket(pub u64);

/// An input of an island. All inputs arrive as one of these; a run is a function of their sequence.
pub enum Event {
    /// The first event of an island's life.
    Start,
    /// A peer has connected to this island (its `Hello` named it). `from` is for people.
    Accepted {
        conn: ConnId,
        from: String,
        origin: Origin,
    },
    /// The connection that an [`Effect::Open`] asked for stands; frames may be sent.
    Opened {
        conn: ConnId,
    },
    /// The connection could not be opened, or is gone. Nothing more comes from it. Not told to the island that
    /// has closed it itself.
    Closed {
        conn: ConnId,
        reason: String,
        /// The machine has answered that nobody listens at the address, or the process there that it does not serve the
        /// target. Not of a host that cannot be reached: the target may live.
        absent: bool,
    },
    Frame {
        conn: ConnId,
        frame: Frame,
    },
    /// A store operation has ended.
    IoDone {
        ticket: IoTicket,
        result: Result<StoreDone, StoreError>,
    },
    /// A deadline of [`Ctx::deadline`] has passed (spurious ones are harmless).
    Timer,
    /// A request of a front end (FUSE, library, simulated process); the island knows the type.
    Door(Box<dyn Any + Send>),
    /// Planned stop: finish, commit, hand over, then push [`Effect::Stopped`].
    Stop,
}

/// An output of an island, carried out by whoever leaves it, in order.
pub enum Effect {
    /// Connect to the island `target` at `address` (`unix:/path`, `host:port`).
    Open { conn: ConnId, address: String, target: String },
    /// Goes into the connection's outbox inside the visit, so that order holds.
    Send { conn: ConnId, frame: Frame },
    /// The peer of an inbound connection is a client now and may send large frames. Before its answer is sent.
    Admit { conn: ConnId },
    /// After what was sent before. Nothing comes from the connection after this, no `Closed` either.
    Close { conn: ConnId },
    /// Run a store operation outside the island; `IoDone` follows. Operations under way are not ordered among
    /// each other.
    Io { ticket: IoTicket, op: StoreOp },
    /// For the front end (a reply, a kernel notification).
    Door(Box<dyn Any + Send>),
    /// The planned stop is complete.
    Stopped,
    /// The island cannot go on (failed log, bug); the driver drops it. The text is for the operator.
    Fatal(String),
    /// The island must not be used by anybody (another target has its name, or it has gone back); the driver drops it. The
    /// text is for the operator.
    Refused(String),
}

/// A single-threaded state machine with its tasks.
pub trait Logic {
    fn ctx(&self) -> &Rc<Ctx>;

    /// Takes in one event. Runs no task itself: [`visit`] does.
    fn handle(&mut self, event: Event);

    /// Called at the end of each visit: the writes (log bytes) that must be carried out, in order, before any
    /// effect of this visit leaves and before anybody else enters.
    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        let _ = out;
    }

    /// A write of `log_writes` failed. The effects of the visit are thrown away; the island ends.
    fn log_failed(&mut self, error: &StoreError) {
        let _ = error;
    }
}

/// One visit: sets the clocks, takes in the event, runs every task that can run. The driver then executes
/// `log_writes`, takes the effects ([`Ctx::take_effects`]) and leaves.
pub fn visit(logic: &mut dyn Logic, now: Instant, wall: Timestamp, event: Event) {
    let ctx = logic.ctx().clone();
    ctx.set_time(now, wall);
    match event {
        Event::IoDone { ticket, result } => ctx.complete_io(ticket, result),
        Event::Timer => {}
        other => logic.handle(other),
    }
    ctx.run();
}
