//! Lock policies: pure functions and indexes that decide which locks conflict. They know neither clients nor waiting.

pub(crate) mod extent;
pub mod flock;
mod inodebits;
mod mode;

pub(crate) use inodebits::BitCounts;
pub use inodebits::HeldBits;
pub use mode::Mode;
pub(crate) use mode::Modes;
pub use nacre_types::{InodeBits, InodeMode};
