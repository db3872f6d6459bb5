//! A scan of all objects of a target, for the work after a crash.
//!
//! Invariant: damaged rows affect only the objects that they describe. Where a block of object rows cannot be read, the
//! objects of its keys are found by their blobs, and each is reported with the error of its row. Only errors that make
//! the whole target useless (a store that cannot be listed, a stop) end the scan early.

use crate::error::OsdError;
use crate::object::objects::{Objects, unexpected_result};
use crate::object::rows::{ObjectRow, decode_object, object_key, object_of_key};
use crate::table;
use crate::table::pages::Page;
use nacre_node::{FileId, FileKind, StoreDone, StoreError, StoreOp};
use nacre_types::ObjectId;

/// Rows and blobs of one slice.
const PAGE: u32 = 1000;

impl Objects {
    /// Shows each object with its row, or with the error in its place. `false` from `each` ends the walk.
    pub(crate) async fn each_object(
        &self,
        mut each: impl AsyncFnMut(ObjectId, Result<ObjectRow, OsdError>) -> Result<bool, OsdError>,
    ) -> Result<(), OsdError> {
        let mut pages = self.osd().pages(table::OBJECT, PAGE);
        loop {
            match pages.next_or_damage().await {
                Ok(None) => return Ok(()),
                Ok(Some(Page::Rows(rows))) => {
                    for (key, value) in &rows {
                        let Some(object) = object_of_key(key) else { continue };
                        if !each(object, decode_object(object, value)).await? {
                            return Ok(());
                        }
                    }
                }
                Ok(Some(Page::Damaged { from, to })) => {
                    if !self.each_blob(&from, &to, &mut each).await? {
                        return Ok(());
                    }
                }
                Err(error) if is_stopped(&error) => return Err(error),
                // More is wrong than one block: the rest of them by their blobs.
                Err(error) => {
                    tracing::error!(target_name = %self.osd().label().name, %error,
                        "rows of objects cannot be listed: the objects are found by their files");
                    let from = pages.reached().to_vec();
                    return self.each_blob(&from, &[], &mut each).await.map(drop);
                }
            }
        }
    }

    /// The same for the objects that have a blob and a key in `from..to`.
    async fn each_blob(
        &self,
        from: &[u8],
        to: &[u8],
        each: &mut impl AsyncFnMut(ObjectId, Result<ObjectRow, OsdError>) -> Result<bool, OsdError>,
    ) -> Result<bool, OsdError> {
        let mut after = None;
        loop {
            let op = StoreOp::List { kind: FileKind::Blob, after, limit: PAGE };
            let StoreDone::List(files) = self.ctx().io(op).await? else {
                return Err(unexpected_result("list"));
            };
            let Some(last) = files.last() else { return Ok(true) };
            after = Some(*last);
            for file in files {
                let FileId::Blob(object) = file else { continue };
                let key = object_key(object);
                if key[..] < *from || (!to.is_empty() && key[..] >= *to) {
                    continue;
                }
                let row = match self.row(object).await {
                    Ok(None) => continue, // no object, and nothing says that it had one
                    Ok(Some(row)) => Ok(row),
                    Err(error) if is_stopped(&error) => return Err(error),
                    Err(error) => Err(error),
                };
                if !each(object, row).await? {
                    return Ok(false);
                }
            }
            self.ctx().yield_now().await;
        }
    }
}

/// The target has ended: nothing is wrong with the object.
pub(crate) fn is_stopped(error: &OsdError) -> bool {
    matches!(error, OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped))
}
