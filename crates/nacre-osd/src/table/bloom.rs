//! Bloom filters of runs: they tell without a read that a run does not contain a key.
//!
//! The filters are blocked: all bits of a key lie in 64 bytes, so a lookup costs one cache miss. With about ten bits
//! per key, 1-2 % of the absent keys are reported as possibly present.

use alloc::vec;
use alloc::vec::Vec;

const WORDS: usize = 8;
const PROBES: u32 = 6;
const BITS_PER_KEY: usize = 10;

/// A hash that is part of the disk format: it never changes.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = (bytes.len() as u64).wrapping_mul(K);
    let mut chunks = bytes.chunks_exact(8);
    for c in &mut chunks {
        let w = u64::from_le_bytes(c.try_into().unwrap_or([0; 8]));
        h = (h ^ w).wrapping_mul(K);
        h ^= h >> 29;
    }
    let mut tail = [0u8; 8];
    let rest = chunks.remainder();
    tail[..rest.len()].copy_from_slice(rest);
    h = (h ^ u64::from_le_bytes(tail)).wrapping_mul(K);
    h ^= h >> 32;
    h = h.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h ^ (h >> 31)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bloom {
    words: Vec<u64>,
}
impl Bloom {
    pub(crate) fn for_keys(keys: usize) -> Self {
        let blocks = (keys * BITS_PER_KEY).div_ceil(WORDS * 64).max(1);
        Self { words: vec![0; blocks * WORDS] }
    }
    /// First word of a hash's block, and the bits of the hash in it.
    fn place(&self, hash: u64) -> (usize, [u64; WORDS]) {
        let blocks = (self.words.len() / WORDS) as u64;
        let block = ((hash >> 32) * blocks) >> 32;
        let mut bits = [0u64; WORDS];
        let mut h = hash.wrapping_mul(0x94d0_49bb_1331_11eb);
        for _ in 0..PROBES {
            bits[(h >> 61) as usize] |= 1 << (h >> 55 & 63);
            h = h.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        }
        (block as usize * WORDS, bits)
    }
    pub(crate) fn add(&mut self, hash: u64) {
        let (at, bits) = self.place(hash);
        for (word, bit) in self.words.iter_mut().skip(at).zip(bits) {
            *word |= bit;
        }
    }
    pub(crate) fn may_hold(&self, hash: u64) -> bool {
        let (at, bits) = self.place(hash);
        self.words.iter().skip(at).zip(bits).all(|(word, bit)| word & bit == bit)
    }
    pub(crate) fn bytes(&self) -> usize {
        self.words.len() * size_of::<u64>()
    }
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || !bytes.len().is_multiple_of(WORDS * 8) {
            return None;
        }
        let words = bytes.chunks_exact(8).map(|c| c.try_into().map(u64::from_le_bytes));
        Some(Self { words: words.collect::<Result<_, _>>().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_and_few_others() {
        let mut b = Bloom::for_keys(10_000);
        let key = |n: u64| n.to_be_bytes();
        (0..10_000).for_each(|n| b.add(hash(&key(n))));
        let b = Bloom::from_bytes(&b.to_bytes()).unwrap();
        assert!((0..10_000).all(|n| b.may_hold(hash(&key(n)))));
        let wrong = (10_000..110_000).filter(|n| b.may_hold(hash(&key(*n)))).count();
        assert!(wrong < 3_500, "{wrong} of 100000");
    }
}
