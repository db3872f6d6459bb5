//! Hashes for tables in memory: a few instructions for a FID or a short name. Not for storage, messages or secrets.
//!
//! Each table has a seed from the random numbers of its island, so that names which collide cannot be prepared without
//! knowing it. Nothing that can be observed may depend on the order of such a table.

use core::hash::{BuildHasher, Hasher};

/// Any odd number with as many ones as zeros does.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes the hashes of one table.
#[derive(Debug, Clone, Copy, Default)]
pub struct SeededHash(u64);

impl SeededHash {
    /// Different seeds give different hashes.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
    /// The hash of a name.
    #[inline]
    pub fn of_bytes(self, bytes: &[u8]) -> u64 {
        let mut hasher = self.build_hasher();
        hasher.write_usize(bytes.len());
        hasher.write(bytes);
        hasher.finish()
    }
}
impl BuildHasher for SeededHash {
    type Hasher = Folded;
    #[inline]
    fn build_hasher(&self) -> Folded {
        Folded(self.0)
    }
}

/// A hash that is being computed: each word is multiplied in, and the halves of the product are combined.
#[derive(Debug, Clone, Copy)]
pub struct Folded(u64);

impl Hasher for Folded {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            self.write_u64(rest.iter().fold(1, |word, byte| word << 8 | u64::from(*byte)));
        }
    }
    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    #[inline]
    fn write_u64(&mut self, n: u64) {
        let product = u128::from(self.0 ^ n).wrapping_mul(u128::from(MULTIPLIER));
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fid, Oid, Seq};
    use alloc::collections::BTreeSet;
    use alloc::format;

    #[test]
    fn names_and_fids_that_look_alike_spread_over_all_bits_that_a_table_uses() {
        let hash = SeededHash::new(7);
        let names: BTreeSet<u64> =
            (0..4096).map(|n| hash.of_bytes(format!("file.0.{n}").as_bytes())).collect();
        assert_eq!(names.len(), 4096);
        let fid = |n: u32| hash.hash_one(Fid::new(Seq(0x400), Oid(n)));
        for used in [0, 57] {
            // Of 4096 places about 2/3 get an element, however regular the FIDs are.
            let places: BTreeSet<u64> = (0..4096).map(|n| fid(n).rotate_left(used) & 0xfff).collect();
            assert!(places.len() > 2000, "{} places from bit {used} on", places.len());
        }
    }

    #[test]
    fn a_hash_depends_on_seed_length_and_every_byte() {
        let (one, other) = (SeededHash::new(1), SeededHash::new(2));
        let name = b"a name of some length";
        assert_eq!(one.of_bytes(name), one.of_bytes(name));
        assert_ne!(one.of_bytes(name), other.of_bytes(name));
        for at in 0..name.len() {
            let mut changed = *name;
            changed[at] ^= 1;
            assert_ne!(one.of_bytes(name), one.of_bytes(&changed), "byte {at}");
            assert_ne!(one.of_bytes(&name[..at]), one.of_bytes(&name[..at + 1]), "{at} bytes");
        }
        assert_ne!(one.of_bytes(b"a\0"), one.of_bytes(b"a"));
    }
}
