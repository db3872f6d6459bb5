//! Before a range of rows is deleted: few of them are left in memory.
//!
//! A deletion of a range is one change and marks each row of it that is in memory, in one visit. Of an object of some
//! TiB that are a million. So whoever deletes such a range lets go of them before: clean rows are dropped, in slices;
//! where many have changed lately a flush writes them to a run first. Rows mean the same afterwards.

use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::table::Table;
use crate::table::key::Key;
use core::time::Duration;

/// Rows that a deletion may meet; and rows of one slice.
const ROWS_MAX: usize = 4096;
const SLICE: usize = 1024;
/// A full device may have no room for a run: the deletion is then worth a long visit.
const FLUSH_MAX: Duration = Duration::from_secs(2);

impl Osd {
    /// Makes the deletion of a range cheap, as far as that is possible. Nobody else is to change it meanwhile.
    ///
    /// # Errors
    /// `Stopped`.
    pub async fn thin(&self, table: Table, from: &[u8], to: &[u8]) -> Result<(), OsdError> {
        let (from, to) = (Key::new(table, from), Key::upper(table, to));
        if self.cool(&from, &to).await > ROWS_MAX {
            let until = self.ctx().now() + FLUSH_MAX;
            if let Some(flushed) = self.ctx().timeout(until, self.checkpoint()).await {
                flushed?;
            }
            self.cool(&from, &to).await;
        }
        Ok(())
    }
    /// Drops the clean rows of a range; how many are left.
    async fn cool(&self, from: &Key, to: &Key) -> usize {
        let (mut at, mut left) = (from.clone(), 0);
        loop {
            let (next, stay) = self.state_mut().mem.cool(&at, to, SLICE);
            left += stay;
            let Some(next) = next else { return left };
            at = next;
            self.slice_end().await;
        }
    }
}
