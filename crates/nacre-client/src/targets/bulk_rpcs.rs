//! Reads and writes sent to an object target, in the shape that operators know: `osc.*.rpc_stats`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt::Write;
use nacre_types::{Timestamp, clocks};

const PAGE_BYTES: u64 = 4096;
/// Offsets are counted within so many pages.
const OFFSET_PAGES: u64 = 1024;
/// Rows of each table: requests in flight are bounded by `max_rpcs_in_flight`, sizes and offsets are powers of two.
const ROWS_MAX: usize = 1024;

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bulk {
    Read = 0,
    Write = 1,
}

/// One table: a count of reads and of writes for each row.
#[derive(Debug, Default)]
struct Counts(RefCell<Vec<[u64; 2]>>);
impl Counts {
    fn add(&self, row: usize, direction: Bulk) {
        let mut rows = self.0.borrow_mut();
        let row = row.min(ROWS_MAX - 1);
        if rows.len() <= row {
            rows.resize(row + 1, [0; 2]);
        }
        if let Some(counts) = rows.get_mut(row) {
            counts[direction as usize] += 1;
        }
    }
}

/// The row of a number in a table of powers of two.
fn power(number: u64) -> usize {
    number.max(1).next_power_of_two().trailing_zeros() as usize
}

/// Since the start, or since they were cleared.
#[derive(Debug, Default)]
pub(crate) struct BulkRpcs {
    in_flight: [Cell<u64>; 2],
    pages: Counts,
    others: Counts,
    offsets: Counts,
}

/// A request under way.
pub(crate) struct Sent<'a>(&'a Cell<u64>);
impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl BulkRpcs {
    /// Counts a request; it is in flight until the result is dropped.
    pub(crate) fn begin(&self, direction: Bulk, offset: u64, len: u64) -> Sent<'_> {
        let in_flight = &self.in_flight[direction as usize];
        in_flight.set(in_flight.get() + 1);
        self.pages.add(power(len.div_ceil(PAGE_BYTES)), direction);
        self.others.add(usize::try_from(in_flight.get() - 1).unwrap_or(usize::MAX), direction);
        let page = offset / PAGE_BYTES % OFFSET_PAGES;
        self.offsets.add(if page == 0 { 0 } else { power(page) + 1 }, direction);
        Sent(in_flight)
    }
    pub(crate) fn clear(&self) {
        for table in [&self.pages, &self.others, &self.offsets] {
            table.0.borrow_mut().clear();
        }
    }
    /// The tables in the field's format; lines about what nacre does not have are left out.
    pub(crate) fn render(&self, start: Timestamp, now: Timestamp) -> String {
        let mut out = clocks(start, now, ":", 26);
        let [read, write] = &self.in_flight;
        line(&mut out, format_args!("read RPCs in flight:  {}", read.get()));
        line(&mut out, format_args!("write RPCs in flight: {}", write.get()));
        table(&mut out, "pages per rpc         rpcs", &self.pages, |row| 1 << row);
        table(&mut out, "rpcs in flight        rpcs", &self.others, |row| row as u64 + 1);
        table(&mut out, "offset                rpcs", &self.offsets, |row| match row {
            0 => 0,
            row => 1 << (row - 1),
        });
        out
    }
}

fn table(out: &mut String, head: &str, counts: &Counts, name: impl Fn(usize) -> u64) {
    line(out, format_args!("\n\t\t\tread\t\t\twrite"));
    line(out, format_args!("{head}   % cum % |       rpcs   % cum %"));
    let counts = counts.0.borrow();
    let totals = counts.iter().fold([0, 0], |sum: [u64; 2], n| [sum[0] + n[0], sum[1] + n[1]]);
    let percent = |part: u64, total: u64| (part * 100).checked_div(total).unwrap_or(0);
    let mut sums = [0u64; 2];
    for (row, [reads, writes]) in counts.iter().enumerate() {
        sums = [sums[0] + reads, sums[1] + writes];
        let name = format!("{}:", name(row));
        let part = |n: u64, sum: u64, total: u64| {
            format!("{n:>10} {:>3} {:>3}", percent(n, total), percent(sum, total))
        };
        let (read, write) = (part(*reads, sums[0], totals[0]), part(*writes, sums[1], totals[1]));
        line(out, format_args!("{name}\t\t{read}   | {write}"));
    }
}

fn line(out: &mut String, args: core::fmt::Arguments<'_>) {
    writeln!(out, "{args}").expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_requests_in_flight_and_offsets_are_shown_as_the_field_shows_them() {
        let rpcs = BulkRpcs::default();
        let first = rpcs.begin(Bulk::Write, 0, 1 << 20);
        let second = rpcs.begin(Bulk::Write, 1 << 20, 1 << 20);
        drop(first);
        drop(rpcs.begin(Bulk::Read, 8192, 100));
        let now = Timestamp { sec: 101, nsec: 6 };
        let text = rpcs.render(Timestamp { sec: 100, nsec: 5 }, now);
        assert!(text.contains("read RPCs in flight:  0\nwrite RPCs in flight: 1\n"), "{text}");
        for row in [
            "1:\t\t         1 100 100   |          0   0   0\n",
            "256:\t\t         0   0 100   |          2 100 100\n",
            "1:\t\t         1 100 100   |          1  50  50\n2:\t\t         0   0 100   |          1  50 100\n",
            "0:\t\t         0   0   0   |          1  50  50\n",
            "2:\t\t         1 100 100   |          0   0  50\n",
        ] {
            assert!(text.contains(row), "{row:?} in {text}");
        }
        drop(second);
        rpcs.clear();
        let text = rpcs.render(now, now);
        assert!(text.contains("write RPCs in flight: 0\n") && !text.contains("256:"), "{text}");
    }
}
