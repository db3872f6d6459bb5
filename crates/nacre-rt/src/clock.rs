//! The external inputs of an island: its two clocks, read from the vdso, and random numbers.

use nacre_types::{Instant, Secret, Timestamp};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

fn nanos(t: Timespec) -> u64 {
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

/// CLOCK_BOOTTIME: continues while the machine sleeps, so that a lease expires in a suspended machine.
pub fn now() -> Instant {
    Instant(nanos(clock_gettime(ClockId::Boottime)))
}

/// CLOCK_REALTIME: for times of files.
pub fn wall() -> Timestamp {
    let t = clock_gettime(ClockId::Realtime);
    Timestamp { sec: t.tv_sec, nsec: u32::try_from(t.tv_nsec).unwrap_or(0) }
}

/// A random number from the kernel.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // Without a kernel generator there is nothing better than the clock.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => wall().as_nanos() as u64,
    }
}

/// A secret from the kernel.
pub(crate) fn secret() -> Secret {
    let mut bytes = [0u8; 16];
    let (low, high) = bytes.split_at_mut(8);
    low.copy_from_slice(&random().to_le_bytes());
    high.copy_from_slice(&random().to_le_bytes());
    Secret::new(bytes)
}

pub(crate) fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(d.subsec_nanos()) }
}
