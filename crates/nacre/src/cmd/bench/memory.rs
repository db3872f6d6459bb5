//! A file system in the memory of one island: names, attributes, bytes, extended attributes and file locks, and no check
//! of permissions. It does the least that the FUSE layer needs, so it shows what that layer and the kernel cost.

use bytes::Bytes;
use nacre_client::{CreateArgs, ListedEntry, ReaddirPage, ResolvedInode, SetxattrArgs, Validity, WriteArgs};
use nacre_fuse::Ops;
use nacre_fuse::abi::fopen;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Attr, Caller, Errno, Fid, Oid, OpenHandle, Seq, SetAttr, mode, name};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType, rename_flags};
use nacre_wire::target::StatfsReply;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

const KEY: name::HashKey = name::HashKey(1, 2);
/// Names with the same hash in one directory at most.
const COLLISIONS_MAX: u64 = 16;
/// A file may not be larger.
const FILE_BYTES_MAX: u64 = 1 << 32;
/// Space and files that statfs reports.
const SPACE: StatfsReply = StatfsReply {
    bytes_total: 1 << 40,
    bytes_free: 1 << 40,
    bytes_avail: 1 << 40,
    files_used: 0,
    files_free: 1 << 30,
    device: 0,
};

struct Inode {
    attr: Attr,
    parent: Fid,
    /// Bytes of a file, target of a symbolic link.
    data: Vec<u8>,
    /// Of a directory: names and inodes by cookie.
    entries: BTreeMap<u64, (Bytes, Fid)>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    locks: Vec<FileLock>,
    opens: u32,
}

impl Inode {
    fn entry(&self) -> ResolvedInode {
        let blocks = self.data.len().div_ceil(512) as u64;
        ResolvedInode { attr: Attr { blocks, size: self.data.len() as u64, ..self.attr }, kill_priv: false }
    }
    fn find(&self, name: &[u8]) -> Option<(u64, Fid)> {
        let base = name::cookie_base(KEY, name);
        let mut same_hash = self.entries.range(base..base + COLLISIONS_MAX);
        same_hash.find(|(_, (n, _))| n == name).map(|(cookie, (_, fid))| (*cookie, *fid))
    }
    fn insert(&mut self, name: &[u8], fid: Fid) -> Result<(), Errno> {
        if self.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        let base = name::cookie_base(KEY, name);
        let mut cookies = base..base + COLLISIONS_MAX;
        let cookie = cookies.find(|c| !self.entries.contains_key(c)).ok_or(Errno::ENOSPC)?;
        self.entries.insert(cookie, (Bytes::copy_from_slice(name), fid));
        Ok(())
    }
    fn set(&mut self, set: &SetAttr, now: nacre_types::Timestamp) {
        let a = &mut self.attr;
        a.mode = set.mode.map_or(a.mode, |m| a.mode & mode::FMT | m & mode::PERM);
        a.uid = set.uid.unwrap_or(a.uid);
        a.gid = set.gid.unwrap_or(a.gid);
        a.atime = set.atime.unwrap_or(a.atime);
        if let Some(size) = set.size {
            self.data.resize(size as usize, 0);
            a.mtime = now;
        }
        a.mtime = set.mtime.unwrap_or(a.mtime);
        a.ctime = now;
    }
    fn conflict(&self, lock: &FileLock) -> Option<FileLock> {
        let clashes = |l: &&FileLock| {
            l.family == lock.family
                && l.owner != lock.owner
                && l.start <= lock.end
                && lock.start <= l.end
                && (l.kind == FlockType::Write || lock.kind == FlockType::Write)
        };
        self.locks.iter().find(clashes).copied()
    }
}

type Inodes = HashMap<Fid, Inode>;

/// The inode that a request names.
trait Named {
    fn of(&mut self, fid: Fid) -> Result<&mut Inode, Errno>;
}
impl Named for Inodes {
    fn of(&mut self, fid: Fid) -> Result<&mut Inode, Errno> {
        self.get_mut(&fid).ok_or(Errno::ESTALE)
    }
}

/// The file system.
pub(super) struct Memory {
    ctx: Rc<Ctx>,
    validity: Validity,
    inodes: RefCell<Inodes>,
    handles: RefCell<HashMap<u64, Fid>>,
    /// The last number given to an inode or a handle.
    last: Cell<u64>,
    unlocked: WaitList,
}

