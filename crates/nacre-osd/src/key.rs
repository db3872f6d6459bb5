//! Keys of rows as the engine orders them: the table number, then the key bytes.
//!
//! Short keys (all of the metadata target's) live inside the tree node; longer ones on the heap.

use crate::tx::Table;
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
pub(crate) struct Key(Repr);

const _: () = assert!(size_of::<Key>() == 32);

impl Key {
    pub(crate) fn new(table: Table, key: &[u8]) -> Self {
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
    /// Upper end of a range: an empty `to` is the end of the table.
    pub(crate) fn upper(table: Table, to: &[u8]) -> Self {
        if to.is_empty() && table.0 < u8::MAX {
            return Self::new(Table(table.0 + 1), &[]);
        }
        Self::new(table, to)
    }
    /// From bytes that start with the table number.
    pub(crate) fn from_raw(raw: &[u8]) -> Self {
        match raw.split_first() {
            Some((table, key)) => Self::new(Table(*table), key),
            None => Self(Repr::Inline { len: 0, bytes: [0; INLINE_BYTES] }),
        }
    }
    /// The smallest key above this one.
    pub(crate) fn successor(&self) -> Self {
        let mut raw = alloc::vec::Vec::with_capacity(self.raw().len() + 1);
        raw.extend_from_slice(self.raw());
        raw.push(0);
        Self::from_raw(&raw)
    }
    /// Table number and key bytes.
    pub(crate) fn raw(&self) -> &[u8] {
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
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.raw() == other.raw()
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
        self.raw().cmp(other.raw())
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
}
