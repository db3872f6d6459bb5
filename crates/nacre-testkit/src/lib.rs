//! What tests share: a device that crashes, and the contract that every store keeps.

pub mod contract;
mod crash;

pub use crash::{CrashDevice, Fault, FaultOp};
