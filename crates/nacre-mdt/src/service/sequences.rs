//! Sequences of FIDs: their grant to clients. An MDT grants from the range of its own index, so no two MDTs grant the same FID.

use crate::mdt::Mdt;
use crate::ops::WriteBound;
use crate::rows::read_set::ReadSet;
use crate::rows::table::{self, META, SEQUENCE, meta};
use crate::rows::view::{Step, View};
use crate::service::bounds::credits_of;
use nacre_target::{Reply, Request};
use nacre_types::{Errno, Failure, ProtocolOutcome, Seq};
use nacre_wire::mdt::GrantSeqReply;
use tracing::info;

/// Sequences that an old copy of the MDT skips: enough for a million mounts, or 10^11 files.
const SEQUENCES_SKIPPED: u64 = 1 << 20;

impl Mdt {
    /// Grants a sequence. The grant is durable before the reply leaves, so that no FID is ever given out twice.
    pub(crate) async fn grant_seq(&self, request: &Request) -> Result<Reply, Failure> {
        let client = self.core().client_uuid(request.export).ok_or(ProtocolOutcome::ExportGone)?;
        request.reply_waits_for_commit();
        let read_set = ReadSet::of_key(META, meta::NEXT_SEQ);
        let (transno, seq) = self
            .execute(request, read_set, credits_of(WriteBound::inodes(1)), |view| {
                let next = self.next_seq(view)?;
                // The end of the range, or a damaged row: what follows is granted by another MDT.
                if !Seq(next).is_grantable_by(self.index()) {
                    return Err(Errno::ENOSPC.into());
                }
                view.put(META, meta::NEXT_SEQ, &(next + 1));
                view.put(SEQUENCE, &table::sequence(Seq(next)), &client);
                request.set_record_data(next);
                Ok(Seq(next))
            })
            .await?;
        self.core().osd.commit(transno).await?;
        Ok(Reply::of(&GrantSeqReply { seq }).with_transno(transno))
    }

    fn next_seq(&self, view: &mut View<'_>) -> Step<u64> {
        Ok(view.row(META, meta::NEXT_SEQ)?.unwrap_or(Seq::first_of(self.index()).0))
    }

    /// An old copy of this MDT was admitted. Sequences that were granted after the copy was made are in use: objects on the
    /// OSTs have their FIDs. New grants begin beyond all that can have been granted since.
    pub(crate) async fn skip_sequences(&self) -> Result<(), Errno> {
        let read_set = ReadSet::of_key(META, meta::NEXT_SEQ);
        let (_, next) = self
            .execute_local(read_set, credits_of(WriteBound::inodes(1).freeing()), |view| {
                let next = self.next_seq(view)?.saturating_add(SEQUENCES_SKIPPED);
                view.put(META, meta::NEXT_SEQ, &next);
                Ok(next)
            })
            .await?;
        info!(target_name = %self.core().name, next,
            "FIDs of new files begin after a gap, because FIDs granted after the copy was made may be in use");
        Ok(())
    }
}
