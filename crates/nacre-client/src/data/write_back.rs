//! Bytes that this mount has written to its own memory only, under the lock bit WRITE_BACK, and their way to the OSTs.
//!
//! Rules: (1) A write is kept here only while this mount holds WRITE_BACK of the file: then no other client has it open,
//! or may open it without a request. Whoever opens it, or needs its size, has the bit revoked first; the revoke is
//! acknowledged when all bytes are at the OSTs (`targets/lock_returns.rs`). The OSTs have granted space for what is kept
//! (`targets/space_grant.rs`). (2) Dirty bytes leave their file when they are
//! sent, under an exclusive range of the file; what changes the file in another way sends them first, under its
//! own range. So the OSTs get all changes of a byte in their order. (3) A read takes the bytes of the OSTs and puts the
//! dirty ones over them. (4) The state of the objects is known here, with the dirty bytes in it, before a byte is kept: so
//! this mount knows the size. (5) After an eviction by the MDT others may have changed the file: dirty bytes are
//! dropped, those under way fail, and fsync(2) or close(2) of each handle reports EIO, once. (6) A restart of the MDT
//! ends the bit here. The MDT revokes it all the same, from each mount that had the file open for writing: whether dirty
//! bytes exist decides when a revoke is acknowledged, not whether the bit is held.
//!
//! Bytes at the OSTs that are not stable are kept for replay by the import (`nacre-rpc/src/replay.rs`). Bounded: by
//! `llite.*.max_dirty_mb` for the mount; a write waits for room, and is sent at once if there is none for [`ROOM_TIMEOUT`]. No
//! byte stays here for longer than [`FLUSH_AFTER`] while its OST replies.

use crate::api::WriteArgs;
use crate::client::Client;
use crate::data::io::check_end;
use crate::data::stripes;
use crate::data::write_batches::SMALL_BYTES;
use crate::files::dirty_bytes::Run;
use crate::files::dirty_files::{DirtyFile, SentBytes};
use crate::files::ranges::{RangeGuard, Share};
use crate::files::state::{FileState, OwnChanges};
use crate::files::table::Open;
use crate::targets::target::Target;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::RefCell;
use core::time::Duration;
use nacre_node::join_all;
use nacre_types::{Component, Errno, Extent, Failure, Fid, Instant, Timestamp};
use nacre_wire::mdt::Getattr;
use nacre_wire::ost::{EXTENT_TAX, ManyWrite, WRITES_MAX};

/// Dirty bytes are sent at the latest after that time.
const FLUSH_AFTER: Duration = Duration::from_millis(500);
/// Files are flushed at multiples of that time, so that small writes of many files leave together.
const FLUSH_INTERVAL_NANOS: u64 = 100_000_000;
/// When a file is flushed that has its first dirty byte now.
fn flush_time(now: Instant) -> Instant {
    let latest = now + FLUSH_AFTER;
    Instant(latest.0 / FLUSH_INTERVAL_NANOS * FLUSH_INTERVAL_NANOS)
}
/// A write is not kept if no byte has left for that time while there is no room.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);
/// Pieces of one file that are sent at a time: large ones, each in a request of its own, and small ones, which fill batches.
const LARGE_SENT_AT_A_TIME: usize = 8;
const SMALL_SENT_AT_A_TIME: usize = WRITES_MAX;
/// Space of the grant that a write needs at most.
fn needed_grant(len: u64) -> u64 {
    len + 3 * EXTENT_TAX // it may cut a piece into two
}

impl Client {
    /// Whether a write through this handle may be kept here now.
    fn may_write_back(&self, open: &Open) -> bool {
        self.mount.dirty_files().is_on()
            && self.mount.mdt_of(open.file.fid).is_some_and(|mdt| mdt.may_write_back(open.file.fid))
    }
    /// Another client has looked at the file, so that this mount has lost WRITE_BACK: asks for it again after a while.
    pub(crate) fn want_write_back_again(&self, file: &FileState) {
        let is_due = self.mount.dirty_files().is_on() && file.is_time_to_ask(self.ctx.now());
        if let Some(mdt) = self.mount.mdt_of(file.fid).filter(|_| is_due) {
            let fid = file.fid;
            // The lock comes with the reply; without it the next write asks.
            self.ctx.spawn(async move { drop(mdt.read_inode(&Getattr { fid }).await) });
        }
    }
    /// Waits until there is room for the bytes of one more write, here and at the OSTs, before it takes its place among the
    /// operations of the file. False: there is none, because an OST does not take the bytes of other files. Its absence is not
    /// to stop this write.
    pub(crate) async fn room_to_write_back(&self, open: &Open, args: &WriteArgs) -> bool {
        let dirty = self.mount.dirty_files();
        let len = args.data.len() as u64;
        if !dirty.takes(args.offset, &args.data) {
            return false;
        }
        while dirty.is_full(len) && self.may_write_back(open) {
            dirty.flush_now();
            let at = self.ctx.now() + ROOM_TIMEOUT;
            if self.ctx.timeout(at, dirty.room()).await.is_none() {
                return false;
            }
        }
        if !self.may_write_back(open) {
            return true;
        }
        let Some(component) = open.file.known_component() else { return true };
        for index in &component.stripes {
            if let Ok(ost) = self.ost(*index).await
                && ost.granted_room() < needed_grant(len)
            {
                ost.renew_grant(&self.ctx, dirty.bytes_max()).await;
            }
        }
        true
    }
    /// The OSTs of a file, if all are known.
    fn osts_of(&self, file: &FileState) -> Option<Vec<Rc<Target>>> {
        let component = file.known_component()?;
        component.stripes.iter().map(|index| self.mount.known_ost(*index)).collect()
    }

