//! Object target: the bytes of files, in objects named (file FID, stripe), under extent locks.
//!
//! An object is created by its first write and leaves a tombstone when it is destroyed. The target is a
//! [`nacre_target::Service`]; `nacre_osd` stores bytes and checksums, `nacre_dlm` decides which locks conflict.
#![no_std]
extern crate alloc;

mod check;
mod kept_writes;
mod locks;
mod recall;
mod room;
mod scrub;
mod service;
mod store;
mod tombstone;
mod uncommitted;

pub use check::{Checked, check};
pub use service::Ost;
