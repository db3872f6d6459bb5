//! Sets of key ranges that range tombstones cover.
//!
//! Invariant: intervals are half open, not empty, do not overlap and do not touch.

use crate::table::key::Key;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Bound;

#[derive(Debug, Default, Clone)]
pub(crate) struct IntervalSet {
    by_start: BTreeMap<Key, Key>,
}

/// The change of an insertion, so that it can be undone.
#[derive(Debug)]
pub(crate) struct IntervalUndo {
    inserted: Key,
    removed: Vec<(Key, Key)>,
}

impl IntervalSet {
    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Key)> {
        self.by_start.iter()
    }
    pub(crate) fn contains(&self, raw: &[u8]) -> bool {
        if self.by_start.is_empty() {
            return false;
        }
        self.by_start
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(raw)))
            .next_back()
            .is_some_and(|(_, end)| end.raw() > raw)
    }
    /// Adds `from..to` and merges it with every interval that it overlaps or touches.
    pub(crate) fn insert(&mut self, from: Key, to: Key) -> Option<IntervalUndo> {
        if from >= to {
            return None;
        }
        let (mut start, mut end) = (from, to);
        let mut removed = Vec::new();
        loop {
            let neighbour = self
                .by_start
                .range::<[u8], _>((Bound::Unbounded, Bound::Included(end.raw())))
                .next_back()
                .filter(|(_, e)| **e >= start)
                .map(|(s, _)| s.clone());
            let Some(neighbour) = neighbour else { break };
            let Some((s, e)) = self.by_start.remove_entry(&neighbour) else { break };
            start = start.min(s.clone());
            end = end.max(e.clone());
            removed.push((s, e));
        }
        self.by_start.insert(start.clone(), end);
        Some(IntervalUndo { inserted: start, removed })
    }
    /// Undoes the latest insertion that has not been undone.
    pub(crate) fn undo(&mut self, undo: IntervalUndo) {
        self.by_start.remove(&undo.inserted);
        self.by_start.extend(undo.removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    fn key(n: u8) -> Key {
        Key::new(Table(1), &[n])
    }

    #[test]
    fn intervals_melt_and_come_apart_again() {
        let mut set = IntervalSet::default();
        let mut covered = [false; 64];
        let mut seed = 7u64;
        for _ in 0..300 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (a, b) = ((seed >> 33) as u8 % 60, (seed >> 43) as u8 % 6);
            let keep = seed >> 60 != 0;
            if let Some(undo) = set.insert(key(a), key(a + b)) {
                if keep && covered.iter().filter(|c| **c).count() < 40 {
                    covered[usize::from(a)..usize::from(a + b)].fill(true);
                } else {
                    set.undo(undo);
                }
            }
            for (n, is) in covered.iter().enumerate() {
                assert_eq!(set.contains(key(n as u8).raw()), *is, "{n}");
            }
        }
        let all: Vec<_> = set.iter().collect();
        assert!(all.windows(2).all(|w| w[0].1 < w[1].0));
    }
}
