//! A table by name, ordered by hashes: a search compares numbers, and names only at its end.
//!
//! It is a tree and not a hash table, because a directory may have millions of names, and a hash table moves all of them
//! at once when it grows. Names with the same hash form a list, which with a secret seed has one element.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use bytes::Bytes;
use nacre_types::SeededHash;

#[derive(Debug)]
struct Slot<T> {
    name: Bytes,
    value: T,
    /// Further names with this hash.
    same_hash: Option<Box<Slot<T>>>,
}

/// The table.
#[derive(Debug)]
pub(super) struct NameTable<T> {
    hash: SeededHash,
    slots: BTreeMap<u64, Slot<T>>,
}

impl<T> NameTable<T> {
    pub(super) fn new(hash: SeededHash) -> Self {
        Self { hash, slots: BTreeMap::new() }
    }
    fn place(&self, name: &[u8]) -> u64 {
        /// In tests of this crate most names have the same hash as others.
        const USED: u64 = if cfg!(test) { 3 } else { u64::MAX };
        self.hash.of_bytes(name) & USED
    }
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
    pub(super) fn get(&self, name: &[u8]) -> Option<&T> {
        self.get_key_value(name).map(|(_, value)| value)
    }
    pub(super) fn get_key_value(&self, name: &[u8]) -> Option<(&Bytes, &T)> {
        let mut at = self.slots.get(&self.place(name));
        while let Some(slot) = at {
            if slot.name == name {
                return Some((&slot.name, &slot.value));
            }
            at = slot.same_hash.as_deref();
        }
        None
    }
    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut T> {
        let mut at = self.slots.get_mut(&self.place(name));
        while let Some(slot) = at {
            if slot.name == name {
                return Some(&mut slot.value);
            }
            at = slot.same_hash.as_deref_mut();
        }
        None
    }
    /// Adds a name that is not in the table.
    pub(super) fn insert(&mut self, name: Bytes, value: T) {
        match self.slots.entry(self.place(&name)) {
            Entry::Vacant(vacant) => drop(vacant.insert(Slot { name, value, same_hash: None })),
            Entry::Occupied(occupied) => {
                let first = occupied.into_mut();
                let same_hash = first.same_hash.take();
                first.same_hash = Some(Box::new(Slot { name, value, same_hash }));
            }
        }
    }
    pub(super) fn remove(&mut self, name: &[u8]) -> Option<T> {
        let Entry::Occupied(mut occupied) = self.slots.entry(self.place(name)) else { return None };
        if occupied.get().name != name {
            return remove_behind(&mut occupied.get_mut().same_hash, name);
        }
        let gone = match occupied.get_mut().same_hash.take() {
            None => occupied.remove(),
            Some(next) => core::mem::replace(occupied.get_mut(), *next),
        };
        Some(gone.value)
    }
    /// In no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &T)> {
        let same_hash =
            |slot| core::iter::successors(Some(slot), |slot: &&Slot<T>| slot.same_hash.as_deref());
        self.slots.values().flat_map(same_hash).map(|slot| (&slot.name, &slot.value))
    }
    pub(super) fn for_each_mut(&mut self, mut f: impl FnMut(&Bytes, &mut T)) {
        for first in self.slots.values_mut() {
            let mut at = Some(first);
            while let Some(slot) = at {
                f(&slot.name, &mut slot.value);
                at = slot.same_hash.as_deref_mut();
            }
        }
    }
}

fn remove_behind<T>(mut at: &mut Option<Box<Slot<T>>>, name: &[u8]) -> Option<T> {
    while at.as_ref().is_some_and(|slot| slot.name != name) {
        at = &mut at.as_mut()?.same_hash;
    }
    let Slot { value, same_hash, .. } = *at.take()?;
    *at = same_hash;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(table.slots.len() <= 4 && model.len() > 4, "lists were searched");
        table.for_each_mut(|_, value| *value += 1);
        let mut all: Vec<_> = table.iter().map(|(name, value)| (name.clone(), value - 1)).collect();
        all.sort();
        assert_eq!(all, model.into_iter().collect::<Vec<_>>());
    }
}
