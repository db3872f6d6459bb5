//! The write-ahead log.
//!
//! `segment.rs` is the format of segments and records and the writer that appends to them; `commit.rs` syncs them in
//! groups, and `progress.rs` says how far; `mark.rs` records beside the log how far it is durable; `segment_maker.rs`
//! creates segments in advance. After a restart `recover.rs` reads the log, by the rules of `replay.rs`. Other folders append through `LogWriter` and wait with `Osd::commit`.

pub(crate) mod commit;
pub(crate) mod mark;
pub(crate) mod progress;
pub(crate) mod recover;
pub(crate) mod replay;
pub(crate) mod segment;
pub(crate) mod segment_maker;
