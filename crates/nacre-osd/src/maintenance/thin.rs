//! Preparation of a range deletion: most rows of the range are removed from memory first.
//!
//! The deletion of a range is one change, and marks each row of the range that is in memory within one visit. For an
//! object of some TiB these are a million rows. Therefore clean rows of the range are dropped beforehand, in slices; if
//! many rows have changed recently, a flush writes them to a run first. The content of the table does not change.

use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::table::Table;
use crate::table::key::Key;
use core::time::Duration;

/// Rows that a range deletion may mark; and rows of one slice.
const ROWS_MAX: usize = 4096;
const SLICE: usize = 1024;
/// A full device may have no room for a run; after this time the deletion is worth a long visit.
const FLUSH_MAX: Duration = Duration::from_secs(2);

impl Osd {
    /// Makes the deletion of a range cheap, as far as possible. No other task may change the range meanwhile.
    ///
    /// # Errors
    /// `Stopped`.
    pub async fn thin(&self, table: Table, from: &[u8], to: &[u8]) -> Result<(), OsdError> {
        let (from, to) = (Key::new(table, from), Key::upper(table, to));
        if self.drop_clean(&from, &to).await > ROWS_MAX {
            let deadline = self.ctx().now() + FLUSH_MAX;
            if let Some(flushed) = self.ctx().timeout(deadline, self.checkpoint()).await {
                flushed?;
            }
            self.drop_clean(&from, &to).await;
        }
        Ok(())
    }
    /// Drops the clean rows of a range. Returns how many rows are left.
    async fn drop_clean(&self, from: &Key, to: &Key) -> usize {
        let (mut at, mut left) = (from.clone(), 0);
        loop {
            let (next, stay) = self.state_mut().mem.drop_clean(&at, to, SLICE);
            left += stay;
            let Some(next) = next else { return left };
            at = next;
            self.slice_end().await;
        }
    }
}
