//! Opening a store: recovery of the log, a new log epoch, and the start of the background tasks.

use crate::engine::config::OsdConfig;
use crate::engine::full_device::write_superblock;
use crate::engine::osd::Osd;
use crate::engine::state::State;
use crate::engine::superblock::Super;
use crate::error::OsdError;
use crate::log::mark::Mark;
use crate::log::recover::RecoveredLog;
use crate::log::segment::LogWriter;
use crate::log::segment_maker::segment_bytes;
use alloc::rc::Rc;
use alloc::string::String;
use core::future::Future;
use nacre_node::{Ctx, FileId, StoreDone, StoreError, StoreOp};

impl Osd {
    /// Opens a formatted store: replays the log, starts the background tasks. From the visit on in which this ends, the
    /// island must pass the log writes of the engine to its driver.
    ///
    /// # Errors
    /// `Format` for an empty store or one of another version, `Corrupt` when synced bytes of the log are gone.
    pub async fn open(ctx: &Rc<Ctx>, config: OsdConfig) -> Result<Rc<Osd>, OsdError> {
        let Some((mut superblock, damaged_copy)) = Super::read_copies(ctx).await? else {
            return Err(OsdError::Format(String::from(
                "the store is empty: format it first with `nacre mkfs`",
            )));
        };
        let device_bytes = match ctx.io(StoreOp::Space).await? {
            StoreDone::Space(s) => s.bytes_total,
            _ => u64::MAX,
        };
        let config = config.on_device(device_bytes);
        let was_clean = superblock.clean;
        let mut log = RecoveredLog::read(ctx, &superblock).await?;
        log.restore_segments(ctx, &superblock).await?;
        if !was_clean {
            log.make_durable(ctx).await?;
        }
        let last_lsn = log.plan.last_lsn;
        let mut state = begin_epoch(ctx, &config, &mut superblock, log).await?;
        if let Some(copy) = damaged_copy {
            tracing::warn!(target_name = %superblock.label.name, "{}", copy.repaired());
        }
        state.set_damaged_superblock(damaged_copy);
        let osd = Rc::new(Osd::new(ctx, config, superblock, was_clean, state, last_lsn));
        osd.load_runs().await?;
        osd.find_ballast().await?;
        Mark::create_if_missing(ctx).await;
        // A full device must be served: otherwise nothing could be deleted.
        while let Err(error) = osd.create_segment().await {
            match error {
                OsdError::Store(StoreError::NoSpace) if !osd.is_full() => osd.release_ballast().await,
                OsdError::Store(StoreError::NoSpace) => return Err(OsdError::NoRoomToStart),
                other => return Err(other),
            }
        }
        ctx.spawn(osd.clone().committer());
        ctx.spawn(osd.clone().commit_timer());
        osd.spawn_background(osd.clone().segment_maker());
        osd.spawn_background(osd.clone().flusher());
        osd.spawn_background(osd.clone().merger());
        osd.spawn_background(osd.clone().give_back_after_removals());
        Ok(osd)
    }
    /// Spawns a task that `stop` waits for.
    pub(crate) fn spawn_background(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.background().task_begins();
        let osd = self.clone();
        self.ctx().spawn(async move {
            task.await;
            osd.background().task_ended();
        });
    }
}

/// Records the end of the recovered log in the superblock, and continues it in a new epoch.
async fn begin_epoch(
    ctx: &Ctx,
    config: &OsdConfig,
    superblock: &mut Super,
    log: RecoveredLog,
) -> Result<State, OsdError> {
    let RecoveredLog { mut state, mut plan, next_segment } = log;
    let old_epoch = superblock.log_epoch;
    superblock.epoch_ends.retain(|(epoch, _)| *epoch != old_epoch);
    superblock.epoch_ends.push((old_epoch, plan.last_lsn));
    superblock.epoch_ends.retain(|(epoch, _)| *epoch == old_epoch || plan.epochs.contains(epoch));
    superblock.log_epoch += 1;
    superblock.open(ctx.random(), plan.last_transno);
    superblock.unclean_stops += u64::from(!superblock.clean);
    superblock.clean = false;
    superblock.next_segment = next_segment;
    write_superblock(superblock, &plan.unused, ctx).await?;

    state.continue_after(plan.last_transno);
    state.log = LogWriter::new(
        superblock.label.uuid.0,
        superblock.log_epoch,
        next_segment,
        segment_bytes(config),
        plan.last_lsn,
        plan.segments,
    );
    plan.unused.extend(state.log.drop_through(plan.runs.flushed_lsn));
    for number in &plan.unused {
        ctx.io(StoreOp::Delete { file: FileId::Log(*number) }).await?;
    }
    state.runs.set_cache_bytes_max((config.cache_bytes_max / 8).clamp(1 << 20, 32 << 20));
    Ok(state)
}
