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
//!
//! Closes that may be sent later have rules of their own (`kept_closes.rs`).

use crate::cache::in_flight::Touches;
use crate::cache::tables::NameEffect;
use crate::files::close_queue::WaitingClose;
use crate::files::kept_closes::{Due, KEPT_TIME};
use crate::metadata::batch::{encoded, knows_batches};
use crate::targets::mdt::Mdt;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::join_all;
use nacre_types::{Failure, Fid, OpenHandle};
use nacre_wire::mdt::{BATCH_MAX, Batch, BatchReply, Close};
use nacre_wire::{Class, Status};

/// The return of a lock waits for kept closes for this time at most. They may need a slot that waits for the lock of another
/// mount, which may wait for this return in the same way.
const CLOSED_BEFORE_RETURN_TIMEOUT: Duration = Duration::from_millis(250);

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
            return self.send_close(&close, Touches::attrs(close.fid)).await;
        }
        let (outcome, ended) = self.ctx().promise();
        self.closes().push(WaitingClose::new(close, outcome));
        if let Some(due) = self.closes().due() {
            self.ctx().spawn(self.clone().send_closes(due));
        }
        ended.await.unwrap_or(Err(Failure::ESHUTDOWN))
    }

    async fn send_close(&self, close: &Close, touches: Touches) -> Result<(), Failure> {
        let changing = self.cache().begin(touches);
        let reply = self.send(self.request(close).flags(self.cache().wanted())).await?;
        changing.replied(&reply.frame, NameEffect::None, None, false);
        if let Some(data) = &close.data {
            changing.keep_data(&reply.frame, close.fid, data);
        }
        Ok(())
    }
    /// Sends these closes, and then those that have arrived meanwhile.
    async fn send_closes(self: Rc<Self>, due: Vec<WaitingClose>) {
        let mut next = Some(due);
        while let Some(due) = next {
            let closes: Vec<Close> = due.iter().map(|w| w.request().clone()).collect();
            let mut touches = Touches::default();
            closes.iter().for_each(|close| touches.add_attrs(close.fid));
            let results = send_together(&self, &closes, touches).await;
            self.closes().replied();
            due.into_iter().zip(results).for_each(|(w, result)| w.end(result));
            next = self.closes().due();
        }
    }

    // ---- closes that are sent later

    /// Keeps the close of a handle that changed nothing, if it may be sent later.
    pub(crate) fn keep_close(self: &Rc<Self>, fid: Fid, handle: OpenHandle, is_writer: bool) -> bool {
        if !self.may_close_later(fid) {
            return false;
        }
        let mdt = self.clone();
        match self.kept_closes().keep(fid, handle, is_writer) {
            Due::WithTimer => {}
            Due::Now => drop(self.ctx().spawn(async move { mdt.send_kept_closes().await })),
            Due::Later => drop(self.ctx().spawn(async move {
                mdt.ctx().sleep(KEPT_TIME).await;
                mdt.kept_closes().timer_ended();
                mdt.send_kept_closes().await;
            })),
        }
        true
    }
    /// Sends all closes that are kept, and waits for their replies.
    pub(crate) async fn send_kept_closes(&self) {
        let due = self.kept_closes().begin();
        for some in due.chunks(BATCH_MAX) {
            // The attributes of the files stay as they are, and may be served meanwhile.
            let results = send_together(self, some, Touches::default()).await;
            for (close, error) in some.iter().zip(results).filter_map(|(close, r)| Some((close, r.err()?))) {
                // An eviction and the end of the mount close the handles as well.
                if !matches!(error, Failure::EBADF | Failure::EIO | Failure::ESHUTDOWN) {
                    tracing::warn!(target_name = %self.name, fid = %close.fid, %error,
                        "a handle could not be closed at the MDT: it counts as open until this mount ends");
                }
            }
            self.kept_closes().end(some);
        }
    }
    /// Before an own operation that could tell that handles of this inode are open at the MDT: returns when they are closed,
    /// or when a target has kept one that ends later from it for a while.
    pub(crate) async fn no_close_is_kept(&self, fid: Fid) {
        self.late_releases().ended(self.ctx(), &[fid]).await;
        if self.kept_closes().has(fid) {
            self.send_kept_closes().await;
            self.kept_closes().executed(&[fid]).await;
        }
    }
    /// The same for inodes of which locks are to be returned.
    pub(crate) async fn closed_before_return(self: &Rc<Self>, fids: &[Fid]) {
        if !fids.iter().any(|fid| self.kept_closes().has(*fid)) {
            return;
        }
        let (mdt, ctx) = (self.clone(), self.ctx());
        ctx.spawn(async move { mdt.send_kept_closes().await });
        let at = ctx.now() + CLOSED_BEFORE_RETURN_TIMEOUT;
        if ctx.timeout(at, self.kept_closes().executed(fids)).await.is_none() {
            tracing::debug!(target_name = %self.name, "locks are returned before handles under them are closed");
        }
    }
}

/// Sends closes together; one result for each.
async fn send_together(mdt: &Mdt, due: &[Close], touches: Touches) -> Vec<Result<(), Failure>> {
    if let [close] = due {
        return alloc::vec![mdt.send_close(close, touches).await];
    }
    if knows_batches(mdt) {
        let operations = due.iter().map(encoded).collect();
        let batch = Batch { stop_at_error: false, operations };
        // A batch of nothing but closes may use the extra slot of CLOSE.
        let changing = mdt.cache().begin(touches);
        let request = mdt.request(&batch).class(Class::Close).flags(mdt.cache().wanted());
        let reply = mdt.send(request).await;
        if let Ok(reply) = &reply {
            changing.replied(&reply.frame, NameEffect::None, None, false);
            for (close, result) in due.iter().zip(&reply.body.results) {
                if let Some(data) = close.data.as_ref().filter(|_| result.status.failure().is_none()) {
                    changing.keep_data(&reply.frame, close.fid, data);
                }
            }
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
    join_all(due.iter().map(async |close| mdt.send_close(close, Touches::attrs(close.fid)).await)).await
}
