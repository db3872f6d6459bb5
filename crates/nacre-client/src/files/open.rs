//! Opens and the end of handles. No kernel descriptor per open.
//!
//! Invariant: a close of a written file is sent while no other operation of this mount on the file is under way. The MDT trusts
//! a close's size only if no other client could have changed the file since; otherwise it asks the OSTs itself.

use crate::api::{CreateArgs, ResolvedInode};
use crate::cache::in_flight::Touches;
use crate::cache::tables::NameEffect;
use crate::client::Client;
use crate::data::stripes;
use crate::files::dirty_files::{DirtyFile, SentBytes};
use crate::files::ranges::Share;
use crate::files::state::FileState;
use crate::files::table::Open;
use crate::metadata::namespace::created;
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_types::{Attr, Caller, Extent, Failure, Fid, FileType, Name, OpenHandle, SetAttr, mode};
use nacre_wire::mdt::{
    Close, CreateReply, EntryReply, FlockFamily, NOT_REPORTED, Open as OpenRequest, OpenHow, Written,
    open_flags,
};
use nacre_wire::ost::ObjectState;

impl Client {
    /// Creates and opens in one request. `flags` of open(2).
    pub async fn create(
        &self,
        args: CreateArgs<'_>,
        flags: u32,
    ) -> Result<(ResolvedInode, OpenHandle), Failure> {
        let _timing = self.stats.time("create");
        self.check_writable()?;
        if FileType::of_mode(args.mode) != Some(FileType::Regular) {
            return Err(Failure::EINVAL);
        }
        let how =
            OpenHow { handle: self.new_handle(), flags: flags & (open_flags::ACCMODE | open_flags::APPEND) };
        // The MDT must know that an existing file will be truncated: the kernel has not checked that permission.
        let asked =
            self.asking_for_write_back(OpenHow { flags: how.flags | flags & open_flags::TRUNC, ..how });
        let mdt = self.mdt_of(args.parent).await?;
        let name = Some(Name::new(args.name)?);
        let request = self.create_request(&mdt, args.clone(), name, Some(asked)).await?;
        let touches = Touches::names(&[(args.parent, args.name)]).and_opens_for_write();
        let reply = mdt.change(touches, &request, created).await?;
        let open = self.opened(&reply.entry, how, flags, reply.created);
        if open.is_writer() && !reply.created {
            mdt.no_close_is_kept(reply.entry.attr.fid).await;
        }
        let resolved = if reply.created {
            Ok(self.settled_new(&reply.entry))
        } else if flags & open_flags::TRUNC != 0 {
            // The kernel assumes that it has created the file, and does not truncate it.
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            self.truncate(reply.entry.attr.fid, 0, set, args.caller, Some(&open)).await
        } else {
            self.resolve(reply.entry).await
        };
        self.opened_as(resolved, how.handle).await
    }
    /// The result of an open. Nobody else closes the handle of one that fails.
    async fn opened_as(
        &self,
        resolved: Result<ResolvedInode, Failure>,
        handle: OpenHandle,
    ) -> Result<(ResolvedInode, OpenHandle), Failure> {
        match resolved {
            Ok(entry) => Ok((entry, handle)),
            Err(e) => {
                self.release_now(handle).await;
                Err(e)
            }
        }
    }

    /// Creates a regular file without a name, as open(2) with O_TMPFILE does, and opens it. It goes with its last handle,
    /// unless [`Client::link`] has given it a name. `args.name` is not used.
    pub async fn create_unnamed(
        &self,
        args: CreateArgs<'_>,
        flags: u32,
    ) -> Result<(ResolvedInode, OpenHandle), Failure> {
        let _timing = self.stats.time("create");
        self.check_writable()?;
        if FileType::of_mode(args.mode) != Some(FileType::Regular) {
            return Err(Failure::EINVAL);
        }
        let how =
            OpenHow { handle: self.new_handle(), flags: flags & (open_flags::ACCMODE | open_flags::APPEND) };
        let mdt = self.mdt_of(args.parent).await?;
        let request = self.create_request(&mdt, args, None, Some(how)).await?;
        let reply = mdt.change(Touches::default(), &request, created_unnamed).await?;
        self.opened(&reply.entry, how, flags, true);
        Ok((self.settled_new(&reply.entry), how.handle))
    }

