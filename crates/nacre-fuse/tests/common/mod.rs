//! For tests and spikes of the FUSE layer: a file system in memory, and a driver with one thread.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part")]
#![allow(clippy::unwrap_used, let_underscore_drop, reason = "a failure here fails the test")]

pub mod memfs;
pub mod solo;
