//! Syncs of many objects in one step.
//!
//! The sync of a file costs the device a flush of its cache, and a file system a commit of its journal, however small the
//! file is. A store that can sync everything at once pays this once for thousands of small files.
//!
//! Such a step waits for all that the file system below has to write, also for others. If that takes long, the objects
//! are synced one by one again for a while: a client may wait for them. An error does not say whose bytes are affected,
//! so after one each object is synced alone, too, which tells.

use crate::error::OsdError;
use crate::maintenance::writeback::Taken;
use crate::object::objects::{Objects, unexpected_result};
use crate::object::scan::is_stopped;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::time::Duration;
use nacre_node::{FileId, StoreDone, StoreError, StoreOp, join_all};
use nacre_types::{Instant, ObjectId};

/// Fewer objects are synced one by one.
const OBJECTS_MIN: usize = 32;
/// A step that takes longer waits for the data of others.
const SLOW: Duration = Duration::from_secs(2);
/// How long the next step is put off then.
const PAUSE: Duration = Duration::from_secs(300);
/// The store has no such step.
const NEVER: Instant = Instant(u64::MAX);

impl Objects {
    /// Syncs objects in one step, if that is worth it. Afterwards those of them that are still unstable have to be synced
    /// alone.
    pub(crate) async fn sync_many(&self, objects: &[ObjectId]) {
        let after = self.writeback().many_after();
        let start = self.ctx().now();
        if objects.len() < OBJECTS_MIN || start < after.get() {
            return;
        }
        let mut taken: Vec<(ObjectId, Taken)> = Vec::with_capacity(objects.len());
        let mut files = Vec::with_capacity(objects.len());
        for &object in objects {
            // An object whose row cannot be read is synced alone.
            let Ok(row) = self.row(object).await else { continue };
            if let Some(bytes) = self.writeback().take(object) {
                taken.push((object, bytes));
                files.push((FileId::Blob(object), self.expected_length(row.as_ref())));
            }
        }
        let serial = self.logged().serial();
        let done = self.ctx().io(StoreOp::SyncMany { files }).await;
        if self.ctx().now() - start > SLOW {
            after.set(self.ctx().now() + PAUSE);
        }
        let results = match done {
            Ok(StoreDone::Synced(results)) if results.len() == taken.len() => results,
            other => {
                match other.map_or_else(OsdError::from, |_| unexpected_result("sync of many objects")) {
                    OsdError::Store(StoreError::Unsupported) => after.set(NEVER),
                    error if is_stopped(&error) => {}
                    // The file system below may know of an error that no object's own sync reports any more.
                    error => tracing::warn!(target_name = %self.osd().label().name, %error,
                        "objects could not be synced together, and are synced one by one: look for errors of the device, and run `nacre check --data`"),
                }
                return self.sync_each(taken).await;
            }
        };
        for ((object, bytes), result) in taken.into_iter().zip(results) {
            let mut result = self.sync_ended(object, result.map(|()| StoreDone::Unit)).await;
            if result.is_ok() {
                result = self.unlog(object, serial).await;
            }
            if !self.osd().has_failed() {
                self.writeback().ended(object, bytes);
            }
            self.log_background_sync(object, result);
        }
        self.tasks().made_progress();
    }

    /// Syncs each object alone, a few at a time.
    async fn sync_each(&self, taken: Vec<(ObjectId, Taken)>) {
        let next = RefCell::new(taken.into_iter());
        let workers = (0..self.config().syncs_in_flight_max.max(1)).map(|_| async {
            loop {
                let Some((object, bytes)) = next.borrow_mut().next() else { break };
                let result = self.sync_taken(object, Some(bytes), true).await;
                self.log_background_sync(object, result);
            }
        });
        join_all(workers).await;
    }
}
