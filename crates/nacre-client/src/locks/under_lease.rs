//! Changes of objects, and operations under file locks, within the MDT's lease: after the lease another client may have
//! the file locks, and the MDT lets others cache the bytes of the file, because it has closed this mount's handles. The
//! OSTs know nothing of either.
//!
//! Invariants: operations on a handle whose locks an eviction released fail with EIO. An operation on a file with locks
//! begins and ends within the lease. Every change of an object begins while the MDT has the handle open, or waits for
//! the report of the truncate. It carries the deadline until which the OST may begin it, so that a change that was
//! delayed in the network, or by a stopped OST, is not applied after the locks were granted to another client, or the
//! bytes were cached by one. On a network so slow that a change is rejected as late, one that is not under file locks
//! gets more time (`nacre-rpc/src/import/deadlines.rs`): it succeeds, and may come late if this mount is cut off from
//! the MDT at that very moment.

use crate::client::Client;
use crate::files::table::Open;
use crate::targets::mdt::Mdt;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_node::{RpcError, join_all};
use nacre_types::{
    Codec, Failure, Fid, Instant, LockCookie, OpenHandle, OstIndex, ProtocolOutcome, TargetName,
};
use nacre_wire::mdt::{Getattr, Reclaim, ReclaimReply};
use nacre_wire::{Rpc, flags};

/// The server locks for the time of the request.
pub(crate) const NO_LOCK: LockCookie = LockCookie(0);
/// How often a change asks for room: files may be removed while it waits.
const RECLAIMS_MAX: u32 = 3;
/// How long the MDT may take to have space freed.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(10);

/// What allows a change of an object.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    fid: Fid,
    open: Option<&'a Open>,
    /// Evictions by the MDT before it was told of the truncate.
    announced: Option<u64>,
    /// The OST keeps space for it.
    granted: bool,
}
impl<'a> Change<'a> {
    /// A handle.
    pub(crate) fn through(open: &'a Open) -> Self {
        Self { fid: open.file.fid, open: Some(open), announced: None, granted: false }
    }
    /// A truncate of which the MDT was told when this mount had been evicted so often. The change fails with
    /// [`ProtocolOutcome::DeadlinePassed`] after another eviction.
    pub(crate) fn announced(fid: Fid, open: Option<&'a Open>, evictions: u64) -> Self {
        Self { fid, open, announced: Some(evictions), granted: false }
    }
    /// Bytes that were written when this mount had been evicted so often, and kept since. Fails likewise.
    pub(crate) fn kept(open: &'a Open, evictions: u64) -> Self {
        Self { granted: true, ..Self::announced(open.file.fid, Some(open), evictions) }
    }
    fn flags(&self) -> u32 {
        if self.granted { flags::GRANTED } else { 0 }
    }
    fn is_under_flock(&self) -> bool {
        self.open.is_some_and(|open| open.file.flocks().covers(open.handle))
    }
}

/// Any reply renews the lease, or reports the eviction first. EIO: the eviction has ended this very request.
async fn renew_lease(mdt: &Mdt, fid: Fid) -> Result<(), Failure> {
    match mdt.call(&Getattr { fid }).await {
        Ok(_) | Err(Failure::ESTALE) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Client {
    /// A usable handle for reading or writing.
    pub(crate) async fn handle_under_lease(&self, handle: OpenHandle) -> Result<Rc<Open>, Failure> {
        let open = self.files.handle(handle)?;
        self.check_lease(&open).await?;
        Ok(open)
    }

    /// Checked again at the end of an operation: if an OST kept it waiting beyond the lease, another client may have had the file
    /// locks when it was executed.
    pub(crate) async fn check_lease(&self, open: &Open) -> Result<(), Failure> {
        self.flock_deadline(open).await.map(drop)
    }

    /// Waits until the lease covers the file locks of the handle; returns the time until which no other client can get them.
    /// `None`: the handle has no file locks.
    async fn flock_deadline(&self, open: &Open) -> Result<Option<Instant>, Failure> {
        loop {
            open.usable()?;
            if !open.file.flocks().covers(open.handle) {
                return Ok(None);
            }
            let mdt = self.mdt_of(open.file.fid).await?;
            if mdt.peer.lease_ok() {
                return Ok(mdt.peer.granted_until());
            }
            renew_lease(&mdt, open.file.fid).await?;
        }
    }

    /// Waits until the lease of the MDT covers a change, and the MDT knows the handle again after an eviction; returns the
    /// time until which it does not let others cache the bytes.
    pub(crate) async fn change_deadline(&self, change: &Change<'_>) -> Result<Option<Instant>, Failure> {
        loop {
            if let Some(open) = change.open {
                open.usable()?;
            }
            let mdt = self.mdt_of(change.fid).await?;
            if change.announced.is_some_and(|evictions| evictions != mdt.evictions()) {
                return Err(ProtocolOutcome::DeadlinePassed.into());
            }
            if !mdt.peer.lease_ok() {
                renew_lease(&mdt, change.fid).await?;
            } else if change.open.is_some_and(Open::is_reopening) {
                self.files.reopened().await;
            } else {
                return Ok(mdt.peer.granted_until());
            }
        }
    }

    /// Changes an object, through a handle or by name. Changes that were rejected as late are resent one at a time, after
    /// another check of the lease, so that a slow network carries less at a time. A change that the OST's eviction has
    /// ended before it was sent is sent to the new export after the same check: nobody has seen it yet. So is a write of kept
    /// bytes whose reply is lost with the eviction.
    pub(crate) async fn change_object<'a, R: Rpc + Codec<'a>>(
        &self,
        ost: &Target,
        change: Change<'_>,
        lock: LockCookie,
        request: &R,
        bulk: Vec<Bytes>,
    ) -> Result<R::Reply, Failure> {
        let mut turn = None;
        let mut reclaims = 0;
        loop {
            let until = self.change_deadline(&change).await?;
            let deadline = until.filter(|_| turn.is_none() || change.is_under_flock());
            let call = ost.request(request).bulk(bulk.clone()).deadline(deadline).flags(change.flags());
            match ost.send_once(call).await.map(|reply| reply.body) {
                Err(RpcError::EvictedUnsent) if lock == NO_LOCK => {}
                // Nobody else may have changed kept bytes: they can be written twice.
                Err(RpcError::Evicted) if change.granted => ost.grant().lost(),
                Err(RpcError::EvictedUnsent) => return Err(ProtocolOutcome::LockLost.into()),
                Err(RpcError::Failed(Failure::Outcome(ProtocolOutcome::DeadlinePassed))) => {
                    tracing::debug!(
                        target_name = ost.name,
                        "a change was rejected as late by its OST: it is sent again"
                    );
                    if turn.is_none() {
                        turn = Some(ost.resend_turn(lock != NO_LOCK).await);
                    }
                }
                Err(RpcError::Failed(Failure::ENOSPC))
                    if reclaims < RECLAIMS_MAX && self.reclaim(ost).await =>
                {
                    reclaims += 1;
                }
                other => return other.map_err(|error| ost.explain(R::OPCODE, error)),
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
