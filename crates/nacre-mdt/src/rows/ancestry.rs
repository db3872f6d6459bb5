//! Ways up: whether a directory lies below another one, for renames that move directories.
//!
//! The answer takes as many rows as the tree is deep, so it is not looked for inside a transaction. An attempt that needs
//! one leaves a [`Way`] on the list of what it wants and ends; the handler walks the parent links before the next attempt,
//! a slice per visit, and keeps nothing of them but where the walk ended. Directories move one at a time: whoever has
//! walked holds the gate until its attempt is over, so parent links stay as they were walked (a new directory has no
//! way to itself, and one with an entry is not removed). Directories that the attempt itself has made or moved (earlier
//! parts of a batch) are looked up in the attempt.
//!
//! Files never need one, nor do directories that keep their parent.

use crate::mdt::Mdt;
use crate::rows::row::Inode;
use crate::rows::table::INODE;
use crate::rows::view::{Halt, Step, View, Wants};
use alloc::vec::Vec;
use nacre_node::Inside;
use nacre_types::{Errno, Fid};
use tracing::error;

/// Rows that are read in one visit.
const SLICE: u64 = 64;

/// A walk from a directory upwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) from: Fid,
    /// Where it stops before the root, sorted.
    stops: Vec<Fid>,
    /// Where it has stopped. Known while the gate is held.
    end: Option<Result<Fid, Errno>>,
    /// This attempt has asked for it.
    asked: bool,
}

/// The walks that an operation wants.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ways(Vec<Way>);

impl Ways {
    /// The end of a walk, if it has been made.
    fn end(&mut self, from: Fid, stops: Vec<Fid>) -> Option<Result<Fid, Errno>> {
        // As many as a batch has renames of directories.
        match self.0.iter_mut().find(|way| way.from == from && way.stops == stops) {
            Some(way) => {
                way.asked = true;
                way.end
            }
            None => {
                self.0.push(Way { from, stops, end: None, asked: true });
                None
            }
        }
    }
    /// The attempt is over: what it asked for is wanted again, the rest is not.
    pub(crate) fn attempted(&mut self) {
        self.0.retain(|way| way.asked);
        self.0.iter_mut().for_each(|way| (way.asked, way.end) = (false, None));
    }
    pub(crate) fn merge(&mut self, other: Ways) {
        self.0.extend(other.0);
    }
    /// Answers every walk, for tests without a target; gives their number.
    #[cfg(test)]
    pub(crate) fn answer(&mut self, parent: impl Fn(Fid) -> Option<Fid>) -> usize {
        for way in &mut self.0 {
            let mut walk = Walk::new(way);
            way.end = Some(loop {
                match walk.end() {
                    Some(end) => break Ok(end),
                    None => {
                        if let Err(e) = walk.step(parent(walk.at)) {
                            break Err(e);
                        }
                    }
                }
            });
        }
        self.0.len()
    }
}

/// A walk under way. Parent links that form a circle, which is damage, are found by remembering one place (Brent).
struct Walk<'a> {
    stops: &'a [Fid],
    at: Fid,
    mark: Fid,
    steps: u64,
}
impl<'a> Walk<'a> {
    fn new(way: &'a Way) -> Self {
        Self { stops: &way.stops, at: way.from, mark: way.from, steps: 0 }
    }
    /// Where it ends, once it is there.
    fn end(&self) -> Option<Fid> {
        (self.at == Fid::ROOT || self.stops.binary_search(&self.at).is_ok()).then_some(self.at)
    }
    /// Goes on to the parent; a directory without one has been removed.
    fn step(&mut self, parent: Option<Fid>) -> Result<(), Errno> {
        self.at = parent.ok_or(Errno::ENOENT)?;
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

fn parent_of(inode: &Inode) -> Option<Fid> {
    inode.links.first().map(|link| link.parent)
}

impl View<'_> {
    /// Whether `dir` is `fid` or lies below it.
    pub(crate) fn is_below(&mut self, dir: Fid, fid: Fid) -> Step<bool> {
        let mut at = dir;
        // Each step goes over one directory that this transaction has made or moved.
        for _ in 0..=self.placed.len() {
            if at == fid {
                return Ok(true);
            }
            if let Some((_, parent)) = self.placed.iter().rev().find(|(dir, _)| *dir == at) {
                at = *parent;
                continue;
            }
            let mut stops: Vec<Fid> = self.placed.iter().map(|(dir, _)| *dir).chain([fid]).collect();
            stops.sort_unstable();
            stops.dedup();
            at = self.wants.ways.end(at, stops).ok_or(Halt::Retry)??;
            if at == Fid::ROOT {
                return Ok(fid == Fid::ROOT);
            }
        }
        Ok(at == fid)
    }
}

impl Mdt {
    /// Walks what an operation wants. No directory moves to another parent until the result is dropped.
    pub(crate) async fn walk(&self, wants: &mut Wants) -> Option<Inside<'_>> {
        if wants.ways.0.is_empty() {
            return None;
        }
        let alone = self.moves.enter().await;
        for way in &mut wants.ways.0 {
            way.end = Some(self.walk_up(way).await);
        }
        Some(alone)
    }
    async fn walk_up(&self, way: &Way) -> Result<Fid, Errno> {
        let mut walk = Walk::new(way);
        loop {
            if let Some(end) = walk.end() {
                return Ok(end);
            }
            let inode: Option<Inode> = self.read_row(INODE, &walk.at.key()).await?;
            walk.step(inode.as_ref().and_then(parent_of))?;
            if walk.steps.is_multiple_of(SLICE) {
                self.core.ctx.next_visit().await;
            }
        }
    }
}