    /// Opens a file by FID. `flags` of open(2).
    pub async fn open(
        &self,
        fid: Fid,
        flags: u32,
        caller: Caller,
    ) -> Result<(ResolvedInode, OpenHandle), Failure> {
        let _timing = self.stats.time("open");
        if flags & open_flags::ACCMODE != 0 {
            self.check_writable()?;
        }
        let how =
            OpenHow { handle: self.new_handle(), flags: flags & (open_flags::ACCMODE | open_flags::APPEND) };
        let mdt = self.mdt_of(fid).await?;
        let is_reader = how.flags & open_flags::ACCMODE == 0;
        // A reader beside a writer could not use the kernel's page cache.
        if self.files.used(fid).is_some_and(|file| file.has_writers()) {
            mdt.late_releases().ended(&self.ctx, &[fid]).await;
        }
        let reply = match if is_reader { mdt.openable(fid) } else { None } {
            Some(known) => {
                mdt.late_opens().add(&self.opened(&known, how, flags, false));
                known
            }
            None => {
                if !is_reader {
                    mdt.no_close_is_kept(fid).await;
                }
                let asked = self.asking_for_write_back(how);
                let reply = mdt.open(&OpenRequest { fid, how: asked, caller }).await?;
                self.opened(&reply, how, flags, false);
                reply
            }
        };
        self.opened_as(self.resolve(reply).await, how.handle).await
    }

    /// An open as it is sent: a mount that keeps bytes has the MDT note all opens of the file.
    fn asking_for_write_back(&self, how: OpenHow) -> OpenHow {
        let is_writer = how.flags & open_flags::ACCMODE != 0;
        let asks = is_writer && self.mount.dirty_files().is_on();
        OpenHow { flags: how.flags | if asks { open_flags::WRITE_BACK } else { 0 }, ..how }
    }

    fn opened(&self, reply: &EntryReply, how: OpenHow, asked: u32, created: bool) -> Rc<Open> {
        let file = self.files.of(reply.attr.fid);
        file.learn(reply);
        self.learned_privileges(&file);
        let noatime = asked & open_flags::NOATIME != 0;
        let open = Open::new(how.handle, file, how.flags, noatime);
        if open.is_writer() {
            open.file.writer_opened(created);
            self.mount.pages().ended(open.file.fid);
            if let Some(mdt) = self.mount.mdt_of(open.file.fid) {
                mdt.kept_closes().writer_opened(open.file.fid);
            }
        }
        let open = Rc::new(open);
        self.files.insert(open.clone());
        open
    }

    /// Last close: `flock_owner` drops that flock; whatever OFD locks the handle has go too.
    pub async fn release(&self, handle: OpenHandle, flock_owner: Option<u64>) -> Result<(), Failure> {
        let _timing = self.stats.time("close");
        if flock_owner.is_none()
            && let Ok(open) = self.files.handle(handle)
            && self.release_later(&open)
        {
            if open.is_cached() {
                self.mount.pages().closed(open.file.fid);
                open.set_cached(false);
            }
            open.file.long_append.end_of(handle);
            return Ok(());
        }
        self.end_handle(handle, flock_owner).await
    }

    /// Has a handle end later, if it may. Its program has closed it.
    fn release_later(&self, open: &Open) -> bool {
        let fid = open.file.fid;
        if open.is_stale() || open.is_reopening() || open.has_lock_owners() {
            return false;
        }
        let Some(mdt) = self.mount.mdt_of(fid).filter(|mdt| mdt.late_releases().has_room()) else {
            return false;
        };
        let is_worth_it = match open.is_writer() {
            true => self.mount.dirty_files().has(fid) && mdt.may_write_back(fid),
            false => {
                let has_report = open.file.accessed.pending().is_some();
                has_report && mdt.may_close_later(fid) && mdt.cache().has_inode(fid)
            }
        };
        if !is_worth_it {
            return false;
        }
        if mdt.late_releases().add(fid, open.handle) {
            self.ctx.spawn(self.me().end_late_handles(mdt));
        }
        true
    }
    async fn end_late_handles(self: Rc<Self>, mdt: Rc<Mdt>) {
        for (fid, handle) in mdt.late_releases().take(&self.ctx).await {
            let (client, mdt) = (self.clone(), mdt.clone());
            self.ctx.spawn(async move {
                // The unmount may have ended it.
                if client.files.contains(handle) {
                    client.release_now(handle).await;
                }
                mdt.late_releases().end(fid);
            });
        }
    }

