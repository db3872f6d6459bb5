//! Lock spaces: who may touch what, as pure values. No I/O, no clock, no tasks.
//!
//! A [`LockSpace`] belongs to one target. It is told of requests, cancels and vanished owners, and answers with
//! effects that the target carries out (tell a waiter, tell a holder).
#![no_std]
extern crate alloc;

pub mod flock;
mod mode;
mod space;
mod tree;

pub use mode::Mode;
pub use space::{Enqueued, Holder, LockEffect, LockError, LockId, LockRequest, LockSpace, ResourceId};
