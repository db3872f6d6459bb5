//! Files in use: open handles, the state that this mount keeps per file, closes.
//!
//! `open` has opens and the end of handles, `late_opens` has the opens that the MDT does not know, `table` has the open
//! handles, `state` the state per file; `closes` combines closes into batches, with `close_queue` and `kept_closes`;
//! `late_releases` ends handles later than their programs; `ranges` orders the operations of this mount on one file; `atime`
//! keeps access times; `eviction` handles evictions, `lost` records the handles whose file locks an eviction released;
//! `dirty_files` has bytes that were written and not sent, in `dirty_bytes`, and `write_queue` those that wait for their
//! batch; `ask_again` says when a lost lock bit is wanted again.

mod ask_again;
pub(crate) mod atime;
pub(crate) mod close_queue;
mod closes;
pub(crate) mod dirty_bytes;
pub(crate) mod dirty_files;
mod eviction;
pub(crate) mod kept_closes;
pub(crate) mod late_opens;
pub(crate) mod late_releases;
pub(crate) mod lost;
pub(crate) mod open;
pub(crate) mod ranges;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod write_queue;
