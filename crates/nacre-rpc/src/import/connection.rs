//! The connection of an import: opening, the connect handshake, silence, timers, the end.
//!
//! Invariants: events of any other epoch than the current one do nothing; a connection on which no frame has arrived for
//! 7/10 of the lease is closed (a living target sends one earlier, because it replies to the pings of `keepalive`). All
//! deadlines are on the clock of the caller, which passes the present time with each event.

use super::Import;
use super::keepalive::Load;
use super::request::{CallError, ImportEffect};
use super::session::{Link, PAUSE_MAX};
use crate::state::ImportState;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_types::{Codec, ConnEpoch, Failure, Instant, ProtocolOutcome};
use nacre_wire::bounds::{NAME_BYTES_MAX, SENTENCE_BYTES_MAX, truncated};
use nacre_wire::target::{Connect, ConnectReply, features};
use nacre_wire::{Frame, Header, Kind, Opcode};

/// Opening a connection may take that long before the next address is tried.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// A planned end waits that long for the reply of the target.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

impl<T> Import<T> {
    /// The connection was opened.
    pub fn handle_opened(&mut self, now: Instant, epoch: ConnEpoch) {
        if epoch == self.session.epoch() && matches!(self.session.link(), Link::Opening { .. }) {
            self.session.received(now);
            self.send_connect(now);
        }
    }

    /// The connection could not be opened, or is lost.
    pub fn handle_closed(&mut self, now: Instant, epoch: ConnEpoch, reason: &str) {
        if epoch == self.session.epoch() {
            self.went_down(now, reason);
        }
    }

    /// Sets the addresses of the target. A connection that is up is kept.
    pub fn set_addresses(&mut self, now: Instant, addresses: Vec<String>) {
        let current = self.current_address().map(ToOwned::to_owned);
        self.session.set_address(addresses.iter().position(|a| Some(a) == current.as_ref()).unwrap_or(0));
        self.config.addresses = addresses;
        if let Link::Down { .. } = self.session.link() {
            self.session.forget_attempts();
            self.open(now);
        }
    }

    /// Ends the import: every call finishes with `Stopped`, the target is notified if it can be.
    pub fn stop(&mut self, now: Instant) {
        self.fail_all(CallError::Stopped);
        match self.session.link() {
            Link::Up => {
                let mut header = Header::new(Kind::Request, Opcode::Disconnect.number());
                header.xid = self.take_xid();
                self.session.set_link(Link::Leaving { xid: header.xid, deadline: now + LEAVE_TIMEOUT });
                self.send(header, Bytes::new(), Vec::new());
            }
            Link::Gone | Link::Leaving { .. } => {}
            Link::Down { .. }
            | Link::Opening { .. }
            | Link::Connecting { .. }
            | Link::Queued { .. }
            | Link::ReplayDone { .. }
            | Link::ReplayWait { .. }
            | Link::Replaying { .. } => self.end(now),
        }
    }

