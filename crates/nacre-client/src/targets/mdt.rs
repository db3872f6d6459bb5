//! One MDT as a mount sees it: its target, and the state of the mount that belongs to this MDT and to no other.
//!
//! `Client::mdt_of` finds the MDT of a FID. Not here: sending of closes (`files/closes.rs`), requests for sequences
//! (`metadata/fids.rs`), the effect of an eviction on handles (`files/eviction.rs`).

use crate::cache::in_flight::Touches;
use crate::cache::metadata::MetadataCache;
use crate::cache::tables::NameEffect;
use crate::files::close_queue::CloseQueue;
use crate::files::kept_closes::KeptCloses;
use crate::files::late_opens::LateOpens;
use crate::files::late_releases::LateReleases;
use crate::locks::local_flocks::LocalFlocks;
use crate::locks::pending::PendingFlocks;
use crate::metadata::fid_pool::FidPool;
use crate::targets::target::Target;
use alloc::rc::Rc;
use core::cell::Cell;
use core::ops::Deref;
use nacre_node::{Ctx, RpcError};
use nacre_types::{Codec, Failure, MdtIndex};
use nacre_wire::Rpc;
use nacre_wire::mdt::{EntryReply, Getattr, Lookup, Open, Readdir, ReaddirReply, Settle, open_flags};

/// An MDT of the mount.
pub(crate) struct Mdt {
    ctx: Rc<Ctx>,
    index: MdtIndex,
    target: Rc<Target>,
    /// FIDs of sequences that this MDT has granted.
    fids: FidPool,
    /// Inodes and names that the mount may serve from memory.
    cache: Rc<MetadataCache>,
    /// Requests for file locks that wait at this MDT.
    flocks: PendingFlocks,
    /// Closes that wait to be sent to this MDT.
    closes: CloseQueue,
    /// Closes that are sent to this MDT later.
    kept_closes: KeptCloses,
    /// Opens that were made without a request and not yet reported to this MDT.
    late_opens: LateOpens,
    /// Handles that end later than their programs close them.
    late_releases: LateReleases,
    local_flocks: LocalFlocks,
    /// Changes sent to this MDT so far.
    changes: Cell<u64>,
    /// How often this MDT has evicted the mount.
    evictions: Cell<u64>,
    /// Lookups that the cache has served, and those that it has not.
    hits: Cell<u64>,
    misses: Cell<u64>,
}

impl Deref for Mdt {
    type Target = Target;
    fn deref(&self) -> &Target {
        &self.target
    }
}

