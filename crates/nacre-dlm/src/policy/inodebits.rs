//! Inode-bit locks: the parts of an inode that a lock protects, its modes, and which locks conflict.
//!
//! Two locks on one inode conflict only in the bits that both have, and there only if one of them is EX. A change is a
//! point in time, not an interval: it takes no lock, but it conflicts with the locks of others like a request in EX. A
//! holder never conflicts with itself. The bits of a positive directory entry are those of its child (LOOKUP); a negative
//! entry, a listing and the attributes of a directory are valid under UPDATE of the directory. SIZE is not one of Lustre's.
//!
//! Not here: who holds what (`server/inode_locks.rs`, `client/inode_locks.rs`), and which operation changes which bits
//! (`nacre-mdt`).

use core::fmt;
use core::ops::{BitAnd, BitOr, BitOrAssign, Sub, SubAssign};
use nacre_types::{Codec, DecodeError, Reader, Writer, codec_enum};

/// A set of the parts of an inode that a lock can protect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct InodeBits(u16);

/// The number of bits.
const COUNT: usize = 8;

impl InodeBits {
    /// No bit.
    pub const NONE: Self = Self(0);
    /// The names of the inode, and that it exists.
    pub const LOOKUP: Self = Self(1);
    /// Entries, size, link count and times of a directory; link count and times of any other inode.
    pub const UPDATE: Self = Self(2);
    /// Opens for reading without a request: nobody may remove the inode unseen.
    pub const OPEN: Self = Self(4);
    /// The layout.
    pub const LAYOUT: Self = Self(8);
    /// Mode, owner, group and ACLs.
    pub const PERM: Self = Self(0x10);
    /// Extended attributes other than ACLs.
    pub const XATTR: Self = Self(0x20);
    /// Data that is stored at the MDT.
    pub const DOM: Self = Self(0x40);
    /// Size, blocks and mtime of a regular file. Granted only while no other client has the file open for writing; an open
    /// for writing conflicts with it.
    pub const SIZE: Self = Self(0x80);
    /// All bits.
    pub const ALL: Self = Self(0xff);

    const NAMES: [&str; COUNT] = ["LOOKUP", "UPDATE", "OPEN", "LAYOUT", "PERM", "XATTR", "DOM", "SIZE"];

    /// The set with this number, unless it has unknown bits.
    pub const fn from_number(number: u16) -> Option<Self> {
        if number & !Self::ALL.0 == 0 { Some(Self(number)) } else { None }
    }
    /// The number of the set on the wire.
    pub const fn number(self) -> u16 {
        self.0
    }
    /// Whether there is no bit.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Whether all bits of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
    /// Whether the sets have a bit in common.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// The bits of both sets together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// The bits that a client may be granted, depending on whether another client has the inode open for writing.
    pub const fn grantable(self, others_write: bool) -> Self {
        if others_write { Self(self.0 & !Self::SIZE.0) } else { self }
    }
    /// The bits one by one.
    pub fn iter(self) -> impl Iterator<Item = Self> {
        self.indexes().map(|index| Self(1 << index))
    }
    fn indexes(self) -> impl Iterator<Item = usize> {
        (0..COUNT).filter(move |index| self.0 & (1 << index) != 0)
    }
}

impl BitOr for InodeBits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        self.with(other)
    }
}
impl BitOrAssign for InodeBits {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.with(other);
    }
}
impl BitAnd for InodeBits {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}
impl Sub for InodeBits {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}
impl SubAssign for InodeBits {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}
impl FromIterator<InodeBits> for InodeBits {
    fn from_iter<I: IntoIterator<Item = InodeBits>>(sets: I) -> Self {
        sets.into_iter().fold(Self::NONE, Self::with)
    }
}
/// `LOOKUP|UPDATE`, or `NONE`.
impl fmt::Display for InodeBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("NONE");
        }
        for (nth, index) in self.indexes().enumerate() {
            let separator = if nth > 0 { "|" } else { "" };
            write!(f, "{separator}{}", Self::NAMES[index])?;
        }
        Ok(())
    }
}
impl fmt::Debug for InodeBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl<'a> Codec<'a> for InodeBits {
    fn encode(&self, w: &mut Writer) {
        self.0.encode(w);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let number = u16::decode(r)?;
        let unknown = DecodeError::BadValue { what: "InodeBits", value: u64::from(number) };
        Self::from_number(number).ok_or(unknown)
    }
}

codec_enum! {
    /// Modes of inode-bit locks, with the numbers of [`super::Mode`].
    pub enum InodeMode: u8 {
        /// The bits may be cached: the holder is asked before they change.
        Pr = 3,
        /// The holder alone may cache and change the bits. Servers grant Pr only so far.
        Ex = 5,
    }
}

impl InodeMode {
    /// Whether two holders may have the same bit in these modes.
    pub const fn is_compatible(self, other: Self) -> bool {
        matches!((self, other), (Self::Pr, Self::Pr))
    }
}

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
pub(crate) struct BitCounts([u32; COUNT]);

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
        InodeBits::ALL
            .indexes()
            .filter(|index| self.0[*index] > count)
            .map(|index| InodeBits(1 << index))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn bits_have_the_names_and_numbers_of_the_field() {
        assert_eq!((InodeBits::LOOKUP | InodeBits::UPDATE).to_string(), "LOOKUP|UPDATE");
        assert_eq!(InodeBits::NONE.to_string(), "NONE");
        assert_eq!(InodeBits::ALL.iter().collect::<InodeBits>(), InodeBits::ALL);
        assert_eq!(InodeBits::ALL.to_string(), "LOOKUP|UPDATE|OPEN|LAYOUT|PERM|XATTR|DOM|SIZE");
        assert_eq!(InodeBits::from_slice(&InodeBits::SIZE.to_vec()), Ok(InodeBits::SIZE));
        assert!(InodeBits::from_slice(&[0, 1]).is_err(), "an unknown bit");
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

    #[test]
    fn size_is_not_granted_while_another_client_writes() {
        let wanted = InodeBits::SIZE | InodeBits::PERM;
        assert_eq!(wanted.grantable(true), InodeBits::PERM);
        assert_eq!(wanted.grantable(false), wanted);
    }
}
