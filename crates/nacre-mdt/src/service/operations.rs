//! Metadata operations in requests of their own, and the reply of an operation that was executed before.

use crate::mdt::Mdt;
use crate::ops::{Applied, Context, Operation, Recorded};
use crate::osts::layout_choice::LayoutChoice;
use crate::rows::view::{Step, View};
use crate::service::bounds::credits_of;
use alloc::boxed::Box;
use alloc::vec::Vec;
use nacre_target::{Reply, Request};
use nacre_types::{Errno, Failure, Fid, LayoutTemplate, Transno};

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

    /// The same, if nothing has to be waited for. `None`: nothing was changed.
    pub(crate) fn operation_now(
        &self,
        request: &Request,
        op: &dyn Operation,
    ) -> Option<Result<Reply, Failure>> {
        let places = op.needs_ost() && request.replayed_transno().is_none();
        if places && !self.osts().any_usable() {
            return None;
        }
        let hash = self.name_hash().get()?;
        let choice = self.layout_choice(request, op);
        let read_set = op.read_set(hash, request.export);
        let apply = |view: &mut View<'_>| self.apply(request, op, &choice, view);
        match self.execute_now(request, hash, read_set, credits_of(op.bound()), apply)? {
            Ok((transno, body)) => {
                choice.keep();
                Some(Ok(reply_of(transno, body)))
            }
            Err(Failure::ENOSPC) if places => None, // an OST may have space to free
            Err(failure) => Some(Err(failure)),
        }
    }

    async fn execute_operation(&self, request: &Request, op: &dyn Operation) -> Result<Reply, Failure> {
        let hash = self.name_hash().wait().await;
        let choice = self.layout_choice(request, op);
        let read_set = op.read_set(hash, request.export);
        let apply = |view: &mut View<'_>| self.apply(request, op, &choice, view);
        let (transno, body) = self.execute(request, read_set, credits_of(op.bound()), apply).await?;
        choice.keep();
        Ok(reply_of(transno, body))
    }
    fn layout_choice(&self, request: &Request, op: &dyn Operation) -> LayoutChoice<'_> {
        let replayed = request.replayed_reply().and_then(|body| op.replayed_layout(body));
        LayoutChoice::new(self.osts(), replayed)
    }
    /// Applies an operation in an attempt. The body of its reply; the rest of its result goes into the record of the request.
    fn apply(
        &self,
        request: &Request,
        op: &dyn Operation,
        choice: &LayoutChoice<'_>,
        view: &mut View<'_>,
    ) -> Step<Vec<u8>> {
        let client = || self.core().client_uuid(request.export);
        let mut choose = |template: &LayoutTemplate| choice.only(template);
        let mut context = Context::new(request.export, &client, self.default_layout(), &mut choose);
        let Applied { body, record } = op.apply(view, &mut context)?;
        if record.data != 0 {
            request.set_record_data(record.data.into());
        }
        if record.fid != Fid::default() {
            request.set_record_fid(record.fid);
        }
        Ok(body)
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

fn reply_of(transno: Transno, body: Vec<u8>) -> Reply {
    Reply { body, ..Reply::default() }.with_transno(transno)
}
