//! The table of open handles and files in use.
//!
//! Invariant: a [`FileState`] is in the table as long as a [`FileRef`] refers to it.

use crate::files::atime::{Atime, AtimePolicy};
use crate::files::state::FileState;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Deref;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Attr, Errno, Failure, Fid, OpenHandle};
use nacre_wire::mdt::{FlockFamily, open_flags};

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
        // The references of the table and of this value are the last ones.
        if Rc::strong_count(&self.state) == 2 {
            self.files.by_fid.borrow_mut().remove(&self.state.fid);
        }
    }
}

/// The MDT's record of an open handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtMdt {
    /// It has the open.
    Known,
    /// It has not.
    Unknown,
    /// A report is under way.
    Reporting,
}

/// An open handle. Its number and its file never change.
pub(crate) struct Open {
    pub(crate) handle: OpenHandle,
    pub(crate) file: FileRef,
    flags: u32,
    noatime: bool,
    /// The MDT has forgotten it (eviction): every use fails with EIO.
    stale: Cell<bool>,
    /// Requests under way that open it again, because the MDT has forgotten it.
    reopening: Cell<u32>,
    at_mdt: Cell<AtMdt>,
    /// It reads through the kernel's page cache.
    cached: Cell<bool>,
    /// Failed writes of the file that this handle need not report.
    reported_failures: Cell<u64>,
    /// Lock owners that took locks through this handle: nothing but the release tells that an OFD lock is over.
    lock_owners: RefCell<BTreeSet<(FlockFamily, u64)>>,
}
impl Open {
    pub(crate) fn new(handle: OpenHandle, file: FileRef, flags: u32, noatime: bool) -> Self {
        let (stale, reopening, at_mdt) = (Cell::new(false), Cell::new(0), Cell::new(AtMdt::Known));
        let (cached, lock_owners) = (Cell::new(false), RefCell::default());
        let reported_failures = Cell::new(file.failed_writes().0);
        Self {
            handle,
            file,
            flags,
            noatime,
            stale,
            reopening,
            at_mdt,
            cached,
            reported_failures,
            lock_owners,
        }
    }
    /// The error of writes that failed after their calls had returned, once for each handle.
    pub(crate) fn report_failed_writes(&self) -> Result<(), Failure> {
        let (count, error) = self.file.failed_writes();
        match error {
            Some(error) if self.reported_failures.replace(count) < count => Err(error),
            _ => Ok(()),
        }
    }
    /// Whether it reads through the kernel's page cache.
    pub(crate) fn is_cached(&self) -> bool {
        self.cached.get()
    }
    pub(crate) fn set_cached(&self, cached: bool) {
        self.cached.set(cached);
    }
    pub(crate) fn at_mdt(&self) -> AtMdt {
        self.at_mdt.get()
    }
    pub(super) fn set_at_mdt(&self, at_mdt: AtMdt) {
        self.at_mdt.set(at_mdt);
    }
    /// Access mode and O_APPEND, as the MDT knows them.
    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.get()
    }
    /// Every use of the handle fails with EIO from now on.
    pub(crate) fn set_stale(&self) {
        self.stale.set(true);
    }
    /// Whether the MDT does not know it since an eviction.
    pub(crate) fn is_reopening(&self) -> bool {
        self.reopening.get() > 0
    }
    pub(crate) fn usable(&self) -> Result<(), Errno> {
        if self.stale.get() { Err(Errno::EIO) } else { Ok(()) }
    }
    /// How a read through this handle changes the access time.
    pub(crate) fn atime(&self, policy: AtimePolicy) -> Atime {
        if self.noatime { Atime::Never } else { policy.files }
    }
    /// The same for a listing of a directory.
    pub(crate) fn listing_atime(&self, policy: AtimePolicy) -> Atime {
        if self.noatime { Atime::Never } else { policy.directories }
    }
    /// A lock of this owner is about to be requested: a release must know from now on what to drop.
    pub(crate) fn lock_requested(&self, family: FlockFamily, owner: u64) {
        self.lock_owners.borrow_mut().insert((family, owner));
        self.file.flocks().requested();
    }
    /// The last close tells of this owner of a lock.
    pub(crate) fn add_lock_owner(&self, family: FlockFamily, owner: u64) {
        self.lock_owners.borrow_mut().insert((family, owner));
    }
    /// True: the owner has requested locks through this handle.
    pub(crate) fn remove_lock_owner(&self, family: FlockFamily, owner: u64) -> bool {
        self.lock_owners.borrow_mut().remove(&(family, owner))
    }
    pub(crate) fn has_lock_owners(&self) -> bool {
        !self.lock_owners.borrow().is_empty()
    }
    pub(crate) fn take_lock_owners(&self) -> BTreeSet<(FlockFamily, u64)> {
        core::mem::take(&mut *self.lock_owners.borrow_mut())
    }
    pub(crate) fn is_writer(&self) -> bool {
        self.flags & open_flags::ACCMODE != 0
    }
}

/// Open handles and the files in use.
pub(crate) struct Files {
    by_fid: RefCell<BTreeMap<Fid, Rc<FileState>>>,
    handles: RefCell<BTreeMap<OpenHandle, Rc<Open>>>,
    /// Woken when a handle was opened again after an eviction.
    reopened: WaitList,
}
impl Files {
    pub(crate) fn new(ctx: &Ctx) -> Self {
        Self { by_fid: RefCell::default(), handles: RefCell::default(), reopened: ctx.wait_list() }
    }
    /// An eviction was noticed: the handle is opened again.
    pub(crate) fn begin_reopen(&self, open: &Open) {
        open.reopening.set(open.reopening.get() + 1);
    }
    pub(crate) fn end_reopen(&self, open: &Open) {
        open.reopening.set(open.reopening.get().saturating_sub(1));
        self.reopened.wake_all();
    }
    /// Waits until some handle was opened again.
    pub(crate) async fn reopened(&self) {
        self.reopened.wait().await;
    }
    /// The state of a file, created if the file is not in use yet.
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
    pub(crate) fn insert(&self, open: Rc<Open>) {
        self.handles.borrow_mut().insert(open.handle, open);
    }
    pub(crate) fn remove(&self, handle: OpenHandle) -> Option<Rc<Open>> {
        self.handles.borrow_mut().remove(&handle)
    }
    pub(crate) fn contains(&self, handle: OpenHandle) -> bool {
        self.handles.borrow().contains_key(&handle)
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

    /// Shows the pending access time of a file in use.
    pub(crate) fn show_atime(self: &Rc<Self>, attr: &mut Attr) {
        if let Some(file) = self.used(attr.fid)
            && let Some(atime) = file.accessed.pending()
        {
            attr.atime = attr.atime.max(atime);
        }
    }
}
