//! What the kernel remembers of a mount, and forgets when it is told, over each transport: a file system in memory that
//! gives validities and changes behind the kernel's back, as another mount would.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod device;
#[allow(clippy::duplicate_mod, reason = "it looks at its name: the same cases, the other transport")]
#[path = "device.rs"]
mod rings;
