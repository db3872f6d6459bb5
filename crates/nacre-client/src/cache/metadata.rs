//! The cache of one MDT's inodes and names, under the locks that this MDT has granted.
//!
//! Rules: (1) a call is served from here only while the mount is connected to the MDT and within two thirds of its
//! lease, and only under the locks that it needs (`tables`, `inodes` and `entries` have the rules). Locks survive a new
//! connection to the same start of the MDT; a restart and an eviction end them all. (2) A callback first ends its bits
//! here; then the kernel forgets the names and attributes that depend on them; then the bits are returned (`returns`).
//! (3) A name or inode that the kernel has received is recorded with the time until which the kernel may use it. (4)
//! While an own change has no reply, the names and inodes that it may have changed are not served from here
//! (`in_flight`).

use crate::api::ListedEntry;
use crate::cache::in_flight::Touches;
use crate::cache::kernel::{KernelCache, Stale};
use crate::cache::pages::Pages;
use crate::cache::returns::{AfterFlush, Returns};
use crate::cache::tables::{Found, NameBefore, NameEffect, Tables};
use crate::files::dirty_files::DirtyFiles;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, RefCell, RefMut};
use nacre_dlm::client::InodeCancel;
use nacre_dlm::server::InodeGrant;
use nacre_node::Ctx;
use nacre_types::{Attr, Codec, ConnEpoch, Fid, InodeBits, Instant, SeededHash, Timestamp, Transno};
use nacre_wire::mdt::{self, EntryReply, LockTail, Readdir, ReaddirReply, RevokeInodeLocks};
use nacre_wire::{Frame, flags};

/// Numbers for administrators: a plain record.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CacheCounts {
    /// Inodes with locks, and their bound.
    pub(crate) locks: usize,
    pub(crate) limit: usize,
    /// Names, and bytes beside attributes.
    pub(crate) names: usize,
    pub(crate) bytes: usize,
    /// Revokes that the MDT has sent.
    pub(crate) revokes: u64,
    /// Locks that were returned without a revoke.
    pub(crate) cancels: u64,
}

/// The cache.
pub(crate) struct MetadataCache {
    ctx: Rc<Ctx>,
    on: Cell<bool>,
    tables: RefCell<Tables>,
    kernel: RefCell<Option<Rc<dyn KernelCache>>>,
    returns: Returns,
    pages: Rc<Pages>,
    dirty_files: Rc<DirtyFiles>,
    revokes: Cell<u64>,
    cancels: Cell<u64>,
}

