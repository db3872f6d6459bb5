//! Metadata operations in requests of their own, and the reply of an operation that was executed before.

use crate::mdt::Mdt;
use crate::ops::{Applied, Context, Operation, Recorded};
use crate::osts::layout_choice::LayoutChoice;
use crate::service::bounds::credits_of;
use alloc::boxed::Box;
use alloc::vec::Vec;
use nacre_target::{Reply, Request};
use nacre_types::{Errno, Failure, Fid, LayoutTemplate};

impl Mdt {
    /// Executes one operation, for the request that consists of it.
    pub(crate) async fn operation(&self, request: &Request, op: &dyn Operation) -> Result<Reply, Failure> {
        if !op.needs_ost() || request.replayed_transno().is_some() {
            return self.execute_operation(request, op).await;
        }
        self.wait_for_room().await;
        match self.execute_operation(request, op).await {
            // In boxes, because this is rare: the task of every change has room for it otherwise.
            Err(Failure::ENOSPC) if Box::pin(self.free_full_osts()).await => {
                Box::pin(self.execute_operation(request, op)).await
            }
            done => done,
        }
    }

    async fn execute_operation(&self, request: &Request, op: &dyn Operation) -> Result<Reply, Failure> {
        let hash = self.name_hash().wait().await;
        let client = || self.core().client_uuid(request.export);
        let replayed = request.replayed_reply().and_then(|body| op.replayed_layout(body));
        let choice = LayoutChoice::new(self.osts(), replayed);
        let mut choose = |template: &LayoutTemplate| choice.only(template);
        let mut context = Context::new(request.export, &client, self.default_layout(), &mut choose);
        let read_set = op.read_set(hash, request.export);
        let (transno, body) = self
            .execute(request, read_set, credits_of(op.bound()), |view| {
                let Applied { body, record } = op.apply(view, &mut context)?;
                if record.data != 0 {
                    request.set_record_data(record.data.into());
                }
                if record.fid != Fid::default() {
                    request.set_record_fid(record.fid);
                }
                Ok(body)
            })
            .await?;
        choice.keep();
        Ok(Reply { body, ..Reply::default() }.with_transno(transno))
    }

    /// Reconstructs the body of the reply of an operation that was executed before. Nothing is executed: what the record
    /// does not say is read from the inode as it is now. The client has not had the reply, so it still has open whatever the
    /// operation opened, and that inode is still there; another one may have been removed by other clients.
    pub(crate) async fn reconstruct_operation(
        &self,
        op: &dyn Operation,
        record: Recorded,
    ) -> Result<Vec<u8>, Errno> {
        let inode = match op.described(&record) {
            None => None,
            Some(fid) => match self.read_inode(fid).await {
                Err(Errno::ESTALE) => None,
                found => Some(found?),
            },
        };
        op.reconstruct(&record, inode)
    }
}
