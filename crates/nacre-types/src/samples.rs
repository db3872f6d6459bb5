//! Counters in the field's format: count, minimum, maximum, sum and sum of squares.

use crate::Timestamp;
use alloc::format;
use alloc::string::String;
use core::fmt::{self, Write};

/// Samples of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Samples {
    /// Number of values added.
    pub count: u64,
    least: u64,
    greatest: u64,
    sum: u64,
    squares: u128,
}
impl Samples {
    /// Counts a value; sums stay at their maximum instead of wrapping.
    pub fn add(&mut self, value: u64) {
        self.least = if self.count == 0 { value } else { self.least.min(value) };
        self.greatest = self.greatest.max(value);
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.squares = self.squares.saturating_add(u128::from(value) * u128::from(value));
    }
    /// Count and sum.
    pub fn total(&self) -> (u64, u64) {
        (self.count, self.sum)
    }
    /// The rest of a line of `stats`, after the name.
    pub fn line(&self, unit: &str) -> impl fmt::Display {
        let Self { count, least, greatest, sum, squares } = *self;
        fmt::from_fn(move |f| write!(f, "{count} samples [{unit}] {least} {greatest} {sum} {squares}"))
    }
}

/// The first lines of `stats`: current time, start and elapsed time, each after its name and `colon`.
pub fn clocks(start: Timestamp, now: Timestamp, colon: &str, width: usize) -> String {
    let mut out = String::new();
    let elapsed = Timestamp::from_nanos((now.as_nanos() - start.as_nanos()).max(0));
    for (name, at) in [("snapshot_time", now), ("start_time", start), ("elapsed_time", elapsed)] {
        let name = format!("{name}{colon}");
        writeln!(out, "{name:<width$}{}.{:09} secs.nsecs", at.sec, at.nsec)
            .expect("a string takes everything");
    }
    out
}