impl Memory {
    /// The kernel may use names, attributes and pages for this time without a request.
    pub(super) fn new(ctx: &Rc<Ctx>, validity: Duration) -> Self {
        let fs = Self {
            ctx: ctx.clone(),
            validity: Validity { entry: validity, attr: validity },
            inodes: RefCell::default(),
            handles: RefCell::default(),
            last: Cell::new(Fid::ROOT.oid.0.into()),
            unlocked: ctx.wait_list(),
        };
        let root = fs.inode(Fid::ROOT, Fid::ROOT, mode::DIR | 0o755, &Caller::root());
        fs.inodes.borrow_mut().insert(Fid::ROOT, root);
        fs
    }
    fn next(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }
    fn inode(&self, fid: Fid, parent: Fid, mode: u32, caller: &Caller) -> Inode {
        let nlink = if mode & mode::FMT == mode::DIR { 2 } else { 1 };
        Inode {
            attr: Attr { uid: caller.uid, gid: caller.gid, nlink, ..Attr::new(fid, mode, self.ctx.wall()) },
            parent,
            data: Vec::new(),
            entries: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            locks: Vec::new(),
            opens: 0,
        }
    }
    fn add(&self, args: &CreateArgs<'_>) -> Result<ResolvedInode, Errno> {
        let oid = u32::try_from(self.next()).map_err(|_| Errno::ENOSPC)?;
        let fid = Fid::new(Seq(0x100), Oid(oid));
        let mut new = self.inode(fid, args.parent, args.mode & !args.caller.umask, &args.caller);
        new.attr.rdev = args.rdev;
        new.data = args.target.to_vec();
        let entry = new.entry();
        let mut inodes = self.inodes.borrow_mut();
        let dir = inodes.of(args.parent)?;
        dir.insert(args.name, fid)?;
        dir.attr.mtime = entry.attr.mtime;
        inodes.insert(fid, new);
        Ok(entry)
    }
    fn opened(&self, entry: ResolvedInode) -> Result<(ResolvedInode, OpenHandle), Errno> {
        let fid = entry.attr.fid;
        self.inodes.borrow_mut().of(fid)?.opens += 1;
        let handle = self.next();
        self.handles.borrow_mut().insert(handle, fid);
        Ok((entry, OpenHandle(handle)))
    }
    fn file(&self, handle: OpenHandle) -> Result<Fid, Errno> {
        self.handles.borrow().get(&handle.0).copied().ok_or(Errno::EBADF)
    }
    /// Removes an inode that has neither a name nor an open handle.
    fn forget(inodes: &mut Inodes, fid: Fid) {
        if inodes.get(&fid).is_some_and(|i| i.attr.nlink == 0 && i.opens == 0) {
            inodes.remove(&fid);
        }
    }
    fn drop_link(inodes: &mut Inodes, fid: Fid) -> Result<(), Errno> {
        let inode = inodes.of(fid)?;
        inode.attr.nlink = if inode.attr.is_dir() { 0 } else { inode.attr.nlink - 1 };
        Self::forget(inodes, fid);
        Ok(())
    }
    /// Drops the locks that match.
    fn unlock(&self, fid: Fid, mut released: impl FnMut(&FileLock) -> bool) {
        if let Ok(inode) = self.inodes.borrow_mut().of(fid)
            && !inode.locks.is_empty()
        {
            inode.locks.retain(|l| !released(l));
            self.unlocked.wake_all();
        }
    }
}

