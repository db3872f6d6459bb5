//! Keeps idle CPUs of a virtual machine from halting while a loop is woken in quick succession.
//!
//! A CPU of a virtual machine that has nothing to do halts, which leaves the machine for the hypervisor. Waking it
//! takes 40 to 60 µs, many times as long as most requests, and a synchronous caller and a loop on another CPU pay that
//! twice for every request. While a process holds a bound of 0 at `/dev/cpu_dma_latency`, the guest's idle CPUs poll
//! instead, so that each wakes the other at once. This costs CPU time of the host, but none of the guest's programs: a
//! CPU polls only while it has nothing else to do.
//!
//! A loop, and the thread of a ring (`server.rs`), holds the bound from its [`STREAK`]th short sleep in a row until it has slept for [`SHORT`]. Nothing is done
//! on machines whose idle CPUs do not halt through `haltpoll`, on those with more than [`CPUS_MAX`] CPUs, and where the
//! device cannot be opened (only root may).

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;
use tracing::debug;

/// A sleep of a loop that is no shorter than this is not one between two requests of a busy caller.
const SHORT: Duration = Duration::from_millis(3);
/// Short sleeps in a row after which the CPUs are kept from halting.
const STREAK: u32 = 16;
/// A larger machine would poll on too many CPUs for one caller.
const CPUS_MAX: usize = 8;
const DEVICE: &str = "/dev/cpu_dma_latency";
const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// Wake-up latencies in microseconds, as the device takes them.
const NONE: i32 = 0;
const ANY: i32 = i32::MAX;

/// The bound of one thread that waits for requests.
#[derive(Debug)]
pub struct IdlePoll {
    device: Option<File>,
    holds: bool,
    streak: u32,
}

impl IdlePoll {
    /// The state of a thread of this machine; `wanted` is false if the configuration forbids it.
    pub(crate) fn new(wanted: bool) -> Self {
        let device = if wanted && halts() { open() } else { None };
        Self { device, holds: false, streak: 0 }
    }

    /// How long the thread may sleep, if it had nothing to do for `left`.
    pub fn bound(&self, left: Duration) -> Duration {
        if self.holds { left.min(SHORT) } else { left }
    }

    /// The thread has slept. True: the CPUs are kept from halting from now on.
    pub fn slept(&mut self, slept: Duration) -> bool {
        if self.device.is_none() {
            return false;
        }
        if slept >= SHORT {
            self.streak = 0;
            if self.holds {
                self.set(ANY);
            }
            return false;
        }
        self.streak = self.streak.saturating_add(1);
        if self.holds || self.streak < STREAK {
            return false;
        }
        self.set(NONE);
        self.holds
    }

    fn set(&mut self, latency_us: i32) {
        let Some(device) = &mut self.device else { return };
        match device.write_all(&latency_us.to_ne_bytes()) {
            Ok(()) => self.holds = latency_us == NONE,
            Err(error) => {
                debug!(%error, "{DEVICE} cannot be written; idle CPUs halt");
                // Closing it ends the bound.
                self.device = None;
                self.holds = false;
            }
        }
    }
}

/// Whether idle CPUs of this machine halt and are few.
fn halts() -> bool {
    std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() <= CPUS_MAX)
        && std::fs::read_to_string(DRIVER).is_ok_and(|driver| driver.trim() == "haltpoll")
}

/// The device, without a bound.
fn open() -> Option<File> {
    let opened = File::options().write(true).open(DEVICE).and_then(|mut device| {
        device.write_all(&ANY.to_ne_bytes())?;
        Ok(device)
    });
    opened.inspect_err(|error| debug!(%error, "{DEVICE} cannot be opened; idle CPUs halt")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Duration = Duration::from_micros(50);

    fn on(device: &tempfile::NamedTempFile) -> IdlePoll {
        IdlePoll { device: device.reopen().ok(), holds: false, streak: 0 }
    }
    fn written(device: &tempfile::NamedTempFile) -> Vec<u8> {
        std::fs::read(device.path()).expect("the file is there")
    }

    #[test]
    fn a_streak_of_short_sleeps_holds_the_bound_and_a_long_one_ends_it() {
        let device = tempfile::NamedTempFile::new().expect("a file");
        let mut poll = on(&device);
        assert!((1..STREAK).all(|_| !poll.slept(REQUEST)));
        assert_eq!(poll.bound(Duration::from_secs(5)), Duration::from_secs(5));
        assert!(poll.slept(REQUEST) && !poll.slept(REQUEST));
        assert_eq!(written(&device), NONE.to_ne_bytes());
        assert_eq!(poll.bound(Duration::from_secs(5)), SHORT);
        assert_eq!(poll.bound(Duration::ZERO), Duration::ZERO);
        assert!(!poll.slept(SHORT));
        assert_eq!(written(&device), [NONE.to_ne_bytes(), ANY.to_ne_bytes()].concat());
        assert_eq!(poll.bound(Duration::from_secs(5)), Duration::from_secs(5));
        assert!((1..STREAK).all(|_| !poll.slept(REQUEST)) && poll.slept(REQUEST));
    }

    #[test]
    fn long_sleeps_in_between_hold_nothing() {
        let device = tempfile::NamedTempFile::new().expect("a file");
        let mut poll = on(&device);
        for _ in 0..10 {
            assert!((1..STREAK).all(|_| !poll.slept(REQUEST)) && !poll.slept(SHORT));
        }
        assert!(written(&device).is_empty());
    }
}
