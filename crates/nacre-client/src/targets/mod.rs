//! The targets of the mounted file system: how they are found, and the requests to each.
//!
//! `mount` keeps the list of targets up to date, `target` is one target with its import and counters, `imports` prints the
//! state of an import as administrators know it.

pub(crate) mod imports;
pub(crate) mod mount;
pub(crate) mod target;