impl Ops for Memory {
    fn validity(&self, _: Option<(Fid, &[u8])>, _: Fid) -> Validity {
        self.validity
    }
    fn negative_validity(&self, _: Fid, _: &[u8]) -> Duration {
        self.validity.entry
    }
    fn fopen_flags(&self, _: OpenHandle, _: u32) -> u32 {
        if self.validity == Validity::default() { fopen::DIRECT_IO } else { fopen::KEEP_CACHE }
    }
    async fn lookup(&self, parent: Fid, name: &[u8]) -> Result<ResolvedInode, Errno> {
        let mut inodes = self.inodes.borrow_mut();
        let (_, fid) = inodes.of(parent)?.find(name).ok_or(Errno::ENOENT)?;
        Ok(inodes.of(fid)?.entry())
    }
    async fn parent(&self, fid: Fid) -> Result<ResolvedInode, Errno> {
        let mut inodes = self.inodes.borrow_mut();
        let parent = inodes.of(fid)?.parent;
        Ok(inodes.of(parent)?.entry())
    }
    async fn getattr(&self, fid: Fid) -> Result<ResolvedInode, Errno> {
        Ok(self.inodes.borrow_mut().of(fid)?.entry())
    }
    async fn setattr(
        &self,
        fid: Fid,
        _: Option<OpenHandle>,
        set: SetAttr,
        _: Caller,
    ) -> Result<ResolvedInode, Errno> {
        if set.size.is_some_and(|size| size > FILE_BYTES_MAX) {
            return Err(Errno::EFBIG);
        }
        let mut inodes = self.inodes.borrow_mut();
        let inode = inodes.of(fid)?;
        inode.set(&set, self.ctx.wall());
        Ok(inode.entry())
    }
    async fn readlink(&self, fid: Fid) -> Result<Bytes, Errno> {
        Ok(Bytes::copy_from_slice(&self.inodes.borrow_mut().of(fid)?.data))
    }
    async fn make(&self, args: CreateArgs<'_>) -> Result<ResolvedInode, Errno> {
        self.add(&args)
    }
    async fn create(&self, args: CreateArgs<'_>, _: u32) -> Result<(ResolvedInode, OpenHandle), Errno> {
        self.opened(self.add(&args)?)
    }
    async fn open(&self, fid: Fid, _: u32, _: Caller) -> Result<(ResolvedInode, OpenHandle), Errno> {
        let entry = self.inodes.borrow_mut().of(fid)?.entry();
        self.opened(entry)
    }
    async fn read(&self, handle: OpenHandle, offset: u64, len: u32) -> Result<Vec<Bytes>, Errno> {
        let mut inodes = self.inodes.borrow_mut();
        let data = &inodes.of(self.file(handle)?)?.data;
        let start = usize::try_from(offset).map_or(data.len(), |offset| offset.min(data.len()));
        let end = data.len().min(start + len as usize);
        Ok(vec![Bytes::copy_from_slice(&data[start..end])])
    }
    async fn write(&self, args: WriteArgs) -> Result<u32, Errno> {
        let mut inodes = self.inodes.borrow_mut();
        let inode = inodes.of(self.file(args.handle)?)?;
        let start = if args.append { inode.data.len() as u64 } else { args.offset };
        let end = start.checked_add(args.data.len() as u64).filter(|end| *end <= FILE_BYTES_MAX);
        let (start, end) = (start as usize, end.ok_or(Errno::EFBIG)? as usize);
        inode.data.resize(inode.data.len().max(end), 0);
        inode.data[start..end].copy_from_slice(&args.data);
        inode.attr.mtime = self.ctx.wall();
        inode.attr.ctime = inode.attr.mtime;
        Ok(args.data.len() as u32)
    }
    async fn flush(&self, handle: OpenHandle, lock_owner: u64) -> Result<(), Errno> {
        self.unlock(self.file(handle)?, |l| l.owner == lock_owner && l.family == FlockFamily::Posix);
        Ok(())
    }
    async fn release(&self, handle: OpenHandle, flock_owner: Option<u64>) -> Result<(), Errno> {
        let fid = self.handles.borrow_mut().remove(&handle.0).ok_or(Errno::EBADF)?;
        self.unlock(fid, |l| Some(l.owner) == flock_owner);
        let mut inodes = self.inodes.borrow_mut();
        inodes.of(fid)?.opens -= 1;
        Self::forget(&mut inodes, fid);
        Ok(())
    }
    async fn fsync(&self, _: Fid, _: Option<OpenHandle>) -> Result<(), Errno> {
        Ok(())
    }
    async fn readdir(&self, dir: Fid, cookie: u64, max: u32, with_attrs: bool) -> Result<ReaddirPage, Errno> {
        let inodes = self.inodes.borrow();
        let list = inodes.get(&dir).ok_or(Errno::ESTALE)?;
        let dots = [(1, Bytes::from_static(b"."), dir), (2, Bytes::from_static(b".."), list.parent)];
        let names = list.entries.range(cookie.max(2) + 1..).map(|(c, (name, fid))| (*c, name.clone(), *fid));
        let all = dots.into_iter().filter(|(c, ..)| *c > cookie).chain(names);
        let listed = |(cookie, name, fid): (u64, Bytes, Fid)| {
            let inode = inodes.get(&fid)?;
            let entry = with_attrs.then(|| inode.entry());
            Some(ListedEntry { cookie, name, fid, file_type: inode.attr.file_type(), entry })
        };
        let entries: Vec<_> = all.take(max as usize).filter_map(listed).collect();
        Ok(ReaddirPage { eof: entries.len() < max as usize, entries })
    }
    async fn link(&self, fid: Fid, parent: Fid, name: &[u8], _: Caller) -> Result<ResolvedInode, Errno> {
        let mut inodes = self.inodes.borrow_mut();
        inodes.of(fid)?;
        inodes.of(parent)?.insert(name, fid)?;
        let inode = inodes.of(fid)?;
        inode.attr.nlink += 1;
        Ok(inode.entry())
    }
    async fn unlink(&self, parent: Fid, name: &[u8], directory: bool, _: Caller) -> Result<(), Errno> {
        let mut inodes = self.inodes.borrow_mut();
        let (cookie, fid) = inodes.of(parent)?.find(name).ok_or(Errno::ENOENT)?;
        let inode = inodes.of(fid)?;
        match (directory, inode.attr.is_dir()) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !inode.entries.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        inodes.of(parent)?.entries.remove(&cookie);
        Self::drop_link(&mut inodes, fid)
    }
    async fn rename(
        &self,
        (from, old): (Fid, &[u8]),
        (to, new): (Fid, &[u8]),
        flags: u32,
        _: Caller,
    ) -> Result<(), Errno> {
        let mut inodes = self.inodes.borrow_mut();
        let (cookie, fid) = inodes.of(from)?.find(old).ok_or(Errno::ENOENT)?;
        let target = inodes.of(to)?.find(new);
        match (flags, target) {
            (0, _) | (rename_flags::NOREPLACE, None) => {}
            (rename_flags::NOREPLACE, Some(_)) => return Err(Errno::EEXIST),
            _ => return Err(Errno::EINVAL),
        }
        inodes.of(from)?.entries.remove(&cookie);
        if let Some((cookie, replaced)) = target {
            inodes.of(to)?.entries.remove(&cookie);
            Self::drop_link(&mut inodes, replaced)?;
        }
        inodes.of(to)?.insert(new, fid)?;
        inodes.of(fid)?.parent = to;
        Ok(())
    }
    async fn getxattr(&self, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        let mut inodes = self.inodes.borrow_mut();
        inodes.of(fid)?.xattrs.get(name).map(|v| Bytes::copy_from_slice(v)).ok_or(Errno::ENODATA)
    }
    async fn setxattr(&self, args: SetxattrArgs<'_>) -> Result<(), Errno> {
        self.inodes.borrow_mut().of(args.fid)?.xattrs.insert(args.name.to_vec(), args.value.to_vec());
        Ok(())
    }
    async fn listxattr(&self, fid: Fid) -> Result<Vec<Bytes>, Errno> {
        let mut inodes = self.inodes.borrow_mut();
        Ok(inodes.of(fid)?.xattrs.keys().map(|name| Bytes::copy_from_slice(name)).collect())
    }
    async fn removexattr(&self, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        self.inodes.borrow_mut().of(fid)?.xattrs.remove(name).map(drop).ok_or(Errno::ENODATA)
    }
    async fn statfs(&self) -> Result<StatfsReply, Errno> {
        Ok(SPACE)
    }
    async fn flock(&self, handle: OpenHandle, lock: FileLock, wait: bool) -> Result<FlockOutcome, Errno> {
        let fid = self.file(handle)?;
        if lock.kind == FlockType::Unlock {
            self.unlock(fid, |l| l.owner == lock.owner && l.family == lock.family);
            return Ok(FlockOutcome::Granted);
        }
        while self.inodes.borrow_mut().of(fid)?.conflict(&lock).is_some() {
            if !wait {
                return Ok(FlockOutcome::Conflict);
            }
            self.ctx.while_wanted(self.unlocked.wait()).await.ok_or(Errno::EINTR)?;
        }
        self.inodes.borrow_mut().of(fid)?.locks.push(lock);
        Ok(FlockOutcome::Granted)
    }
    async fn flock_test(&self, fid: Fid, lock: FileLock) -> Result<Option<FileLock>, Errno> {
        Ok(self.inodes.borrow_mut().of(fid)?.conflict(&lock))
    }
}
