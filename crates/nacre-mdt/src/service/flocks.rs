//! The requests about file locks: lock, test, cancel; the locks of a client that is gone.
//!
//! Invariant: the row of a lock that was granted to a waiting client is written before the callback is sent.

use crate::locks::flocks::{
    GRANTS_MAX, LOCK_BYTES, kind_of, outcome_to_wire, owner_of, release_conflicting, to_lock, to_wire,
};
use crate::mdt::Mdt;
use crate::rows::read_set::ReadSet;
use crate::rows::table::INODE;
use crate::rows::view::Abort;
use alloc::vec::Vec;
use nacre_dlm::policy::flock::{Family, Kind, Owner};
use nacre_dlm::server::{FlockSpace, Outcome, SEGMENTS_MAX};
use nacre_osd::Credits;
use nacre_rpc::ReplyRecord;
use nacre_target::{ExportId, Reply, Request};
use nacre_types::{Codec, Errno, Failure, Fid};
use nacre_wire::Opcode;
use nacre_wire::mdt::{
    FileLock, Flock, FlockCancel, FlockGranted, FlockOutcome, FlockReply, FlockTest, FlockTestReply,
};
use tracing::error;

/// The data in the record of a request that was refused with an errno: this number plus the errno.
const REFUSED: u64 = 1 << 8;

/// Reconstructs the body of a reply about file locks.
pub(crate) fn reconstruct(record: &ReplyRecord) -> Result<Vec<u8>, Errno> {
    if let Some(errno) = record.data.checked_sub(REFUSED) {
        let errno = i32::try_from(errno).ok().and_then(Errno::from_number);
        return Err(errno.unwrap_or(Errno::EPROTO));
    }
    let number = u8::try_from(record.data).map_err(|_| Errno::EPROTO)?;
    let outcome = FlockOutcome::from_number(number).ok_or(Errno::EPROTO)?;
    Ok(FlockReply { outcome }.to_vec())
}

/// The most that a transaction writes that grants waiting locks and drops `owners` others.
fn grants_bound(owners: usize) -> Credits {
    Credits {
        rows: 2 * (GRANTS_MAX + owners) as u32,
        row_bytes: ((GRANTS_MAX + owners) * SEGMENTS_MAX * LOCK_BYTES) as u32,
        frees: true,
        ..Credits::default()
    }
}

impl Mdt {
    pub(crate) async fn flock(&self, request: &Request, args: &Flock) -> Result<Reply, Failure> {
        if args.lock.start > args.lock.end {
            return Err(Failure::EINVAL);
        }
        let owner = owner_of(request.export, &args.lock);
        let wait = args.wait.then_some(args.cookie);
        let replayed = request.replayed_reply().and_then(|body| FlockReply::from_slice(body).ok());
        let replayed = replayed.map(|reply| reply.outcome);
        self.change_flocks(request, args.fid, Some((owner, args.lock)), |space| {
            match (kind_of(&args.lock), replayed) {
                // A lock that was refused then is not granted now: its caller has gone on without it.
                (Some(_), Some(FlockOutcome::Conflict)) => Ok(Outcome::Conflict),
                (Some(_), Some(FlockOutcome::Deadlock)) => Ok(Outcome::Deadlock),
                // A client that waited sends its request again after the recovery. During the recovery no request
                // waits: locks are granted to their former owners.
                (Some(_), Some(FlockOutcome::Waiting)) => {
                    if owner.family == Family::Flock {
                        space.unlock(args.fid, owner, 0, u64::MAX); // released before it waited
                    }
                    Ok(Outcome::Waiting)
                }
                (Some(kind), replayed) => {
                    let lock = to_lock(&args.lock, kind);
                    if replayed == Some(FlockOutcome::Granted) {
                        release_conflicting(space, args.fid, owner, &lock)?;
                    }
                    Ok(space.lock(args.fid, owner, lock, wait))
                }
                (None, _) => {
                    let all = to_lock(&args.lock, Kind::Read);
                    Ok(space.unlock(args.fid, owner, all.start, all.end))
                }
            }
        })
        .await
    }

    pub(crate) async fn flock_cancel(&self, request: &Request, args: &FlockCancel) -> Result<Reply, Failure> {
        self.change_flocks(request, args.fid, None, |space| Ok(space.cancel(request.export, args.cookie)))
            .await
    }

