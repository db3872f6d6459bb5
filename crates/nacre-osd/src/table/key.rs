//! Keys of rows in the order of the engine: the table number, then the key bytes.
//!
//! Short keys (all of the metadata target's) are stored inside the tree node, longer ones on the heap.

use crate::table::Table;
use alloc::boxed::Box;
use core::borrow::Borrow;
use core::cmp::Ordering;
use core::fmt;

const INLINE_BYTES: usize = 30;

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Heap(Box<[u8]>),
}

/// Table number and key bytes, ordered as bytes.
#[derive(Clone)]
pub struct Key(Repr);

const _: () = assert!(size_of::<Key>() == 32);

impl Key {
    /// The key of a row.
    pub fn new(table: Table, key: &[u8]) -> Self {
        if key.len() < INLINE_BYTES {
            let mut bytes = [0; INLINE_BYTES];
            bytes[0] = table.0;
            bytes[1..=key.len()].copy_from_slice(key);
            return Self(Repr::Inline { len: key.len() as u8 + 1, bytes });
        }
        let mut bytes = alloc::vec::Vec::with_capacity(key.len() + 1);
        bytes.push(table.0);
        bytes.extend_from_slice(key);
        Self(Repr::Heap(bytes.into_boxed_slice()))
    }
    /// Upper end of a range; an empty `to` means the end of the table.
    pub(crate) fn upper(table: Table, to: &[u8]) -> Self {
        if to.is_empty() && table.0 < u8::MAX {
            return Self::new(Table(table.0 + 1), &[]);
        }
        Self::new(table, to)
    }
    /// Creates a key from bytes that start with the table number.
    pub(crate) fn from_raw(raw: &[u8]) -> Self {
        match raw.split_first() {
            Some((table, key)) => Self::new(Table(*table), key),
            None => Self(Repr::Inline { len: 0, bytes: [0; INLINE_BYTES] }),
        }
    }
    /// The next key: the smallest one above this key.
    pub(crate) fn successor(&self) -> Self {
        let mut raw = alloc::vec::Vec::with_capacity(self.raw().len() + 1);
        raw.extend_from_slice(self.raw());
        raw.push(0);
        Self::from_raw(&raw)
    }
    /// The key as words that no other key has; `None` if it is on the heap.
    pub(crate) fn words(&self) -> Option<[u64; 4]> {
        match &self.0 {
            // Bytes beyond the length are zeros.
            Repr::Inline { len, bytes } => {
                let last = u64::from_be_bytes([
                    bytes[24], bytes[25], bytes[26], bytes[27], bytes[28], bytes[29], 0, *len,
                ]);
                Some([word(bytes, 0), word(bytes, 8), word(bytes, 16), last])
            }
            Repr::Heap(_) => None,
        }
    }
    /// The number of the table; 0 for the empty key.
    pub(crate) fn table(&self) -> usize {
        self.raw().first().copied().unwrap_or(0).into()
    }
    /// Table number and key bytes.
    pub fn raw(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Repr::Heap(bytes) => bytes,
        }
    }
}
impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.raw()
    }
}
/// Eight bytes as a number that has the same order.
#[inline]
fn word(bytes: &[u8; INLINE_BYTES], at: usize) -> u64 {
    let mut w = [0; 8];
    w.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(w)
}
/// Compares inline keys: as numbers padded with zeros, then the shorter one first. This is the order of their bytes,
/// without a call of memcmp (which took half of the time of a tree search).
#[inline]
fn compare_inline(a: &[u8; INLINE_BYTES], a_len: u8, b: &[u8; INLINE_BYTES], b_len: u8) -> Ordering {
    const LAST: usize = INLINE_BYTES - 8;
    for at in [0, 8, 16] {
        let (x, y) = (word(a, at), word(b, at));
        if x != y {
            return if x < y { Ordering::Less } else { Ordering::Greater };
        }
    }
    // The last word overlaps the previous one, whose bytes are equal.
    (word(a, LAST), a_len).cmp(&(word(b, LAST), b_len))
}
/// Compares keys of which one is on the heap: apart, because a search of inline keys then needs few registers.
#[cold]
#[inline(never)]
fn compare_long(a: &Key, b: &Key) -> Ordering {
    a.raw().cmp(b.raw())
}
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Repr::Inline { len: a_len, bytes: a }, Repr::Inline { len: b_len, bytes: b }) => {
                a_len == b_len && a == b
            }
            _ => self.raw() == other.raw(),
        }
    }
}
impl Eq for Key {}
impl PartialOrd for Key {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.0, &other.0) {
            (Repr::Inline { len: a_len, bytes: a }, Repr::Inline { len: b_len, bytes: b }) => {
                compare_inline(a, *a_len, b, *b_len)
            }
            _ => compare_long(self, other),
        }
    }
}
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let raw = self.raw();
        write!(f, "table {} key ", raw.first().copied().unwrap_or(0))?;
        raw.iter().skip(1).try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_by_table_then_bytes_whatever_their_length() {
        let long = [7u8; 60];
        let keys = [
            Key::new(Table(1), b""),
            Key::new(Table(1), b"a"),
            Key::new(Table(1), b"a").successor(),
            Key::new(Table(1), b"ab"),
            Key::upper(Table(1), b""),
            Key::new(Table(2), &long[..29]),
            Key::new(Table(2), &long[..30]),
            Key::new(Table(2), &long),
        ];
        assert!(keys.windows(2).all(|w| w[0] < w[1]));
        assert!(keys.iter().all(|k| Key::from_raw(k.raw()) == *k));
    }

    #[test]
    fn keys_order_as_their_bytes_do() {
        let mut seed = 1u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        let mut make = || {
            let len = next(34) as usize;
            Key::from_raw(&(0..len).map(|_| next(2) as u8 * next(256) as u8).collect::<alloc::vec::Vec<_>>())
        };
        for _ in 0..20_000 {
            let (a, b) = (make(), make());
            assert_eq!(a.cmp(&b), a.raw().cmp(b.raw()), "{a:?} {b:?}");
            let c = Key::from_raw(&a.raw()[..a.raw().len() / 2]);
            assert_eq!(a.cmp(&c), a.raw().cmp(c.raw()), "{a:?} {c:?}");
        }
    }
}
