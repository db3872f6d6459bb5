//! Counters of the door: per operation how many, and microseconds, in the field's `stats` format.
//!
//! A time is from the visit that took the request in to the visit that answered it.

use crate::abi::op;
use crate::door::Answer;
use nacre_types::Timestamp;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::Duration;

/// Samples of one operation.
#[derive(Debug, Clone, Copy, Default)]
struct Samples {
    count: u64,
    min_us: u64,
    max_us: u64,
    sum_us: u64,
    sum_squares: u64,
}
impl Samples {
    fn add(&mut self, us: u64) {
        self.min_us = if self.count == 0 { us } else { self.min_us.min(us) };
        self.max_us = self.max_us.max(us);
        self.count += 1;
        self.sum_us = self.sum_us.saturating_add(us);
        self.sum_squares = self.sum_squares.saturating_add(us.saturating_mul(us));
    }
}

struct Counters {
    start: Timestamp,
    ops: [Samples; op::COUNT],
    errors: u64,
}

/// All operations of one mount since its start, or since `clear`.
pub struct OpStats(RefCell<Counters>);

impl OpStats {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self(RefCell::new(Counters { start: now, ops: [Samples::default(); op::COUNT], errors: 0 }))
    }
    pub(crate) fn count(&self, opcode: u32, took: Duration, answer: &Answer) {
        let mut counters = self.0.borrow_mut();
        counters.errors += u64::from(answer.is_err());
        if let Some(samples) = counters.ops.get_mut(opcode as usize) {
            samples.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
    }
    pub fn clear(&self, now: Timestamp) {
        let mut counters = self.0.borrow_mut();
        *counters = Counters { start: now, ops: [Samples::default(); op::COUNT], errors: 0 };
    }
    /// Requests of one operation so far.
    pub fn requests(&self, opcode: u32) -> u64 {
        self.0.borrow().ops.get(opcode as usize).map_or(0, |s| s.count)
    }
    /// The text of `llite.*.stats`.
    pub fn text(&self, now: Timestamp) -> String {
        let counters = self.0.borrow();
        let elapsed = now.as_nanos() - counters.start.as_nanos();
        let mut text = String::new();
        for (name, t) in [
            ("snapshot_time", now),
            ("start_time", counters.start),
            ("elapsed_time", Timestamp::from_nanos(elapsed)),
        ] {
            line(&mut text, name, format_args!("{}.{:09} secs.nsecs", t.sec, t.nsec));
        }
        for (opcode, s) in (0u32..).zip(&counters.ops) {
            if s.count > 0 {
                let Samples { count, min_us, max_us, sum_us, sum_squares } = s;
                let numbers =
                    format_args!("{count} samples [usecs] {min_us} {max_us} {sum_us} {sum_squares}");
                line(&mut text, &field_name(opcode), numbers);
            }
        }
        if counters.errors > 0 {
            line(&mut text, "errors", format_args!("{} samples [reqs]", counters.errors));
        }
        text
    }
}

fn line(text: &mut String, name: &str, rest: std::fmt::Arguments<'_>) {
    writeln!(text, "{name:<24} {rest}").expect("a string takes everything");
}

/// The field's word where it has one.
fn field_name(opcode: u32) -> String {
    match opcode {
        op::RELEASE => "close".to_owned(),
        op::SETLK | op::SETLKW => op::name(opcode).to_lowercase(),
        op::RENAME2 => "rename2".to_owned(),
        _ => op::name(opcode).to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Body;

    #[test]
    fn counters_have_the_fields_format() {
        let stats = OpStats::new(Timestamp { sec: 10, nsec: 0 });
        stats.count(op::MKDIR, Duration::from_micros(5), &Ok(Body::empty()));
        stats.count(op::MKDIR, Duration::from_micros(3), &Err(nacre_types::Errno::EEXIST));
        let text = stats.text(Timestamp { sec: 12, nsec: 500 });
        assert!(text.contains("elapsed_time             2.000000500 secs.nsecs\n"), "{text}");
        assert!(text.contains("mkdir                    2 samples [usecs] 3 5 8 34\n"), "{text}");
        assert_eq!(stats.requests(op::MKDIR), 2);
    }
}
