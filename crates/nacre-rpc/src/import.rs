//! One target as a client sees it: requests on their way, and what is resent, replayed or given up.
//!
//! Invariants: (1) an xid is assigned after the slot was obtained and in the step that computes `last_xid`, so
//! xids of one tag and of one connection increase; (2) a request leaves `unreplied` only with an answer of the
//! current epoch, or by eviction or stop; (3) `last_xid` = lowest unreplied xid - 1; (4) nothing is sent while the
//! lease cannot be used, apart from what belongs to the import itself. Every list has a bound.
//! Connection, handshake and timers are in `connection.rs`, what goes when in `sending.rs`. Not here: tasks and sockets
//! (`nacre-node`).

use crate::connection::Link;
use crate::identity::Known;
use crate::lease::ClientLease;
use crate::replay::{ReplayList, is_data};
use crate::slots::{RPCS_MAX, Slots};
use crate::state::{ImportState, StateHistory};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_types::{
    ClientUuid, ConnEpoch, Errno, Generation, Instant, ProtocolOutcome, Remembered, Secret, Transno, Xid,
};
use nacre_wire::target::{Role, features};
use nacre_wire::{Class, Frame, Header, Kind, Opcode, flags};

/// What an import must know to connect.
#[derive(Debug, Clone)]
pub struct ImportConfig {
    pub client: ClientUuid,
    pub role: Role,
    /// Proves to the target at each connect that this is the client of the export.
    pub secret: Secret,
    /// For people, in the server's logs.
    pub name: String,
    /// Tried in turn.
    pub addresses: Vec<String>,
    pub max_mod_rpcs: u16,
    pub max_rpcs: u16,
    /// The target that is meant, and how often another was admitted in its place; `None`: whoever answers.
    pub known: Option<Remembered>,
    pub replaced: u32,
    /// See [`nacre_wire::target::Connect::instance`].
    pub instance: u64,
    /// Of the jitter of reconnects.
    pub seed: u64,
}

/// A request before it has an xid.
#[derive(Debug)]
pub struct Request {
    pub opcode: Opcode,
    pub class: Class,
    /// Of the header: what the caller wants beyond what the import says itself.
    pub flags: u32,
    pub body: Bytes,
    pub bulk: Vec<Bytes>,
    pub job: u64,
    /// Of a change of an object: it must not be begun later. `None`: a quarter of the lease after each copy was sent, or
    /// more where changes have come too late for that.
    pub until: Option<Instant>,
}

/// Why a call has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The target dropped this client's export while the request was under way: executed or not, its effect on
    /// locks and opens is gone.
    #[error("evicted by the target")]
    Evicted,
    #[error("the import was stopped")]
    Stopped,
    /// See [`Import::set_active`]. Executed or not.
    #[error("deactivated by the administrator")]
    Inactive,
    /// Another target answers, or one that has gone back: see [`Import::mismatch`]. Executed or not.
    #[error("another target answers, or one that has gone back")]
    Mismatch,
}

/// What the driver must do.
#[derive(Debug)]
pub enum ImportEffect<T> {
    /// Connect to this address; `handle_opened` or `handle_closed` follows with the epoch.
    Open {
        epoch: ConnEpoch,
        address: String,
    },
    Send {
        epoch: ConnEpoch,
        frame: Frame,
    },
    Close {
        epoch: ConnEpoch,
    },
    /// A call has ended.
    Done {
        token: T,
        result: Result<Frame, CallError>,
    },
    /// Hand it to its handler, then call [`Import::callback_done`].
    Callback {
        frame: Frame,
    },
    /// The import came to a state.
    State {
        state: ImportState,
    },
    /// Locks and opens of this client at the target are gone; the target says why.
    Evicted {
        cause: String,
    },
    /// This connection was taken in place of one that stood, which came from there.
    TookOver {
        from: String,
    },
    /// The target serves nobody new until its recovery is over, so many seconds at the most.
    Recovering {
        seconds: u32,
    },
    /// A ping was answered: it renews the neighbours too, see [`Import::handle_neighbour`].
    Answered {
        process: (u64, u64),
        sent: Instant,
    },
    /// The target has been started anew since the last connection.
    Restarted {
        instance: u64,
    },
    /// A change that the target had lost could not be made again; for the log.
    ReplayFailed {
        transno: Transno,
        error: Errno,
    },
    /// The target that answers is not the one that is meant; for the log.
    Mismatch {
        why: String,
    },
    /// The connection was lost or refused; for the log.
    Lost {
        reason: String,
    },
    /// Nothing more comes.
    Stopped,
}

