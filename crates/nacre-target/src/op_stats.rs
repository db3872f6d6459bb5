//! Counters of operations in the field's format: samples, least, greatest, sum and sum of squares of the time.
//!
//! Times are those of the island's clock, which stands still within a visit: an operation that had to wait for
//! nothing counts as 0 µs. Names are constants of the code, so a table is bounded.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::fmt::Write;
use core::time::Duration;
use nacre_types::Timestamp;

#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    samples: u64,
    least: u64,
    greatest: u64,
    sum: u64,
    squares: u128,
}

/// One set of counters.
#[derive(Debug)]
pub struct OpStats {
    start: Timestamp,
    counters: BTreeMap<&'static str, Counter>,
}

impl OpStats {
    pub fn new(now: Timestamp) -> Self {
        Self { start: now, counters: BTreeMap::new() }
    }
    /// An operation has taken so long.
    pub fn count(&mut self, operation: &'static str, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let c = self.counters.entry(operation).or_default();
        c.least = if c.samples == 0 { us } else { c.least.min(us) };
        c.greatest = c.greatest.max(us);
        c.samples += 1;
        c.sum = c.sum.saturating_add(us);
        c.squares = c.squares.saturating_add(u128::from(us) * u128::from(us));
    }
    /// As `lctl get_param` prints it.
    pub fn render(&self, now: Timestamp) -> String {
        let mut out = String::new();
        let elapsed = Timestamp::from_nanos((now.as_nanos() - self.start.as_nanos()).max(0));
        for (name, t) in [("snapshot_time", now), ("start_time", self.start), ("elapsed_time", elapsed)] {
            let stamp = alloc::format!("{}.{:09}", t.sec, t.nsec);
            writeln!(out, "{name:<35} {stamp} secs.nsecs").expect("a string takes everything");
        }
        for (name, c) in &self.counters {
            let Counter { samples, least, greatest, sum, squares } = c;
            writeln!(out, "{name:<35} {samples} samples [usecs] {least} {greatest} {sum} {squares}")
                .expect("a string takes everything");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_print_as_the_field_prints_them() {
        let at = |sec| Timestamp { sec, nsec: 7 };
        let mut stats = OpStats::new(at(10));
        stats.count("mkdir", Duration::from_micros(3));
        stats.count("mkdir", Duration::from_micros(5));
        assert_eq!(
            stats.render(at(12)),
            "snapshot_time                       12.000000007 secs.nsecs\n\
             start_time                          10.000000007 secs.nsecs\n\
             elapsed_time                        2.000000000 secs.nsecs\n\
             mkdir                               2 samples [usecs] 3 5 8 34\n"
        );
    }
}
