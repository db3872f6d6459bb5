//! The async interface of an import: one target as its client sees it.
//!
//! `Peer` owns the connection to a target, keeps it open, and turns calls into futures. The rules (slots, tags, xids,
//! resend, replay) are `nacre_rpc::Import`; this file connects them to tasks and effects.
//!
//! Invariants: the import is borrowed for one step at a time and never while a handler or a task runs; its effects are
//! carried out in order; one task per peer handles its deadlines. A body is encoded once, and a call costs one promise.

use crate::complaints::Complaints;
use crate::ctx::Ctx;
use crate::event::{ConnId, Effect, Event};
use crate::executor::{Promise, WaitList};
use crate::outage::Outage;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::rc::{Rc, Weak};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use nacre_rpc::{CallError, Import, ImportConfig, ImportEffect, ImportState};
use nacre_types::{
    ClientUuid, Codec, ConnEpoch, Errno, Instant, ProtocolOutcome, Remembered, Secret, Transno,
};
use nacre_wire::target::{Role, Sync};
use nacre_wire::{Class, Frame, Rpc, Status};

/// The reason why a call has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The server answered with this error.
    #[error("{0}")]
    Errno(Errno),
    /// The server's reply has an outcome of the protocol, which the import leaves to its user.
    #[error("{0}")]
    Outcome(ProtocolOutcome),
    /// The target has evicted this client; the request was not executed, or its effect is gone with the export.
    #[error("evicted by the target")]
    Evicted,
    /// The import was stopped.
    #[error("stopped")]
    Stopped,
    /// The target was deactivated here.
    #[error("deactivated by the administrator")]
    Inactive,
    /// Another target answers in its place, or an old copy of it.
    #[error("another target answers, or one that has gone back")]
    Mismatch,
}
impl From<RpcError> for Errno {
    fn from(e: RpcError) -> Self {
        match e {
            RpcError::Errno(e) => e,
            RpcError::Outcome(outcome) => outcome.into(),
            RpcError::Evicted | RpcError::Inactive | RpcError::Mismatch => Errno::EIO,
            RpcError::Stopped => Errno::ESHUTDOWN,
        }
    }
}
impl From<CallError> for RpcError {
    fn from(e: CallError) -> Self {
        match e {
            CallError::Evicted => RpcError::Evicted,
            CallError::Stopped => RpcError::Stopped,
            CallError::Inactive => RpcError::Inactive,
            CallError::Mismatch => RpcError::Mismatch,
        }
    }
}

/// Configuration of a peer's connections.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    pub client: ClientUuid,
    pub role: Role,
    /// See [`nacre_wire::target::Connect::secret`].
    pub secret: Secret,
    /// For people, in the server's logs.
    pub name: String,
    /// Name of the island: `MGS`, `demo-MDT0000`.
    pub target: String,
    /// Tried in turn.
    pub addresses: Vec<String>,
    pub max_mod_rpcs: u16,
    /// The target that is meant, from the list of targets; `None`: any.
    pub known: Option<Remembered>,
    /// See `TargetEntry`.
    pub replaced: u32,
    /// See [`nacre_wire::target::Connect::instance`].
    pub instance: u64,
}

/// Ordinary requests in flight, unless set otherwise (`max_rpcs_in_flight`).
const MAX_RPCS: u16 = 8;

type CallbackHandler = Box<dyn Fn(&Frame)>;
type EvictionHandler = Box<dyn Fn()>;
type Answer = Promise<Result<Frame, CallError>>;