impl MetadataCache {
    pub(crate) fn new(ctx: &Rc<Ctx>, on: bool, pages: &Rc<Pages>, dirty_files: &Rc<DirtyFiles>) -> Rc<Self> {
        Rc::new(Self {
            ctx: ctx.clone(),
            on: Cell::new(on),
            tables: RefCell::new(Tables::new(SeededHash::new(ctx.random()))),
            kernel: RefCell::default(),
            returns: Returns::default(),
            pages: pages.clone(),
            dirty_files: dirty_files.clone(),
            revokes: Cell::new(0),
            cancels: Cell::new(0),
        })
    }
    fn tables(&self) -> RefMut<'_, Tables> {
        let mut tables = self.tables.borrow_mut();
        tables.set_time(self.ctx.now());
        tables
    }
    pub(crate) fn is_on(&self) -> bool {
        self.on.get()
    }
    /// The flags of a request whose reply may grant locks.
    pub(crate) fn wanted(&self) -> u32 {
        match (self.on.get(), self.dirty_files.is_on()) {
            (false, _) => 0,
            (true, false) => flags::MAY_LOCK,
            (true, true) => flags::MAY_LOCK | flags::MAY_WRITE_BACK,
        }
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.tables.borrow().is_idle()
    }
    pub(crate) fn counts(&self) -> CacheCounts {
        let (locks, limit, names, bytes) = self.tables.borrow().sizes();
        CacheCounts { locks, limit, names, bytes, revokes: self.revokes.get(), cancels: self.cancels.get() }
    }
    pub(crate) fn returns(&self) -> &Returns {
        &self.returns
    }
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }
    pub(crate) fn dirty_files(&self) -> &DirtyFiles {
        &self.dirty_files
    }
    pub(crate) fn set_kernel(&self, kernel: Rc<dyn KernelCache>) {
        *self.kernel.borrow_mut() = Some(kernel);
    }
    pub(crate) fn kernel(&self) -> Option<Rc<dyn KernelCache>> {
        self.kernel.borrow().clone()
    }

    /// Locks have ended here, and wait to be returned. Pages are not trusted from now on, not only when the kernel is told.
    fn give_back(&self, mut stale: Vec<Stale>, acks: Vec<mdt::RevokeAck>, cancels: Vec<InodeCancel>) {
        stale.retain(|stale| match stale {
            Stale::Pages(fid) => self.pages.ended(*fid),
            Stale::Listing(fid) => self.pages.names_ended(*fid),
            Stale::Name { .. }
            | Stale::Permissions { .. }
            | Stale::Inode(_)
            | Stale::Acls(_)
            | Stale::All => true,
        });
        let (dirty, cancels) =
            cancels.into_iter().partition(|c: &InodeCancel| self.must_flush(c.fid, c.bits));
        self.returns.add(stale, acks, cancels);
        dirty.into_iter().for_each(|cancel| self.returns.add_after_flush(AfterFlush::cancel(cancel)));
    }
    /// Whether bytes that were kept under these bits have to be at the OSTs before the bits are returned. After a restart of the
    /// MDT the bits may be revoked although the locks have ended.
    fn must_flush(&self, fid: Fid, bits: InodeBits) -> bool {
        bits.intersects(InodeBits::WRITE_BACK) && self.dirty_files.has(fid)
    }
    /// Counts the times at which all locks have ended.
    pub(crate) fn era(&self) -> ConnEpoch {
        self.tables.borrow().era()
    }
    /// Turns the cache on or off. All locks end; they are to be returned, once the kernel has forgotten everything.
    pub(crate) fn set_on(&self, on: bool) {
        self.on.set(on);
        if !on {
            let mut stale = Vec::new();
            let cancels = self.tables().cancel_all(&mut stale);
            self.give_back(stale, Vec::new(), cancels);
        }
    }
    /// Sets the number of inodes on which locks are kept.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.tables().set_limit(limit);
    }
    /// The MDT was restarted, or has evicted this client: all locks have ended. `epoch`: the connection that has begun.
    pub(crate) fn locks_ended(&self, epoch: ConnEpoch) {
        self.tables().begin_era(epoch);
    }

    // ---- lookups, for a caller that has checked that the lease may be used

    pub(super) fn inode(&self, fid: Fid) -> Option<EntryReply> {
        self.tables().inode(fid)
    }
    pub(super) fn removed_inode(&self, fid: Fid) -> Option<Attr> {
        self.tables.borrow().removed_inode(fid)
    }
    pub(super) fn inode_with<T>(&self, fid: Fid, part: impl FnOnce(&EntryReply) -> T) -> Option<T> {
        self.tables().inode_ref(fid).map(part)
    }
    pub(super) fn data(&self, fid: Fid) -> Option<(Bytes, Timestamp)> {
        self.tables().data(fid)
    }
    pub(crate) fn has_inode(&self, fid: Fid) -> bool {
        self.tables().has_inode(fid)
    }
    pub(super) fn openable(&self, fid: Fid) -> Option<EntryReply> {
        self.tables().openable(fid)
    }
    pub(super) fn may_write_back(&self, fid: Fid) -> bool {
        self.tables().may_write_back(fid)
    }
    pub(super) fn is_closable_later(&self, fid: Fid) -> bool {
        self.tables().is_closable_later(fid)
    }
    /// The inode to which a name leads, as far as is known; a change of it may be under way.
    pub(crate) fn named(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        self.tables.borrow().named(parent, name)
    }
    pub(super) fn find(&self, parent: Fid, name: &[u8]) -> Option<Found> {
        self.tables().find(parent, name)
    }
    pub(super) fn leads_to(&self, parent: Fid, name: &[u8], fid: Option<Fid>) -> bool {
        self.tables().leads_to(parent, name, fid)
    }
    pub(super) fn list(&self, dir: Fid, cookie: u64, max: usize) -> Option<(Vec<ListedEntry>, bool)> {
        self.tables().list(dir, cookie, max)
    }
    pub(super) fn has_names(&self, dir: Fid) -> bool {
        self.tables().has_names(dir)
    }
    pub(super) fn parent(&self, fid: Fid) -> Option<Fid> {
        self.tables().parent(fid)
    }
    pub(super) fn target(&self, fid: Fid) -> Option<Bytes> {
        self.tables().target(fid)
    }
    pub(super) fn xattr(&self, fid: Fid, name: &[u8]) -> Option<Option<Bytes>> {
        self.tables().xattr(fid, name)
    }
    pub(super) fn xattr_names(&self, fid: Fid) -> Option<Vec<Bytes>> {
        self.tables().xattr_names(fid)
    }
    pub(super) fn permissions_serial(&self, fid: Fid) -> Option<u64> {
        self.tables().permissions_serial(fid)
    }
    /// A number for a read of extended attributes that begins. `None`: its result cannot be kept.
    pub(crate) fn xattr_serial(&self, fid: Fid) -> Option<u64> {
        self.on.get().then(|| self.tables().xattr_serial(fid))?
    }
    pub(crate) fn keep_xattr(&self, fid: Fid, serial: Option<u64>, name: &[u8], value: Option<&Bytes>) {
        if let Some(serial) = serial {
            self.tables().keep_xattr(fid, serial, name, value);
        }
    }
    pub(crate) fn keep_xattr_names(&self, fid: Fid, serial: Option<u64>, names: &[Bytes]) {
        if let Some(serial) = serial {
            self.tables().keep_xattr_names(fid, serial, names);
        }
    }
    pub(crate) fn keep_target(&self, fid: Fid, target: &[u8]) {
        self.tables().keep_target(fid, target);
    }

    // ---- the kernel

    /// When the kernel does not use a reply any more whose validity ends at `until`. The kernel counts the validity from
    /// when it takes over the reply, which may be later by half of it (`KernelCache`).
    fn unused_from(&self, until: Instant) -> Instant {
        until + (until - self.ctx.now()) / 2
    }
    /// Records that the kernel is given a name until a time. False: the kernel must not have the name.
    pub(super) fn give_name(&self, parent: Fid, name: &[u8], until: Instant) -> bool {
        self.kernel.borrow().is_some() && self.tables().give_name(parent, name, self.unused_from(until))
    }
    /// `None`: there may be others, which the kernel is being told to forget.
    pub(super) fn names_in_kernel(&self) -> Option<Vec<(Fid, Bytes)>> {
        let mut names = self.returns.leaving()?;
        names.extend(self.tables().names_in_kernel());
        Some(names)
    }
    /// The kernel is given an access control list of an inode, or that there is none. False: it must not keep that, because
    /// this mount would not be told of a change.
    pub(crate) fn give_acls(&self, fid: Fid) -> bool {
        self.tables().give_acls(fid)
    }
    /// The kernel is given the attributes of an inode until a time.
    pub(super) fn give_attrs(&self, fid: Fid, until: Instant) -> bool {
        let is_there = self.kernel.borrow().is_some();
        if is_there {
            self.tables().give_attrs(fid, self.unused_from(until));
        }
        is_there
    }

    // ---- replies to reads

    /// The locks that a reply grants or mentions. `None`: it has none that count.
    fn tail(&self, frame: &Frame) -> Option<LockTail> {
        let bytes = frame.lock_tail()?;
        if !self.on.get() || self.tables.borrow().is_former(frame.header.epoch) {
            return None;
        }
        match LockTail::from_slice(bytes) {
            Ok(tail) => Some(tail),
            Err(error) => {
                tracing::error!(%error, "the locks that a reply of the MDT grants cannot be read, and are not used");
                None
            }
        }
    }
    /// Processes the reply to a Getattr.
    pub(crate) fn read_inode(&self, frame: &Frame, entry: &EntryReply) {
        let Some(tail) = self.tail(frame) else { return };
        let mut tables = self.tables();
        let granted = take_grants(&mut tables, &tail);
        tables.read_inode(entry, tail.seen, bits_of(&granted, entry.attr.fid));
        drop(tables);
        self.cancel_surplus();
    }
    /// Processes the reply to a Lookup.
    pub(crate) fn read_name(&self, frame: &Frame, parent: Fid, name: &[u8], entry: Option<&EntryReply>) {
        let Some(tail) = self.tail(frame) else { return };
        let mut tables = self.tables();
        let granted = take_grants(&mut tables, &tail);
        let fid = entry.map(|entry| entry.attr.fid);
        let child = fid.map_or(InodeBits::NONE, |fid| bits_of(&granted, fid));
        if let Some(entry) = entry {
            tables.read_inode(entry, tail.seen, child);
        }
        tables.read_name((parent, name), fid, tail.seen, (bits_of(&granted, parent), child));
        drop(tables);
        self.cancel_surplus();
    }
    /// Processes the reply to a Readdir.
    pub(crate) fn read_listing(&self, frame: &Frame, request: &Readdir, reply: &ReaddirReply) {
        let Some(tail) = self.tail(frame) else { return };
        let mut tables = self.tables();
        let granted = take_grants(&mut tables, &tail);
        let dir = bits_of(&granted, request.dir);
        let is_kept = dir.contains(InodeBits::UPDATE);
        if is_kept {
            tables.page_begins(request.dir, request.cookie, tail.seen);
        }
        for found in &reply.entries {
            let child =
                found.granted.map_or(InodeBits::NONE, |grant| take_grant(&mut tables, grant, tail.seen));
            if let Some(entry) = &found.entry {
                tables.read_inode(entry, tail.seen, child);
            }
            let at = (found.fid, found.cookie, found.file_type);
            tables.read_listed((request.dir, &found.name), at, tail.seen, (dir, child));
        }
        if is_kept {
            let last = reply.entries.last().map_or(request.cookie, |found| found.cookie);
            tables.page_ends(request.dir, last, reply.eof);
        }
        drop(tables);
        self.cancel_surplus();
    }
    /// Whether more of a listing than its caller takes now should be asked for, because it can be kept.
    pub(crate) fn keeps_listing(&self, dir: Fid, cookie: u64) -> bool {
        self.on.get() && self.tables.borrow().would_keep(dir, cookie)
    }
    /// The MDT has recorded an access time that this mount has sent.
    pub(crate) fn accessed(&self, fid: Fid, atime: Timestamp) {
        self.tables().accessed(fid, atime);
    }

    // ---- own changes

    /// A change of this mount is about to be requested.
    pub(crate) fn begin(self: &Rc<Self>, mut touches: Touches) -> Changing {
        let before = self.tables().begin(&mut touches);
        Changing { cache: self.clone(), touches, before }
    }

    // ---- the ends of locks

    /// Processes a callback: the bits have ended when this returns, and wait to be returned.
    pub(crate) fn revoked(&self, frame: &Frame) {
        if self.tables.borrow().is_former(frame.header.epoch) {
            return;
        }
        let mut stale = Vec::new();
        let mut acks = Vec::new();
        match RevokeInodeLocks::from_slice(&frame.body) {
            Ok(RevokeInodeLocks { revokes }) => {
                let mut tables = self.tables();
                self.revokes.set(self.revokes.get() + revokes.len() as u64);
                for revoke in revokes {
                    let before = stale.len();
                    tables.revoked(&revoke, &mut stale);
                    let converted = revoke.wanted == nacre_types::InodeMode::Pr;
                    let ack = mdt::RevokeAck { number: revoke.number, converted };
                    if revoke.bits == InodeBits::OPEN && stale.len() == before {
                        self.returns.add_open(revoke.fid, ack);
                        continue;
                    }
                    self.returns.add_revoked(revoke.fid, revoke.bits);
                    if self.must_flush(revoke.fid, revoke.bits) {
                        self.returns.add_after_flush(AfterFlush::ack(revoke.fid, ack));
                    } else {
                        acks.push(ack);
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, "a revoke of the MDT cannot be read: no lock of it is used until it restarts");
                self.tables().distrust(&mut stale);
            }
        }
        self.give_back(stale, acks, Vec::new());
    }
    /// Drops locks beyond the limit; they wait to be returned.
    fn cancel_surplus(&self) {
        let mut stale = Vec::new();
        let cancels = self.tables().cancel_surplus(&mut stale);
        self.cancels.set(self.cancels.get() + cancels.len() as u64);
        self.give_back(stale, Vec::new(), cancels);
    }
}

