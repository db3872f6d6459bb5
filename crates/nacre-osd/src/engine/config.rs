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
    /// Bound of the log, and so of recovery time; an open engine shows the one that its device leaves.
    pub log_bytes_max: u64,
    /// The log takes at most such a part of its device, which it may share with other targets. 0: any part; then log and
    /// tables never give space back for the sake of others.
    pub log_part: u64,
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

/// A log is not made smaller than this for the sake of a small device, because its segments must hold the largest records: on
/// devices of 64 MiB and less, and of 128 MiB and more.
const LOG_BYTES_MIN: [u64; 2] = [4 << 20, 8 << 20];

impl OsdConfig {
    /// The same with the bounds that a device of this size leaves.
    pub(crate) fn on_device(self, device_bytes: u64) -> Self {
        let Some(part) = device_bytes.checked_div(self.log_part) else { return self };
        let [smallest, small] = LOG_BYTES_MIN;
        let least = (device_bytes / 16).clamp(smallest, small);
        Self { log_bytes_max: self.log_bytes_max.min(part.max(least)), ..self }
    }
}
impl Default for OsdConfig {
    fn default() -> Self {
        Self {
            dirty_bytes_max: 256 << 20,
            cache_bytes_max: 256 << 20,
            log_bytes_max: 256 << 20,
            log_part: 32,
            commit_interval_ms: 1000,
            ballast_bytes: 64 << 20,
            old_segments_max: 8,
            merges_runs: true,
            bloom_prefixes: [(table::BLOCK, crate::object::rows::OBJECT_KEY_BYTES)].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logs_of_several_targets_take_a_modest_part_of_their_device() {
        let log = |device_mib: u64| OsdConfig::default().on_device(device_mib << 20).log_bytes_max >> 20;
        let bounds = [24, 64, 128, 512, 4096, 8192, 1 << 20].map(log);
        assert_eq!(bounds, [4, 4, 8, 16, 128, 256, 256]);
        let any = OsdConfig { log_part: 0, ..OsdConfig::default() };
        assert_eq!(any.on_device(1 << 20).log_bytes_max, 256 << 20);
    }
}
