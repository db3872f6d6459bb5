//! What an OST counts, in the shapes that operators know: `stats` and `brw_stats`.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use core::fmt::Write;
use nacre_types::{Samples, Timestamp, clocks};

/// Powers of two from 1 page on.
const BUCKETS: usize = 13;

#[derive(Debug, Clone, Copy, Default)]
struct Histogram([u64; BUCKETS]);
impl Histogram {
    fn count(&mut self, value: u64) {
        let bucket = value.max(1).next_power_of_two().trailing_zeros() as usize;
        if let Some(n) = self.0.get_mut(bucket.min(BUCKETS - 1)) {
            *n += 1;
        }
    }
}

/// Counters since the start, or since they were cleared.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    samples: BTreeMap<&'static str, (Samples, &'static str)>,
    pages: [Histogram; 2],
    start: Timestamp,
}

/// Direction of bulk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bulk {
    Read = 0,
    Write = 1,
}

impl Counters {
    pub(crate) fn clear(&mut self, now: Timestamp) {
        *self = Self { start: now, ..Self::default() };
    }
    pub(crate) fn count(&mut self, name: &'static str, unit: &'static str, value: u64) {
        self.samples.entry(name).or_insert((Samples::default(), unit)).0.add(value);
    }
    pub(crate) fn count_bulk(&mut self, direction: Bulk, bytes: u64) {
        let name = if direction == Bulk::Read { "read_bytes" } else { "write_bytes" };
        self.count(name, "bytes", bytes);
        self.pages[direction as usize].count(bytes.div_ceil(4096));
    }

    /// As `obdfilter.*.stats` prints it.
    pub(crate) fn stats(&self, now: Timestamp) -> String {
        let mut out = clocks(self.start, now, "", 36);
        for (name, (samples, unit)) in &self.samples {
            let line = writeln!(out, "{name:<35} {}", samples.line(unit));
            debug_assert!(line.is_ok());
        }
        out
    }

    /// As `brw_stats` prints its first table.
    pub(crate) fn brw_stats(&self, now: Timestamp) -> String {
        let mut out = clocks(self.start, now, ":", 26);
        out.push_str("\n                           read      |     write\n");
        out.push_str("pages per bulk r/w     rpcs  % cum % |  rpcs        % cum %\n");
        let totals = self.pages.map(|h| h.0.iter().sum::<u64>());
        let mut sums = [0u64; 2];
        for bucket in 0..BUCKETS {
            let n = self.pages.map(|h| h.0.get(bucket).copied().unwrap_or(0));
            let percent = |part: u64, total: u64| (part * 100).checked_div(total).unwrap_or(0);
            let before = sums;
            sums = [sums[0] + n[0], sums[1] + n[1]];
            if n == [0, 0] || before == totals {
                continue;
            }
            let name = format!("{}:", 1u64 << bucket);
            let (r, rt, w, wt) = (n[0], totals[0], n[1], totals[1]);
            let (rp, rc, wp, wc) =
                (percent(r, rt), percent(sums[0], rt), percent(w, wt), percent(sums[1], wt));
            let line = writeln!(out, "{name}\t\t {r:>10} {rp:>3} {rc:>3}   | {w:>4} {wp:>3} {wc:>3}");
            debug_assert!(line.is_ok());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_print_count_least_greatest_sum_and_squares() {
        let mut c = Counters::default();
        c.clear(Timestamp { sec: 100, nsec: 5 });
        c.count_bulk(Bulk::Write, 2 << 20);
        c.count("destroy", "usecs", 3);
        c.count("destroy", "usecs", 5);
        let text = c.stats(Timestamp { sec: 101, nsec: 6 });
        let lines: alloc::vec::Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "snapshot_time                       101.000000006 secs.nsecs");
        assert_eq!(lines[2], "elapsed_time                        1.000000001 secs.nsecs");
        assert_eq!(lines[3], "destroy                             2 samples [usecs] 3 5 8 34");
        assert_eq!(
            lines[4],
            "write_bytes                         1 samples [bytes] 2097152 2097152 2097152 4398046511104"
        );
        let brw = c.brw_stats(Timestamp { sec: 101, nsec: 6 });
        assert!(brw.ends_with("512:\t\t          0   0   0   |    1 100 100\n"), "{brw}");
    }
}