    /// Ends a handle, here and at the MDT.
    async fn end_handle(&self, handle: OpenHandle, flock_owner: Option<u64>) -> Result<(), Failure> {
        let open = self.files.remove(handle).ok_or(Failure::EBADF)?;
        if open.is_cached() {
            self.mount.pages().closed(open.file.fid);
        }
        self.lost.closed(handle);
        open.file.long_append.end_of(handle);
        // Bytes for the MDT go with the close.
        if open.is_writer() && (open.file.dom_bytes() == 0 || open.is_stale()) {
            self.flush_file(open.file.fid).await;
        }
        if let Some(owner) = flock_owner {
            open.add_lock_owner(FlockFamily::Flock, owner);
        }
        if open.is_writer() || open.has_lock_owners() {
            self.wait_for_writes(&open.file).await;
        }
        if open.is_stale() {
            if open.is_writer() {
                let dirty = open.file.is_dirty();
                let _changed = dirty.then(|| open.file.begin_dirty_close());
                open.file.writer_closed();
                if dirty {
                    self.reopen_and_close(&open).await;
                }
            }
            return Ok(());
        }
        self.drop_locks_of(&open).await;
        self.close(&open).await
    }

    async fn release_now(&self, handle: OpenHandle) {
        if let Err(error) = self.end_handle(handle, None).await {
            tracing::warn!(handle = handle.0, %error, "a handle could not be closed at the MDT");
        }
    }

    async fn close(&self, open: &Open) -> Result<(), Failure> {
        let (dirty, closed) = self.end_at_mdt(open).await;
        if dirty && matches!(closed, Err(Failure::EBADF | Failure::EIO)) {
            self.reopen_and_close(open).await;
        }
        match closed {
            // Evicted before it came to the MDT: the open went with the export.
            Err(Failure::EBADF) => Ok(()),
            other => other,
        }
    }

    /// After an eviction during the close: the MDT determined the size when it evicted the mount, which may have
    /// written since.
    async fn reopen_and_close(&self, open: &Open) {
        let (fid, handle) = (open.file.fid, self.new_handle());
        let request =
            OpenRequest { fid, how: OpenHow { handle, flags: open.flags() }, caller: Caller::root() };
        let Ok(mdt) = self.mdt_of(fid).await else { return };
        // An error means that the file is gone, and its size with it.
        if mdt.open(&request).await.is_ok()
            && let Err(error) = mdt
                .send_or_queue_close(Close {
                    fid,
                    handle,
                    dirty: true,
                    written: None,
                    atime: None,
                    data: None,
                })
                .await
        {
            tracing::error!(%fid, %error, "evicted again while a written file was closed: its size may be an old one");
        }
    }

    /// Waits for writes that are under way, of callers that were killed, before locks are dropped and a handle says what it
    /// has written.
    pub(crate) async fn wait_for_writes(&self, file: &FileState) {
        if !file.ranges.is_idle() {
            drop(file.ranges.acquire(&self.ctx, Extent::ALL, Share::Shared).await);
        }
    }

    /// Ends the handle at the MDT; returns whether the file was written, and the outcome.
    async fn end_at_mdt(&self, open: &Open) -> (bool, Result<(), Failure>) {
        let file = &open.file;
        let mdt = match self.mdt_of(file.fid).await {
            Ok(mdt) => mdt,
            Err(error) => return (open.is_writer() && file.is_dirty(), Err(error.into())),
        };
        if !open.is_writer() {
            return self.send_close(&mdt, open).await;
        }
        let closing = mdt.local_flocks().request(file.fid);
        mdt.report_flocks(&[file.fid]).await;
        let closed = self.send_close(&mdt, open).await;
        closing.ended(!file.flocks().is_empty());
        closed
    }

