//! flock(2), fcntl(2) and OFD locks: the MDT has the locks, this file the requests of this mount that wait for one. Locks of
//! files that no other client has open are granted without a request (`local_flocks.rs`).
//!
//! Invariants: (1) a waiting request gets a reply at once and is completed by a callback (`pending`), so it holds no slot; (2)
//! an interrupted wait ends when the MDT has decided whether the grant or the cancel was first; (3) after a callback the request
//! is repeated: only a grant in a reply can be replayed when the MDT's machine is lost; (4) the locks of a handle are recorded
//! until the MDT has dropped them.

use crate::client::Client;
use crate::files::state::FileState;
use crate::files::table::Open;
use crate::locks::file_flocks::kind_of;
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use nacre_types::{Failure, Fid, OpenHandle};
use nacre_wire::mdt::{FileLock, Flock, FlockCancel, FlockFamily, FlockOutcome, FlockTest, FlockType};

impl Client {
    /// Sets or drops a file lock; with `wait` ends when it is granted or refused, or with EINTR when its caller has ended.
    pub async fn flock(
        &self,
        handle: OpenHandle,
        lock: FileLock,
        wait: bool,
    ) -> Result<FlockOutcome, Failure> {
        let _timing = self.stats.time("flock");
        let open = self.files.handle(handle)?;
        if lock.family == FlockFamily::Posix || !open.file.flocks().has(lock.family, lock.owner) {
            return self.request_flock(handle, lock, wait).await;
        }
        // A conversion that another lock prevents gives up the lock that the open file has, as on one kernel: otherwise two
        // holders of shared locks that both convert them would wait for each other.
        let outcome = self.request_flock(handle, lock, false).await?;
        if outcome != FlockOutcome::Conflict {
            return Ok(outcome);
        }
        self.unlock_all(&open.file, lock.family, lock.owner).await?;
        if wait { self.request_flock(handle, lock, true).await } else { Ok(outcome) }
    }

    async fn request_flock(
        &self,
        handle: OpenHandle,
        lock: FileLock,
        wait: bool,
    ) -> Result<FlockOutcome, Failure> {
        let open = self.files.handle(handle)?;
        if lock.kind != FlockType::Unlock {
            // Before the request: a handle that is released meanwhile must know what to drop.
            open.lock_requested(lock.family, lock.owner);
        }
        let mdt = self.mdt_of(open.file.fid).await?;
        let flocks = open.file.flocks();
        if let Some(outcome) = granted_here(&mdt, &open, &lock, wait) {
            if outcome == FlockOutcome::Granted {
                flocks.record(handle, &lock);
            }
            return Ok(outcome);
        }
        let request = mdt.local_flocks().request(open.file.fid);
        let outcome = self.outcome_of(&mdt, &open, lock, wait).await;
        if let Ok(FlockOutcome::Granted) = outcome {
            flocks.record(handle, &lock);
        }
        // After an error the MDT may have granted the lock: the close of the handle drops it there.
        if outcome.is_ok() {
            request.ended(!flocks.is_empty());
        }
        outcome
    }

    async fn outcome_of(
        &self,
        mdt: &Rc<Mdt>,
        open: &Open,
        lock: FileLock,
        wait: bool,
    ) -> Result<FlockOutcome, Failure> {
        let fid = open.file.fid;
        mdt.report_flocks(&[fid]).await;
        // An eviction meanwhile has taken the locks of the handle.
        self.files.handle(open.handle)?;
        let pending = mdt.flocks().register(&self.ctx, self.new_cookie());
        let cookie = pending.cookie();
        let request = Flock { fid, lock, wait, cookie };
        loop {
            pending.requested();
            match mdt.call(&request).await?.outcome {
                FlockOutcome::Waiting => {}
                outcome => return Ok(outcome),
            }
            match self.ctx.while_wanted(pending.granted()).await {
                Some(None | Some(FlockOutcome::Granted)) => {}
                Some(Some(outcome)) => return Ok(outcome),
                None => match mdt.call(&FlockCancel { fid, cookie }).await?.outcome {
                    FlockOutcome::Granted => return Ok(FlockOutcome::Granted),
                    // A restarted MDT does not know whether the grant or the cancel was first. If the lock was granted,
                    // it knows the lock.
                    _ if pending.is_forgotten() => {}
                    _ => return Err(Failure::EINTR),
                },
            }
            if let Err(error) = self.files.handle(open.handle) {
                self.withdraw(&request).await;
                return Err(error.into());
            }
        }
    }

