//! Cursors that read several runs as one: the newest row of a key is returned, and tombstones hide older rows.

use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::table::key::Key;
use crate::table::run::{BlockRows, Run, open_block};
use crate::table::run_copies::{read_either, repair};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{FileId, StoreDone, StoreError, StoreOp};

/// Rows examined between two points at which other tasks may run.
const SLICE_ROWS: usize = 256;

/// How much of a run one read covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    /// One block at a time, which is kept in the block cache.
    Cached,
    /// Many blocks at a time, which are not cached.
    Bytes(u32),
}

/// The treatment of rows that mark a key as deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deleted {
    /// They hide older rows and are omitted.
    Drop,
    /// They are returned too, because older runs may contain the rows that they hide.
    Keep,
}

/// Position in one run.
struct RunCursor {
    run: Rc<Run>,
    /// Next block to load.
    next_block: usize,
    /// Blocks that have been read; the current row is in the first.
    loaded: VecDeque<BlockRows>,
}

/// A merge of runs over a range of keys.
pub(crate) struct MergeCursor {
    /// Oldest first, as in the list of runs.
    cursors: Vec<RunCursor>,
    from: Key,
    to: Key,
    ahead: ReadAhead,
    deleted: Deleted,
}

impl MergeCursor {
    /// Merges the rows of `from..to` in `runs`, which are ordered from the oldest to the newest.
    pub(crate) fn new(runs: &[Rc<Run>], from: &Key, to: &Key, ahead: ReadAhead, deleted: Deleted) -> Self {
        let cursors = runs
            .iter()
            .map(|run| {
                let next_block = if run.may_overlap(from.raw(), to.raw()) {
                    run.first_block(from.raw()).unwrap_or(0)
                } else {
                    usize::MAX
                };
                RunCursor { run: run.clone(), next_block, loaded: VecDeque::new() }
            })
            .collect();
        Self { cursors, from: from.clone(), to: to.clone(), ahead, deleted }
    }
    /// Passes the next rows to `each`, in order, at most `limit`. Returns whether there may be more.
    pub(crate) async fn rows(
        &mut self,
        osd: &Osd,
        limit: usize,
        mut each: impl FnMut(&BlockRows),
    ) -> Result<bool, OsdError> {
        let (mut given, mut seen) = (0, 0);
        while given < limit {
            // Hidden rows count as work too, so that a visit stays short where there are many tombstones.
            if seen >= SLICE_ROWS.max(limit) {
                if given > 0 {
                    return Ok(true);
                }
                seen = 0;
                osd.slice_end().await;
            }
            for c in &mut self.cursors {
                c.fill(osd, self.from.raw(), self.to.raw(), self.ahead).await?;
            }
            loop {
                let Some(newest) = self.newest_of_lowest() else { return Ok(false) };
                seen += 1;
                given += usize::from(self.give(newest, &mut each));
                let dry = self.step_over(newest);
                if dry || given == limit || seen >= SLICE_ROWS.max(limit) {
                    break;
                }
            }
        }
        Ok(true)
    }
    /// Index of the newest run among those that are at the lowest key.
    fn newest_of_lowest(&self) -> Option<usize> {
        let mut lowest: Option<(usize, &[u8])> = None;
        for (n, c) in self.cursors.iter().enumerate().rev() {
            if let Some(key) = c.key()
                && lowest.is_none_or(|(_, l)| key < l)
            {
                lowest = Some((n, key));
            }
        }
        lowest.map(|(n, _)| n)
    }
    /// Passes the row of a cursor to `each`, unless it is hidden; returns whether it did.
    fn give(&self, newest: usize, each: &mut impl FnMut(&BlockRows)) -> bool {
        let row = self.cursors.get(newest).and_then(|c| c.loaded.front());
        let Some((row, key)) = row.and_then(|row| Some((row, row.key()?))) else { return false };
        let dropped = self.deleted == Deleted::Drop && row.value().is_none();
        if dropped || self.cursors.iter().skip(newest + 1).any(|c| c.run.ranges.contains(key)) {
            return false;
        }
        each(row);
        true
    }
    /// Advances this run and all older runs at the same key. Returns whether blocks must be read for any of them.
    fn step_over(&mut self, newest: usize) -> bool {
        let Some((winner, older)) = self.cursors.get_mut(..=newest).and_then(|c| c.split_last_mut()) else {
            return true;
        };
        let mut dry = false;
        for c in older {
            if c.key().is_some_and(|key| winner.key() == Some(key)) {
                dry |= c.step(self.to.raw());
            }
        }
        winner.step(self.to.raw()) || dry
    }
}

