//! Reading several runs as one: cursors over runs, newest row wins, tombstones hide.

use crate::engine::Osd;
use crate::error::OsdError;
use crate::key::Key;
use crate::run::{BlockRows, Run, RunRow, open_block};
use crate::run_set::Runs;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{FileId, StoreDone, StoreOp};

/// How a run is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    /// One block at a time, kept in the block cache.
    Cached,
    /// Many blocks at a time, kept nowhere.
    Bytes(u32),
}

/// One run, from a key on.
struct RunCursor {
    run: Rc<Run>,
    /// Next block to load.
    next_block: usize,
    loaded: VecDeque<BlockRows>,
    row: Option<RunRow>,
}

/// Runs merged, from a key up to another.
pub(crate) struct MergeCursor {
    /// Oldest first, as the list of runs.
    cursors: Vec<RunCursor>,
    to: Key,
    ahead: ReadAhead,
}

impl MergeCursor {
    /// Rows of `from..to`. `every`: do not leave out a run because of its filter.
    pub(crate) fn new(runs: &Runs, from: &Key, to: &Key, ahead: ReadAhead) -> Self {
        let cursors = runs
            .iter()
            .map(|run| {
                let next_block = if run.may_overlap(from.raw(), to.raw()) {
                    run.first_block(from.raw()).unwrap_or(0)
                } else {
                    usize::MAX
                };
                RunCursor { run: run.clone(), next_block, loaded: VecDeque::new(), row: None }
            })
            .collect();
        Self { cursors, to: to.clone(), ahead }
    }
    /// Whether any run can have something to give.
    pub(crate) fn is_empty(&self) -> bool {
        self.cursors.iter().all(|c| c.next_block == usize::MAX)
    }
    /// At most `limit` live rows from `from` on; `None` in the second place when there are no more.
    pub(crate) async fn chunk(
        &mut self,
        osd: &Osd,
        from: &Key,
        limit: usize,
    ) -> Result<(Vec<(Key, Bytes)>, bool), OsdError> {
        let mut rows = Vec::new();
        // Deleted rows count as work too: a visit stays short in a field of tombstones.
        for _ in 0..limit.max(64) * 4 {
            if rows.len() == limit {
                return Ok((rows, true));
            }
            for c in &mut self.cursors {
                c.fill(osd, from.raw(), self.to.raw(), self.ahead).await?;
            }
            let lowest = self.cursors.iter().filter_map(|c| c.row.as_ref().map(|(k, _)| k)).min().cloned();
            let Some(lowest) = lowest else { return Ok((rows, false)) };
            let mut winner = None;
            let mut hidden = false;
            for c in self.cursors.iter_mut().rev() {
                if winner.is_none() {
                    let here = c.row.as_ref().is_some_and(|(k, _)| *k == lowest);
                    if here {
                        winner = c.row.take();
                    } else {
                        hidden |= c.run.ranges.contains(&lowest);
                    }
                } else if c.row.as_ref().is_some_and(|(k, _)| *k == lowest) {
                    c.row = None;
                }
            }
            if let Some((key, Some(value))) = winner
                && !hidden
            {
                rows.push((Key::from_raw(&key), value));
            }
        }
        // Where the next chunk must begin is not known from the rows alone: go on until one is found.
        match rows.is_empty() {
            true => {
                osd.slice_end().await;
                alloc::boxed::Box::pin(self.chunk(osd, from, limit)).await
            }
            false => Ok((rows, true)),
        }
    }
}

impl RunCursor {
    /// Makes `row` the next row, if there is one in `from..to`.
    async fn fill(&mut self, osd: &Osd, from: &[u8], to: &[u8], ahead: ReadAhead) -> Result<(), OsdError> {
        while self.row.is_none() {
            if let Some(rows) = self.loaded.front_mut() {
                match rows.next() {
                    Some((key, _)) if &key[..] < from => {}
                    Some((key, _)) if &key[..] >= to => {
                        self.loaded.clear();
                        self.next_block = usize::MAX;
                    }
                    Some(row) => self.row = Some(row),
                    None => {
                        self.loaded.pop_front();
                    }
                }
                continue;
            }
            match self.run.blocks.get(self.next_block) {
                Some(b) if b.first.raw() < to => {}
                _ => {
                    self.next_block = usize::MAX;
                    return Ok(());
                }
            }
            match ahead {
                ReadAhead::Cached => {
                    self.loaded.push_back(osd.block(&self.run, self.next_block).await?);
                    self.next_block += 1;
                }
                ReadAhead::Bytes(max) => {
                    self.loaded = osd.blocks(&self.run, self.next_block, to, max).await?;
                    self.next_block += self.loaded.len();
                }
            }
        }
        Ok(())
    }
}

impl Osd {
    /// One block of a run, checked.
    pub(crate) async fn block(&self, run: &Rc<Run>, index: usize) -> Result<BlockRows, OsdError> {
        if let Some(rows) = self.state.borrow().runs.cached(run.meta.id, index) {
            return Ok(rows);
        }
        let rows = self.read_blocks(run, index, 1).await?.pop_front().unwrap_or_default();
        let len = run.blocks.get(index).map_or(0, |b| b.len);
        self.state.borrow_mut().runs.cache(run.meta.id, index, rows.clone(), len);
        Ok(rows)
    }
    /// Consecutive blocks that begin below `to`, `max` bytes of them or one.
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
        let read = self.ctx.io(StoreOp::Read { file: FileId::Run(run.meta.id), offset, len }).await?;
        let StoreDone::Bytes(bytes) = read else { return Ok(VecDeque::new()) };
        let mut rows = VecDeque::with_capacity(count);
        for (n, b) in blocks.iter().enumerate() {
            let at = (b.offset - offset) as usize;
            let end = (at + b.len as usize).min(bytes.len());
            let part = bytes.slice(at.min(end)..end);
            match open_block(run, index + n, &part) {
                Ok(r) => rows.push_back(r),
                Err(e) => {
                    let first_time = self.state.borrow_mut().runs.note_damage(run.meta.id, index + n);
                    if first_time {
                        self.count(|s| s.corrupt_blocks += 1);
                        tracing::error!(target_name = %self.label.name, error = %e, "table block is damaged: its rows cannot be read");
                    }
                    return Err(e);
                }
            }
        }
        Ok(rows)
    }
    /// Leaves the island between two slices of long work.
    pub(crate) async fn slice_end(&self) {
        self.ctx.sleep(core::time::Duration::from_nanos(1)).await;
    }
}
