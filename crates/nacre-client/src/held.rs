//! The file locks that this mount knows to have, by file: they say which handles an eviction takes.
//!
//! Invariants: a lock is here from its grant to its unlock, a request is not; a POSIX lock belongs to a process and its
//! file, so it stands for every handle of the file; a flock is of one handle.

use alloc::collections::{BTreeMap, BTreeSet};
use core::cell::RefCell;
use nacre_types::OpenHandle;
use nacre_wire::mdt::{FileLock, FlockFamily, FlockType};

/// What one owner has locked through a handle.
struct Owned {
    handle: OpenHandle,
    /// The process that asked for the latest of them.
    pid: u32,
    /// Start and end (inclusive), apart from each other.
    ranges: BTreeMap<u64, u64>,
}

/// The locks on one file.
#[derive(Default)]
pub(crate) struct HeldLocks(RefCell<BTreeMap<(FlockFamily, u64), Owned>>);

impl HeldLocks {
    /// The MDT has granted a lock or an unlock.
    pub(crate) fn granted(&self, handle: OpenHandle, lock: &FileLock) {
        let (start, end) = match lock.family {
            FlockFamily::Flock => (0, u64::MAX),
            FlockFamily::Posix => (lock.start, lock.end),
        };
        let mut all = self.0.borrow_mut();
        let key = (lock.family, lock.owner);
        let owned =
            all.entry(key).or_insert_with(|| Owned { handle, pid: lock.pid, ranges: BTreeMap::new() });
        // Nothing but what reaches into the range: those before it that end in it or behind it, and those that begin in it.
        while let Some((&from, &to)) = owned.ranges.range(..=end).next_back()
            && to >= start
        {
            owned.ranges.remove(&from);
            if to > end {
                owned.ranges.insert(end + 1, to);
            }
            if from < start {
                owned.ranges.insert(from, start - 1);
            }
        }
        if lock.kind != FlockType::Unlock {
            owned.pid = lock.pid; // the kernel names nobody in an unlock
            owned.ranges.insert(start, end);
        }
        if owned.ranges.is_empty() {
            all.remove(&key);
        }
    }
    /// All locks of an owner are gone.
    pub(crate) fn dropped(&self, family: FlockFamily, owner: u64) {
        self.0.borrow_mut().remove(&(family, owner));
    }
    /// All locks are gone: the MDT has evicted this mount.
    pub(crate) fn forget(&self) {
        self.0.borrow_mut().clear();
    }
    /// Whether what is done through a handle may rely on a lock.
    pub(crate) fn covers(&self, handle: OpenHandle) -> bool {
        self.covering(handle, |_| true)
    }
    /// The processes whose locks those are.
    pub(crate) fn processes(&self, handle: OpenHandle) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        self.covering(handle, |owned| {
            found.insert(owned.pid);
            false
        });
        found
    }
    /// Whether one of the locks that a handle may rely on is looked for.
    fn covering(&self, handle: OpenHandle, mut wanted: impl FnMut(&Owned) -> bool) -> bool {
        let all = self.0.borrow();
        let mut covering =
            all.iter().filter(|((family, _), owned)| *family == FlockFamily::Posix || owned.handle == handle);
        covering.any(|(_, owned)| wanted(owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(family: FlockFamily, owner: u64, kind: FlockType, start: u64, end: u64) -> FileLock {
        FileLock { family, kind, start, end, owner, pid: 1 }
    }

    #[test]
    fn a_lock_is_held_until_all_of_it_is_unlocked() {
        use FlockType::{Unlock, Write};
        let held = HeldLocks::default();
        let (a, b) = (OpenHandle(1), OpenHandle(2));
        let posix = |kind, start, end| lock(FlockFamily::Posix, 7, kind, start, end);
        held.granted(a, &posix(Write, 10, 19));
        held.granted(a, &posix(Write, 15, 29));
        assert!(held.covers(a) && held.covers(b), "a process has it, through whatever handle");
        assert_eq!(held.processes(b), [1].into());
        held.granted(b, &posix(Unlock, 12, 24));
        held.granted(a, &posix(Unlock, 0, 11));
        assert!(held.covers(a));
        held.granted(a, &posix(Unlock, 25, u64::MAX));
        assert!(!held.covers(a) && !held.covers(b));
        held.granted(a, &lock(FlockFamily::Flock, 8, Write, 0, u64::MAX));
        assert!(held.covers(a) && !held.covers(b));
        held.dropped(FlockFamily::Flock, 8);
        assert!(!held.covers(a));
    }
}
