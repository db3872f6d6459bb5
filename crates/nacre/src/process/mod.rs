//! A process that serves targets or a mount: its islands, signals, addresses, stores and entry in the registry.
//!
//! The commands `up`, `serve`, `mount` and the tools for stopped targets put a process together from these parts.
//! Nothing here parses a whole command line; options that several commands share are defined in the file of the part that they configure.

pub(crate) mod addresses;
pub(crate) mod connections;
pub(crate) mod data_dir;
pub(crate) mod detach;
pub(crate) mod guard;
pub(crate) mod islands;
pub(crate) mod kept_log;
pub(crate) mod kept_memory;
mod lease_table;
mod marker;
pub(crate) mod metrics;
pub(crate) mod mount_options;
pub(crate) mod mounted;
pub(crate) mod overlay;
pub(crate) mod registry;
pub(crate) mod signals;
pub(crate) mod store;
pub(crate) mod takeover;
pub(crate) mod target_dir;

use std::time::Duration;

/// Waits between two checks of a condition that sends no event.
pub(crate) fn pause(d: Duration) {
    let t = rustix::event::Timespec { tv_sec: d.as_secs().cast_signed(), tv_nsec: d.subsec_nanos().into() };
    let _ = rustix::event::poll(&mut [], Some(&t));
}
