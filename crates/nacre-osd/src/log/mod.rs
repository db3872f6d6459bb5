//! The write-ahead log.
//!
//! `segment.rs` is the format of segments and records and the writer that appends to them; `commit.rs` syncs them in
//! groups; `mark.rs` records how far the log is known to be durable; `replay.rs` decides after a restart which records
//! belong to the log. Other folders append through `LogWriter` and wait with `Osd::commit`.

pub(crate) mod commit;
pub(crate) mod mark;
pub(crate) mod replay;
pub(crate) mod segment;
