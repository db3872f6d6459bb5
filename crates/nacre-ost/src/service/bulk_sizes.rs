//! Sizes of bulk transfers, in the shape that operators know: `brw_stats`.

use alloc::format;
use alloc::string::String;
use core::fmt::Write;
use nacre_types::{Timestamp, clocks};

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

/// Since the start, or since they were cleared.
#[derive(Debug)]
pub(crate) struct BulkSizes {
    pages: [Histogram; 2],
    start: Timestamp,
}

/// Direction of bulk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bulk {
    Read = 0,
    Write = 1,
}

impl BulkSizes {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { pages: [Histogram::default(); 2], start: now }
    }
    pub(crate) fn count(&mut self, direction: Bulk, bytes: u64) {
        self.pages[direction as usize].count(bytes.div_ceil(4096));
    }

    /// As `brw_stats` prints its first table.
    pub(crate) fn render(&self, now: Timestamp) -> String {
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
    fn sizes_are_shown_up_to_the_row_that_completes_them() {
        let mut sizes = BulkSizes::new(Timestamp { sec: 100, nsec: 5 });
        sizes.count(Bulk::Write, 2 << 20);
        let text = sizes.render(Timestamp { sec: 101, nsec: 6 });
        assert!(text.starts_with("snapshot_time:            101.000000006 secs.nsecs\n"), "{text}");
        assert!(text.ends_with("512:\t\t          0   0   0   |    1 100 100\n"), "{text}");
    }
}
