//! Extent locks: finds conflicting locks by overlap, mode and age without visiting the others.
//!
//! The interval trees of all resources share one arena. They are treaps ordered by (start, age). Every node has a summary
//! of its subtree: the largest end, the ages, the modes, and the modes of holders that have not been sent a blocking
//! callback yet. Another reader beside ten thousand readers costs one comparison, and the last waiter for a range is found
//! without visiting those before it.
//! Invariant: after every public call the summary of a node describes its subtree.

use crate::policy::{Mode, Modes};
use alloc::vec::Vec;
use nacre_types::Extent;

/// Index of a node, and of the lock with the same number.
pub(crate) type Slot = u32;
pub(crate) const NIL: Slot = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    // Fields open to the crate: the lock space only reads them, and changes go through the forest.
    pub(crate) extent: Extent,
    /// Order of arrival in the lock space.
    pub(crate) age: u64,
    pub(crate) mode: Mode,
    /// A client holds it and has not been sent a blocking callback.
    pub(crate) unnotified: bool,
    summary: Summary,
    left: Slot,
    right: Slot,
}

#[derive(Debug, Clone, Copy)]
struct Summary {
    end_max: u64,
    age_min: u64,
    age_max: u64,
    modes: Modes,
    unnotified: Modes,
}

/// A search for locks. Ages are half-open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    // Fields open to the crate: these are the named parameters of a search.
    pub(crate) extent: Extent,
    pub(crate) modes: Modes,
    pub(crate) age_from: u64,
    pub(crate) age_to: u64,
    pub(crate) only_unnotified: bool,
}

#[derive(Debug)]
pub(crate) struct Forest {
    nodes: Vec<Node>,
    seed: u64,
}

impl Node {
    pub(crate) fn new(extent: Extent, age: u64, mode: Mode) -> Self {
        let summary =
            Summary { end_max: 0, age_min: 0, age_max: 0, modes: Modes::NONE, unnotified: Modes::NONE };
        Self { extent, age, mode, unnotified: false, summary, left: NIL, right: NIL }
    }
    fn key(&self) -> (u64, u64) {
        (self.extent.start, self.age)
    }
    fn own_summary(&self) -> Summary {
        let modes = Modes::only(self.mode);
        Summary {
            end_max: self.extent.end,
            age_min: self.age,
            age_max: self.age,
            modes,
            unnotified: if self.unnotified { modes } else { Modes::NONE },
        }
    }
    fn fits(&self, q: &Query) -> bool {
        self.extent.overlaps(q.extent)
            && q.modes.meets(Modes::only(self.mode))
            && (q.age_from..q.age_to).contains(&self.age)
            && (self.unnotified || !q.only_unnotified)
    }
}

impl Summary {
    fn join(self, o: Summary) -> Summary {
        Summary {
            end_max: self.end_max.max(o.end_max),
            age_min: self.age_min.min(o.age_min),
            age_max: self.age_max.max(o.age_max),
            modes: self.modes.and(o.modes),
            unnotified: self.unnotified.and(o.unnotified),
        }
    }
    fn may_fit(&self, q: &Query) -> bool {
        let modes = if q.only_unnotified { self.unnotified } else { self.modes };
        self.end_max > q.extent.start
            && modes.meets(q.modes)
            && self.age_max >= q.age_from
            && self.age_min < q.age_to
    }
}

impl Forest {
    pub(crate) fn new(seed: u64) -> Self {
        Self { nodes: Vec::new(), seed }
    }

