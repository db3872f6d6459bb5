//! Locks as pure values: no I/O, no clock, no tasks.
//!
//! - [`policy`]: which locks conflict, and how ranges split and merge. One file per lock type.
//! - [`server`]: the lock spaces of a target. Requests, cancels and evictions go in; grants and notifications to be sent
//!   come out.
//! - [`client`]: the locks that a mount has been granted.
//!
//! Not here: rows of locks, callbacks and deadlines (`nacre-target`), messages (`nacre-wire`).
#![no_std]
extern crate alloc;

pub mod client;
pub mod policy;
pub mod server;