    /// Keeps the bytes of a write, if this mount may. The caller holds the range of the write exclusively, for an append all
    /// of the file. Returns whether they are kept.
    pub(crate) async fn write_back(
        &self,
        open: &Rc<Open>,
        component: &Component,
        args: &WriteArgs,
    ) -> Result<bool, Failure> {
        let file = &open.file;
        if !self.may_write_back(open) {
            self.want_write_back_again(file);
            return Ok(false);
        }
        file.note_write_back();
        if args.sync {
            return Ok(false);
        }
        let found = self.data_before_write(file, args).await?;
        if !self.knows_objects(file, component).await? {
            return Ok(false);
        }
        let Some(OwnChanges::States(states)) = file.states() else { return Ok(false) };
        // Nothing is waited for from here on: the bit may be revoked at any time.
        if !self.may_write_back(open) {
            return Ok(false);
        }
        let size = stripes::resolve(component, &states).size;
        let (offset, len) = (if args.append { size } else { args.offset }, args.data.len() as u64);
        check_end(offset, len)?;
        let beside = match file.dom_bytes() {
            0 => Vec::new(),
            most if size.max(offset + len) > u64::from(most) => return Ok(false),
            _ => match self.data_beside(file, found, Extent::new(offset, offset + len), size) {
                Some(beside) => beside,
                None => return Ok(false),
            },
        };
        let kept_bytes = len + beside.iter().map(|(_, data)| data.len() as u64).sum::<u64>();
        if self.mount.dirty_files().is_full(kept_bytes) {
            return Ok(false);
        }
        let Some(osts) = self.osts_of(file) else { return Ok(false) };
        if osts.iter().any(|ost| ost.granted_room() < needed_grant(kept_bytes)) {
            return Ok(false);
        }
        let mtime = self.now();
        if !self.mount.dirty_files().has(file.fid) {
            file.note_clean();
        }
        for range in stripes::by_object(component, offset, len) {
            let old = states.get(range.stripe as usize).copied().unwrap_or_default();
            let kept = Extent::new(range.offset, range.offset + range.len);
            file.note_kept(range.stripe, old, kept, mtime);
        }
        for (at, data) in beside {
            self.keep(open, osts.clone(), at, &data, mtime);
        }
        self.keep(open, osts, offset, &args.data, mtime);
        Ok(true)
    }
    fn keep(&self, open: &Rc<Open>, osts: Vec<Rc<Target>>, offset: u64, data: &Bytes, mtime: Timestamp) {
        let dirty = self.mount.dirty_files();
        for ost in osts.iter().filter(|ost| ost.granted_room() < dirty.bytes_max() / 4) {
            let (ost, ctx, bytes) = (ost.clone(), self.ctx.clone(), dirty.bytes_max());
            self.ctx.spawn(async move { ost.renew_grant(&ctx, bytes).await });
        }
        let kept = dirty.keep(&self.ctx, open, osts, offset, data, mtime);
        if kept.is_first() {
            self.ctx.spawn(self.me().flush_later(kept.file().clone()));
        }
        if let Some(full) = kept.full() {
            let client = self.me();
            self.ctx.spawn(async move { client.flush_range(kept.file(), full).await });
        }
    }
    /// Whether the state of every object is known, with the changes of this mount; asks for it otherwise.
    async fn knows_objects(&self, file: &FileState, component: &Component) -> Result<bool, Failure> {
        if file.states().is_some() {
            return Ok(true);
        }
        // After a failed write nothing is known, and the OSTs do not know what is still dirty.
        if !file.may_know_objects() || self.mount.dirty_files().has(file.fid) {
            return Ok(false);
        }
        let unknown: Vec<u32> = (0u32..)
            .zip(file.known_states())
            .filter(|(_, state)| state.is_none())
            .map(|(stripe, _)| stripe)
            .collect();
        let states = self.glimpse(file.fid, component, &unknown).await?;
        for (stripe, state) in unknown.into_iter().zip(states) {
            file.note_glimpsed(stripe, state);
        }
        Ok(file.states().is_some())
    }

