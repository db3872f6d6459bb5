//! The client core: POSIX-like calls by FID on top of imports, layouts and locks. Knows nothing of FUSE.
//!
//! Every call is an `async fn` on the mount's island. Nothing is cached yet: each call asks the target that knows.
#![no_std]
extern crate alloc;

mod client;

pub use client::{Client, CreateArgs, Entry, ListedEntry, MountConfig, ReaddirPage, WriteArgs};
