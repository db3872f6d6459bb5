//! The async face of an import: one target as a client of it sees it.
//!
//! `Peer` owns the connection to a target, keeps it open, and turns calls into futures. The rules (slots, tags, xids,
//! resend, replay) are those of `nacre_rpc::Import`; this folder only connects them to tasks and effects: `call` has the
//! calls, `effects` the events and effects, `set` the table of the peers of an island, `error` the outcome of a call.
//!
//! Invariants: the import is borrowed for one step at a time and never while a handler or a task runs; its effects are
//! carried out in order; one task per peer keeps its deadlines. A call costs one promise.

mod call;
mod effects;
mod error;
mod set;

pub use call::{Call, Reply};
pub use error::RpcError;
pub use set::Peers;

use crate::ctx::Ctx;
use crate::event::ConnId;
use crate::executor::{Promise, WaitList};
use crate::outage::Outage;
use alloc::boxed::Box;
use alloc::rc::{Rc, Weak};
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_rpc::{CallError, Import, ImportConfig, ImportState};
use nacre_types::{ClientUuid, ConnEpoch, Errno, Instant, Remembered, Secret, Transno};
use nacre_wire::Frame;
use nacre_wire::params::ImportParam;
use nacre_wire::target::Role;

/// Configuration of a peer.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    /// Identity of the client.
    pub client: ClientUuid,
    /// Whether the client mounts, serves a target or is a tool.
    pub role: Role,
    /// See [`nacre_wire::target::Connect::secret`].
    pub secret: Secret,
    /// Name of the client in the server's logs, for people.
    pub name: String,
    /// Name of the island: `MGS`, `demo-MDT0000`.
    pub target: String,
    /// Addresses of the target, tried in turn.
    pub addresses: Vec<String>,
    /// Modifying requests in flight.
    pub max_mod_rpcs: u16,
    /// Identity of the expected target, from the list of targets; `None` accepts any target.
    pub known: Option<Remembered>,
    /// See `TargetEntry`.
    pub replaced: u32,
    /// See [`nacre_wire::target::Connect::instance`].
    pub instance: u64,
}

/// Ordinary requests in flight, unless set otherwise (`max_rpcs_in_flight`).
const MAX_RPCS: u16 = ImportParam::MdcMaxRpcs.row().default_u16();

type CallbackHandler = Box<dyn Fn(&Frame)>;
/// A handler of evictions or restarts.
type Handler = Box<dyn Fn()>;
/// The token of a call in the import: fulfilled with its reply.
type PendingCall = Promise<Result<Frame, CallError>>;

/// One import. Calls wait while the target is away and are resent when it is back.
pub struct Peer {
    me: Weak<Peer>,
    ctx: Rc<Ctx>,
    peers: Rc<Peers>,
    name: String,
    target: String,
    import: RefCell<Import<PendingCall>>,
    /// The connection in use, with its epoch.
    conn: Cell<Option<(ConnId, ConnEpoch)>>,
    on_callback: RefCell<Option<Rc<CallbackHandler>>>,
    on_evicted: RefCell<Option<Rc<Handler>>>,
    on_restarted: RefCell<Option<Rc<Handler>>>,
    /// Woken when the state of the import, its commit numbers or the room in it have changed.
    changed: WaitList,
    stopped: Cell<bool>,
    /// The latest connection attempt found that no process serves the target at its address.
    absent: Cell<bool>,
    /// A request that makes data stable is under way.
    syncing: Cell<bool>,
    /// The error of the latest such request.
    sync_error: Cell<Option<Errno>>,
    /// The task of the deadlines sleeps until then; `rearm` wakes it earlier.
    armed: Cell<Instant>,
    rearm: WaitList,
    /// The server's wall clock minus that of this island.
    wall_offset_ns: Cell<i64>,
    outage: Outage,
}

impl Peer {
    /// Starts to connect at once; `peers` routes the events of its connections to it.
    pub fn new(ctx: &Rc<Ctx>, peers: &Rc<Peers>, config: PeerConfig) -> Rc<Peer> {
        let import = ImportConfig {
            client: config.client,
            role: config.role,
            secret: config.secret,
            name: config.name.clone(),
            addresses: config.addresses,
            max_mod_rpcs: config.max_mod_rpcs,
            max_rpcs: MAX_RPCS,
            known: config.known,
            replaced: config.replaced,
            instance: config.instance,
            seed: ctx.random() | 1,
        };
        let peer = Rc::new_cyclic(|me| Peer {
            me: me.clone(),
            ctx: ctx.clone(),
            peers: peers.clone(),
            name: config.name,
            target: config.target,
            import: RefCell::new(Import::new(ctx.now(), import)),
            conn: Cell::new(None),
            on_callback: RefCell::new(None),
            on_evicted: RefCell::new(None),
            on_restarted: RefCell::new(None),
            changed: ctx.wait_list(),
            stopped: Cell::new(false),
            absent: Cell::new(false),
            syncing: Cell::new(false),
            sync_error: Cell::new(None),
            armed: Cell::new(Instant(u64::MAX)),
            rearm: ctx.wait_list(),
            wall_offset_ns: Cell::new(0),
            outage: Outage::default(),
        });
        peer.import.borrow_mut().set_ping_rank(peers.next_rank());
        peer.drain();
        ctx.spawn(peer.clone().keep_deadlines());
        peer
    }

