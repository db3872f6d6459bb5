//! The set of live runs, and a cache of their recently read blocks.

use crate::table::key::Key;
use crate::table::run::{BlockRows, Run, RunList, RunMeta};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;

/// Limit of remembered damaged blocks, besides one of each damaged run.
const DAMAGED_MAX: usize = 4096;

/// A list of runs, oldest first; it is immutable and replaced as a whole.
pub(crate) type Runs = Rc<[Rc<Run>]>;

/// Sums over all live runs: a plain value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Totals {
    bytes: u64,
    /// Deletions included.
    rows: u64,
    /// Deleted rows and range tombstones.
    deleted: u64,
}

pub(crate) struct RunSet {
    list: Runs,
    totals: Totals,
    /// The list in the log; set before the runs themselves are loaded.
    listed: Vec<RunMeta>,
    flushed_lsn: u64,
    generation: u64,
    next_id: u64,
    cache: BTreeMap<(u64, usize), (BlockRows, u32)>,
    cache_order: VecDeque<(u64, usize)>,
    cache_bytes: u64,
    cache_bytes_max: u64,
    /// Damaged blocks that were found; each is reported once.
    damaged: BTreeSet<(u64, usize)>,
}

impl Default for RunSet {
    fn default() -> Self {
        Self {
            list: Rc::from([]),
            totals: Totals::default(),
            listed: Vec::new(),
            flushed_lsn: 0,
            generation: 0,
            next_id: 1,
            cache: BTreeMap::new(),
            cache_order: VecDeque::new(),
            cache_bytes: 0,
            cache_bytes_max: 8 << 20,
            damaged: BTreeSet::new(),
        }
    }
}

impl RunSet {
    /// Sets the list in the log, before its runs are loaded.
    pub(crate) fn set_listed(&mut self, list: RunList) {
        self.listed = list.runs;
        self.flushed_lsn = list.flushed_lsn;
    }
    /// The list of runs in the log.
    pub(crate) fn listed(&self) -> &[RunMeta] {
        &self.listed
    }
    /// Log records up to this one are in runs.
    pub(crate) fn flushed_lsn(&self) -> u64 {
        self.flushed_lsn
    }
    /// Grows with every change of the list: a read that began before a change must be repeated.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
    pub(crate) fn bytes(&self) -> u64 {
        self.totals.bytes
    }
    /// Whether with so many more deletions at least one row in `share` would be one.
    pub(crate) fn would_be_deleted(&self, more: u64, share: u64) -> bool {
        (self.totals.deleted + more) * share >= self.totals.rows + more
    }
    /// Bytes of the indexes and filters of all runs in memory.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.list.iter().map(|r| r.index_bytes()).sum()
    }
    pub(crate) fn list(&self) -> Runs {
        self.list.clone()
    }
    pub(crate) fn set_cache_bytes_max(&mut self, max: u64) {
        self.cache_bytes_max = max;
    }
    /// Assigns the number of a run file; a number is never used twice while the engine runs.
    pub(crate) fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }
    pub(crate) fn used_id(&mut self, id: u64) {
        self.next_id = self.next_id.max(id + 1);
    }
    fn set(&mut self, list: Vec<Rc<Run>>) {
        self.listed = list.iter().map(|r| r.meta).collect();
        self.totals = list.iter().fold(Totals::default(), |sum, run| Totals {
            bytes: sum.bytes + run.meta.bytes,
            rows: sum.rows + run.meta.rows,
            deleted: sum.deleted + run.deletions(),
        });
        self.list = list.into();
        self.generation += 1;
    }
    pub(crate) fn load(&mut self, runs: Vec<Rc<Run>>) {
        self.set(runs);
    }
    /// Adds the newest run.
    pub(crate) fn push(&mut self, run: Rc<Run>, flushed_lsn: u64) {
        let mut list = self.list.to_vec();
        list.push(run);
        self.flushed_lsn = flushed_lsn;
        self.set(list);
    }
    /// Replaces adjacent runs by one run (or by none, if no rows are left). Runs that were added since these were
    /// chosen come after them, so the indexes are still valid.
    pub(crate) fn replace(&mut self, places: Range<usize>, run: Option<Rc<Run>>) -> Vec<u64> {
        let mut list = self.list.to_vec();
        let gone: Vec<u64> = list.splice(places, run).map(|r| r.meta.id).collect();
        self.cache.retain(|(id, _), _| !gone.contains(id));
        self.cache_order.retain(|(id, _)| !gone.contains(id));
        self.cache_bytes = self.cache.values().map(|(_, len)| u64::from(*len)).sum();
        self.set(list);
        gone
    }
    pub(crate) fn record(&self) -> RunList {
        RunList { flushed_lsn: self.flushed_lsn, runs: self.listed.clone() }
    }
    /// Whether a run may contain the key.
    pub(crate) fn may_hold(&self, raw: &[u8]) -> bool {
        self.list.iter().any(|r| r.block_for(raw).is_some())
    }
    /// The same for any key of `from..to`.
    pub(crate) fn may_overlap(&self, from: &[u8], to: &[u8]) -> bool {
        self.list.iter().any(|run| run.may_overlap(from, to))
    }

    pub(crate) fn cached(&self, run: u64, block: usize) -> Option<BlockRows> {
        self.cache.get(&(run, block)).map(|(rows, _)| rows.clone())
    }
    pub(crate) fn cache(&mut self, run: u64, block: usize, rows: BlockRows, len: u32) {
        if self.cache.insert((run, block), (rows, len)).is_none() {
            self.cache_order.push_back((run, block));
            self.cache_bytes += u64::from(len);
        }
        while self.cache_bytes > self.cache_bytes_max {
            let Some(oldest) = self.cache_order.pop_front() else { break };
            if let Some((_, len)) = self.cache.remove(&oldest) {
                self.cache_bytes -= u64::from(len);
            }
        }
    }
    /// Records a damaged block. Returns `true` the first time.
    pub(crate) fn note_damage(&mut self, run: u64, block: usize) -> bool {
        // One block of each run is recorded in any case, because that run must not be merged.
        (self.damaged.len() < DAMAGED_MAX || !self.is_damaged(run)) && self.damaged.insert((run, block))
    }
    /// The first range of keys within `from..to` that lies in a block known to be damaged.
    pub(crate) fn damage_within(&self, from: &Key, to: &Key) -> Option<(Key, Key)> {
        let ranges = self.damaged.iter().filter_map(|(id, index)| {
            let run = self.list.iter().find(|r| r.meta.id == *id)?;
            let first = run.blocks.get(*index)?.first.clone();
            let end = run.blocks.get(index + 1).map_or_else(|| to.clone(), |next| next.first.clone());
            (first < *to && end > *from).then(|| (first.max(from.clone()), end.min(to.clone())))
        });
        ranges.min()
    }
    /// Whether a block of the run is known to be damaged.
    pub(crate) fn is_damaged(&self, run: u64) -> bool {
        self.damaged.range((run, 0)..=(run, usize::MAX)).next().is_some()
    }
}
