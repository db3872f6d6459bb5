//! Counters of operations, shown as the field shows them (`mdt.*.md_stats`).
//!
//! Times are those of the island's clock, which stands still within a visit: an operation that had to wait for nothing
//! counts as 0 µs.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::fmt::Write;
use core::time::Duration;
use nacre_types::Timestamp;

#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    samples: u64,
    min_us: u64,
    max_us: u64,
    sum_us: u64,
    sum_squares: u128,
}

/// One set of counters.
#[derive(Debug)]
pub(crate) struct Stats {
    start: Timestamp,
    counters: BTreeMap<&'static str, Counter>,
}

impl Stats {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { start: now, counters: BTreeMap::new() }
    }
    pub(crate) fn count(&mut self, op: &'static str, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let c = self.counters.entry(op).or_insert(Counter { min_us: u64::MAX, ..Counter::default() });
        c.samples += 1;
        c.min_us = c.min_us.min(us);
        c.max_us = c.max_us.max(us);
        c.sum_us = c.sum_us.saturating_add(us);
        c.sum_squares = c.sum_squares.saturating_add(u128::from(us) * u128::from(us));
    }
    pub(crate) fn clear(&mut self, now: Timestamp) {
        *self = Self::new(now);
    }
    /// The parameter's value.
    pub(crate) fn print(&self, now: Timestamp) -> String {
        let mut out = String::new();
        let elapsed = Timestamp::from_nanos((now.as_nanos() - self.start.as_nanos()).max(0));
        for (name, t) in [("snapshot_time", now), ("start_time", self.start), ("elapsed_time", elapsed)] {
            // Writing to a string cannot fail.
            let _ok = writeln!(out, "{name:<35} {}.{:09} secs.nsecs", t.sec, t.nsec);
        }
        for (op, c) in &self.counters {
            let _ok = writeln!(
                out,
                "{op:<35} {} samples [usecs] {} {} {} {}",
                c.samples, c.min_us, c.max_us, c.sum_us, c.sum_squares
            );
        }
        out.truncate(out.trim_end().len());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_print_as_the_field_prints_them() {
        let at = |sec| Timestamp { sec, nsec: 7 };
        let mut stats = Stats::new(at(10));
        stats.count("open", Duration::from_micros(3));
        stats.count("open", Duration::from_micros(5));
        assert_eq!(
            stats.print(at(12)),
            "snapshot_time                       12.000000007 secs.nsecs\n\
             start_time                          10.000000007 secs.nsecs\n\
             elapsed_time                        2.000000000 secs.nsecs\n\
             open                                2 samples [usecs] 3 5 8 34"
        );
    }
}
