//! The parts of an inode that one lock can cover.

use crate::{Codec, DecodeError, Reader, Writer};
use core::fmt;
use core::ops::{BitAnd, BitOr, BitOrAssign, Sub};

/// A set of inode bits: the parts of an inode that a lock covers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct InodeBits(u8);

impl InodeBits {
    /// No part.
    pub const NONE: Self = Self(0);
    /// Its names, and that it exists: a name that was found leads to this inode.
    pub const LOOKUP: Self = Self(1);
    /// Link count, times and allocated space; of a directory its entries, so that a name that was not found is free.
    pub const UPDATE: Self = Self(2);
    /// An open of it.
    pub const OPEN: Self = Self(4);
    /// The layout of a file.
    pub const LAYOUT: Self = Self(8);
    /// Type, permission bits, owners and access control lists.
    pub const PERM: Self = Self(0x10);
    /// Extended attributes, apart from access control lists.
    pub const XATTR: Self = Self(0x20);
    /// File data that the MDT stores.
    pub const DOM: Self = Self(0x40);
    /// Size and modification time of a regular file: no other client has it open for writing.
    pub const SIZE: Self = Self(0x80);
    /// Every part.
    pub const ALL: Self = Self(0xff);
    /// What the attributes of stat(2) depend on.
    pub const ATTRS: Self = Self(Self::UPDATE.0 | Self::PERM.0 | Self::SIZE.0);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::LOOKUP, "LOOKUP"),
        (Self::UPDATE, "UPDATE"),
        (Self::OPEN, "OPEN"),
        (Self::LAYOUT, "LAYOUT"),
        (Self::PERM, "PERM"),
        (Self::XATTR, "XATTR"),
        (Self::DOM, "DOM"),
        (Self::SIZE, "SIZE"),
    ];

    /// Whether it has every bit of `bits`.
    pub fn contains(self, bits: Self) -> bool {
        self & bits == bits
    }
    /// Whether it has a bit of `bits`.
    pub fn intersects(self, bits: Self) -> bool {
        !(self & bits).is_empty()
    }
    /// Whether it has no bit.
    pub fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

impl BitOr for InodeBits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
impl BitOrAssign for InodeBits {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}
impl BitAnd for InodeBits {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}
/// The bits that `other` does not have.
impl Sub for InodeBits {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}
impl fmt::Display for InodeBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Self::NAMES.iter().filter(|(bit, _)| self.contains(*bit)).map(|(_, name)| *name);
        f.write_str(names.next().unwrap_or("NONE"))?;
        names.try_for_each(|name| write!(f, "|{name}"))
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
        Ok(Self(u8::decode(r)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn bits_print_with_the_names_of_the_field() {
        assert_eq!((InodeBits::LOOKUP | InodeBits::PERM).to_string(), "LOOKUP|PERM");
        assert_eq!(InodeBits::NONE.to_string(), "NONE");
        assert_eq!((InodeBits::ALL - InodeBits::ATTRS).to_string(), "LOOKUP|OPEN|LAYOUT|XATTR|DOM");
    }
}
