//! Flush: writes changed rows from memory to a new run.
//!
//! A flush freezes the changed rows, writes them to a new run, syncs the run, adds it to the list of runs (a log
//! record), commits that record, and only then deletes the log segments that are no longer needed. It works in slices
//! and leaves the island in between. Runs are merged by `maintenance/merge.rs`. On a full device the ballast is
//! released before a flush fails (`engine/ballast.rs`).

use crate::engine::osd::Osd;
use crate::error::OsdError;
use crate::log::segment::RecordKind;
use crate::table::cursor::{Deleted, MergeCursor, ReadAhead};
use crate::table::interval::IntervalSet;
use crate::table::key::Key;
use crate::table::run::{BlockRows, Run, RunBuilder, RunMeta};
use crate::table::run_copies::load_run;
use alloc::format;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_node::{FileId, FileKind, StoreDone, StoreError, StoreOp};
use nacre_types::Codec;

/// With this many runs, a flush waits for the merge that is under way.
const RUNS_MAX: usize = 64;
pub(crate) const SLICE_ROWS: usize = 256;
const EVICT_ROWS: usize = 1024;
const WRITE_BYTES: usize = 256 << 10;
pub(crate) const MERGE_READ_BYTES: u32 = 256 << 10;
/// Least memory of a row: bounds the number of frozen rows from above.
const ROW_BYTES_MIN: u64 = 128;
/// Doubled with every failure in a row.
const RETRY: Duration = Duration::from_millis(50);

impl Osd {
    /// Reads the index of every run on the list; deletes run files that are not on it.
    pub(crate) async fn load_runs(&self) -> Result<(), OsdError> {
        let metas: Vec<RunMeta> = self.state().runs.listed().to_vec();
        for (file, _) in crate::engine::files::list(self.ctx(), FileKind::Run).await? {
            let FileId::Run(id) = file else { continue };
            self.state_mut().runs.used_id(id);
            if metas.iter().all(|m| m.id != id) {
                self.ctx().io(StoreOp::Delete { file }).await?;
            }
        }
        let mut runs = Vec::new();
        for meta in metas {
            runs.push(Rc::new(load_run(self.ctx(), meta).await?));
        }
        if runs.is_empty() {
            return Ok(());
        }
        self.state_mut().runs.load(runs);
        // All accounts are kept in memory; those in the log are newer.
        let runs = self.state().runs.list();
        let table = crate::table::ACCOUNTING;
        let (from, to) = (Key::new(table, &[]), Key::upper(table, &[]));
        let ahead = ReadAhead::Bytes(MERGE_READ_BYTES);
        let mut cursor = MergeCursor::new(&runs, &from, &to, ahead, Deleted::Drop);
        let set = |row: &BlockRows| {
            let account =
                row.key().zip(row.value()).and_then(|(k, v)| crate::table::accounts::parse_account(k, v));
            if let Some((id, usage)) = account {
                self.state_mut().accounts.set_if_unknown(id, usage);
            }
        };
        while cursor.rows(self, SLICE_ROWS, set).await? {}
        Ok(())
    }

    /// Task: writes runs when memory or log are half full.
    pub(crate) async fn flusher(self: Rc<Self>) {
        let mut failures = 0;
        loop {
            if self.check_running().is_err() {
                return;
            }
            if !self.flush_wanted() {
                self.background().flush_event().await;
                continue;
            }
            if self.background().is_merging() && self.state().runs.len() >= RUNS_MAX {
                self.room().change().await;
                continue;
            }
            // A request from here on asks for another flush.
            self.background().take_flush_request();
            match self.flush().await {
                Ok(()) => failures = 0,
                Err(e) => {
                    failures += 1;
                    self.background_failed("a table run could not be written", &e, failures.min(4), true)
                        .await;
                }
            }
        }
    }
    pub(crate) fn flush_wanted(&self) -> bool {
        let state = self.state();
        let bytes = state.mem.bytes();
        // A frozen generation is left from a flush that failed.
        state.mem.is_frozen()
            || self.background().is_flush_requested()
                && (state.mem.has_changes() || state.freeable_log_bytes() > 0)
            || self.is_log_due_while_short()
            || bytes.active > self.config().dirty_bytes_max / 2
            || (state.log.bytes() > self.config().log_bytes_max / 2
                || state.log.old_count() > self.config().old_segments_max)
                && state.log.last_lsn() > state.runs.flushed_lsn()
    }
    /// Writes all changes to a run now, whatever their size, and waits for it.
    ///
    /// # Errors
    /// `Stopped`.
    pub async fn checkpoint(&self) -> Result<(), OsdError> {
        let goal = self.log().last_lsn();
        let empty = || {
            let state = self.state();
            !state.mem.has_changes() && !state.mem.is_frozen()
        };
        while self.state().runs.flushed_lsn() < goal && !empty() {
            self.check_alive()?;
            self.background().request_flush();
            self.room().change().await;
        }
        self.background().take_flush_request();
        self.check_alive()
    }
    pub(crate) async fn background_failed(
        &self,
        what: &str,
        error: &OsdError,
        failures: u32,
        ballast_helps: bool,
    ) {
        if self.check_running().is_err() {
            return;
        }
        if matches!(error, OsdError::Store(StoreError::NoSpace)) {
            if ballast_helps {
                self.room().set_device_full(true);
                self.release_ballast().await;
            }
        } else {
            tracing::warn!(target_name = %self.label().name, %error, "{what}, trying again");
        }
        self.background().note_failure();
        self.room().wake_all();
        let deadline = self.ctx().now() + RETRY * (1 << failures);
        let _cut_short = self.ctx().timeout(deadline, self.background().stop_event()).await;
    }

