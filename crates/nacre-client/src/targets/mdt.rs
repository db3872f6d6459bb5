//! One MDT as a mount sees it: its target, and the state of the mount that belongs to this MDT and to no other.
//!
//! `Client::mdt_of` finds the MDT of a FID. Not here: sending of closes (`files/closes.rs`), requests for sequences
//! (`metadata/fids.rs`), the effect of an eviction on handles (`files/eviction.rs`).

use crate::api::ResolvedInode;
use crate::cache::dirs::{Dirs, Touches};
use crate::files::close_queue::CloseQueue;
use crate::locks::pending::PendingFlocks;
use crate::metadata::fid_pool::FidPool;
use crate::targets::target::Target;
use alloc::rc::Rc;
use core::cell::Cell;
use core::ops::Deref;
use nacre_node::Ctx;
use nacre_types::{Codec, ConnEpoch, Errno, Fid, MdtIndex};
use nacre_wire::mdt::{EntryReply, Getattr, Lookup};
use nacre_wire::{Rpc, flags};

/// An MDT of the mount.
pub(crate) struct Mdt {
    ctx: Rc<Ctx>,
    index: MdtIndex,
    target: Rc<Target>,
    /// FIDs of sequences that this MDT has granted.
    fids: FidPool,
    /// Directories that this MDT lets the mount hold.
    dirs: Rc<Dirs>,
    /// Requests for file locks that wait at this MDT.
    flocks: PendingFlocks,
    /// Closes that wait to be sent to this MDT.
    closes: CloseQueue,
    /// Changes sent to this MDT so far.
    changes: Cell<u64>,
}

impl Deref for Mdt {
    type Target = Target;
    fn deref(&self) -> &Target {
        &self.target
    }
}

impl Mdt {
    /// `holds`: whether directories may be held.
    pub(crate) fn new(ctx: &Rc<Ctx>, index: MdtIndex, target: Rc<Target>, holds: bool) -> Rc<Self> {
        let dirs = Rc::new(Dirs::default());
        dirs.set_on(holds);
        Rc::new(Self {
            ctx: ctx.clone(),
            index,
            target,
            fids: FidPool::new(ctx),
            dirs,
            flocks: PendingFlocks::default(),
            closes: CloseQueue::default(),
            changes: Cell::new(0),
        })
    }
    pub(crate) fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    pub(crate) fn index(&self) -> MdtIndex {
        self.index
    }
    pub(crate) fn target(&self) -> &Rc<Target> {
        &self.target
    }
    pub(crate) fn fids(&self) -> &FidPool {
        &self.fids
    }
    pub(crate) fn dirs(&self) -> &Dirs {
        &self.dirs
    }
    pub(crate) fn flocks(&self) -> &PendingFlocks {
        &self.flocks
    }
    pub(crate) fn closes(&self) -> &CloseQueue {
        &self.closes
    }
    /// Whether no call waits: for leak checks at rest.
    pub(crate) fn is_idle(&self) -> bool {
        self.closes.is_idle() && self.flocks.is_idle() && self.dirs.is_idle()
    }

    /// Changes sent so far; the same number after a sync means that the sync covers them all.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }
    /// A change is about to be sent, which the latest sync does not cover.
    pub(crate) fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }
    /// Sends a change that changes no directory.
    pub(crate) async fn change<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, Errno> {
        self.change_dirs(Touches::default(), request).await
    }
    /// Sends a change that changes these directories and names.
    pub(crate) async fn change_dirs<'a, R: Rpc + Codec<'a>>(
        &self,
        touches: Touches,
        request: &R,
    ) -> Result<R::Reply, Errno> {
        self.note_change();
        let changing = self.dirs.begin(touches);
        let reply = self.send(self.request(request)).await?;
        changing.replied(self.peer.with_import(|import| import.epoch()), &reply.frame);
        Ok(reply.body)
    }
    /// Reads attributes; the reply may grant a hold of the directory.
    pub(crate) async fn read_inode(&self, request: &Getattr) -> Result<EntryReply, Errno> {
        self.read_entry(request, Some).await?.ok_or(Errno::EPROTO)
    }
    /// The same by name; ENOENT: the directory has no such name.
    pub(crate) async fn lookup_name(&self, request: &Lookup<'_>) -> Result<EntryReply, Errno> {
        self.read_entry(request, |reply| reply.entry).await?.ok_or(Errno::ENOENT)
    }
    async fn read_entry<'a, R: Rpc + Codec<'a>>(
        &self,
        request: &R,
        entry: impl FnOnce(R::Reply) -> Option<EntryReply>,
    ) -> Result<Option<EntryReply>, Errno> {
        let wanted = if self.dirs.is_on() { flags::MAY_HOLD } else { 0 };
        let reply = self.send(self.request(request).flags(wanted)).await?;
        let entry = entry(reply.body);
        if let Some(entry) = &entry {
            self.dirs.granted(self.peer.with_import(|import| import.epoch()), &reply.frame, entry);
        }
        Ok(entry)
    }
    /// Attributes of a held directory.
    pub(crate) fn held_dir(&self, fid: Fid) -> Option<ResolvedInode> {
        self.dirs.attrs(self.holds_usable(), fid)
    }
    /// The held directory with this name.
    pub(crate) fn held_name(&self, parent: Fid, name: &[u8]) -> Option<ResolvedInode> {
        self.dirs.named(self.holds_usable(), parent, name)
    }
    /// The epoch on which holds may be used now. Without a connection there is none: a restarted MDT of this process waits for
    /// no lease, because its mounts learn of the restart at once.
    fn holds_usable(&self) -> Option<ConnEpoch> {
        let up = self.peer.is_connected();
        self.peer.with_import(|import| (up && import.lease_ok(self.ctx.now())).then(|| import.epoch()))
    }
}
