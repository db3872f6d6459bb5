//! The interface of a file system for the FUSE layer. A mount uses `nacre_client::Client`; tests and spikes have their
//! own.
//!
//! The calls are those of the client core, by FID, with its semantics. Calls that a file system does not implement fail
//! with ENOSYS.

use bytes::Bytes;
use core::future::Future;
use nacre_client::{
    AllocateArgs, CreateArgs, KernelCache, ReaddirPage, ResolvedInode, SetxattrArgs, Validity, WriteArgs,
};
use nacre_types::{Caller, Errno, Fid, LayoutTemplate, OpenHandle, SetAttr, Timestamp};
use nacre_wire::mdt::{FileLock, FlockOutcome, LayoutReply};
use nacre_wire::params::BoundParam;
use nacre_wire::target::StatfsReply;
use std::rc::Rc;
use std::time::Duration;

/// The reply to an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenedFile {
    /// Named by the kernel in every later request of this open.
    pub handle: OpenHandle,
    /// Bits of `abi::fopen`.
    pub fopen_flags: u32,
}

type OpResult<T> = Result<T, Errno>;
const MISSING: Errno = Errno::ENOSYS;

/// Arguments that a default does not use.
macro_rules! missing {
    ($($arg:ident),*) => {{
        let _ = ($(&$arg),*);
        async { Err(MISSING) }
    }};
}

