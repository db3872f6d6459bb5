//! When a mount asks again for a lock bit of a file that it has lost.
//!
//! One look of another mount (`stat`, `cat`) takes WRITE_BACK away, and the writer should have it back at once. A file that
//! another mount has open refuses the bit until it is closed there, perhaps for days. So the interval between two
//! questions starts small and doubles with each that did not bring the bit.

use core::time::Duration;
use nacre_types::Instant;

const INTERVAL_MIN: Duration = Duration::from_millis(20);
const INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The latest question about a file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AskAgain {
    asked_at: Instant,
    /// Until the next one. Zero: the bit was held since.
    interval: Duration,
}

impl AskAgain {
    /// The question of now; `None`: the latest one was not long enough ago.
    pub(crate) fn next(self, now: Instant) -> Option<Self> {
        let is_due = now.saturating_since(self.asked_at) >= self.interval;
        let interval = (self.interval * 2).clamp(INTERVAL_MIN, INTERVAL_MAX);
        is_due.then_some(Self { asked_at: now, interval })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn questions_that_bring_nothing_become_rare_and_the_next_loss_begins_anew() {
        let start = Instant(1_000_000_000_000);
        let mut asks = AskAgain::default();
        let mut asked = Vec::new();
        for ms in 0..4000 {
            if let Some(next) = asks.next(start + Duration::from_millis(ms)) {
                asks = next;
                asked.push(ms);
            }
        }
        assert_eq!(asked, [0, 20, 60, 140, 300, 620, 1260, 2260, 3260]);
        assert!(AskAgain::default().next(start + Duration::from_millis(4000)).is_some());
    }
}
