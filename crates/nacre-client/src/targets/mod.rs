//! The targets of the mounted file system: how they are found, and the requests to each.
//!
//! `mount` has the known targets, keeps their list up to date and waits for them; `target` is one target with its
//! import and counters; `mdt` is an MDT with the state of the mount that belongs to it. `lock_returns` returns locks of
//! inodes to an MDT, `open_reports` reports opens to it and `flock_reports` file locks. `bulk_rpcs` counts reads and
//! writes, `space_grant` counts the space that an OST keeps for this mount, and `grants` asks for it, `imports` prints the
//! state of an import for administrators. A request about a file or directory goes to the MDT that `Client::mdt_of` returns
//! for its FID.

pub(crate) mod bulk_rpcs;
mod flock_reports;
mod grants;
pub(crate) mod imports;
mod lock_returns;
pub(crate) mod mdt;
pub(crate) mod mount;
mod open_reports;
mod space_grant;
pub(crate) mod target;
