//! The file locks on one file that a mount has been granted. They determine which handles an eviction invalidates.
//!
//! Invariants: a lock is recorded from its grant to its unlock, a pending request is not; a POSIX lock belongs to a
//! process and a file, so it covers every handle of the file; an flock covers one handle.

use crate::policy::flock::{Family, Kind, Lock, Ranges};
use alloc::collections::{BTreeMap, BTreeSet};
use nacre_types::OpenHandle;

/// The locks of one owner.
#[derive(Debug)]
struct Owned {
    handle: OpenHandle,
    /// The process that sent the latest lock request.
    pid: u32,
    ranges: Ranges,
}

/// The granted file locks on one file.
#[derive(Debug, Default)]
pub struct GrantedFlocks {
    by_owner: BTreeMap<(Family, u64), Owned>,
}

impl GrantedFlocks {
    /// Records a lock that the MDT has granted to `owner` through `handle`.
    pub fn lock(&mut self, handle: OpenHandle, family: Family, owner: u64, lock: Lock) {
        let new = || Owned { handle, pid: lock.pid, ranges: Ranges::default() };
        let owned = self.by_owner.entry((family, owner)).or_insert_with(new);
        owned.pid = lock.pid;
        // An eviction invalidates handles regardless of the kind of lock: neighbouring ranges of both kinds merge.
        owned.ranges.set(Lock { kind: Kind::Write, ..lock });
    }
    /// Records an unlock of the bytes from `start` to `end` inclusive. The kernel names no process in an unlock.
    pub fn unlock(&mut self, family: Family, owner: u64, start: u64, end: u64) {
        let Some(owned) = self.by_owner.get_mut(&(family, owner)) else { return };
        owned.ranges.clear(start, end);
        if owned.ranges.is_empty() {
            self.by_owner.remove(&(family, owner));
        }
    }
    /// Removes all locks of an owner.
    pub fn remove_owner(&mut self, family: Family, owner: u64) {
        self.by_owner.remove(&(family, owner));
    }
    /// Removes all locks: the MDT has evicted this mount.
    pub fn clear(&mut self) {
        self.by_owner.clear();
    }
    /// Whether there is no lock.
    pub fn is_empty(&self) -> bool {
        self.by_owner.is_empty()
    }
    /// Whether an owner has a lock.
    pub fn has(&self, family: Family, owner: u64) -> bool {
        self.by_owner.contains_key(&(family, owner))
    }
    /// Whether an operation through this handle may rely on a lock.
    pub fn covers(&self, handle: OpenHandle) -> bool {
        self.covering(handle).next().is_some()
    }
    /// The processes that hold the locks on which an operation through this handle may rely.
    pub fn processes(&self, handle: OpenHandle) -> BTreeSet<u32> {
        self.covering(handle).map(|owned| owned.pid).collect()
    }

    fn covering(&self, handle: OpenHandle) -> impl Iterator<Item = &Owned> {
        let all = self.by_owner.iter();
        all.filter(move |((family, _), owned)| *family == Family::Posix || owned.handle == handle)
            .map(|(_, owned)| owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_until_all_of_it_is_unlocked() {
        let mut held = GrantedFlocks::default();
        let (a, b) = (OpenHandle(1), OpenHandle(2));
        let range = |start, end| Lock { start, end, kind: Kind::Write, pid: 1 };
        held.lock(a, Family::Posix, 7, range(10, 19));
        held.lock(a, Family::Posix, 7, range(15, 29));
        assert!(held.covers(a) && held.covers(b), "a POSIX lock covers every handle of its file");
        assert_eq!(held.processes(b), [1].into());
        held.unlock(Family::Posix, 7, 12, 24);
        held.unlock(Family::Posix, 7, 0, 11);
        assert!(held.covers(a));
        held.unlock(Family::Posix, 7, 25, u64::MAX);
        assert!(!held.covers(a) && !held.covers(b));
        held.lock(a, Family::Flock, 8, range(0, u64::MAX));
        assert!(held.covers(a) && !held.covers(b));
        held.remove_owner(Family::Flock, 8);
        assert!(!held.covers(a));
    }
}
