//! The rows of the memtable by key: a tree for each table in the order of the keys, and in front of the trees the keys of
//! the latest lookups.
//!
//! Trees of their own are less deep than one for all tables: there are few opens, and many inodes.
//!
//! A request looks up the same few keys several times (when it fetches them, in its transaction, when it writes them),
//! and so do the requests after it: the directory of a new file, the slot of a reply, the open that a close ends. A
//! search of a tree compares about twenty keys, and misses the processor's caches when there are many rows.
//!
//! Invariant: a line of `recent` says what the trees say of its key. Keys that are too long for a tree node have none.

use crate::table::key::Key;
use crate::table::memtable::{NO_SLOT, Slot};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::Bound;

/// Keys of the latest lookups: enough for the creates whose closes are sent together.
const LINES: usize = 1024;

/// Numbers of tables are bytes.
const TABLES: usize = 256;

type Tree = BTreeMap<Key, Slot>;

/// A key, and its slot; `NO_SLOT`: no tree has the key.
#[derive(Clone, Copy)]
struct Line {
    key: [u64; 4],
    slot: Slot,
}

pub(crate) struct Index {
    trees: Box<[Tree]>,
    recent: Box<[Cell<Line>]>,
}

impl Default for Index {
    fn default() -> Self {
        // These are lines of the empty key, which no tree has.
        let line = Cell::new(Line { key: [0; 4], slot: NO_SLOT });
        let trees = (0..TABLES).map(|_| Tree::new()).collect();
        Self { trees, recent: alloc::vec![line; LINES].into() }
    }
}

