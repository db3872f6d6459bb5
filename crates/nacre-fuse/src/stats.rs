//! Counters of the front end: number and microseconds per operation, in the field's `stats` format.
//!
//! A time lasts from the visit that accepted the request to the visit that answered it.

use crate::abi::op;
use crate::door::Answer;
use nacre_types::{Samples, Timestamp, clocks};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::Duration;

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
        let mut text = clocks(counters.start, now, "", 25);
        for (opcode, s) in (0u32..).zip(&counters.ops) {
            if s.count > 0 {
                line(&mut text, &field_name(opcode), format_args!("{}", s.line("usecs")));
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

/// The field's term where it exists.
fn field_name(opcode: u32) -> String {
    let name = if opcode == op::RELEASE { "close" } else { op::name(opcode) };
    name.to_lowercase()
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