/// A request that waits for its slot.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) serial: u64,
    pub(crate) request: Request,
    pub(crate) token: T,
}

/// A request that was sent and is not answered.
#[derive(Debug)]
pub(crate) struct Outstanding<T> {
    pub(crate) frame: Frame,
    pub(crate) class: Class,
    pub(crate) token: T,
    /// Latest copy.
    pub(crate) sent: Instant,
    pub(crate) until: Option<Instant>,
}

/// The import of one target. `T` is the caller's token of a call.
#[derive(Debug)]
pub struct Import<T> {
    pub(crate) config: ImportConfig,
    pub(crate) state: StateHistory,
    pub(crate) link: Link,
    pub(crate) active: bool,
    pub(crate) epoch: ConnEpoch,
    pub(crate) address: usize,
    pub(crate) attempts: u32,
    /// How often the recovering target was asked whether it is over.
    pub(crate) asked: u32,
    pub(crate) random: u64,
    pub(crate) generation: Generation,
    pub(crate) target: Option<ClientUuid>,
    pub(crate) known: Known,
    pub(crate) instance: Option<u64>,
    pub(crate) lease: ClientLease,
    pub(crate) last_heard: Instant,
    /// When the latest connection that stood was lost, see [`Import::away_since`].
    pub(crate) away_since: Instant,
    pub(crate) ping: Option<(Xid, Instant)>,
    pub(crate) ping_sent: Instant,
    pub(crate) ping_rank: u32,
    /// When the latest request that was answered to this import itself was sent.
    pub(crate) direct: Instant,
    /// The server process, and how many leases had ended there, as of the latest answer to this import itself.
    pub(crate) process: (u64, u64),
    pub(crate) config_version: u64,
    /// Features and slots that the target agreed to, once connected.
    pub(crate) agreed: Option<(u64, u16)>,
    /// When the target is told that the latest replies have come, unless a request tells it before.
    pub(crate) ack_at: Option<Instant>,
    pub(crate) server_time: Option<(Instant, nacre_types::Timestamp)>,
    /// The target's clock in the latest answer, and when that came: it shows more by now. What is sent on a new connection is
    /// sent after its first answer.
    pub(crate) clock: Option<(u32, Instant)>,
    /// Changes of objects took so long that they were refused: the next are given that time. Of this connection.
    pub(crate) patience: Duration,
    pub(crate) last_error: Option<String>,
    pub(crate) slots: Slots,
    pub(crate) unreplied: BTreeMap<Xid, Outstanding<T>>,
    pub(crate) replay: ReplayList,
    /// The target was started anew and the replay to this instance is not complete.
    /// The target ends with this process: nothing is kept for replay.
    is_local: bool,
    pub(crate) replay_due: bool,
    pub(crate) effects: VecDeque<ImportEffect<T>>,
    pub(crate) connects: u64,
    pub(crate) resent: u64,
    pub(crate) evictions: u64,
    pub(crate) next_xid: u64,
    pub(crate) next_serial: u64,
    /// Requests that count against `max_rpcs`.
    pub(crate) in_flight: u16,
    pub(crate) reads: VecDeque<Waiting<T>>,
    pub(crate) changes: VecDeque<Waiting<T>>,
    pub(crate) closes: VecDeque<Waiting<T>>,
    pub(crate) urgent: VecDeque<Waiting<T>>,
    /// Refused with [`ProtocolOutcome::TryLater`]: they go back to their queue at this time.
    pub(crate) delayed: BTreeMap<(Instant, u64), Waiting<T>>,
    pub(crate) last_committed: Transno,
    pub(crate) last_stable: Transno,
    callback_seen: Xid,
}

