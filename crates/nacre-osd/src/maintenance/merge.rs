//! The choice of the runs to merge, and the task that merges them.
//!
//! Runs form tiers by weight: a run is merged only with newer runs that together weigh at least as much. So each time a
//! row is rewritten, the run that contains it is at least twice as heavy as before (except in the row's first merge,
//! which takes all small runs), and merges write each byte O(log n) times. While no merge is due, each run weighs at
//! least twice as much as the next newer one: there are at most [`FAN_IN`] + log2(oldest : newest) runs. A deletion weighs
//! as much as an average row that it hides, so that deletions reach the oldest run before they outnumber its rows.
//!
//! Only neighbours are merged, because the newer of two runs wins. Deleted rows and range tombstones are dropped when
//! the oldest run is part of the merge, and kept otherwise. A run with a damaged block is never merged, and runs on
//! both sides of it are not merged with each other: no row may be dropped silently.

use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::log::segment::RecordKind;
use crate::maintenance::flush::{MERGE_READ_BYTES, SLICE_ROWS};
use crate::table::cursor::{Deleted, MergeCursor, ReadAhead};
use crate::table::interval::IntervalSet;
use crate::table::key::Key;
use crate::table::run::{BlockRows, Run, RunBuilder};
use crate::table::run_set::Runs;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use nacre_node::{FileId, StoreOp};
use nacre_types::Codec;

/// Fewer runs than this are left alone.
const FAN_IN: usize = 4;
/// The weight of a deleted row: about that of a row of the metadata target.
const DELETED_BYTES: u64 = 256;
/// Everything is merged as soon as one row in so many says "deleted": such a merge writes at most three rows for each of
/// them, two if each hides one.
pub(crate) const DELETED_SHARE: u64 = 4;
/// The same if the device has little room.
pub(crate) const DELETED_SHARE_SHORT: u64 = 8;
/// After a merge that drops so many deletions, memory is searched for rows that only say "absent".
const SWEPT_MIN: u64 = 1024;

/// The properties of a run that decide about its merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tier {
    bytes: u64,
    rows: u64,
    /// Deleted rows and range tombstones.
    deleted: u64,
    damaged: bool,
}
impl Tier {
    fn weight(&self) -> u64 {
        self.bytes + self.deleted * DELETED_BYTES
    }
}

/// Places of the runs to merge, of all runs from the oldest on. `short`: there is little room on the device, which counts
/// more than work.
fn choose(tiers: &[Tier], short: bool) -> Option<Range<usize>> {
    let end = tiers.len();
    let start = tiers.iter().rposition(|t| t.damaged).map_or(0, |damaged| damaged + 1);
    let whole = tiers.get(start..)?;
    let sum = |what: fn(&Tier) -> u64| whole.iter().map(what).sum::<u64>();
    let share = if short { DELETED_SHARE_SHORT } else { DELETED_SHARE };
    // Above an older run deletions stay deletions, and the same merge would be due after each flush.
    if start == 0 && whole.len() > 1 && sum(|t| t.deleted) * share >= sum(|t| t.rows) {
        return Some(start..end);
    }
    let mut newer = sum(Tier::weight);
    for (n, tier) in whole.iter().enumerate() {
        if whole.len() - n < FAN_IN {
            return None;
        }
        newer -= tier.weight();
        if tier.weight() <= newer {
            return Some(start + n..end);
        }
    }
    None
}

