//! The inodes whose attributes the kernel may be using: only these are worth a notification.

use nacre_types::{Fid, Instant, SeededHash};
use std::collections::HashSet;
use std::time::Duration;

/// Inodes whose attributes the kernel may have at a time; more get no validity.
const INODES_MAX: usize = 400_000;

/// The inodes whose attributes the kernel may be using, in two generations, the older of which is dropped as a whole.
pub(super) struct Inodes {
    recent: HashSet<Fid, SeededHash>,
    older: HashSet<Fid, SeededHash>,
    recent_until: Instant,
    older_until: Instant,
    /// When `recent` was begun.
    begun: Instant,
}
impl Inodes {
    /// No inodes. `hash`: with a seed of its own.
    pub(super) fn new(hash: SeededHash) -> Self {
        let none = || HashSet::with_hasher(hash);
        let (recent_until, older_until, begun) = Default::default();
        Self { recent: none(), older: none(), recent_until, older_until, begun }
    }
    /// False if there are too many.
    pub(super) fn add(&mut self, fid: Fid, now: Instant, until: Instant) -> bool {
        /// Of the same order as validities.
        const TURN: Duration = Duration::from_secs(5);
        if now - self.begun > TURN && self.older_until <= now {
            let none = HashSet::with_hasher(*self.recent.hasher());
            self.older = std::mem::replace(&mut self.recent, none);
            self.older_until = self.recent_until;
            self.begun = now;
        }
        if self.recent.len() + self.older.len() >= INODES_MAX {
            return false;
        }
        self.recent_until = self.recent_until.max(until);
        self.recent.insert(fid);
        true
    }
    /// Adds inodes that were removed and whose notifications may not be written yet.
    pub(super) fn add_again<'a>(&mut self, fids: impl Iterator<Item = &'a Fid>) {
        self.recent.extend(fids);
    }
    pub(super) fn remove(&mut self, fid: Fid) -> bool {
        // Both: an inode may be in each.
        self.recent.remove(&fid) | self.older.remove(&fid)
    }
    pub(super) fn take_all(&mut self) -> Vec<Fid> {
        let mut all: Vec<Fid> = self.recent.drain().chain(self.older.drain()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    fn fid(n: u32) -> Fid {
        Fid::new(Seq(0x100), Oid(n))
    }
    fn at(s: u64) -> Instant {
        Instant(s * 1_000_000_000)
    }

    #[test]
    fn inodes_are_remembered_as_long_as_their_attributes_are_valid() {
        let mut inodes = Inodes::new(SeededHash::new(1));
        assert!(inodes.add(fid(1), at(10), at(16)));
        assert!(inodes.add(fid(2), at(20), at(26)));
        assert!(inodes.remove(fid(1)), "the last validity of its generation has not ended");
        assert!(!inodes.remove(fid(1)));
        assert!(inodes.add(fid(3), at(24), at(30)));
        assert!(inodes.add(fid(4), at(27), at(33)));
        assert_eq!(inodes.take_all(), [fid(2), fid(3), fid(4)]);
        assert!(inodes.add(fid(5), at(40), at(46)));
        assert!(inodes.add(fid(6), at(50), at(56)));
        assert!(inodes.add(fid(7), at(60), at(66)));
        assert!(!inodes.remove(fid(5)), "it has run out and was dropped");
    }
}
