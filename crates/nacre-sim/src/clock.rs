//! The clocks of one machine: both run at a pace of their own, and the wall clock can be set.

use nacre_node::Rng;
use nacre_types::{Instant, Timestamp};

/// Where the clocks of machines start lies that far apart.
const UPTIME_NS: u64 = 1_000_000_000_000;
const MILLION: i128 = 1_000_000;

/// Clocks as a function of virtual time.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    born_ns: u64,
    /// Monotonic clock at `born_ns`.
    uptime_ns: u64,
    rate_ppm: i128,
    wall_offset_ns: i128,
}

impl Clock {
    pub(crate) fn random(rng: &mut Rng, now_ns: u64, drift_ppm: u64) -> Self {
        let skew_ns = i128::from(rng.below(4_000_000_000)) - 2_000_000_000;
        Self {
            born_ns: now_ns,
            uptime_ns: 1_000_000_000 + rng.below(UPTIME_NS),
            rate_ppm: MILLION + i128::from(rng.below(2 * drift_ppm)) - i128::from(drift_ppm),
            wall_offset_ns: 1_800_000_000_000_000_000 + skew_ns,
        }
    }
    pub(crate) fn read(&self, now_ns: u64) -> (Instant, Timestamp) {
        let passed = i128::from(now_ns - self.born_ns) * self.rate_ppm / MILLION;
        let local =
            u64::try_from(i128::from(self.uptime_ns) + passed).expect("a run takes less than centuries");
        (Instant(local), Timestamp::from_nanos(i128::from(now_ns) + self.wall_offset_ns))
    }
    /// When the monotonic clock will show `local`.
    pub(crate) fn when(&self, local: Instant) -> u64 {
        let passed = i128::from(local.0.saturating_sub(self.uptime_ns)) * MILLION;
        let passed = passed / self.rate_ppm + i128::from(passed % self.rate_ppm != 0);
        self.born_ns.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
    pub(crate) fn jump(&mut self, by_ns: i64) {
        self.wall_offset_ns += i128::from(by_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_not_before_the_clock_shows_it() {
        let mut rng = Rng::new(5);
        for _ in 0..1000 {
            let clock = Clock::random(&mut rng, 7, 40_000);
            let local = Instant(clock.uptime_ns + rng.below(100_000_000_000));
            let at = clock.when(local);
            assert!(clock.read(at).0 >= local, "{at}");
            assert!(at < 8 || clock.read(at - 2).0 < local, "{at}");
        }
    }
}