impl RunCursor {
    fn key(&self) -> Option<&[u8]> {
        self.loaded.front()?.key()
    }
    /// Advances to the next row. Returns whether blocks must be read for it.
    fn step(&mut self, to: &[u8]) -> bool {
        if let Some(rows) = self.loaded.front_mut() {
            rows.step();
        }
        self.settle(to)
    }
    /// Drops exhausted blocks and everything beyond the end. Returns whether blocks must be read.
    fn settle(&mut self, to: &[u8]) -> bool {
        while let Some(rows) = self.loaded.front() {
            match rows.key() {
                Some(key) if key < to => return false,
                Some(_) => {
                    self.loaded.clear();
                    self.next_block = usize::MAX;
                }
                None => drop(self.loaded.pop_front()),
            }
        }
        self.next_block != usize::MAX
    }
    /// Reads blocks until there is a current row, or until `from..to` is exhausted.
    async fn fill(&mut self, osd: &Osd, from: &[u8], to: &[u8], ahead: ReadAhead) -> Result<(), OsdError> {
        while self.settle(to) {
            if self.run.blocks.get(self.next_block).is_none_or(|b| b.first.raw() >= to) {
                self.next_block = usize::MAX;
                return Ok(());
            }
            match ahead {
                ReadAhead::Cached => self.loaded.push_back(osd.block(&self.run, self.next_block).await?),
                ReadAhead::Bytes(max) => {
                    self.loaded = osd.blocks(&self.run, self.next_block, to, max).await?;
                }
            }
            self.next_block += self.loaded.len();
            if let Some(rows) = self.loaded.front_mut() {
                // Only the first block may contain rows before `from`.
                rows.seek(from);
            }
        }
        Ok(())
    }
}

impl Osd {
    /// Returns one verified block of a run.
    pub(crate) async fn block(&self, run: &Rc<Run>, index: usize) -> Result<BlockRows, OsdError> {
        if let Some(rows) = self.state().runs.cached(run.meta.id, index) {
            return Ok(rows);
        }
        let rows = self.read_blocks(run, index, 1).await?.pop_front().unwrap_or_default();
        let len = run.blocks.get(index).map_or(0, |b| b.len);
        self.state_mut().runs.cache(run.meta.id, index, rows.clone(), len);
        Ok(rows)
    }
    /// Reads consecutive blocks that begin below `to`: at most `max` bytes, but at least one block.
    async fn blocks(
        &self,
        run: &Rc<Run>,
        index: usize,
        to: &[u8],
        max: u32,
    ) -> Result<VecDeque<BlockRows>, OsdError> {
        let mut bytes = 0u64;
        let count = run.blocks.iter().skip(index).take_while(|b| {
            bytes += u64::from(b.len);
            b.first.raw() < to && bytes <= u64::from(max)
        });
        let count = count.count().max(1);
        self.read_blocks(run, index, count).await
    }
    pub(crate) async fn read_blocks(
        &self,
        run: &Rc<Run>,
        index: usize,
        count: usize,
    ) -> Result<VecDeque<BlockRows>, OsdError> {
        let blocks = run.blocks.get(index..index + count).unwrap_or(&[]);
        let Some(first) = blocks.first() else { return Ok(VecDeque::new()) };
        let offset = first.offset;
        let len: u64 = blocks.iter().map(|b| u64::from(b.len)).sum();
        let len = u32::try_from(len).expect("bounded by the caller, and a row by a log segment");
        self.count(|s| s.cold_reads += 1);
        let bytes = match self.ctx().io(StoreOp::Read { file: FileId::Run(run.meta.id), offset, len }).await {
            Ok(StoreDone::Bytes(bytes)) => bytes,
            // Each block is read from the other copy.
            Err(StoreError::Device(_)) => Bytes::new(),
            Ok(other) => {
                return Err(OsdError::Format(alloc::format!("the store returned {other:?} to Read")));
            }
            Err(e) => return Err(e.into()),
        };
        let mut rows = VecDeque::with_capacity(count);
        for (n, b) in blocks.iter().enumerate() {
            let at = (b.offset - offset) as usize;
            let end = (at + b.len as usize).min(bytes.len());
            let part = bytes.slice(at.min(end)..end);
            match open_block(run, index + n, &part) {
                Ok(r) => rows.push_back(r),
                Err(error) => rows.push_back(self.other_copy(run, index + n, error).await?),
            }
        }
        Ok(rows)
    }
    /// Reads a block whose first copy is damaged from the second one, and repairs it. `error` is returned if that is not
    /// possible.
    async fn other_copy(&self, run: &Rc<Run>, index: usize, error: OsdError) -> Result<BlockRows, OsdError> {
        let (id, Some(block)) = (run.meta.id, run.blocks.get(index)) else { return Err(error) };
        let open = |bytes: &Bytes| open_block(run, index, bytes);
        if let Ok((rows, damaged)) =
            read_either(self.ctx(), run.meta, block.offset, u64::from(block.len), open).await
        {
            if let Some(bytes) = damaged.filter(|_| self.is_live(run)) {
                repair(self.ctx(), run.meta, block.offset, &bytes).await;
            }
            return Ok(rows);
        }
        let first_time = self.state_mut().runs.note_damage(id, index);
        if first_time {
            self.count(|s| s.corrupt_blocks += 1);
            tracing::error!(target_name = %self.label().name, %error, "table block is damaged: its rows cannot be read");
        }
        Err(error)
    }
    /// Lets other tasks run between two slices of long work.
    pub(crate) async fn slice_end(&self) {
        self.ctx().sleep(core::time::Duration::from_nanos(1)).await;
    }
}
