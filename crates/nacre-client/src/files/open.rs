//! Open handles, and what this mount knows of the files behind them. No kernel descriptor per open.
//!
//! Invariants: (1) a [`FileState`] is in the table as long as somebody refers to it; (2) what it knows of objects comes
//! from replies to this mount since its first writer opened, and is forgotten with the last one, so that a close
//! never reports what another mount may have changed in between; (3) a close of a written file is sent while no
//! other operation of this mount on the file is under way. The MDT trusts a close's size only if no other
//! client could have changed the file since; otherwise it asks the OSTs itself.

use crate::cache::dirs::Touches;
use crate::client::{Client, CreateArgs, Entry};
use crate::data::long_append::LongAppend;
use crate::data::stripes;
use crate::files::atime::{Accessed, Atime, AtimePolicy};
use crate::files::ranges::{RangeLock, Share};
use crate::targets::target::Target;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Deref;
use nacre_dlm::client::GrantedFlocks;
use nacre_types::{
    Attr, Caller, Component, Errno, Extent, Fid, FileType, Layout, OpenHandle, OstIndex, Owner, SetAttr, mode,
};
use nacre_wire::mdt::{Close, EntryReply, FlockFamily, Open as OpenRequest, OpenHow, Written, open_flags};
use nacre_wire::ost::ObjectState;

/// What this mount knows of a file that it uses.
pub(crate) struct FileState {
    pub(crate) fid: Fid,
    /// Order of this mount's operations on the file.
    pub(crate) ranges: RangeLock,
    pub(crate) long_append: LongAppend,
    pub(crate) component: RefCell<Option<Rc<Component>>>,
    owner: Cell<Owner>,
    /// A write by an ordinary user must take set-id bits away first.
    kill_priv: Cell<bool>,
    /// One by somebody who is not in the group must take the set-group-id bit away.
    set_gid: Cell<bool>,
    /// Handles open for writing.
    writers: Cell<u32>,
    /// Last known state per object, while there are writers.
    known: RefCell<Vec<Option<ObjectState>>>,
    /// Something was written since the first writer opened.
    dirty: Cell<bool>,
    /// The MDT has evicted this mount while there were writers: others may have changed the file since, so replies to
    /// this mount tell nothing until the last of those writers is gone.
    others_wrote: Cell<bool>,
    /// Count of this mount's metadata changes when the MDT was last synced for this file.
    pub(crate) synced_at: Cell<Option<u64>>,
    /// File locks were taken through some handle of it: only then a close has to look for them in all of them.
    pub(crate) was_locked: Cell<bool>,
    pub(crate) granted_flocks: RefCell<GrantedFlocks>,
    pub(crate) accessed: Accessed,
}