impl<T> Import<T> {
    /// Calls that may wait in one import; [`Import::has_room`] says whether another may come.
    pub const WAITING_MAX: usize = 65_536;
    /// Pause before a request that was refused with [`ProtocolOutcome::TryLater`] is sent again.
    const IN_PROGRESS_PAUSE: Duration = Duration::from_millis(200);
    /// An idle client says after that time that it has the reply to its latest change: others may wait for it.
    const ACK_AFTER: Duration = Duration::from_millis(1);

    /// An import that connects at once.
    pub fn new(now: Instant, config: ImportConfig) -> Self {
        let mut import = Self {
            slots: Slots::new(1),
            random: config.seed,
            known: Known::new(config.known, config.replaced),
            config,
            state: StateHistory::new(),
            link: Link::Down { retry_at: now },
            active: true,
            epoch: ConnEpoch(0),
            address: 0,
            attempts: 0,
            asked: 0,
            generation: Generation(0),
            target: None,
            instance: None,
            lease: ClientLease::new(),
            last_heard: now,
            away_since: now,
            ping: None,
            ping_sent: now,
            ping_rank: 0,
            direct: now,
            process: (0, 0),
            config_version: 0,
            agreed: None,
            ack_at: None,
            server_time: None,
            clock: None,
            patience: Duration::ZERO,
            last_error: None,
            unreplied: BTreeMap::new(),
            replay: ReplayList::default(),
            is_local: false,
            replay_due: false,
            effects: VecDeque::new(),
            connects: 0,
            resent: 0,
            evictions: 0,
            next_xid: 1,
            next_serial: 0,
            in_flight: 0,
            reads: VecDeque::new(),
            changes: VecDeque::new(),
            closes: VecDeque::new(),
            urgent: VecDeque::new(),
            delayed: BTreeMap::new(),
            last_committed: Transno(0),
            last_stable: Transno(0),
            callback_seen: Xid(0),
        };
        import.set_max_rpcs(import.config.max_rpcs);
        import.open(now);
        import
    }

    // ---- for the local caller

    /// Whether one more call may wait here. A caller without room waits until calls have ended.
    pub fn has_room(&self) -> bool {
        self.waiting() + self.unreplied.len() < Self::WAITING_MAX && !self.replay.is_full()
    }

    /// Whether a request that changes bytes may be sent: the data that is kept for replay is within its bound.
    pub fn has_data_room(&self) -> bool {
        !self.replay.is_data_full()
    }
    /// Whether the target should be asked to make data stable now, so that writers need not wait for room later.
    pub fn wants_stable(&self) -> bool {
        self.replay.is_data_pressed()
    }

    /// Sends a request as soon as its class may be sent; [`ImportEffect::Done`] brings `token` back.
    pub fn call(&mut self, now: Instant, request: Request, token: T) {
        if self.link == Link::Gone || matches!(self.link, Link::Leaving { .. }) {
            self.done(token, Err(CallError::Stopped));
            return;
        }
        if !self.active && request.class != Class::Callback {
            self.done(token, Err(CallError::Inactive));
            return;
        }
        if self.mismatch().is_some() && request.class != Class::Callback {
            self.done(token, Err(CallError::Mismatch));
            return;
        }
        self.enqueue(request, token);
        if self.link == Link::Up && !self.lease.ok(now) {
            self.handle_timeout(now); // the lease must be renewed first: send the ping now
        }
        self.pump(now);
    }

    /// Nobody waits for a target that is not active: calls fail at once, those under way too. What gives locks back is
    /// still sent, sooner or later; the connection is kept or looked for as ever.
    pub fn set_active(&mut self, now: Instant, active: bool) {
        self.active = active;
        if !active {
            self.fail_calls(CallError::Inactive);
        }
        self.pump(now);
    }
    pub fn is_active(&self) -> bool {
        self.active
    }

    /// The callback has been taken in by its handler: tells the target.
    pub fn callback_done(&mut self, xid: Xid) {
        let mut header = Header::new(Kind::CallbackAck, 0);
        header.xid = xid;
        header.last_xid = self.last_xid();
        self.send(header, Bytes::new(), Vec::new());
    }

