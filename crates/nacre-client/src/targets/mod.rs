//! The targets of the mounted file system: how they are found, and the requests to each.
//!
//! `mount` has the known targets, keeps their list up to date and waits for them; `target` is one target with its import and counters, `imports` prints the
//! state of an import as administrators know it.

pub(crate) mod imports;
pub(crate) mod mount;
pub(crate) mod target;
