//! Counters and sizes of the engine.

/// Counters for parameters and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OsdStats {
    /// Transactions that were applied.
    pub transactions: u64,
    /// Bytes appended to the log.
    pub log_bytes_written: u64,
    /// Group commits.
    pub syncs: u64,
    /// Runs that flushes have written.
    pub flushes: u64,
    /// Merges of runs.
    pub merges: u64,
    /// Bytes of the runs that flushes have written.
    pub flush_bytes_written: u64,
    /// Bytes of the runs that merges have written.
    pub merge_bytes_written: u64,
    /// Reads of runs.
    pub cold_reads: u64,
    /// Blocks of runs whose checksum was wrong.
    pub corrupt_blocks: u64,
    /// Reservations that were delayed because memory or log were more than half full.
    pub slowed_writers: u64,
    /// Largest number of rows in memory that one range deletion has marked.
    pub range_rows_max: u64,
    /// Transactions that have written more than they had reserved: a bug of a handler.
    pub credits_exceeded: u64,
    /// Charges that would have taken an account below zero: a bug of a handler.
    pub account_underflows: u64,
    /// Rows in the memtable.
    pub rows_in_memory: u64,
    /// Bytes of changed rows that no run holds.
    pub dirty_bytes: u64,
    /// Bytes of cached rows that runs hold.
    pub clean_bytes: u64,
    /// Bytes of live log segments.
    pub log_bytes: u64,
    /// Live runs.
    pub runs: u64,
    /// Bytes of live runs.
    pub run_bytes: u64,
    /// Bytes of indexes and filters of runs, in memory.
    pub run_index_bytes: u64,
}
