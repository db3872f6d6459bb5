//! Reading and writing: one operation is atomic with regard to every other mount.
//!
//! Operations within one object and one request are ordered by the OST, without a lock of this mount. An operation over several
//! objects takes extent locks on all of them, in stripe order; an append (`append`) takes [0, inf) on every object, so that
//! the end of the file cannot move. Writes to a file that no other mount has open may be kept for a moment (`write_back`);
//! others are sent at once. A read of a striped file that
//! returns fewer bytes than requested has met a hole or the end of the file: the size, read under a lock of the range, decides.

use crate::api::WriteArgs;
use crate::cache::in_flight::Touches;
use crate::cache::kernel::Stale;
use crate::cache::serve::ExactSize;
use crate::client::Client;
use crate::data::long_append::Piece;
use crate::data::stripes::{self, Laid, ObjectRange};
use crate::files::atime::Atime;
use crate::files::ranges::Share;
use crate::files::state::FileState;
use crate::files::table::Open;
use crate::locks::extents::GrantedExtent;
use crate::locks::under_lease::{Change, NO_LOCK};
use crate::targets::bulk_rpcs::Bulk;
use crate::targets::target::Target;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::future::Future;
use core::pin::Pin;
use nacre_node::join_all;
use nacre_types::{
    Caller, Component, Errno, Extent, Failure, Fid, LockCookie, OpenHandle, ProtocolOutcome, SetAttr,
    Timestamp, name,
};
use nacre_wire::mdt::{Getattr, Setattr};
use nacre_wire::ost::{LockMode, ObjectState, Read, SyncObject, Write};
use nacre_wire::target::Sync;

/// Largest file: offsets are signed in the kernel.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// Tries of an operation whose locks are lost with their OST's process.
pub(crate) const TRIES: u32 = 5;

/// The bytes read from one object, and its state.
type FromObject = (Vec<Bytes>, ObjectState);

/// An operation's part of one object, with the lock that covers it.
pub(crate) struct Locked {
    range: ObjectRange,
    ost: Rc<Target>,
    held: GrantedExtent,
}
impl Locked {
    pub(crate) fn cookie(&self) -> LockCookie {
        self.held.cookie()
    }
}

impl Client {
    /// At most `len` bytes; fewer only at the end of the file.
    pub async fn read(&self, handle: OpenHandle, offset: u64, len: u32) -> Result<Vec<Bytes>, Failure> {
        let _timing = self.stats.time("read");
        let open = self.handle_under_lease(handle).await?;
        let file = &open.file;
        if open.is_cached() {
            self.mount.pages().used(file.fid);
        }
        let end = offset.saturating_add(u64::from(len)).min(FILE_BYTES_MAX);
        if offset >= end {
            return Ok(Vec::new());
        }
        let _order = self.shared(file, Extent::new(offset, end)).await;
        let known = self.exact_size(file);
        if let Some(known) = known.filter(|known| known.bytes() <= offset) {
            self.note_read(&open, known.mtime());
            return Ok(Vec::new());
        }
        let component = file.component()?;
        if let Some(size) = self.dirty_size(file, &component) {
            let data = self.read_beside_dirty(&open, &component, offset, end.min(size)).await?;
            self.stats.bytes("read_bytes", data.iter().map(|b| b.len() as u64).sum());
            return Ok(data);
        }
        if file.dom_bytes() > 0
            && let Some((data, mtime)) = self.read_from_mdt(file, offset, end).await?
        {
            self.check_lease(&open).await?;
            self.note_read(&open, mtime);
            self.stats.bytes("read_bytes", data.len() as u64);
            return Ok(alloc::vec![data]);
        }
        let ranges = stripes::by_object(&component, offset, end - offset);
        if let Some((range, ost)) = self.in_one_request(&ranges).await? {
            let (data, state) = self.read_object(&ost, file.fid, range, NO_LOCK).await?;
            let read = data.iter().map(|b| b.len() as u64).sum::<u64>();
            if read == range.len || component.stripes.len() == 1 {
                self.check_lease(&open).await?;
                self.check_not_lost(file, known, (offset + read, end))?;
                self.note_read(&open, state.mtime);
                self.stats.bytes("read_bytes", read);
                return Ok(data);
            }
        }
        let (data, written_at) =
            self.retry_lost_locks(|_| self.read_locked(file, &component, &ranges, offset, end)).await?;
        self.check_lease(&open).await?;
        self.note_read(&open, written_at);
        self.stats.bytes("read_bytes", data.iter().map(|b| b.len() as u64).sum());
        Ok(data)
    }