/// One import. Calls wait while the target is away and are resent when it is back.
pub struct Peer {
    me: Weak<Peer>,
    ctx: Rc<Ctx>,
    peers: Rc<Peers>,
    name: String,
    target: String,
    import: RefCell<Import<Answer>>,
    /// The connection in use, with its epoch.
    conn: Cell<Option<(ConnId, ConnEpoch)>>,
    on_callback: RefCell<Option<Rc<CallbackHandler>>>,
    on_evicted: RefCell<Option<Rc<EvictionHandler>>>,
    on_restarted: RefCell<Option<Rc<EvictionHandler>>>,
    /// The state of the import, its knowledge, or its room has changed.
    changed: WaitList,
    stopped: Cell<bool>,
    /// The latest attempt found that no process serves the target at its address.
    absent: Cell<bool>,
    /// A request that makes data stable for this client is in flight.
    asks_for_stable: Cell<bool>,
    /// The reason of its failure.
    stable_refused: Cell<Option<Errno>>,
    /// The time until which the deadline task sleeps, and its earlier wake-up.
    armed: Cell<Instant>,
    rearm: WaitList,
    /// The server's wall clock less ours.
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
            asks_for_stable: Cell::new(false),
            stable_refused: Cell::new(None),
            armed: Cell::new(Instant(u64::MAX)),
            rearm: ctx.wait_list(),
            wall_offset_ns: Cell::new(0),
            outage: Outage::default(),
        });
        peer.import.borrow_mut().set_ping_rank(peers.made.replace(peers.made.get() + 1));
        peer.drain();
        ctx.spawn(peer.clone().keep_deadlines());
        peer
    }

    // ---- calls

    /// Sends a request and waits for its reply, however long the target is away.
    ///
    /// # Errors
    /// See [`RpcError`]. An error says that the request was not executed, except `Evicted`.
    pub async fn call<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, RpcError> {
        self.call_bulk(request, Vec::new()).await.map(|(reply, _)| reply)
    }
    /// Like `call`, with bulk bytes in both directions.
    pub async fn call_bulk<'a, R: Rpc + Codec<'a>>(
        &self,
        request: &R,
        bulk: Vec<Bytes>,
    ) -> Result<(R::Reply, Vec<Bytes>), RpcError> {
        self.call_whole(request, 0, bulk).await.map(|(reply, frame)| (reply, frame.bulk))
    }
    /// Like `call_bulk`, with flags of the request's header, and with the reply's frame.
    pub async fn call_whole<'a, R: Rpc + Codec<'a>>(
        &self,
        request: &R,
        flags: u32,
        bulk: Vec<Bytes>,
    ) -> Result<(R::Reply, Frame), RpcError> {
        self.call_as(R::CLASS, request, flags, bulk).await
    }
    /// Like `call_bulk`, for a change of an object with a deadline for its start; [`ProtocolOutcome::DeadlinePassed`] says
    /// that it was not executed.
    pub async fn call_until<'a, R: Rpc + Codec<'a>>(
        &self,
        request: &R,
        bulk: Vec<Bytes>,
        until: Option<Instant>,
    ) -> Result<R::Reply, RpcError> {
        let body = Bytes::from(request.to_vec());
        let request =
            nacre_rpc::Request { opcode: R::OPCODE, class: R::CLASS, flags: 0, body, bulk, job: 0, until };
        self.call_encoded::<R>(request).await.map(|(reply, _)| reply)
    }
    /// Like `call_whole`, treated here as a request of another class.
    pub async fn call_as<'a, R: Rpc + Codec<'a>>(
        &self,
        class: Class,
        request: &R,
        flags: u32,
        bulk: Vec<Bytes>,
    ) -> Result<(R::Reply, Frame), RpcError> {
        let body = Bytes::from(request.to_vec());
        let request = nacre_rpc::Request { opcode: R::OPCODE, class, flags, body, bulk, job: 0, until: None };
        self.call_encoded::<R>(request).await
    }
    async fn call_encoded<'a, R: Rpc + Codec<'a>>(
        &self,
        request: nacre_rpc::Request,
    ) -> Result<(R::Reply, Frame), RpcError> {
        let frame = self.send(request).await?;
        match R::Reply::from_slice(&frame.body) {
            Ok(reply) => Ok((reply, frame)),
            Err(error) => {
                tracing::warn!(target_name = %self.target, opcode = ?R::OPCODE, %error, "reply cannot be read");
                Err(RpcError::Errno(Errno::EPROTO))
            }
        }
    }
    /// Sends an encoded request and returns the reply frame (transno and commit numbers are in its header).
    ///
    /// # Errors
    /// As for `call`.
    pub async fn send(&self, request: nacre_rpc::Request) -> Result<Frame, RpcError> {
        if request.opcode.changes_bytes() {
            self.wait_for_data_room().await?;
        }
        while !self.import.borrow().has_room() && self.fails_no_calls() {
            self.changed.wait().await;
        }
        let (promise, answer) = self.ctx.promise();
        self.import.borrow_mut().call(self.ctx.now(), request, promise);
        self.drain();
        let frame = answer.await.unwrap_or(Err(CallError::Stopped))?;
        match frame.header.status {
            Status::Success => Ok(frame),
            Status::Errno(errno) => Err(RpcError::Errno(errno)),
            Status::Outcome(outcome) => Err(RpcError::Outcome(outcome)),
        }
    }

    /// Written data is kept until it is stable. At the bound of kept data writes wait; from half of the bound on the
    /// target is asked to make the data stable, in parallel with the writes.
    async fn wait_for_data_room(&self) -> Result<(), RpcError> {
        loop {
            self.ask_for_stable();
            if self.import.borrow().has_data_room() || !self.fails_no_calls() {
                return Ok(());
            }
            self.changed.wait().await;
            if let Some(errno) = self.stable_refused.get() {
                return Err(RpcError::Errno(errno));
            }
        }
    }
    fn ask_for_stable(&self) {
        if !self.import.borrow().wants_stable() || self.asks_for_stable.replace(true) {
            return;
        }
        self.stable_refused.set(None);
        let this = self.me.upgrade().expect("alive while it is called");
        self.ctx.spawn(async move {
            if let Err(RpcError::Errno(errno)) = Box::pin(this.call(&Sync {})).await {
                this.stable_refused.set(Some(errno));
            }
            this.asks_for_stable.set(false);
            this.changed.wake_all();
        });
    }

    fn fails_no_calls(&self) -> bool {
        let import = self.import.borrow();
        import.is_active() && import.mismatch().is_none()
    }

    /// Sets the handler of callbacks. It gets each one once, in order; the callback is acknowledged when the handler
    /// has returned.
    pub fn on_callback(&self, handler: CallbackHandler) {
        *self.on_callback.borrow_mut() = Some(Rc::new(handler));
    }
    /// Sets the handler that is called at each eviction of this client, before any call on the new export.
    pub fn on_evicted(&self, handler: EvictionHandler) {
        *self.on_evicted.borrow_mut() = Some(Rc::new(handler));
    }
    /// Sets the handler that is called when the target is another instance than before, which has lost its state in
    /// memory.
    pub fn on_restarted(&self, handler: EvictionHandler) {
        *self.on_restarted.borrow_mut() = Some(Rc::new(handler));
    }
    /// Sets new addresses of the target.
    pub fn set_addresses(&self, addresses: Vec<String>) {
        self.import.borrow_mut().set_addresses(self.ctx.now(), addresses);
        self.drain();
    }
    /// Sets the identity of the target from the list of targets.
    pub fn expect(&self, target: Remembered, replaced: u32) {
        self.import.borrow_mut().expect(self.ctx.now(), target, replaced);
        self.drain();
        self.changed.wake_all();
    }
    /// The memory of the target's identity, for storage.
    pub fn remembered(&self) -> Option<Remembered> {
        self.import.borrow().remembered()
    }
    /// Limit of modifying requests in flight.
    pub fn set_max_mod_rpcs(&self, limit: u16) {
        self.import.borrow_mut().set_max_mod_rpcs(self.ctx.now(), limit);
        self.drain();
    }
    /// Limit of ordinary requests in flight; at least one more than the modifying ones.
    pub fn set_max_rpcs(&self, limit: u16) {
        self.import.borrow_mut().set_max_rpcs_in_flight(self.ctx.now(), limit);
        self.drain();
    }
    /// Whether calls wait for the target (the default) or fail at once.
    pub fn set_active(&self, active: bool) {
        self.import.borrow_mut().set_active(self.ctx.now(), active);
        self.drain();
        self.changed.wake_all();
    }
    /// Ends the import: outstanding calls finish with `Stopped`, and the target gets a Disconnect.
    pub async fn disconnect(&self) {
        self.import.borrow_mut().stop(self.ctx.now());
        self.drain();
        while !self.stopped.get() {
            self.changed.wait().await;
        }
    }

    // ---- what can be seen

    /// Whether the import is usable now.
    pub fn is_connected(&self) -> bool {
        self.import.borrow().state() == ImportState::Full
    }
    /// Whether the target was restarted and is in recovery: it answers, but does not serve requests yet.
    pub fn is_recovering(&self) -> bool {
        use ImportState::{Recover, Replay, ReplayLocks, ReplayWait};
        matches!(self.import.borrow().state(), Replay | ReplayLocks | ReplayWait | Recover)
    }
    /// Whether [`Peer::disconnect`] has ended.
    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }
    /// Whether the latest attempt found that no process serves the target at its address.
    pub fn is_absent(&self) -> bool {
        self.absent.get()
    }
    /// The reason why the answering target is not used; `None`: the right one answers, or none.
    pub fn mismatch(&self) -> Option<String> {
        self.import.borrow().mismatch().map(String::from)
    }
    /// Completes when the import is usable, or was stopped.
    pub async fn connected(&self) {
        while !self.is_connected() && !self.stopped.get() {
            self.changed.wait().await;
        }
    }
    /// Completes at the next change of state, of the commit numbers or of the configuration version.
    pub async fn changed(&self) {
        self.changed.wait().await;
    }
    /// Wakes these waits after a change outside the import.
    pub fn wake(&self) {
        self.changed.wake_all();
    }
    /// Time until which no other client is granted the locks of this one: the lease, less the difference of clocks.
    pub fn granted_until(&self) -> Option<Instant> {
        self.import.borrow().lease().granted_until()
    }
    /// Whether locks of this target may be used now.
    pub fn lease_ok(&self) -> bool {
        self.import.borrow().lease_ok(self.ctx.now())
    }
    /// Every change up to this survives the loss of the server's machine.
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
    /// The server's wall clock less this island's, as the last connect found it, in nanoseconds.
    pub fn wall_offset_ns(&self) -> i64 {
        self.wall_offset_ns.get()
    }
    pub fn target(&self) -> &str {
        &self.target
    }
    pub fn clear_stats(&self) {
        self.import.borrow_mut().slots_mut().histogram_mut().clear();
    }
    /// Gives access to the import: state and history, slots, replay list, counts.
    pub fn with_import<T>(&self, look: impl FnOnce(&Import<Answer>) -> T) -> T {
        look(&self.import.borrow())
    }

    // ---- inside

    fn handle(&self, conn: ConnId, event: Event) {
        let Some((current, epoch)) = self.conn.get() else { return };
        if current != conn {
            return;
        }
        let now = self.ctx.now();
        match event {
            Event::Opened { .. } => {
                self.absent.set(false);
                self.import.borrow_mut().handle_opened(now, epoch);
            }
            Event::Frame { frame, .. } => {
                let mut import = self.import.borrow_mut();
                let learnt = |i: &Import<Answer>| (i.config_version(), i.last_committed(), i.last_stable());
                let before = learnt(&import);
                import.handle_frame(now, epoch, frame);
                if learnt(&import) != before {
                    self.changed.wake_all();
                }
            }
            Event::Closed { reason, absent, .. } => {
                self.forget_conn();
                self.absent.set(absent);
                self.import.borrow_mut().handle_closed(now, epoch, &reason);
            }
            Event::Start
            | Event::Accepted { .. }
            | Event::IoDone { .. }
            | Event::Timer
            | Event::Door(_)
            | Event::Stop => {}
        }
        self.drain();
    }

    fn forget_conn(&self) {
        if let Some((conn, _)) = self.conn.take() {
            self.peers.by_conn.borrow_mut().remove(&conn);
        }
    }

    /// Carries out the effects of the import.
    fn drain(&self) {
        loop {
            let Some(effect) = self.import.borrow_mut().poll_effect() else { break };
            self.carry_out(effect);
        }
        if self.outage.was_said() {
            self.look_at_outage();
        }
        if self.deadline().is_some_and(|at| at < self.armed.get()) {
            self.rearm.wake_all();
        }
    }
    fn deadline(&self) -> Option<Instant> {
        let import = self.import.borrow();
        [import.poll_deadline(), self.outage.look_at(&import)].into_iter().flatten().min()
    }
    fn look_at_outage(&self) {
        let who = (self.name.as_str(), self.target.as_str());
        self.outage.look(self.ctx.now(), &self.import.borrow(), who, &self.peers.complaints);
    }

    fn carry_out(&self, effect: ImportEffect<Answer>) {
        match effect {
            ImportEffect::Open { epoch, address } => {
                let conn = self.ctx.next_conn();
                self.forget_conn();
                self.conn.set(Some((conn, epoch)));
                self.peers.by_conn.borrow_mut().insert(conn, self.me.clone());
                self.ctx.push(Effect::Open { conn, address, target: self.target.clone() });
            }
            ImportEffect::Send { epoch, frame } => {
                if let Some((conn, current)) = self.conn.get()
                    && current == epoch
                {
                    self.ctx.push(Effect::Send { conn, frame });
                }
            }
            ImportEffect::Close { epoch } => {
                if let Some((conn, current)) = self.conn.get()
                    && current == epoch
                {
                    self.forget_conn();
                    self.ctx.push(Effect::Close { conn });
                }
            }
            ImportEffect::Done { token, result } => {
                token.fulfil(result);
                self.changed.wake_all();
            }
            ImportEffect::Callback { frame } => {
                let handler = self.on_callback.borrow().clone();
                match handler {
                    Some(handler) => handler(&frame),
                    None => tracing::warn!(target_name = %self.target, opcode = frame.header.opcode,
                        "callback without a handler"),
                }
                self.import.borrow_mut().callback_done(frame.header.xid);
            }
            ImportEffect::Evicted { cause } => {
                tracing::warn!(target_name = %self.target, client = %self.name, cause,
                    "evicted by the target: locks and opens there are gone, the import goes on");
                let handler = self.on_evicted.borrow().clone();
                if let Some(handler) = handler {
                    handler();
                }
            }
            ImportEffect::TookOver { from } => {
                tracing::warn!(target_name = %self.target, client = %self.name, from,
                    "another host was connected in this client's name until now: its connection is closed");
            }
            ImportEffect::State { state } => self.entered(state),
            ImportEffect::Recovering { seconds } => {
                tracing::warn!(target_name = %self.target, client = %self.name, seconds,
                    "waiting: the target is in recovery and takes new clients when those that it knows have come back, \
                     after so many seconds at the latest");
                self.changed.wake_all();
            }
            ImportEffect::Answered { process, sent } => {
                for peer in self.peers.connected() {
                    peer.import.borrow_mut().handle_neighbour(self.ctx.now(), process, sent);
                    peer.drain();
                }
            }
            ImportEffect::Restarted { instance } => {
                tracing::info!(target_name = %self.target, instance, "the target was started anew");
                let handler = self.on_restarted.borrow().clone();
                if let Some(handler) = handler {
                    handler();
                }
            }
            ImportEffect::ReplayFailed { transno, error } => {
                tracing::error!(target_name = %self.target, %transno, %error,
                    "a change that the target lost could not be made again: it evicts this client");
            }
            ImportEffect::Mismatch { why } => {
                tracing::error!(target_name = %self.target, client = %self.name,
                    "not used, calls that need it fail with EIO: {why}");
                self.changed.wake_all();
            }
            ImportEffect::Lost { reason } => {
                tracing::debug!(target_name = %self.target, reason, "not connected");
                self.changed.wake_all();
            }
            ImportEffect::Stopped => {
                self.forget_conn();
                self.stopped.set(true);
                self.rearm.wake_all();
                self.changed.wake_all();
            }
        }
    }

    fn entered(&self, state: ImportState) {
        tracing::debug!(target_name = %self.target, %state, "import");
        if state == ImportState::Full {
            let import = self.import.borrow();
            if let Some((_, server)) = import.server_time() {
                let offset = server.as_nanos() - self.ctx.wall().as_nanos();
                self.wall_offset_ns.set(i64::try_from(offset).unwrap_or(0));
            }
            if !self.outage.was_said() {
                tracing::info!(target_name = %self.target, address = import.current_address(), "connected");
            }
        }
        self.changed.wake_all();
    }

    async fn keep_deadlines(self: Rc<Self>) {
        while !self.stopped.get() {
            match self.deadline() {
                Some(at) if at <= self.ctx.now() => {
                    self.import.borrow_mut().handle_timeout(self.ctx.now());
                    self.look_at_outage();
                    self.drain();
                    self.changed.wake_all();
                }
                Some(at) => {
                    self.armed.set(at);
                    self.ctx.timeout(at, self.rearm.wait()).await;
                }
                None => {
                    self.armed.set(Instant(u64::MAX));
                    self.rearm.wait().await;
                }
            }
        }
    }
}

/// The imports of an island, indexed by connection. It holds weak references only.
#[derive(Default)]
pub struct Peers {
    by_conn: RefCell<BTreeMap<ConnId, Weak<Peer>>>,
    /// Imports so far.
    made: Cell<u32>,
    /// Limits of log lines about outages: many targets may be away.
    complaints: RefCell<Complaints>,
}
impl Peers {
    fn connected(&self) -> Vec<Rc<Peer>> {
        self.by_conn.borrow().values().filter_map(Weak::upgrade).collect()
    }
    /// Routes an event of an outbound connection; returns it if it belongs to no import (late events of ended
    /// connections may be dropped).
    pub fn handle(&self, event: Event) -> Option<Event> {
        let conn = match &event {
            Event::Opened { conn } | Event::Closed { conn, .. } | Event::Frame { conn, .. } => *conn,
            Event::Start
            | Event::Accepted { .. }
            | Event::IoDone { .. }
            | Event::Timer
            | Event::Door(_)
            | Event::Stop => return Some(event),
        };
        let peer = self.by_conn.borrow().get(&conn).and_then(Weak::upgrade);
        match peer {
            Some(peer) => {
                peer.handle(conn, event);
                None
            }
            None => Some(event),
        }
    }
}
