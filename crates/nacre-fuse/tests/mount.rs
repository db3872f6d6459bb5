//! The layer under a real kernel: mounts an in-memory file system and uses it as programs do, over each transport.
//! Needs root and /dev/fuse, and `enable_uring` of the fuse module for io_uring; what is missing is said and passed.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod common;

#[path = "common/cases.rs"]
mod device;
#[allow(clippy::duplicate_mod, reason = "it looks at its name: the same cases, the other transport")]
#[path = "common/cases.rs"]
mod rings;
