//! Orphans: blobs without rows. A crash between the first bytes of a new object and its record leaves them. A task
//! deletes them after an unplanned stop.
//!
//! Invariant: a blob is deleted only under the exclusive lock of its whole object while it has neither an object row
//! nor a RECLAIM row; a write holds that lock from its first byte to its record.

use crate::error::OsdError;
use crate::object::objects::{Objects, unexpected_result};
use alloc::rc::Rc;
use nacre_node::{FileId, FileKind, StoreDone, StoreError, StoreOp};
use nacre_types::{Extent, ObjectId};

/// Blobs of one slice.
const PAGE: u32 = 256;

impl Objects {
    /// The task.
    pub(crate) async fn delete_orphans(self: Rc<Self>) {
        match self.delete_all_orphans().await {
            Ok(0) | Err(OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped)) => {}
            Ok(deleted) => tracing::info!(deleted, "blobs that a crash had left without rows are deleted"),
            Err(error) => {
                tracing::warn!(%error, "the search for blobs without rows ended early: their space is not freed before the next start")
            }
        }
    }

    async fn delete_all_orphans(&self) -> Result<u64, OsdError> {
        let mut after = None;
        let mut deleted = 0;
        while !self.tasks().is_stopping() {
            let op = StoreOp::List { kind: FileKind::Blob, after, limit: PAGE };
            let StoreDone::List(page) = self.ctx().io(op).await? else {
                return Err(unexpected_result("list"));
            };
            let Some(&last) = page.last() else { break };
            after = Some(last);
            for file in page {
                let FileId::Blob(object) = file else { continue };
                if self.is_orphan(object).await? {
                    let _guard = self.locks().lock(object, Extent::ALL, true).await;
                    if self.is_orphan(object).await? {
                        self.io(StoreOp::Delete { file }).await?;
                        deleted += 1;
                    }
                }
            }
            self.ctx().yield_now().await;
        }
        Ok(deleted)
    }

    async fn is_orphan(&self, object: ObjectId) -> Result<bool, OsdError> {
        Ok(self.row(object).await?.is_none() && self.reclaim_row(object).await?.is_none())
    }
}
