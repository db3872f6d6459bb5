//! Attributes without a validity that the kernel may take over late.
//!
//! The kernel takes over the reply to a GETATTR on the thread of the caller, unless it has taken over a later one, or was
//! notified, since it sent the request. So a thread that asks for the size (lseek to the end, a read at the end) may get the
//! right one, which the kernel then ignores because the older reply of another thread has just been taken over, and goes on
//! with the older size. Whoever has just got a file lock must not: a record written at the old end would overwrite that of the
//! last holder. So the files whose attributes were given without a validity are remembered for a while, and a notification
//! before the reply to a lock makes the kernel ignore what it asked for before (`handlers/locks.rs`). Attributes with a
//! validity need nothing: the kernel is notified before they change. Without one they need nothing either while this mount has
//! the lock of the inode, which it gives up before another mount changes them.

use nacre_types::{Fid, Instant};
use std::collections::BTreeMap;
use std::time::Duration;

/// A thread in the kernel is not kept from running for longer.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Files that are remembered; beyond it every file counts as one of them for a while.
const FILES_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct LateAttributes {
    given: BTreeMap<Fid, Given>,
    /// Others were given then.
    others: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Given {
    at: Instant,
    /// Under the lock of the inode, which is still held.
    is_covered: bool,
}

impl LateAttributes {
    /// Attributes are given without a validity.
    pub(crate) fn note(&mut self, fid: Fid, is_covered: bool, now: Instant) {
        if self.given.len() >= FILES_MAX {
            self.given.retain(|_, given| now - given.at < AGE_MAX);
        }
        let has_room = self.given.len() < FILES_MAX;
        match self.given.get_mut(&fid) {
            // Those of before may still come.
            Some(given) if !given.is_covered && is_covered && now - given.at < AGE_MAX => {}
            Some(given) => *given = Given { at: now, is_covered },
            None if has_room => drop(self.given.insert(fid, Given { at: now, is_covered })),
            None => self.others = Some(now),
        }
    }
    /// The lock of an inode is given up.
    pub(crate) fn uncover(&mut self, fid: Fid) {
        if let Some(given) = self.given.get_mut(&fid) {
            given.is_covered = false;
        }
    }
    /// All locks have ended.
    pub(crate) fn uncover_all(&mut self) {
        self.given.values_mut().for_each(|given| given.is_covered = false);
    }
    /// Whether the kernel may still take over attributes that another mount has changed since.
    pub(crate) fn may_come(&self, fid: Fid, now: Instant) -> bool {
        let is_late = |at: Instant| now - at < AGE_MAX;
        self.given.get(&fid).is_some_and(|given| !given.is_covered && is_late(given.at))
            || self.others.is_some_and(is_late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::default() + Duration::from_millis(ms)
    }

    #[test]
    fn attributes_count_as_late_for_a_while_unless_a_lock_covers_them() {
        let (file, other) = (Fid::from_ino(7), Fid::from_ino(8));
        let mut late = LateAttributes::default();
        late.note(file, false, at(10));
        assert!(late.may_come(file, at(1009)) && !late.may_come(other, at(10)));
        assert!(!late.may_come(file, at(1010)));
        late.note(file, true, at(2000));
        assert!(!late.may_come(file, at(2001)));
        late.uncover(file);
        assert!(late.may_come(file, at(2999)) && !late.may_come(file, at(3000)));
        late.note(other, true, at(4000));
        late.uncover_all();
        assert!(late.may_come(other, at(4001)));
        late.note(other, true, at(4002));
        assert!(late.may_come(other, at(4003)), "those of before");
    }

    #[test]
    fn too_many_files_count_as_all() {
        let mut late = LateAttributes::default();
        for ino in 0..FILES_MAX as u64 + 1 {
            late.note(Fid::from_ino(ino), false, at(2000));
        }
        assert_eq!(late.given.len(), FILES_MAX);
        assert!(
            late.may_come(Fid::from_ino(1 << 40), at(2999)) && !late.may_come(Fid::from_ino(3), at(3000))
        );
    }
}
