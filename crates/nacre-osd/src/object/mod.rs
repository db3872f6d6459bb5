//! Byte objects over rows and blobs.
//!
//! `objects.rs` is the entry for callers. A write begins in `prepare.rs` (range lock, rows, bytes) and ends in
//! `apply.rs` (rows in the caller's transaction); `prepare_many.rs` begins many small writes for one
//! transaction; `repair.rs` undoes a prepared change that is not applied. `punch.rs` makes
//! holes, and `seek.rs` finds them; `space.rs` counts blocks without space. `rows.rs`
//! and `checksum.rs` are the formats. After an unclean start, `restore.rs` writes lost bytes again, `rechecksum.rs`
//! recomputes checksums of blocks that no client has replayed, and `lost.rs` marks blocks that no file has. `verify.rs`
//! compares what is read with its checksums, `inspect.rs` a whole region for a scrub, and `overwrite.rs` makes this exact over crashes. `logged.rs` puts the bytes of
//! small syncs into the log.

pub(crate) mod apply;
pub(crate) mod cache_trust;
pub mod checksum;
pub(crate) mod inspect;
pub(crate) mod logged;
pub(crate) mod logged_blocks;
pub(crate) mod lost;
pub(crate) mod marks;
pub(crate) mod objects;
pub(crate) mod overwrite;
pub(crate) mod prepare;
pub(crate) mod prepare_many;
pub(crate) mod punch;
pub(crate) mod range_lock;
pub(crate) mod rechecksum;
pub(crate) mod refresh;
pub(crate) mod repair;
pub(crate) mod restore;
pub mod rows;
pub(crate) mod scan;
pub(crate) mod seek;
pub(crate) mod space;
pub(crate) mod tasks;
pub(crate) mod unverified;
pub(crate) mod verify;