    /// Sends what the former island of this mount has left in the log of kept writes.
    pub(crate) async fn send_left_writes(&self) {
        for (index, write, data) in &self.config.left_writes {
            let sent = async {
                self.move_data_of(write.object.fid).await?;
                let ost = self.ost(*index).await?;
                ost.send(ost.request(write).bulk(data.clone())).await.map(drop)
            };
            let (object, offset) = (write.object, write.offset);
            match sent.await {
                // ENOENT: the file was removed.
                Ok(()) | Err(Failure::ENOENT | Failure::ESTALE) => {}
                Err(error) => {
                    tracing::error!(%object, offset, %error, "a write from before the restart of this mount is lost")
                }
            }
        }
    }

    // ---- the way to the OSTs

    /// Flushes a file once its first byte is old enough, or when somebody needs it, until it has no dirty bytes.
    async fn flush_later(self: Rc<Self>, dirty: Rc<DirtyFile>) {
        while !dirty.is_clean() {
            dirty.due(&self.ctx, flush_time(self.ctx.now())).await;
            self.flush_dirty(&dirty).await;
        }
    }
    /// Sends all bytes of a file that are dirty now; returns when they are at the OSTs, or lost.
    async fn flush_dirty(&self, dirty: &DirtyFile) {
        let place = self.mount.dirty_files().log_place();
        let is_small = |range: &Extent| range.end - range.start < SMALL_BYTES;
        let (small, large): (Vec<Extent>, Vec<Extent>) = dirty.ranges().into_iter().partition(is_small);
        join_all([
            self.flush_ranges(dirty, small, SMALL_SENT_AT_A_TIME),
            self.flush_ranges(dirty, large, LARGE_SENT_AT_A_TIME),
        ])
        .await;
        let file = self.files.of(dirty.fid());
        drop(file.ranges.acquire(&self.ctx, Extent::ALL, Share::Shared).await); // those that were under way
        self.mount.dirty_files().left_before(dirty, place);
    }
    async fn flush_ranges(&self, dirty: &DirtyFile, ranges: Vec<Extent>, at_a_time: usize) {
        let senders = ranges.len().min(at_a_time);
        let ranges = RefCell::new(ranges.into_iter());
        let next = || ranges.borrow_mut().next();
        let senders = (0..senders).map(|_| async {
            while let Some(range) = next() {
                self.flush_range(dirty, range).await;
            }
        });
        join_all(senders).await;
    }
    async fn flush_range(&self, dirty: &DirtyFile, range: Extent) {
        let file = self.files.of(dirty.fid());
        // The MDT takes the bytes of a file as a whole.
        let range = if file.dom_bytes() > 0 { Extent::ALL } else { range };
        let _order = file.ranges.acquire(&self.ctx, range, Share::Exclusive).await;
        self.send_dirty(dirty, range).await;
    }
    /// Sends the dirty bytes of a range that the caller holds exclusively.
    async fn send_dirty(&self, dirty: &DirtyFile, range: Extent) {
        let Some(sent) = self.mount.dirty_files().begin(dirty, range) else { return };
        match self.files.of(dirty.fid()).dom_bytes() {
            0 => self.send_to_objects(dirty, sent).await,
            _ => self.store_data(dirty, sent).await,
        }
    }
    pub(crate) async fn send_to_objects(&self, dirty: &DirtyFile, sent: SentBytes) {
        let charged = sent.charged();
        let (open, mtime) = dirty.last_write();
        let evictions = self.mount.mdt_of(open.file.fid).map_or(0, |mdt| mdt.evictions());
        let send = async |run: Run| {
            let (offset, len) = (run.offset(), run.len());
            if let Err(error) = self.send_run(&open, run, mtime, evictions).await {
                let error = match error {
                    Failure::Errno(errno) => errno,
                    Failure::Outcome(_) => Errno::EIO, // an eviction
                };
                tracing::error!(fid = %open.file.fid, offset, len, %error,
                    "bytes that a program has written could not be stored: they are lost, and fsync or close reports it");
                open.file.write_failed(error.into());
            }
            self.mount.dirty_files().left(1, len);
        };
        let (small, large): (Vec<Run>, Vec<Run>) =
            sent.into_runs().into_iter().partition(|run| run.len() < SMALL_BYTES);
        for run in large {
            send(run).await;
        }
        let mut small = small.into_iter();
        while small.len() > 0 {
            join_all(small.by_ref().take(SMALL_SENT_AT_A_TIME).map(&send)).await;
        }
        self.mount.dirty_files().sent(dirty, charged);
    }
    async fn send_run(
        &self,
        open: &Rc<Open>,
        run: Run,
        mtime: Timestamp,
        evictions: u64,
    ) -> Result<(), Failure> {
        let file = &open.file;
        let component = file.component()?;
        let ranges = stripes::by_object(&component, run.offset(), run.len());
        let sent = ranges.iter().map(|range| {
            let data = match range.len == run.len() {
                true => run.data().to_vec(),
                false => stripes::gather_parts(range, run.data()),
            };
            async move {
                let ost = self.ost(range.ost).await?;
                let stripes::Laid { object, laid } = range.of(file.fid);
                let len = u32::try_from(range.len).expect("a piece is not longer than a request");
                let write = ManyWrite { object, laid, offset: range.offset, len, owner: file.owner(), mtime };
                match self.send_kept((range.ost, &ost), open, evictions, write, data).await {
                    Ok(state) => file.note_written(range.stripe, state),
                    Err(error) => {
                        file.note_uncertain(range.stripe);
                        return Err(error);
                    }
                }
                Ok(())
            }
        });
        join_all(sent).await.into_iter().collect()
    }