impl FileState {
    fn new(fid: Fid) -> Self {
        Self {
            fid,
            ranges: RangeLock::default(),
            long_append: LongAppend::default(),
            component: RefCell::default(),
            owner: Cell::default(),
            kill_priv: Cell::new(false),
            set_gid: Cell::new(false),
            writers: Cell::new(0),
            known: RefCell::default(),
            dirty: Cell::new(false),
            others_wrote: Cell::new(false),
            synced_at: Cell::new(None),
            was_locked: Cell::new(false),
            granted_flocks: RefCell::default(),
            accessed: Accessed::default(),
        }
    }
    /// Takes in a reply about the inode.
    pub(crate) fn learn(&self, reply: &EntryReply) {
        let Attr { uid, gid, projid, .. } = reply.attr;
        self.owner.set(Owner { uid, gid, projid });
        self.kill_priv.set(reply.kill_priv);
        self.set_gid.set(reply.attr.mode & mode::SGID != 0);
        self.accessed.learn(&reply.attr);
        if let Some(layout) = &reply.layout {
            self.learn_layout(layout);
        }
    }
    /// Whether a change of the bytes by an ordinary user takes something away.
    pub(crate) fn loses_privileges(&self, caller: &Caller) -> bool {
        self.kill_priv.get() || self.set_gid.get() && !caller.in_group(self.owner().gid)
    }
    pub(crate) fn learn_layout(&self, layout: &Layout) {
        *self.component.borrow_mut() = stripes::only_component(layout).cloned().map(Rc::new);
    }
    pub(crate) fn owner(&self) -> Owner {
        self.owner.get()
    }
    /// Where the bytes are.
    ///
    /// # Errors
    /// EIO for a layout that this build cannot use (or no regular file).
    pub(crate) fn component(&self) -> Result<Rc<Component>, Errno> {
        self.component.borrow().clone().ok_or_else(|| {
            tracing::error!(fid = %self.fid, "no layout that this build understands: upgrade this client");
            Errno::EIO
        })
    }
    /// A reply to a write has told the state of an object.
    pub(crate) fn note_written(&self, stripe: u32, state: ObjectState) {
        self.accessed.changed(state.mtime);
        if self.writers.get() == 0 {
            return;
        }
        self.dirty.set(true);
        if self.others_wrote.get() {
            return;
        }
        let mut known = self.known.borrow_mut();
        let stripe = stripe as usize;
        if known.len() <= stripe {
            known.resize(stripe + 1, None);
        }
        // Replies to writes of different ranges may come in any order; a truncate is alone.
        known[stripe] = Some(match known[stripe] {
            Some(old) => ObjectState {
                size: old.size.max(state.size),
                blocks: old.blocks.max(state.blocks),
                mtime: old.mtime.max(state.mtime),
            },
            None => state,
        });
    }
    /// A write has failed: nobody here knows what it left behind.
    pub(crate) fn note_uncertain(&self, stripe: u32) {
        self.dirty.set(true);
        if let Some(state) = self.known.borrow_mut().get_mut(stripe as usize) {
            *state = None;
        }
    }
    /// A truncate has set the state of every object.
    pub(crate) fn note_truncated(&self, states: &[ObjectState]) {
        if self.writers.get() > 0 {
            self.dirty.set(true);
            if !self.others_wrote.get() {
                *self.known.borrow_mut() = states.iter().copied().map(Some).collect();
            }
        }
    }
    /// The MDT has forgotten this mount's opens.
    fn evicted(&self) {
        if self.writers.get() > 0 {
            self.others_wrote.set(true);
            self.known.borrow_mut().fill(None);
        }
    }
    /// What this mount's writers have made of the file since the first of them opened it; `None`: not known.
    pub(crate) fn own_changes(&self) -> Option<OwnChanges> {
        if self.writers.get() == 0 {
            return None;
        }
        if !self.dirty.get() {
            return Some(OwnChanges::None);
        }
        self.known.borrow().iter().copied().collect::<Option<Vec<_>>>().map(OwnChanges::States)
    }
    fn writer_opened(&self, created: bool) {
        if self.writers.get() == 0 {
            self.dirty.set(false);
            let stripes = self.component.borrow().as_ref().map_or(0, |c| c.stripes.len());
            let state = created.then(ObjectState::default);
            *self.known.borrow_mut() = alloc::vec![state; stripes];
        }
        self.writers.set(self.writers.get() + 1);
    }
    fn writer_closes(&self) {
        self.writers.set(self.writers.get().saturating_sub(1));
        if self.writers.get() == 0 {
            self.dirty.set(false);
            self.others_wrote.set(false);
            self.known.borrow_mut().clear();
        }
    }
}

/// What a mount knows that the MDT does not.
pub(crate) enum OwnChanges {
    None,
    /// One for each object.
    States(Vec<ObjectState>),
}

/// Keeps a [`FileState`] in the table.
pub(crate) struct FileRef {
    files: Rc<Files>,
    state: Rc<FileState>,
}
impl Deref for FileRef {
    type Target = FileState;
    fn deref(&self) -> &FileState {
        &self.state
    }
}
impl Drop for FileRef {
    fn drop(&mut self) {
        // The table's own and this one: nobody else refers to it.
        if Rc::strong_count(&self.state) == 2 {
            self.files.by_fid.borrow_mut().remove(&self.state.fid);
        }
    }
}

/// An open handle.
pub(crate) struct Open {
    pub(crate) handle: OpenHandle,
    pub(crate) file: FileRef,
    flags: u32,
    noatime: bool,
    /// The MDT has forgotten it (eviction): every use is EIO.
    stale: Cell<bool>,
    /// Lock owners that took locks through this handle: nothing but the release tells that an OFD lock is over.
    pub(crate) lock_owners: RefCell<BTreeSet<(FlockFamily, u64)>>,
}
impl Open {
    pub(crate) fn usable(&self) -> Result<(), Errno> {
        if self.stale.get() { Err(Errno::EIO) } else { Ok(()) }
    }
    /// What a read through this handle means for the access time.
    pub(crate) fn atime(&self, policy: AtimePolicy) -> Atime {
        if self.noatime { Atime::Never } else { policy.files }
    }
    fn is_writer(&self) -> bool {
        self.flags & open_flags::ACCMODE != 0
    }
}