    /// Sets the handler of callbacks. Each callback is delivered once, in order, and acknowledged when the handler returns.
    pub fn on_callback(&self, handler: CallbackHandler) {
        *self.on_callback.borrow_mut() = Some(Rc::new(handler));
    }
    /// Sets the handler of evictions. It runs before any call on the new export.
    pub fn on_evicted(&self, handler: Handler) {
        *self.on_evicted.borrow_mut() = Some(Rc::new(handler));
    }
    /// Sets the handler of restarts of the target. It runs when the target is another instance than before, which has
    /// lost the state that the former one had in memory.
    pub fn on_restarted(&self, handler: Handler) {
        *self.on_restarted.borrow_mut() = Some(Rc::new(handler));
    }
    /// Sets the addresses of the target. A connection that is up stays.
    pub fn set_addresses(&self, addresses: Vec<String>) {
        self.import.borrow_mut().set_addresses(self.ctx.now(), addresses);
        self.drain();
    }
    /// Sets the identity of the expected target, from the list of targets.
    pub fn expect(&self, target: Remembered, replaced: u32) {
        self.import.borrow_mut().expect(self.ctx.now(), target, replaced);
        self.drain();
        self.changed.wake_all();
    }
    /// Returns the identity of the target with the highest change that it has called durable.
    pub fn remembered(&self) -> Option<Remembered> {
        self.import.borrow().remembered()
    }
    /// Sets the limit of modifying requests in flight.
    pub fn set_max_mod_rpcs(&self, limit: u16) {
        self.import.borrow_mut().set_max_mod_rpcs(self.ctx.now(), limit);
        self.drain();
    }
    /// Sets the limit of ordinary requests in flight; it is at least one more than that of modifying ones.
    pub fn set_max_rpcs(&self, limit: u16) {
        self.import.borrow_mut().set_max_rpcs_in_flight(self.ctx.now(), limit);
        self.drain();
    }
    /// Sets whether calls wait for the target (the default) or fail at once.
    pub fn set_active(&self, active: bool) {
        self.import.borrow_mut().set_active(self.ctx.now(), active);
        self.drain();
        self.changed.wake_all();
    }
    /// Ends the import: outstanding calls finish with `Stopped`, and the server is notified.
    pub async fn disconnect(&self) {
        self.import.borrow_mut().stop(self.ctx.now());
        self.drain();
        while !self.stopped.get() {
            self.changed.wait().await;
        }
    }

    // ---- state

    /// Whether the import is usable now.
    pub fn is_connected(&self) -> bool {
        self.import.borrow().state() == ImportState::Full
    }
    /// Whether the target was restarted and is in recovery: it replies, but does not execute requests yet.
    pub fn is_recovering(&self) -> bool {
        use ImportState::{Recover, Replay, ReplayLocks, ReplayWait};
        matches!(self.import.borrow().state(), Replay | ReplayLocks | ReplayWait | Recover)
    }
    /// Whether [`Peer::disconnect`] has ended.
    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }
    /// Whether the latest connection attempt found that no process serves the target at its address.
    pub fn is_absent(&self) -> bool {
        self.absent.get()
    }
    /// Why the target at the address is not used; `None` if it is the expected one, or none replies.
    pub fn mismatch(&self) -> Option<String> {
        self.import.borrow().mismatch().map(String::from)
    }
    /// Waits until the import is usable or stopped.
    pub async fn connected(&self) {
        while !self.is_connected() && !self.stopped.get() {
            self.changed.wait().await;
        }
    }
    /// Waits for the next change of the state, of the commit numbers or of the configuration version.
    pub async fn changed(&self) {
        self.changed.wait().await;
    }
    /// Ends the waits of [`Peer::changed`], for changes beside the import.
    pub fn wake(&self) {
        self.changed.wake_all();
    }
    /// End of the time in which the target grants no conflicting lock to others: the lease minus the margin for clocks.
    pub fn granted_until(&self) -> Option<Instant> {
        self.import.borrow().lease().granted_until()
    }
    /// Whether locks that the target has granted may be used now.
    pub fn lease_ok(&self) -> bool {
        self.import.borrow().lease_ok(self.ctx.now())
    }
    /// Changes up to this one survive the loss of the server's machine.
    pub fn last_committed(&self) -> Transno {
        self.import.borrow().last_committed()
    }
    /// The bytes of writes up to this are on stable storage.
    pub fn last_stable(&self) -> Transno {
        self.import.borrow().last_stable()
    }
    /// Version of the list of targets, as of the latest ping of an MGS; 0 = not known.
    pub fn config_version(&self) -> u64 {
        self.import.borrow().config_version()
    }
    /// Why the last attempt to connect failed, a sentence; `None` while connected.
    pub fn last_error(&self) -> Option<String> {
        self.import.borrow().last_error().map(String::from)
    }
    /// The server's wall clock minus that of this island at the last connect, in nanoseconds.
    pub fn wall_offset_ns(&self) -> i64 {
        self.wall_offset_ns.get()
    }
    /// Name of the target.
    pub fn target(&self) -> &str {
        &self.target
    }
    /// Clears the histogram of requests in flight.
    pub fn clear_stats(&self) {
        self.import.borrow_mut().slots_mut().histogram_mut().clear();
    }
    /// Reads the import: state and history, slots, replay list, counts.
    pub fn with_import<T>(&self, read: impl FnOnce(&Import<PendingCall>) -> T) -> T {
        read(&self.import.borrow())
    }
}
