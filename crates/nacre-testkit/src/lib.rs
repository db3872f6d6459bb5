//! Shared by the tests of several crates: a driver for one island, a device that crashes, the contract that every store
//! keeps, a proxy of frames, waiting for a condition.

pub mod contract;
mod crash;
mod drive;
pub mod proxy;
pub mod wait;

pub use crash::{CrashDevice, Fault, FaultOp};
pub use drive::{Drive, OsdDrive, OsdLogic, test_label};