    /// Changes the configured limit of slots; the target's own limit holds from the next connect on.
    pub fn set_max_mod_rpcs(&mut self, now: Instant, limit: u16) {
        self.config.max_mod_rpcs = limit;
        self.limit_slots();
        self.set_max_rpcs(self.config.max_rpcs);
        self.pump(now);
    }
    /// The lower of our limit and the target's; one slot where it does not know of more.
    pub(crate) fn limit_slots(&mut self) {
        let limit = match self.agreed {
            Some((known, _)) if known & features::MULTI_MOD_RPCS == 0 => 1,
            Some((_, theirs)) => self.config.max_mod_rpcs.min(theirs),
            None => 1,
        };
        self.slots.set_limit(limit);
    }
    /// At least one more than the slots, so that a read finds its way past waiting changes.
    fn set_max_rpcs(&mut self, limit: u16) {
        self.config.max_rpcs = limit.max(self.config.max_mod_rpcs.saturating_add(1)).clamp(1, RPCS_MAX);
    }
    /// Changes how many ordinary requests may be in flight.
    pub fn set_max_rpcs_in_flight(&mut self, now: Instant, limit: u16) {
        // The slots give way: they are fewer than the requests in flight.
        self.config.max_mod_rpcs = self.config.max_mod_rpcs.min(limit.saturating_sub(1)).max(1);
        self.limit_slots();
        self.set_max_rpcs(limit);
        self.pump(now);
    }

    // ---- answers

    /// A frame of the connection `epoch` has come in.
    pub fn handle_frame(&mut self, now: Instant, epoch: ConnEpoch, frame: Frame) {
        if epoch != self.epoch || frame.header.epoch != self.epoch || !self.link.stands() {
            return; // of a connection that is gone
        }
        self.last_heard = now;
        match frame.header.kind {
            Kind::Reply => {
                self.clock = Some((frame.header.clock_ms, now)).filter(|(ms, _)| *ms != 0);
                self.handle_reply(now, frame);
            }
            Kind::Callback => self.handle_callback(now, frame),
            Kind::Hello | Kind::HelloReply | Kind::Request | Kind::CallbackAck | Kind::Ack => {
                self.lose(now, "the target sent a frame that only clients send");
            }
        }
    }

    fn handle_reply(&mut self, now: Instant, frame: Frame) {
        if frame.header.has(flags::EARLY) {
            return; // still running: that something was heard is all
        }
        if self.handle_own_reply(now, &frame) {
            return;
        }
        if frame.header.has(flags::REPLAY) {
            return; // a second answer to a replay: the call itself may still wait for its own
        }
        let Some(call) = self.unreplied.remove(&frame.header.xid) else {
            return; // a second answer
        };
        self.note_answer(&frame.header, call.sent);
        self.note_duration(&call, frame.header.status, now);
        self.free(&call);
        if frame.header.status.is(ProtocolOutcome::TryLater) {
            let (request, token) = call.into_request();
            let waiting = self.waiting_entry(request, token);
            self.delayed.insert((now + Self::IN_PROGRESS_PAUSE, waiting.serial), waiting);
        } else {
            let safe = if is_data(&call.frame) { self.last_stable } else { self.last_committed };
            if frame.header.transno > Transno(0) {
                self.ack_at = Some(now + Self::ACK_AFTER);
            }
            if frame.header.transno > safe && !self.is_local {
                let mut request = call.frame;
                request.header.flags |= frame.header.flags & flags::VERSIONS;
                self.replay.keep(frame.header.transno, request, frame.body.clone());
            }
            self.done(call.token, Ok(frame));
        }
        self.pump(now);
    }

    /// Lease and commit numbers out of an answer to what was sent at `sent`.
    pub(crate) fn note_answer(&mut self, header: &Header, sent: Instant) {
        if !header.has(flags::LEASE_ENDING) {
            self.lease.renew(sent);
        }
        self.direct = self.direct.max(sent);
        if header.last_committed > self.last_committed {
            self.last_committed = header.last_committed;
        }
        self.last_stable = self.last_stable.max(header.last_stable);
        self.replay.safe(self.last_committed, self.last_stable);
    }

