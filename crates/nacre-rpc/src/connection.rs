//! The connection of an import: opening, the connect handshake, replay and resend after it, pings, silence.
//!
//! Invariants: each attempt has its own epoch, and events of any other epoch do nothing; after a handshake
//! requests go out in the order replay, resend, new; a connection from which nothing was heard for
//! 7/10 of the lease is given up; pings, sent when the lease was renewed 3/10 ago, see to it that a living one is
//! heard. An idle import sends none when another import to the same server process was answered: that answer renews it
//! too, see [`Import::handle_neighbour`]. Deadlines are times of the caller.

use crate::import::{CallError, Import, ImportEffect};
use crate::replay::is_data;
use crate::state::ImportState;
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_types::{Codec, ConnEpoch, Errno, Generation, Instant, ProtocolOutcome, Transno, Xid};
use nacre_wire::bounds::{NAME_BYTES_MAX, SENTENCE_BYTES_MAX, cut};
use nacre_wire::target::{Connect, ConnectReply, Made, PingReply, features};
use nacre_wire::{Frame, Header, Kind, Opcode, Status, flags};

/// A target in recovery is asked whether it is over, after a pause that doubles from the first to the second of these:
/// where all clients live it takes milliseconds, and a lease where one does not.
const REPLAY_ASK_MIN: Duration = Duration::from_millis(10);
const REPLAY_ASK_MAX: Duration = Duration::from_millis(200);
/// A target that has to commit before more may be sent is asked that often.
const COMMIT_ASK: Duration = Duration::from_millis(100);
/// Opening a connection may take that long before the next address is tried.
const OPEN_MAX: Duration = Duration::from_secs(5);
/// Imports beyond this many wait no longer for others to ping first.
const PING_RANK_MAX: u32 = 20;
/// The server is told of a planned end, but not waited for longer than this.
const LEAVE_MAX: Duration = Duration::from_secs(2);
/// Pauses between attempts, doubled per round through the addresses. A server that was restarted is found soon; one
/// that stays away is asked less often.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_SOON: Duration = Duration::from_millis(160);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Rounds until the pauses grow beyond `PAUSE_SOON`: some 10 s.
const SOON_ROUNDS: u32 = 80;

/// What the connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Down {
        retry_at: Instant,
    },
    Opening {
        since: Instant,
    },
    Connecting {
        xid: Xid,
        sent: Instant,
    },
    /// The target is recovering and asked to be asked again.
    Queued {
        again_at: Instant,
    },
    /// The change `at` was sent again, as `xid`.
    Replaying {
        at: Transno,
        xid: Xid,
        sent: Instant,
    },
    /// The target was told that there is nothing more to replay, and answers whether others have.
    ReplayDone {
        xid: Xid,
        sent: Instant,
    },
    /// Others have; it is asked again.
    ReplayWait {
        again_at: Instant,
    },
    Up,
    /// Disconnect was sent.
    Leaving {
        xid: Xid,
        until: Instant,
    },
    Gone,
}

impl Link {
    /// Frames of the current epoch mean something.
    pub(crate) fn stands(self) -> bool {
        match self {
            Self::Connecting { .. } | Self::Queued { .. } | Self::Replaying { .. } | Self::Up => true,
            Self::ReplayDone { .. } | Self::ReplayWait { .. } => true,
            Self::Leaving { .. } => true,
            Self::Down { .. } | Self::Opening { .. } | Self::Gone => false,
        }
    }
}

impl<T> Import<T> {
    // ---- events

    /// The connection stands.
    pub fn handle_opened(&mut self, now: Instant, epoch: ConnEpoch) {
        if epoch == self.epoch && matches!(self.link, Link::Opening { .. }) {
            self.last_heard = now;
            self.send_connect(now);
        }
    }

    /// The connection could not be opened, or is gone.
    pub fn handle_closed(&mut self, now: Instant, epoch: ConnEpoch, reason: &str) {
        if epoch == self.epoch {
            self.went_down(now, reason);
        }
    }

    /// The target may be at other addresses. A standing connection is kept.
    pub fn set_addresses(&mut self, now: Instant, addresses: Vec<String>) {
        let current = self.current_address().map(ToOwned::to_owned);
        self.address = addresses.iter().position(|a| Some(a) == current.as_ref()).unwrap_or(0);
        self.config.addresses = addresses;
        if let Link::Down { .. } = self.link {
            self.attempts = 0;
            self.open(now);
        }
    }

