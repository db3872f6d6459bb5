//! Counters in the field's format: samples, least, greatest, sum and sum of squares of a latency or size.

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt::Write;
use nacre_node::Ctx;
use nacre_types::{Instant, Samples, Timestamp, clocks};

/// A line of the table: a plain record.
struct Line {
    name: &'static str,
    unit: &'static str,
    samples: Samples,
}

/// A table of counters, one name per line. The names are constants of the code, so the table is bounded. It is searched by
/// the address of the name: that is quicker than a tree for the few lines that there are.
pub(crate) struct Stats {
    ctx: Rc<Ctx>,
    start: Cell<Option<Timestamp>>,
    lines: RefCell<Vec<Line>>,
}

impl Stats {
    pub(crate) fn new(ctx: &Rc<Ctx>) -> Self {
        Self { ctx: ctx.clone(), start: Cell::new(None), lines: RefCell::default() }
    }
    /// Counts a duration from now until the guard is dropped.
    pub(crate) fn time(&self, name: &'static str) -> Timing<'_> {
        Timing { stats: self, name, start: self.ctx.now() }
    }
    pub(crate) fn bytes(&self, name: &'static str, bytes: u64) {
        self.add(name, "bytes", bytes);
    }
    fn add(&self, name: &'static str, unit: &'static str, value: u64) {
        if self.start.get().is_none() {
            self.start.set(Some(self.ctx.wall()));
        }
        let mut lines = self.lines.borrow_mut();
        match lines.iter_mut().find(|line| core::ptr::eq(line.name, name) || line.name == name) {
            Some(line) => line.samples.add(value),
            None => {
                let mut samples = Samples::default();
                samples.add(value);
                lines.push(Line { name, unit, samples });
                lines.sort_unstable_by_key(|line| line.name);
            }
        }
    }
    /// Since when it counts.
    pub(crate) fn start(&self) -> Timestamp {
        self.start.get().unwrap_or(self.ctx.wall())
    }
    /// Of everything that is counted in this unit.
    pub(crate) fn average(&self, unit: &str) -> u64 {
        let lines = self.lines.borrow();
        let counted = lines.iter().filter(|line| line.unit == unit).map(|line| line.samples.total());
        let (count, sum) =
            counted.fold((0, 0_u64), |(n, all), (count, sum)| (n + count, all.saturating_add(sum)));
        sum.checked_div(count).unwrap_or(0)
    }
    pub(crate) fn clear(&self) {
        self.lines.borrow_mut().clear();
        self.start.set(Some(self.ctx.wall()));
    }
    /// The table as `lctl get_param` prints it.
    pub(crate) fn render(&self) -> String {
        let mut out = clocks(self.start(), self.ctx.wall(), "", 36);
        for Line { name, unit, samples } in &*self.lines.borrow() {
            writeln!(out, "{name:<27} {}", samples.line(unit)).expect("a string takes everything");
        }
        out
    }
}

/// Runs until dropped.
pub(crate) struct Timing<'a> {
    stats: &'a Stats,
    name: &'static str,
    start: Instant,
}
impl Drop for Timing<'_> {
    fn drop(&mut self) {
        let elapsed = self.stats.ctx.now() - self.start;
        self.stats.add(self.name, "usecs", u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_samples_unit_least_greatest_sum_and_squares() {
        let ctx = Ctx::new(1);
        ctx.set_time(Instant(0), Timestamp { sec: 10, nsec: 5 });
        let stats = Stats::new(&ctx);
        let timing = stats.time("open");
        ctx.set_time(Instant(3_500_000), Timestamp { sec: 11, nsec: 5 });
        drop(timing);
        stats.bytes("write_bytes", 10);
        stats.bytes("write_bytes", 4);
        let text = stats.render();
        assert!(
            text.contains("open                        1 samples [usecs] 3500 3500 3500 12250000\n"),
            "{text}"
        );
        assert!(text.contains("write_bytes                 2 samples [bytes] 4 10 14 116\n"), "{text}");
        assert!(text.starts_with("snapshot_time                       11.000000005 secs.nsecs\n"), "{text}");
    }
}
