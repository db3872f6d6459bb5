//! flock and fcntl requests: the lock space of `nacre_dlm::server`, its rows and its callbacks.
//!
//! Invariants: the rows of every owner whose locks changed are in the transaction of the change; a grant to somebody who
//! waited is a row before its callback leaves. Waits are not rows: a client asks again after a restart, with the same
//! cookie.

use crate::locks::uncommitted::{Key, Touched};
use crate::mdt::Mdt;
use crate::rows::row::Flocks as FlockRow;
use crate::rows::table::{self, FLOCK, INODE};
use crate::rows::view::{Halt, View, Wants};
use alloc::vec::Vec;
use nacre_dlm::policy::flock::{Family, Kind, Lock, Owner};
use nacre_dlm::server::{FlockSpace, Outcome, SEGMENTS_MAX};
use nacre_osd::Credits;
use nacre_target::{ExportId, RECORD_BYTES, RECORD_ROWS, Reply, Request};
use nacre_types::{Codec, Errno, Fid, Generation};
use nacre_wire::Opcode;
use nacre_wire::mdt::{
    FileLock, Flock, FlockCancel, FlockFamily, FlockGranted, FlockOutcome, FlockReply, FlockTest,
    FlockTestReply, FlockType,
};
use tracing::{error, warn};

/// Waiters served by one transaction. Few, so that its worst case fits the log of a small device.
const SLICE: usize = 4;
/// Data of the record of a request that was refused with an errno: this and the errno.
pub(crate) const REFUSED: u64 = 1 << 8;
/// Bytes of one range in a row, and of a row around its ranges.
const LOCK_BYTES: usize = 40;
const ROW_BYTES: usize = 80;

/// The file locks of this target.
#[derive(Debug, Default)]
pub(crate) struct Flocks {
    space: FlockSpace,
}

impl Flocks {
    /// What a row says, at the start.
    pub(crate) fn load(&mut self, fid: Fid, client: Generation, locks: &[FileLock]) {
        for lock in locks {
            if let Some((kind, owner)) = kind_of(lock).zip(Some(owner_of(client, lock))) {
                self.space.restore(fid, owner, &[to_lock(lock, kind)]);
            }
        }
    }
    pub(crate) fn forget(&mut self, fid: Fid) {
        self.space.remove_file(fid);
    }
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.space.counts()
    }
    /// What a request of `owner` meets and what it may give up, for those who come after it.
    fn touch(&self, fid: Fid, owner: Owner, lock: &FileLock, touched: &mut Touched) {
        let held = self.space.granted(fid, owner);
        let had = |kind| held.iter().any(|lock| lock.kind == kind);
        match kind_of(lock) {
            Some(Kind::Read) => touched.seen.push(Key::file_lock(fid, true)),
            Some(Kind::Write) => {
                touched.seen.extend([true, false].map(|writing| Key::file_lock(fid, writing)))
            }
            None => {}
        }
        // An unlock, a weaker lock, or a flock that is given up before the wait for a stronger one.
        for (kind, writing) in [(Kind::Read, false), (Kind::Write, true)] {
            if had(kind) {
                touched.made.push(Key::file_lock(fid, writing));
            }
        }
    }
    /// Rows of all owners whose locks have changed.
    fn store(&mut self, view: &mut View<'_>) {
        for (fid, owner) in self.space.take_changed() {
            let key = table::flock(fid, owner.client, owner.owner, family_to_wire(owner.family).number());
            let locks: Vec<FileLock> =
                self.space.granted(fid, owner).iter().map(|lock| to_wire(owner, lock)).collect();
            if locks.is_empty() {
                view.delete(FLOCK, &key);
            } else {
                view.put(FLOCK, &key, &FlockRow { locks });
            }
        }
    }
    /// Room for a change of the locks of one file, waiters included.
    fn credits(&self, fid: Fid) -> Credits {
        let ranges = self.space.load_of(fid) + SEGMENTS_MAX;
        Credits {
            rows: RECORD_ROWS + 2 + SLICE as u32,
            row_bytes: RECORD_BYTES + (ranges * (LOCK_BYTES + ROW_BYTES)) as u32,
            object_bytes: 0,
            frees: true,
        }
    }
}

