//! The ballast: a file that keeps room for changes that free space, and for flush and merge, on a full device.

use crate::engine::config::OsdConfig;
use crate::engine::osd::Osd;
use crate::error::OsdError;
use nacre_node::{Ctx, FileId, StoreDone, StoreError, StoreOp};

impl Osd {
    /// Creates the ballast.
    pub(crate) async fn make_ballast(ctx: &Ctx, config: &OsdConfig) -> Result<(), OsdError> {
        let device_bytes = match ctx.io(StoreOp::Space).await? {
            StoreDone::Space(s) => s.bytes_total,
            _ => 0,
        };
        let len = config.ballast_bytes.min(device_bytes / 16);
        match ctx.io(StoreOp::Create { file: FileId::Ballast, len }).await {
            Ok(_) => Ok(()),
            Err(StoreError::NoSpace) => {
                ctx.io(StoreOp::Delete { file: FileId::Ballast }).await?;
                Err(OsdError::NoSpace { needed_bytes: len })
            }
            Err(e) => Err(e.into()),
        }
    }
    /// Length of the ballast on this device.
    pub(crate) fn ballast_bytes(&self) -> u64 {
        self.config().ballast_bytes.min(self.room().space().bytes_total / 16)
    }
    /// Finds out after a restart whether the ballast is there.
    pub(crate) async fn find_ballast(&self) -> Result<(), OsdError> {
        let len = self.ctx().io(StoreOp::Len { file: FileId::Ballast }).await?;
        self.room().set_ballast_released(!matches!(len, StoreDone::Len(Some(n)) if n > 0));
        Ok(())
    }
    /// The ballast was released and could not be restored.
    pub(crate) fn is_full(&self) -> bool {
        self.room().is_ballast_released()
    }
    /// Whether the device has `bytes` free once the ballast is released.
    pub(crate) async fn ballast_makes_room_for(&self, bytes: u64) -> bool {
        let space = self.ask_space().await.unwrap_or_default();
        space.bytes_avail + self.ballast_bytes() >= bytes
    }
    /// Releases the ballast: only for changes that free space in the end.
    pub(crate) async fn release_ballast(&self) {
        if self.room().set_ballast_released(true) {
            return;
        }
        tracing::warn!(target_name = %self.label().name, "the device is full: the ballast is released so that files can be deleted");
        if let Err(error) = self.ctx().io(StoreOp::Delete { file: FileId::Ballast }).await {
            tracing::error!(target_name = %self.label().name, %error, "the ballast cannot be deleted");
        }
        self.room().forget_space();
        self.room().wake_all();
    }
    /// Restores the ballast when there is more than enough room.
    pub(crate) async fn restore_ballast(&self) {
        if !self.room().is_ballast_released() || self.free_bytes() < self.ballast_bytes() {
            return;
        }
        if Self::make_ballast(self.ctx(), self.config()).await.is_ok() {
            self.room().set_ballast_released(false);
            self.room().forget_space();
            tracing::info!(target_name = %self.label().name, "the ballast is restored");
        }
    }
}
