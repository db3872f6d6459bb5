//! What belongs to a client: its sequences of FIDs, and the end of everything it held.

use crate::mdt::{Mdt, credits};
use crate::open::{Ending, close};
use crate::setattr::forget_truncates;
use crate::table::{self, META, SEQUENCE, UNSETTLED, meta};
use crate::view::Wants;
use nacre_target::{ExportId, Reply, Request};
use nacre_types::{Errno, Seq};
use nacre_wire::mdt::GrantSeqReply;
use tracing::{error, info};

/// Opens that are ended in one visit.
const SLICE: usize = 16;
/// Sequences that an old copy of the MDT leaves out: a million mounts, or 10^11 files.
const SEQUENCES_SKIPPED: u64 = 1 << 20;

impl Mdt {
    /// Grants a sequence; durable when answered, so that no FID is ever given out twice.
    pub(crate) async fn grant_seq(&self, request: &Request) -> Result<Reply, Errno> {
        let client = self.core.client_uuid(request.export).ok_or(Errno::ESTALE)?;
        let mut wants = Wants::default();
        wants.key(META, meta::NEXT_SEQ);
        let (transno, seq) = self
            .change(request, wants, credits(1, false), |view| {
                let next: u64 = view.row(META, meta::NEXT_SEQ)?.unwrap_or(Seq::FIRST_CLIENT.0);
                if next >= Seq::LIMIT.0 {
                    return Err(Errno::ENOSPC.into());
                }
                view.put(META, meta::NEXT_SEQ, &(next + 1));
                view.put(SEQUENCE, &table::sequence(Seq(next)), &client);
                self.core.set_record_data(request, next);
                Ok(Seq(next))
            })
            .await?;
        self.core.osd.commit(transno).await?;
        Ok(Reply::of(&GrantSeqReply { seq }).with_transno(transno))
    }

    /// An old copy of this MDT was admitted. Sequences that it has granted after the copy are in use: objects on the OSTs
    /// have their FIDs. So far ahead nobody can have come.
    pub(crate) async fn skip_sequences(&self) -> Result<(), Errno> {
        let mut wants = Wants::default();
        wants.key(META, meta::NEXT_SEQ);
        let (_, next) = self
            .change_local(wants, credits(1, true), |view| {
                let next: u64 = view.row(META, meta::NEXT_SEQ)?.unwrap_or(Seq::FIRST_CLIENT.0);
                view.put(META, meta::NEXT_SEQ, &(next + SEQUENCES_SKIPPED));
                Ok(next + SEQUENCES_SKIPPED)
            })
            .await?;
        info!(target_name = %self.core.name, next, "FIDs of new files begin anew: those granted after the copy may be in use");
        Ok(())
    }

    /// Closes what an export had open, drops its file locks, forgets its truncates. In slices; a crash in between
    /// leaves rows that the next run finds.
    pub(crate) async fn drop_export(&self, export: ExportId) {
        let (mut closed, mut failed) = (0, false);
        loop {
            let opens = self.opens.borrow().of_export(export, SLICE);
            if opens.is_empty() {
                self.opens.borrow_mut().forget(export);
                break;
            }
            // One transaction each: a later one of the same file must see what the earlier left.
            for (handle, opened) in &opens {
                let mut wants = Wants::default();
                wants.inode(opened.fid);
                let done = self
                    .change_local(wants, credits(2, true), |view| {
                        close(view, export, *handle, *opened, Ending::Unknown, None)
                    })
                    .await;
                if let Err(e) = done {
                    error!(target_name = %self.core.name, export = export.0, fid = %opened.fid, error = %e,
                        "an open of a client that is gone cannot be closed");
                    failed = true;
                }
            }
            if failed {
                break;
            }
            closed += opens.len();
            self.core.ctx.yield_now().await;
        }
        let cuts = self.opens.borrow().cuts_of(export);
        for fid in cuts {
            let mut wants = Wants::default();
            wants.key(UNSETTLED, &fid.key());
            let done =
                self.change_local(wants, credits(1, true), |view| forget_truncates(view, export, fid)).await;
            if let Err(e) = done {
                error!(target_name = %self.core.name, export = export.0, %fid, error = %e,
                    "a truncate of a client that is gone cannot be forgotten");
            }
        }
        self.drop_flocks(export).await;
        if closed > 0 {
            info!(target_name = %self.core.name, export = export.0, closed, "closed what a client had left open");
        }
    }
}
