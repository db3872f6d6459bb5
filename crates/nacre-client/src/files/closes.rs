//! Sending of closes: each in a request of its own while there are enough slots, several in one batch while slots are scarce.
//!
//! Reason: a program that creates files takes two slots for each, one of them for the close, for which no caller waits.
//! With all slots in use, half of them would be spent on closes; a batch of closes needs only the extra slot that a CLOSE
//! may use.
//!
//! Rules: (1) while slots are free, a close is sent at once, as a CLOSE. (2) While slots are scarce, one batch of closes is
//! under way; later closes are collected and sent when the batch has its reply, or when they fill a batch. So a close waits
//! for other closes only. (3) A batch of closes has the class of a CLOSE. (4) Each close gets its own result, or that of the
//! batch as a whole. Bounded by the handles that a client may have open at the MDT.

use crate::cache::in_flight::Touches;
use crate::cache::tables::NameEffect;
use crate::files::close_queue::WaitingClose;
use crate::metadata::batch::{encoded, knows_batches};
use crate::targets::mdt::Mdt;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_node::join_all;
use nacre_types::Failure;
use nacre_wire::mdt::{Batch, BatchReply, Close};
use nacre_wire::{Class, Status};

/// Whether other requests need the slots.
fn is_scarce(mdt: &Target) -> bool {
    mdt.peer.with_import(|import| {
        let slots = import.slots();
        2 * slots.in_flight() >= slots.limit() || import.waiting() > 0
    })
}

impl Mdt {
    /// Sends a close, alone or in a batch, and waits for its outcome.
    pub(crate) async fn send_or_queue_close(self: &Rc<Self>, close: Close) -> Result<(), Failure> {
        // Attributes that the MDT returns meanwhile are not kept: the close may change the size of the file.
        let _changing = self.cache().begin(Touches::attrs(close.fid));
        if !is_scarce(self) || !knows_batches(self) {
            return self.send_close(&close).await;
        }
        let (outcome, ended) = self.ctx().promise();
        self.closes().push(WaitingClose::new(close, outcome));
        if let Some(due) = self.closes().due() {
            self.ctx().spawn(self.clone().send_closes(due));
        }
        ended.await.unwrap_or(Err(Failure::ESHUTDOWN))
    }

    async fn send_close(&self, close: &Close) -> Result<(), Failure> {
        let changing = self.cache().begin(Touches::attrs(close.fid));
        let reply = self.send(self.request(close).flags(self.cache().wanted())).await?;
        changing.replied(&reply.frame, NameEffect::None, None, false);
        Ok(())
    }
    /// Sends these closes, and then those that have arrived meanwhile.
    async fn send_closes(self: Rc<Self>, due: Vec<WaitingClose>) {
        let mut next = Some(due);
        while let Some(due) = next {
            let results = send_together(&self, &due).await;
            self.closes().replied();
            due.into_iter().zip(results).for_each(|(w, result)| w.end(result));
            next = self.closes().due();
        }
    }
}

/// Sends closes together; one result for each.
async fn send_together(mdt: &Mdt, due: &[WaitingClose]) -> Vec<Result<(), Failure>> {
    if due.len() > 1 && knows_batches(mdt) {
        let operations = due.iter().map(|w| encoded(w.request())).collect();
        let batch = Batch { stop_at_error: false, operations };
        // A batch of nothing but closes may use the extra slot of CLOSE.
        let mut touches = Touches::default();
        due.iter().for_each(|w| touches.add_attrs(w.request().fid));
        let changing = mdt.cache().begin(touches);
        let request = mdt.request(&batch).class(Class::Close).flags(mdt.cache().wanted());
        let reply = mdt.send(request).await;
        if let Ok(reply) = &reply {
            changing.replied(&reply.frame, NameEffect::None, None, false);
        }
        match reply.map(|reply| reply.body) {
            Ok(BatchReply { results }) if results.len() == due.len() => {
                let result = |status: Status| status.failure().map_or(Ok(()), Err);
                return results.iter().map(|r| result(r.status)).collect();
            }
            Ok(_) => return alloc::vec![Err(Failure::EPROTO); due.len()],
            // No close was executed. A full device may have room for one at a time, and closes free room.
            Err(Failure::ENOSPC) => {}
            Err(error) => return alloc::vec![Err(error); due.len()],
        }
    }
    join_all(due.iter().map(async |w| mdt.send_close(w.request()).await)).await
}
