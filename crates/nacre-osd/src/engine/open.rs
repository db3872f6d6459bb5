//! Format, open, stop.
//!
//! Every opening starts a new log epoch in a new file. Before the superblock says so, the end of the epoch before
//! is made durable and written down: a record that was seen once is never missing later. That a record can be read does
//! not prove that the device has it: after a sync that failed, the kernel's cache shows bytes which no later sync writes.
//! So what nothing proves to be durable is written again, in place, before it is synced.

use crate::engine::osd::{Osd, OsdConfig, OsdStats};
use crate::engine::reserve::Room;
use crate::engine::state::State;
use crate::engine::superblock::{FORMAT_VERSION, Label, Super};
use crate::error::OsdError;
use crate::log::mark::Mark;
use crate::log::replay::{Epochs, plan, replay, summarize};
use crate::log::segment::{LogWriter, RecordKind, Segment};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell};
use core::future::Future;
use nacre_node::{Ctx, FileId, FileKind, StoreDone, StoreError, StoreOp, join_all};
use nacre_types::Transno;

const READ_BYTES: u32 = 1 << 20;
const SEGMENT_BYTES_MAX: u64 = 16 << 20;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// A new segment takes at most this part of what is free.
const SEGMENTS_IN_FREE: u64 = 8;

/// All files of a kind with their lengths: logs and runs, which are few.
pub(crate) async fn list(ctx: &Ctx, kind: FileKind) -> Result<Vec<(FileId, u64)>, OsdError> {
    let mut all = Vec::new();
    let mut after = None;
    loop {
        match ctx.io(StoreOp::List { kind, after, limit: 1024 }).await? {
            StoreDone::List(files) => {
                let Some(last) = files.last() else { return Ok(all) };
                after = Some(*last);
                for file in files {
                    if let StoreDone::Len(Some(len)) = ctx.io(StoreOp::Len { file }).await? {
                        all.push((file, len));
                    }
                }
            }
            other => return Err(OsdError::Format(format!("the store answered {other:?} to List"))),
        }
    }
}

/// A whole file, in pieces.
pub(crate) async fn read_all(ctx: &Ctx, file: FileId, len: u64) -> Result<Vec<u8>, OsdError> {
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    loop {
        let offset = bytes.len() as u64;
        let want = u32::try_from(len - offset.min(len)).unwrap_or(u32::MAX).min(READ_BYTES);
        if want == 0 {
            return Ok(bytes);
        }
        match ctx.io(StoreOp::Read { file, offset, len: want }).await? {
            StoreDone::Bytes(b) if b.is_empty() => return Ok(bytes),
            StoreDone::Bytes(b) => bytes.extend_from_slice(&b),
            other => return Err(OsdError::Format(format!("the store answered {other:?} to Read"))),
        }
    }
}

/// Length of new log segments: small where the log or the device is small.
fn segment_bytes(config: &OsdConfig, device_bytes: u64) -> u64 {
    let wanted = (config.log_bytes_max / 8).min((device_bytes / 64).max(1 << 20));
    wanted.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX).next_multiple_of(4096)
}

/// Writes the superblock, on a full device into the room of log segments that nobody needs, or of the ballast: a
/// target that cannot start cannot be emptied.
async fn write_full_or_not(superblock: &Super, unused: &[u64], ctx: &Ctx) -> Result<(), OsdError> {
    let full = |written: &Result<(), OsdError>| *written == Err(OsdError::Store(StoreError::NoSpace));
    let mut written = superblock.write(ctx).await;
    if full(&written) && !unused.is_empty() {
        // Emptied, not deleted: as long as the superblock does not say otherwise their numbers are in use.
        for number in unused {
            ctx.io(StoreOp::Truncate { file: FileId::Log(*number), len: 0 }).await?;
        }
        written = superblock.write(ctx).await;
    }
    if full(&written) {
        give_ballast(ctx, superblock).await?;
        written = superblock.write(ctx).await;
    }
    if full(&written) { Err(OsdError::NoRoomToStart) } else { written }
}

/// Writes the bytes of a log segment in place of themselves, so that the next sync writes them. A file system that
/// copies on write may need room for that.
async fn write_again(ctx: &Ctx, superblock: &Super, segment: &Segment) -> Result<(), OsdError> {
    let file = FileId::Log(segment.number);
    let bytes = Bytes::from(read_all(ctx, file, segment.bytes).await?);
    let write = || StoreOp::Write { file, offset: 0, data: vec![bytes.clone()] };
    match ctx.io(write()).await {
        Err(StoreError::NoSpace) => {
            give_ballast(ctx, superblock).await?;
            match ctx.io(write()).await {
                Err(StoreError::NoSpace) => Err(OsdError::NoRoomToStart),
                other => Ok(other.map(drop)?),
            }
        }
        other => Ok(other.map(drop)?),
    }
}

