//! Operations under file locks begin and end within the MDT's lease: after the lease another client may have the locks,
//! and the OSTs do not know file locks.
//!
//! Invariants: operations on a handle whose locks an eviction released fail with EIO. An operation on a file with locks
//! begins and ends within the lease. Each change of an object carries the deadline until which the OST may begin it, so
//! that a change that was delayed in the network, or by a stopped OST, is not applied after the locks were granted to
//! another client.

use crate::client::Client;
use crate::data::io::NO_LOCK;
use crate::files::table::Open;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_node::join_all;
use nacre_types::{Codec, Errno, Instant, LockCookie, OpenHandle, OstIndex, ProtocolOutcome, TargetName};
use nacre_wire::Rpc;
use nacre_wire::mdt::{Getattr, Reclaim, ReclaimReply};

/// How often a change asks for room: files may be removed while it waits.
const RECLAIMS_MAX: u32 = 3;
/// How long the MDT may take to have space freed.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(10);

impl Client {
    /// A usable handle for reading or writing.
    pub(crate) async fn handle_under_lease(&self, handle: OpenHandle) -> Result<Rc<Open>, Errno> {
        let open = self.files.handle(handle)?;
        self.check_lease(&open).await?;
        Ok(open)
    }

    /// Checked again at the end of an operation: if an OST kept it waiting beyond the lease, another client may have had the file
    /// locks when it was executed.
    pub(crate) async fn check_lease(&self, open: &Open) -> Result<(), Errno> {
        self.flock_deadline(open).await.map(drop)
    }

    /// Waits until the lease covers the file locks of the handle; returns the time until which no other client can get them.
    /// `None`: the handle has no file locks.
    async fn flock_deadline(&self, open: &Open) -> Result<Option<Instant>, Errno> {
        loop {
            open.usable()?;
            if !open.file.flocks().covers(open.handle) {
                return Ok(None);
            }
            let mdt = self.mdt_of(open.file.fid).await?;
            if mdt.peer.lease_ok() {
                return Ok(mdt.peer.granted_until());
            }
            // Any reply renews the lease, or reports the eviction first. EIO: the eviction has ended this very request.
            match mdt.call(&Getattr { fid: open.file.fid }).await {
                Ok(_) | Err(Errno::ESTALE) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Changes an object, through a handle or by name. Changes that were rejected as late are resent one at a time, after
    /// another check of the lease, so that a slow network carries less at a time.
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
                Some(open) => self.flock_deadline(open).await?,
                None => None,
            };
            let call = ost.request(request).bulk(bulk.clone()).deadline(deadline);
            match ost.send(call).await.map(|reply| reply.body) {
                Err(e) if e.is(ProtocolOutcome::DeadlinePassed) => {
                    tracing::debug!(
                        target_name = ost.name,
                        "a change was rejected as late by its OST: it is sent again"
                    );
                    if turn.is_none() {
                        turn = Some(ost.resend_turn(lock != NO_LOCK).await);
                    }
                }
                Err(Errno::ENOSPC) if reclaims < RECLAIMS_MAX && self.reclaim(ost).await => reclaims += 1,
                other => return other,
            }
        }
    }

    /// An OST has no room: has the MDTs free the space of files that were removed or truncated on the same device. False:
    /// there is none, or no MDT replies in time.
    async fn reclaim(&self, ost: &Target) -> bool {
        let Some(TargetName::Of { index, .. }) = TargetName::parse(&ost.name) else { return false };
        let deadline = self.ctx.now() + RECLAIM_TIMEOUT;
        let connected = self.mount.mdts().into_iter().filter(|mdt| mdt.peer.is_connected());
        let replies = join_all(connected.map(|mdt| {
            let (promise, reply) = self.ctx.promise();
            let request = Reclaim { ost: OstIndex(index) };
            self.ctx.spawn(async move { promise.fulfil(mdt.call(&request).await) });
            self.ctx.timeout(deadline, reply)
        }));
        let freed = |reply| matches!(reply, Some(Some(Ok(ReclaimReply { freed: true }))));
        replies.await.into_iter().any(freed)
    }
}
