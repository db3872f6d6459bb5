//! A table by name: a hash table that is split into many when it becomes large.
//!
//! A directory may have millions of names, and a hash table moves all of its elements when it grows: with the parts, each
//! step of growth moves a few thousand. Each element has its hash beside it, so that growth does not read the names.

use alloc::vec::Vec;
use bytes::Bytes;
use hashbrown::HashTable;
use nacre_types::SeededHash;

/// Names at which the table is split into parts.
const SPLIT: usize = if cfg!(test) { 16 } else { 4096 };
/// Parts of a split table, a power of two. Two million names are about 8000 in each.
const PARTS: usize = 256;

#[derive(Debug)]
struct Slot<T> {
    hash: u64,
    name: Bytes,
    value: T,
}

/// The table.
#[derive(Debug)]
pub(super) struct NameTable<T> {
    hash: SeededHash,
    /// None while the table is new, then one, then [`PARTS`].
    parts: Vec<HashTable<Slot<T>>>,
}

impl<T> NameTable<T> {
    pub(super) fn new(hash: SeededHash) -> Self {
        Self { hash, parts: Vec::new() }
    }
    /// The hash of a name, and the part in which the name is. The tables themselves use the other bits of the hash.
    fn place(&self, name: &[u8]) -> (u64, usize) {
        /// In tests of this crate most names have the same hash as others.
        const USED: u64 = if cfg!(test) { 1 << 32 | 3 } else { u64::MAX };
        let hash = self.hash.of_bytes(name) & USED;
        (hash, part_of(hash, self.parts.len()))
    }
    pub(super) fn is_empty(&self) -> bool {
        self.parts.iter().all(HashTable::is_empty)
    }
    pub(super) fn get(&self, name: &[u8]) -> Option<&T> {
        self.get_key_value(name).map(|(_, value)| value)
    }
    pub(super) fn get_key_value(&self, name: &[u8]) -> Option<(&Bytes, &T)> {
        let (hash, part) = self.place(name);
        let slot = self.parts.get(part)?.find(hash, |slot| slot.name == name)?;
        Some((&slot.name, &slot.value))
    }
    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut T> {
        let (hash, part) = self.place(name);
        let slot = self.parts.get_mut(part)?.find_mut(hash, |slot| slot.name == name)?;
        Some(&mut slot.value)
    }
    /// Adds a name that is not in the table.
    pub(super) fn insert(&mut self, name: Bytes, value: T) {
        match &mut *self.parts {
            [] => self.parts.push(HashTable::new()),
            [whole] if whole.len() >= SPLIT => {
                let whole = core::mem::take(whole);
                self.parts.resize_with(PARTS, HashTable::new);
                whole.into_iter().for_each(|slot| self.insert_slot(slot));
            }
            _ => {}
        }
        let (hash, _) = self.place(&name);
        self.insert_slot(Slot { hash, name, value });
    }
    fn insert_slot(&mut self, slot: Slot<T>) {
        let part = part_of(slot.hash, self.parts.len());
        if let Some(part) = self.parts.get_mut(part) {
            part.insert_unique(slot.hash, slot, |slot| slot.hash);
        }
    }
    pub(super) fn remove(&mut self, name: &[u8]) -> Option<T> {
        let (hash, part) = self.place(name);
        let part = self.parts.get_mut(part)?;
        let entry = part.find_entry(hash, |slot| slot.name == name).ok()?;
        let (gone, _) = entry.remove();
        if part.len() < part.capacity() / 8 {
            part.shrink_to(part.len() * 2, |slot| slot.hash);
        }
        Some(gone.value)
    }
    /// In no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &T)> {
        self.parts.iter().flatten().map(|slot| (&slot.name, &slot.value))
    }
    pub(super) fn for_each_mut(&mut self, mut f: impl FnMut(&Bytes, &mut T)) {
        self.parts.iter_mut().flatten().for_each(|slot| f(&slot.name, &mut slot.value));
    }
}

fn part_of(hash: u64, parts: usize) -> usize {
    (hash >> 32) as usize & parts.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use nacre_node::Rng;

    #[test]
    fn names_with_the_same_hash_are_found_and_removed_apart() {
        let mut rng = Rng::new(1);
        let mut table = NameTable::new(SeededHash::new(1));
        let mut model = BTreeMap::new();
        for step in 0..20_000u64 {
            let name = Bytes::from(alloc::format!("{}", rng.below(40)));
            match rng.below(3) {
                0 if !model.contains_key(&name) => {
                    table.insert(name.clone(), step);
                    model.insert(name.clone(), step);
                }
                1 => assert_eq!(table.remove(&name), model.remove(&name)),
                _ => assert_eq!(table.get_mut(&name), model.get_mut(&name)),
            }
            assert_eq!(table.get_key_value(&name), model.get_key_value(&name));
            assert_eq!(table.is_empty(), model.is_empty());
        }
        assert!(table.parts.len() == PARTS, "the table was split");
        assert!(table.parts[1].len() > 4, "names with the same hash were in one part");
        table.for_each_mut(|_, value| *value += 1);
        let mut all: Vec<_> = table.iter().map(|(name, value)| (name.clone(), value - 1)).collect();
        all.sort();
        assert_eq!(all, model.into_iter().collect::<Vec<_>>());
    }
}
