//! Counters of operations in the format of Lustre: samples, minimum, maximum, sum and sum of squares of the time.
//!
//! Times are those of the island's clock, which does not advance within a visit: an operation that did not wait counts as
//! 0 µs. Names are constants of the code, so a table is bounded.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::time::Duration;
use nacre_types::{Samples, Timestamp, clocks};

/// One set of counters.
#[derive(Debug)]
pub struct OpStats {
    start: Timestamp,
    /// Name and unit of each, in the order of their first use. There are few, and they are almost always found by the
    /// address of their name.
    counters: Vec<(&'static str, &'static str, Samples)>,
}

impl OpStats {
    /// Counters that start now.
    pub fn new(now: Timestamp) -> Self {
        Self { start: now, counters: Vec::new() }
    }
    /// Counts an operation and its duration.
    pub fn count(&mut self, operation: &'static str, took: Duration) {
        self.add(operation, "usecs", u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }
    /// Counts the bytes of an operation.
    pub fn count_bytes(&mut self, name: &'static str, bytes: u64) {
        self.add(name, "bytes", bytes);
    }
    fn add(&mut self, name: &'static str, unit: &'static str, value: u64) {
        let found = self.counters.iter().position(|(counted, ..)| core::ptr::eq(*counted, name));
        let found = found.or_else(|| self.counters.iter().position(|(counted, ..)| *counted == name));
        let at = found.unwrap_or_else(|| {
            self.counters.push((name, unit, Samples::default()));
            self.counters.len() - 1
        });
        self.counters[at].2.add(value);
    }
    /// As `lctl get_param` prints it.
    pub fn render(&self, now: Timestamp) -> String {
        let mut out = clocks(self.start, now, "", 36);
        let mut sorted: Vec<_> = self.counters.iter().collect();
        sorted.sort_unstable_by_key(|(name, ..)| *name);
        for (name, unit, samples) in sorted {
            writeln!(out, "{name:<35} {}", samples.line(unit)).expect("a string takes everything");
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
        stats.count_bytes("write_bytes", 2 << 20);
        assert_eq!(
            stats.render(at(12)),
            "snapshot_time                       12.000000007 secs.nsecs\n\
             start_time                          10.000000007 secs.nsecs\n\
             elapsed_time                        2.000000000 secs.nsecs\n\
             mkdir                               2 samples [usecs] 3 5 8 34\n\
             write_bytes                         1 samples [bytes] 2097152 2097152 2097152 4398046511104\n"
        );
    }
}
