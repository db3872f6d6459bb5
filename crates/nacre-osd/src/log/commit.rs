//! Group commit: when the log is synced, and how waiting transactions learn of it.
//!
//! One sync runs at a time. A commit request starts a sync at once if none runs, and otherwise joins the next one.
//! Visits continue to append meanwhile; a sync covers the records that had been appended when it was started, because
//! the driver writes the log bytes of a visit before it carries out the visit's effects.
//! A failed sync is never repeated: the kernel may have dropped the pages.

use crate::engine::credits::Credits;
use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::log::mark::Mark;
use crate::table::pins::Pins;
use alloc::format;
use alloc::rc::Rc;
use core::time::Duration;
use nacre_node::{FileId, StoreOp, join_all};
use nacre_types::Transno;

impl Osd {
    /// Waits until everything up to `transno` is durable; starts a group commit at once.
    ///
    /// # Errors
    /// `Stopped` when the log could not be synced.
    pub async fn commit(&self, transno: Transno) -> Result<(), OsdError> {
        if transno.0 > self.log().committed_transno() {
            self.request_commit();
        }
        self.committed(transno).await
    }
    /// Waits until everything up to `transno` is durable, without requesting a commit.
    ///
    /// # Errors
    /// `Stopped` when the log could not be synced.
    pub async fn committed(&self, transno: Transno) -> Result<(), OsdError> {
        let transno = transno.0.min(self.log().last_transno());
        while self.log().committed_transno() < transno {
            self.check_alive()?;
            self.log().commit_end().await;
        }
        self.check_alive()
    }
    /// Tests whether the device accepts writes, by committing an empty change.
    ///
    /// # Errors
    /// Those of the engine, which has then stopped.
    pub(crate) async fn probe(&self) -> Result<(), OsdError> {
        let room = self.reserve(Credits { rows: 1, frees: true, ..Credits::default() }).await?;
        let (probe, ()) = self.transact(&Pins::default(), room, |_| Ok::<(), OsdError>(()))?;
        self.commit(probe).await
    }
    /// Starts a group commit of everything appended so far, without waiting.
    pub fn request_commit(&self) {
        self.log().request_commit();
    }
    /// Waits until the log is durable up to `lsn`; starts a group commit.
    pub(crate) async fn commit_lsn(&self, lsn: u64) -> Result<(), OsdError> {
        self.request_commit();
        while self.log().committed_lsn() < lsn {
            self.check_alive()?;
            self.log().commit_end().await;
        }
        self.check_alive()
    }

    /// Task: syncs the log whenever a commit is requested.
    pub(crate) async fn committer(self: Rc<Self>) {
        let (store, epoch) = (self.label().uuid.0, self.log_epoch());
        let mut mark_failed = false;
        loop {
            while !self.log().is_commit_requested() {
                if self.has_failed() {
                    return;
                }
                self.log().commit_request().await;
            }
            if self.has_failed() {
                return;
            }
            let (segments, lsn, transno) = {
                let mut state = self.state_mut();
                state.log.flush_copy();
                (state.log.unsynced(), state.log.last_lsn(), state.last_transno())
            };
            self.log().sync_begins(self.log_bytes_written());
            let syncs = segments.iter().map(|n| self.ctx().io(StoreOp::Sync { file: FileId::Log(*n) }));
            let results = join_all(syncs).await;
            self.count(|s| s.syncs += 1);
            for (n, result) in segments.iter().zip(results) {
                if let Err(e) = result {
                    self.log_failed(&format!("sync of log segment {n}: {e}"));
                    return;
                }
            }
            self.state_mut().log.synced(lsn);
            self.log().committed(lsn, transno);
            // Waiters have been woken already. Only the next commit waits for this write, so that marks are written in order.
            if let Err(error) = self.ctx().io(Mark { epoch, lsn, store }.write()).await
                && !core::mem::replace(&mut mark_failed, true)
            {
                tracing::warn!(target_name = %self.label().name, %error, "the mark of the log cannot be written");
            }
        }
    }

    /// Task: limits the time that records stay unsynced to the commit interval.
    pub(crate) async fn commit_timer(self: Rc<Self>) {
        let interval = Duration::from_millis(u64::from(self.config().commit_interval_ms));
        loop {
            if self.has_failed() {
                return;
            }
            match self.log().unsynced_since() {
                None => self.log().first_unsynced_record().await,
                Some(since) => {
                    let due = since + interval;
                    if self.ctx().now() >= due {
                        self.request_commit();
                        self.log().commit_end().await;
                    } else {
                        let _ = self.ctx().timeout(due, self.log().first_unsynced_record()).await;
                    }
                }
            }
        }
    }
}