    /// Ends a wait whose caller has gone. It may have come to the MDT after the eviction that ended it here.
    async fn withdraw(&self, request: &Flock) {
        let withdrawn = async {
            let mdt = self.mdt_of(request.fid).await?;
            let cancel = FlockCancel { fid: request.fid, cookie: request.cookie };
            if mdt.call(&cancel).await?.outcome == FlockOutcome::Granted {
                let lock = FileLock { kind: FlockType::Unlock, ..request.lock };
                mdt.call(&Flock { fid: request.fid, lock, wait: false, cookie: self.new_cookie() }).await?;
            }
            Ok::<_, Failure>(())
        };
        if let Err(error) = withdrawn.await
            && error != Failure::ESHUTDOWN
        {
            tracing::warn!(fid = %request.fid, %error, "a wait for a file lock could not be withdrawn");
        }
    }

    /// Returns a lock that conflicts with `lock`, if there is one.
    pub async fn flock_test(&self, fid: Fid, lock: FileLock) -> Result<Option<FileLock>, Failure> {
        let mdt = self.mdt_of(fid).await?;
        if let Some(kind) = kind_of(lock.kind)
            && self.files.used(fid).is_some_and(|file| is_alone(&mdt, &file))
            && let Some(conflict) = mdt.local_flocks().test(fid, &lock, kind)
        {
            return Ok(conflict);
        }
        mdt.report_flocks(&[fid]).await;
        Ok(mdt.call(&FlockTest { fid, lock }).await?.conflict)
    }

    /// close(2) of one descriptor: reports write errors, drops the owner's POSIX locks.
    pub async fn flush(&self, handle: OpenHandle, lock_owner: u64) -> Result<(), Failure> {
        let open = self.files.handle(handle)?;
        if !open.file.flocks().were_requested() {
            return open.report_failed_writes(); // every close comes here
        }
        let family = FlockFamily::Posix;
        // Any descriptor of the file, closed by the owner, drops all its locks on the file.
        let mut had_locks = false;
        for other in self.files.of_file(open.file.fid) {
            had_locks |= other.remove_lock_owner(family, lock_owner);
        }
        if had_locks {
            self.wait_for_writes(&open.file).await;
            self.unlock_all(&open.file, family, lock_owner).await?;
        }
        open.report_failed_writes()
    }

    /// The last close of a handle: its locks go, whatever their family.
    pub(crate) async fn drop_locks_of(&self, open: &Open) {
        for (family, owner) in open.take_lock_owners() {
            if let Err(error) = self.unlock_all(&open.file, family, owner).await
                && error != Failure::ESHUTDOWN
            {
                tracing::warn!(fid = %open.file.fid, %error, "the MDT could not drop the locks of a closed file");
            }
        }
    }

    async fn unlock_all(&self, file: &FileState, family: FlockFamily, owner: u64) -> Result<(), Failure> {
        file.flocks().remove_owner(family, owner);
        let fid = file.fid;
        let lock = FileLock { family, kind: FlockType::Unlock, start: 0, end: u64::MAX, owner, pid: 0 };
        let mdt = self.mdt_of(fid).await?;
        if mdt.local_flocks().unlock(fid, &lock) {
            return Ok(());
        }
        let request = mdt.local_flocks().request(fid);
        mdt.report_flocks(&[fid]).await;
        let unlock = Flock { fid, lock, wait: false, cookie: self.new_cookie() };
        let outcome = mdt.call(&unlock).await;
        request.ended(!file.flocks().is_empty());
        outcome.map(drop)
    }
}

/// The outcome of a request that the MDT does not have to decide.
fn granted_here(mdt: &Rc<Mdt>, open: &Rc<Open>, lock: &FileLock, wait: bool) -> Option<FlockOutcome> {
    let fid = open.file.fid;
    match kind_of(lock.kind) {
        None => mdt.local_flocks().unlock(fid, lock).then_some(FlockOutcome::Granted),
        Some(kind) if is_alone(mdt, &open.file) => mdt.local_flocks().lock(open, lock, kind, wait),
        Some(_) => None,
    }
}
/// Whether no other client has the file open, now. Without an own open for writing, the bit does not say so.
fn is_alone(mdt: &Mdt, file: &FileState) -> bool {
    file.has_writers() && mdt.may_write_back(file.fid)
}