/// Open handles and the files in use.
#[derive(Default)]
pub(crate) struct Files {
    by_fid: RefCell<BTreeMap<Fid, Rc<FileState>>>,
    handles: RefCell<BTreeMap<OpenHandle, Rc<Open>>>,
}
impl Files {
    /// The state of a file, made if nobody uses it yet.
    pub(crate) fn of(self: &Rc<Self>, fid: Fid) -> FileRef {
        let state =
            self.by_fid.borrow_mut().entry(fid).or_insert_with(|| Rc::new(FileState::new(fid))).clone();
        FileRef { files: self.clone(), state }
    }
    /// The state of a file if it is in use.
    pub(crate) fn used(self: &Rc<Self>, fid: Fid) -> Option<FileRef> {
        let state = self.by_fid.borrow().get(&fid).cloned()?;
        Some(FileRef { files: self.clone(), state })
    }
    /// A usable handle.
    pub(crate) fn handle(&self, handle: OpenHandle) -> Result<Rc<Open>, Errno> {
        let open = self.handles.borrow().get(&handle).cloned().ok_or(Errno::EBADF)?;
        open.usable()?;
        Ok(open)
    }
    pub(crate) fn all(&self) -> Vec<Rc<Open>> {
        self.handles.borrow().values().cloned().collect()
    }
    /// Handles of one file.
    pub(crate) fn of_file(&self, fid: Fid) -> Vec<Rc<Open>> {
        self.handles.borrow().values().filter(|o| o.file.fid == fid).cloned().collect()
    }
    /// No handle is open and no operation on a file is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.by_fid.borrow().is_empty() && self.handles.borrow().is_empty()
    }
}

impl Client {
    /// Creates and opens in one request. `flags` of open(2).
    pub async fn create(&self, args: CreateArgs<'_>, flags: u32) -> Result<(Entry, OpenHandle), Errno> {
        let _timing = self.stats.time("create");
        self.check_writable()?;
        if FileType::of_mode(args.mode) != Some(FileType::Regular) {
            return Err(Errno::EINVAL);
        }
        let how =
            OpenHow { handle: self.new_handle(), flags: flags & (open_flags::ACCMODE | open_flags::APPEND) };
        // The MDT must know that a file which is there will be cut: the kernel has not checked that one.
        let asked = OpenHow { flags: how.flags | flags & open_flags::TRUNC, ..how };
        let request = self.create_request(args.clone(), Some(asked)).await?;
        let reply = self.change_dirs(Touches::dir(args.parent), &request).await?;
        self.opened(&reply.entry, how, flags, reply.created);
        if !reply.created && flags & open_flags::TRUNC != 0 {
            // The kernel thinks that it has made the file and does not cut it.
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            return match self.truncate(reply.entry.attr.fid, 0, set, args.caller, None).await {
                Ok(entry) => Ok((entry, how.handle)),
                Err(e) => {
                    self.release_now(how.handle).await;
                    Err(e)
                }
            };
        }
        let entry = if reply.created { Entry::of(&reply.entry) } else { self.resolve(reply.entry).await? };
        Ok((entry, how.handle))
    }

    pub async fn open(&self, fid: Fid, flags: u32, caller: Caller) -> Result<(Entry, OpenHandle), Errno> {
        let _timing = self.stats.time("open");
        if flags & open_flags::ACCMODE != 0 {
            self.check_writable()?;
        }
        let how =
            OpenHow { handle: self.new_handle(), flags: flags & (open_flags::ACCMODE | open_flags::APPEND) };
        let reply = self.mdt().await?.call(&OpenRequest { fid, how, caller }).await?;
        self.opened(&reply, how, flags, false);
        match self.resolve(reply).await {
            Ok(entry) => Ok((entry, how.handle)),
            Err(e) => {
                self.release_now(how.handle).await;
                Err(e)
            }
        }
    }

