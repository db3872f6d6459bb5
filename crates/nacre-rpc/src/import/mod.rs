//! One target as a client sees it: its connection, the requests under way, and the changes that may have to be replayed.
//!
//! An import is made of parts with private state: `session` (connection, epoch, address), `admitted` (the properties
//! that the target reported at connect), `identity` (the target that the client expects), `keepalive` (pings and
//! acknowledgements), `queues` (lanes, slots, requests without a reply), `deadlines`, `commits` (commit numbers and the
//! list of changes to replay), and the lease. The rules that involve several parts are in `connection`, `recovery`,
//! `sending` and `replies`.
//!
//! Invariants: (1) a request ends only with a reply of the current epoch, or by eviction or stop; (2) no request is sent while
//! the lease cannot be used, except those of the import itself. Every list has a bound. Not here: tasks and sockets
//! (`nacre-node`).

mod admitted;
mod commits;
mod connection;
mod deadlines;
mod identity;
mod keepalive;
mod queues;
mod recovery;
mod replies;
mod request;
mod sending;
mod session;

pub use admitted::ServerTime;
pub use request::{CallError, ImportConfig, ImportEffect, Request};

use crate::lease::ClientLease;
use crate::replay::ReplayList;
use crate::slots::{RPCS_MAX, Slots};
use crate::state::{ImportState, StateHistory};
use admitted::Admitted;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use commits::Commits;
use deadlines::Deadlines;
use identity::Expected;
use keepalive::Keepalive;
use nacre_types::{ConnEpoch, Generation, Instant, Transno, Xid};
use nacre_wire::{Class, Header, Kind};
use queues::Queues;
use session::{Link, Session};

/// The import of one target. `T` is the caller's token of a call.
#[derive(Debug)]
pub struct Import<T> {
    config: ImportConfig,
    is_active: bool,
    session: Session,
    admitted: Admitted,
    expected: Expected,
    keepalive: Keepalive,
    lease: ClientLease,
    queues: Queues<T>,
    deadlines: Deadlines,
    commits: Commits,
    /// Number of the latest callback that was delivered.
    callback_seen: Xid,
    evictions: u64,
    effects: VecDeque<ImportEffect<T>>,
}

impl<T> Import<T> {
    /// Calls that may wait in one import; [`Import::has_room`] says whether one more is accepted.
    pub const WAITING_MAX: usize = 65_536;

    /// Creates an import that connects at once.
    pub fn new(now: Instant, config: ImportConfig) -> Self {
        let mut import = Self {
            is_active: true,
            session: Session::new(now, config.seed),
            admitted: Admitted::default(),
            expected: Expected::new(config.known, config.replaced),
            keepalive: Keepalive::new(now),
            lease: ClientLease::new(),
            queues: Queues::new(),
            deadlines: Deadlines::default(),
            commits: Commits::default(),
            callback_seen: Xid(0),
            evictions: 0,
            effects: VecDeque::new(),
            config,
        };
        import.set_max_rpcs(import.config.max_rpcs);
        import.open(now);
        import
    }

    // ---- for the local caller

    /// Whether one more call may wait here. A caller without room waits until calls have ended.
    pub fn has_room(&self) -> bool {
        self.waiting() + self.in_flight() < Self::WAITING_MAX && !self.commits.list().is_full()
    }
    /// Whether a request that changes bytes may be sent: the data that is kept for replay is within its bound.
    pub fn has_data_room(&self) -> bool {
        !self.commits.list().is_data_full()
    }
    /// Whether the target should be asked to make data stable now, so that writers need not wait for room later.
    pub fn wants_stable(&self) -> bool {
        self.commits.list().is_data_pressed()
    }

    /// Sends a request as soon as its class may be sent; [`ImportEffect::Done`] returns `token`.
    pub fn call(&mut self, now: Instant, request: Request, token: T) {
        if self.session.is_ending() {
            self.done(token, Err(CallError::Stopped));
            return;
        }
        if !self.is_active && request.class != Class::Callback {
            self.done(token, Err(CallError::Inactive));
            return;
        }
        if self.mismatch().is_some() && request.class != Class::Callback {
            self.done(token, Err(CallError::Mismatch));
            return;
        }
        self.queues.enqueue(request, token);
        if self.session.is_up() && !self.lease.ok(now) {
            self.handle_timeout(now); // the lease must be renewed first: send the ping now
        }
        self.pump(now);
    }

    /// Sets whether calls wait for the target. Calls to an inactive target fail at once, and so do those under way. Requests
    /// that serve callbacks are still sent; the connection is kept, or attempted as before.
    pub fn set_active(&mut self, now: Instant, active: bool) {
        self.is_active = active;
        if !active {
            self.fail_calls(CallError::Inactive);
        }
        self.pump(now);
    }
    /// Whether calls wait for the target.
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// Acknowledges a callback that its handler has processed.
    pub fn callback_done(&mut self, xid: Xid) {
        let mut header = Header::new(Kind::CallbackAck, 0);
        header.xid = xid;
        header.last_xid = self.queues.last_xid();
        self.send(header, Bytes::new(), Vec::new());
    }