    fn handle_callback(&mut self, now: Instant, frame: Frame) {
        if matches!(self.link, Link::Connecting { .. } | Link::Queued { .. }) {
            // Its number means nothing before the target has said which instance it is.
            return self.lose(now, "a callback before the answer to connect");
        }
        if frame.header.xid <= self.callback_seen {
            self.callback_done(frame.header.xid); // the acknowledgement was lost
            return;
        }
        if frame.header.xid.0 > self.callback_seen.0 + 1 {
            // Those that are missing are sent again, in order, on the next connection.
            return self.lose(now, "a callback is missing");
        }
        self.callback_seen = frame.header.xid;
        self.effects.push_back(ImportEffect::Callback { frame });
    }
    /// Callback numbers start anew with each instance and each export.
    pub(crate) fn forget_callbacks(&mut self) {
        self.callback_seen = Xid(0);
    }
    /// Whether the target that has admitted this client ends with this process.
    pub(crate) fn set_local(&mut self, is_local: bool) {
        self.is_local = is_local;
    }
    /// Commit numbers of another target mean nothing here.
    pub(crate) fn forget_commits(&mut self) {
        self.last_committed = Transno(0);
        self.last_stable = Transno(0);
    }

    // ---- what can be seen

    pub fn poll_effect(&mut self) -> Option<ImportEffect<T>> {
        self.effects.pop_front()
    }
    pub fn state(&self) -> ImportState {
        self.state.current()
    }
    pub fn history(&self) -> &StateHistory {
        &self.state
    }
    pub fn config(&self) -> &ImportConfig {
        &self.config
    }
    pub fn slots(&self) -> &Slots {
        &self.slots
    }
    pub fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }
    /// Slots that the target agrees to; `None` before the first connect.
    pub fn server_max_mod_rpcs(&self) -> Option<u16> {
        self.agreed.map(|(_, slots)| slots)
    }
    /// Features that both sides know.
    pub fn features(&self) -> u64 {
        self.agreed.map_or(0, |(features, _)| features)
    }
    pub fn replay_list(&self) -> &ReplayList {
        &self.replay
    }
    pub fn lease(&self) -> &ClientLease {
        &self.lease
    }
    /// Whether what this target granted (locks) may be used now.
    pub fn lease_ok(&self, now: Instant) -> bool {
        self.lease.ok(now)
    }
    /// Sent and unanswered.
    pub fn in_flight(&self) -> usize {
        self.unreplied.len()
    }
    /// Not sent yet.
    pub fn waiting(&self) -> usize {
        let queues = [&self.reads, &self.changes, &self.closes, &self.urgent];
        queues.iter().map(|q| q.len()).sum::<usize>() + self.delayed.len()
    }
    pub fn last_committed(&self) -> Transno {
        self.last_committed
    }
    pub fn last_stable(&self) -> Transno {
        self.last_stable
    }
    pub fn epoch(&self) -> ConnEpoch {
        self.epoch
    }
    pub fn generation(&self) -> Generation {
        self.generation
    }
    /// Number of the target's start that this import is connected to.
    pub fn instance(&self) -> Option<u64> {
        self.instance
    }
    /// As of the latest ping of an MGS.
    pub fn config_version(&self) -> u64 {
        self.config_version
    }
    /// The target's wall clock at connect, and when that was here.
    pub fn server_time(&self) -> Option<(Instant, nacre_types::Timestamp)> {
        self.server_time
    }
    /// Address in use, or the next to be tried.
    pub fn current_address(&self) -> Option<&str> {
        self.config.addresses.get(self.address).map(String::as_str)
    }
    /// Since when the target is away: the connection lost, not ready for requests, or a ping on it unanswered. `None` while
    /// it answers, and after the end.
    pub fn away_since(&self) -> Option<Instant> {
        match self.link {
            Link::Up => self.ping.filter(|(_, sent)| self.last_heard <= *sent).map(|(_, sent)| sent),
            Link::Leaving { .. } | Link::Gone => None,
            Link::Down { .. } | Link::Opening { .. } | Link::Connecting { .. } | Link::Queued { .. } => {
                Some(self.away_since)
            }
            Link::Replaying { .. } | Link::ReplayDone { .. } | Link::ReplayWait { .. } => {
                Some(self.away_since)
            }
        }
    }
    /// Whether it is being given up by this side, or has been: nobody waits for the target any more.
    pub fn is_ending(&self) -> bool {
        matches!(self.link, Link::Leaving { .. } | Link::Gone)
    }
    /// Why the last connection was lost or refused.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
    /// Connections that stood, requests sent again, evictions.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.connects, self.resent, self.evictions)
    }
}
