//! Serves calls from the cache while the lease of the MDT may be used, and says how long the kernel may use the result.

use crate::api::ListedEntry;
use crate::cache::kernel::{KernelCache, Validity};
use crate::cache::pages::{Contents, PageUse};
use crate::cache::tables::Found;
use crate::client::Client;
use crate::files::atime::Atime;
use crate::files::state::FileState;
use crate::targets::mdt::Mdt;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_types::{Attr, Fid, Instant, OpenHandle, SizeState, Timestamp};
use nacre_wire::mdt::EntryReply;

/// The size of a file under a lock, with its times: if they are the same later, the size has been the same in between. A plain
/// value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExactSize {
    size: u64,
    mtime: Timestamp,
    ctime: Timestamp,
}
impl ExactSize {
    pub(crate) fn bytes(self) -> u64 {
        self.size
    }
    pub(crate) fn mtime(self) -> Timestamp {
        self.mtime
    }
}

impl Mdt {
    /// The time until which locks may be used; `None`: they may not be used now. Without a connection they may not: a
    /// restarted MDT in this process does not wait for leases, because its mounts learn of the restart at once.
    fn locks_usable_until(&self) -> Option<Instant> {
        if !self.cache().is_on() || !self.peer.is_connected() {
            return None;
        }
        let until = self.peer.with_import(|import| import.lease().usable_until())?;
        (self.ctx().now() < until).then_some(until)
    }
    /// A lookup in the cache, counted as a hit or a miss.
    fn serve<T>(&self, lookup: impl FnOnce() -> Option<T>) -> Option<T> {
        let found = self.locks_usable_until().and_then(|_| lookup());
        self.count_lookup(found.is_some());
        found
    }

    /// Attributes as the MDT sent them.
    pub(crate) fn cached_inode(&self, fid: Fid) -> Option<EntryReply> {
        self.serve(|| self.cache().inode(fid))
    }
    /// The last attributes of a file that this mount has removed, if it is one of the last ones.
    pub(crate) fn removed_inode(&self, fid: Fid) -> Option<Attr> {
        self.cache().removed_inode(fid)
    }
    /// The same as [`Self::cached_inode`], if the inode may be opened for reading without a request, now.
    pub(crate) fn openable(&self, fid: Fid) -> Option<EntryReply> {
        self.serve(|| self.late_opens().has_room().then(|| self.cache().openable(fid))?)
    }
    /// The same without counting a hit: a reply is completed from the cache.
    pub(crate) fn known_inode(&self, fid: Fid) -> Option<EntryReply> {
        self.locks_usable_until().and_then(|_| self.cache().inode(fid))
    }
    /// The same for a caller that needs only a part of it.
    pub(crate) fn known_with<T>(&self, fid: Fid, part: impl FnOnce(&EntryReply) -> T) -> Option<T> {
        self.locks_usable_until().and_then(|_| self.cache().inode_with(fid, part))
    }
    /// A number that changes when another mount may have changed owner, mode, or privileges of an inode. `None`: it may do so
    /// now.
    pub(crate) fn permissions_serial(&self, fid: Fid) -> Option<u64> {
        self.locks_usable_until().and_then(|_| self.cache().permissions_serial(fid))
    }
    /// Whether bytes that are written to a file may be kept here now.
    pub(crate) fn may_write_back(&self, fid: Fid) -> bool {
        self.locks_usable_until().is_some() && self.cache().may_write_back(fid)
    }
    /// Whether the close of a handle of this inode may be sent later.
    pub(crate) fn may_close_later(&self, fid: Fid) -> bool {
        self.locks_usable_until().is_some() && self.cache().is_closable_later(fid)
    }
    /// The size of a file, if it is known exactly.
    pub(crate) fn exact_size(&self, fid: Fid) -> Option<ExactSize> {
        let Attr { size, size_state, mtime, ctime, .. } = self.known_with(fid, |entry| entry.attr)?;
        (size_state == SizeState::Exact).then_some(ExactSize { size, mtime, ctime })
    }
    /// The bytes of a small file, with the time of their last change.
    pub(crate) fn cached_data(&self, fid: Fid) -> Option<(Bytes, Timestamp)> {
        self.serve(|| self.cache().data(fid))
    }
    pub(crate) fn cached_name(&self, parent: Fid, name: &[u8]) -> Option<Found> {
        self.serve(|| self.cache().find(parent, name))
    }
    pub(crate) fn cached_listing(
        &self,
        dir: Fid,
        cookie: u64,
        max: usize,
    ) -> Option<(Vec<ListedEntry>, bool)> {
        self.serve(|| self.cache().list(dir, cookie, max))
    }
    pub(crate) fn cached_parent(&self, fid: Fid) -> Option<Fid> {
        self.serve(|| self.cache().parent(fid))
    }
    pub(crate) fn cached_target(&self, fid: Fid) -> Option<Bytes> {
        self.serve(|| self.cache().target(fid))
    }
    /// The value of an extended attribute; `Some(None)`: there is no such attribute.
    pub(crate) fn cached_xattr(&self, fid: Fid, name: &[u8]) -> Option<Option<Bytes>> {
        self.serve(|| self.cache().xattr(fid, name))
    }
    pub(crate) fn cached_xattr_names(&self, fid: Fid) -> Option<Vec<Bytes>> {
        self.serve(|| self.cache().xattr_names(fid))
    }
}

impl Client {
    /// Sets the way to the kernel that this mount serves. Without one, [`Client::validity`] is always zero.
    pub fn set_kernel_cache(&self, kernel: Rc<dyn KernelCache>) {
        self.mount.set_kernel(kernel);
    }