    fn opened(&self, reply: &EntryReply, how: OpenHow, asked: u32, created: bool) {
        let file = self.files.of(reply.attr.fid);
        file.learn(reply);
        let open = Open {
            handle: how.handle,
            file,
            flags: how.flags,
            noatime: asked & open_flags::NOATIME != 0,
            stale: Cell::new(false),
            lock_owners: RefCell::default(),
        };
        if open.is_writer() {
            open.file.writer_opened(created);
        }
        self.files.handles.borrow_mut().insert(how.handle, Rc::new(open));
    }

    /// Last close: `flock_owner` drops that flock; whatever OFD locks the handle has go too.
    pub async fn release(&self, handle: OpenHandle, flock_owner: Option<u64>) -> Result<(), Errno> {
        let _timing = self.stats.time("close");
        let open = self.files.handles.borrow_mut().remove(&handle).ok_or(Errno::EBADF)?;
        self.lost.closed(handle);
        open.file.long_append.end_of(handle);
        if let Some(owner) = flock_owner {
            open.lock_owners.borrow_mut().insert((FlockFamily::Flock, owner));
        }
        if open.is_writer() || !open.lock_owners.borrow().is_empty() {
            self.writes_end(&open.file).await;
        }
        if open.stale.get() {
            if open.is_writer() {
                let dirty = open.file.dirty.get();
                open.file.writer_closes();
                if dirty {
                    self.close_anew(&open).await;
                }
            }
            return Ok(());
        }
        self.drop_locks_of(&open).await;
        self.close(&open).await
    }

    async fn release_now(&self, handle: OpenHandle) {
        if let Err(error) = self.release(handle, None).await {
            tracing::warn!(handle = handle.0, %error, "a handle could not be closed at the MDT");
        }
    }

    async fn close(&self, open: &Open) -> Result<(), Errno> {
        let (dirty, closed) = self.send_close(open).await;
        if dirty && matches!(closed, Err(Errno::EBADF | Errno::EIO)) {
            self.close_anew(open).await;
        }
        match closed {
            // Evicted before it came to the MDT: the open went with the export.
            Err(Errno::EBADF) => Ok(()),
            other => other,
        }
    }

    /// After an eviction that the close met: the MDT took the size when it evicted, and this mount may have written since.
    async fn close_anew(&self, open: &Open) {
        let (fid, handle) = (open.file.fid, self.new_handle());
        let request = OpenRequest { fid, how: OpenHow { handle, flags: open.flags }, caller: Caller::root() };
        let Ok(mdt) = self.mdt().await else { return };
        // An error means that the file is gone, and its size with it.
        if mdt.call(&request).await.is_ok()
            && let Err(error) =
                self.call_close(&mdt, Close { fid, handle, dirty: true, written: None, atime: None }).await
        {
            tracing::error!(%fid, %error, "evicted again while a written file was closed: its size may be an old one");
        }
    }

    /// Waits for writes that are under way, of callers that were killed, before locks are dropped and a handle says what it
    /// has written.
    pub(crate) async fn writes_end(&self, file: &FileState) {
        if !file.ranges.is_idle() {
            drop(file.ranges.acquire(&self.ctx, Extent::ALL, Share::Shared).await);
        }
    }

    /// Whether the file was written, and what became of the close.
    async fn send_close(&self, open: &Open) -> (bool, Result<(), Errno>) {
        let file = &open.file;
        let dirty = open.is_writer() && file.dirty.get();
        let mdt = match self.mdt().await {
            Ok(mdt) => mdt,
            Err(error) => return (dirty, Err(error)),
        };
        if !dirty {
            if open.is_writer() {
                file.writer_closes();
                self.note_change();
            }
            let close =
                Close { fid: file.fid, handle: open.handle, dirty: false, written: None, atime: None };
            return (false, self.close_accessed(&mdt, file, close).await);
        }
        let _alone = file.ranges.acquire(&self.ctx, Extent::ALL, Share::Exclusive).await;
        let (written, certain) = self.written(file).await;
        file.writer_closes();
        self.note_change();
        // What is not certain is not said: the MDT asks the OSTs itself, later.
        let written = written.filter(|_| certain);
        let close = Close { fid: file.fid, handle: open.handle, dirty: true, written, atime: None };
        (true, self.close_accessed(&mdt, file, close).await)
    }

