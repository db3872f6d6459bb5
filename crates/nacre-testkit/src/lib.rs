//! What tests of several crates share: a driver for one island, devices that lose what was not synced.

mod drive;

pub use drive::{Drive, OsdDrive, OsdLogic, test_label};