    fn exact_size(&self, file: &FileState) -> Option<ExactSize> {
        self.mount.mdt_of(file.fid)?.exact_size(file.fid)
    }
    /// The only object of a file has no bytes from `from` on, and `known` was the size of the file before they were read. They
    /// are lost if it is behind `from`: a machine has lost them before they were durable, and their size was already.
    fn check_not_lost(
        &self,
        file: &FileState,
        known: Option<ExactSize>,
        (from, end): (u64, u64),
    ) -> Result<(), Failure> {
        let Some(known) = known.filter(|known| from < end.min(known.bytes())) else { return Ok(()) };
        if file.has_writers() || self.exact_size(file) != Some(known) {
            return Ok(()); // it is being changed
        }
        if let Some(left_out) = self.allows_line("lost bytes") {
            tracing::error!(fid = %file.fid, from, size = known.bytes(), left_out, "bytes at the end of a file are lost: they had not been synced when a server's machine failed; write or truncate the file, or remove it");
        }
        Err(Failure::EIO)
    }

    /// Reads a file of which some bytes are dirty, up to `end`, which is at most its size.
    async fn read_beside_dirty(
        &self,
        open: &Open,
        component: &Component,
        offset: u64,
        end: u64,
    ) -> Result<Vec<Bytes>, Failure> {
        let file = &open.file;
        let len = end.saturating_sub(offset);
        if len == 0 {
            return Ok(Vec::new());
        }
        if let Some(data) = self.read_dirty(file.fid, offset, len) {
            self.note_access(file, open.atime(self.atime()));
            return Ok(alloc::vec![data]);
        }
        let ranges = stripes::by_object(component, offset, len);
        let (data, written_at) = match self.in_one_request(&ranges).await? {
            Some((range, ost)) => {
                let (data, state) = self.read_object(&ost, file.fid, range, NO_LOCK).await?;
                (data, state.mtime)
            }
            None => {
                self.retry_lost_locks(|_| self.read_locked(file, component, &ranges, offset, end)).await?
            }
        };
        self.check_lease(open).await?;
        self.note_read(open, written_at);
        Ok(self.with_dirty(file.fid, offset, len, data))
    }

    /// A read of an object that was last written at `written_at` has succeeded.
    fn note_read(&self, open: &Open, written_at: Timestamp) {
        open.file.accessed.changed(written_at);
        self.note_access(&open.file, open.atime(self.atime()));
    }
    /// The bytes of a file, or the names of a directory, were read.
    pub(crate) fn note_access(&self, file: &FileState, atime: Atime) {
        if atime != Atime::Never && !self.is_read_only() {
            file.accessed.note_read(atime, self.now());
        }
    }

    /// Bytes written (all of them, or an error).
    pub async fn write(&self, args: WriteArgs) -> Result<u32, Failure> {
        let _timing = self.stats.time("write");
        let open = self.handle_under_lease(args.handle).await?;
        let file = &open.file;
        let len = args.data.len() as u64;
        if len == 0 {
            return Ok(0);
        }
        match &args.kill_suidgid {
            Some(caller) => self.kill_privileges(&open, caller).await?,
            None => self.drop_capability(file).await?,
        }
        let is_whole = args.append || file.dom_bytes() > 0;
        let extent =
            if is_whole { Extent::ALL } else { Extent::new(args.offset, args.offset.saturating_add(len)) };
        let has_room = self.room_to_write_back(&open, &args).await;
        let before =
            if args.append { file.long_append.next_piece(args.handle, args.offset, len) } else { None };
        let is_alone = before.is_none() && args.call_bytes <= len;
        let (rest, locks, order) = match before {
            Some(pending) => {
                let (rest, locks, order) = pending.into_parts();
                (rest - len, locks, order)
            }
            None => {
                let order = file.ranges.acquire(&self.ctx, extent, Share::Exclusive).await;
                (args.call_bytes.saturating_sub(len), Vec::new(), order)
            }
        };
        let component = file.component()?;
        let may_keep = has_room && (is_alone || !args.append);
        if self.keep_write(&open, &component, &args, may_keep).await? {
            drop(order);
            self.check_lease(&open).await?;
            self.stats.bytes("write_bytes", len);
            return u32::try_from(len).map_err(|_| Failure::EINVAL);
        }
        let order = match self.mount.dirty_files().has(file.fid) {
            true => {
                drop(order);
                self.exclusive(file, extent).await
            }
            false => order,
        };
        let written = if args.append {
            let (written, locks) = self.append(&open, &component, &args.data, locks, rest > 0).await?;
            if rest > 0 {
                let piece = Piece::new(args.handle, args.offset, len, rest);
                self.await_next_piece(file, &piece, locks, order);
            }
            written
        } else {
            check_end(args.offset, len)?;
            let ranges = stripes::by_object(&component, args.offset, len);
            self.write_ranges(&open, ranges, &args.data).await?
        };
        if args.sync {
            self.sync_objects(file.fid, &component, &written).await?;
            self.sync_inode(file).await?;
        }
        self.check_lease(&open).await?;
        self.stats.bytes("write_bytes", len);
        u32::try_from(len).map_err(|_| Failure::EINVAL)
    }

