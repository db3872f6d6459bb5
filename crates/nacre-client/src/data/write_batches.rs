//! Sending of kept writes: small ones together, in a `WriteMany` to their OST.
//!
//! Reason: a request of its own costs a small write more than its bytes, at both ends and in the log of the OST.
//!
//! Rules: (1) A small write waits while a batch to its OST is under way, unless those that wait fill the next one; so it waits
//! for other kept writes only. A single one is sent as a Write. (2) Before a batch leaves, what allows each of its writes is
//! checked; its deadline is the earliest of theirs. (3) Each write has its own result. One that fails in a batch, or with it,
//! is sent again alone: then it meets the checks, the wait for space and the errors of every other write. This is
//! allowed because nobody else may have changed kept bytes meanwhile, so that they can be written twice. (4) The bytes of a
//! batch are copied into one buffer: until they are stable the import keeps them for replay, and nothing else beside them.

use crate::client::Client;
use crate::files::table::Open;
use crate::files::write_queue::{KeptWrite, WaitingWrite, WriteQueue};
use crate::locks::under_lease::{Change, NO_LOCK};
use crate::targets::bulk_rpcs::Bulk;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{RpcError, join_all};
use nacre_types::{Failure, OstIndex};
use nacre_wire::flags;
use nacre_wire::ost::{EXTENT_TAX, ManyResult, ManyWrite, ObjectState, Write, WriteMany};

/// Writes below that size are sent together.
pub(crate) const SMALL_BYTES: u64 = 64 << 10;

/// What allows a write.
fn change_of(kept: &KeptWrite) -> Change<'_> {
    let (open, evictions) = kept.allowed_by();
    Change::kept(open, evictions)
}

impl Client {
    /// Sends kept bytes of one object, alone or in a batch; returns the state of the object after it.
    pub(crate) async fn send_kept(
        &self,
        (index, ost): (OstIndex, &Rc<Target>),
        open: &Rc<Open>,
        evictions: u64,
        write: ManyWrite,
        data: Vec<Bytes>,
    ) -> Result<ObjectState, Failure> {
        let is_small = u64::from(write.len) < SMALL_BYTES;
        let kept = KeptWrite::new(open, evictions, write, data);
        if !is_small {
            return self.send_alone(ost, &kept).await;
        }
        let queue = self.mount.dirty_files().queue(index);
        let (outcome, ended) = self.ctx.promise();
        if queue.push(WaitingWrite::new(kept, outcome)) {
            self.ctx.spawn(self.me().send_batches(ost.clone(), queue));
        }
        ended.await.unwrap_or(Err(Failure::ESHUTDOWN))
    }

    /// Sends the writes that wait, and then those that have arrived meanwhile.
    async fn send_batches(self: Rc<Self>, ost: Rc<Target>, queue: Rc<WriteQueue>) {
        while let Some(due) = queue.due() {
            let alone = self.send_together(&ost, due).await;
            join_all(alone.into_iter().map(async |waiting: WaitingWrite| {
                let outcome = self.send_alone(&ost, waiting.kept()).await;
                waiting.end(outcome);
            }))
            .await;
            queue.ended();
        }
    }

    /// Sends writes in one request. Returns those without a result.
    async fn send_together(&self, ost: &Rc<Target>, mut due: Vec<WaitingWrite>) -> Vec<WaitingWrite> {
        if due.len() == 1 {
            return due;
        }
        let _room = ost.unlocked_write().await;
        due.sort_by_key(|waiting| waiting.kept().place());
        let (mut ready, mut until) = (Vec::with_capacity(due.len()), None);
        for waiting in due {
            match self.change_deadline(&change_of(waiting.kept())).await {
                Ok(at) => {
                    until = at.into_iter().chain(until).min();
                    ready.push(waiting);
                }
                Err(failure) => waiting.end(Err(failure)),
            }
        }
        if ready.len() < 2 {
            return ready;
        }
        let request = WriteMany { writes: ready.iter().map(|w| w.kept().request().clone()).collect() };
        let bytes = request.writes.iter().map(|write| u64::from(write.len)).sum();
        let mut data = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        ready.iter().flat_map(|w| w.kept().data()).for_each(|part| data.extend_from_slice(part));
        let first = request.writes.first().map_or(0, |write| write.offset);
        let _in_flight = ost.bulk().begin(Bulk::Write, first, bytes);
        let call = ost.request(&request).bulk(vec![data.into()]).deadline(until).flags(flags::GRANTED);
        let results = match ost.send_once(call).await {
            Ok(reply) if reply.body.results.len() == ready.len() => reply.body.results,
            Ok(_) => return ready,
            Err(error) => {
                if error == RpcError::Evicted {
                    ost.grant().lost();
                }
                tracing::debug!(target_name = %ost.name, %error, writes = ready.len(),
                    "writes could not be sent together: each is sent alone");
                return ready;
            }
        };
        let mut alone = Vec::new();
        for (waiting, ManyResult { status, state }) in ready.into_iter().zip(results) {
            if status.failure().is_some() {
                alone.push(waiting);
                continue;
            }
            ost.grant().consumed(u64::from(waiting.kept().request().len) + EXTENT_TAX);
            waiting.end(Ok(state));
        }
        alone
    }

    async fn send_alone(&self, ost: &Target, kept: &KeptWrite) -> Result<ObjectState, Failure> {
        let _room = ost.unlocked_write().await;
        let ManyWrite { object, laid, offset, len, owner, mtime } = *kept.request();
        let request = Write { object, laid, offset, owner, mtime, lock: NO_LOCK };
        let _in_flight = ost.bulk().begin(Bulk::Write, offset, len.into());
        let reply = self.change_object(ost, change_of(kept), NO_LOCK, &request, kept.data().to_vec()).await?;
        ost.grant().consumed(u64::from(len) + EXTENT_TAX);
        Ok(reply.state)
    }
}
