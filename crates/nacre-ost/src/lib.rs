//! Object target: the bytes of files, in objects named (file FID, stripe), under extent locks.
//!
//! An object comes into being at its first write and leaves a tombstone when it is destroyed. The target is a
//! [`nacre_target::Service`]; bytes and their sums are `nacre_osd`'s, locks are `nacre_dlm`'s.
#![no_std]
extern crate alloc;

mod bulk_sizes;
mod check;
mod locks;
mod object;
mod room;
mod service;
mod tombstone;
mod uncommitted;

pub use check::{Checked, check};
pub use service::Ost;
