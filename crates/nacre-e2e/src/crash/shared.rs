//! State shared by loads and faults: the end of the run, counts, broken promises, calls that took long.

use super::cluster::MOUNTS;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Violations that are printed in full.
const TOLD_MAX: usize = 20;
/// Calls that took less are not looked at for pauses.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// State shared by loads and faults.
pub(super) struct Shared {
    stop: AtomicBool,
    operations: AtomicU64,
    /// Calls that a mount's fault has interrupted.
    interrupted: AtomicU64,
    /// Per mount: begin and end of its faults; odd while it is away, or its calls may fail.
    mount_faults: [AtomicU64; MOUNTS],
    violations: Mutex<Vec<String>>,
    /// Calls of workers that took long.
    slow: Mutex<Vec<(Instant, Instant)>>,
}
impl Shared {
    pub(super) fn new() -> Self {
        Self {
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            interrupted: AtomicU64::new(0),
            mount_faults: [AtomicU64::new(0), AtomicU64::new(0)],
            violations: Mutex::default(),
            slow: Mutex::default(),
        }
    }
    pub(super) fn violation(&self, text: String) {
        let mut all = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < TOLD_MAX {
            eprintln!("violation: {text}");
        }
        all.push(text);
    }
    pub(super) fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// A number that changes with each fault of the mount; `None` while it is away.
    pub(super) fn mount_stands(&self, mount: usize) -> Option<u64> {
        let faults = self.mount_faults.get(mount)?.load(Ordering::SeqCst);
        faults.is_multiple_of(2).then_some(faults)
    }
    pub(super) fn mount_fault(&self, mount: usize) {
        if let Some(faults) = self.mount_faults.get(mount) {
            faults.fetch_add(1, Ordering::SeqCst);
        }
    }
    /// A worker's call has ended.
    pub(super) fn took(&self, began: Instant) {
        let now = Instant::now();
        if now - began >= PAUSE_MIN {
            self.slow.lock().unwrap_or_else(PoisonError::into_inner).push((began, now));
        }
    }
    /// Calls that took long, from begin to end.
    pub(super) fn slow(&self) -> Vec<(Instant, Instant)> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// The loads are to end.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
    pub(super) fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }
    pub(super) fn add_operations(&self, count: u64) {
        self.operations.fetch_add(count, Ordering::Relaxed);
    }
    pub(super) fn interrupted(&self) -> u64 {
        self.interrupted.load(Ordering::Relaxed)
    }
    pub(super) fn add_interrupted(&self) {
        self.interrupted.fetch_add(1, Ordering::Relaxed);
    }
}