    async fn flush(&self) -> Result<(), OsdError> {
        let id = self.state_mut().runs.take_id();
        match self.write_frozen(id).await {
            Ok(run) => {
                self.evict(self.clean_max_beside_frozen()).await;
                self.install(run).await
            }
            Err(e) => {
                // The partial run takes room that others need.
                self.ctx().io(StoreOp::Delete { file: FileId::Run(id) }).await.ok();
                Err(e)
            }
        }
    }
    async fn write_frozen(&self, id: u64) -> Result<Run, OsdError> {
        let (rows_max, ranges, below) = {
            let mut state = self.state_mut();
            if !state.mem.is_frozen() {
                state.freeze();
            }
            let accounts = state.frozen_accounts().len();
            let rows_max = (state.mem.bytes().frozen / ROW_BYTES_MIN) as usize + accounts;
            (rows_max, state.mem.frozen_ranges().clone(), !state.runs.is_empty())
        };
        // Range tombstones above no other run hide nothing.
        let ranges = if below { ranges } else { IntervalSet::default() };
        let mut builder = RunBuilder::new(id, rows_max, &self.config().bloom_prefixes);
        for (id, usage) in self.state().frozen_accounts() {
            builder.add(
                &crate::table::accounts::account_key(*id),
                Some(&crate::table::accounts::account_value(*usage)),
            );
        }
        self.ctx().io(StoreOp::Create { file: FileId::Run(id), len: 0 }).await?;
        let mut at = Some(Key::from_raw(&[]));
        while let Some(from) = at {
            {
                let max = self.clean_max_beside_frozen();
                let mut state = self.state_mut();
                state.mem.sweep_from(&from);
                state.mem.evict(max, SLICE_ROWS);
                at = state.mem.frozen_rows(from.raw(), SLICE_ROWS, |key, value| {
                    if value.is_some() || state.runs.may_hold(key.raw()) {
                        builder.add(key.raw(), value.map(|v| &v[..]));
                    }
                });
            }
            self.write_slice(id, &mut builder).await?;
        }
        self.finish_run(builder, ranges).await
    }
    async fn install(&self, run: Run) -> Result<(), OsdError> {
        let bytes = run.meta.bytes;
        let lsn = {
            let mut state = self.state_mut();
            state.flushed(run);
            let list = state.runs.record().to_vec();
            state.note(RecordKind::Runs, &list)
        };
        self.appended();
        self.count(|s| {
            s.flushes += 1;
            s.flush_bytes_written += bytes;
        });
        self.room().set_device_full(false);
        self.commit_lsn(lsn).await?;
        let dropped = {
            let mut state = self.state_mut();
            let flushed_lsn = state.runs.flushed_lsn();
            state.log.drop_through(flushed_lsn)
        };
        for number in dropped {
            self.ctx().io(StoreOp::Delete { file: FileId::Log(number) }).await?;
        }
        self.room().wake_all();
        self.background().wake_merger();
        // Nothing to do unless more was frozen than the cache may hold.
        self.evict(self.config().cache_bytes_max).await;
        Ok(())
    }
    /// Rows are evicted before frozen rows become clean, so that memory never holds more than both bounds together.
    fn clean_max_beside_frozen(&self) -> u64 {
        self.config().cache_bytes_max.saturating_sub(self.state().mem.bytes().frozen)
    }
    async fn evict(&self, max: u64) {
        // One round is usually enough; a second one corrects the error of the sample. Pinned rows stay.
        let mut steps = 2 * self.state().mem.rows() + EVICT_ROWS;
        while steps > 0 && self.state().mem.bytes().clean > max && self.check_running().is_ok() {
            self.state_mut().mem.evict(max, EVICT_ROWS);
            steps = steps.saturating_sub(EVICT_ROWS);
            self.slice_end().await;
        }
    }
    /// Writes the finished blocks of the builder, if there are enough; leaves the island in any case.
    pub(crate) async fn write_slice(&self, id: u64, builder: &mut RunBuilder) -> Result<(), OsdError> {
        if builder.pending_bytes() < WRITE_BYTES {
            self.slice_end().await;
            return self.check_running();
        }
        let (offset, data) = builder.take();
        let data = alloc::vec![Bytes::from(data)];
        self.ctx().io(StoreOp::Write { file: FileId::Run(id), offset, data }).await?;
        self.check_running()
    }
    pub(crate) async fn finish_run(&self, builder: RunBuilder, ranges: IntervalSet) -> Result<Run, OsdError> {
        let (offset, data, run) = builder.finish(ranges);
        let file = FileId::Run(run.meta.id);
        self.ctx().io(StoreOp::Write { file, offset, data: alloc::vec![Bytes::from(data)] }).await?;
        self.copy_run(&run).await?;
        self.ctx().io(StoreOp::Sync { file }).await?;
        // From here on the run is installed completely: `stop` waits for that.
        self.check_running()?;
        Ok(run)
    }
}

impl Osd {
    /// Writes the second copy of a run.
    async fn copy_run(&self, run: &Run) -> Result<(), OsdError> {
        let (file, end) = (FileId::Run(run.meta.id), run.meta.copy_bytes());
        let mut at = 0;
        while at < end {
            let len = (end - at).min(WRITE_BYTES as u64);
            let data = match self.ctx().io(StoreOp::Read { file, offset: at, len: len as u32 }).await? {
                StoreDone::Bytes(bytes) if bytes.len() as u64 == len => alloc::vec![bytes],
                _ => return Err(OsdError::Corrupt { what: format!("run {}: it is short", run.meta.id) }),
            };
            self.ctx().io(StoreOp::Write { file, offset: end + at, data }).await?;
            self.check_running()?;
            at += len;
        }
        Ok(())
    }
}
