//! The transport by which the mounts of a step get their requests: io_uring where the machine allows it, or /dev/fuse.

use anyhow::{Context as _, Result};
use std::path::Path;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Runs a step with io_uring on or off for the mounts it makes; the kernel's parameter is as before afterwards. Where it
/// cannot be written it stays as it is.
pub fn with_uring(on: bool, step: impl FnOnce() -> Result<()>) -> Result<()> {
    let Ok(before) = std::fs::read_to_string(PARAMETER) else {
        eprintln!("transport: /dev/fuse, this kernel has no other");
        return step();
    };
    let was_on = before.trim() == "Y";
    let on = if on != was_on && set(on).is_err() {
        eprintln!("transport: {PARAMETER} cannot be written, it stays {}", before.trim());
        was_on
    } else {
        on
    };
    eprintln!("transport: {}", if on { "io_uring" } else { "/dev/fuse" });
    let done = step();
    if on != was_on {
        set(was_on).context("cannot set the parameter back")?;
    }
    done
}

/// The transport of mounts that are made now with the default options.
pub(crate) fn default_transport() -> &'static str {
    let on = std::fs::read_to_string(PARAMETER).is_ok_and(|value| value.trim() == "Y");
    if on { "io_uring" } else { "/dev/fuse" }
}

fn set(on: bool) -> std::io::Result<()> {
    std::fs::write(Path::new(PARAMETER), if on { "Y" } else { "N" })
}
