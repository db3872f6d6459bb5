//! Interval trees of all resources in one arena: finds locks by overlap, mode and age without looking at the
//! others.
//!
//! Treaps ordered by (start, age). Every node knows of its subtree: the largest end, the ages, the modes, and the
//! modes of holders that have not been told of a conflict yet. So ten thousand readers cost another reader one
//! comparison, and a queue of waiters for one range is found from its end.
//! Invariant: a node's sums are those of its subtree after every public call.

use crate::mode::{Mode, Modes};
use alloc::vec::Vec;
use nacre_types::Extent;

/// Index of a node, and of the lock with the same number.
pub(crate) type Slot = u32;
pub(crate) const NIL: Slot = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Node {
    pub(crate) extent: Extent,
    /// Order of arrival in the lock space.
    pub(crate) age: u64,
    pub(crate) mode: Mode,
    /// A client holds it and has not been told that somebody waits.
    pub(crate) untold: bool,
    sums: Sums,
    left: Slot,
    right: Slot,
}

#[derive(Debug, Clone, Copy)]
struct Sums {
    end_max: u64,
    age_min: u64,
    age_max: u64,
    modes: Modes,
    untold: Modes,
}

/// What is looked for. Ages are half-open.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    pub(crate) extent: Extent,
    pub(crate) modes: Modes,
    pub(crate) age_from: u64,
    pub(crate) age_to: u64,
    pub(crate) only_untold: bool,
}

#[derive(Debug)]
pub(crate) struct Forest {
    nodes: Vec<Node>,
    seed: u64,
}

impl Node {
    pub(crate) fn new(extent: Extent, age: u64, mode: Mode) -> Self {
        let sums = Sums { end_max: 0, age_min: 0, age_max: 0, modes: Modes::NONE, untold: Modes::NONE };
        Self { extent, age, mode, untold: false, sums, left: NIL, right: NIL }
    }
    fn key(&self) -> (u64, u64) {
        (self.extent.start, self.age)
    }
    fn own_sums(&self) -> Sums {
        let modes = Modes::only(self.mode);
        Sums {
            end_max: self.extent.end,
            age_min: self.age,
            age_max: self.age,
            modes,
            untold: if self.untold { modes } else { Modes::NONE },
        }
    }
    fn fits(&self, q: &Query) -> bool {
        self.extent.overlaps(q.extent)
            && q.modes.meets(Modes::only(self.mode))
            && (q.age_from..q.age_to).contains(&self.age)
            && (self.untold || !q.only_untold)
    }
}

impl Sums {
    fn join(self, o: Sums) -> Sums {
        Sums {
            end_max: self.end_max.max(o.end_max),
            age_min: self.age_min.min(o.age_min),
            age_max: self.age_max.max(o.age_max),
            modes: self.modes.and(o.modes),
            untold: self.untold.and(o.untold),
        }
    }
    fn may_fit(&self, q: &Query) -> bool {
        let modes = if q.only_untold { self.untold } else { self.modes };
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

    /// Puts the node of a lock into its slot; slots are used without gaps at the end.
    pub(crate) fn place(&mut self, slot: Slot, node: Node) {
        let at = slot as usize;
        assert!(at <= self.nodes.len(), "slots are given out in order");
        if at == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[at] = node;
        }
        self.sum_up(slot);
    }

    pub(crate) fn node(&self, slot: Slot) -> &Node {
        &self.nodes[slot as usize]
    }

    /// splitmix64's finisher: whoever does not know the seed cannot ask in an order that makes the trees high.
    fn priority(&self, slot: Slot) -> u64 {
        let mut z = self.node(slot).age.wrapping_add(self.seed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Links a placed node into the tree at `root`; the new root.
    pub(crate) fn insert(&mut self, root: Slot, slot: Slot) -> Slot {
        if root == NIL {
            return slot;
        }
        let key = self.node(slot).key();
        if self.priority(slot) > self.priority(root) {
            let (left, right) = self.split(root, key);
            let node = &mut self.nodes[slot as usize];
            (node.left, node.right) = (left, right);
            self.sum_up(slot);
            return slot;
        }
        if key < self.node(root).key() {
            let left = self.insert(self.node(root).left, slot);
            self.nodes[root as usize].left = left;
        } else {
            let right = self.insert(self.node(root).right, slot);
            self.nodes[root as usize].right = right;
        }
        self.sum_up(root);
        root
    }

    /// Unlinks a node that is in the tree at `root`; the new root.
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
        self.sum_up(root);
        root
    }

    /// Changes whether the holder of a linked node still has to be told of conflicts.
    pub(crate) fn set_untold(&mut self, root: Slot, slot: Slot, untold: bool) {
        if root == slot {
            self.nodes[slot as usize].untold = untold;
        } else {
            let Node { left, right, .. } = *self.node(root);
            let below = if self.node(slot).key() < self.node(root).key() { left } else { right };
            assert_ne!(below, NIL, "the lock is in the tree of its resource");
            self.set_untold(below, slot, untold);
        }
        self.sum_up(root);
    }

    /// The youngest node that fits.
    pub(crate) fn youngest(&self, root: Slot, q: &Query) -> Option<Slot> {
        let mut best = None;
        self.youngest_in(root, q, &mut best);
        best
    }

    /// Every node that fits, in order of start.
    pub(crate) fn each(&self, root: Slot, q: &Query, found: &mut dyn FnMut(Slot)) {
        if root == NIL || !self.node(root).sums.may_fit(q) {
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
        let beaten = best.is_some_and(|b| self.node(b).age >= node.sums.age_max);
        if beaten || !node.sums.may_fit(q) {
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
        if slot == NIL { 0 } else { self.node(slot).sums.age_max }
    }

    fn sum_up(&mut self, slot: Slot) {
        let node = *self.node(slot);
        let mut sums = node.own_sums();
        for child in [node.left, node.right] {
            if child != NIL {
                sums = sums.join(self.node(child).sums);
            }
        }
        self.nodes[slot as usize].sums = sums;
    }

    /// Cuts a tree into the nodes below `key` and the others.
    fn split(&mut self, root: Slot, key: (u64, u64)) -> (Slot, Slot) {
        if root == NIL {
            return (NIL, NIL);
        }
        if self.node(root).key() < key {
            let (low, high) = self.split(self.node(root).right, key);
            self.nodes[root as usize].right = low;
            self.sum_up(root);
            (root, high)
        } else {
            let (low, high) = self.split(self.node(root).left, key);
            self.nodes[root as usize].left = high;
            self.sum_up(root);
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
            self.sum_up(low);
            low
        } else {
            let left = self.merge(low, self.node(high).left);
            self.nodes[high as usize].left = left;
            self.sum_up(high);
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
    fn only_who_knows_the_seed_could_make_a_tree_high() {
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