fn take_grant(tables: &mut Tables, grant: mdt::InodeGrant, seen: Transno) -> InodeBits {
    let mdt::InodeGrant { fid, mode, bits, number } = grant;
    tables.granted(fid, InodeGrant { bits, mode, number }, seen)
}
/// The bits of the grants that are valid.
fn take_grants(tables: &mut Tables, tail: &LockTail) -> Vec<(Fid, InodeBits)> {
    tail.granted.iter().map(|grant| (grant.fid, take_grant(tables, *grant, tail.seen))).collect()
}
fn bits_of(granted: &[(Fid, InodeBits)], fid: Fid) -> InodeBits {
    granted.iter().filter(|(of, _)| *of == fid).map(|(_, bits)| *bits).collect()
}

/// An entry in the reply to a change, with what its tail says of it.
fn as_sent(entry: EntryReply, tail: &LockTail) -> EntryReply {
    EntryReply { yours: tail.yours.contains(&entry.attr.fid), ..entry }
}

/// A change of this mount without a reply; dropping it ends the wait for the reply.
pub(crate) struct Changing {
    cache: Rc<MetadataCache>,
    touches: Touches,
    before: Vec<Option<NameBefore>>,
}
impl Changing {
    /// The change was executed, and the file has these bytes since. Call this directly after [`Self::replied`].
    pub(crate) fn keep_data(&self, frame: &Frame, fid: Fid, data: &Bytes) {
        if !self.cache.tables.borrow().is_former(frame.header.epoch) {
            self.cache.tables().keep_data(fid, frame.header.transno, data);
        }
    }
    /// The change was executed. `entry`: an inode that the reply describes; `made`: the change has created it.
    pub(crate) fn replied(&self, frame: &Frame, effect: NameEffect, entry: Option<&EntryReply>, made: bool) {
        let Self { cache, touches, before } = self;
        let at = frame.header.transno;
        // Locks of a later start of the MDT were granted after this change.
        if cache.tables.borrow().is_former(frame.header.epoch) {
            return;
        }
        let mut tail = cache.tail(frame);
        let mut stale = Vec::new();
        let leaves = |parent: Fid, name: &[u8]| cache.returns.forgets(parent, name);
        let mut tables = cache.tables();
        match &mut tail {
            // Nothing was changed: the reply is that to a read.
            tail if at == Transno::default() => {
                if let Some((tail, entry)) = tail.as_ref().zip(entry) {
                    let granted = take_grants(&mut tables, tail);
                    let entry = as_sent(entry.clone(), tail);
                    tables.read_inode(&entry, tail.seen, bits_of(&granted, entry.attr.fid));
                }
            }
            Some(tail) => {
                let granted = take_grants(&mut tables, tail);
                if let Some(entry) = entry {
                    tables.changed_inode(at, as_sent(entry.clone(), tail));
                    if made
                        && bits_of(&granted, entry.attr.fid).contains(InodeBits::UPDATE)
                        && entry.attr.is_dir()
                    {
                        tables.created_dir(entry.attr.fid);
                    }
                }
                for entry in core::mem::take(&mut tail.changed) {
                    tables.changed_inode(at, as_sent(entry, tail));
                }
                tables.replied(at, touches, before, &effect, &leaves, &mut stale);
                tail.removed.iter().for_each(|fid| tables.removed(*fid, at));
                let read = tail.removed.iter().filter(|fid| cache.pages.removed(**fid));
                stale.extend(read.map(|fid| Stale::Pages(*fid)));
            }
            None => {
                tables.unknown_inodes(at, touches);
                tables.replied(at, touches, before, &effect, &leaves, &mut stale);
            }
        }
        // While this mount had the file closed, others may have opened it without a revoke of this bit.
        let opened = entry.filter(|_| touches.opens_for_write()).map(|entry| entry.attr.fid);
        let granted = tail.iter().flat_map(|tail| &tail.granted);
        let may_keep =
            |fid| granted.clone().any(|grant| grant.fid == fid && grant.bits.contains(InodeBits::WRITE_BACK));
        let ended = opened.filter(|fid| !may_keep(*fid)).and_then(|fid| tables.no_write_back(fid));
        drop(tables);
        cache.returns.add(stale, Vec::new(), Vec::new());
        cache.give_back(Vec::new(), Vec::new(), ended.into_iter().collect());
        cache.cancel_surplus();
    }
}
impl Drop for Changing {
    fn drop(&mut self) {
        self.cache.tables().end(&self.touches);
    }
}