    async fn change_flocks(
        &self,
        request: &Request,
        fid: Fid,
        asked: Option<(Owner, FileLock)>,
        mut change: impl FnMut(&mut FlockSpace) -> Result<Outcome, Failure>,
    ) -> Result<Reply, Failure> {
        let room = self.flocks().borrow().credits(fid);
        let done = self
            .execute(request, ReadSet::of_inode(fid), room, |view| {
                view.file(fid)?;
                let mut flocks = self.flocks().borrow_mut();
                if let (Some((owner, lock)), Some(accesses)) = (&asked, view.accesses_mut()) {
                    flocks.add_accesses(fid, *owner, lock, accesses);
                    if self.change_order().must_wait_for(self.core(), request, accesses).is_some() {
                        return Err(Abort::MustWait); // the locks in memory are not changed yet
                    }
                }
                let outcome = change(flocks.space_mut())?;
                // From here on nothing fails: memory and rows change together.
                flocks.space_mut().reprocess(GRANTS_MAX);
                flocks.store(view);
                drop(flocks);
                let reply = outcome_to_wire(outcome);
                let data = reply.map_or_else(|e| REFUSED + e.number() as u64, |o| u64::from(o.number()));
                request.set_record_data(data);
                Ok(reply)
            })
            .await?;
        self.send_grants();
        self.grant_waiting().await;
        let (transno, outcome) = done;
        Ok(Reply::of(&FlockReply { outcome: outcome? }).with_transno(transno))
    }

    /// Grants waiting locks that one transaction had no room for.
    async fn grant_waiting(&self) {
        loop {
            let more = self.flocks().borrow().space().must_reprocess();
            if !more {
                return;
            }
            let done = self
                .execute_local(ReadSet::default(), grants_bound(0), |view| {
                    let mut flocks = self.flocks().borrow_mut();
                    flocks.space_mut().reprocess(GRANTS_MAX);
                    flocks.store(view);
                    Ok(())
                })
                .await;
            if let Err(e) = done {
                error!(target_name = %self.core().name, error = %e, "waiting file locks cannot be granted now");
                return;
            }
            self.send_grants();
        }
    }
    /// Sends the grants and refusals to the clients that wait for them.
    fn send_grants(&self) {
        loop {
            let result = self.flocks().borrow_mut().space_mut().poll_result();
            let Some(result) = result else { return };
            let outcome = outcome_to_wire(result.outcome).unwrap_or(FlockOutcome::Conflict);
            let body = FlockGranted { cookie: result.cookie, outcome };
            self.core().callback(result.client, Opcode::FlockGranted, &body);
        }
    }

    pub(crate) async fn flock_test(&self, request: &Request) -> Result<Reply, Errno> {
        let args: FlockTest = request.args()?;
        if args.lock.start > args.lock.end {
            return Err(Errno::EINVAL);
        }
        if self.core().osd.get(INODE, &args.fid.key()).await?.is_none() {
            return Err(Errno::ESTALE);
        }
        let owner = owner_of(request.export, &args.lock);
        let conflict = kind_of(&args.lock).and_then(|kind| {
            let flocks = self.flocks().borrow();
            flocks.space().test(args.fid, owner, &to_lock(&args.lock, kind))
        });
        let conflict = conflict.map(|(owner, lock)| to_wire(owner, &lock));
        Ok(Reply::of(&FlockTestReply { conflict }))
    }

    /// Drops the file locks of an export that is gone.
    ///
    /// # Errors
    /// Locks are left, and the log says so.
    pub(crate) async fn drop_flocks(&self, export: ExportId) -> Result<(), Errno> {
        loop {
            let done = self
                .execute_local(ReadSet::default(), grants_bound(GRANTS_MAX), |view| {
                    let mut flocks = self.flocks().borrow_mut();
                    let more = flocks.space_mut().remove_client(export, 1);
                    flocks.space_mut().reprocess(GRANTS_MAX);
                    flocks.store(view);
                    Ok(more)
                })
                .await;
            match done {
                Ok((transno, more)) => {
                    // A replay that gets the lock afterwards must find it free, because its former owner is gone.
                    if let Err(e) = self.core().osd.commit(transno).await {
                        error!(target_name = %self.core().name, error = %e, "dropped file locks are not durable");
                    }
                    self.send_grants();
                    self.grant_waiting().await;
                    if !more {
                        return Ok(());
                    }
                }
                Err(e) => {
                    error!(target_name = %self.core().name, export = export.0, error = %e,
                        "file locks of a client that is gone cannot be dropped");
                    return Err(e);
                }
            }
            self.core().ctx.yield_now().await;
        }
    }
}