    /// A deadline of `poll_deadline` may have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.session.link() {
            Link::Down { retry_at } => {
                if now >= retry_at {
                    self.open(now);
                }
            }
            Link::Opening { since } => {
                if now >= since + OPEN_TIMEOUT {
                    self.lose(now, "no reply while connecting");
                }
            }
            Link::Queued { again_at } => {
                if now >= again_at {
                    self.send_connect(now);
                }
            }
            Link::Connecting { .. } | Link::Replaying { .. } | Link::ReplayDone { .. } => {
                self.check_silence(now);
            }
            Link::ReplayWait { again_at } => {
                if now >= again_at {
                    self.send_replay_done(now);
                }
            }
            Link::Up => {
                self.check_silence(now);
                if self.session.is_up() && self.ping_at().is_some_and(|at| now >= at) {
                    self.send_ping(now);
                }
                if self.session.is_up() && self.keepalive.ack_at().is_some_and(|at| now >= at) {
                    self.send_ack();
                }
            }
            Link::Leaving { deadline, .. } => {
                if now >= deadline {
                    self.end(now);
                }
            }
            Link::Gone => {}
        }
        self.queues.release_delayed(now);
        self.pump(now);
    }

    /// When `handle_timeout` must be called next.
    pub fn poll_deadline(&self) -> Option<Instant> {
        let silent_at = self.silent_at();
        let link = match self.session.link() {
            Link::Down { .. } if self.config.addresses.is_empty() => None, // there is no address to try
            Link::Down { retry_at } => Some(retry_at),
            Link::Opening { since } => Some(since + OPEN_TIMEOUT),
            Link::Queued { again_at } | Link::ReplayWait { again_at } => Some(again_at),
            Link::Connecting { .. } | Link::Replaying { .. } | Link::ReplayDone { .. } => Some(silent_at),
            Link::Up => {
                [Some(silent_at), self.ping_at(), self.keepalive.ack_at()].into_iter().flatten().min()
            }
            Link::Leaving { deadline, .. } => Some(deadline),
            Link::Gone => None,
        };
        [link, self.queues.delayed_until()].into_iter().flatten().min()
    }

    // ---- connecting

    pub(super) fn open(&mut self, now: Instant) {
        let Some(address) = self.config.addresses.get(self.session.address()).cloned() else {
            return self.session.set_link(Link::Down { retry_at: now + PAUSE_MAX });
        };
        let epoch = self.session.begin_attempt(now);
        self.effects.push_back(ImportEffect::Open { epoch, address });
        self.keepalive.forget_ping();
        self.keepalive.forget_process();
        self.enter(now, ImportState::Connecting);
    }

    fn send_connect(&mut self, now: Instant) {
        let mut header = Header::new(Kind::Request, Opcode::Connect.number());
        header.xid = self.take_xid();
        self.session.set_link(Link::Connecting { xid: header.xid, sent: now });
        let connect = Connect {
            client: self.config.client,
            role: self.config.role,
            secret: self.config.secret,
            name: truncated(&self.config.name, NAME_BYTES_MAX).to_owned(),
            features: features::ALL,
            max_mod_rpcs: self.config.max_mod_rpcs,
            generation: self.admitted.generation(),
            known: self.remembered(),
            replaced: self.expected.replaced(),
            instance: self.config.instance,
        };
        self.send(header, Bytes::from(connect.to_vec()), Vec::new());
    }

    pub(super) fn connect_replied(&mut self, now: Instant, frame: &Frame, sent: Instant) {
        if let Some(failure) = frame.header.status.failure() {
            return self.lose(now, &refusal(frame, failure));
        }
        let reply = match ConnectReply::from_slice(&frame.body) {
            Ok(reply) => reply,
            Err(e) => return self.lose(now, &format!("connect reply cannot be read: {e}")),
        };
        if !self.check_identity(now, &reply) {
            return;
        }
        if reply.recovery_ms > 0 {
            return self.wait_for_recovery(now, reply.recovery_ms);
        }
        if !reply.replaced.is_empty() {
            self.effects.push_back(ImportEffect::ReplacedConnection { from: reply.replaced.clone() });
        }
        self.session.admitted();
        self.keepalive.admitted(now);
        self.commits.set_local(reply.local);
        self.note_process(&frame.header, (reply.process, reply.ended));
        let differences = self.admitted.record(sent, now, &reply);
        self.limit_slots();
        self.lease.set_length(Duration::from_millis(u64::from(reply.lease_ms)));
        if differences.is_other_target {
            self.commits.forget_numbers();
        }
        if reply.evicted || differences.is_other_export {
            self.evicted(now, reply.cause);
        }
        // Changes that an interrupted recovery has replayed are in the list before the reply says which ones are safe.
        self.commits.settle();
        self.keep_unreplied(&reply.executed);
        self.note_reply(&frame.header, sent);
        if differences.is_other_instance {
            self.forget_callbacks();
            self.commits.begin_replay();
            self.effects.push_back(ImportEffect::Restarted { instance: reply.instance });
        }
        self.begin_recovery(now);
    }

    /// The target is in recovery and does not know this client: connect is repeated until the recovery is over.
    fn wait_for_recovery(&mut self, now: Instant, recovery_ms: u32) {
        let again_at = now + self.session.recovery_pause(recovery_ms);
        self.session.set_link(Link::Queued { again_at });
        let seconds = recovery_ms.div_ceil(1000);
        if self.session.state() != ImportState::ReplayWait {
            self.effects.push_back(ImportEffect::Recovering { seconds });
        }
        self.session.set_last_error(format!(
            "in recovery: it waits for the clients that it knows, for {seconds} s more at the most"
        ));
        self.enter(now, ImportState::ReplayWait);
    }

    // ---- the end of a connection

    /// Closes the connection and tries again.
    pub(super) fn lose(&mut self, now: Instant, reason: &str) {
        self.effects.push_back(ImportEffect::Close { epoch: self.session.epoch() });
        self.went_down(now, reason);
    }

    fn went_down(&mut self, now: Instant, reason: &str) {
        let addresses = self.config.addresses.len();
        match self.session.link() {
            Link::Gone | Link::Down { .. } => return,
            Link::Leaving { .. } => {
                self.session.set_link(Link::Gone);
                self.enter(now, ImportState::Disconnected);
                self.effects.push_back(ImportEffect::Stopped);
                return;
            }
            // This address was good: it is tried first.
            Link::Up => self.session.set_lost_at(self.away_since().unwrap_or(now)),
            Link::Replaying { .. } | Link::ReplayDone { .. } | Link::ReplayWait { .. } => {}
            Link::Opening { .. } | Link::Connecting { .. } | Link::Queued { .. } => {
                if matches!(self.session.link(), Link::Opening { .. }) {
                    self.expected.no_reply_at(self.session.address());
                }
                self.session.next_address(addresses);
            }
        }
        self.deadlines.forget_extension();
        self.session.went_down(now, reason, addresses);
        self.effects.push_back(ImportEffect::Lost { reason: reason.to_owned() });
        self.keepalive.forget_ping();
        self.enter(now, ImportState::Disconnected);
    }

    pub(super) fn end(&mut self, now: Instant) {
        if !matches!(self.session.link(), Link::Down { .. } | Link::Gone) {
            self.effects.push_back(ImportEffect::Close { epoch: self.session.epoch() });
        }
        self.session.set_link(Link::Gone);
        self.enter(now, ImportState::Disconnected);
        self.effects.push_back(ImportEffect::Stopped);
    }

    pub(super) fn enter(&mut self, now: Instant, state: ImportState) {
        if self.session.enter(now, state) {
            self.effects.push_back(ImportEffect::State { state });
        }
    }

    // ---- silence and pings

    fn check_silence(&mut self, now: Instant) {
        if now >= self.silent_at() {
            let ms = (self.lease.length() * 7 / 10).as_millis();
            self.lose(now, &format!("nothing received for {ms} ms, not even the reply to a ping"));
        }
    }
    fn silent_at(&self) -> Instant {
        self.session.last_received() + self.lease.length() * 7 / 10
    }

    fn ping_at(&self) -> Option<Instant> {
        let load = if self.commits.list().is_full() {
            Load::WaitsForCommit
        } else if self.is_idle() {
            Load::Idle
        } else {
            Load::Busy
        };
        self.keepalive.ping_at(&self.lease, load)
    }
    /// Whether no request is under way and no change waits for its commit.
    fn is_idle(&self) -> bool {
        self.queues.in_flight() == 0 && self.commits.list().is_empty()
    }
    fn send_ping(&mut self, now: Instant) {
        let mut header = Header::new(Kind::Request, Opcode::Ping.number());
        header.last_xid = self.queues.last_xid();
        header.xid = self.take_xid();
        self.keepalive.ping_sent(now, header.xid);
        self.send(header, Bytes::new(), Vec::new());
    }
    fn send_ack(&mut self) {
        self.keepalive.acknowledged();
        let mut header = Header::new(Kind::Ack, 0);
        header.last_xid = self.queues.last_xid();
        self.send(header, Bytes::new(), Vec::new());
    }

    /// Sets the rank of this import among those of its client, so that of imports that become idle together one pings first.
    pub fn set_ping_rank(&mut self, rank: u32) {
        self.keepalive.set_rank(rank);
    }
    /// A neighbour (an import of this client to another target of the same server process) has the reply to a ping that it
    /// sent at `sent`. It renews this lease if no lease has ended in the process since the latest reply to this import
    /// itself.
    pub fn handle_neighbour(&mut self, now: Instant, process: (u64, u64), sent: Instant) {
        if !self.session.is_up() || !self.keepalive.is_neighbour(process) {
            return;
        }
        self.lease.renew(sent);
        if self.is_idle() {
            self.session.received(now);
        }
        self.pump(now);
    }
}

/// Why a target refuses a connect, for people.
fn refusal(frame: &Frame, failure: Failure) -> String {
    let why = match failure {
        Failure::Outcome(ProtocolOutcome::StaleEpoch) => {
            "somebody with this client's secret has connected since"
        }
        Failure::EACCES => "the target knows a client of this identity with another secret",
        _ => truncated(core::str::from_utf8(&frame.body).unwrap_or_default(), SENTENCE_BYTES_MAX),
    };
    let why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("connect refused: {failure} {why}").trim_end().to_owned()
}
