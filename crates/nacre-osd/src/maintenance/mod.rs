//! Background tasks of an open store.
//!
//! `flush.rs` writes changed rows to runs, `merge.rs` merges runs, `give_back.rs` has both done early where room is
//! short or much was removed, `writeback.rs` syncs bytes of objects (many at a time: `sync_many.rs`), `reclaim.rs`
//! truncates blobs whose bytes were released, `orphan.rs` deletes blobs without rows, and `thin.rs` empties a range of
//! rows before it is deleted. `scrub.rs` looks for damage of objects, on request, and `compare_copies.rs` for damage of
//! one copy of a run, once a day. `background.rs` passes requests to the tasks of the engine.

pub(crate) mod background;
pub(crate) mod compare_copies;
pub(crate) mod flush;
pub(crate) mod give_back;
pub(crate) mod merge;
pub(crate) mod orphan;
pub(crate) mod reclaim;
pub(crate) mod scrub;
pub(crate) mod scrub_status;
pub(crate) mod sync_many;
pub(crate) mod thin;
pub(crate) mod writeback;
