//! File locks (POSIX, OFD and flock): which of them conflict, and how the ranges of one owner split and merge.
//!
//! Locks of one owner never conflict: a new range replaces the old one byte by byte. The two families do not conflict
//! with each other. Invariant: the ranges of an owner are disjoint and in order.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_types::Generation;

/// The two kinds of file locks that do not conflict with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// flock(2): the owner is an open file.
    Flock,
    /// fcntl(2), OFD included.
    Posix,
}

/// Read locks share a range; a write lock excludes all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A shared lock.
    Read,
    /// An exclusive lock.
    Write,
}

/// The owner of a lock within a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The client's export.
    pub client: Generation,
    /// The family of the lock.
    pub family: Family,
    /// The client's number of the owner.
    pub owner: u64,
}

/// A locked range, `end` inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock {
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// Shared or exclusive.
    pub kind: Kind,
    /// The process, for F_GETLK.
    pub pid: u32,
}
impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start <= other.end && other.start <= self.end
    }
    fn conflicts(&self, other: &Lock) -> bool {
        self.overlaps(other) && (self.kind == Kind::Write || other.kind == Kind::Write)
    }
}

/// The locked ranges of one owner on one file.
#[derive(Debug, Default, Clone)]
pub struct Ranges(Vec<Lock>);

impl Ranges {
    /// The ranges in order.
    pub fn as_slice(&self) -> &[Lock] {
        &self.0
    }
    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Unlocks the bytes from `start` to `end` inclusive; returns whether any of them was locked.
    pub fn clear(&mut self, start: u64, end: u64) -> bool {
        let mut cleared = false;
        let mut rest = Vec::with_capacity(self.0.len() + 1);
        for lock in &self.0 {
            if lock.end < start || end < lock.start {
                rest.push(*lock);
                continue;
            }
            cleared = true;
            if lock.start < start {
                rest.push(Lock { end: start - 1, ..*lock });
            }
            if end < lock.end {
                rest.push(Lock { start: end + 1, ..*lock });
            }
        }
        self.0 = rest;
        cleared
    }
    /// Locks a range and merges it with neighbours of the same kind and process.
    pub fn set(&mut self, lock: Lock) {
        self.clear(lock.start, lock.end);
        let at = self.0.partition_point(|l| l.start < lock.start);
        self.0.insert(at, lock);
        let mut merged: Vec<Lock> = Vec::with_capacity(self.0.len());
        for next in &self.0 {
            match merged.last_mut() {
                Some(last)
                    if last.kind == next.kind
                        && last.pid == next.pid
                        && last.end.checked_add(1) == Some(next.start) =>
                {
                    last.end = next.end;
                }
                _ => merged.push(*next),
            }
        }
        self.0 = merged;
    }
}

/// The granted locks of all owners on one file.
#[derive(Debug, Default)]
pub(crate) struct FileLocks {
    by_owner: BTreeMap<Owner, Ranges>,
}

impl FileLocks {
    /// A granted lock that conflicts with `lock` of `owner`.
    pub(crate) fn conflict(&self, owner: Owner, lock: &Lock) -> Option<(Owner, Lock)> {
        let others = self.others(owner).flat_map(|(o, ranges)| ranges.0.iter().map(move |l| (o, *l)));
        others.into_iter().find(|(_, l)| l.conflicts(lock))
    }
    /// The owners whose granted locks conflict with `lock` of `owner`.
    pub(crate) fn blockers<'a>(&'a self, owner: Owner, lock: &'a Lock) -> impl Iterator<Item = Owner> + 'a {
        self.others(owner).filter(|(_, ranges)| ranges.0.iter().any(|l| l.conflicts(lock))).map(|(o, _)| o)
    }
    fn others(&self, owner: Owner) -> impl Iterator<Item = (Owner, &Ranges)> {
        let of_family = self.by_owner.iter().filter(move |(o, _)| o.family == owner.family && **o != owner);
        of_family.map(|(o, ranges)| (*o, ranges))
    }

    /// The ranges of an owner.
    pub(crate) fn of_owner(&self, owner: Owner) -> &[Lock] {
        self.by_owner.get(&owner).map_or(&[], |ranges| ranges.as_slice())
    }
    /// Grants a range.
    pub(crate) fn set(&mut self, owner: Owner, lock: Lock) {
        self.by_owner.entry(owner).or_default().set(lock);
    }
    /// Unlocks a range; returns whether the owner had any of it.
    pub(crate) fn clear(&mut self, owner: Owner, start: u64, end: u64) -> bool {
        let Some(ranges) = self.by_owner.get_mut(&owner) else { return false };
        let cleared = ranges.clear(start, end);
        if ranges.is_empty() {
            self.by_owner.remove(&owner);
        }
        cleared
    }
    /// Removes all locks of an owner.
    pub(crate) fn remove(&mut self, owner: Owner) {
        self.by_owner.remove(&owner);
    }
    /// The owners that hold a lock.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Owner> {
        self.by_owner.keys().copied()
    }
    /// Whether an owner of this client holds a lock.
    pub(crate) fn has_client(&self, client: Generation) -> bool {
        let first = Owner { client, family: Family::Flock, owner: 0 };
        self.by_owner.range(first..).next().is_some_and(|(o, _)| o.client == client)
    }
    /// The number of owners.
    pub(crate) fn owner_count(&self) -> usize {
        self.by_owner.len()
    }
    /// The number of ranges of all owners.
    pub(crate) fn range_count(&self) -> usize {
        self.by_owner.values().map(|ranges| ranges.0.len()).sum()
    }
}