    // ---- for other operations

    /// Sends the dirty bytes of a file and waits until the OSTs have them.
    pub(crate) async fn flush_file(&self, fid: Fid) {
        if let Some(dirty) = self.mount.dirty_files().get(fid) {
            self.flush_dirty(&dirty).await;
        }
    }
    /// The same for all files.
    pub(crate) async fn flush_files(&self) {
        let files = self.mount.dirty_files().all();
        join_all(files.iter().map(|dirty| self.flush_dirty(dirty))).await;
    }
    /// A place among the operations of a file that is to change in another way than by kept writes: the OSTs have its dirty
    /// bytes. `extent`: what changes; all of the file is locked while some of it is dirty.
    pub(crate) async fn exclusive(&self, file: &FileState, extent: Extent) -> RangeGuard {
        let mut locked = extent;
        loop {
            let guard = file.ranges.acquire(&self.ctx, locked, Share::Exclusive).await;
            let Some(dirty) = self.mount.dirty_files().get(file.fid) else { return guard };
            if locked == Extent::ALL {
                self.send_dirty(&dirty, Extent::ALL).await;
                return guard;
            }
            locked = Extent::ALL;
        }
    }

    /// A place among the operations of a file for one that reads. Dirty bytes behind a write that has failed are at the OSTs:
    /// nothing else tells where the file ends.
    pub(crate) async fn shared(&self, file: &FileState, extent: Extent) -> RangeGuard {
        loop {
            let guard = file.ranges.acquire(&self.ctx, extent, Share::Shared).await;
            if !self.mount.dirty_files().has(file.fid) || file.states().is_some() {
                return guard;
            }
            drop(guard);
            drop(self.exclusive(file, Extent::ALL).await);
        }
    }
    /// The size of a file with dirty bytes. `None`: it has none. The caller holds a range of it, so that none leave.
    pub(crate) fn dirty_size(&self, file: &FileState, component: &Component) -> Option<u64> {
        self.mount.dirty_files().get(file.fid)?;
        match file.states() {
            Some(OwnChanges::States(states)) => Some(stripes::resolve(component, &states).size),
            _ => None,
        }
    }
    /// Bytes of a file from `offset` on, all of them dirty; the caller holds the range.
    pub(crate) fn read_dirty(&self, fid: Fid, offset: u64, len: u64) -> Option<Bytes> {
        let dirty = self.mount.dirty_files().get(fid)?;
        if !dirty.covers(Extent::new(offset, offset + len)) {
            return None;
        }
        let mut out = alloc::vec![0; usize::try_from(len).ok()?];
        dirty.copy_over(offset, &mut out);
        Some(Bytes::from(out))
    }
    /// Puts dirty bytes over those of the OSTs, with zeros behind these up to `len` bytes; the caller holds the range.
    pub(crate) fn with_dirty(&self, fid: Fid, offset: u64, len: u64, read: Vec<Bytes>) -> Vec<Bytes> {
        let Some(dirty) = self.mount.dirty_files().get(fid) else { return read };
        let mut out = read.concat();
        out.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
        dirty.copy_over(offset, &mut out);
        alloc::vec![Bytes::from(out)]
    }
}
