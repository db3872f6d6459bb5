//! What is done under file locks is done within the MDT's lease: beyond it somebody else may have them, and the OSTs know
//! nothing of them.
//!
//! Invariants: a handle that an eviction took gives EIO; where there are locks an operation begins and ends within the
//! lease; each change of an object says until when the OST may begin it, so that one that was long on its way, or that
//! waited for a stopped OST, is not made under the locks of the next holder.

use crate::client::Client;
use crate::data::io::NO_LOCK;
use crate::files::open::Open;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_types::{Codec, Errno, Instant, LockCookie, OpenHandle, OstIndex, ProtocolOutcome, TargetName};
use nacre_wire::Rpc;
use nacre_wire::mdt::{Getattr, Reclaim, ReclaimReply};

/// How often a change asks for room: files may be removed while it waits.
const RECLAIMS_MAX: u32 = 3;
/// How long the MDT may take to have space freed.
const RECLAIM_PATIENCE: Duration = Duration::from_secs(10);

impl Client {
    /// A usable handle for reading or writing.
    pub(crate) async fn handle_under_lease(&self, handle: OpenHandle) -> Result<Rc<Open>, Errno> {
        let open = self.files.handle(handle)?;
        self.still_under_lease(&open).await?;
        Ok(open)
    }

    /// Asked again when an operation is done: of one that an OST kept waiting beyond the lease nobody knows whose the file
    /// locks were when it was made.
    pub(crate) async fn still_under_lease(&self, open: &Open) -> Result<(), Errno> {
        self.locks_until(open).await.map(drop)
    }

    /// Waits until the file locks that the handle may rely on are certain; until when nobody else has them. `None`: it
    /// has none.
    async fn locks_until(&self, open: &Open) -> Result<Option<Instant>, Errno> {
        loop {
            open.usable()?;
            if !open.file.granted_flocks.borrow().covers(open.handle) {
                return Ok(None);
            }
            let mdt = self.mdt().await?;
            if mdt.peer.lease_ok() {
                return Ok(mdt.peer.granted_until());
            }
            // Any answer renews the lease, or tells of the eviction first. EIO: this very request was evicted.
            match mdt.call(&Getattr { fid: open.file.fid }).await {
                Ok(_) | Err(Errno::ESTALE) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Changes an object, through a handle or by name. What came too late was not made: the locks are looked at again. Such
    /// changes go one after the other, so that a slow network carries less at a time; those under a lock of the OST apart from
    /// those that may wait there for such a lock.
    pub(crate) async fn change_object<'a, R: Rpc + Codec<'a>>(
        &self,
        ost: &Target,
        open: Option<&Open>,
        lock: LockCookie,
        request: &R,
        bulk: Vec<Bytes>,
    ) -> Result<R::Reply, Errno> {
        let mut turn = None;
        let mut reclaims = 0;
        loop {
            let deadline = match open {
                Some(open) => self.locks_until(open).await?,
                None => None,
            };
            let call = ost.request(request).bulk(bulk.clone()).deadline(deadline);
            match ost.send(call).await.map(|reply| reply.body) {
                Err(e) if e.is(ProtocolOutcome::DeadlinePassed) => {
                    tracing::debug!(
                        target_name = ost.name,
                        "a change reached its OST too late: it is made anew"
                    );
                    if turn.is_none() {
                        turn = Some(if lock == NO_LOCK { &ost.late } else { &ost.late_locked }.enter().await);
                    }
                }
                Err(Errno::ENOSPC) if reclaims < RECLAIMS_MAX && self.reclaim(ost).await => reclaims += 1,
                other => return other,
            }
        }
    }

    /// An OST has no room: has the MDT free the space of files that were removed or truncated on the same device. False:
    /// there is none, or the MDT does not answer.
    async fn reclaim(&self, ost: &Target) -> bool {
        let Some(TargetName::Of { index, .. }) = TargetName::parse(&ost.name) else { return false };
        let Ok(mdt) = self.mdt().await else { return false };
        if !mdt.peer.is_connected() {
            return false;
        }
        let (promise, answer) = self.ctx.promise();
        let request = Reclaim { ost: OstIndex(index) };
        self.ctx.spawn(async move { promise.fulfil(mdt.call(&request).await) });
        let answer = self.ctx.timeout(self.ctx.now() + RECLAIM_PATIENCE, answer).await;
        matches!(answer.flatten(), Some(Ok(ReclaimReply { freed: true })))
    }
}
