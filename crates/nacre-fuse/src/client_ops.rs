//! The mount's file system: the client core. Calls are passed on unchanged.
//!
//! Errors leave the file system here: a program gets an errno, also where no code of the client has handled an outcome of the
//! protocol.

use crate::abi::fopen;
use crate::ops::Ops;
use bytes::Bytes;
use nacre_client::{
    AllocateArgs, Client, CreateArgs, KernelCache, PageUse, ReaddirPage, ResolvedInode, SetxattrArgs,
    Validity, WriteArgs,
};
use nacre_types::{Caller, Errno, Failure, Fid, LayoutTemplate, OpenHandle, SetAttr, Timestamp};
use nacre_wire::mdt::{FileLock, FlockOutcome, LayoutReply};
use nacre_wire::params::BoundParam;
use nacre_wire::target::StatfsReply;
use std::rc::Rc;
use std::time::Duration;

/// A client behind the FUSE front end.
pub struct ClientOps {
    /// The client of the mount; lives on the same island.
    pub client: Rc<Client>,
}

type OpResult<T> = Result<T, Errno>;

impl Ops for ClientOps {
    fn now(&self, _wall: Timestamp) -> Timestamp {
        self.client.now()
    }
    fn validity(&self, name: Option<(Fid, &[u8])>, fid: Fid) -> Validity {
        self.client.validity(name, fid)
    }
    fn negative_validity(&self, parent: Fid, name: &[u8]) -> Duration {
        self.client.negative_validity(parent, name)
    }
    fn fopen_flags(&self, handle: OpenHandle, flags: u32) -> u32 {
        let page_use = if flags & rustix::fs::OFlags::DIRECT.bits() != 0 {
            PageUse::Direct
        } else {
            self.client.page_use(handle)
        };
        match page_use {
            PageUse::Direct => fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES,
            PageUse::Emptied => 0,
            PageUse::Kept => fopen::KEEP_CACHE,
        }
    }
    fn listing_flags(&self, handle: OpenHandle, renew: bool) -> u32 {
        match self.client.listing_use(handle, renew) {
            PageUse::Direct => 0,
            PageUse::Emptied => fopen::CACHE_DIR,
            PageUse::Kept => fopen::CACHE_DIR | fopen::KEEP_CACHE,
        }
    }
    fn listed_through(&self, handle: OpenHandle) {
        self.client.listed_through(handle);
    }
    fn pages_are_doubtful(&self, fid: Fid) -> bool {
        self.client.pages_are_doubtful(fid)
    }
    fn pages_are_trusted(&self, fid: Fid) -> bool {
        self.client.pages_are_trusted(fid)
    }
    fn pages_in_kernel(&self) -> Vec<Fid> {
        self.client.pages_in_kernel()
    }
    fn names_in_kernel(&self) -> Option<Vec<(Fid, Bytes)>> {
        self.client.names_in_kernel()
    }
    fn named(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        self.client.named(parent, name)
    }
    fn set_kernel_cache(&self, kernel: Rc<dyn KernelCache>) {
        self.client.set_kernel_cache(kernel);
    }
    async fn lookup(&self, parent: Fid, name: &[u8]) -> OpResult<ResolvedInode> {
        self.client.lookup(parent, name).await.map_err(Failure::for_caller)
    }
    async fn parent(&self, fid: Fid) -> OpResult<ResolvedInode> {
        self.client.parent(fid).await.map_err(Failure::for_caller)
    }
    async fn getattr(&self, fid: Fid) -> OpResult<ResolvedInode> {
        self.client.getattr(fid).await.map_err(Failure::for_caller)
    }
    async fn setattr(
        &self,
        fid: Fid,
        handle: Option<OpenHandle>,
        set: SetAttr,
        caller: Caller,
    ) -> OpResult<ResolvedInode> {
        let done = match handle {
            Some(handle) => self.client.setattr_through(handle, fid, set, caller).await,
            None => self.client.setattr(fid, set, caller).await,
        };
        done.map_err(Failure::for_caller)
    }
    async fn readlink(&self, fid: Fid) -> OpResult<Bytes> {
        self.client.readlink(fid).await.map_err(Failure::for_caller)
    }
    async fn make(&self, args: CreateArgs<'_>) -> OpResult<ResolvedInode> {
        self.client.make(args).await.map_err(Failure::for_caller)
    }
    async fn create(&self, args: CreateArgs<'_>, flags: u32) -> OpResult<(ResolvedInode, OpenHandle)> {
        self.client.create(args, flags).await.map_err(Failure::for_caller)
    }
    async fn create_unnamed(
        &self,
        args: CreateArgs<'_>,
        flags: u32,
    ) -> OpResult<(ResolvedInode, OpenHandle)> {
        self.client.create_unnamed(args, flags).await.map_err(Failure::for_caller)
    }
    async fn open(&self, fid: Fid, flags: u32, caller: Caller) -> OpResult<(ResolvedInode, OpenHandle)> {
        self.client.open(fid, flags, caller).await.map_err(Failure::for_caller)
    }
    async fn read(&self, handle: OpenHandle, offset: u64, len: u32) -> OpResult<Vec<Bytes>> {
        self.client.read(handle, offset, len).await.map_err(Failure::for_caller)
    }
    async fn write(&self, args: WriteArgs) -> OpResult<u32> {
        self.client.write(args).await.map_err(Failure::for_caller)
    }
    fn files_with_lost_locks(&self) -> Vec<Fid> {
        self.client.files_with_lost_locks()
    }
    fn may_lose_privileges(&self, handle: OpenHandle, caller: &Caller) -> bool {
        self.client.may_lose_privileges(handle, caller)
    }
    fn may_change(&self, process: u32, open: Option<&[Fid]>) -> OpResult<()> {
        self.client.may_change(process, open)
    }
    fn opened_by(&self, handle: OpenHandle, fid: Fid, process: u32) {
        self.client.opened_by(handle, fid, process);
    }
    async fn flush(&self, handle: OpenHandle, lock_owner: u64) -> OpResult<()> {
        self.client.flush(handle, lock_owner).await.map_err(Failure::for_caller)
    }
    async fn release(&self, handle: OpenHandle, flock_owner: Option<u64>) -> OpResult<()> {
        self.client.release(handle, flock_owner).await.map_err(Failure::for_caller)
    }
    async fn fsync(&self, fid: Fid, handle: Option<OpenHandle>) -> OpResult<()> {
        self.client.fsync(fid, handle).await.map_err(Failure::for_caller)
    }
    async fn readdir(
        &self,
        dir: Fid,
        cookie: u64,
        entries_max: u32,
        with_attrs: bool,
    ) -> OpResult<ReaddirPage> {
        self.client.readdir(dir, cookie, entries_max, with_attrs).await.map_err(Failure::for_caller)
    }
    async fn opendir(&self, fid: Fid, flags: u32, caller: Caller) -> OpResult<OpenHandle> {
        let opened = self.client.open(fid, flags, caller).await.map_err(Failure::for_caller)?;
        Ok(opened.1)
    }
    async fn releasedir(&self, handle: OpenHandle) -> OpResult<()> {
        self.client.release(handle, None).await.map_err(Failure::for_caller)
    }
    async fn link(&self, fid: Fid, parent: Fid, name: &[u8], caller: Caller) -> OpResult<ResolvedInode> {
        self.client.link(fid, parent, name, caller).await.map_err(Failure::for_caller)
    }
    async fn unlink(&self, parent: Fid, name: &[u8], directory: bool, caller: Caller) -> OpResult<()> {
        self.client.unlink(parent, name, directory, caller).await.map_err(Failure::for_caller)
    }
    async fn rename(&self, from: (Fid, &[u8]), to: (Fid, &[u8]), flags: u32, caller: Caller) -> OpResult<()> {
        self.client.rename(from, to, flags, caller).await.map_err(Failure::for_caller)
    }
    async fn getxattr(&self, fid: Fid, name: &[u8]) -> OpResult<Bytes> {
        self.client.getxattr(fid, name).await.map_err(Failure::for_caller)
    }
    async fn setxattr(&self, args: SetxattrArgs<'_>) -> OpResult<()> {
        self.client.setxattr(args).await.map_err(Failure::for_caller)
    }
    async fn listxattr(&self, fid: Fid) -> OpResult<Vec<Bytes>> {
        self.client.listxattr(fid).await.map_err(Failure::for_caller)
    }
    async fn removexattr(&self, fid: Fid, name: &[u8]) -> OpResult<()> {
        self.client.removexattr(fid, name).await.map_err(Failure::for_caller)
    }
    async fn allocate(&self, handle: OpenHandle, args: AllocateArgs) -> OpResult<()> {
        self.client.allocate(handle, args).await.map_err(Failure::for_caller)
    }
    async fn seek(&self, handle: OpenHandle, offset: u64, is_data: bool) -> OpResult<u64> {
        self.client.seek(handle, offset, is_data).await.map_err(Failure::for_caller)
    }
    async fn statfs(&self) -> OpResult<StatfsReply> {
        self.client.statfs().await.map_err(Failure::for_caller)
    }
    async fn flock(&self, handle: OpenHandle, lock: FileLock, wait: bool) -> OpResult<FlockOutcome> {
        self.client.flock(handle, lock, wait).await.map_err(Failure::for_caller)
    }
    async fn flock_test(&self, fid: Fid, lock: FileLock) -> OpResult<Option<FileLock>> {
        self.client.flock_test(fid, lock).await.map_err(Failure::for_caller)
    }
    async fn sync_all(&self) -> OpResult<()> {
        self.client.sync_all().await.map_err(Failure::for_caller)
    }
    async fn layout(&self, fid: Fid) -> OpResult<LayoutReply> {
        self.client.layout(fid).await.map_err(Failure::for_caller)
    }
    async fn set_layout(&self, fid: Fid, template: LayoutTemplate, caller: Caller) -> OpResult<()> {
        self.client.set_layout(fid, template, caller).await.map_err(Failure::for_caller)
    }
    async fn paths(&self, fid: Fid, caller: &Caller) -> OpResult<Vec<Bytes>> {
        self.client.paths(fid, caller).await.map_err(Failure::for_caller)
    }
    async fn links(&self, fid: Fid, caller: &Caller) -> OpResult<Vec<(Fid, Bytes)>> {
        self.client.links(fid, caller).await.map_err(Failure::for_caller)
    }
    fn target_error(&self, target: &str) -> Option<String> {
        self.client.connections().into_iter().find(|c| c.target == target)?.error
    }
    async fn statfs_targets(&self) -> OpResult<Vec<(String, OpResult<StatfsReply>)>> {
        let targets = self.client.statfs_targets().await?;
        let for_caller =
            |(target, space): (String, Result<_, Failure>)| (target, space.map_err(Failure::for_caller));
        Ok(targets.into_iter().map(for_caller).collect())
    }
    fn mount_text(&self) -> String {
        self.client.mount_name()
    }
    fn params(&self) -> Vec<BoundParam<'_>> {
        self.client.bound_params()
    }
}