fn family_to_wire(family: Family) -> FlockFamily {
    match family {
        Family::Flock => FlockFamily::Flock,
        Family::Posix => FlockFamily::Posix,
    }
}
fn owner_of(client: ExportId, lock: &FileLock) -> Owner {
    let family = match lock.family {
        FlockFamily::Flock => Family::Flock,
        FlockFamily::Posix => Family::Posix,
    };
    Owner { client, family, owner: lock.owner }
}
/// `None` for an unlock.
fn kind_of(lock: &FileLock) -> Option<Kind> {
    match lock.kind {
        FlockType::Read => Some(Kind::Read),
        FlockType::Write => Some(Kind::Write),
        FlockType::Unlock => None,
    }
}
fn to_lock(lock: &FileLock, kind: Kind) -> Lock {
    // flock(2) is about the whole file, whatever the range says.
    let (start, end) = match lock.family {
        FlockFamily::Flock => (0, u64::MAX),
        FlockFamily::Posix => (lock.start, lock.end),
    };
    Lock { start, end, kind, pid: lock.pid }
}
fn to_wire(owner: Owner, lock: &Lock) -> FileLock {
    FileLock {
        family: family_to_wire(owner.family),
        kind: match lock.kind {
            Kind::Read => FlockType::Read,
            Kind::Write => FlockType::Write,
        },
        start: lock.start,
        end: lock.end,
        owner: owner.owner,
        pid: lock.pid,
    }
}
fn outcome_to_wire(outcome: Outcome) -> Result<FlockOutcome, Errno> {
    match outcome {
        Outcome::Granted => Ok(FlockOutcome::Granted),
        Outcome::Waiting => Ok(FlockOutcome::Waiting),
        Outcome::Conflict => Ok(FlockOutcome::Conflict),
        Outcome::Deadlock => Ok(FlockOutcome::Deadlock),
        Outcome::NoLocks => Err(Errno::ENOLCK),
    }
}

/// What is in the way of a lock that a client was granted before the loss. Of the same client it is a lock whose release,
/// or change to reading, was made before and not answered yet: that comes again, after the replay.
fn release_conflicting(space: &mut FlockSpace, fid: Fid, owner: Owner, lock: &Lock) -> Result<(), Errno> {
    while let Some((holder, held)) = space.test(fid, owner, lock) {
        if holder.client != owner.client {
            warn!(%fid, holder = %holder.client,
                "replay refused: a file lock is free only after a change that is lost");
            return Err(Errno::EOVERFLOW);
        }
        let (start, end) = (held.start.max(lock.start), held.end.min(lock.end));
        let released = match lock.kind {
            Kind::Write => space.unlock(fid, holder, start, end),
            Kind::Read => space.lock(fid, holder, Lock { start, end, kind: Kind::Read, ..held }, None),
        };
        if released != Outcome::Granted {
            return Err(Errno::ENOLCK);
        }
    }
    Ok(())
}

