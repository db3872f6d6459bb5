//! The one API for all doors.

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{Ctx, Event};
use nacre_types::{
    Attr, Caller, Errno, Fid, FileType, FsName, LayoutTemplate, LockCookie, OpenHandle, SetAttr,
};
use nacre_wire::mdt::{FileLock, FlockOutcome, LayoutReply};
use nacre_wire::target::{Param, StatfsReply};

/// What a mount is told.
#[derive(Debug, Clone)]
pub struct MountConfig {
    pub mgs_addresses: Vec<String>,
    pub fs: FsName,
    /// For people, in the servers' logs: host and mount point.
    pub name: String,
    pub read_only: bool,
}

/// An inode with its resolved size.
#[derive(Debug, Clone)]
pub struct Entry {
    pub attr: Attr,
    /// A write by an ordinary user must take set-id bits or capabilities away first.
    pub kill_priv: bool,
}

/// A new inode.
#[derive(Debug, Clone)]
pub struct CreateArgs<'a> {
    pub parent: Fid,
    pub name: &'a [u8],
    /// Type and permission bits before the umask.
    pub mode: u32,
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    pub layout: Option<LayoutTemplate>,
    pub exclusive: bool,
    pub caller: Caller,
}

/// One write(2), at most `max_write` bytes: atomic with regard to other mounts.
#[derive(Debug, Clone)]
pub struct WriteArgs {
    pub handle: OpenHandle,
    /// Ignored with `append`: the data goes to the end of the file, found under the lock.
    pub offset: u64,
    pub append: bool,
    pub data: Bytes,
    /// Ordinary user: take set-id bits away.
    pub kill_suidgid: bool,
    /// Return when the data is durable (O_SYNC, O_DSYNC).
    pub sync: bool,
}

/// One entry of a directory listing.
#[derive(Debug, Clone)]
pub struct ListedEntry {
    pub cookie: u64,
    pub name: Bytes,
    pub fid: Fid,
    pub file_type: FileType,
    pub entry: Option<Entry>,
}

/// A page of a directory listing; `.` and `..` included with cookies 1 and 2.
#[derive(Debug, Clone)]
pub struct ReaddirPage {
    pub entries: Vec<ListedEntry>,
    pub eof: bool,
}

/// A mounted file system.
pub struct Client {
    _ctx: Rc<Ctx>,
}