    /// Whether a change of a file's bytes by this ordinary user may take something away: its groups matter then.
    pub fn may_lose_privileges(&self, handle: OpenHandle, caller: &Caller) -> bool {
        let loses = |file: &FileState| !self.knows_privileges(file) || file.loses_privileges(caller);
        self.files.handle(handle).is_ok_and(|open| loses(&open.file))
    }

    /// Set-id bits and capabilities of a file were just learned.
    pub(crate) fn learned_privileges(&self, file: &FileState) {
        file.privileges_learned(self.permissions_serial(file.fid));
    }
    fn permissions_serial(&self, fid: Fid) -> Option<u64> {
        self.mount.mdt_of(fid)?.permissions_serial(fid)
    }
    fn knows_privileges(&self, file: &FileState) -> bool {
        let learned = file.privileges_at();
        learned.is_some() && learned == self.permissions_serial(file.fid)
    }
    /// Learns set-id bits and capabilities again if another mount may have set them since.
    async fn know_privileges(&self, file: &FileState) -> Result<(), Failure> {
        if !self.knows_privileges(file) {
            let reply = self.mdt_of(file.fid).await?.read_inode(&Getattr { fid: file.fid }).await?;
            file.learn(&self.settled(reply));
            self.learned_privileges(file);
        }
        Ok(())
    }

    /// Takes set-id bits and file capabilities away before an ordinary user changes the bytes.
    pub(crate) async fn kill_privileges(&self, open: &Open, caller: &Caller) -> Result<(), Failure> {
        self.know_privileges(&open.file).await?;
        self.kill_known_privileges(open, caller).await
    }
    /// The same when the attributes have just been learned.
    pub(crate) async fn kill_known_privileges(&self, open: &Open, caller: &Caller) -> Result<(), Failure> {
        let file = &open.file;
        if file.loses_privileges(caller) {
            let set = SetAttr { kill_suidgid: true, ..SetAttr::default() };
            let request = Setattr { fid: file.fid, set, caller: caller.clone(), time: self.now() };
            let mdt = self.mdt_of(file.fid).await?;
            file.learn(&mdt.change_inode(Touches::inode(file.fid), &request).await?);
            self.learned_privileges(file);
            // It did not ask for this change, and would let everybody run the file with the rights that it has lost.
            mdt.kernel_forgets(Stale::Inode(file.fid)).await;
        }
        Ok(())
    }

    /// Takes file capabilities away before a privileged caller changes the bytes, which leaves set-id bits alone.
    async fn drop_capability(&self, file: &FileState) -> Result<(), Failure> {
        self.know_privileges(file).await?;
        if !file.has_privileges() {
            return Ok(());
        }
        let removed = match self.getxattr(file.fid, name::CAPABILITY).await {
            Ok(_) => self.removexattr(file.fid, name::CAPABILITY).await,
            Err(error) => Err(error),
        };
        match removed {
            Err(Failure::ENODATA) => Ok(()),
            removed => removed,
        }
    }

