//! Events (inputs) and effects (outputs) of an island.

use crate::ctx::Ctx;
use crate::store::{StoreDone, StoreError, StoreOp};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::any::Any;
use nacre_types::{Instant, Timestamp};
use nacre_wire::Frame;

/// One end of a connection as its island knows it. Outbound ones are numbered by the island
/// ([`Ctx::next_conn`]), inbound ones by the driver with [`ConnId::INBOUND`] set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);
impl ConnId {
    /// Bit of all numbers that drivers give, so that they never meet those of the island.
    pub const INBOUND: u64 = 1 << 63;
}

/// Origin of the peer of an inbound connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// In this process; the peer ends with it.
    Process,
    /// On this machine, under the user of this process or as root: the administrator.
    Administrator,
    /// On this machine, under any user.
    Host,
    /// Elsewhere: the peer is not trusted.
    Network,
}

/// Names a store operation under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoTicket(pub u64);

/// An input of an island. All inputs arrive as one of these; a run is a function of their sequence.
pub enum Event {
    /// The first event of an island's life.
    Start,
    /// A peer has connected to this island, which its `Hello` named. `from` is a text for people.
    Accepted {
        conn: ConnId,
        from: String,
        origin: Origin,
    },
    /// The connection requested by an [`Effect::Open`] is open; frames may be sent.
    Opened {
        conn: ConnId,
    },
    /// The connection could not be opened, or has ended. No more events come from it. An island that closes a
    /// connection itself does not get this event.
    Closed {
        conn: ConnId,
        reason: String,
        /// The machine refused the connection, or the process at the address does not serve the target. False if the
        /// host cannot be reached: the target may be alive.
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
    /// A request of a front end (FUSE, library, simulated process), of a type that the island knows.
    Door(Box<dyn Any + Send>),
    /// Planned stop: finish work, commit, then push [`Effect::Stopped`].
    Stop,
}

/// An output of an island. The thread that leaves the island carries out the effects in order.
pub enum Effect {
    /// Connect to the island `target` at `address` (`unix:/path`, `host:port`).
    Open { conn: ConnId, address: String, target: String },
    /// Goes into the connection's outbox inside the visit, so that order holds.
    Send { conn: ConnId, frame: Frame },
    /// The peer of an inbound connection is a client now and may send large frames. Comes before the connect reply is
    /// sent.
    Admit { conn: ConnId },
    /// Takes effect after frames sent before. No event comes from the connection after this, not even `Closed`.
    Close { conn: ConnId },
    /// Run a store operation outside the island; `IoDone` follows. Operations under way are not ordered among
    /// each other.
    Io { ticket: IoTicket, op: StoreOp },
    /// For the front end (a reply, a kernel notification).
    Door(Box<dyn Any + Send>),
    /// The planned stop is complete.
    Stopped,
    /// The island cannot continue (failed log, bug); the driver drops it. The text is for the operator.
    Fatal(String),
    /// The island must not be used (another target has its name, or it is an old copy); the driver drops it. The text
    /// is for the operator.
    Refused(String),
}

/// A single-threaded state machine with its tasks.
pub trait Logic {
    fn ctx(&self) -> &Rc<Ctx>;

    /// Handles one event. Runs no task: [`visit`] does.
    fn handle(&mut self, event: Event);

    /// Called at the end of each visit: the writes (log bytes) that must be carried out, in order, before any effect of
    /// this visit leaves and before another thread enters.
    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        let _ = out;
    }

    /// A write of `log_writes` failed. The effects of the visit are discarded; the island ends.
    fn log_failed(&mut self, error: &StoreError) {
        let _ = error;
    }
}

/// One visit: sets the clocks, handles the event, runs every task that can run. The driver then executes `log_writes`,
/// takes the effects ([`Ctx::take_effects`]) and leaves.
pub fn visit(logic: &mut dyn Logic, now: Instant, wall: Timestamp, event: Event) {
    let ctx = logic.ctx().clone();
    ctx.set_time(now, wall);
    match event {
        Event::IoDone { ticket, result } => {
            if let Err(error @ StoreError::Gone(_)) = &result {
                // Whatever met it: no other operation would tell of it, and changes would go on being acknowledged. Before
                // all effects of the tasks, which therefore do not leave.
                ctx.push(Effect::Fatal(error.to_string()));
            }
            ctx.complete_io(ticket, result);
        }
        Event::Timer => {}
        other => logic.handle(other),
    }
    ctx.run();
}
