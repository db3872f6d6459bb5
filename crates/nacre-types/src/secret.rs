//! A secret of 128 bits that proves the identity of a client to a target, or of a target to the MGS.
//!
//! Invariants: it is compared in constant time, and `Debug` never prints it. It is sent in the clear: it protects from
//! a peer that can reach a server, not from one that can read the network.

use crate::{Codec, DecodeError, Reader, Writer};
use core::fmt;
use core::hash::Hasher;
use core::hint::black_box;

/// See the module.
#[derive(Clone, Copy, Default)]
pub struct Secret([u8; 16]);

impl Secret {
    /// The bytes must come from the random source of the process.
    pub fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Derives another secret for `purpose`, which only a holder of this one can compute.
    pub fn derive(self, purpose: &[u8]) -> Self {
        let halves = [0u8, 1].map(|half| {
            let mut hasher = siphasher::sip::SipHasher24::new_with_key(&self.0);
            hasher.write(&[half]);
            hasher.write(purpose);
            hasher.finish()
        });
        let [low, high] = halves.map(u64::to_le_bytes);
        let mut bytes = [0; 16];
        let (first, second) = bytes.split_at_mut(8);
        first.copy_from_slice(&low);
        second.copy_from_slice(&high);
        Self(bytes)
    }
}

/// The time of a comparison does not depend on the number of equal bytes.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        let differing = self.0.iter().zip(&other.0).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        differing == 0
    }
}
impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl<'a> Codec<'a> for Secret {
    fn encode(&self, w: &mut Writer) {
        w.raw(&self.0);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(r.raw(16)?);
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_secrets_differ_by_purpose_and_key_and_are_never_printed() {
        let (a, b) = (Secret::new([1; 16]), Secret::new([2; 16]));
        assert_eq!(a.derive(b"x"), a.derive(b"x"));
        let all = [a, a.derive(b"x"), a.derive(b"y"), b.derive(b"x"), a.derive(b"")];
        for (i, one) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|other| other != one), "{i}");
        }
        assert_eq!(alloc::format!("{a:?}"), "Secret(..)");
    }
}
