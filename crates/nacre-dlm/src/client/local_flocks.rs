//! File locks that a mount grants itself, because no other client can have a lock on the file.
//!
//! A value without waiting requests: a lock that conflicts is refused, and the mount decides whether the request goes to the
//! MDT. Invariants: no two conflicting locks of different owners on a file; there are at most [`LOCAL_FLOCKS_MAX`] ranges.
//! Not here: when a mount may do so, and the reports to the MDT (`nacre-client`).

use crate::policy::flock::{Family, FileLocks, Lock, Owner};
use crate::server::SEGMENTS_MAX;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_types::{Fid, Generation};

/// Ranges of a mount in all files.
pub const LOCAL_FLOCKS_MAX: usize = 4096;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalOutcome {
    /// The lock is granted, or the unlock is done.
    Granted,
    /// Another owner has a conflicting lock; nothing has changed.
    Conflict,
    /// There are too many ranges; nothing has changed.
    Full,
}

/// A lock of an owner.
pub type OwnedLock = (Family, u64, Lock);

/// The locks, by file.
#[derive(Debug, Default)]
pub struct LocalFlocks {
    files: BTreeMap<Fid, FileLocks>,
    ranges: usize,
}

impl LocalFlocks {
    /// Requests a lock.
    pub fn lock(&mut self, fid: Fid, family: Family, owner: u64, lock: Lock) -> LocalOutcome {
        if self.test(fid, family, owner, &lock).is_some() {
            return LocalOutcome::Conflict;
        }
        self.change(fid, family, owner, |locks, owner| locks.set(owner, lock))
    }
    /// Unlocks a range, `end` inclusive.
    pub fn unlock(&mut self, fid: Fid, family: Family, owner: u64, start: u64, end: u64) -> LocalOutcome {
        let whole = (start, end) == (0, u64::MAX);
        if whole && let Some(locks) = self.files.get_mut(&fid) {
            let before = locks.range_count();
            locks.remove(own(family, owner));
            self.ranges -= before - locks.range_count();
            self.remove_if_empty(fid);
            return LocalOutcome::Granted;
        }
        self.change(fid, family, owner, |locks, owner| {
            locks.clear(owner, start, end);
        })
    }
    /// A lock that conflicts with this one.
    pub fn test(&self, fid: Fid, family: Family, owner: u64, lock: &Lock) -> Option<OwnedLock> {
        let (by, conflict) = self.files.get(&fid)?.conflict(own(family, owner), lock)?;
        Some((by.family, by.owner, conflict))
    }
    /// Removes all locks on a file: the MDT is told of them, or they are lost.
    pub fn take(&mut self, fid: Fid) -> Vec<OwnedLock> {
        let Some(locks) = self.files.remove(&fid) else { return Vec::new() };
        self.ranges -= locks.range_count();
        let of_owner =
            |owner: Owner| locks.of_owner(owner).iter().map(move |lock| (owner.family, owner.owner, *lock));
        locks.owners().flat_map(of_owner).collect()
    }
    /// Whether an owner has a lock on a file.
    pub fn has(&self, fid: Fid, family: Family, owner: u64) -> bool {
        self.files.get(&fid).is_some_and(|locks| !locks.of_owner(own(family, owner)).is_empty())
    }
    /// Whether there is no lock.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// A change that adds at most two ranges.
    fn change(
        &mut self,
        fid: Fid,
        family: Family,
        owner: u64,
        change: impl FnOnce(&mut FileLocks, Owner),
    ) -> LocalOutcome {
        let owner = own(family, owner);
        let locks = self.files.entry(fid).or_default();
        if self.ranges + 2 > LOCAL_FLOCKS_MAX || locks.of_owner(owner).len() >= SEGMENTS_MAX {
            self.remove_if_empty(fid);
            return LocalOutcome::Full;
        }
        let before = locks.range_count();
        change(locks, owner);
        self.ranges = self.ranges + locks.range_count() - before;
        self.remove_if_empty(fid);
        LocalOutcome::Granted
    }
    fn remove_if_empty(&mut self, fid: Fid) {
        if self.files.get(&fid).is_some_and(|locks| locks.owner_count() == 0) {
            self.files.remove(&fid);
        }
    }
}

/// All owners are of one client.
fn own(family: Family, owner: u64) -> Owner {
    Owner { client: Generation(0), family, owner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::flock::Kind;
    use nacre_types::{Oid, Seq};

    fn range(start: u64, end: u64, kind: Kind) -> Lock {
        Lock { start, end, kind, pid: 1 }
    }

    #[test]
    fn owners_exclude_each_other_and_all_locks_of_a_file_can_be_taken() {
        let mut locks = LocalFlocks::default();
        let (a, b) = (Fid::new(Seq(0x100), Oid(1)), Fid::new(Seq(0x100), Oid(2)));
        let write = range(10, 19, Kind::Write);
        assert_eq!(locks.lock(a, Family::Posix, 1, write), LocalOutcome::Granted);
        assert_eq!(locks.lock(a, Family::Posix, 2, range(19, 30, Kind::Read)), LocalOutcome::Conflict);
        assert_eq!(locks.test(a, Family::Posix, 2, &write), Some((Family::Posix, 1, write)));
        assert_eq!(locks.lock(b, Family::Posix, 2, write), LocalOutcome::Granted, "of another file");
        assert_eq!(locks.lock(a, Family::Flock, 2, range(0, u64::MAX, Kind::Write)), LocalOutcome::Granted);
        assert_eq!(locks.unlock(a, Family::Posix, 1, 12, 14), LocalOutcome::Granted);
        assert_eq!(locks.lock(a, Family::Posix, 2, range(12, 14, Kind::Write)), LocalOutcome::Granted);
        assert_eq!(locks.take(a).len(), 4);
        assert!(
            !locks.has(a, Family::Posix, 1) && locks.has(b, Family::Posix, 2) && locks.take(a).is_empty()
        );
        assert_eq!(locks.unlock(b, Family::Posix, 2, 0, u64::MAX), LocalOutcome::Granted);
        assert!(locks.is_empty() && locks.ranges == 0);
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut locks = LocalFlocks::default();
        let fid = |number| Fid::new(Seq(0x100), Oid(number));
        let mut granted = 0;
        for number in 0..10 {
            for at in 0..SEGMENTS_MAX as u64 {
                let lock = range(2 * at, 2 * at, Kind::Write);
                granted +=
                    usize::from(locks.lock(fid(number), Family::Posix, 1, lock) == LocalOutcome::Granted);
            }
        }
        assert!((LOCAL_FLOCKS_MAX - 2..=LOCAL_FLOCKS_MAX).contains(&granted));
        assert_eq!(locks.ranges, granted);
        assert!(!locks.has(fid(9), Family::Posix, 1));
        assert_eq!(locks.unlock(fid(0), Family::Posix, 1, 0, u64::MAX), LocalOutcome::Granted);
        assert_eq!(locks.ranges, granted - SEGMENTS_MAX);
    }
}