    /// The range and its OST if one request transfers all ranges.
    async fn in_one_request<'a>(
        &self,
        ranges: &'a [ObjectRange],
    ) -> Result<Option<(&'a ObjectRange, Rc<Target>)>, Failure> {
        let [range] = ranges else { return Ok(None) };
        let ost = self.ost(range.ost).await?;
        Ok((range.len <= ost.rpc_bytes_max()).then_some((range, ost)))
    }
    async fn write_ranges(
        &self,
        open: &Open,
        ranges: Vec<ObjectRange>,
        data: &Bytes,
    ) -> Result<Vec<u32>, Failure> {
        let mtime = self.now();
        if let Some((range, ost)) = self.in_one_request(&ranges).await? {
            self.write_object(&ost, open, range, data, NO_LOCK, mtime).await?;
        } else {
            self.retry_lost_locks(|first| self.write_locked(open, &ranges, data, mtime, first)).await?;
        }
        Ok(ranges.iter().map(|r| r.stripe).collect())
    }

    /// Repeats an operation whose locks were lost with their server's process ([`ProtocolOutcome::LockLost`]). The argument of
    /// `operation` tells whether this is the first try: later ones must be completed even if the caller has cancelled.
    pub(crate) async fn retry_lost_locks<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        operation: impl Fn(bool) -> F,
    ) -> Result<T, Failure> {
        for number in 1..TRIES {
            match operation(number == 1).await {
                Err(Failure::Outcome(ProtocolOutcome::LockLost)) => {}
                other => return other,
            }
        }
        operation(false).await
    }

    pub(crate) async fn lock_ranges(
        &self,
        fid: Fid,
        ranges: &[ObjectRange],
        lock_mode: LockMode,
        leaves: bool,
    ) -> Result<Vec<Locked>, Failure> {
        let mut locked = Vec::with_capacity(ranges.len());
        let kept = ranges.len() > 1 && lock_mode != LockMode::Pr;
        for range in ranges {
            let ost = self.ost(range.ost).await?;
            let held = self.lock_extent(&ost, range.of(fid), lock_mode, range.extent(), kept, leaves).await?;
            locked.push(Locked { range: range.clone(), ost, held });
        }
        Ok(locked)
    }

    /// The bytes, and when they were last written.
    async fn read_locked(
        &self,
        file: &FileState,
        component: &Component,
        ranges: &[ObjectRange],
        offset: u64,
        end: u64,
    ) -> Result<(Vec<Bytes>, Timestamp), Failure> {
        let locked = self.lock_ranges(file.fid, ranges, LockMode::Pr, true).await?;
        let reads = locked.iter().map(|l| async {
            if l.held.state().size <= l.range.offset {
                return Ok((Vec::new(), l.held.state()));
            }
            self.read_object(&l.ost, file.fid, &l.range, l.held.cookie()).await
        });
        let read: Vec<FromObject> = join_all(reads).await.into_iter().collect::<Result<_, _>>()?;
        let is_whole = read
            .iter()
            .zip(ranges)
            .all(|((data, _), r)| data.iter().map(|b| b.len() as u64).sum::<u64>() == r.len);
        let len = if is_whole {
            end - offset
        } else {
            // No client can truncate the file inside the range while it is locked, so the largest size is right.
            let others: Vec<u32> = (0u32..)
                .take(component.stripes.len())
                .filter(|stripe| ranges.iter().all(|r| r.stripe != *stripe))
                .collect();
            let states = self.glimpse(file.fid, component, &others).await?;
            let seen = ranges.iter().map(|r| r.stripe).zip(read.iter().map(|(_, state)| *state));
            let size = others.iter().copied().zip(states).chain(seen);
            let size = size.map(|(stripe, state)| component.file_size(stripe, state.size)).max().unwrap_or(0);
            size.clamp(offset, end) - offset
        };
        let written_at = read.iter().map(|(_, state)| state.mtime).max().unwrap_or_default();
        let data: Vec<Vec<Bytes>> = read.into_iter().map(|(data, _)| data).collect();
        Ok((stripes::assemble(ranges, &data, len), written_at))
    }

    async fn write_locked(
        &self,
        open: &Open,
        ranges: &[ObjectRange],
        data: &Bytes,
        mtime: Timestamp,
        leaves: bool,
    ) -> Result<(), Failure> {
        let locked = self.lock_ranges(open.file.fid, ranges, LockMode::Pw, leaves).await?;
        let writes =
            locked.iter().map(|l| self.write_object(&l.ost, open, &l.range, data, l.held.cookie(), mtime));
        join_all(writes).await.into_iter().collect()
    }

    /// Reads one object's range; ends where the object ends.
    pub(crate) async fn read_object(
        &self,
        ost: &Target,
        fid: Fid,
        range: &ObjectRange,
        lock: LockCookie,
    ) -> Result<FromObject, Failure> {
        let Laid { object, laid } = range.of(fid);
        let _room = if lock == NO_LOCK { Some(ost.unlocked_read().await) } else { None };
        let mut data = Vec::new();
        let mut done = 0;
        loop {
            let len = (range.len - done).min(ost.rpc_bytes_max());
            let request = Read { object, laid, offset: range.offset + done, len: len as u32, lock };
            let _in_flight = ost.bulk().begin(Bulk::Read, request.offset, len);
            let mut reply = ost.send(ost.request(&request)).await?;
            let bulk = stripes::split_front(&mut reply.frame.bulk, len as usize);
            let read = bulk.iter().map(|b| b.len() as u64).sum::<u64>();
            data.extend(bulk);
            done += read;
            if read < len || done == range.len {
                return Ok((data, reply.body.state));
            }
        }
    }

    pub(crate) async fn write_object(
        &self,
        ost: &Target,
        open: &Open,
        range: &ObjectRange,
        data: &Bytes,
        lock: LockCookie,
        mtime: Timestamp,
    ) -> Result<(), Failure> {
        let file = &open.file;
        let Laid { object, laid } = range.of(file.fid);
        let _room = if lock == NO_LOCK { Some(ost.unlocked_write().await) } else { None };
        let mut buffers = alloc::vec![stripes::gather(range, data)];
        let mut done = 0;
        while done < range.len {
            let len = (range.len - done).min(ost.rpc_bytes_max());
            let request =
                Write { object, laid, offset: range.offset + done, owner: file.owner(), mtime, lock };
            let bulk = stripes::split_front(&mut buffers, len as usize);
            let _in_flight = ost.bulk().begin(Bulk::Write, request.offset, len);
            match self.change_object(ost, Change::through(open), lock, &request, bulk).await {
                Ok(reply) => file.note_written(range.stripe, reply.state),
                Err(e) => {
                    file.note_uncertain(range.stripe);
                    return Err(e);
                }
            }
            done += len;
        }
        Ok(())
    }

    /// The file's bytes and its inode are durable when it returns; fdatasync(2) is the same, since sizes live with the
    /// objects and every inode change is one log record. A handle that has lost its locks fails here: the next step of
    /// its caller (removal of a journal) would change the files of the next holder.
    pub async fn fsync(&self, fid: Fid, handle: Option<OpenHandle>) -> Result<(), Failure> {
        type Half<'a> = Pin<Box<dyn Future<Output = Result<(), Failure>> + 'a>>;
        let _timing = self.stats.time("fsync");
        let open = match handle {
            Some(handle) => Some(self.handle_under_lease(handle).await?),
            None => None,
        };
        let Some(file) = self.files.used(fid) else {
            return self.mdt_of(fid).await?.call(&Sync {}).await.map(drop);
        };
        self.flush_file(fid).await;
        // The log of the MDT is synced while the OSTs sync: neither depends on the other, and both have to succeed.
        let objects = async {
            let Some(component) = file.known_component().filter(|_| file.dom_bytes() == 0) else {
                return Ok(());
            };
            let stripes: Vec<u32> = (0u32..).take(component.stripes.len()).collect();
            self.sync_objects(fid, &component, &stripes).await
        };
        let halves: [Half<'_>; 2] = [Box::pin(objects), Box::pin(self.sync_inode(&file))];
        join_all(halves).await.into_iter().collect::<Result<(), Failure>>()?;
        match open {
            Some(open) => {
                self.check_lease(&open).await?;
                open.report_failed_writes()
            }
            None => Ok(()),
        }
    }

    async fn sync_objects(&self, fid: Fid, component: &Component, stripes: &[u32]) -> Result<(), Failure> {
        let one = |stripe: u32| async move {
            let Some(&ost) = component.stripes.get(stripe as usize) else { return Err(Failure::EIO) };
            let Laid { object, laid } = Laid::new(component, fid, stripe);
            match self.ost(ost).await?.call(&SyncObject { object, laid }).await {
                Ok(_) | Err(Failure::ENOENT) => Ok(()),
                Err(e) => Err(e),
            }
        };
        join_all(stripes.iter().map(|&stripe| one(stripe))).await.into_iter().collect()
    }

    /// The inode is durable. A sync that would find nothing new of this mount since the last one is left out.
    async fn sync_inode(&self, file: &FileState) -> Result<(), Failure> {
        let mdt = self.mdt_of(file.fid).await?;
        let point = file.sync_point(mdt.changes());
        if !file.is_synced_at(point) {
            mdt.call(&Sync {}).await?;
            file.set_synced_at(point);
        }
        Ok(())
    }

    /// Everything this mount has completed is durable when it returns (`nacre sync`).
    pub async fn sync_all(&self) -> Result<(), Failure> {
        self.root_mdt().await?;
        self.late_handles_ended().await;
        self.flush_files().await;
        self.send_kept_closes().await;
        let mut targets = self.mount.osts();
        targets.extend(self.mount.mdts().iter().map(|mdt| mdt.target().clone()));
        let synced = join_all(targets.iter().map(|target| target.call(&Sync {}))).await;
        synced.into_iter().try_for_each(|result| result.map(|_| ()))
    }
}

/// EFBIG for what no file can hold.
pub(crate) fn check_end(offset: u64, len: u64) -> Result<(), Errno> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        _ => Err(Errno::EFBIG),
    }
}
