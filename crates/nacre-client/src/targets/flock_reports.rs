//! Reports of file locks that this mount has granted itself (`locks/local_flocks.rs` has the rules).

use crate::files::table::Open;
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use nacre_node::join_all;
use nacre_types::{Failure, Fid, LockCookie};
use nacre_wire::mdt::{FileLock, Flock, FlockOutcome};

/// Locks that are reported at the same time.
const REPORTS_IN_FLIGHT: usize = 16;

/// A report never waits, so that no callback names it.
const NO_COOKIE: LockCookie = LockCookie(0);

impl Mdt {
    /// Reports the locks on these files that only this mount knows; when it returns, the MDT knows them. A lock that it
    /// refuses is lost.
    pub(crate) async fn report_flocks(&self, fids: &[Fid]) {
        for &fid in fids {
            let due = self.local_flocks().begin_report(fid);
            let evictions = self.evictions();
            for some in due.chunks(REPORTS_IN_FLIGHT) {
                // The locks of before an eviction are lost, and must not come to the MDT after it.
                if self.evictions() != evictions {
                    break;
                }
                join_all(some.iter().map(|(lock, open)| self.report_flock(fid, *lock, open.as_ref()))).await;
            }
            if !due.is_empty() {
                self.local_flocks().end_report(fid);
            }
            self.local_flocks().reported(fid).await;
        }
    }
    async fn report_flock(&self, fid: Fid, lock: FileLock, open: Option<&Rc<Open>>) {
        // A change like others, although a revoke waits for it: an eviction must end it. It gets a slot, because changes that
        // wait for locks give theirs back.
        let request = Flock { fid, lock, wait: false, cookie: NO_COOKIE };
        let refused = match self.call(&request).await {
            Ok(reply) if reply.outcome == FlockOutcome::Granted => return,
            // The mount was evicted, which ends all locks, or it ends.
            Err(error @ (Failure::EIO | Failure::ESHUTDOWN)) => {
                tracing::debug!(target_name = %self.name, %fid, %error, "a file lock could not be reported");
                return;
            }
            Ok(reply) => alloc::format!("{:?}", reply.outcome),
            Err(error) => alloc::format!("{error}"),
        };
        tracing::error!(%fid, process = lock.pid, refused,
            "the MDT refuses a file lock that this mount has granted: its handle fails with EIO");
        if let Some(open) = open {
            open.set_stale();
        }
    }
}
