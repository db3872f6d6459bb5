//! When an import pings its target, and when it acknowledges replies without a request.
//!
//! A ping is sent when 3/10 of the lease have passed since its last renewal. Replies to a neighbour (an import of another
//! target in the same server process) renew the lease of an idle import, too. While requests are under way, only replies
//! on this very connection count.

use core::time::Duration;
use nacre_types::{Instant, Xid};

use crate::lease::ClientLease;

/// A full replay list makes the import ask for commit numbers that often.
const COMMIT_PING_INTERVAL: Duration = Duration::from_millis(100);
/// Imports beyond this rank wait no longer for others to ping first.
const PING_RANK_MAX: u32 = 20;
/// A reply to a change is acknowledged after that time unless a request does it earlier: other clients may wait for it.
const ACK_AFTER: Duration = Duration::from_millis(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Keepalive {
    /// The ping without a reply.
    ping: Option<(Xid, Instant)>,
    ping_sent: Instant,
    rank: u32,
    /// When the latest request that the target has replied to on this connection was sent.
    replied: Instant,
    /// The server process, and how many leases had ended there, as of the latest reply to this import itself; 0: not known.
    process: (u64, u64),
    /// When the latest replies are acknowledged.
    ack_at: Option<Instant>,
}

/// Load of the import, which decides about its pings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    /// No request is under way, and no change waits for its commit.
    Idle,
    Busy,
    /// The replay list is full: calls wait for a commit number.
    WaitsForCommit,
}

impl Keepalive {
    pub(super) fn new(now: Instant) -> Self {
        Self { ping: None, ping_sent: now, rank: 0, replied: now, process: (0, 0), ack_at: None }
    }
    pub(super) fn set_rank(&mut self, rank: u32) {
        self.rank = rank.min(PING_RANK_MAX);
    }

    /// When the next ping is due; `None` while one is under way.
    pub(super) fn ping_at(&self, lease: &ClientLease, load: Load) -> Option<Instant> {
        if self.ping.is_some() {
            return None;
        }
        let after = lease.length() * 3 / 10;
        Some(match load {
            Load::WaitsForCommit => self.ping_sent + COMMIT_PING_INTERVAL,
            Load::Idle => {
                let turn = lease.length() / 200 * self.rank;
                lease.renewed().unwrap_or(self.ping_sent).max(self.ping_sent) + after + turn
            }
            Load::Busy => self.replied.max(self.ping_sent) + after,
        })
    }
    pub(super) fn ping_sent(&mut self, now: Instant, xid: Xid) {
        self.ping = Some((xid, now));
        self.ping_sent = now;
    }
    /// The ping without a reply, with the time when it was sent.
    pub(super) fn ping(&self) -> Option<(Xid, Instant)> {
        self.ping
    }
    pub(super) fn forget_ping(&mut self) {
        self.ping = None;
    }
    /// The connection is up: its handshake counts as a ping.
    pub(super) fn admitted(&mut self, now: Instant) {
        self.ping_sent = now;
    }
    pub(super) fn forget_process(&mut self) {
        self.process = (0, 0);
    }
    pub(super) fn set_process(&mut self, process: (u64, u64)) {
        self.process = process;
    }
    pub(super) fn is_neighbour(&self, process: (u64, u64)) -> bool {
        process.0 != 0 && self.process == process
    }
    /// A request that was sent at `sent` has its reply.
    pub(super) fn replied(&mut self, sent: Instant) {
        self.replied = self.replied.max(sent);
    }

    pub(super) fn ack_at(&self) -> Option<Instant> {
        self.ack_at
    }
    /// A change has its reply, which the target should learn soon.
    pub(super) fn wants_ack(&mut self, now: Instant) {
        self.ack_at = Some(now + ACK_AFTER);
    }
    pub(super) fn acknowledged(&mut self) {
        self.ack_at = None;
    }
}
