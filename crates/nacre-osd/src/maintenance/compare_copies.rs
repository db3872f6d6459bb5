//! Comparison of the two copies of all runs in the background: a damaged part is written again from the other copy, before
//! that is damaged too.
//!
//! A target begins it when it starts (`nacre-target/src/island/start.rs`). Without it nobody would read a second copy while
//! the first one is whole, nor blocks whose rows nobody asks for. The copies of the log are compared by a start
//! (`log/copies.rs`), those of the superblock are written together with each change of it.

use crate::engine::osd::Osd;
use crate::table::run::{FOOTER_BYTES, Footer, Run, open_block};
use crate::table::run_copies::{damaged_part, read_copy, read_either, repair};
use alloc::rc::Rc;
use core::time::Duration;

/// The first comparison begins so long after the start.
const FIRST_AFTER: Duration = Duration::from_secs(600);
/// And the next one so long after the end of the last.
const AGAIN_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Bytes of each copy that are read at a time, and the pause after them: 5 MiB per second of each.
const PIECE_BYTES: u64 = 256 << 10;
const PAUSE: Duration = Duration::from_millis(50);

impl Osd {
    /// Begins to compare the copies of all runs from time to time, until the engine stops.
    pub fn compare_copies_from_now_on(self: &Rc<Self>) {
        self.spawn_background(self.clone().copies_comparer());
    }
    async fn copies_comparer(self: Rc<Self>) {
        let mut after = FIRST_AFTER;
        while self.rest(after).await {
            self.compare_copies().await;
            after = AGAIN_AFTER;
        }
    }
    async fn compare_copies(&self) {
        let runs = self.state().runs.list();
        for run in runs.iter() {
            let end = run.meta.copy_bytes();
            let mut from = 0;
            while from < end {
                let to = end.min(from + PIECE_BYTES);
                let [one, two] = [0, 1].map(|copy| read_copy(self.ctx(), run.meta, copy, from, to - from));
                let (one, two) = (one.await, two.await);
                if !self.is_live(run) {
                    break;
                }
                if one.is_err() || two.is_err() || one != two {
                    self.repair_parts(run, from, to).await;
                }
                from = to;
                if !self.rest(PAUSE).await {
                    return;
                }
            }
        }
    }
    /// Repairs what is damaged in one copy of the parts that reach into this range.
    async fn repair_parts(&self, run: &Run, from: u64, to: u64) {
        let (ctx, meta) = (self.ctx(), run.meta);
        // The run may have been merged while the part was read.
        let write = async |offset: u64, damaged: Option<bytes::Bytes>| {
            if let Some(bytes) = damaged.filter(|_| self.is_live(run)) {
                repair(ctx, meta, offset, &bytes).await;
            }
        };
        let is_here = |offset: u64, len: u64| offset < to && offset + len > from;
        for (index, block) in run.blocks.iter().enumerate() {
            let len = u64::from(block.len);
            if is_here(block.offset, len) {
                let parse = |bytes: &bytes::Bytes| open_block(run, index, bytes);
                write(block.offset, damaged_part(ctx, meta, block.offset, len, parse).await).await;
            }
        }
        let at = Footer::place(meta.copy_bytes());
        let parse = |bytes: &bytes::Bytes| Footer::parse(meta.id, bytes);
        let Ok((footer, _)) = read_either(ctx, meta, at, FOOTER_BYTES, parse).await else { return };
        if is_here(at, FOOTER_BYTES) {
            write(at, damaged_part(ctx, meta, at, FOOTER_BYTES, parse).await).await;
        }
        let (at, len) = footer.tail();
        if is_here(at, len) {
            let parse = |bytes: &bytes::Bytes| Run::parse(meta, &footer, bytes);
            write(at, damaged_part(ctx, meta, at, len, parse).await).await;
        }
    }
    /// Waits; returns whether the engine goes on.
    async fn rest(&self, time: Duration) -> bool {
        let until = self.ctx().now() + time;
        while !self.background().is_stopping() && self.ctx().now() < until {
            self.ctx().timeout(until, self.background().stop_event()).await;
        }
        !self.background().is_stopping()
    }
    /// A run that was merged meanwhile must not be created again.
    pub(crate) fn is_live(&self, run: &Run) -> bool {
        self.state().runs.listed().iter().any(|meta| meta.id == run.meta.id)
    }
}
