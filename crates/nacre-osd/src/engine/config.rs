//! Bounds and intervals of the engine.

use crate::table::{self, Table};
use alloc::vec::Vec;

/// Bounds and intervals of one target's engine.
#[derive(Debug, Clone)]
pub struct OsdConfig {
    /// Unwritten changes in memory, bytes; writers are slowed from half of it on.
    pub dirty_bytes_max: u64,
    /// Clean rows kept, bytes.
    pub cache_bytes_max: u64,
    /// Bound of the log, and so of recovery time.
    pub log_bytes_max: u64,
    /// Age of the oldest unsynced change, milliseconds.
    pub commit_interval_ms: u32,
    /// Ballast file, bytes (at most 1/16 of the device).
    pub ballast_bytes: u64,
    /// Log segments that earlier openings may leave behind; beyond that a start writes them to a run.
    pub old_segments_max: usize,
    /// Whether runs are merged; a check reads them as they are.
    pub merges_runs: bool,
    /// Tables whose rows are looked for by ranges that share this many key bytes: the filters of runs serve
    /// such a range without a read.
    pub bloom_prefixes: Vec<(Table, u8)>,
}
impl Default for OsdConfig {
    fn default() -> Self {
        Self {
            dirty_bytes_max: 256 << 20,
            cache_bytes_max: 256 << 20,
            log_bytes_max: 256 << 20,
            commit_interval_ms: 1000,
            ballast_bytes: 64 << 20,
            old_segments_max: 8,
            merges_runs: true,
            bloom_prefixes: [(table::BLOCK, crate::object::rows::OBJECT_KEY_BYTES)].into(),
        }
    }
}
