//! What belongs to a client: its sequences of FIDs, and the end of everything it held.

use crate::mdt::{Mdt, credits};
use crate::ops::open::{Ending, close, mark_unsettled};
use crate::ops::setattr::forget_truncates;
use crate::rows::row::Opened;
use crate::rows::table::{self, META, OPEN, SEQUENCE, UNSETTLED, meta};
use crate::rows::view::{Halt, Note, View, Wants};
use nacre_target::{ExportId, Reply, Request};
use nacre_types::{Errno, OpenHandle, Seq};
use nacre_wire::mdt::GrantSeqReply;
use tracing::{error, info};

/// Opens that are ended in one visit.
const SLICE: usize = 16;
/// Sequences that an old copy of the MDT leaves out: a million mounts, or 10^11 files.
const SEQUENCES_SKIPPED: u64 = 1 << 20;
/// Opens that are named in the log when they cannot be closed; the rest is counted.
const NAMED_MAX: u64 = 16;

impl Mdt {
    /// Grants a sequence; durable when answered, so that no FID is ever given out twice.
    pub(crate) async fn grant_seq(&self, request: &Request) -> Result<Reply, Errno> {
        let client = self.core.client_uuid(request.export).ok_or(Errno::ESTALE)?;
        self.core.reply_waits_for_commit(request);
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
    ///
    /// # Errors
    /// Opens are left: the client's record has to stay.
    pub(crate) async fn drop_export(&self, export: ExportId) -> Result<(), Errno> {
        let (mut closed, mut damaged) = (0, 0u64);
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
                let Err(error) = done else { continue };
                damaged += 1;
                if damaged <= NAMED_MAX {
                    error!(target_name = %self.core.name, export = export.0, fid = %opened.fid, %error,
                        "an open of a client that is gone ends without its inode, which cannot be changed: \
                         run nacre check on this target");
                }
                if let Err(error) = self.end_without_inode(export, *handle, *opened).await {
                    error!(target_name = %self.core.name, export = export.0, fid = %opened.fid, %error,
                        "opens of a client that is gone cannot be ended: they are closed at the next start");
                    return Err(error);
                }
            }
            closed += opens.len();
            self.core.ctx.yield_now().await;
        }
        if damaged > 0 {
            error!(target_name = %self.core.name, export = export.0, damaged,
                "opens of a client that is gone have ended without their inodes: sizes and orphans of these files are \
                 looked at again at the next start");
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
        self.drop_flocks(export).await?;
        if closed > 0 {
            info!(target_name = %self.core.name, export = export.0, closed, "closed what a client had left open");
        }
        Ok(())
    }

    /// Ends an open whose inode cannot be read. What is to be done with the inode stays written down for the next start and
    /// for `nacre check`: an orphan keeps its row, a file that was open for writing gets one that asks for its size.
    async fn end_without_inode(
        &self,
        export: ExportId,
        handle: OpenHandle,
        opened: Opened,
    ) -> Result<(), Errno> {
        let mut wants = Wants::default();
        wants.key(UNSETTLED, &opened.fid.key());
        let end = |view: &mut View<'_>| {
            if opened.writes() {
                match mark_unsettled(view, opened.fid) {
                    // Not now: the answer of the OSTs could not be stored.
                    Ok(()) => view.notes.clear(),
                    // Damaged as well, and the log has said so.
                    Err(Halt::Errno(_)) => {}
                    Err(again) => return Err(again),
                }
            }
            view.delete(OPEN, &table::open(export, handle));
            view.notes.push(Note::Closed { export, handle });
            Ok(())
        };
        self.change_local(wants, credits(1, true), end).await.map(drop)
    }
}
