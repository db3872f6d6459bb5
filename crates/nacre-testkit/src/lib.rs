//! What tests of several crates share: a driver for one island, a device that crashes, and the contract that every
//! store keeps.

pub mod contract;
mod crash;
mod drive;
pub mod proxy;

pub use crash::{CrashDevice, Fault, FaultOp};
pub use drive::{Drive, OsdDrive, OsdLogic, test_label};