/// A file system behind the FUSE layer.
pub trait Ops: 'static {
    /// The present time for utimensat(2) with UTIME_NOW, on the clock of all other times of the file system. `wall`: that of
    /// this machine.
    fn now(&self, wall: Timestamp) -> Timestamp {
        wall
    }
    /// How long the kernel may use the reply that is being made without asking again: a name of `fid`, if one is given,
    /// and its attributes. Called once for each, when everything else is decided; from then on a change of either is
    /// preceded by [`KernelCache::forget`].
    fn validity(&self, name: Option<(Fid, &[u8])>, fid: Fid) -> Validity {
        let _ = (name, fid);
        Validity::default()
    }
    /// Likewise that a name is not there.
    fn negative_validity(&self, parent: Fid, name: &[u8]) -> Duration {
        let _ = (parent, name);
        Duration::ZERO
    }
    /// The names that may be valid now, with their directories. `None`: there may be others, which the kernel must forget.
    fn names_in_kernel(&self) -> Option<Vec<(Fid, Bytes)>> {
        Some(Vec::new())
    }
    /// The inode to which a name leads, as far as is known without a request.
    fn named(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        let _ = (parent, name);
        None
    }
    /// The kernel's cache, given before the first request.
    fn set_kernel_cache(&self, kernel: Rc<dyn KernelCache>) {
        drop(kernel);
    }
    /// How a new handle, opened for `flags`, is served; called when everything else of the reply is decided. Unless it
    /// may use the page cache, always by requests. The kernel need not order direct writes of one file: the client does,
    /// also between mounts.
    fn fopen_flags(&self, handle: OpenHandle, flags: u32) -> u32 {
        let _ = (handle, flags);
        crate::abi::fopen::DIRECT_IO | crate::abi::fopen::PARALLEL_DIRECT_WRITES
    }
    /// The same for a handle of a directory. `renew`: the kernel has to read the names again.
    fn listing_flags(&self, handle: OpenHandle, renew: bool) -> u32 {
        let _ = (handle, renew);
        0
    }
    /// The kernel reads names through a handle.
    fn listed_through(&self, handle: OpenHandle) {
        let _ = handle;
    }
    /// Whether a read(2) must not use the pages that the kernel has of a file. Its attributes have no validity then.
    fn pages_are_doubtful(&self, fid: Fid) -> bool {
        let _ = fid;
        false
    }
    /// Whether the kernel may use whatever pages it has of a file, without asking.
    fn pages_are_trusted(&self, fid: Fid) -> bool {
        let _ = fid;
        true
    }
    /// The files of which the kernel may have pages.
    fn pages_in_kernel(&self) -> Vec<Fid> {
        Vec::new()
    }

    fn lookup(&self, parent: Fid, name: &[u8]) -> impl Future<Output = OpResult<ResolvedInode>>;
    fn parent(&self, fid: Fid) -> impl Future<Output = OpResult<ResolvedInode>>;
    fn getattr(&self, fid: Fid) -> impl Future<Output = OpResult<ResolvedInode>>;
    /// Through a handle, if there is one.
    fn setattr(
        &self,
        fid: Fid,
        handle: Option<OpenHandle>,
        set: SetAttr,
        caller: Caller,
    ) -> impl Future<Output = OpResult<ResolvedInode>> {
        missing!(fid, handle, set, caller)
    }
    fn readlink(&self, fid: Fid) -> impl Future<Output = OpResult<Bytes>> {
        missing!(fid)
    }
    fn make(&self, args: CreateArgs<'_>) -> impl Future<Output = OpResult<ResolvedInode>> {
        missing!(args)
    }
    fn create(
        &self,
        args: CreateArgs<'_>,
        flags: u32,
    ) -> impl Future<Output = OpResult<(ResolvedInode, OpenHandle)>> {
        missing!(args, flags)
    }
    fn create_unnamed(
        &self,
        args: CreateArgs<'_>,
        flags: u32,
    ) -> impl Future<Output = OpResult<(ResolvedInode, OpenHandle)>> {
        missing!(args, flags)
    }
    fn open(
        &self,
        fid: Fid,
        flags: u32,
        caller: Caller,
    ) -> impl Future<Output = OpResult<(ResolvedInode, OpenHandle)>> {
        missing!(fid, flags, caller)
    }
    fn read(&self, handle: OpenHandle, offset: u64, len: u32) -> impl Future<Output = OpResult<Vec<Bytes>>> {
        missing!(handle, offset, len)
    }
    fn write(&self, args: WriteArgs) -> impl Future<Output = OpResult<u32>> {
        missing!(args)
    }
    fn flush(&self, handle: OpenHandle, lock_owner: u64) -> impl Future<Output = OpResult<()>> {
        missing!(handle, lock_owner)
    }
    fn release(&self, handle: OpenHandle, flock_owner: Option<u64>) -> impl Future<Output = OpResult<()>> {
        missing!(handle, flock_owner)
    }
    /// `handle`: that of a file, a directory has none.
    fn fsync(&self, fid: Fid, handle: Option<OpenHandle>) -> impl Future<Output = OpResult<()>> {
        missing!(fid, handle)
    }
    /// A handle that preserves the directory when it is removed, for `flags` of open(2).
    fn opendir(&self, fid: Fid, flags: u32, caller: Caller) -> impl Future<Output = OpResult<OpenHandle>> {
        let _ = (fid, flags, &caller);
        async { Ok(OpenHandle(0)) }
    }
    fn releasedir(&self, handle: OpenHandle) -> impl Future<Output = OpResult<()>> {
        let _ = &handle;
        async { Ok(()) }
    }
    fn readdir(
        &self,
        dir: Fid,
        cookie: u64,
        entries_max: u32,
        with_attrs: bool,
    ) -> impl Future<Output = OpResult<ReaddirPage>>;
    fn link(
        &self,
        fid: Fid,
        parent: Fid,
        name: &[u8],
        caller: Caller,
    ) -> impl Future<Output = OpResult<ResolvedInode>> {
        missing!(fid, parent, name, caller)
    }
    fn unlink(
        &self,
        parent: Fid,
        name: &[u8],
        directory: bool,
        caller: Caller,
    ) -> impl Future<Output = OpResult<()>> {
        missing!(parent, name, directory, caller)
    }
    fn rename(
        &self,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: u32,
        caller: Caller,
    ) -> impl Future<Output = OpResult<()>> {
        missing!(from, to, flags, caller)
    }
    fn getxattr(&self, fid: Fid, name: &[u8]) -> impl Future<Output = OpResult<Bytes>> {
        missing!(fid, name)
    }
    fn setxattr(&self, args: SetxattrArgs<'_>) -> impl Future<Output = OpResult<()>> {
        missing!(args)
    }
    fn listxattr(&self, fid: Fid) -> impl Future<Output = OpResult<Vec<Bytes>>> {
        missing!(fid)
    }
    fn removexattr(&self, fid: Fid, name: &[u8]) -> impl Future<Output = OpResult<()>> {
        missing!(fid, name)
    }
    fn allocate(&self, handle: OpenHandle, args: AllocateArgs) -> impl Future<Output = OpResult<()>> {
        missing!(handle, args)
    }
    /// The first offset from `offset` on with data (`is_data`), or in a hole.
    fn seek(&self, handle: OpenHandle, offset: u64, is_data: bool) -> impl Future<Output = OpResult<u64>> {
        missing!(handle, offset, is_data)
    }
    fn statfs(&self) -> impl Future<Output = OpResult<StatfsReply>> {
        async { Ok(StatfsReply::default()) }
    }
    fn flock(
        &self,
        handle: OpenHandle,
        lock: FileLock,
        wait: bool,
    ) -> impl Future<Output = OpResult<FlockOutcome>> {
        missing!(handle, lock, wait)
    }
    fn flock_test(&self, fid: Fid, lock: FileLock) -> impl Future<Output = OpResult<Option<FileLock>>> {
        missing!(fid, lock)
    }

    /// Whether a change of a file's bytes by this ordinary user may remove set-id bits: then its groups are looked up.
    fn may_lose_privileges(&self, handle: OpenHandle, caller: &Caller) -> bool {
        let _ = (handle, caller);
        false
    }

    // ---- processes that have lost file locks

    /// Files of which a handle has lost its locks and is still open: while there are some, every change is checked.
    fn files_with_lost_locks(&self) -> Vec<Fid> {
        Vec::new()
    }
    /// Whether a process (0: unknown) that has these files open (`None`: unknown) may make changes.
    fn may_change(&self, process: u32, open: Option<&[Fid]>) -> OpResult<()> {
        let _ = (process, open);
        Ok(())
    }
    /// A process has opened a file by itself.
    fn opened_by(&self, handle: OpenHandle, fid: Fid, process: u32) {
        let _ = (handle, fid, process);
    }

    // ---- what the virtual attributes of `nacre lfs` ask

    fn sync_all(&self) -> impl Future<Output = OpResult<()>> {
        async { Ok(()) }
    }
    fn layout(&self, fid: Fid) -> impl Future<Output = OpResult<LayoutReply>> {
        missing!(fid)
    }
    fn set_layout(
        &self,
        fid: Fid,
        template: LayoutTemplate,
        caller: Caller,
    ) -> impl Future<Output = OpResult<()>> {
        missing!(fid, template, caller)
    }
    /// Only paths that `caller` may learn; likewise for `links`.
    fn paths(&self, fid: Fid, caller: &Caller) -> impl Future<Output = OpResult<Vec<Bytes>>> {
        missing!(fid, caller)
    }
    fn links(&self, fid: Fid, caller: &Caller) -> impl Future<Output = OpResult<Vec<(Fid, Bytes)>>> {
        missing!(fid, caller)
    }
    /// The reason why a target is not connected.
    fn target_error(&self, _target: &str) -> Option<String> {
        None
    }
    fn statfs_targets(&self) -> impl Future<Output = OpResult<Vec<(String, OpResult<StatfsReply>)>>> {
        async { Err(MISSING) }
    }
    /// Text of `nacre.mount`: `FSNAME-INSTANCE`, as in parameter names.
    fn mount_text(&self) -> String {
        String::new()
    }
    /// The parameters of the mount that the client has.
    fn params(&self) -> Vec<BoundParam<'_>> {
        Vec::new()
    }
}
