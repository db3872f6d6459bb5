//! How far the kernel reads ahead into its page cache.
//!
//! A new mount has a window of 128 KiB, an eighth of the largest request. With a window as large as a request, a program
//! that reads a cached file in order causes fewer requests, and the next one is served while the program copies the pages
//! of the one before. Only root may set the window, which is a setting of the device in sysfs.

use crate::table::{mount_on, own};
use std::path::Path;
use tracing::debug;

/// One request of the largest size. With a larger window, a fault of a mapping that is read at random would read more
/// than it gains.
const WINDOW_KB: &str = "1024";

/// Sets the window of the mount on `path`; without the permission it stays as it is.
pub(crate) fn widen(path: &Path) {
    let Some(mount) = own().and_then(|table| mount_on(&table, path)) else { return };
    let setting = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    if let Err(error) = std::fs::write(&setting, WINDOW_KB) {
        debug!(setting, %error, "the kernel reads ahead as it does by default");
    }
}
