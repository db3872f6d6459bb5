//! Closes on their way to the MDT: alone while there are slots enough, several in one request while there are not.
//!
//! Why: a program that makes files takes two slots for each, and nobody waits for the close. With all slots in use half of
//! them would be spent on closes; together these need one, the extra slot that a CLOSE may use.
//!
//! Rules: (1) a close before which nothing waits is sent at once, as what it is. (2) While slots are scarce one request of
//! closes is under way; what comes meanwhile collects and goes when that is answered, or when it fills a batch. So no
//! close waits for anything but another close, and a lone one for nothing. (3) A batch of closes is treated as a CLOSE on its way. (4)
//! Each close gets its own result, or that of the request as a whole. Bounded by what a client may have open at the MDT.

use crate::client::Client;
use crate::files::close_queue::WaitingClose;
use crate::metadata::batch::{encoded, knows_batches};
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_node::join_all;
use nacre_types::Errno;
use nacre_wire::mdt::{Batch, BatchReply, Close};
use nacre_wire::{Class, Status};

/// Whether other requests need the slots.
fn is_scarce(mdt: &Target) -> bool {
    mdt.peer.with_import(|import| {
        let slots = import.slots();
        2 * slots.in_flight() >= slots.limit() || import.waiting() > 0
    })
}

impl Client {
    /// Sends a close, alone or in a batch, and waits for its outcome.
    pub(crate) async fn send_or_queue_close(&self, mdt: &Rc<Target>, close: Close) -> Result<(), Errno> {
        if !is_scarce(mdt) || !knows_batches(mdt) {
            return mdt.call(&close).await.map(drop);
        }
        let (outcome, ended) = self.ctx.promise();
        self.closes.push(WaitingClose::new(close, outcome));
        if let Some(due) = self.closes.due() {
            self.ctx.spawn(self.me().send_closes(mdt.clone(), due));
        }
        ended.await.unwrap_or(Err(Errno::ESHUTDOWN))
    }

    /// Sends these closes, and then those that have arrived meanwhile.
    async fn send_closes(self: Rc<Self>, mdt: Rc<Target>, due: Vec<WaitingClose>) {
        let mut next = Some(due);
        while let Some(due) = next {
            let results = send_together(&mdt, &due).await;
            self.closes.replied();
            due.into_iter().zip(results).for_each(|(w, result)| w.end(result));
            next = self.closes.due();
        }
    }
}

/// Sends closes together; one result for each.
async fn send_together(mdt: &Target, due: &[WaitingClose]) -> Vec<Result<(), Errno>> {
    if due.len() > 1 && knows_batches(mdt) {
        let operations = due.iter().map(|w| encoded(w.request())).collect();
        let batch = Batch { stop_at_error: false, operations };
        // A batch of nothing but closes may use the extra slot of CLOSE.
        let reply = mdt.send(mdt.request(&batch).class(Class::Close)).await;
        match reply.map(|reply| reply.body) {
            Ok(BatchReply { results }) if results.len() == due.len() => {
                let result = |status: Status| status.error().map_or(Ok(()), Err);
                return results.iter().map(|r| result(r.status)).collect();
            }
            Ok(_) => return alloc::vec![Err(Errno::EPROTO); due.len()],
            // None was made. A full device may have room for one at a time, and closes are what gives it room again.
            Err(Errno::ENOSPC) => {}
            Err(error) => return alloc::vec![Err(error); due.len()],
        }
    }
    join_all(due.iter().map(async |w| mdt.call(w.request()).await.map(drop))).await
}
