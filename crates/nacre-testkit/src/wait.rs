//! Waiting for processes and threads that send no event. The only place in tests that polls.
//!
//! A test waits for a condition with [`eventually`]; no test depends on how long something takes.

use rustix::event::{Timespec, poll};
use std::time::{Duration, Instant};

/// How long any condition may take on a busy machine. A test that waits longer has failed.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two checks of a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Lets other threads and processes run for this long. Never a condition of a test.
pub fn pause(time: Duration) {
    let moment = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    let _interrupted = poll(&mut [], Some(&moment));
}

/// Waits until the condition holds; false if it does not within `limit`.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() >= limit {
            return false;
        }
        pause(POLL_INTERVAL);
    }
    true
}

/// Waits until the condition holds.
///
/// # Panics
/// If it does not within [`WAIT_TIMEOUT`]; `what` says what did not happen.
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(WAIT_TIMEOUT, condition), "not within {WAIT_TIMEOUT:?}: {what}");
}
