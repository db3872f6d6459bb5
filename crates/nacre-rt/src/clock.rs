//! The two clocks of a visit, read from the vdso.

use nacre_types::{Instant, Timestamp};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

fn nanos(t: Timespec) -> u64 {
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// CLOCK_BOOTTIME: goes on while the machine sleeps, so that a lease that ran out in a suspended laptop is over.
pub fn now() -> Instant {
    Instant(nanos(clock_gettime(ClockId::Boottime)))
}

/// CLOCK_REALTIME: what files carry.
pub fn wall() -> Timestamp {
    let t = clock_gettime(ClockId::Realtime);
    Timestamp { sec: t.tv_sec, nsec: u32::try_from(t.tv_nsec).unwrap_or(0) }
}

pub(crate) fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(d.subsec_nanos()) }
}
