//! Walks from a directory towards the root, by which a rename finds out whether a directory would move below itself.
//!
//! A walk reads as many rows as the tree is deep, so it does not run inside a transaction. An attempt that needs a walk
//! adds it to its read set and ends; the service walks before the next attempt (`service/walk.rs`), some rows per
//! visit, and keeps only the directory where the walk ended. Directories move one at a time: a request that has walked
//! holds a gate until its attempt is over, so that the parent links cannot change in between (a new directory is an
//! ancestor of nothing, and a directory with an entry cannot be removed). The view knows the directories that the
//! transaction itself has created or moved (in earlier parts of a batch).
//!
//! Files never need a walk, nor do directories that keep their parent.

use crate::rows::row::Inode;
use alloc::vec::Vec;
use nacre_types::{Errno, Fid};
use tracing::error;

/// A walk from a directory towards the root.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AncestorWalk {
    from: Fid,
    /// The directories at which the walk stops before the root, sorted.
    stops: Vec<Fid>,
    /// The directory at which it stopped. Valid while the gate is held.
    end: Option<Result<Fid, Errno>>,
    /// The current attempt has asked for it.
    asked: bool,
}

/// The walks that an operation needs.
#[derive(Debug, Clone, Default)]
pub(crate) struct AncestorWalks(Vec<AncestorWalk>);

impl AncestorWalks {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The end of a walk if it has been made; otherwise the walk is added to those that the next attempt needs.
    pub(crate) fn end(&mut self, from: Fid, stops: Vec<Fid>) -> Option<Result<Fid, Errno>> {
        // There are at most as many as a batch has renames of directories.
        match self.0.iter_mut().find(|walk| walk.from == from && walk.stops == stops) {
            Some(walk) => {
                walk.asked = true;
                walk.end
            }
            None => {
                self.0.push(AncestorWalk { from, stops, end: None, asked: true });
                None
            }
        }
    }
    /// Called at the end of an attempt: the walks that it requested are kept, with their results cleared; the others
    /// are removed.
    pub(crate) fn attempted(&mut self) {
        self.0.retain(|walk| walk.asked);
        self.0.iter_mut().for_each(|walk| (walk.asked, walk.end) = (false, None));
    }
    pub(crate) fn merge(&mut self, other: AncestorWalks) {
        self.0.extend(other.0);
    }
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
    /// Starts the walk of this number.
    pub(crate) fn start(&self, number: usize) -> Option<Walker<'_>> {
        let walk = self.0.get(number)?;
        Some(Walker { stops: &walk.stops, at: walk.from, mark: walk.from, steps: 0 })
    }
    pub(crate) fn set_end(&mut self, number: usize, end: Result<Fid, Errno>) {
        if let Some(walk) = self.0.get_mut(number) {
            walk.end = Some(end);
        }
    }
}

/// A walk under way. Parent links that form a circle, which is damage, are found by remembering one directory (Brent).
pub(crate) struct Walker<'a> {
    stops: &'a [Fid],
    at: Fid,
    mark: Fid,
    steps: u64,
}

impl Walker<'_> {
    pub(crate) fn at(&self) -> Fid {
        self.at
    }
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }
    /// The directory at which the walk ends, once it has been reached.
    pub(crate) fn end(&self) -> Option<Fid> {
        (self.at == Fid::ROOT || self.stops.binary_search(&self.at).is_ok()).then_some(self.at)
    }
    /// Goes on to the parent. `inode` is the current directory; without a row or a name it has been removed.
    pub(crate) fn step(&mut self, inode: Option<&Inode>) -> Result<(), Errno> {
        let link = inode.and_then(|inode| inode.links.first()).ok_or(Errno::ENOENT)?;
        self.at = link.parent;
        self.steps += 1;
        if self.at == self.mark {
            error!(fid = %self.at, "the parent links of a directory lead back to it: run nacre check on this target");
            return Err(Errno::EIO);
        }
        if self.steps.is_power_of_two() {
            self.mark = self.at;
        }
        Ok(())
    }
}