impl Mdt {
    pub(crate) async fn flock(&self, request: &Request, args: &Flock) -> Result<Reply, Errno> {
        if args.lock.start > args.lock.end {
            return Err(Errno::EINVAL);
        }
        let owner = owner_of(request.export, &args.lock);
        let wait = args.wait.then_some(args.cookie);
        let before = request.replayed_reply().and_then(|body| FlockReply::from_slice(body).ok());
        let before = before.map(|reply| reply.outcome);
        self.change_flocks(request, args.fid, Some((owner, args.lock)), |space| {
            match (kind_of(&args.lock), before) {
                // What was refused then is not granted now: its caller has gone on without the lock.
                (Some(_), Some(FlockOutcome::Conflict)) => Ok(Outcome::Conflict),
                (Some(_), Some(FlockOutcome::Deadlock)) => Ok(Outcome::Deadlock),
                // Who waited asks again after the recovery. Until then nobody waits: locks go to those who had them.
                (Some(_), Some(FlockOutcome::Waiting)) => {
                    if owner.family == Family::Flock {
                        space.unlock(args.fid, owner, 0, u64::MAX); // what it gave up before it waited
                    }
                    Ok(Outcome::Waiting)
                }
                (Some(kind), before) => {
                    let lock = to_lock(&args.lock, kind);
                    if before == Some(FlockOutcome::Granted) {
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

    pub(crate) async fn flock_cancel(&self, request: &Request, args: &FlockCancel) -> Result<Reply, Errno> {
        self.change_flocks(request, args.fid, None, |space| Ok(space.cancel(request.export, args.cookie)))
            .await
    }

    async fn change_flocks(
        &self,
        request: &Request,
        fid: Fid,
        asked: Option<(Owner, FileLock)>,
        mut change: impl FnMut(&mut FlockSpace) -> Result<Outcome, Errno>,
    ) -> Result<Reply, Errno> {
        let mut wants = Wants::default();
        wants.inode(fid);
        let room = self.flocks.borrow().credits(fid);
        let done = self
            .change(request, wants, room, |view| {
                view.file(fid)?;
                let mut flocks = self.flocks.borrow_mut();
                if let (Some((owner, lock)), Some(touched)) = (&asked, &mut view.touched) {
                    flocks.touch(fid, *owner, lock, touched);
                    if self.must_wait_for(request, touched).is_some() {
                        return Err(Halt::Wait); // the locks in memory are not changed yet
                    }
                }
                let outcome = change(&mut flocks.space)?;
                // From here on nothing fails: memory and rows change together.
                flocks.space.reprocess(SLICE);
                flocks.store(view);
                drop(flocks);
                let reply = outcome_to_wire(outcome);
                let data = reply.map_or_else(|e| REFUSED + e.0 as u64, |o| u64::from(o.number()));
                self.core.set_record_data(request, data);
                Ok(reply)
            })
            .await?;
        self.tell_waiters();
        self.settle_flocks().await;
        let (transno, outcome) = done;
        Ok(Reply::of(&FlockReply { outcome: outcome? }).with_transno(transno))
    }

    /// Serves waiters that one transaction had no room for.
    async fn settle_flocks(&self) {
        loop {
            let more = self.flocks.borrow().space.must_reprocess();
            if !more {
                return;
            }
            let room = Credits {
                rows: 2 * SLICE as u32,
                row_bytes: (SLICE * SEGMENTS_MAX * LOCK_BYTES) as u32,
                object_bytes: 0,
                frees: true,
            };
            let done = self
                .change_local(Wants::default(), room, |view| {
                    let mut flocks = self.flocks.borrow_mut();
                    flocks.space.reprocess(SLICE);
                    flocks.store(view);
                    Ok(())
                })
                .await;
            if let Err(e) = done {
                error!(target_name = %self.core.name, error = %e, "waiting file locks cannot be granted now");
                return;
            }
            self.tell_waiters();
        }
    }
    fn tell_waiters(&self) {
        loop {
            let answer = self.flocks.borrow_mut().space.poll_result();
            let Some(answer) = answer else { return };
            let outcome = outcome_to_wire(answer.outcome).unwrap_or(FlockOutcome::Conflict);
            let body = FlockGranted { cookie: answer.cookie, outcome };
            self.core.callback(answer.client, Opcode::FlockGranted, &body);
        }
    }

    pub(crate) async fn flock_test(&self, request: &Request) -> Result<Reply, Errno> {
        let args: FlockTest = request.args()?;
        if args.lock.start > args.lock.end {
            return Err(Errno::EINVAL);
        }
        if self.core.osd.get(INODE, &args.fid.key()).await?.is_none() {
            return Err(Errno::ESTALE);
        }
        let owner = owner_of(request.export, &args.lock);
        let conflict = kind_of(&args.lock).and_then(|kind| {
            let flocks = self.flocks.borrow();
            flocks.space.test(args.fid, owner, &to_lock(&args.lock, kind))
        });
        let conflict = conflict.map(|(owner, lock)| to_wire(owner, &lock));
        Ok(Reply::of(&FlockTestReply { conflict }))
    }

    /// Drops the file locks of an export that is gone.
    pub(crate) async fn drop_flocks(&self, export: ExportId) -> Result<(), Errno> {
        loop {
            let room = Credits {
                rows: 4 * SLICE as u32,
                row_bytes: (2 * SLICE * SEGMENTS_MAX * LOCK_BYTES) as u32,
                object_bytes: 0,
                frees: true,
            };
            let done = self
                .change_local(Wants::default(), room, |view| {
                    let mut flocks = self.flocks.borrow_mut();
                    let more = flocks.space.remove_client(export, 1);
                    flocks.space.reprocess(SLICE);
                    flocks.store(view);
                    Ok(more)
                })
                .await;
            match done {
                Ok((transno, more)) => {
                    // Who gets a lock now must find it free in replay, when the one who had it is gone.
                    if let Err(e) = self.core.osd.commit(transno).await {
                        error!(target_name = %self.core.name, error = %e, "dropped file locks are not durable");
                    }
                    self.tell_waiters();
                    self.settle_flocks().await;
                    if !more {
                        return Ok(());
                    }
                }
                Err(e) => {
                    error!(target_name = %self.core.name, export = export.0, error = %e,
                        "file locks of a client that is gone cannot be dropped");
                    return Err(e);
                }
            }
            self.core.ctx.yield_now().await;
        }
    }
}
