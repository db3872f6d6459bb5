//! For tests and spikes of the FUSE layer: a file system in memory, and a driver with one thread.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part")]
#![allow(clippy::unwrap_used, let_underscore_drop, reason = "a failure here fails the test")]
#![allow(clippy::disallowed_methods, reason = "tests poll")]

pub mod memfs;
pub mod solo;

use nacre_fuse::{MountError, Unmount, unmount_fuse};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long anything here may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for what a person decides.
pub fn forever(mut condition: impl FnMut() -> bool) {
    while !condition() {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Unmounts. A child that another test of this process is starting has our descriptors until its exec: such a mount is
/// busy for a moment.
pub fn unmount(path: &Path) {
    eventually("it is not busy any more", || match unmount_fuse(path, Unmount::Idle) {
        Err(MountError::Busy { .. }) => false,
        other => {
            other.unwrap();
            true
        }
    });
}