    /// Sends a close with the access time that the MDT has not recorded.
    async fn close_accessed(&self, mdt: &Rc<Target>, file: &FileState, close: Close) -> Result<(), Errno> {
        let atime = file.accessed.pending();
        self.call_close(mdt, Close { atime, ..close }).await?;
        if let Some(atime) = atime {
            file.accessed.recorded(atime);
            self.dirs.accessed(file.fid, atime);
        }
        Ok(())
    }

    /// What a close may say of the file, and whether that is all there is to say.
    async fn written(&self, file: &FileState) -> (Option<Written>, bool) {
        let Ok(component) = file.component() else { return (None, false) };
        let stripe_count = component.stripes.len();
        let mut states = file.known.borrow().clone();
        states.resize(stripe_count, None);
        let unknown: Vec<u32> =
            (0u32..).zip(&states).filter(|(_, state)| state.is_none()).map(|(stripe, _)| stripe).collect();
        let asked = if unknown.is_empty() {
            Ok(Vec::new())
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

    /// The MDT has forgotten this client. Handles of files with locks are lost, the others are opened again by FID.
    pub(crate) fn evicted_by_mdt(&self) {
        let opens = self.files.all();
        tracing::warn!(
            fs = %self.config.fs,
            handles = opens.len(),
            "evicted by the MDT: handles of files with file locks fail with EIO from now on, the others are opened again"
        );
        self.fids.forget();
        self.flocks.ask_again();
        let lost: Vec<bool> =
            opens.iter().map(|open| open.file.granted_flocks.borrow().covers(open.handle)).collect();
        for (open, _) in opens.iter().zip(&lost).filter(|(_, lost)| **lost) {
            self.lost.lost(
                open.handle,
                open.file.fid,
                open.file.granted_flocks.borrow().processes(open.handle),
            );
        }
        for (open, lost) in opens.into_iter().zip(lost) {
            open.file.evicted();
            open.file.granted_flocks.borrow_mut().clear();
            if lost {
                open.stale.set(true);
                continue;
            }
            let client = self.me();
            self.ctx.spawn(async move {
                let how = OpenHow { handle: open.handle, flags: open.flags };
                let request = OpenRequest { fid: open.file.fid, how, caller: Caller::root() };
                let result = match client.mdt().await {
                    Ok(mdt) => mdt.call(&request).await,
                    Err(e) => Err(e),
                };
                if let Err(error) = result {
                    tracing::error!(fid = %open.file.fid, %error, "an open file was lost with the eviction: its handle fails with EIO");
                    open.stale.set(true);
                } else if let Some(mdt) = client.mount.known_mdt()
                    && !client.files.handles.borrow().contains_key(&open.handle)
                {
                    // It was released meanwhile, and its close may have come before this open.
                    let close =
                        Close { fid: open.file.fid, handle: open.handle, dirty: false, written: None, atime: None };
                    let _ = client.call_close(&mdt, close).await; // an error means that it is closed
                }
            });
        }
    }

    /// Another target was admitted in the place of an OST, or an old copy of it. What was written there and was not synced is
    /// gone with the former: whoever wrote hears of it at the next use of the handle.
    pub(crate) fn lost_with(&self, ost: OstIndex, replaced: u32) {
        let lies_there = |open: &Open| {
            let component = open.file.component.borrow();
            component.as_ref().is_some_and(|c| {
                (0u32..).zip(&c.stripes).any(|(stripe, on)| *on == ost && c.laid(stripe) < replaced)
            })
        };
        let lost: Vec<_> = self.files.all().into_iter().filter(|o| o.is_writer() && lies_there(o)).collect();
        lost.iter().for_each(|open| open.stale.set(true));
        tracing::warn!(fs = %self.config.fs, ost = ost.0, handles = lost.len(),
            "another target was admitted in the place of this OST, or an old copy of it: handles that may have written there \
             fail with EIO from now on");
    }

    /// Closes whatever is open. An MDT that does not answer is complained of once.
    pub(crate) async fn close_all(&self) {
        let handles: Vec<OpenHandle> = self.files.handles.borrow().keys().copied().collect();
        let mut failed = Vec::new();
        for handle in handles {
            failed.extend(self.release(handle, None).await.err());
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
