//! The state of an import, and its history.

use alloc::collections::VecDeque;
use core::fmt;
use nacre_types::Instant;

/// States of an import, with Lustre's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImportState {
    /// No connection; the next attempt waits for its time.
    Disconnected,
    /// A connection is being opened, or its connect request has no reply yet.
    Connecting,
    /// Changes that the target lost are replayed in the order of their transnos.
    Replay,
    /// Cached locks are replayed.
    ReplayLocks,
    /// The replay is complete; the target waits for its other clients.
    ReplayWait,
    /// Requests without a reply are sent again.
    Recover,
    /// Normal operation.
    Full,
    /// The target has dropped this client's export; a new one takes its place.
    Evicted,
}

impl fmt::Display for ImportState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disconnected => "DISCONN",
            Self::Connecting => "CONNECTING",
            Self::Replay => "REPLAY",
            Self::ReplayLocks => "REPLAY_LOCKS",
            Self::ReplayWait => "REPLAY_WAIT",
            Self::Recover => "RECOVER",
            Self::Full => "FULL",
            Self::Evicted => "EVICTED",
        })
    }
}

/// The latest states, with the time at which each began.
#[derive(Debug, Clone)]
pub struct StateHistory {
    entries: VecDeque<(Instant, ImportState)>,
}

impl StateHistory {
    /// Entries that are kept.
    pub const MAX: usize = 16;

    pub(crate) fn new() -> Self {
        Self { entries: VecDeque::from([(Instant(0), ImportState::Disconnected)]) }
    }
    pub(crate) fn enter(&mut self, now: Instant, state: ImportState) {
        if self.current() == state {
            return;
        }
        if self.entries.len() == Self::MAX {
            self.entries.pop_front();
        }
        self.entries.push_back((now, state));
    }
    /// The state now.
    pub fn current(&self) -> ImportState {
        self.entries.back().map_or(ImportState::Disconnected, |e| e.1)
    }
    /// States, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Instant, ImportState)> + '_ {
        self.entries.iter().copied()
    }
}
