//! Names of directory entries and their hash order.
//!
//! Format decision, permanent: the hash is SipHash-2-4 keyed per file system; a cookie is 59 bits of hash followed by a
//! 4-bit discriminator, the lowest free one at insert. Values 0..=2 are reserved, so cookies of entries are in 3..2^63.
//! A 17th name with the same 59 bits is refused.

use crate::{Codec, DecodeError, Errno, Reader, Writer};
use bytes::Bytes;
use core::fmt;
use core::hash::Hasher;

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link.
pub const SYMLINK_MAX: usize = 4095;
/// Longest name and value of an extended attribute, as in the kernel.
pub const XATTR_NAME_MAX: usize = 255;
/// The extended attribute with the capabilities of a program file, which a write or a chown removes.
pub const CAPABILITY: &[u8] = b"security.capability";
/// Longest value of an extended attribute, as in the kernel.
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// Discriminators per hash.
pub const DISCRIMINATORS: u64 = 16;
/// Cookies of `.` and of `..`; 0 is before everything.
pub const COOKIE_DOT: u64 = 1;
/// Cookie of `..`, the last one before the names.
pub const COOKIE_DOTDOT: u64 = 2;

/// Key of the name hash of one file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub u64, pub u64);

/// Lowest cookie of `name`: hash with discriminator 0. The entry is at one of the next [`DISCRIMINATORS`].
pub fn cookie_base(key: HashKey, name: &[u8]) -> u64 {
    let mut h = siphasher::sip::SipHasher24::new_with_keys(key.0, key.1);
    h.write(name);
    let base = (h.finish() >> 5) << 4;
    if base < DISCRIMINATORS { DISCRIMINATORS } else { base }
}

/// The name of a directory entry, checked: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
///
/// Messages carry names of this type, so that a name is checked once: by its sender when the message is made, and by
/// its receiver when the message is decoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// # Errors
    /// `ENAMETOOLONG`, `ENOENT` for an empty name, `EINVAL` for other bytes that cannot be a name.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Errno> {
        match bytes {
            _ if bytes.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
            [] => Err(Errno::ENOENT),
            b"." | b".." => Err(Errno::EINVAL),
            _ if bytes.iter().any(|&b| b == b'/' || b == 0) => Err(Errno::EINVAL),
            _ => Ok(Self(bytes)),
        }
    }
    /// The bytes of the name.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
    /// A copy of the name that can be kept in a row or a reply.
    pub fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.0)
    }
}
impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
impl<'a> Codec<'a> for Name<'a> {
    fn encode(&self, w: &mut Writer) {
        w.bytes(self.0);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = r.bytes()?;
        Self::new(bytes)
            .map_err(|_| DecodeError::BadName { bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn names_have_their_limits() {
        let long = [b'x'; NAME_MAX + 1];
        let is = |bytes: &[u8]| Name::new(bytes).map(drop);
        assert_eq!((is(&long[1..]), is(&long)), (Ok(()), Err(Errno::ENAMETOOLONG)));
        assert_eq!(is(b""), Err(Errno::ENOENT));
        for bad in [&b"."[..], b"..", b"a/b", b"a\0"] {
            assert_eq!(is(bad), Err(Errno::EINVAL));
            let mut message = Vec::from((bad.len() as u32).to_le_bytes());
            message.extend_from_slice(bad);
            assert_eq!(Name::from_slice(&message), Err(DecodeError::BadName { bytes: bad.len() as u32 }));
        }
        let odd = Name::new(b"\xff\x01 any bytes \n").unwrap();
        assert_eq!(Name::from_slice(&odd.to_vec()), Ok(odd));
    }
}