impl Osd {
    /// Task: merges runs whenever some are due.
    pub(crate) async fn merger(self: Rc<Self>) {
        let mut failures = 0;
        loop {
            if self.check_running().is_err() {
                return;
            }
            let runs = self.state().runs.list();
            let Some(places) = self.due(&runs) else {
                self.background().merge_event().await;
                continue;
            };
            self.background().set_merging(true);
            let merged = self.merge(&runs, places.clone()).await;
            self.background().set_merging(false);
            self.room().wake_all();
            match merged {
                Ok(()) => {
                    failures = 0;
                    let merged = runs.get(places.clone()).unwrap_or_default();
                    if places.start == 0 && merged.iter().map(|run| run.deletions()).sum::<u64>() >= SWEPT_MIN
                    {
                        self.drop_absent_rows().await;
                    }
                }
                Err(error @ OsdError::Corrupt { .. }) => {
                    // The damaged run stays unmerged until an operator has repaired it; newer runs are merged without it.
                    tracing::error!(target_name = %self.label().name, %error, "a table run cannot be merged");
                }
                Err(e) => {
                    failures += 1;
                    let bytes = runs.get(places).unwrap_or_default().iter().map(|r| r.meta.bytes).sum();
                    // If it does not help here, the ballast is kept for flushes.
                    let helps = self.ballast_makes_room_for(bytes).await;
                    self.background_failed("table runs could not be merged", &e, failures.min(8), helps)
                        .await;
                }
            }
        }
    }
    /// Whether a merge is under way or due.
    pub(crate) fn will_merge(&self) -> bool {
        self.background().is_merging() || self.due(&self.state().runs.list()).is_some()
    }
    fn due(&self, runs: &Runs) -> Option<Range<usize>> {
        if !self.config().merges_runs {
            return None;
        }
        let state = self.state();
        let tier = |run: &Rc<Run>| Tier {
            bytes: run.meta.bytes,
            rows: run.meta.rows,
            deleted: run.deletions(),
            damaged: state.runs.is_damaged(run.meta.id),
        };
        choose(&runs.iter().map(tier).collect::<Vec<_>>(), self.is_short())
    }
    async fn merge(&self, runs: &Runs, places: Range<usize>) -> Result<(), OsdError> {
        let id = self.state_mut().runs.take_id();
        let run = match self
            .write_merged(id, runs.get(places.clone()).unwrap_or_default(), places.start == 0)
            .await
        {
            Ok(Some(run)) => Some(Rc::new(run)),
            other => {
                self.ctx().io(StoreOp::Delete { file: FileId::Run(id) }).await.ok();
                other?;
                None
            }
        };
        let bytes = run.as_ref().map_or(0, |run| run.meta.bytes);
        let (gone, lsn) = {
            let mut state = self.state_mut();
            let gone = state.runs.replace(places, run);
            let list = state.runs.record().to_vec();
            (gone, state.note(RecordKind::Runs, &list))
        };
        self.appended();
        self.count(|s| {
            s.merges += 1;
            s.merge_bytes_written += bytes;
        });
        self.commit_lsn(lsn).await?;
        for id in gone {
            self.ctx().io(StoreOp::Delete { file: FileId::Run(id) }).await?;
        }
        Ok(())
    }
    /// All rows of some runs; `None` if nothing is left. `oldest`: there is nothing below them.
    async fn write_merged(&self, id: u64, runs: &[Rc<Run>], oldest: bool) -> Result<Option<Run>, OsdError> {
        let rows_max: u64 = runs.iter().map(|r| r.meta.rows).sum();
        let mut builder = RunBuilder::new(
            id,
            usize::try_from(rows_max).unwrap_or(usize::MAX),
            &self.config().bloom_prefixes,
        );
        self.ctx().io(StoreOp::Create { file: FileId::Run(id), len: 0 }).await?;
        let (from, to) = (Key::from_raw(&[]), Key::from_raw(&[u8::MAX; 64]));
        let deleted = if oldest { Deleted::Drop } else { Deleted::Keep };
        let mut cursor = MergeCursor::new(runs, &from, &to, ReadAhead::Bytes(MERGE_READ_BYTES), deleted);
        loop {
            let add = |row: &BlockRows| row.key().into_iter().for_each(|key| builder.add(key, row.value()));
            if !cursor.rows(self, SLICE_ROWS, add).await? {
                break;
            }
            self.write_slice(id, &mut builder).await?;
        }
        let mut ranges = IntervalSet::default();
        if !oldest {
            for (from, to) in runs.iter().flat_map(|run| run.ranges.iter()) {
                drop(ranges.insert(from.clone(), to.clone()));
            }
        }
        if builder.is_empty() && ranges.len() == 0 {
            return Ok(None);
        }
        self.finish_run(builder, ranges).await.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(bytes: u64) -> Tier {
        Tier { bytes, rows: bytes, deleted: 0, damaged: false }
    }
    fn check(bytes: &[u64], expected: Option<Range<usize>>) {
        let tiers: Vec<Tier> = bytes.iter().map(|b| tier(*b)).collect();
        assert_eq!(choose(&tiers, false), expected, "{bytes:?}");
    }

    #[test]
    fn runs_are_merged_with_newer_ones_that_weigh_as_much() {
        check(&[], None);
        check(&[1, 1, 1], None);
        check(&[1, 1, 1, 1], Some(0..4));
        check(&[9, 1, 1, 1, 1], Some(1..5));
        check(&[9, 4, 1, 1, 1, 1], Some(1..6));
        check(&[8, 4, 1, 1, 1, 1], Some(0..6));
        check(&[80, 40, 20, 10, 5], None);
    }

    #[test]
    fn deletions_are_merged_with_what_they_hide_and_sooner_if_room_is_short() {
        let base = Tier { rows: 1000, ..tier(300_000) };
        let deleting = |n| Tier { bytes: n * 30, rows: n, deleted: n, damaged: false };
        let runs = |n| [base, deleting(n), deleting(n), deleting(n)];
        assert_eq!(choose(&runs(100), false), None);
        assert_eq!(choose(&runs(200), false), Some(0..4));
        assert_eq!(choose(&runs(20), true), None);
        assert_eq!(choose(&runs(100), true), Some(0..4));
        assert_eq!(choose(&[base], true), None);
        // Few runs, whose rows are mostly gone.
        assert_eq!(choose(&[base, deleting(900)], false), Some(0..2));
        assert_eq!(choose(&[base, deleting(100)], false), None);
        let damaged = Tier { damaged: true, ..base };
        assert_eq!(choose(&[damaged, base, deleting(900)], false), None);
        assert_eq!(choose(&[damaged, base, deleting(900)], true), None);
    }

    #[test]
    fn nothing_is_merged_across_a_damaged_run() {
        let mut tiers = [tier(1); 6];
        tiers[1].damaged = true;
        assert_eq!(choose(&tiers, false), Some(2..6));
        tiers[2].damaged = true;
        assert_eq!(choose(&tiers, true), None);
        tiers[5].damaged = true;
        assert_eq!(choose(&tiers, true), None);
    }

    #[test]
    fn each_byte_is_written_again_a_logarithmic_number_of_times() {
        let mut runs: Vec<Tier> = Vec::new();
        let (mut inserted, mut written) = (0, 0);
        for n in 1..=4096u64 {
            let bytes = 1 + n * 7 % 5;
            inserted += bytes;
            runs.push(tier(bytes));
            while let Some(places) = choose(&runs, false) {
                let merged: u64 = runs[places.clone()].iter().map(|t| t.bytes).sum();
                written += merged;
                runs.splice(places, [tier(merged)]);
            }
            let doublings = u64::from(inserted.ilog2());
            assert!(runs.len() as u64 <= FAN_IN as u64 + doublings, "{} runs of {inserted}", runs.len());
            assert!(written <= inserted * (1 + doublings), "{written} for {inserted}");
        }
        assert!(written > 4 * inserted, "{written} for {inserted}: nothing was merged");
    }
}