    /// Puts the node of a lock into its slot; a new slot is the one after the last.
    pub(crate) fn place(&mut self, slot: Slot, node: Node) {
        let at = slot as usize;
        assert!(at <= self.nodes.len(), "slots are given out in order");
        if at == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[at] = node;
        }
        self.update_summary(slot);
    }

    pub(crate) fn node(&self, slot: Slot) -> &Node {
        &self.nodes[slot as usize]
    }

    /// splitmix64's finisher: a client that does not know the seed cannot choose an order that makes the trees high.
    fn priority(&self, slot: Slot) -> u64 {
        let mut z = self.node(slot).age.wrapping_add(self.seed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Links a placed node into the tree at `root`; returns the new root.
    pub(crate) fn insert(&mut self, root: Slot, slot: Slot) -> Slot {
        if root == NIL {
            return slot;
        }
        let key = self.node(slot).key();
        if self.priority(slot) > self.priority(root) {
            let (left, right) = self.split(root, key);
            let node = &mut self.nodes[slot as usize];
            (node.left, node.right) = (left, right);
            self.update_summary(slot);
            return slot;
        }
        if key < self.node(root).key() {
            let left = self.insert(self.node(root).left, slot);
            self.nodes[root as usize].left = left;
        } else {
            let right = self.insert(self.node(root).right, slot);
            self.nodes[root as usize].right = right;
        }
        self.update_summary(root);
        root
    }

    /// Unlinks a node that is in the tree at `root`; returns the new root.
    pub(crate) fn remove(&mut self, root: Slot, slot: Slot) -> Slot {
        assert_ne!(root, NIL, "the lock is in the tree of its resource");
        if root == slot {
            let Node { left, right, .. } = *self.node(slot);
            let joined = self.merge(left, right);
            let node = &mut self.nodes[slot as usize];
            (node.left, node.right) = (NIL, NIL);
            return joined;
        }
        if self.node(slot).key() < self.node(root).key() {
            let left = self.remove(self.node(root).left, slot);
            self.nodes[root as usize].left = left;
        } else {
            let right = self.remove(self.node(root).right, slot);
            self.nodes[root as usize].right = right;
        }
        self.update_summary(root);
        root
    }

    /// Sets whether the holder of a linked node has not been sent a blocking callback.
    pub(crate) fn set_unnotified(&mut self, root: Slot, slot: Slot, unnotified: bool) {
        if root == slot {
            self.nodes[slot as usize].unnotified = unnotified;
        } else {
            let Node { left, right, .. } = *self.node(root);
            let below = if self.node(slot).key() < self.node(root).key() { left } else { right };
            assert_ne!(below, NIL, "the lock is in the tree of its resource");
            self.set_unnotified(below, slot, unnotified);
        }
        self.update_summary(root);
    }

    /// The youngest node that fits.
    pub(crate) fn youngest(&self, root: Slot, q: &Query) -> Option<Slot> {
        let mut best = None;
        self.youngest_in(root, q, &mut best);
        best
    }

    /// Every node that fits, in order of start.
    pub(crate) fn each(&self, root: Slot, q: &Query, found: &mut dyn FnMut(Slot)) {
        if root == NIL || !self.node(root).summary.may_fit(q) {
            return;
        }
        let node = self.node(root);
        self.each(node.left, q, found);
        if node.fits(q) {
            found(root);
        }
        if node.extent.start < q.extent.end {
            self.each(node.right, q, found);
        }
    }

    fn youngest_in(&self, at: Slot, q: &Query, best: &mut Option<Slot>) {
        if at == NIL {
            return;
        }
        let node = self.node(at);
        let beaten = best.is_some_and(|b| self.node(b).age >= node.summary.age_max);
        if beaten || !node.summary.may_fit(q) {
            return;
        }
        if node.fits(q) && best.is_none_or(|b| self.node(b).age < node.age) {
            *best = Some(at);
        }
        let (mut first, mut second) = (node.left, node.right);
        if self.age_max(second) > self.age_max(first) {
            core::mem::swap(&mut first, &mut second);
        }
        for child in [first, second] {
            if child != node.right || node.extent.start < q.extent.end {
                self.youngest_in(child, q, best);
            }
        }
    }

    fn age_max(&self, slot: Slot) -> u64 {
        if slot == NIL { 0 } else { self.node(slot).summary.age_max }
    }

    fn update_summary(&mut self, slot: Slot) {
        let node = *self.node(slot);
        let mut summary = node.own_summary();
        for child in [node.left, node.right] {
            if child != NIL {
                summary = summary.join(self.node(child).summary);
            }
        }
        self.nodes[slot as usize].summary = summary;
    }

    /// Splits a tree into the nodes below `key` and the others.
    fn split(&mut self, root: Slot, key: (u64, u64)) -> (Slot, Slot) {
        if root == NIL {
            return (NIL, NIL);
        }
        if self.node(root).key() < key {
            let (low, high) = self.split(self.node(root).right, key);
            self.nodes[root as usize].right = low;
            self.update_summary(root);
            (root, high)
        } else {
            let (low, high) = self.split(self.node(root).left, key);
            self.nodes[root as usize].left = high;
            self.update_summary(root);
            (low, root)
        }
    }

    /// Joins two trees; every key of `low` is below every key of `high`.
    fn merge(&mut self, low: Slot, high: Slot) -> Slot {
        if low == NIL || high == NIL {
            return if low == NIL { high } else { low };
        }
        if self.priority(low) > self.priority(high) {
            let right = self.merge(self.node(low).right, high);
            self.nodes[low as usize].right = right;
            self.update_summary(low);
            low
        } else {
            let left = self.merge(low, self.node(high).left);
            self.nodes[high as usize].left = left;
            self.update_summary(high);
            high
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: u32 = 1000;

    fn forest(seed: u64, starts: &[u64]) -> (Forest, Slot) {
        let (mut forest, mut root) = (Forest::new(seed), NIL);
        for (slot, &start) in (0..).zip(starts) {
            forest.place(slot, Node::new(Extent::new(start, start + 1), u64::from(slot), Mode::Pr));
            root = forest.insert(root, slot);
        }
        (forest, root)
    }
    fn height(forest: &Forest, root: Slot) -> u32 {
        if root == NIL {
            return 0;
        }
        let node = forest.node(root);
        1 + height(forest, node.left).max(height(forest, node.right))
    }

    #[test]
    fn a_client_that_does_not_know_the_seed_cannot_make_a_tree_high() {
        let (known, _) = forest(7, &alloc::vec![0; NODES as usize]);
        let mut by_priority: Vec<Slot> = (0..NODES).collect();
        by_priority.sort_by_key(|&slot| known.priority(slot));
        let mut hostile = alloc::vec![0; NODES as usize];
        (0..).zip(by_priority).for_each(|(start, slot)| hostile[slot as usize] = start);
        let heights = |seed| {
            let (forest, root) = forest(seed, &hostile);
            height(&forest, root)
        };
        assert_eq!(heights(7), NODES);
        assert!((8..20).all(|seed| heights(seed) < 50));
    }
}
