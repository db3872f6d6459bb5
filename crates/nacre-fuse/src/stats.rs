//! Counters of the front end: number and microseconds per operation, in the field's `stats` format.
//!
//! A time lasts from the visit that accepted the request to the visit that replied.

use crate::abi::op;
use crate::door::Reply;
use nacre_types::{Errno, Samples, Timestamp, clocks};
use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::Duration;

struct Counters {
    start: Timestamp,
    ops: [Samples; op::COUNT],
    errors: u64,
    /// Served in the visit that accepted them, from the client's caches or without a file system.
    at_once: u64,
    /// LOOKUPs that found no name.
    negative: u64,
}

/// How a request was served.
pub(crate) enum Served {
    AtOnce,
    /// It waited, for this long.
    After(Duration),
}

impl Counters {
    fn new(start: Timestamp) -> Self {
        Self { start, ops: [Samples::default(); op::COUNT], errors: 0, at_once: 0, negative: 0 }
    }
}

/// All operations of one mount since its start, or since `clear`.
pub struct OpStats(RefCell<Counters>);

impl OpStats {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self(RefCell::new(Counters::new(now)))
    }
    pub(crate) fn count(&self, opcode: u32, served: Served, reply: &Reply) {
        let mut counters = self.0.borrow_mut();
        let negative = match reply {
            Ok(body) => opcode == op::LOOKUP && body.is_no_entry(),
            Err(error) => opcode == op::LOOKUP && *error == Errno::ENOENT,
        };
        counters.negative += u64::from(negative);
        counters.errors += u64::from(reply.is_err());
        let took = match served {
            Served::AtOnce => {
                counters.at_once += 1;
                Duration::ZERO
            }
            Served::After(took) => took,
        };
        if let Some(samples) = counters.ops.get_mut(opcode as usize) {
            samples.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
    }
    /// Starts all counters again at zero; `now` is shown as their start.
    pub fn clear(&self, now: Timestamp) {
        let mut counters = self.0.borrow_mut();
        *counters = Counters::new(now);
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
    /// Requests that were served without a wait, and LOOKUPs that found no name, for `llite.*.kernel_cache`.
    pub(crate) fn hits_text(&self) -> String {
        let counters = self.0.borrow();
        format!("served_at_once: {}\nnegative_lookups: {}\n", counters.at_once, counters.negative)
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
        let after = |us| Served::After(Duration::from_micros(us));
        stats.count(op::MKDIR, after(5), &Ok(Body::empty()));
        stats.count(op::MKDIR, after(3), &Err(Errno::EEXIST));
        stats.count(op::LOOKUP, Served::AtOnce, &Err(Errno::ENOENT));
        stats.count(op::LOOKUP, Served::AtOnce, &Ok(Body::bytes(&[0; 128])));
        stats.count(op::LOOKUP, after(1), &Ok(Body::bytes(&[1; 128])));
        let text = stats.text(Timestamp { sec: 12, nsec: 500 });
        assert!(text.contains("elapsed_time             2.000000500 secs.nsecs\n"), "{text}");
        assert!(text.contains("mkdir                    2 samples [usecs] 3 5 8 34\n"), "{text}");
        assert_eq!(stats.hits_text(), "served_at_once: 2\nnegative_lookups: 2\n");
        assert_eq!(stats.requests(op::MKDIR), 2);
    }
}