async fn give_ballast(ctx: &Ctx, superblock: &Super) -> Result<(), OsdError> {
    tracing::warn!(target_name = %superblock.label.name, "the device is full: ballast given up, delete something");
    ctx.io(StoreOp::Delete { file: FileId::Ballast }).await?;
    Ok(())
}

impl Osd {
    /// Writes label and empty log into an empty store.
    ///
    /// # Errors
    /// `Format` when the store holds a target already (unless `overwrite`).
    pub async fn format(
        ctx: &Rc<Ctx>,
        label: &Label,
        config: &OsdConfig,
        overwrite: bool,
    ) -> Result<(), OsdError> {
        let held = Super::read(ctx).await;
        if !overwrite {
            match held {
                Ok(None) => {}
                Ok(Some(s)) => {
                    return Err(OsdError::Format(format!(
                        "the store holds target {} (uuid {}) already: choose another place, or erase it with --reformat",
                        s.label.name, s.label.uuid
                    )));
                }
                Err(OsdError::Format(text)) => {
                    return Err(OsdError::Format(format!(
                        "the store is not empty ({text}): choose another place, or erase it with --reformat"
                    )));
                }
                Err(e) => return Err(e),
            }
        }
        // The superblock goes first and comes last: what is half formatted is nothing.
        ctx.io(StoreOp::Delete { file: FileId::Super }).await?;
        for kind in [FileKind::Log, FileKind::Run, FileKind::Blob] {
            for (file, _) in list(ctx, kind).await? {
                ctx.io(StoreOp::Delete { file }).await?;
            }
        }
        ctx.io(StoreOp::Delete { file: FileId::Ballast }).await?;
        // An old one must not come back beside the new log, whose records begin anew.
        ctx.io(StoreOp::Delete { file: FileId::Mark }).await?;
        match Mark::make(ctx).await {
            Ok(()) | Err(StoreError::NoSpace) => {}
            Err(e) => return Err(e.into()),
        }
        ctx.io(StoreOp::Sync { file: FileId::Mark }).await?;
        match Self::make_ballast(ctx, config).await {
            Ok(()) | Err(OsdError::NoSpace { .. }) => {}
            Err(e) => return Err(e),
        }
        let label = Label { format_version: FORMAT_VERSION, ..label.clone() };
        Super::new(label).write(ctx).await
    }

    /// The label of a store, without opening it.
    ///
    /// # Errors
    /// `Format` for an empty store, a damaged label or another format version.
    pub async fn read_label(ctx: &Rc<Ctx>) -> Result<Label, OsdError> {
        match Super::read(ctx).await? {
            Some(found) => Ok(found.label),
            None => Err(OsdError::Format(String::from(
                "this is not a nacre target (it has no superblock): format it with `nacre mkfs`",
            ))),
        }
    }

