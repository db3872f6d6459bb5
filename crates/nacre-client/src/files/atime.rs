//! Access times: when a read changes one, and how the MDT learns of it.
//!
//! A read costs no request: the new time is kept with the file and travels with the next close of one of its handles. Until
//! that close has its reply this mount shows the pending time itself, so that a program sees the effect of its own reads.
//! The MDT revokes the lock bit ATIME of other mounts when it records a new time, without waiting for them: they see it soon
//! after the close. A time that was pending when the mount died is lost. Directories are accessed by listings. Not here:
//! symbolic links, whose access times never change.

use core::cell::Cell;
use core::time::Duration;
use nacre_types::{Attr, Timestamp};

/// When an access changes the access time: the mount options of the same names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Atime {
    /// `noatime`.
    Never,
    /// When the access time is not later than the last change of the file, or is a day old.
    #[default]
    Relative,
    /// `strictatime`.
    Always,
}

impl Atime {
    /// The mount option, which parameters show, too.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Never => "noatime",
            Self::Relative => "relatime",
            Self::Always => "strictatime",
        }
    }
    /// The reverse of [`Atime::word`].
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Never, Self::Relative, Self::Always].into_iter().find(|atime| atime.word() == word)
    }
}

/// When reads through a mount change access times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AtimePolicy {
    /// Reads of files.
    pub files: Atime,
    /// Listings of directories.
    pub directories: Atime,
}

/// With `relatime`, a time that is older than this is always renewed.
const RENEWED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The access time of one file in use.
#[derive(Debug, Default)]
pub(crate) struct Accessed {
    /// The access time in the latest attributes from the MDT.
    atime: Cell<Timestamp>,
    /// The latest change of the file's bytes or attributes that this mount has seen.
    changed: Cell<Timestamp>,
    /// An access that the MDT has not recorded.
    pending: Cell<Option<Timestamp>>,
}

impl Accessed {
    /// Records attributes from the MDT.
    pub(crate) fn learn(&self, attr: &Attr) {
        self.atime.set(attr.atime);
        self.changed(attr.mtime.max(attr.ctime));
    }
    /// The file was written.
    pub(crate) fn changed(&self, at: Timestamp) {
        self.changed.set(self.changed.get().max(at));
    }
    pub(crate) fn pending(&self) -> Option<Timestamp> {
        self.pending.get()
    }
    /// The MDT has recorded `atime`.
    pub(crate) fn recorded(&self, atime: Timestamp) {
        self.atime.set(self.atime.get().max(atime));
        if self.pending.get() == Some(atime) {
            self.pending.set(None);
        }
    }
    /// The access time was set explicitly.
    pub(crate) fn forget(&self) {
        self.pending.set(None);
    }
    /// The bytes of the file, or the names of the directory, were read at `now`.
    pub(crate) fn note_read(&self, policy: Atime, now: Timestamp) {
        if self.is_due(policy, now) {
            self.pending.set(Some(now));
        }
    }
    /// Whether a read at `now` changes the access time.
    pub(crate) fn is_due(&self, atime: Atime, now: Timestamp) -> bool {
        let last = self.pending.get().unwrap_or_default().max(self.atime.get());
        match atime {
            Atime::Never => false,
            Atime::Always => last < now,
            Atime::Relative => last <= self.changed.get() || last + RENEWED_AFTER <= now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sec: i64) -> Timestamp {
        Timestamp { sec, nsec: 0 }
    }
    fn accessed(atime: i64, changed: i64) -> Accessed {
        let accessed = Accessed::default();
        accessed.atime.set(at(atime));
        accessed.changed(at(changed));
        accessed
    }

    #[test]
    fn relatime_renews_after_a_change_and_once_a_day() {
        const DAY: i64 = 24 * 3600;
        assert!(accessed(5, 5).is_due(Atime::Relative, at(6)), "a new file");
        let after = accessed(6, 5);
        assert!(!after.is_due(Atime::Relative, at(7)));
        assert!(after.is_due(Atime::Relative, at(6 + DAY)));
        assert!(after.is_due(Atime::Always, at(7)) && !after.is_due(Atime::Never, at(7 + DAY)));
        after.changed(at(8));
        assert!(after.is_due(Atime::Relative, at(9)));
        after.pending.set(Some(at(9)));
        assert!(!after.is_due(Atime::Relative, at(10)), "what is pending counts");
    }

    #[test]
    fn a_later_access_stays_pending_when_an_earlier_one_is_recorded() {
        let accessed = accessed(0, 0);
        accessed.pending.set(Some(at(9)));
        accessed.recorded(at(8));
        assert_eq!(accessed.pending(), Some(at(9)));
        accessed.recorded(at(9));
        assert_eq!((accessed.pending(), accessed.atime.get()), (None, at(9)));
    }
}
