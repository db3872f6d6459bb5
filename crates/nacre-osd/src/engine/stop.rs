//! The planned stop.

use crate::engine::full_device::write_superblock;
use crate::engine::osd::Osd;
use crate::error::OsdError;
use nacre_types::Transno;

impl Osd {
    /// Commits, writes the clean mark, stops the background tasks.
    ///
    /// # Errors
    /// `Stopped` when the log failed before; the store is not clean then.
    pub async fn stop(&self) -> Result<(), OsdError> {
        self.check_alive()?;
        // Reservations fail from now on. The tasks that write runs and delete log segments end first: none of their
        // records may follow the clean mark.
        self.begin_stop();
        while self.background().is_any_running() {
            self.background().stop_event().await;
        }
        // Reservations that were made before may still be used.
        while self.room().reservations() > 0 {
            self.check_alive()?;
            self.slice_end().await;
        }
        self.commit(Transno(self.log().last_transno())).await?;
        self.commit_lsn(self.log().last_lsn()).await?;
        let superblock = self.clean_superblock(self.log().last_lsn());
        self.end_stop();
        write_superblock(&superblock, &[], self.ctx()).await
    }
}