    /// Opens a formatted store: replays the log, starts the background tasks. The island must give the log writes
    /// of the engine to its driver from the visit on in which this ends.
    ///
    /// # Errors
    /// `Format` for an empty store or one of another version, `Corrupt` when synced bytes of the log are gone.
    pub async fn open(ctx: &Rc<Ctx>, config: OsdConfig) -> Result<Rc<Osd>, OsdError> {
        let Some(mut superblock) = Super::read(ctx).await? else {
            return Err(OsdError::Format(String::from(
                "the store is empty: format it first with `nacre mkfs`",
            )));
        };
        let store = superblock.label.uuid.0;
        let was_clean = superblock.clean;
        let old_epoch = superblock.log_epoch;

        // Read the log into memory.
        let ends = superblock.epoch_ends.clone();
        let mark = Mark::read(ctx, store, old_epoch).await;
        let epochs = Epochs { latest: old_epoch, ends: &ends, mark };
        let mut next_segment = superblock.next_segment;
        let mut summaries = Vec::new();
        for (file, len) in list(ctx, FileKind::Log).await? {
            let FileId::Log(number) = file else { continue };
            next_segment = next_segment.max(number + 1);
            let bytes = read_all(ctx, file, len).await?;
            summaries.push(summarize(store, &epochs, number, &bytes)?);
        }
        let mut plan = plan(&summaries, &epochs)?;
        let mut state = State::new(LogWriter::new(store, 0, 1, SEGMENT_BYTES_MIN, 0, Vec::new()));
        state.runs.metas = plan.runs.runs.clone();
        state.runs.flushed_lsn = plan.runs.flushed_lsn;
        for segment in plan.segments.iter().filter(|s| s.last_lsn > plan.runs.flushed_lsn) {
            let bytes = read_all(ctx, FileId::Log(segment.number), segment.bytes).await?;
            replay(&plan, &epochs, segment, &bytes, |record| {
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
            was_clean,
            "log read"
        );

        // Nothing is written to these segments any more: what they hold behind their last record is room for others.
        for (number, bytes) in core::mem::take(&mut plan.cuts) {
            ctx.io(StoreOp::Truncate { file: FileId::Log(number), len: bytes }).await?;
            for segment in plan.segments.iter_mut().filter(|s| s.number == number) {
                segment.bytes = bytes;
            }
        }
        // What was seen must stay: it is durable before it is written down as the end of its epoch.
        if !was_clean {
            for segment in plan.segments.iter().filter(|s| s.last_lsn > plan.proven_lsn) {
                write_again(ctx, &superblock, segment).await?;
            }
            let syncs = plan.segments.iter().map(|s| ctx.io(StoreOp::Sync { file: FileId::Log(s.number) }));
            for result in join_all(syncs).await {
                result?;
            }
        }
        let device_bytes = match ctx.io(StoreOp::Space).await? {
            StoreDone::Space(s) => s.bytes_total,
            _ => u64::MAX,
        };
        let last_lsn = plan.last_lsn;
        superblock.epoch_ends.retain(|(epoch, _)| *epoch != old_epoch);
        superblock.epoch_ends.push((old_epoch, last_lsn));
        superblock.epoch_ends.retain(|(epoch, _)| *epoch == old_epoch || plan.epochs.contains(epoch));
        superblock.log_epoch += 1;
        superblock.open(ctx.random(), plan.last_transno);
        superblock.clean = false;
        superblock.unclean_stops += u64::from(!was_clean);
        superblock.next_segment = next_segment;
        write_full_or_not(&superblock, &plan.unused, ctx).await?;

        state.last_transno = plan.last_transno;
        state.log = LogWriter::new(
            store,
            superblock.log_epoch,
            next_segment,
            segment_bytes(&config, device_bytes),
            last_lsn,
            core::mem::take(&mut plan.segments),
        );
        plan.unused.extend(state.log.drop_through(plan.runs.flushed_lsn));
        for number in &plan.unused {
            ctx.io(StoreOp::Delete { file: FileId::Log(*number) }).await?;
        }
        let last_transno = state.last_transno;
        state.runs.set_cache_bytes_max((config.cache_bytes_max / 8).clamp(1 << 20, 32 << 20));
        let osd = Rc::new(Osd {
            ctx: ctx.clone(),
            label: superblock.label.clone(),
            superblock: RefCell::new(superblock),
            was_clean,
            state: RefCell::new(state),
            last_transno: Cell::new(last_transno),
            last_lsn: Cell::new(last_lsn),
            committed: Cell::new(last_transno),
            committed_lsn: Cell::new(last_lsn),
            stable: Cell::new(None),
            stable_held: Cell::new(false),
            stable_next: Cell::new(None),
            wanted_lsn: Cell::new(0),
            unsynced_since: Cell::new(None),
            bytes_at_sync: Cell::new(0),
            failed: RefCell::new(None),
            halting: Cell::new(false),
            tasks: Cell::new(0),
            room: Room::default(),
            merging: Cell::new(false),
            device_full: Cell::new(false),
            flush_asked: Cell::new(false),
            stats: Cell::new(OsdStats::default()),
            commit_kick: ctx.wait_list(),
            unsynced_kick: ctx.wait_list(),
            commit_done: ctx.wait_list(),
            flush_kick: ctx.wait_list(),
            log_kick: ctx.wait_list(),
            room_kick: ctx.wait_list(),
            merge_kick: ctx.wait_list(),
            halt_kick: ctx.wait_list(),
            config,
        });
        osd.load_runs().await?;
        osd.find_ballast().await?;
        Mark::make_if_missing(ctx).await;
        // A full device must be served: how else could anything be deleted?
        while let Err(error) = osd.make_segment().await {
            match error {
                OsdError::Store(StoreError::NoSpace) if !osd.is_full() => osd.give_ballast().await,
                OsdError::Store(StoreError::NoSpace) => return Err(OsdError::NoRoomToStart),
                other => return Err(other),
            }
        }
        ctx.spawn(osd.clone().committer());
        ctx.spawn(osd.clone().commit_timer());
        osd.background(osd.clone().segment_maker());
        osd.background(osd.clone().flusher());
        osd.background(osd.clone().merger());
        Ok(osd)
    }
    /// A task that `stop` waits for.
    fn background(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.tasks.set(self.tasks.get() + 1);
        let osd = self.clone();
        self.ctx.spawn(async move {
            task.await;
            osd.tasks.set(osd.tasks.get() - 1);
            osd.halt_kick.wake_all();
        });
    }

    /// Commits, writes the clean mark, stops the background tasks.
    ///
    /// # Errors
    /// `Stopped` when the log failed before; the store is not clean then.
    pub async fn stop(&self) -> Result<(), OsdError> {
        self.check_alive()?;
        // From now on nobody gets room. First those end that write runs and delete log segments: nothing of theirs may come after the clean mark.
        self.halting.set(true);
        self.wake_everybody();
        while self.tasks.get() > 0 {
            self.halt_kick.wait().await;
        }
        // Who has room already may use it.
        while self.reserved() > 0 {
            self.check_alive()?;
            self.slice_end().await;
        }
        self.commit(Transno(self.last_transno.get())).await?;
        self.commit_lsn(self.last_lsn.get()).await?;
        let superblock = {
            let mut s = self.superblock.borrow_mut();
            let last_lsn = self.last_lsn.get();
            let epoch = s.log_epoch;
            s.clean = true;
            s.epoch_ends.push((epoch, last_lsn));
            s.clone()
        };
        // Whatever was written to the log from here on would be forgotten: it is refused.
        *self.failed.borrow_mut() = Some(String::from("stopped as planned"));
        self.wake_everybody();
        write_full_or_not(&superblock, &[], &self.ctx).await
    }

    /// Makes one log segment in advance: a small one where there is little room.
    pub(crate) async fn make_segment(&self) -> Result<(), OsdError> {
        let free = self.ask_space().await?.bytes_avail;
        let (number, wanted) = {
            let mut state = self.state.borrow_mut();
            (state.log.take_number(), state.log.segment_bytes())
        };
        let file = FileId::Log(number);
        let mut len = wanted.min((free / SEGMENTS_IN_FREE).max(SEGMENT_BYTES_MIN).next_multiple_of(4096));
        while let Err(error) = self.ctx.io(StoreOp::Create { file, len }).await {
            // Others may have taken what was free, or it is not for this user.
            if error != StoreError::NoSpace || len == SEGMENT_BYTES_MIN {
                return Err(error.into());
            }
            len = (len / 4).max(SEGMENT_BYTES_MIN).next_multiple_of(4096);
        }
        self.room.tight.set(len < wanted);
        self.room.stuck.set(false);
        let fits = self.state.borrow_mut().log.add_ready(number, len);
        if !fits {
            self.ctx.io(StoreOp::Delete { file }).await?;
        }
        self.room_kick.wake_all();
        // The first commit in it is to flush its own bytes, not those zeros. Records may be in it by now: a failure here
        // is theirs, and would not be told again.
        if fits && let Err(error) = self.ctx.io(StoreOp::SyncAside { file }).await {
            self.log_failed(&format!("sync of log segment {number}: {error}"));
        }
        Ok(())
    }
    async fn pause(&self) {
        let until = self.ctx.now() + core::time::Duration::from_millis(100);
        let _cut_short = self.ctx.timeout(until, self.halt_kick.wait()).await;
    }
    /// Task: one segment is always ready.
    pub(crate) async fn segment_maker(self: Rc<Self>) {
        loop {
            if self.halted().is_err() {
                return;
            }
            if self.state.borrow().log.ready_count() > 0 {
                self.log_kick.wait().await;
                self.restore_ballast().await;
                continue;
            }
            match self.make_segment().await {
                Ok(()) => self.device_full.set(false),
                Err(OsdError::Store(StoreError::NoSpace)) => {
                    let nothing_left = self.is_full();
                    self.device_full.set(true);
                    self.room.tight.set(true);
                    self.give_ballast().await;
                    // What is in the log may take less room in a run.
                    self.flush_asked.set(true);
                    self.flush_kick.wake_all();
                    if nothing_left {
                        self.room.stuck.set(true);
                        self.room_kick.wake_all();
                        self.pause().await;
                    }
                }
                Err(e) => {
                    tracing::warn!(target_name = %self.label.name, error = %e, "log segment could not be made in advance");
                    self.pause().await;
                }
            }
        }
    }
}
