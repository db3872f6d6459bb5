//! How many calls of each kind a peer has made, and how long they took.

use alloc::collections::BTreeMap;
use core::time::Duration;

/// Calls of one opcode that were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpStats {
    pub count: u64,
    /// Those answered with an error.
    pub errors: u64,
    /// Microseconds from the first sending to the answer.
    pub sum_us: u64,
    pub min_us: u64,
    pub max_us: u64,
}

/// One row per opcode, so bounded by their number.
#[derive(Debug, Default)]
pub(crate) struct PeerStats {
    by_opcode: BTreeMap<u16, OpStats>,
}

impl PeerStats {
    pub(crate) fn add(&mut self, opcode: u16, took: Duration, error: bool) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let row = self.by_opcode.entry(opcode).or_default();
        row.min_us = if row.count == 0 { us } else { row.min_us.min(us) };
        row.max_us = row.max_us.max(us);
        row.sum_us = row.sum_us.saturating_add(us);
        row.count += 1;
        row.errors += u64::from(error);
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, OpStats)> + '_ {
        self.by_opcode.iter().map(|(&opcode, &row)| (opcode, row))
    }
    pub(crate) fn clear(&mut self) {
        self.by_opcode.clear();
    }
}
