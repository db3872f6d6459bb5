//! The parts of an inode that a lock can protect, and the modes of such locks.

use crate::{Codec, DecodeError, Reader, Writer, codec_enum};
use core::fmt;
use core::ops::{BitAnd, BitOr, BitOrAssign, Sub, SubAssign};

/// A set of the parts of an inode that a lock can protect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct InodeBits(u16);

impl InodeBits {
    /// The number of bits.
    pub const COUNT: usize = 10;
    /// No bit.
    pub const NONE: Self = Self(0);
    /// The names of the inode, and that it exists.
    pub const LOOKUP: Self = Self(1);
    /// Entries, size, link count and times of a directory; link count and times of any other inode. Not the access time.
    pub const UPDATE: Self = Self(2);
    /// Opens for reading without a request, and closes that are sent later: no client may remove the inode unnoticed.
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
    /// Bytes that were written to a regular file and that no OST has yet: the holder may keep them. Granted to the only
    /// writer of a file that no other client has open, or may open without a request. Whoever opens the file, or needs its
    /// size, conflicts with it.
    pub const WRITE_BACK: Self = Self(0x100);
    /// The access time. A bit of its own, so that a mount which learns of a read keeps the names of the directory, and its
    /// opens of the file.
    pub const ATIME: Self = Self(0x200);
    /// All bits.
    pub const ALL: Self = Self(0x3ff);

    const NAMES: [&str; Self::COUNT] =
        ["LOOKUP", "UPDATE", "OPEN", "LAYOUT", "PERM", "XATTR", "DOM", "SIZE", "WRITE_BACK", "ATIME"];

    /// The bits on which the attributes of stat(2) depend.
    pub const ATTRS: Self = Self(Self::UPDATE.0 | Self::PERM.0 | Self::SIZE.0 | Self::ATIME.0);

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
    /// The bits that a client may be granted, depending on whether another client has the inode open for writing. Without
    /// SIZE it could not use OPEN, but the writer would have to have it revoked before it may keep what it writes.
    pub const fn grantable(self, others_write: bool) -> Self {
        if others_write { Self(self.0 & !(Self::SIZE.0 | Self::OPEN.0)) } else { self }
    }
    /// The bits one by one.
    pub fn iter(self) -> impl Iterator<Item = Self> {
        self.indexes().map(|index| Self(1 << index))
    }
    /// Their numbers, from 0.
    pub fn indexes(self) -> impl Iterator<Item = usize> {
        (0..Self::COUNT).filter(move |index| self.0 & (1 << index) != 0)
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
    /// Modes of inode-bit locks, with the field's numbers.
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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn bits_have_the_names_and_numbers_of_the_field() {
        assert_eq!((InodeBits::LOOKUP | InodeBits::UPDATE).to_string(), "LOOKUP|UPDATE");
        assert_eq!(InodeBits::NONE.to_string(), "NONE");
        assert_eq!(InodeBits::ALL.iter().collect::<InodeBits>(), InodeBits::ALL);
        assert_eq!(
            InodeBits::ALL.to_string(),
            "LOOKUP|UPDATE|OPEN|LAYOUT|PERM|XATTR|DOM|SIZE|WRITE_BACK|ATIME"
        );
        assert_eq!(InodeBits::from_slice(&InodeBits::SIZE.to_vec()), Ok(InodeBits::SIZE));
        assert!(InodeBits::from_slice(&[0, 4]).is_err(), "an unknown bit");
    }

    #[test]
    fn size_is_not_granted_while_another_client_writes() {
        let wanted = InodeBits::SIZE | InodeBits::PERM;
        assert_eq!(wanted.grantable(true), InodeBits::PERM);
        assert_eq!(wanted.grantable(false), wanted);
    }
}