impl Client {
    /// Starts: connects to the MGS, learns the targets, connects to them. Returns at once; calls wait.
    pub fn new(ctx: &Rc<Ctx>, config: MountConfig) -> Rc<Client> {
        let _ = config;
        Rc::new(Client { _ctx: ctx.clone() })
    }
    /// Waits until the MGS and the MDT have been reached.
    ///
    /// # Errors
    /// A sentence for the user: what is missing, where, what to do. Only for errors that waiting cannot mend.
    pub async fn ready(&self) -> Result<(), String> {
        Err(String::from("not built"))
    }
    /// Events of connections; gives back what is not the client's.
    pub fn handle_event(&self, event: Event) -> Option<Event> {
        Some(event)
    }
    pub async fn lookup(&self, parent: Fid, name: &[u8]) -> Result<Entry, Errno> {
        let _ = (parent, name);
        Err(Errno::ENOSYS)
    }
    /// Parent of a directory (for `..` by handle).
    pub async fn parent(&self, fid: Fid) -> Result<Entry, Errno> {
        let _ = fid;
        Err(Errno::ENOSYS)
    }
    pub async fn getattr(&self, fid: Fid) -> Result<Entry, Errno> {
        let _ = fid;
        Err(Errno::ENOSYS)
    }
    /// Changes attributes; a size change cuts the objects.
    pub async fn setattr(&self, fid: Fid, set: SetAttr, caller: Caller) -> Result<Entry, Errno> {
        let _ = (fid, set, caller);
        Err(Errno::ENOSYS)
    }
    pub async fn readlink(&self, fid: Fid) -> Result<Bytes, Errno> {
        let _ = fid;
        Err(Errno::ENOSYS)
    }
    /// mknod, mkdir, symlink: whatever `args.mode` says.
    pub async fn make(&self, args: CreateArgs<'_>) -> Result<Entry, Errno> {
        let _ = args;
        Err(Errno::ENOSYS)
    }
    /// Creates and opens in one request. `flags` of open(2).
    pub async fn create(&self, args: CreateArgs<'_>, flags: u32) -> Result<(Entry, OpenHandle), Errno> {
        let _ = (args, flags);
        Err(Errno::ENOSYS)
    }
    pub async fn open(&self, fid: Fid, flags: u32, caller: Caller) -> Result<(Entry, OpenHandle), Errno> {
        let _ = (fid, flags, caller);
        Err(Errno::ENOSYS)
    }
    pub async fn read(&self, handle: OpenHandle, offset: u64, len: u32) -> Result<Vec<Bytes>, Errno> {
        let _ = (handle, offset, len);
        Err(Errno::ENOSYS)
    }
    /// Bytes written (all of them, or an error).
    pub async fn write(&self, args: WriteArgs) -> Result<u32, Errno> {
        let _ = args;
        Err(Errno::ENOSYS)
    }
    /// close(2) of one descriptor: reports write errors, drops the owner's POSIX locks.
    pub async fn flush(&self, handle: OpenHandle, lock_owner: u64) -> Result<(), Errno> {
        let _ = (handle, lock_owner);
        Err(Errno::ENOSYS)
    }
    /// Last close: `flock_owner` drops that flock; whatever OFD locks the handle has go too.
    pub async fn release(&self, handle: OpenHandle, flock_owner: Option<u64>) -> Result<(), Errno> {
        let _ = (handle, flock_owner);
        Err(Errno::ENOSYS)
    }
    pub async fn fsync(&self, fid: Fid, data_only: bool) -> Result<(), Errno> {
        let _ = (fid, data_only);
        Err(Errno::ENOSYS)
    }
    /// Entries after `cookie` (0 = from the start).
    pub async fn readdir(
        &self,
        dir: Fid,
        cookie: u64,
        entries_max: u32,
        with_attrs: bool,
    ) -> Result<ReaddirPage, Errno> {
        let _ = (dir, cookie, entries_max, with_attrs);
        Err(Errno::ENOSYS)
    }
    pub async fn link(&self, fid: Fid, parent: Fid, name: &[u8], caller: Caller) -> Result<Entry, Errno> {
        let _ = (fid, parent, name, caller);
        Err(Errno::ENOSYS)
    }
    /// unlink, or rmdir with `directory`.
    pub async fn unlink(
        &self,
        parent: Fid,
        name: &[u8],
        directory: bool,
        caller: Caller,
    ) -> Result<(), Errno> {
        let _ = (parent, name, directory, caller);
        Err(Errno::ENOSYS)
    }
    pub async fn rename(
        &self,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: u32,
        caller: Caller,
    ) -> Result<(), Errno> {
        let _ = (from, to, flags, caller);
        Err(Errno::ENOSYS)
    }
    pub async fn getxattr(&self, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        let _ = (fid, name);
        Err(Errno::ENOSYS)
    }
    pub async fn setxattr(
        &self,
        fid: Fid,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_sgid: bool,
        caller: Caller,
    ) -> Result<(), Errno> {
        let _ = (fid, name, value, flags, kill_sgid, caller);
        Err(Errno::ENOSYS)
    }
    pub async fn listxattr(&self, fid: Fid) -> Result<Vec<Bytes>, Errno> {
        let _ = fid;
        Err(Errno::ENOSYS)
    }
    pub async fn removexattr(&self, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        let _ = (fid, name);
        Err(Errno::ENOSYS)
    }
    pub async fn allocate(
        &self,
        handle: OpenHandle,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> Result<(), Errno> {
        let _ = (handle, offset, len, keep_size);
        Err(Errno::ENOSYS)
    }
    pub async fn statfs(&self) -> Result<StatfsReply, Errno> {
        Err(Errno::ENOSYS)
    }
    /// Sets or drops a file lock; with `wait` ends when it is granted, cancelled (EINTR) or refused.
    pub async fn flock(
        &self,
        handle: OpenHandle,
        lock: FileLock,
        wait: Option<LockCookie>,
    ) -> Result<FlockOutcome, Errno> {
        let _ = (handle, lock, wait);
        Err(Errno::ENOSYS)
    }
    /// A signal: the waiting `flock` call with this cookie ends with EINTR (or its grant, if that was first).
    pub fn flock_interrupt(&self, cookie: LockCookie) {
        let _ = cookie;
    }
    /// A cookie for a waiting lock.
    pub fn new_cookie(&self) -> LockCookie {
        LockCookie(0)
    }
    pub async fn flock_test(&self, fid: Fid, lock: FileLock) -> Result<Option<FileLock>, Errno> {
        let _ = (fid, lock);
        Err(Errno::ENOSYS)
    }
    /// Everything this mount has completed is durable when it returns (`nacre sync`).
    pub async fn sync_all(&self) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
    pub async fn layout(&self, fid: Fid) -> Result<LayoutReply, Errno> {
        let _ = fid;
        Err(Errno::ENOSYS)
    }
    pub async fn set_layout(&self, fid: Fid, template: LayoutTemplate, caller: Caller) -> Result<(), Errno> {
        let _ = (fid, template, caller);
        Err(Errno::ENOSYS)
    }
    /// Paths of an inode from the root, without a leading slash; one per hard link.
    pub async fn paths(&self, fid: Fid) -> Result<Vec<Bytes>, Errno> {
        let _ = fid;
        Err(Errno::ENOSYS)
    }
    /// Space per target, for `lfs df`: (target name, kind is in the name, numbers or why not).
    pub async fn statfs_targets(&self) -> Result<Vec<(String, Result<StatfsReply, Errno>)>, Errno> {
        Err(Errno::ENOSYS)
    }
    /// Parameters (`llite.*`, `mdc.*`, `osc.*`).
    pub fn params(&self) -> Vec<Param> {
        Vec::new()
    }
    pub fn set_param(&self, name: &str, value: &str) -> Result<(), String> {
        Err(alloc::format!("{name} cannot be set (value {value})"))
    }
    /// Closes everything, tells the servers.
    pub async fn unmount(&self) {}
}
