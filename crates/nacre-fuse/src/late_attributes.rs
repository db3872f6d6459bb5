//! Attributes without a validity that the kernel may take over late.
//!
//! The kernel takes over the reply to a GETATTR on the thread of the caller, unless it has taken over a later one, or was
//! notified, since it sent the request. So a thread that asks for the size (lseek to the end, a read at the end) may get the
//! right one, which the kernel then ignores because the older reply of another thread has just been taken over, and goes on
//! with the older size. Whoever has just got a file lock must not: a record written at the old end would overwrite that of the
//! last holder. So the files whose attributes were given without a validity are remembered for a while, and a notification
//! before the reply to a lock makes the kernel ignore what it asked for before (`handlers/locks.rs`). Attributes with a
//! validity need nothing: the kernel is notified before they change. Without one they need nothing either while this mount has
//! the lock of the inode; when it gives the lock up they count as given at that time.

use nacre_types::{Fid, Instant};
use std::collections::BTreeMap;
use std::time::Duration;

/// A thread in the kernel is not kept from running for longer.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Files that are remembered; beyond it every file counts as one of them for a while.
const FILES_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct LateAttributes {
    given: BTreeMap<Fid, Instant>,
    /// Others were given then.
    others: Option<Instant>,
    /// Old ones were removed then.
    trimmed: Instant,
}

impl LateAttributes {
    /// Attributes without a validity are given and no lock of the inode covers them, or the lock that has covered them is given
    /// up.
    pub(crate) fn note(&mut self, fid: Fid, now: Instant) {
        if self.given.len() >= FILES_MAX && now - self.trimmed >= AGE_MAX / 4 {
            self.trimmed = now;
            self.given.retain(|_, at| now - *at < AGE_MAX);
        }
        if self.given.len() < FILES_MAX || self.given.contains_key(&fid) {
            self.given.insert(fid, now);
        } else {
            self.others = Some(now);
        }
    }
    /// All locks have ended.
    pub(crate) fn note_all(&mut self, now: Instant) {
        self.others = Some(now);
    }
    /// Whether the kernel may still take over attributes that another mount has changed since.
    pub(crate) fn may_come(&self, fid: Fid, now: Instant) -> bool {
        let is_late = |at: Instant| now - at < AGE_MAX;
        self.given.get(&fid).copied().is_some_and(is_late) || self.others.is_some_and(is_late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::default() + Duration::from_millis(ms)
    }

    #[test]
    fn attributes_count_as_late_for_a_while() {
        let (file, other) = (Fid::from_ino(7), Fid::from_ino(8));
        let mut late = LateAttributes::default();
        late.note(file, at(10));
        assert!(late.may_come(file, at(1009)) && !late.may_come(other, at(10)));
        assert!(!late.may_come(file, at(1010)));
        late.note_all(at(2000));
        assert!(late.may_come(other, at(2999)) && !late.may_come(other, at(3000)));
    }

    #[test]
    fn too_many_files_count_as_all() {
        let mut late = LateAttributes::default();
        for ino in 0..FILES_MAX as u64 + 1 {
            late.note(Fid::from_ino(ino), at(2000));
        }
        assert_eq!(late.given.len(), FILES_MAX);
        assert!(
            late.may_come(Fid::from_ino(1 << 40), at(2999)) && !late.may_come(Fid::from_ino(3), at(3000))
        );
        late.note(Fid::from_ino(1 << 40), at(3000));
        assert_eq!(late.given.len(), 1, "old ones are removed");
    }
}