    async fn send_close(&self, mdt: &Rc<Mdt>, open: &Open) -> (bool, Result<(), Failure>) {
        let file = &open.file;
        let dirty = open.is_writer() && file.is_dirty();
        mdt.late_opens().reported(open).await;
        if mdt.late_opens().remove(open) {
            let close = Close {
                fid: file.fid,
                handle: NOT_REPORTED,
                dirty: false,
                written: None,
                atime: None,
                data: None,
            };
            let is_read = file.accessed.pending().is_some();
            let closed = if is_read { self.close_accessed(mdt, file, close).await } else { Ok(()) };
            return (false, closed);
        }
        if !dirty {
            if open.is_writer() {
                file.writer_closed();
                mdt.note_change();
            }
            let is_alone = !open.is_writer() || !file.has_writers();
            let says_nothing = file.accessed.pending().is_none() && !open.is_reopening();
            if is_alone && says_nothing && mdt.keep_close(file.fid, open.handle, open.is_writer()) {
                return (false, Ok(()));
            }
            let close = Close {
                fid: file.fid,
                handle: open.handle,
                dirty: false,
                written: None,
                atime: None,
                data: None,
            };
            return (false, self.close_accessed(mdt, file, close).await);
        }
        if let Some((_alone, written, data)) = self.take_data(file).await
            && let Some(closed) = self.close_with_data(mdt, open, &written, data).await
        {
            return (true, closed);
        }
        let _alone = self.exclusive(file, Extent::ALL).await;
        let (written, certain) = self.written(file).await;
        let _changed = file.begin_dirty_close();
        file.writer_closed();
        mdt.note_change();
        // Uncertain sizes are not reported: the MDT asks the OSTs itself, later.
        let written = written.filter(|_| certain);
        let close =
            Close { fid: file.fid, handle: open.handle, dirty: true, written, atime: None, data: None };
        (true, self.close_accessed(mdt, file, close).await)
    }

    /// Closes a file with all of its bytes, for the MDT. `None`: the bytes are in objects now, and the handle is still to be
    /// closed.
    async fn close_with_data(
        &self,
        mdt: &Rc<Mdt>,
        open: &Open,
        dirty: &DirtyFile,
        data: SentBytes,
    ) -> Option<Result<(), Failure>> {
        let file = &open.file;
        let component = file.component().ok()?;
        let states: Vec<ObjectState> =
            file.known_states().into_iter().map(Option::unwrap_or_default).collect();
        let written = Written { mtime: dirty.last_write().1, ..stripes::resolve(&component, &states) };
        let close = Close {
            fid: file.fid,
            handle: open.handle,
            dirty: true,
            written: Some(written),
            atime: None,
            data: Some(data.all_bytes()),
        };
        let changed = file.begin_dirty_close();
        mdt.note_change();
        let closed = self.close_accessed(mdt, file, close).await;
        drop(changed);
        if let Err(failure) = closed {
            self.not_stored(failure, dirty, data).await.then(|| file.writer_closed())?;
        } else {
            self.stored(dirty, &data);
            file.writer_closed();
        }
        Some(closed)
    }

    /// Sends a close with the access time that the MDT has not recorded.
    async fn close_accessed(&self, mdt: &Rc<Mdt>, file: &FileState, close: Close) -> Result<(), Failure> {
        let atime = file.accessed.pending();
        mdt.send_or_queue_close(Close { atime, ..close }).await?;
        if let Some(atime) = atime {
            file.accessed.recorded(atime);
            mdt.cache().accessed(file.fid, atime);
        }
        Ok(())
    }

    /// Size and times that a close may report, and whether they are certain.
    async fn written(&self, file: &FileState) -> (Option<Written>, bool) {
        let Ok(component) = file.component() else { return (None, false) };
        let stripe_count = component.stripes.len();
        let mut states = file.known_states();
        states.resize(stripe_count, None);
        let unknown: Vec<u32> =
            (0u32..).zip(&states).filter(|(_, state)| state.is_none()).map(|(stripe, _)| stripe).collect();
        let asked = if unknown.is_empty() {
            Ok(Vec::new())
        } else if file.dom_bytes() > 0 {
            return (None, false); // the MDT knows them
        } else {
            self.glimpse(file.fid, &component, &unknown).await
        };
        let certain = asked.is_ok();
        for (stripe, state) in unknown.iter().zip(asked.unwrap_or_default()) {
            states[*stripe as usize] = Some(state);
        }
        let states: Vec<ObjectState> = states.into_iter().map(Option::unwrap_or_default).collect();
        (Some(stripes::resolve(&component, &states)), certain)
    }

    /// Closes every handle. An MDT that does not reply causes one line in the log.
    pub(crate) async fn close_all(&self) {
        let handles: Vec<OpenHandle> = self.files.all().iter().map(|open| open.handle).collect();
        let mut failed = Vec::new();
        for handle in handles {
            failed.extend(self.end_handle(handle, None).await.err());
        }
        if let Some(error) = failed.last() {
            tracing::warn!(handles = failed.len(), %error, "open files could not be closed at the MDT");
        }
    }
}

/// Whether a mode is that of a regular file.
pub(crate) fn is_regular(attr: &Attr) -> bool {
    attr.mode & mode::FMT == mode::REG
}

fn created_unnamed(reply: &CreateReply) -> (NameEffect, Option<&EntryReply>, bool) {
    (NameEffect::None, Some(&reply.entry), false)
}
