//! The task that creates log segments in advance, so that appends need no space.

use crate::engine::config::OsdConfig;
use crate::engine::osd::Osd;
use crate::error::OsdError;
use alloc::format;
use alloc::rc::Rc;
use core::time::Duration;
use nacre_node::{FileId, StoreError, StoreOp};

/// Length of each of the two copies in a segment.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 64 << 10;
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// A copy in a new segment takes at most this fraction of the free space.
const COPIES_IN_FREE: u64 = 16;
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Length of each copy in new log segments; smaller if the log is small.
pub(crate) fn segment_bytes(config: &OsdConfig) -> u64 {
    (config.log_bytes_max / 8).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX).next_multiple_of(4096)
}

impl Osd {
    /// Creates one log segment in advance; a small one if there is little space.
    pub(crate) async fn create_segment(&self) -> Result<(), OsdError> {
        let free = self.ask_space().await?.bytes_avail;
        let (number, wanted) = {
            let mut state = self.state_mut();
            (state.log.take_number(), state.log.segment_bytes())
        };
        let file = FileId::Log(number);
        let mut len = wanted.min((free / COPIES_IN_FREE).max(SEGMENT_BYTES_MIN).next_multiple_of(4096));
        while let Err(error) = self.ctx().io(StoreOp::Create { file, len: 2 * len }).await {
            // The free space may have been used meanwhile, or may be reserved for another user.
            if error != StoreError::NoSpace || len == SEGMENT_BYTES_MIN {
                return Err(error.into());
            }
            len = (len / 4).max(SEGMENT_BYTES_MIN).next_multiple_of(4096);
        }
        self.room().set_tight(len < wanted);
        self.room().set_stuck(false);
        let fits = self.state_mut().log.add_ready(number, len);
        if !fits {
            self.ctx().io(StoreOp::Delete { file }).await?;
        }
        self.room().wake_all();
        // Without this sync the first commit in the segment would have to write its zeros. The segment may contain
        // records by now, so a failure concerns them, and the kernel would not report it a second time.
        if fits && let Err(error) = self.ctx().io(StoreOp::SyncAside { file }).await {
            self.log_failed(&format!("sync of log segment {number}: {error}"));
        }
        Ok(())
    }
    async fn pause(&self) {
        let deadline = self.ctx().now() + RETRY_INTERVAL;
        let _stopped_early = self.ctx().timeout(deadline, self.background().stop_event()).await;
    }
    /// Task: keeps one segment ready.
    pub(crate) async fn segment_maker(self: Rc<Self>) {
        // Since the latest segment was created; only those that are not a full device.
        let mut failures = 0u32;
        loop {
            if self.check_running().is_err() {
                return;
            }
            if self.state().log.ready_count() > 0 {
                self.log().segment_use().await;
                self.restore_ballast().await;
                continue;
            }
            match self.create_segment().await {
                Ok(()) => {
                    failures = 0;
                    self.room().set_device_full(false);
                }
                Err(OsdError::Store(StoreError::NoSpace)) => {
                    let was_full = self.is_full();
                    self.room().set_device_full(true);
                    self.room().set_tight(true);
                    self.release_ballast().await;
                    // The rows of the log may need less space in a run.
                    self.background().request_flush();
                    if was_full {
                        self.room().set_stuck(true);
                        self.room().wake_all();
                        self.pause().await;
                    }
                }
                Err(e) => {
                    failures = failures.saturating_add(1);
                    // At growing intervals: it may fail for as long as the operator is away.
                    if failures.is_power_of_two() {
                        tracing::warn!(target_name = %self.label().name, failures, error = %e, "log segment cannot be created in advance");
                    }
                    self.pause().await;
                }
            }
        }
    }
}