    /// How long the kernel may use the attributes of an inode, and the name under which it was found, if the reply with
    /// them is written now. Records that the kernel has them: before a lock that they need is returned after a revoke,
    /// the kernel is notified.
    pub fn validity(&self, name: Option<(Fid, &[u8])>, fid: Fid) -> Validity {
        let attr = self.mount.mdt_of(fid).map_or(Duration::ZERO, |mdt| {
            let Some(until) = mdt.locks_usable_until() else { return Duration::ZERO };
            if self.mount.pages().are_doubtful(fid) {
                return Duration::ZERO;
            }
            let is_given = mdt.cache().has_inode(fid) && mdt.cache().give_attrs(fid, until);
            if is_given { until - self.ctx.now() } else { Duration::ZERO }
        });
        let entry = name.map_or(Duration::ZERO, |(parent, name)| self.name_validity(parent, name, Some(fid)));
        Validity { entry, attr }
    }
    /// How long the kernel may use the reply that a directory has no such name. Zero also if too many such names of the
    /// directory are in use by the kernel.
    pub fn negative_validity(&self, parent: Fid, name: &[u8]) -> Duration {
        self.name_validity(parent, name, None)
    }
    /// The inode to which a name leads, as far as is known without a request; a change of it may be under way.
    pub fn named(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        self.mount.mdt_of(parent)?.cache().named(parent, name)
    }
    /// The names that the kernel may use without asking, with their directories. `None`: there may be others, which the
    /// kernel is being told to forget.
    pub fn names_in_kernel(&self) -> Option<Vec<(Fid, Bytes)>> {
        let of_each: Option<Vec<_>> =
            self.mount.mdts().iter().map(|mdt| mdt.cache().names_in_kernel()).collect();
        of_each.map(|all| all.concat())
    }
    /// The same for a name that leads to this inode, or to none.
    fn name_validity(&self, parent: Fid, name: &[u8], fid: Option<Fid>) -> Duration {
        let Some(mdt) = self.mount.mdt_of(parent) else { return Duration::ZERO };
        let Some(until) = mdt.locks_usable_until() else { return Duration::ZERO };
        let is_given = mdt.cache().leads_to(parent, name, fid) && mdt.cache().give_name(parent, name, until);
        if is_given { until - self.ctx.now() } else { Duration::ZERO }
    }
}

impl Client {
    /// Whether the bytes of a file are covered.
    fn is_covered(&self, file: &FileState) -> bool {
        let Some(mdt) = self.mount.mdt_of(file.fid) else { return false };
        let known = mdt.known_with(file.fid, |entry| (entry.attr, entry.yours));
        let Some((attr, yours)) = known else { return false };
        let is_exact =
            attr.size_state == SizeState::Exact || yours && mdt.kept_closes().are_of_unchanged(file.fid);
        !file.has_writers() && is_exact
    }
    /// How a new handle uses the kernel's page cache. Called once, when the reply to its open is made.
    pub fn page_use(&self, handle: OpenHandle) -> PageUse {
        let Ok(open) = self.files.handle(handle) else { return PageUse::Direct };
        let atime = open.atime(self.atime());
        let is_direct = open.is_writer() || atime == Atime::Always || !self.mount.has_kernel();
        if is_direct || !self.is_covered(&open.file) {
            return PageUse::Direct;
        }
        // A read that is to change the access time must come here.
        let renew = !self.is_read_only() && open.file.accessed.is_due(atime, self.now());
        let page_use = self.mount.pages().open(open.file.fid, Contents::Bytes, renew);
        open.set_cached(page_use != PageUse::Direct);
        page_use
    }
    /// How a new handle of a directory uses the names that the kernel keeps from a listing. Called once, when the reply to
    /// its open is made. `renew`: they are to be read again.
    pub fn listing_use(&self, handle: OpenHandle, renew: bool) -> PageUse {
        let Ok(open) = self.files.handle(handle) else { return PageUse::Direct };
        let (fid, atime) = (open.file.fid, open.listing_atime(self.atime()));
        let has_names = |mdt: Rc<Mdt>| mdt.locks_usable_until().is_some() && mdt.cache().has_names(fid);
        let is_direct = atime == Atime::Always || !self.mount.has_kernel();
        if is_direct || !self.mount.mdt_of(fid).is_some_and(has_names) {
            return PageUse::Direct;
        }
        // A listing that is to change the access time must come here.
        let renew = renew || !self.is_read_only() && open.file.accessed.is_due(atime, self.now());
        let page_use = self.mount.pages().open(fid, Contents::Names, renew);
        open.set_cached(page_use != PageUse::Direct);
        page_use
    }
    /// A request for names has come through a handle: its open has ended in the kernel, and its program reads the directory.
    pub fn listed_through(&self, handle: OpenHandle) {
        let Ok(open) = self.files.handle(handle) else { return };
        if open.is_cached() {
            self.mount.pages().used(open.file.fid);
        }
        self.note_access(&open.file, open.listing_atime(self.atime()));
    }
    /// Whether a read must not use the pages that the kernel has of a file.
    pub fn pages_are_doubtful(&self, fid: Fid) -> bool {
        self.mount.pages().are_doubtful(fid)
    }
    /// Whether the kernel may use whatever pages it has of a file, without asking.
    pub fn pages_are_trusted(&self, fid: Fid) -> bool {
        self.mount.pages().are_trusted(fid)
    }
    /// The files of which the kernel may have pages.
    pub fn pages_in_kernel(&self) -> Vec<Fid> {
        self.mount.pages().fids()
    }
}
