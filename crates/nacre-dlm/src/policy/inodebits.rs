//! Inode-bit locks: the parts of an inode that a lock protects, its modes, and which locks conflict.
//!
//! Two locks on one inode conflict only in the bits that both have, and there only if one of them is EX. A change is a
//! point in time, not an interval: it takes no lock, but it conflicts with the locks of others like a request in EX. A
//! holder never conflicts with itself, except that a client returns OPEN before its own change removes the last name of an
//! inode (`nacre-mdt`). The bits of a positive directory entry are those of its child (LOOKUP); a negative
//! entry, a listing and the attributes of a directory are valid under UPDATE of the directory. Lustre has no SIZE bit.
//!
//! Not here: who holds what (`server/inode_locks.rs`, `client/inode_locks.rs`), and which operation changes which bits
//! (`nacre-mdt`).

use nacre_types::{InodeBits, InodeMode};

/// The bits of one holder on one inode. Each bit has one mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeldBits {
    pr: InodeBits,
    ex: InodeBits,
}

impl HeldBits {
    /// The bits in either mode.
    pub fn all(self) -> InodeBits {
        self.pr | self.ex
    }
    /// Whether no bit is held.
    pub fn is_empty(self) -> bool {
        self.all().is_empty()
    }
    /// The bits that permit what `mode` permits: EX includes PR.
    pub fn covering(self, mode: InodeMode) -> InodeBits {
        match mode {
            InodeMode::Pr => self.all(),
            InodeMode::Ex => self.ex,
        }
    }
    /// The bits that conflict with a request of another holder in `mode`.
    pub fn conflicting(self, mode: InodeMode) -> InodeBits {
        match mode {
            InodeMode::Pr => self.ex,
            InodeMode::Ex => self.all(),
        }
    }
    /// Adds bits in a mode. A bit that is held in EX stays in EX.
    pub fn grant(&mut self, mode: InodeMode, bits: InodeBits) {
        match mode {
            InodeMode::Pr => self.pr |= bits - self.ex,
            InodeMode::Ex => {
                self.ex |= bits;
                self.pr -= bits;
            }
        }
    }
    /// Drops bits in either mode.
    pub fn drop_bits(&mut self, bits: InodeBits) {
        self.pr -= bits;
        self.ex -= bits;
    }
    /// Converts bits from EX to PR.
    pub fn convert_to_pr(&mut self, bits: InodeBits) {
        let converted = self.ex & bits;
        self.ex -= converted;
        self.pr |= converted;
    }
}

/// A count for each bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BitCounts([u32; InodeBits::COUNT]);

impl BitCounts {
    pub(crate) fn add(&mut self, bits: InodeBits) {
        bits.indexes().for_each(|index| self.0[index] += 1);
    }
    /// # Panics
    /// If a count would become negative.
    pub(crate) fn remove(&mut self, bits: InodeBits) {
        for index in bits.indexes() {
            self.0[index] =
                self.0[index].checked_sub(1).expect("bits are removed once for each time they were added");
        }
    }
    /// The bits whose count is above `count`.
    pub(crate) fn above(&self, count: u32) -> InodeBits {
        InodeBits::ALL.iter().zip(self.0).filter(|(_, held)| *held > count).map(|(bit, _)| bit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_compatible_like_those_of_every_lock() {
        for mode in InodeMode::ALL {
            let same = super::super::Mode::from_number(mode.number()).expect("a mode of every lock");
            for other in InodeMode::ALL {
                let other_same =
                    super::super::Mode::from_number(other.number()).expect("a mode of every lock");
                assert_eq!(mode.is_compatible(*other), same.is_compatible(other_same));
            }
        }
    }

    #[test]
    fn each_bit_has_one_mode_and_converts_without_a_gap() {
        let mut held = HeldBits::default();
        let (update, perm) = (InodeBits::UPDATE, InodeBits::PERM);
        held.grant(InodeMode::Pr, update | perm);
        assert_eq!(held.conflicting(InodeMode::Pr), InodeBits::NONE);
        held.grant(InodeMode::Ex, update);
        held.grant(InodeMode::Pr, update);
        assert_eq!(held.conflicting(InodeMode::Pr), update, "EX includes PR");
        assert_eq!((held.covering(InodeMode::Pr), held.covering(InodeMode::Ex)), (update | perm, update));
        held.convert_to_pr(InodeBits::ALL);
        assert_eq!(
            (held.covering(InodeMode::Pr), held.covering(InodeMode::Ex)),
            (update | perm, InodeBits::NONE)
        );
        held.drop_bits(perm);
        assert_eq!(held.all(), update);
    }
}
