//! Identity of a target, and the check that it still has every change that it has called durable.
//!
//! The uuid (made by mkfs) distinguishes a target from others, its incarnations distinguish it from an older or
//! diverged copy: each opening of the store adds an incarnation to a list, which is durable before any client is
//! served. Each user of a target remembers its uuid, its latest incarnation and the highest change that the target
//! reported as durable. A target proves itself with a history that contains the remembered incarnation and has not
//! ended it below the remembered change. Changes that were acknowledged but not durable do not count: a target may lose
//! them. Not here: the comparison at connect and registration (`nacre-target`, `nacre-mgs`). Specification:
//! docs/targets.md.

use crate::{ClientUuid, Transno, codec_struct};
use alloc::vec::Vec;
use core::fmt;

codec_struct! {
    /// One opening of a target's store.
    #[derive(Copy, Default)]
    pub struct Incarnation {
        /// Counts the openings, from 1; 0: none.
        pub number: u64,
        /// Random: two copies of one store that were both opened differ in it.
        pub id: u64,
        /// The latest change in the log when the store was opened: the end of the incarnation before.
        pub began: Transno,
    }
}
codec_struct! {
    /// A target's own statement of its identity.
    pub struct Identity {
        /// Random, made when the store is formatted.
        pub uuid: ClientUuid,
        /// The latest [`Identity::INCARNATIONS_MAX`], oldest first; the last one is open now.
        pub incarnations: Vec<Incarnation>,
    }
}
codec_struct! {
    /// The memory that a user has of a target. It may be older than the truth, never newer.
    #[derive(Copy)]
    pub struct Remembered {
        /// The target's [`Identity::uuid`].
        pub uuid: ClientUuid,
        /// The latest one that the user has seen.
        pub incarnation: Incarnation,
        /// The highest change that the target has called durable.
        pub committed: Transno,
    }
}

/// The reason why a target is not the remembered one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// Another target with the same name.
    Other { remembered: ClientUuid, found: ClientUuid },
    /// The remembered incarnation is not in its history: an older copy, or a copy that was opened beside the original.
    Unknown { remembered: Incarnation, latest: Incarnation },
    /// The remembered incarnation ended below a change that was durable.
    Behind { committed: Transno, ended: Transno },
}
impl Mismatch {
    /// Whether it is a different target, and no copy of the remembered one.
    pub fn is_other(self) -> bool {
        matches!(self, Self::Other { .. })
    }
}
impl fmt::Display for Mismatch {
    /// The predicate of a sentence about the target that was found.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other { remembered, found } => {
                write!(f, "is another target: its uuid is {found}, the registered one has {remembered}")
            }
            Self::Unknown { remembered, latest } => write!(
                f,
                "has gone back: opening {} of its store is not in its history (it has {} openings). It is an old or \
                 diverged copy",
                remembered.number, latest.number
            ),
            Self::Behind { committed, ended } => write!(
                f,
                "has gone back: it has changes up to {ended}, and had said that {committed} was durable. It is an old \
                 copy, or its store has lost what was synced"
            ),
        }
    }
}

impl Identity {
    /// Number of openings that the list keeps. Of older ones only the number is compared.
    pub const INCARNATIONS_MAX: usize = 128;

    /// The current opening; none before the first.
    pub fn latest(&self) -> Incarnation {
        self.incarnations.last().copied().unwrap_or_default()
    }

    /// The memory that users of this target are to keep.
    pub fn remember(&self, committed: Transno) -> Remembered {
        Remembered { uuid: self.uuid, incarnation: self.latest(), committed }
    }

    /// Checks that this is the remembered target, with every change that was durable then.
    ///
    /// # Errors
    /// The mismatch, with a text for people.
    pub fn check(&self, remembered: &Remembered) -> Result<(), Mismatch> {
        if self.uuid != remembered.uuid {
            return Err(Mismatch::Other { remembered: remembered.uuid, found: self.uuid });
        }
        let Remembered { incarnation, committed, .. } = *remembered;
        let unknown = Mismatch::Unknown { remembered: incarnation, latest: self.latest() };
        let next = match self.incarnations.iter().position(|i| i.number == incarnation.number) {
            Some(at) if self.incarnations[at].id != incarnation.id => return Err(unknown),
            Some(at) => self.incarnations.get(at + 1),
            // The entry was dropped because it is old: the oldest entry in the list is later.
            None => match self.incarnations.first() {
                Some(first) if first.number > incarnation.number => Some(first),
                _ => return Err(unknown),
            },
        };
        match next {
            Some(next) if next.began < committed => Err(Mismatch::Behind { committed, ended: next.began }),
            _ => Ok(()),
        }
    }