impl Index {
    pub(crate) fn len(&self) -> usize {
        self.trees.iter().map(Tree::len).sum()
    }
    fn tree(&self, key: &Key) -> &Tree {
        &self.trees[key.table()]
    }
    fn tree_mut(&mut self, key: &Key) -> &mut Tree {
        &mut self.trees[key.table()]
    }
    pub(crate) fn get(&self, key: &Key) -> Option<Slot> {
        let Some((line, words)) = self.line(key) else { return self.tree(key).get(key).copied() };
        let Line { key: recent, mut slot } = line.get();
        if recent != words {
            let tree = self.tree(key);
            // New inodes are numbered upwards: one look at the end of the tree tells that their keys have no rows.
            let is_beyond = tree.last_key_value().is_none_or(|(last, _)| last < key);
            slot = if is_beyond { NO_SLOT } else { tree.get(key).copied().unwrap_or(NO_SLOT) };
            line.set(Line { key: words, slot });
        }
        (slot != NO_SLOT).then_some(slot)
    }
    /// Rows from a key on, in the order of their keys.
    pub(crate) fn range_from<'a>(&'a self, from: &Key) -> impl Iterator<Item = (&'a Key, Slot)> + use<'a> {
        self.from(from, TABLES - 1)
    }
    /// Rows of `from..to` in the order of their keys.
    pub(crate) fn range<'a>(
        &'a self,
        from: &Key,
        to: &Key,
    ) -> impl Iterator<Item = (&'a Key, Slot)> + use<'a> {
        // The end is compared with each row: the tree would search for it, and most ranges have no row or one.
        let end = to.clone();
        self.from(from, to.table()).take_while(move |(key, _)| **key < end)
    }
    fn from<'a>(&'a self, from: &Key, last_table: usize) -> impl Iterator<Item = (&'a Key, Slot)> + use<'a> {
        let trees = self.trees.get(from.table()..=last_table).unwrap_or_default();
        let (first, later) = trees.split_at(trees.len().min(1));
        let first = first.first().map(|tree| tree.range::<Key, _>((Bound::Included(from), Bound::Unbounded)));
        first.into_iter().flatten().chain(later.iter().flatten()).map(|(key, slot)| (key, *slot))
    }
    /// The slot of the key, which `add` provides if the tree does not have it.
    pub(crate) fn get_or_insert(&mut self, key: &Key, add: impl FnOnce() -> Slot) -> Slot {
        if let Some((line, words)) = self.line(key) {
            let Line { key: recent, slot } = line.get();
            if recent == words && slot != NO_SLOT {
                return slot;
            }
        }
        let slot = *self.tree_mut(key).entry(key.clone()).or_insert_with(add);
        self.note(key, slot);
        slot
    }
    pub(crate) fn remove(&mut self, key: &Key) -> Option<Slot> {
        self.note(key, NO_SLOT);
        self.tree_mut(key).remove(key)
    }
    /// Removes the key if `may_go` says so of its slot.
    pub(crate) fn remove_if(&mut self, key: Key, may_go: impl FnOnce(Slot) -> bool) -> Option<Slot> {
        let Entry::Occupied(entry) = self.tree_mut(&key).entry(key) else { return None };
        if !may_go(*entry.get()) {
            return None;
        }
        let (key, slot) = entry.remove_entry();
        self.note(&key, NO_SLOT);
        Some(slot)
    }
    /// Removes rows of `from..to`; without `to`, to the end. One walk over its nodes costs less than a search for each of its
    /// keys.
    pub(crate) fn extract(
        &mut self,
        from: &Key,
        to: Option<&Key>,
        mut may_go: impl FnMut(Slot) -> bool,
    ) -> Vec<(Key, Slot)> {
        let range = (Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded));
        let last_table = to.map_or(TABLES - 1, Key::table);
        let trees = self.trees.get_mut(from.table()..=last_table).unwrap_or_default();
        let mut gone = Vec::new();
        for tree in trees {
            gone.extend(tree.extract_if(range, |_, slot| may_go(*slot)));
        }
        gone.iter().for_each(|(key, _)| self.note(key, NO_SLOT));
        gone
    }

    fn note(&self, key: &Key, slot: Slot) {
        if let Some((line, words)) = self.line(key) {
            line.set(Line { key: words, slot });
        }
    }
    fn line(&self, key: &Key) -> Option<(&Cell<Line>, [u64; 4])> {
        let words = key.words()?;
        let mixed = words
            .iter()
            .fold(0u64, |hash, word| (hash.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let line = self.recent.get((mixed >> 32) as usize % LINES)?;
        Some((line, words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    #[test]
    fn it_says_of_every_key_what_a_tree_says() {
        let (mut index, mut tree) = (Index::default(), BTreeMap::new());
        let mut seed = 1u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        // More keys than lines, and some that are too long for a line.
        for step in 0..200_000u32 {
            let n = next(3000) as u32;
            let long = [n.to_be_bytes(); 9].concat();
            let table = |n: u32| Table((n / 1000) as u8 + 7);
            let key = Key::new(table(n), if n.is_multiple_of(10) { &long } else { &long[..4] });
            match next(5) {
                0 => assert_eq!(index.get_or_insert(&key, || step), *tree.entry(key).or_insert(step)),
                1 => assert_eq!(index.remove(&key), tree.remove(&key)),
                2 => {
                    let goes = |slot: Slot| slot.is_multiple_of(2);
                    let there = tree.get(&key).copied().filter(|slot| goes(*slot));
                    there.and_then(|_| tree.remove(&key));
                    assert_eq!(index.remove_if(key, goes), there);
                }
                3 if step.is_multiple_of(100) => {
                    let end = Key::new(table(n + 50), &(n + 50).to_be_bytes());
                    let (from, to) = if key < end { (key, end) } else { (end, key) };
                    let rows = tree.range::<Key, _>(&from..&to).map(|(key, slot)| (key, *slot));
                    assert!(index.range(&from, &to).eq(rows));
                    assert_eq!(index.range(&to, &from).count(), 0);
                    let goes = |slot: Slot| slot.is_multiple_of(3);
                    let gone: Vec<_> =
                        tree.extract_if(from.clone()..to.clone(), |_, slot| goes(*slot)).collect();
                    assert_eq!(index.extract(&from, Some(&to), goes), gone);
                }
                _ => assert_eq!(index.get(&key), tree.get(&key).copied()),
            }
        }
        assert!(index.len() == tree.len() && tree.len() > 1000);
        let all = index.range_from(&Key::from_raw(&[]));
        assert!(all.map(|(key, slot)| (key.clone(), slot)).eq(tree));
    }
}