impl Mdt {
    pub(crate) fn new(
        ctx: &Rc<Ctx>,
        index: MdtIndex,
        target: Rc<Target>,
        cache: Rc<MetadataCache>,
    ) -> Rc<Self> {
        Rc::new(Self {
            ctx: ctx.clone(),
            index,
            target,
            fids: FidPool::new(ctx),
            cache,
            flocks: PendingFlocks::default(),
            closes: CloseQueue::default(),
            kept_closes: KeptCloses::new(ctx),
            late_opens: LateOpens::new(ctx),
            late_releases: LateReleases::new(ctx),
            local_flocks: LocalFlocks::new(ctx),
            changes: Cell::new(0),
            evictions: Cell::new(0),
            hits: Cell::new(0),
            misses: Cell::new(0),
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
    pub(crate) fn cache(&self) -> &Rc<MetadataCache> {
        &self.cache
    }
    /// Lookups that the cache has served, and those that it has not.
    pub(crate) fn cache_hits(&self) -> (u64, u64) {
        (self.hits.get(), self.misses.get())
    }
    pub(crate) fn count_lookup(&self, is_hit: bool) {
        let count = if is_hit { &self.hits } else { &self.misses };
        count.set(count.get() + 1);
    }
    pub(crate) fn flocks(&self) -> &PendingFlocks {
        &self.flocks
    }
    pub(crate) fn late_opens(&self) -> &LateOpens {
        &self.late_opens
    }
    pub(crate) fn late_releases(&self) -> &LateReleases {
        &self.late_releases
    }
    pub(crate) fn local_flocks(&self) -> &LocalFlocks {
        &self.local_flocks
    }
    pub(crate) fn closes(&self) -> &CloseQueue {
        &self.closes
    }
    pub(crate) fn kept_closes(&self) -> &KeptCloses {
        &self.kept_closes
    }
    /// Whether no close waits to be sent, or for its reply in a batch.
    pub(crate) fn has_sent_closes(&self) -> bool {
        self.late_releases.is_idle() && self.closes.is_idle() && self.kept_closes.is_idle()
    }
    /// Whether no call waits: for leak checks at rest.
    pub(crate) fn is_idle(&self) -> bool {
        self.has_sent_closes()
            && self.late_opens.is_idle()
            && self.local_flocks.is_idle()
            && self.flocks.is_idle()
            && self.cache.is_idle()
    }

    /// How often this MDT has evicted the mount.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions.get()
    }
    pub(crate) fn note_eviction(&self) {
        self.evictions.set(self.evictions.get() + 1);
    }
    /// Changes sent so far; the same number after a sync means that the sync covers them all.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.get()
    }
    /// A change is about to be sent, which the latest sync does not cover.
    pub(crate) fn note_change(&self) {
        self.changes.set(self.changes.get() + 1);
    }
    /// Sends a change that changes no name, and whose reply has the attributes of the inode that it changes.
    pub(crate) async fn change_inode<'a, R: Rpc<Reply = EntryReply> + Codec<'a>>(
        self: &Rc<Self>,
        touches: Touches,
        request: &R,
    ) -> Result<EntryReply, Failure> {
        self.change(touches, request, |entry| (NameEffect::None, Some(entry), false)).await
    }
    /// Sends a change. `effect` takes the reply and returns the effect of the change on names, the inode that the reply
    /// describes, and whether this inode is new.
    pub(crate) async fn change<'a, R: Rpc + Codec<'a>>(
        self: &Rc<Self>,
        touches: Touches,
        request: &R,
        effect: impl FnOnce(&R::Reply) -> (NameEffect, Option<&EntryReply>, bool),
    ) -> Result<R::Reply, Failure> {
        self.note_change();
        self.execute(touches, request, effect).await
    }
    /// Opens an inode. That is no change that a sync has to cover. Nobody relies on locks for an open for reading, so it is
    /// sent again after an eviction.
    pub(crate) async fn open(self: &Rc<Self>, request: &Open) -> Result<EntryReply, Failure> {
        let is_writer = request.how.flags & open_flags::ACCMODE != 0;
        let touches = || match is_writer {
            true => Touches::attrs(request.fid).and_opens_for_write(),
            false => Touches::default(),
        };
        loop {
            let done = self.attempt(touches(), request, |entry| (NameEffect::None, Some(entry), false)).await;
            match done {
                Err(RpcError::Evicted | RpcError::EvictedUnsent) if !is_writer => {}
                done => return done.map_err(|error| self.explain(Open::OPCODE, error)),
            }
        }
    }
    async fn execute<'a, R: Rpc + Codec<'a>>(
        self: &Rc<Self>,
        touches: Touches,
        request: &R,
        effect: impl FnOnce(&R::Reply) -> (NameEffect, Option<&EntryReply>, bool),
    ) -> Result<R::Reply, Failure> {
        let done = self.attempt(touches, request, effect).await;
        done.map_err(|error| self.explain(R::OPCODE, error))
    }
    async fn attempt<'a, R: Rpc + Codec<'a>>(
        self: &Rc<Self>,
        touches: Touches,
        request: &R,
        effect: impl FnOnce(&R::Reply) -> (NameEffect, Option<&EntryReply>, bool),
    ) -> Result<R::Reply, RpcError> {
        let changing = self.cache.begin(touches);
        let reply = self.send_once(self.request(request).flags(self.cache.wanted())).await?;
        let (effect, entry, made) = effect(&reply.body);
        changing.replied(&reply.frame, effect, entry, made);
        self.return_locks();
        Ok(reply.body)
    }
    /// Reads attributes.
    pub(crate) async fn read_inode(self: &Rc<Self>, request: &Getattr) -> Result<EntryReply, Failure> {
        let reply = self.send(self.request(request).flags(self.cache.wanted())).await?;
        self.cache.read_inode(&reply.frame, &reply.body);
        self.return_locks();
        Ok(reply.body)
    }
    /// The same when no other client has bytes of the file that the OSTs do not have.
    pub(crate) async fn read_settled(self: &Rc<Self>, request: &Settle) -> Result<EntryReply, Failure> {
        let reply = self.send(self.request(request).flags(self.cache.wanted())).await?;
        self.cache.read_inode(&reply.frame, &reply.body);
        self.return_locks();
        Ok(reply.body)
    }
    /// The same by name; ENOENT: the directory has no such name.
    pub(crate) async fn read_name(self: &Rc<Self>, request: &Lookup<'_>) -> Result<EntryReply, Failure> {
        let reply = self.send(self.request(request).flags(self.cache.wanted())).await?;
        let entry = reply.body.entry;
        self.cache.read_name(&reply.frame, request.parent, request.name.as_bytes(), entry.as_ref());
        self.return_locks();
        entry.ok_or(Failure::ENOENT)
    }
    /// Reads a page of a listing.
    pub(crate) async fn read_listing(self: &Rc<Self>, request: &Readdir) -> Result<ReaddirReply, Failure> {
        let reply = self.send(self.request(request).flags(self.cache.wanted())).await?;
        self.cache.read_listing(&reply.frame, request, &reply.body);
        self.return_locks();
        Ok(reply.body)
    }
}
