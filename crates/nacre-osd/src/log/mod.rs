//! The write-ahead log.
//!
//! `segment.rs` is the format of segments and records and the writer that appends to them; `commit.rs` syncs them in
//! groups, and `progress.rs` tracks how far they are appended and synced; `mark.rs` records the durable position in a
//! file beside the log; `segment_maker.rs` creates segments in advance. After a restart `recover.rs` reads the log, by
//! the rules of `replay.rs`, from the two copies in each segment (`copies.rs`). Other folders append through `LogWriter` and wait with `Osd::commit`.

pub(crate) mod commit;
pub(crate) mod copies;
pub(crate) mod mark;
pub(crate) mod progress;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod segment;
pub(crate) mod segment_maker;