    /// Changes the configured limit of slots; the target's own limit changes with the next connect only.
    pub fn set_max_mod_rpcs(&mut self, now: Instant, limit: u16) {
        self.config.max_mod_rpcs = limit;
        self.limit_slots();
        self.set_max_rpcs(self.config.max_rpcs);
        self.pump(now);
    }
    fn limit_slots(&mut self) {
        let limit = self.admitted.slots(self.config.max_mod_rpcs);
        self.queues.slots_mut().set_limit(limit);
    }
    /// At least one more than the slots, so that waiting changes do not hold back reads.
    fn set_max_rpcs(&mut self, limit: u16) {
        self.config.max_rpcs = limit.max(self.config.max_mod_rpcs.saturating_add(1)).clamp(1, RPCS_MAX);
    }
    /// Changes how many ordinary requests may be in flight.
    pub fn set_max_rpcs_in_flight(&mut self, now: Instant, limit: u16) {
        // The slots are reduced: they are fewer than the requests in flight.
        self.config.max_mod_rpcs = self.config.max_mod_rpcs.min(limit.saturating_sub(1)).max(1);
        self.limit_slots();
        self.set_max_rpcs(limit);
        self.pump(now);
    }

    // ---- state

    /// The next effect that the driver must carry out.
    pub fn poll_effect(&mut self) -> Option<ImportEffect<T>> {
        self.effects.pop_front()
    }
    /// State of the import.
    pub fn state(&self) -> ImportState {
        self.session.state()
    }
    /// The latest states.
    pub fn history(&self) -> &StateHistory {
        self.session.history()
    }
    /// Configuration, with the limits that hold now.
    pub fn config(&self) -> &ImportConfig {
        &self.config
    }
    /// Slots of modifying requests.
    pub fn slots(&self) -> &Slots {
        self.queues.slots()
    }
    /// Slots of modifying requests.
    pub fn slots_mut(&mut self) -> &mut Slots {
        self.queues.slots_mut()
    }
    /// Slots that the target agrees to; `None` before the first connect.
    pub fn server_max_mod_rpcs(&self) -> Option<u16> {
        self.admitted.max_mod_rpcs()
    }
    /// Features that both sides know.
    pub fn features(&self) -> u64 {
        self.admitted.features()
    }
    /// Changes that are kept for replay.
    pub fn replay_list(&self) -> &ReplayList {
        self.commits.list()
    }
    /// The lease at the target.
    pub fn lease(&self) -> &ClientLease {
        &self.lease
    }
    /// Whether locks that this target has granted may be used now.
    pub fn lease_ok(&self, now: Instant) -> bool {
        self.lease.ok(now)
    }
    /// Requests that were sent and have no reply.
    pub fn in_flight(&self) -> usize {
        self.queues.in_flight()
    }
    /// Requests that were not sent yet.
    pub fn waiting(&self) -> usize {
        self.queues.waiting()
    }
    /// Changes up to this one survive the loss of the server's machine.
    pub fn last_committed(&self) -> Transno {
        self.commits.last_committed()
    }
    /// The bytes of writes up to this one are on stable storage.
    pub fn last_stable(&self) -> Transno {
        self.commits.last_stable()
    }
    /// Epoch of the current connection, or of the latest one.
    pub fn epoch(&self) -> ConnEpoch {
        self.session.epoch()
    }
    /// Generation of this client's export.
    pub fn generation(&self) -> Generation {
        self.admitted.generation()
    }
    /// Number of the target's start that this import is connected to.
    pub fn instance(&self) -> Option<u64> {
        self.admitted.instance()
    }
    /// Version of the list of targets as of the latest ping of an MGS.
    pub fn config_version(&self) -> u64 {
        self.admitted.config_version()
    }
    /// The target's wall clock at connect.
    pub fn server_time(&self) -> Option<ServerTime> {
        self.admitted.server_time()
    }
    /// Address in use, or the next one to be tried.
    pub fn current_address(&self) -> Option<&str> {
        self.config.addresses.get(self.session.address()).map(String::as_str)
    }
    /// Start of the outage: the connection is lost or not ready for requests, or a ping has no reply. `None` while the target
    /// replies, and after the end.
    pub fn away_since(&self) -> Option<Instant> {
        match self.session.link() {
            Link::Up => {
                let ping = self.keepalive.ping().map(|(_, sent)| sent);
                ping.filter(|sent| self.session.last_received() <= *sent)
            }
            Link::Leaving { .. } | Link::Gone => None,
            Link::Down { .. }
            | Link::Opening { .. }
            | Link::Connecting { .. }
            | Link::Queued { .. }
            | Link::Replaying { .. }
            | Link::ReplayDone { .. }
            | Link::ReplayWait { .. } => Some(self.session.lost_at()),
        }
    }
    /// Whether this side ends the import, or has ended it: no call waits for the target any more.
    pub fn is_ending(&self) -> bool {
        self.session.is_ending()
    }
    /// Why the last connection was lost or refused.
    pub fn last_error(&self) -> Option<&str> {
        self.session.last_error()
    }
    /// Connections that were up, requests sent again, evictions.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.session.connects(), self.queues.resent(), self.evictions)
    }
}
