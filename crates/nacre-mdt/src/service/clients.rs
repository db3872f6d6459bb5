//! The end of a client: its opens are closed, its file locks dropped, its truncates forgotten.

use crate::mdt::Mdt;
use crate::ops::WriteBound;
use crate::ops::opening::{CloseReport, end_open};
use crate::ops::size::{forget_truncates, store_size_unknown};
use crate::rows::read_set::ReadSet;
use crate::rows::row::OpenRow;
use crate::rows::state_change::StateChange;
use crate::rows::table::{self, OPEN, UNSETTLED};
use crate::rows::view::{Abort, View};
use crate::service::bounds::credits_of;
use nacre_target::ExportId;
use nacre_types::{Errno, OpenHandle};
use tracing::{error, info};

/// Opens that are ended in one visit.
const SLICE: usize = 16;
/// Opens that are named in the log when they cannot be closed; the rest is counted.
const NAMED_MAX: u64 = 16;

impl Mdt {
    /// Ends everything that an export has, some of it per visit. A crash in between leaves rows that the next run finds.
    ///
    /// # Errors
    /// Opens or file locks are left: the client's record has to stay.
    pub(crate) async fn drop_export(&self, export: ExportId) -> Result<(), Errno> {
        let closed = self.drop_opens(export).await?;
        let truncates = self.opens().borrow().truncates_of(export);
        for fid in truncates {
            let read_set = ReadSet::of_key(UNSETTLED, &fid.key());
            let credits = credits_of(WriteBound::inodes(1).freeing());
            let done =
                self.execute_local(read_set, credits, |view| forget_truncates(view, export, fid)).await;
            if let Err(e) = done {
                error!(target_name = %self.core().name, export = export.0, %fid, error = %e,
                    "a truncate of a client that is gone cannot be forgotten");
            }
        }
        self.drop_flocks(export).await?;
        if closed > 0 {
            info!(target_name = %self.core().name, export = export.0, closed, "closed the files that a client had left open");
        }
        Ok(())
    }

    /// Closes the opens of an export, and returns their number.
    async fn drop_opens(&self, export: ExportId) -> Result<usize, Errno> {
        let (mut closed, mut damaged) = (0, 0u64);
        loop {
            let opens = self.opens().borrow().of_export(export, SLICE);
            if opens.is_empty() {
                self.opens().borrow_mut().forget(export);
                break;
            }
            // One transaction each: a later one of the same file must see the state that the earlier one left.
            for (handle, opened) in &opens {
                self.drop_open(export, *handle, *opened, &mut damaged).await?;
            }
            closed += opens.len();
            self.core().ctx.yield_now().await;
        }
        if damaged > 0 {
            error!(target_name = %self.core().name, export = export.0, damaged,
                "opens of a client that is gone have ended without their inodes: sizes and orphans of these files are \
                 looked at again at the next start");
        }
        Ok(closed)
    }

    async fn drop_open(
        &self,
        export: ExportId,
        handle: OpenHandle,
        opened: OpenRow,
        damaged: &mut u64,
    ) -> Result<(), Errno> {
        let credits = credits_of(WriteBound::inodes(2).freeing());
        let done = self
            .execute_local(ReadSet::of_inode(opened.fid), credits, |view| {
                end_open(view, export, handle, opened, CloseReport::Unknown, None)
            })
            .await;
        let Err(error) = done else { return Ok(()) };
        *damaged += 1;
        if *damaged <= NAMED_MAX {
            error!(target_name = %self.core().name, export = export.0, fid = %opened.fid, %error,
                "an open of a client that is gone ends without its inode, which cannot be changed: \
                 run nacre check on this target");
        }
        if let Err(error) = self.end_without_inode(export, handle, opened).await {
            error!(target_name = %self.core().name, export = export.0, fid = %opened.fid, %error,
                "opens of a client that is gone cannot be ended: they are closed at the next start");
            return Err(error);
        }
        Ok(())
    }

    /// Ends an open whose inode cannot be read. The work that is left to do with the inode stays written down for the next
    /// start and for `nacre check`: an orphan keeps its row, a file that was open for writing gets a row that asks for its
    /// size.
    async fn end_without_inode(
        &self,
        export: ExportId,
        handle: OpenHandle,
        opened: OpenRow,
    ) -> Result<(), Errno> {
        let end = |view: &mut View<'_>| {
            if opened.writes() {
                // Only the row: the size that the OSTs report could not be stored now.
                match store_size_unknown(view, opened.fid) {
                    // A failure: this row is damaged as well, and the log has said so.
                    Ok(()) | Err(Abort::Failed(_) | Abort::AfterRevoke(_)) => {}
                    Err(retry) => return Err(retry),
                }
            }
            view.delete(OPEN, &table::open(export, handle));
            view.state_change(StateChange::Closed { export, handle });
            Ok(())
        };
        let read_set = ReadSet::of_key(UNSETTLED, &opened.fid.key());
        self.execute_local(read_set, credits_of(WriteBound::inodes(1).freeing()), end).await.map(drop)
    }
}