    /// Adds the current opening to the list.
    pub fn open(&mut self, id: u64, began: Transno) {
        let number = self.latest().number + 1;
        if self.incarnations.len() >= Self::INCARNATIONS_MAX {
            self.incarnations.remove(0);
        }
        self.incarnations.push(Incarnation { number, id, began });
    }
}

impl Remembered {
    /// Merges another user's memory of the same target. If the two contradict each other, this one is kept.
    pub fn learn(&mut self, other: &Remembered) {
        if self.uuid != other.uuid {
            return;
        }
        if other.incarnation.number > self.incarnation.number {
            if other.incarnation.began < self.committed {
                return; // of a copy that lacks what was durable; it may be all that the other one has met
            }
            self.incarnation = other.incarnation;
        } else if other.incarnation.number == self.incarnation.number && other.incarnation != self.incarnation
        {
            return;
        }
        self.committed = self.committed.max(other.committed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uuid: u8, begins: &[(u64, u64)]) -> Identity {
        let mut identity = Identity { uuid: ClientUuid([uuid; 16]), incarnations: Vec::new() };
        begins.iter().for_each(|&(id, began)| identity.open(id, Transno(began)));
        identity
    }

    #[test]
    fn a_target_that_went_on_is_itself_and_others_and_old_copies_are_not() {
        let t = target(1, &[(11, 0), (12, 100)]);
        let remembered = t.remember(Transno(150));
        assert_eq!(t.check(&remembered), Ok(()));
        // After a kill it may have lost what was acknowledged, never what was durable.
        assert_eq!(target(1, &[(11, 0), (12, 100), (13, 150)]).check(&remembered), Ok(()));
        let behind = target(1, &[(11, 0), (12, 100), (13, 149)]).check(&remembered);
        assert_eq!(behind, Err(Mismatch::Behind { committed: Transno(150), ended: Transno(149) }));
        // A copy of before the second opening, opened itself: its history has another one in that place.
        assert!(matches!(target(1, &[(11, 0), (99, 100)]).check(&remembered), Err(Mismatch::Unknown { .. })));
        assert!(matches!(target(1, &[(11, 0)]).check(&remembered), Err(Mismatch::Unknown { .. })));
        let blank = target(2, &[(21, 0)]).check(&remembered).unwrap_err();
        assert!(blank.is_other() && alloc::format!("{blank}").contains("another target"), "{blank}");
    }

    #[test]
    fn the_history_is_bounded_and_still_tells_who_has_gone_back() {
        let mut t = target(1, &[(11, 0)]);
        let early = t.remember(Transno(7));
        (0..300).for_each(|n| t.open(1000 + n, Transno(10 + n)));
        assert_eq!(t.incarnations.len(), Identity::INCARNATIONS_MAX);
        assert_eq!((t.latest().number, t.check(&early)), (301, Ok(())));
        let ahead = Remembered { committed: Transno(10_000), ..early };
        assert!(matches!(t.check(&ahead), Err(Mismatch::Behind { .. })));
        let future =
            Remembered { incarnation: Incarnation { number: 302, id: 1, began: Transno(1) }, ..early };
        assert!(matches!(t.check(&future), Err(Mismatch::Unknown { .. })));
    }

    #[test]
    fn memories_are_put_together() {
        let t = target(1, &[(11, 0), (12, 100)]);
        let mut mine = target(1, &[(11, 0)]).remember(Transno(90));
        mine.learn(&t.remember(Transno(120)));
        assert_eq!(mine, t.remember(Transno(120)));
        mine.learn(&target(1, &[(11, 0)]).remember(Transno(95)));
        mine.learn(&target(2, &[(1, 0), (2, 0), (3, 900)]).remember(Transno(999)));
        mine.learn(&target(1, &[(11, 0), (55, 100)]).remember(Transno(500)));
        mine.learn(&target(1, &[(11, 0), (12, 100), (13, 119)]).remember(Transno(500)));
        assert_eq!(mine, t.remember(Transno(120)), "older, another target's, and of copies");
    }
}
