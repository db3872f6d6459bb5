//! The connection of an import: its state, its epoch, the address in use, and the pauses between attempts.
//!
//! Each attempt has an epoch of its own; events of any other epoch are ignored. Pauses double with each round through the
//! addresses up to a bound, and half of each is random.

use crate::state::{ImportState, StateHistory};
use alloc::borrow::ToOwned;
use alloc::string::String;
use core::time::Duration;
use nacre_types::{ConnEpoch, Instant, Transno, Xid};

/// A target in recovery is asked again after a pause that doubles from the first to the second of these: recovery takes
/// milliseconds when all clients reconnect, and a lease when one does not.
const RECOVERY_PAUSE_MIN: Duration = Duration::from_millis(10);
const RECOVERY_PAUSE_MAX: Duration = Duration::from_millis(200);
/// Bounds of the pauses between attempts to connect. A restarted server is found soon; a server that stays away is contacted
/// less often.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_SOON: Duration = Duration::from_millis(160);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Rounds through the addresses until the pauses grow beyond `PAUSE_SOON`: some 10 s.
const SOON_ROUNDS: u32 = 80;

/// State of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    /// There is no connection; the next attempt begins at `retry_at`.
    Down { retry_at: Instant },
    /// The connection is being opened.
    Opening { since: Instant },
    /// The connect request has no reply yet.
    Connecting { xid: Xid, sent: Instant },
    /// The target is in recovery and has to be asked again.
    Queued { again_at: Instant },
    /// The change with the transno `at` was replayed as request `xid`.
    Replaying { at: Transno, xid: Xid, sent: Instant },
    /// The end of the replay was sent; the reply tells whether other clients still replay.
    ReplayDone { xid: Xid, sent: Instant },
    /// Other clients still replay; the target has to be asked again.
    ReplayWait { again_at: Instant },
    /// Requests may be sent.
    Up,
    /// The disconnect request has no reply yet.
    Leaving { xid: Xid, deadline: Instant },
    /// The import has ended.
    Gone,
}

impl Link {
    /// Whether frames of the current epoch are processed.
    pub(super) fn is_open(self) -> bool {
        match self {
            Self::Connecting { .. } | Self::Queued { .. } | Self::Replaying { .. } | Self::Up => true,
            Self::ReplayDone { .. } | Self::ReplayWait { .. } | Self::Leaving { .. } => true,
            Self::Down { .. } | Self::Opening { .. } | Self::Gone => false,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Session {
    link: Link,
    epoch: ConnEpoch,
    history: StateHistory,
    /// Index of the address in use, or of the next one.
    address: usize,
    /// Attempts since the last connection that was up.
    attempts: u32,
    /// Questions to the recovering target whether its recovery is over.
    recovery_asks: u32,
    random: u64,
    last_received: Instant,
    /// When the latest connection that was up was lost, or the import was created.
    lost_at: Instant,
    connects: u64,
    last_error: Option<String>,
}

impl Session {
    pub(super) fn new(now: Instant, seed: u64) -> Self {
        Self {
            link: Link::Down { retry_at: now },
            epoch: ConnEpoch(0),
            history: StateHistory::new(),
            address: 0,
            attempts: 0,
            recovery_asks: 0,
            random: seed,
            last_received: now,
            lost_at: now,
            connects: 0,
            last_error: None,
        }
    }

    pub(super) fn link(&self) -> Link {
        self.link
    }
    pub(super) fn set_link(&mut self, link: Link) {
        self.link = link;
    }
    pub(super) fn is_up(&self) -> bool {
        self.link == Link::Up
    }
    /// Whether this side ends the import, or has ended it.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.link, Link::Leaving { .. } | Link::Gone)
    }
    pub(super) fn epoch(&self) -> ConnEpoch {
        self.epoch
    }
    /// Begins an attempt with a new epoch.
    pub(super) fn begin_attempt(&mut self, now: Instant) -> ConnEpoch {
        self.epoch = ConnEpoch(self.epoch.0 + 1);
        self.link = Link::Opening { since: now };
        self.epoch
    }
    /// The target has admitted this client.
    pub(super) fn admitted(&mut self) {
        self.attempts = 0;
        self.recovery_asks = 0;
        self.connects += 1;
        self.last_error = None;
    }
    /// The connection is lost or refused; the next attempt follows after a pause.
    pub(super) fn went_down(&mut self, now: Instant, reason: &str, addresses: usize) {
        self.last_error = Some(reason.to_owned());
        self.link = Link::Down { retry_at: now + self.pause(addresses) };
    }

    pub(super) fn state(&self) -> ImportState {
        self.history.current()
    }
    pub(super) fn history(&self) -> &StateHistory {
        &self.history
    }
    /// Enters a state; false if the import is in it already.
    pub(super) fn enter(&mut self, now: Instant, state: ImportState) -> bool {
        let is_new = self.history.current() != state;
        self.history.enter(now, state);
        is_new
    }

    /// A message of the target has arrived.
    pub(super) fn received(&mut self, now: Instant) {
        self.last_received = now;
    }
    pub(super) fn last_received(&self) -> Instant {
        self.last_received
    }
    pub(super) fn lost_at(&self) -> Instant {
        self.lost_at
    }
    pub(super) fn set_lost_at(&mut self, at: Instant) {
        self.lost_at = at;
    }
    pub(super) fn connects(&self) -> u64 {
        self.connects
    }
    pub(super) fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }
    pub(super) fn set_last_error(&mut self, error: String) {
        self.last_error = Some(error);
    }

    pub(super) fn address(&self) -> usize {
        self.address
    }
    pub(super) fn set_address(&mut self, address: usize) {
        self.address = address;
    }
    /// An attempt has failed before the target admitted this client: the next one uses the next address.
    pub(super) fn next_address(&mut self, addresses: usize) {
        self.attempts += 1;
        self.address = (self.address + 1) % addresses.max(1);
    }
    /// The next attempt needs no pause that earlier ones have earned.
    pub(super) fn forget_attempts(&mut self) {
        self.attempts = 0;
    }

    fn pause(&mut self, addresses: usize) -> Duration {
        let round = self.attempts / u32::try_from(addresses.max(1)).unwrap_or(u32::MAX);
        let most = if round < SOON_ROUNDS { PAUSE_SOON } else { PAUSE_MAX };
        let full = PAUSE_MIN.saturating_mul(1 << round.min(10)).min(most);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = full / 2;
        let spread = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1);
        half + Duration::from_nanos(self.random % spread)
    }
    /// Pause before the next question to a target that will be in recovery for `recovery_ms` at most.
    pub(super) fn recovery_pause(&mut self, recovery_ms: u32) -> Duration {
        let pause = RECOVERY_PAUSE_MIN * (1 << self.recovery_asks.min(8));
        self.recovery_asks = self.recovery_asks.saturating_add(1);
        let rest = Duration::from_millis(u64::from(recovery_ms));
        pause.min(RECOVERY_PAUSE_MAX).min(rest.max(RECOVERY_PAUSE_MIN))
    }
    pub(super) fn recovery_ended(&mut self) {
        self.recovery_asks = 0;
    }
}
