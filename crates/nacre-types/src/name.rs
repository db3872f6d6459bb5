//! Names of directory entries and their hash order.
//!
//! Format decision, visible for ever: the hash is SipHash-2-4 keyed per file system; a cookie is 59 bits of hash
//! followed by a 4-bit discriminator, the lowest free one at insert. Values 0..=2 are reserved, so cookies of
//! entries are in 3..2^63. A 17th name with the same 59 bits is refused.

use core::hash::Hasher;

/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link.
pub const SYMLINK_MAX: usize = 4095;
/// Longest name and value of an extended attribute, as in the kernel.
pub const XATTR_NAME_MAX: usize = 255;
pub const XATTR_VALUE_MAX: usize = 64 << 10;
/// Discriminators per hash.
pub const DISCRIMINATORS: u64 = 16;
/// Cookies of `.` and of `..`; 0 is before everything.
pub const COOKIE_DOT: u64 = 1;
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

/// Whether `name` may be a directory entry: 1..=255 bytes, no `/`, no NUL, not `.` or `..`.
pub fn is_valid(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|&b| b == b'/' || b == 0)
}
