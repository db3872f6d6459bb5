//! Acknowledge or commit: no change depends on a change of another client that a single failure could still remove.
//!
//! Why: client A makes a change X whose reply is lost; client B makes a change that depends on X and gets its reply; the
//! machine dies. B replays its change, but X is missing because A resends only after the replay: a single failure would
//! lose an acknowledged change. So a change that conflicts with an uncommitted change of another client, which is not
//! known to have its reply, waits until the earlier change is durable. Reads do not wait: a lost change that they saw is
//! executed again by its resend.
//! Programs on one client need no such wait: replies to one client leave in the order of its changes (`reply_order.rs`).
//!
//! This file records which changes are uncommitted and which of them conflict. The services decide what a key is, when
//! a change is durable, and how to make it durable. While there is only one client, nothing is recorded. This is
//! checked in the visit of the transaction, because other clients may have connected while a change waited. The connect
//! of a second client waits until all earlier changes are committed.

use crate::clients::rows::ExportId;
use crate::request::Request;
use crate::target_core::TargetCore;
use alloc::collections::{BTreeMap, VecDeque};
use core::ops::RangeInclusive;
use nacre_types::{Transno, Xid};

/// Identifies the rows that a change touches.
pub trait ConflictKey: Copy + Ord {
    /// All keys that conflict with this one lie in this range.
    fn neighbours(&self) -> RangeInclusive<Self>;
    /// Whether a change of `other`, a key of that range, conflicts with one of this key.
    fn conflicts(&self, other: &Self) -> bool;
}

/// The latest change of a key.
#[derive(Debug, Clone, Copy)]
pub struct UncommittedChange {
    /// The client that made the change.
    pub export: ExportId,
    /// Its request.
    pub xid: Xid,
    /// The number of the change.
    pub transno: Transno,
}

/// Changes that may not be durable yet, by their keys. A later change of the same key replaces the earlier one: once the
/// later one is durable or acknowledged, so is the earlier one.
#[derive(Debug)]
pub struct Uncommitted<K> {
    latest: BTreeMap<K, UncommittedChange>,
    order: VecDeque<(Transno, K)>,
}

impl<K> Default for Uncommitted<K> {
    fn default() -> Self {
        Self { latest: BTreeMap::new(), order: VecDeque::new() }
    }
}

impl<K: ConflictKey> Uncommitted<K> {
    /// Records a change.
    pub fn record(&mut self, request: &Request, key: K, transno: Transno) {
        let change = UncommittedChange { export: request.export, xid: request.header.xid, transno };
        self.latest.insert(key, change);
        self.order.push_back((transno, key));
    }
    /// Removes the oldest changes that are over, up to the first that is not: changes are over in the order in which they
    /// were applied.
    pub fn prune(&mut self, is_over: impl Fn(&UncommittedChange) -> bool) {
        while let Some((transno, key)) = self.order.front().copied() {
            match self.latest.get(&key).filter(|change| change.transno == transno) {
                Some(change) if !is_over(change) => return,
                Some(_) => drop(self.latest.remove(&key)),
                None => {} // replaced or removed
            }
            self.order.pop_front();
        }
    }
    /// The changes that conflict with `key`.
    pub fn conflicting(&self, key: K) -> impl Iterator<Item = &UncommittedChange> {
        let neighbours = self.latest.range(key.neighbours());
        neighbours.filter(move |(other, _)| key.conflicts(other)).map(|(_, change)| change)
    }
}

impl TargetCore {
    /// Whether changes of this request have to be distinguished from those of other clients.
    pub fn tracks_uncommitted(&self, request: &Request) -> bool {
        self.config.ack_or_commit && request.replayed_transno().is_none() && self.has_several_clients()
    }
    /// Whether the client of a change is known to have the reply.
    pub fn is_acknowledged(&self, change: &UncommittedChange) -> bool {
        self.has_reply(change.export, change.xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::Generation;

    /// A range of bytes of one object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct Range(u64, u64);
    impl ConflictKey for Range {
        fn neighbours(&self) -> RangeInclusive<Self> {
            Range(0, 0)..=Range(self.1, u64::MAX)
        }
        fn conflicts(&self, other: &Self) -> bool {
            self.0 < other.1 && other.0 < self.1
        }
    }
    fn insert(changes: &mut Uncommitted<Range>, key: Range, transno: u64) {
        let change =
            UncommittedChange { export: Generation(1), xid: Xid(transno), transno: Transno(transno) };
        changes.latest.insert(key, change);
        changes.order.push_back((Transno(transno), key));
    }
    fn conflicts(changes: &Uncommitted<Range>, key: Range) -> alloc::vec::Vec<u64> {
        changes.conflicting(key).map(|c| c.transno.0).collect()
    }

    #[test]
    fn overlapping_changes_conflict_until_they_are_over() {
        let mut changes = Uncommitted::default();
        insert(&mut changes, Range(0, 10), 1);
        insert(&mut changes, Range(5, 20), 2);
        insert(&mut changes, Range(30, 40), 3);
        assert_eq!(conflicts(&changes, Range(8, 9)), [1, 2]);
        assert_eq!(conflicts(&changes, Range(20, 30)), []);
        changes.prune(|c| c.transno == Transno(2));
        assert_eq!(conflicts(&changes, Range(8, 9)), [1, 2], "the oldest is not over");
        changes.prune(|c| c.transno == Transno(1));
        assert_eq!(conflicts(&changes, Range(0, 100)), [2, 3]);
        changes.prune(|c| c.transno <= Transno(3));
        assert_eq!(conflicts(&changes, Range(0, 100)), []);
        assert!(changes.order.is_empty());
    }

    #[test]
    fn a_later_change_of_the_same_key_replaces_the_earlier_one() {
        let mut changes = Uncommitted::default();
        insert(&mut changes, Range(0, 10), 1);
        insert(&mut changes, Range(0, 10), 2);
        changes.prune(|c| c.transno == Transno(1));
        assert_eq!(conflicts(&changes, Range(0, 1)), [2]);
    }
}
