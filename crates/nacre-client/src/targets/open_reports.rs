//! Reports of opens that were made without a request (`files/late_opens.rs` has the rules).

use crate::files::table::Open;
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use nacre_types::{Failure, Fid};
use nacre_wire::mdt::{OpenHow, REPORTED_OPENS_MAX, ReportOpens, ReportedOpen};

impl Mdt {
    /// Reports the opens of these inodes; when it returns, the MDT knows them. An open that it refuses is lost.
    pub(crate) async fn report_opens(&self, fids: &[Fid]) {
        let due = self.late_opens().begin_report(fids);
        for some in due.chunks(REPORTED_OPENS_MAX) {
            let reported = |open: &Rc<Open>| ReportedOpen {
                fid: open.file.fid,
                how: OpenHow { handle: open.handle, flags: open.flags() },
            };
            let request = ReportOpens { opens: some.iter().map(reported).collect() };
            match self.call(&request).await {
                Ok(reply) => {
                    let results = reply
                        .results
                        .iter()
                        .map(|status| status.failure())
                        .chain(core::iter::repeat(Some(Failure::EPROTO)));
                    for (open, error) in some.iter().zip(results) {
                        if let Some(error) = error {
                            tracing::error!(fid = %open.file.fid, %error,
                                "the MDT refuses an open that was made under a lock: its handle fails with EIO");
                            open.set_stale();
                        }
                    }
                }
                // The mount was evicted, and reopens every handle, or it ends.
                Err(error) => {
                    tracing::debug!(target_name = %self.name, %error, "opens could not be reported");
                }
            }
            self.late_opens().end_report(some);
        }
        self.late_opens().all_reported(fids).await;
    }
    /// The same for all opens.
    pub(crate) async fn report_all_opens(&self) {
        let fids = self.late_opens().fids();
        self.report_opens(&fids).await;
    }
}
