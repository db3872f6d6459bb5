//! For tests and spikes of the FUSE layer: a file system in memory, and a driver with one thread.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "each user takes a part")]
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    let_underscore_drop,
    reason = "a failure here fails the test"
)]
#![allow(clippy::disallowed_methods, reason = "tests poll")]

pub mod memfs;
pub mod served;
pub mod solo;

use nacre_fuse::{MountError, Unmount, unmount_fuse};
pub use nacre_testkit::wait::eventually;
use std::path::Path;
use std::time::Duration;

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
