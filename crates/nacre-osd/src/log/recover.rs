//! Recovery of the log at a start: reads its segments, replays their records, and makes durable everything that was read.
//!
//! Every opening starts a new log epoch in a new segment. Before the superblock records that epoch, the end of the
//! previous epoch is made durable and recorded, so that a record that was read once is never missing later. A record
//! that can be read is not necessarily on the device: after a failed sync the kernel's cache returns bytes that no
//! later sync writes. Therefore records that are not proven durable are rewritten in place before the sync, and so are
//! damaged copies of records (`log/copies.rs`).

use crate::engine::files::list;
use crate::engine::state::State;
use crate::engine::superblock::Super;
use crate::error::OsdError;
use crate::log::copies::{read_segment, restore_segment};
use crate::log::mark::Mark;
use crate::log::replay::{Epochs, Plan, plan, replay, summarize};
use crate::log::segment::{LogWriter, RecordKind};
use crate::log::segment_maker::SEGMENT_BYTES_MIN;
use alloc::format;
use alloc::vec::Vec;
use nacre_node::{Ctx, FileId, FileKind, StoreOp, join_all};

/// The log of earlier openings, and the state that results from its records.
pub(crate) struct RecoveredLog {
    // Read by `engine/open.rs`, which continues the log.
    pub(crate) state: State,
    pub(crate) plan: Plan,
    pub(crate) next_segment: u64,
}

impl RecoveredLog {
    /// Reads and replays the log without changing anything.
    pub(crate) async fn read(ctx: &Ctx, superblock: &Super) -> Result<Self, OsdError> {
        let store = superblock.label.uuid.0;
        let mark = Mark::read(ctx, store, superblock.log_epoch).await;
        let epochs = Epochs { latest: superblock.log_epoch, ends: &superblock.epoch_ends, mark };
        let mut next_segment = superblock.next_segment;
        let mut summaries = Vec::new();
        for (file, _) in list(ctx, FileKind::Log).await? {
            let FileId::Log(number) = file else { continue };
            next_segment = next_segment.max(number + 1);
            summaries.push(summarize(store, &epochs, number, &read_segment(ctx, number).await?)?);
        }
        let plan = plan(&summaries, &epochs, superblock.clean)?;
        for (segment, record) in plan.damaged_copies() {
            tracing::warn!(target_name = %superblock.label.name, segment, record,
                "one of the two copies of a log record is damaged: the other one is used, and both are written at a start");
        }
        let mut state = State::new(LogWriter::new(store, 0, 1, SEGMENT_BYTES_MIN, 0, Vec::new()));
        state.runs.set_listed(plan.runs.clone());
        state.set_damaged_copies(plan.damaged_copies().to_vec());
        for segment in plan.segments.iter().filter(|s| s.last_lsn > plan.runs.flushed_lsn) {
            let united = read_segment(ctx, segment.number).await?;
            replay(&plan, &epochs, segment, united.bytes(), |record| {
                if record.kind == RecordKind::Change {
                    for row in record.rows() {
                        state.replay(&row.ok_or_else(|| OsdError::Corrupt {
                            what: format!("rows of log record {}", record.lsn),
                        })?);
                    }
                }
                Ok(())
            })?;
            ctx.yield_now().await;
        }
        tracing::debug!(
            target_name = %superblock.label.name,
            segments = plan.segments.len(),
            last_lsn = plan.last_lsn,
            was_clean = superblock.clean,
            "log read"
        );
        Ok(Self { state, plan, next_segment })
    }

    /// Frees the unused ends of segments, because nothing more is appended to them, and writes copies of records that are
    /// damaged or possibly not on the device.
    pub(crate) async fn restore_segments(&mut self, ctx: &Ctx, superblock: &Super) -> Result<(), OsdError> {
        for restore in core::mem::take(&mut self.plan.restores) {
            restore_segment(ctx, superblock, restore).await?;
            for segment in self.plan.segments.iter_mut().filter(|s| s.number == restore.number()) {
                segment.bytes = restore.bytes();
            }
        }
        Ok(())
    }

    /// Makes every record that was read durable, before the end of its epoch is recorded.
    pub(crate) async fn make_durable(&self, ctx: &Ctx) -> Result<(), OsdError> {
        let syncs = self.plan.segments.iter().map(|s| ctx.io(StoreOp::Sync { file: FileId::Log(s.number) }));
        for result in join_all(syncs).await {
            result?;
        }
        Ok(())
    }
}
