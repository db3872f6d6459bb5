//! After an unclean start: the kernel's cache may show bytes of a file that are not on the device.
//!
//! A write-back that failed leaves pages that are clean and hold the written bytes. These pages hide the content of the
//! device, and cannot be repaired in place: ext4 treats the blocks under them as written although their extents are
//! not, so that a later sync of the same pages succeeds and a remount reads zeros. So until the recovery is over, each
//! object is written back and dropped from the cache before its bytes are compared or changed for the first time.

use crate::error::OsdError;
use crate::object::objects::Objects;
use alloc::rc::Rc;
use nacre_node::{FileId, StoreOp};
use nacre_types::{Extent, ObjectId};

impl Objects {
    /// Lets the cache forget an object, once after an unclean start.
    ///
    /// # Errors
    /// Those of opening the files. A write-back that fails is none: what the device has is read afterwards.
    pub(crate) async fn refresh(self: &Rc<Self>, object: ObjectId) -> Result<(), OsdError> {
        let trust = self.cache_trust();
        if trust.is_whole() || trust.is_refreshed(object) {
            return Ok(());
        }
        // Only once: a second write-back would consume the error of bytes that were written after the first.
        let _guard = self.locks().lock(object, Extent::ALL, true).await;
        if trust.is_refreshed(object) {
            return Ok(());
        }
        self.ctx().io(StoreOp::Refresh { file: FileId::Blob(object) }).await?;
        trust.refreshed(object);
        Ok(())
    }
}