    /// Ends the import: every call finishes with `Stopped`, the target is told if it can be.
    pub fn stop(&mut self, now: Instant) {
        self.fail_all(CallError::Stopped);
        match self.link {
            Link::Up => {
                let mut header = Header::new(Kind::Request, Opcode::Disconnect.number());
                header.xid = self.take_xid();
                self.link = Link::Leaving { xid: header.xid, until: now + LEAVE_MAX };
                self.send(header, Bytes::new(), Vec::new());
            }
            Link::Gone | Link::Leaving { .. } => {}
            Link::Down { .. }
            | Link::Opening { .. }
            | Link::Connecting { .. }
            | Link::Queued { .. }
            | Link::ReplayDone { .. }
            | Link::ReplayWait { .. }
            | Link::Replaying { .. } => self.gone(now),
        }
    }

    /// A deadline of `poll_deadline` may have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.link {
            Link::Down { retry_at } => {
                if now >= retry_at {
                    self.open(now);
                }
            }
            Link::Opening { since } => {
                if now >= since + OPEN_MAX {
                    self.lose(now, "no answer while connecting");
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
                if self.link == Link::Up && now >= self.ping_at() {
                    self.send_ping(now);
                }
                if self.link == Link::Up && self.ack_at.is_some_and(|at| now >= at) {
                    self.ack_at = None;
                    let mut header = Header::new(Kind::Ack, 0);
                    header.last_xid = self.last_xid();
                    self.send(header, Bytes::new(), Vec::new());
                }
            }
            Link::Leaving { until, .. } => {
                if now >= until {
                    self.gone(now);
                }
            }
            Link::Gone => {}
        }
        self.release_delayed(now);
        self.pump(now);
    }

    /// When `handle_timeout` is wanted.
    pub fn poll_deadline(&self) -> Option<Instant> {
        let silent_at = self.silent_at();
        let link = match self.link {
            Link::Down { .. } if self.config.addresses.is_empty() => None, // there is nothing to try
            Link::Down { retry_at } => Some(retry_at),
            Link::Opening { since } => Some(since + OPEN_MAX),
            Link::Queued { again_at } => Some(again_at),
            Link::Connecting { .. } | Link::Replaying { .. } | Link::ReplayDone { .. } => Some(silent_at),
            Link::ReplayWait { again_at } => Some(again_at),
            Link::Up => {
                let ack_at = self.ack_at.unwrap_or(Instant(u64::MAX));
                Some(silent_at.min(self.ping_at()).min(ack_at))
            }
            Link::Leaving { until, .. } => Some(until),
            Link::Gone => None,
        };
        let delayed = self.delayed.first_key_value().map(|(key, _)| key.0);
        [link, delayed].into_iter().flatten().min()
    }

    // ---- connecting

    pub(crate) fn open(&mut self, now: Instant) {
        let Some(address) = self.config.addresses.get(self.address) else {
            self.link = Link::Down { retry_at: now + PAUSE_MAX };
            return;
        };
        self.epoch = ConnEpoch(self.epoch.0 + 1);
        self.effects.push_back(ImportEffect::Open { epoch: self.epoch, address: address.clone() });
        self.link = Link::Opening { since: now };
        self.ping = None;
        self.process = (0, 0);
        self.enter(now, ImportState::Connecting);
    }

    fn send_connect(&mut self, now: Instant) {
        let mut header = Header::new(Kind::Request, Opcode::Connect.number());
        header.xid = self.take_xid();
        self.link = Link::Connecting { xid: header.xid, sent: now };
        let connect = Connect {
            client: self.config.client,
            role: self.config.role,
            secret: self.config.secret,
            name: cut(&self.config.name, NAME_BYTES_MAX).to_owned(),
            features: features::ALL,
            max_mod_rpcs: self.config.max_mod_rpcs,
            generation: self.generation,
            known: self.remembered(),
            replaced: self.known.replaced(),
            instance: self.config.instance,
        };
        self.send(header, Bytes::from(connect.to_vec()), Vec::new());
    }

    /// Gives up the connection and tries again.
    pub(crate) fn lose(&mut self, now: Instant, reason: &str) {
        self.effects.push_back(ImportEffect::Close { epoch: self.epoch });
        self.went_down(now, reason);
    }

    fn went_down(&mut self, now: Instant, reason: &str) {
        match self.link {
            Link::Gone | Link::Down { .. } => return,
            Link::Leaving { .. } => {
                self.link = Link::Gone;
                self.enter(now, ImportState::Disconnected);
                self.effects.push_back(ImportEffect::Stopped);
                return;
            }
            // This address was good: first try it again.
            Link::Up => self.away_since = self.away_since().unwrap_or(now),
            Link::Replaying { .. } | Link::ReplayDone { .. } | Link::ReplayWait { .. } => {}
            Link::Opening { .. } | Link::Connecting { .. } | Link::Queued { .. } => {
                if matches!(self.link, Link::Opening { .. }) {
                    self.nobody_answers();
                }
                self.attempts += 1;
                self.address = (self.address + 1) % self.config.addresses.len().max(1);
            }
        }
        self.patience = Duration::ZERO;
        self.last_error = Some(reason.to_owned());
        self.effects.push_back(ImportEffect::Lost { reason: reason.to_owned() });
        self.ping = None;
        self.link = Link::Down { retry_at: now + self.pause() };
        self.enter(now, ImportState::Disconnected);
    }

    /// Doubles with each round through the addresses; half of it is chance, against storms.
    fn pause(&mut self) -> Duration {
        let round = self.attempts / u32::try_from(self.config.addresses.len().max(1)).unwrap_or(u32::MAX);
        let most = if round < SOON_ROUNDS { PAUSE_SOON } else { PAUSE_MAX };
        let full = PAUSE_MIN.saturating_mul(1 << round.min(10)).min(most);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = full / 2;
        let spread = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
        half + Duration::from_nanos(self.random % spread)
    }

    fn gone(&mut self, now: Instant) {
        if !matches!(self.link, Link::Down { .. } | Link::Gone) {
            self.effects.push_back(ImportEffect::Close { epoch: self.epoch });
        }
        self.link = Link::Gone;
        self.enter(now, ImportState::Disconnected);
        self.effects.push_back(ImportEffect::Stopped);
    }

    pub(crate) fn enter(&mut self, now: Instant, state: ImportState) {
        if self.state.current() != state {
            self.state.enter(now, state);
            self.effects.push_back(ImportEffect::State { state });
        }
    }

    // ---- answers to what the import itself asked

    /// True if the reply was one of those.
    pub(crate) fn handle_own_reply(&mut self, now: Instant, frame: &Frame) -> bool {
        let xid = frame.header.xid;
        match self.link {
            Link::Connecting { xid: mine, sent } if xid == mine => self.connect_answered(now, frame, sent),
            Link::Replaying { at, xid: mine, sent } if xid == mine => {
                self.replay_answered(now, frame, at, sent)
            }
            Link::ReplayDone { xid: mine, sent } if xid == mine => {
                self.replay_done_answered(now, frame, sent)
            }
            Link::Leaving { xid: mine, .. } if xid == mine => self.gone(now),
            Link::Down { .. }
            | Link::Opening { .. }
            | Link::Connecting { .. }
            | Link::Queued { .. }
            | Link::Replaying { .. }
            | Link::ReplayDone { .. }
            | Link::ReplayWait { .. }
            | Link::Up
            | Link::Leaving { .. }
            | Link::Gone => match self.ping {
                Some((mine, sent)) if xid == mine => {
                    self.ping = None;
                    self.note_answer(&frame.header, sent);
                    if let Ok(reply) = PingReply::from_slice(&frame.body) {
                        self.config_version = reply.config_version;
                        let process = (reply.process, reply.ended);
                        self.note_process(&frame.header, process);
                        if process.0 != 0 {
                            self.effects.push_back(ImportEffect::Answered { process, sent });
                        }
                    }
                    self.pump(now);
                }
                _ => return false,
            },
        }
        true
    }

    fn connect_answered(&mut self, now: Instant, frame: &Frame, sent: Instant) {
        if frame.header.status != Status::Success {
            return self.lose(now, &refused(frame));
        }
        let reply = match ConnectReply::from_slice(&frame.body) {
            Ok(reply) => reply,
            Err(e) => return self.lose(now, &format!("connect reply cannot be read: {e}")),
        };
        if !self.meet(now, &reply) {
            return;
        }
        if reply.recovery_ms > 0 {
            let pause = self.ask_pause(reply.recovery_ms);
            self.link = Link::Queued { again_at: now + pause };
            let seconds = reply.recovery_ms.div_ceil(1000);
            if self.state.current() != ImportState::ReplayWait {
                self.effects.push_back(ImportEffect::Recovering { seconds });
            }
            self.last_error = Some(format!(
                "in recovery: it waits for the clients that it knows, for {seconds} s more at the most"
            ));
            return self.enter(now, ImportState::ReplayWait);
        }
        if !reply.replaced.is_empty() {
            self.effects.push_back(ImportEffect::TookOver { from: reply.replaced });
        }
        self.attempts = 0;
        self.asked = 0;
        self.connects += 1;
        self.last_error = None;
        self.ping_sent = now;
        self.server_time = Some((now, reply.server_time));
        self.agreed = Some((reply.features, reply.max_mod_rpcs));
        self.set_local(reply.local);
        self.note_process(&frame.header, (reply.process, reply.ended));
        self.limit_slots();
        self.lease.set_length(Duration::from_millis(u64::from(reply.lease_ms)));
        if self.target.replace(reply.target).is_some_and(|old| old != reply.target) {
            self.forget_commits(); // the target was made anew
        }
        if reply.evicted || (self.generation != Generation(0) && self.generation != reply.generation) {
            self.evicted(now, reply.cause);
        }
        self.generation = reply.generation;
        // What a recovery that broke off had made again is in the list before the answer says what is safe.
        self.replay.settle();
        self.keep_unanswered(&reply.made);
        self.note_answer(&frame.header, sent);
        if self.instance.replace(reply.instance).is_some_and(|old| old != reply.instance) {
            self.forget_callbacks();
            self.replay_due = true;
            self.effects.push_back(ImportEffect::Restarted { instance: reply.instance });
        }
        if self.replay_due {
            self.enter(now, ImportState::Replay);
            self.replay_next(now);
        } else {
            self.recover(now);
        }
    }

    /// Writes that the target has in its log and that were never answered: their bytes may be lost. They are put back in
    /// their turn, before anybody can change the same blocks; the answer comes with the resend.
    fn keep_unanswered(&mut self, made: &[Made]) {
        for &Made { xid, transno } in made {
            if let Some(call) = self.unreplied.get(&xid)
                && is_data(&call.frame)
            {
                self.replay.keep(transno, call.frame.clone(), Bytes::new());
            }
        }
    }

    pub(crate) fn evicted(&mut self, now: Instant, cause: String) {
        self.evictions += 1;
        self.lease.forget();
        self.replay.clear();
        self.forget_callbacks();
        self.enter(now, ImportState::Evicted);
        self.effects.push_back(ImportEffect::Evicted { cause });
        self.fail_evicted();
    }

    /// Sends the first change that the target has lost; one at a time.
    fn replay_next(&mut self, now: Instant) {
        let Some(entry) = self.replay.first() else {
            self.enter(now, ImportState::ReplayLocks); // no lock is cached yet
            return self.send_replay_done(now);
        };
        let Frame { mut header, body, mut bulk } = entry.request;
        if bulk.is_empty() {
            bulk.push(entry.reply); // it must come out the same
        }
        header.flags |= flags::REPLAY;
        header.transno = entry.transno;
        header.last_xid = Xid(0);
        self.link = Link::Replaying { at: entry.transno, xid: header.xid, sent: now };
        self.send(header, body, bulk);
    }

    fn replay_answered(&mut self, now: Instant, frame: &Frame, at: Transno, sent: Instant) {
        if frame.header.status.is(ProtocolOutcome::NothingLost) {
            // Nothing was lost this time; what is kept is kept for the next.
            self.note_answer(&frame.header, sent);
            return self.send_replay_done(now);
        }
        self.replay.replayed(at, frame.header.xid, frame.header.transno);
        self.note_answer(&frame.header, sent);
        if let Some(error) = frame.header.status.error() {
            self.effects.push_back(ImportEffect::ReplayFailed { transno: at, error });
        }
        self.replay_next(now);
    }

    /// Says that nothing more is to be replayed. Asked again until the target serves everybody.
    fn send_replay_done(&mut self, now: Instant) {
        self.enter(now, ImportState::ReplayWait);
        let mut header = Header::new(Kind::Request, Opcode::Ping.number());
        header.flags |= flags::REPLAY_DONE;
        header.last_xid = self.last_xid();
        header.xid = self.take_xid();
        self.link = Link::ReplayDone { xid: header.xid, sent: now };
        self.send(header, Bytes::new(), Vec::new());
    }

    fn replay_done_answered(&mut self, now: Instant, frame: &Frame, sent: Instant) {
        let recovery_ms = PingReply::from_slice(&frame.body).map_or(0, |reply| reply.recovery_ms);
        if recovery_ms > 0 {
            self.note_answer(&frame.header, sent);
            let pause = self.ask_pause(recovery_ms);
            self.link = Link::ReplayWait { again_at: now + pause };
            return;
        }
        // What was made again counts under its number before the answer says what is safe.
        self.replay.settle();
        self.replay_due = false;
        self.asked = 0;
        self.note_answer(&frame.header, sent);
        self.recover(now);
    }

    /// Until a target in recovery is asked again.
    fn ask_pause(&mut self, recovery_ms: u32) -> Duration {
        let pause = REPLAY_ASK_MIN * (1 << self.asked.min(8));
        self.asked = self.asked.saturating_add(1);
        pause.min(REPLAY_ASK_MAX).min(Duration::from_millis(u64::from(recovery_ms)).max(REPLAY_ASK_MIN))
    }

    fn recover(&mut self, now: Instant) {
        self.enter(now, ImportState::Recover);
        self.link = Link::Up;
        self.resend(now);
        self.enter(now, ImportState::Full);
        self.pump(now);
    }

    // ---- keeping it alive

    fn ping_at(&self) -> Instant {
        match self.ping {
            Some(_) => Instant(u64::MAX),
            None if self.replay.is_full() => self.ping_sent + COMMIT_ASK,
            None if self.is_idle() => {
                let turn = self.lease.length() / 200 * self.ping_rank;
                self.lease.renewed().unwrap_or(self.ping_sent).max(self.ping_sent) + self.ping_after() + turn
            }
            // What is under way is waited for on this very connection: it must be heard itself.
            None => self.direct.max(self.ping_sent) + self.ping_after(),
        }
    }

    fn send_ping(&mut self, now: Instant) {
        let mut header = Header::new(Kind::Request, Opcode::Ping.number());
        header.last_xid = self.last_xid();
        header.xid = self.take_xid();
        self.ping = Some((header.xid, now));
        self.ping_sent = now;
        self.send(header, Bytes::new(), Vec::new());
    }

    fn check_silence(&mut self, now: Instant) {
        if now >= self.silent_at() {
            let ms = (self.lease.length() * 7 / 10).as_millis();
            self.lose(now, &format!("nothing heard for {ms} ms, not even an answer to a ping"));
        }
    }
    fn silent_at(&self) -> Instant {
        self.last_heard + self.lease.length() * 7 / 10
    }
    fn ping_after(&self) -> Duration {
        self.lease.length() * 3 / 10
    }
    /// Nothing is under way, and no commit number is waited for.
    fn is_idle(&self) -> bool {
        self.unreplied.is_empty() && self.replay.is_empty()
    }

    // ---- neighbours: imports of this client to other targets of the same server process

    /// Imports of one client have different ones, so that of those that become idle together one pings first.
    pub fn set_ping_rank(&mut self, rank: u32) {
        self.ping_rank = rank.min(PING_RANK_MAX);
    }
    /// A ping of a neighbour, sent at `sent`, was answered. It renews this lease if no lease has ended in the process
    /// since the latest answer to this import itself.
    pub fn handle_neighbour(&mut self, now: Instant, process: (u64, u64), sent: Instant) {
        if self.link != Link::Up || process.0 == 0 || self.process != process {
            return;
        }
        self.lease.renew(sent);
        if self.is_idle() {
            self.last_heard = now;
        }
        self.pump(now);
    }
    /// What an answer to this import says of its server process.
    fn note_process(&mut self, header: &Header, process: (u64, u64)) {
        self.process = if header.has(flags::LEASE_ENDING) { (0, 0) } else { process };
    }
}

/// Why a target refuses a connect, for people.
fn refused(frame: &Frame) -> String {
    let why = match frame.header.status {
        Status::Outcome(ProtocolOutcome::StaleEpoch) => {
            "somebody with this client's secret has connected since"
        }
        Status::Errno(Errno::EACCES) => "the target knows a client of this identity with another secret",
        _ => cut(core::str::from_utf8(&frame.body).unwrap_or_default(), SENTENCE_BYTES_MAX),
    };
    let why: String = why.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let error = Errno(frame.header.status.number());
    format!("connect refused: {error} {why}").trim_end().to_owned()
}
