//! Progress of the transfers through a socket.
//!
//! A peer that has begun a frame and sends a byte now and then, or reads its replies a byte at a time, occupies memory
//! here without use. It is disconnected if for [`crate::Config::stall_max`] no transfer in a direction was completed
//! and fewer than [`BYTES_MIN`] bytes were transferred. A slow link transfers more than that.

use nacre_types::Instant;
use std::time::Duration;

/// In one window: about 2 KiB a second.
const BYTES_MIN: u64 = 64 << 10;

/// One direction of a connection, checked from time to time.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    since: Instant,
    bytes: u64,
    ends: u64,
}

impl Progress {
    /// `busy`: a transfer is in progress; `bytes` transferred and `ends` completed so far.
    pub(crate) fn is_stalled(
        &mut self,
        now: Instant,
        busy: bool,
        bytes: u64,
        ends: u64,
        max: Duration,
    ) -> bool {
        if !busy || ends != self.ends || bytes.saturating_sub(self.bytes) >= BYTES_MIN || self.since.0 == 0 {
            *self = Self { since: now, bytes, ends };
            return false;
        }
        now >= self.since + max
    }
    /// This process stood still: starts a new window.
    pub(crate) fn forget(&mut self) {
        self.since = Instant(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trickle_is_a_stall_and_a_slow_line_is_not() {
        let max = Duration::from_secs(30);
        let at = |s: u64| Instant(1_000_000_000 * (100 + s));
        let mut trickle = Progress::default();
        let stalled = (0..40).find(|&s| trickle.is_stalled(at(s), true, s, 0, max));
        assert_eq!(stalled, Some(30));
        let mut slow = Progress::default();
        assert!(!(0..400).any(|s| slow.is_stalled(at(s), true, s * 4096, 0, max)));
        let mut small_frames = Progress::default();
        assert!(!(0..400).any(|s| small_frames.is_stalled(at(s), true, s, s / 20, max)));
        let mut idle = Progress::default();
        assert!(!(0..400).any(|s| idle.is_stalled(at(s), s % 30 > 0, s, 0, max)));
    }
}
