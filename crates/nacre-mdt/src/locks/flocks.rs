//! The file locks of the target: the lock space of `nacre_dlm::server`, its rows, and the locks in messages.
//!
//! Invariant: the rows of every owner whose locks changed are in the transaction of the change. Waiting requests are not
//! rows: a client asks again after a restart, with the same cookie. The requests are handled in `service/flocks.rs`.

use crate::rows::access::{AccessKey, AccessSet};
use crate::rows::row::FlocksRow;
use crate::rows::table::{self, FLOCK};
use crate::rows::view::View;
use alloc::vec::Vec;
use nacre_dlm::policy::flock::{Family, Kind, Lock, Owner};
use nacre_dlm::server::{FlockSpace, Outcome, SEGMENTS_MAX};
use nacre_osd::Credits;
use nacre_target::{ExportId, RECORD_BYTES, RECORD_ROWS};
use nacre_types::{Errno, Failure, Fid, Generation, ProtocolOutcome};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use tracing::warn;

/// Waiting locks that one transaction may grant. Few, so that the worst case fits the log of a small device.
pub(crate) const GRANTS_MAX: usize = 4;
/// Bytes of one range in a row, and of a row around its ranges.
pub(crate) const LOCK_BYTES: usize = 40;
const ROW_BYTES: usize = 80;

/// The file locks of this target.
#[derive(Debug, Default)]
pub(crate) struct Flocks {
    space: FlockSpace,
}

impl Flocks {
    /// Loads a row at the start.
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
    pub(crate) fn space(&self) -> &FlockSpace {
        &self.space
    }
    /// For changes of the locks; [`Self::store`] follows in the same transaction.
    pub(crate) fn space_mut(&mut self) -> &mut FlockSpace {
        &mut self.space
    }
    /// Adds the locks that a request of `owner` can conflict with, and those that it may release.
    pub(crate) fn add_accesses(&self, fid: Fid, owner: Owner, lock: &FileLock, accesses: &mut AccessSet) {
        let held = self.space.granted(fid, owner);
        let had = |kind| held.iter().any(|lock| lock.kind == kind);
        match kind_of(lock) {
            Some(Kind::Read) => accesses.read(AccessKey::file_lock(fid, true)),
            Some(Kind::Write) => [true, false]
                .into_iter()
                .for_each(|writing| accesses.read(AccessKey::file_lock(fid, writing))),
            None => {}
        }
        // An unlock, a weaker lock, or a flock that is released before the wait for a stronger one.
        for (kind, writing) in [(Kind::Read, false), (Kind::Write, true)] {
            if had(kind) {
                accesses.write(AccessKey::file_lock(fid, writing));
            }
        }
    }
    /// Stores the rows of all owners whose locks have changed.
    pub(crate) fn store(&mut self, view: &mut View<'_>) {
        for (fid, owner) in self.space.take_changed() {
            let key = table::flock(fid, owner.client, owner.owner, family_to_wire(owner.family).number());
            let locks: Vec<FileLock> =
                self.space.granted(fid, owner).iter().map(|lock| to_wire(owner, lock)).collect();
            if locks.is_empty() {
                view.delete(FLOCK, &key);
            } else {
                view.put(FLOCK, &key, &FlocksRow { locks });
            }
        }
    }
    /// The most that a change of the locks of one file writes, with the grants to waiting owners.
    pub(crate) fn credits(&self, fid: Fid) -> Credits {
        let ranges = self.space.load_of(fid) + SEGMENTS_MAX;
        Credits {
            rows: RECORD_ROWS + 2 + GRANTS_MAX as u32,
            row_bytes: RECORD_BYTES + (ranges * (LOCK_BYTES + ROW_BYTES)) as u32,
            frees: true,
            ..Credits::default()
        }
    }
}

fn family_to_wire(family: Family) -> FlockFamily {
    match family {
        Family::Flock => FlockFamily::Flock,
        Family::Posix => FlockFamily::Posix,
    }
}
pub(crate) fn owner_of(client: ExportId, lock: &FileLock) -> Owner {
    let family = match lock.family {
        FlockFamily::Flock => Family::Flock,
        FlockFamily::Posix => Family::Posix,
    };
    Owner { client, family, owner: lock.owner }
}
/// `None` for an unlock.
pub(crate) fn kind_of(lock: &FileLock) -> Option<Kind> {
    match lock.kind {
        FlockType::Read => Some(Kind::Read),
        FlockType::Write => Some(Kind::Write),
        FlockType::Unlock => None,
    }
}
pub(crate) fn to_lock(lock: &FileLock, kind: Kind) -> Lock {
    // flock(2) is about the whole file, whatever the range says.
    let (start, end) = match lock.family {
        FlockFamily::Flock => (0, u64::MAX),
        FlockFamily::Posix => (lock.start, lock.end),
    };
    Lock { start, end, kind, pid: lock.pid }
}
pub(crate) fn to_wire(owner: Owner, lock: &Lock) -> FileLock {
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
pub(crate) fn outcome_to_wire(outcome: Outcome) -> Result<FlockOutcome, Errno> {
    match outcome {
        Outcome::Granted => Ok(FlockOutcome::Granted),
        Outcome::Waiting => Ok(FlockOutcome::Waiting),
        Outcome::Conflict => Ok(FlockOutcome::Conflict),
        Outcome::Deadlock => Ok(FlockOutcome::Deadlock),
        Outcome::NoLocks => Err(Errno::ENOLCK),
    }
}

/// Releases the locks that conflict with one that the client was granted before the loss. A conflicting lock of the same
/// client is one whose release, or downgrade, was executed before and not yet replied to: it is resent after the replay.
pub(crate) fn release_conflicting(
    space: &mut FlockSpace,
    fid: Fid,
    owner: Owner,
    lock: &Lock,
) -> Result<(), Failure> {
    while let Some((holder, held)) = space.test(fid, owner, lock) {
        if holder.client != owner.client {
            warn!(%fid, holder = %holder.client,
                "replay refused: a file lock is free only after a change that is lost");
            return Err(ProtocolOutcome::VersionMismatch.into());
        }
        let (start, end) = (held.start.max(lock.start), held.end.min(lock.end));
        let released = match lock.kind {
            Kind::Write => space.unlock(fid, holder, start, end),
            Kind::Read => space.lock(fid, holder, Lock { start, end, kind: Kind::Read, ..held }, None),
        };
        if released != Outcome::Granted {
            return Err(Failure::ENOLCK);
        }
    }
    Ok(())
}
