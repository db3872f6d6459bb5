//! A small POSIX file system in memory behind the FUSE layer. Requests can be held back by name, to look at what the
//! kernel does meanwhile; validity and open flags can be chosen per run.

use bytes::Bytes;
use nacre_client::{
    AllocateArgs, AllocateMode, CreateArgs, KernelCache, ListedEntry, ReaddirPage, ResolvedInode,
    SetxattrArgs, Stale, Validity, WriteArgs,
};
use nacre_fuse::Ops;
use nacre_node::{Ctx, WaitList};
use nacre_types::{Attr, Caller, Errno, Fid, Oid, OpenHandle, Seq, SetAttr, mode, name};
use nacre_wire::mdt::{FileLock, FlockOutcome, FlockType, rename_flags};
use nacre_wire::target::StatfsReply;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

const KEY: name::HashKey = name::HashKey(1, 2);

struct Inode {
    attr: Attr,
    parent: Fid,
    data: Vec<u8>,
    /// Cookie to name and inode.
    entries: BTreeMap<u64, (Vec<u8>, Fid)>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    opens: u32,
}

/// An allocation behind this fails, after it has made a file as long as this.
pub const ALLOCATE_MAX: usize = 8 << 20;

/// The tree and what the tests turn.
pub struct MemFs {
    ctx: Rc<Ctx>,
    inodes: RefCell<BTreeMap<Fid, Inode>>,
    handles: RefCell<BTreeMap<u64, Fid>>,
    locks: RefCell<Vec<(Fid, FileLock)>>,
    serial: Cell<u64>,
    changed: WaitList,
    /// Operations that wait: "lookup", "mkdir", "read", ...
    held: RefCell<Vec<(&'static str, Option<Fid>)>>,
    /// How many wait now, by operation.
    pub waiting: RefCell<BTreeMap<&'static str, u32>>,
    pub validity: Cell<Validity>,
    kernel: RefCell<Option<Rc<dyn KernelCache>>>,
    /// Calls of `forget` that have completed.
    pub forgotten: Rc<Cell<u32>>,
    pub fopen_flags: Cell<u32>,
    /// So many regular files are replaced as soon as they have been looked up.
    pub replacing: Cell<u32>,
    /// So many opens find that another mount has made the file longer.
    pub growing: Cell<u32>,
}

impl MemFs {
    pub fn new(ctx: &Rc<Ctx>) -> Self {
        let fs = Self {
            ctx: ctx.clone(),
            inodes: RefCell::default(),
            handles: RefCell::default(),
            locks: RefCell::default(),
            serial: Cell::new(100),
            changed: ctx.wait_list(),
            held: RefCell::default(),
            waiting: RefCell::default(),
            validity: Cell::default(),
            kernel: RefCell::default(),
            forgotten: Rc::default(),
            fopen_flags: Cell::new(nacre_fuse::abi::fopen::DIRECT_IO),
            replacing: Cell::new(0),
            growing: Cell::new(0),
        };
        let root = fs.inode(Fid::ROOT, Fid::ROOT, mode::DIR | 0o755, &Caller::root());
        fs.inodes.borrow_mut().insert(Fid::ROOT, root);
        fs
    }
    /// Holds back operations on `fid` (the directory for those on names), or on all inodes.
    pub fn hold(&self, operation: &'static str, fid: Option<Fid>) {
        self.held.borrow_mut().push((operation, fid));
    }
    pub fn release_all(&self) {
        self.held.borrow_mut().clear();
        self.changed.wake_all();
    }
    pub fn waiting(&self, operation: &'static str) -> u32 {
        self.waiting.borrow().get(operation).copied().unwrap_or(0)
    }
    pub fn fid_of(&self, name: &[u8]) -> Option<Fid> {
        self.inodes.borrow().get(&Fid::ROOT).and_then(|d| find(d, name)).map(|(_, fid)| fid)
    }
    /// Changes data behind the kernel's back, as another mount would.
    pub fn set_data(&self, fid: Fid, data: &[u8]) {
        if let Some(i) = self.inodes.borrow_mut().get_mut(&fid) {
            i.data = data.to_vec();
            i.attr.size = data.len() as u64;
        }
    }

    /// Has the kernel forget, as for the revoke of a lock; counted in `forgotten` when it is complete.
    pub fn forget(&self, stale: Vec<Stale>) {
        let kernel = self.kernel.borrow().clone().unwrap();
        let (gone, forgotten) = (kernel.forget(stale), self.forgotten.clone());
        self.ctx.spawn(async move {
            gone.await;
            forgotten.set(forgotten.get() + 1);
        });
    }
    /// Puts a new inode under `name`, as another mount would.
    pub fn replace_behind(&self, parent: Fid, name: &[u8]) -> Fid {
        if let Some(dir) = self.inodes.borrow_mut().get_mut(&parent)
            && let Some((cookie, _)) = find(dir, name)
        {
            dir.entries.remove(&cookie);
        }
        let caller = Caller::root();
        let mode = mode::REG | 0o644;
        let args = CreateArgs::new(parent, name, mode, caller);
        self.add(&args).unwrap()
    }
    /// Removes a name and its inode, as another mount would.
    pub fn remove_behind(&self, parent: Fid, name: &[u8]) {
        let mut inodes = self.inodes.borrow_mut();
        let dir = inodes.get_mut(&parent).unwrap();
        let (cookie, fid) = find(dir, name).unwrap();
        dir.entries.remove(&cookie);
        inodes.remove(&fid);
    }
    /// Moves a name to another directory, as another mount would.
    pub fn move_behind(&self, from: Fid, name: &[u8], to: Fid) {
        let mut inodes = self.inodes.borrow_mut();
        let (cookie, fid) = find(&inodes[&from], name).unwrap();
        inodes.get_mut(&from).unwrap().entries.remove(&cookie);
        insert(inodes.get_mut(&to).unwrap(), name, fid).unwrap();
        inodes.get_mut(&fid).unwrap().parent = to;
    }
    fn is_held(&self, operation: &'static str, fid: Fid) -> bool {
        self.held.borrow().iter().any(|(o, f)| *o == operation && f.is_none_or(|f| f == fid))
    }
    async fn gate(&self, operation: &'static str, fid: Fid) {
        while self.is_held(operation, fid) {
            *self.waiting.borrow_mut().entry(operation).or_default() += 1;
            self.changed.wait().await;
            *self.waiting.borrow_mut().entry(operation).or_default() -= 1;
        }
    }
    fn next(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }
    fn inode(&self, fid: Fid, parent: Fid, mode: u32, caller: &Caller) -> Inode {
        let attr = Attr {
            uid: caller.uid,
            gid: caller.gid,
            nlink: if mode & mode::FMT == mode::DIR { 2 } else { 1 },
            ..Attr::new(fid, mode, self.ctx.wall())
        };
        Inode { attr, parent, data: Vec::new(), entries: BTreeMap::new(), xattrs: BTreeMap::new(), opens: 0 }
    }
    fn entry(&self, fid: Fid) -> Result<ResolvedInode, Errno> {
        let inodes = self.inodes.borrow();
        let i = inodes.get(&fid).ok_or(Errno::ESTALE)?;
        Ok(entry_of(i))
    }
    fn add(&self, args: &CreateArgs<'_>) -> Result<Fid, Errno> {
        let fid = Fid::new(Seq(0x100), Oid(self.next() as u32));
        let mut new = self.inode(fid, args.parent, args.mode & !args.caller.umask, &args.caller);
        new.attr.rdev = args.rdev;
        new.data = args.target.to_vec();
        new.attr.size = new.data.len() as u64;
        let mut inodes = self.inodes.borrow_mut();
        insert(inodes.get_mut(&args.parent).ok_or(Errno::ENOENT)?, args.name, fid)?;
        inodes.insert(fid, new);
        Ok(fid)
    }
    fn handle(&self, fid: Fid) -> OpenHandle {
        let handle = self.next();
        self.handles.borrow_mut().insert(handle, fid);
        if let Some(i) = self.inodes.borrow_mut().get_mut(&fid) {
            i.opens += 1;
        }
        OpenHandle(handle)
    }
    fn file(&self, handle: OpenHandle) -> Result<Fid, Errno> {
        self.handles.borrow().get(&handle.0).copied().ok_or(Errno::EBADF)
    }
    fn drop_link(&self, fid: Fid) {
        let mut inodes = self.inodes.borrow_mut();
        let Some(i) = inodes.get_mut(&fid) else { return };
        i.attr.nlink = if i.attr.is_dir() { 0 } else { i.attr.nlink - 1 };
        if i.attr.nlink == 0 && i.opens == 0 {
            inodes.remove(&fid);
        }
    }
    fn conflict(&self, fid: Fid, lock: &FileLock) -> Option<FileLock> {
        let clash = |l: &FileLock| {
            l.family == lock.family
                && l.owner != lock.owner
                && l.start <= lock.end
                && lock.start <= l.end
                && (l.kind == FlockType::Write || lock.kind == FlockType::Write)
        };
        self.locks.borrow().iter().find(|(f, l)| *f == fid && clash(l)).map(|(_, l)| *l)
    }
}

fn entry_of(i: &Inode) -> ResolvedInode {
    ResolvedInode { attr: Attr { blocks: i.data.len().div_ceil(512) as u64, ..i.attr }, kill_priv: false }
}
fn find(dir: &Inode, name: &[u8]) -> Option<(u64, Fid)> {
    let base = name::cookie_base(KEY, name);
    dir.entries.range(base..base + 16).find(|(_, (n, _))| n == name).map(|(c, (_, fid))| (*c, *fid))
}
fn insert(dir: &mut Inode, name: &[u8], fid: Fid) -> Result<(), Errno> {
    if find(dir, name).is_some() {
        return Err(Errno::EEXIST);
    }
    let base = name::cookie_base(KEY, name);
    let cookie = (base..base + 16).find(|c| !dir.entries.contains_key(c)).ok_or(Errno::ENOSPC)?;
    dir.entries.insert(cookie, (name.to_vec(), fid));
    Ok(())
}

impl Ops for MemFs {
    fn validity(&self, _: Option<(Fid, &[u8])>, _: Fid) -> Validity {
        self.validity.get()
    }
    fn negative_validity(&self, _: Fid, _: &[u8]) -> Duration {
        self.validity.get().entry
    }
    fn names_in_kernel(&self) -> Option<Vec<(Fid, Bytes)>> {
        let inodes = self.inodes.borrow();
        let names = |(dir, inode): (&Fid, &Inode)| -> Vec<(Fid, Bytes)> {
            inode.entries.values().map(|(name, _)| (*dir, Bytes::copy_from_slice(name))).collect()
        };
        Some(inodes.iter().flat_map(names).collect())
    }
    fn set_kernel_cache(&self, kernel: Rc<dyn KernelCache>) {
        *self.kernel.borrow_mut() = Some(kernel);
    }
    fn fopen_flags(&self, _: OpenHandle, _: u32) -> u32 {
        self.fopen_flags.get()
    }
    async fn lookup(&self, parent: Fid, name: &[u8]) -> Result<ResolvedInode, Errno> {
        self.gate("lookup", parent).await;
        assert!(name != b"panic", "a bug in one request");
        let inodes = self.inodes.borrow();
        let dir = inodes.get(&parent).ok_or(Errno::ESTALE)?;
        let (_, fid) = find(dir, name).ok_or(Errno::ENOENT)?;
        drop(inodes);
        let entry = self.entry(fid)?;
        if self.replacing.get() > 0 && entry.attr.mode & mode::FMT == mode::REG {
            self.replacing.set(self.replacing.get() - 1);
            self.remove_behind(parent, name);
            self.replace_behind(parent, name);
        }
        Ok(entry)
    }
    async fn parent(&self, fid: Fid) -> Result<ResolvedInode, Errno> {
        let parent = self.inodes.borrow().get(&fid).ok_or(Errno::ENOENT)?.parent;
        self.entry(parent)
    }
    async fn getattr(&self, fid: Fid) -> Result<ResolvedInode, Errno> {
        self.gate("getattr", fid).await;
        self.entry(fid)
    }
    async fn setattr(
        &self,
        fid: Fid,
        _: Option<OpenHandle>,
        set: SetAttr,
        _: Caller,
    ) -> Result<ResolvedInode, Errno> {
        let now = self.ctx.wall();
        {
            let mut inodes = self.inodes.borrow_mut();
            let i = inodes.get_mut(&fid).ok_or(Errno::ESTALE)?;
            let a = &mut i.attr;
            if let Some(m) = set.mode {
                a.mode = a.mode & mode::FMT | m & mode::PERM;
            }
            if set.kill_suidgid {
                a.mode &= !mode::SUID;
                if a.mode & mode::XGRP != 0 {
                    a.mode &= !mode::SGID;
                }
            }
            a.uid = set.uid.unwrap_or(a.uid);
            a.gid = set.gid.unwrap_or(a.gid);
            a.atime = set.atime.unwrap_or(a.atime);
            if let Some(size) = set.size {
                i.data.resize(usize::try_from(size).map_err(|_| Errno::EFBIG)?, 0);
                a.size = size;
                a.mtime = now;
            }
            a.mtime = set.mtime.unwrap_or(a.mtime);
            a.ctime = now;
        }
        self.entry(fid)
    }
    async fn readlink(&self, fid: Fid) -> Result<Bytes, Errno> {
        Ok(Bytes::copy_from_slice(&self.inodes.borrow().get(&fid).ok_or(Errno::ESTALE)?.data))
    }
    async fn make(&self, args: CreateArgs<'_>) -> Result<ResolvedInode, Errno> {
        self.gate("mkdir", args.parent).await;
        let fid = self.add(&args)?;
        self.entry(fid)
    }
    async fn create(&self, args: CreateArgs<'_>, _: u32) -> Result<(ResolvedInode, OpenHandle), Errno> {
        let fid = self.add(&args)?;
        Ok((self.entry(fid)?, self.handle(fid)))
    }
    async fn open(&self, fid: Fid, _: u32, _: Caller) -> Result<(ResolvedInode, OpenHandle), Errno> {
        let before = self.entry(fid)?;
        if self.growing.get() > 0 {
            self.growing.set(self.growing.get() - 1);
            self.set_data(fid, &vec![0; before.attr.size as usize + 1]);
        }
        Ok((self.entry(fid)?, self.handle(fid)))
    }
    async fn read(&self, handle: OpenHandle, offset: u64, len: u32) -> Result<Vec<Bytes>, Errno> {
        let fid = self.file(handle)?;
        self.gate("read", fid).await;
        let inodes = self.inodes.borrow();
        let data = &inodes.get(&fid).ok_or(Errno::ESTALE)?.data;
        let start = data.len().min(offset as usize);
        let end = data.len().min(start + len as usize);
        // In parts, so that replies of several parts are sent too.
        Ok(data[start..end].chunks(300_000).map(Bytes::copy_from_slice).collect())
    }
    async fn write(&self, args: WriteArgs) -> Result<u32, Errno> {
        let fid = self.file(args.handle)?;
        self.gate("write", fid).await;
        let now = self.ctx.wall();
        let mut inodes = self.inodes.borrow_mut();
        let i = inodes.get_mut(&fid).ok_or(Errno::ESTALE)?;
        let at = if args.append { i.data.len() } else { args.offset as usize };
        if i.data.len() < at + args.data.len() {
            i.data.resize(at + args.data.len(), 0);
        }
        i.data[at..at + args.data.len()].copy_from_slice(&args.data);
        i.attr.size = i.data.len() as u64;
        (i.attr.mtime, i.attr.ctime) = (now, now);
        Ok(args.data.len() as u32)
    }
    async fn flush(&self, handle: OpenHandle, lock_owner: u64) -> Result<(), Errno> {
        let fid = self.file(handle)?;
        self.gate("flush", fid).await;
        let posix = nacre_wire::mdt::FlockFamily::Posix;
        self.locks.borrow_mut().retain(|(f, l)| *f != fid || l.owner != lock_owner || l.family != posix);
        self.changed.wake_all();
        Ok(())
    }
    async fn release(&self, handle: OpenHandle, flock_owner: Option<u64>) -> Result<(), Errno> {
        let Some(fid) = self.handles.borrow_mut().remove(&handle.0) else { return Err(Errno::EBADF) };
        if let Some(owner) = flock_owner {
            self.locks.borrow_mut().retain(|(f, l)| *f != fid || l.owner != owner);
            self.changed.wake_all();
        }
        let mut inodes = self.inodes.borrow_mut();
        if let Some(i) = inodes.get_mut(&fid) {
            i.opens -= 1;
            if i.opens == 0 && i.attr.nlink == 0 {
                inodes.remove(&fid);
            }
        }
        Ok(())
    }
    async fn fsync(&self, _: Fid, _: Option<OpenHandle>) -> Result<(), Errno> {
        Ok(())
    }
    async fn readdir(&self, dir: Fid, cookie: u64, max: u32, attrs: bool) -> Result<ReaddirPage, Errno> {
        let inodes = self.inodes.borrow();
        let d = inodes.get(&dir).ok_or(Errno::ESTALE)?;
        let dots = [(1, &b"."[..], dir), (2, &b".."[..], d.parent)].map(|(c, n, f)| (c, n.to_vec(), f));
        let real = d.entries.range(cookie.max(2) + 1..).map(|(c, (n, f))| (*c, n.clone(), *f));
        let entries = dots
            .into_iter()
            .filter(|(c, ..)| *c > cookie)
            .chain(real)
            .take(max as usize)
            .filter_map(|(cookie, name, fid)| {
                let i = inodes.get(&fid)?;
                let entry = attrs.then(|| entry_of(i));
                Some(ListedEntry { cookie, name: name.into(), fid, file_type: i.attr.file_type(), entry })
            })
            .collect();
        Ok(ReaddirPage { entries, eof: false })
    }
    async fn link(&self, fid: Fid, parent: Fid, name: &[u8], _: Caller) -> Result<ResolvedInode, Errno> {
        {
            let mut inodes = self.inodes.borrow_mut();
            insert(inodes.get_mut(&parent).ok_or(Errno::ESTALE)?, name, fid)?;
            inodes.get_mut(&fid).ok_or(Errno::ESTALE)?.attr.nlink += 1;
        }
        self.entry(fid)
    }
    async fn unlink(&self, parent: Fid, name: &[u8], directory: bool, _: Caller) -> Result<(), Errno> {
        self.gate("unlink", parent).await;
        let fid = {
            let mut inodes = self.inodes.borrow_mut();
            let (cookie, fid) = find(inodes.get(&parent).ok_or(Errno::ESTALE)?, name).ok_or(Errno::ENOENT)?;
            let child = inodes.get(&fid).ok_or(Errno::ESTALE)?;
            match (directory, child.attr.is_dir()) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !child.entries.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
            inodes.get_mut(&parent).ok_or(Errno::ESTALE)?.entries.remove(&cookie);
            fid
        };
        self.drop_link(fid);
        Ok(())
    }
    async fn rename(
        &self,
        (from, old): (Fid, &[u8]),
        (to, new): (Fid, &[u8]),
        flags: u32,
        _: Caller,
    ) -> Result<(), Errno> {
        self.gate("rename", from).await;
        let replaced = {
            let mut inodes = self.inodes.borrow_mut();
            let (cookie, fid) = find(inodes.get(&from).ok_or(Errno::ESTALE)?, old).ok_or(Errno::ENOENT)?;
            let there = find(inodes.get(&to).ok_or(Errno::ESTALE)?, new);
            match (flags, there) {
                (rename_flags::NOREPLACE, Some(_)) => return Err(Errno::EEXIST),
                (rename_flags::EXCHANGE, None) => return Err(Errno::ENOENT),
                _ => {}
            }
            let exchanged = flags == rename_flags::EXCHANGE;
            inodes.get_mut(&from).ok_or(Errno::ESTALE)?.entries.remove(&cookie);
            if let Some((cookie, _)) = there {
                inodes.get_mut(&to).ok_or(Errno::ESTALE)?.entries.remove(&cookie);
            }
            insert(inodes.get_mut(&to).ok_or(Errno::ESTALE)?, new, fid)?;
            inodes.get_mut(&fid).ok_or(Errno::ESTALE)?.parent = to;
            if let (true, Some((_, other))) = (exchanged, there) {
                insert(inodes.get_mut(&from).ok_or(Errno::ESTALE)?, old, other)?;
                inodes.get_mut(&other).ok_or(Errno::ESTALE)?.parent = from;
            }
            there.filter(|_| !exchanged)
        };
        if let Some((_, fid)) = replaced {
            self.drop_link(fid);
        }
        Ok(())
    }
    async fn getxattr(&self, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        let inodes = self.inodes.borrow();
        let i = inodes.get(&fid).ok_or(Errno::ESTALE)?;
        i.xattrs.get(name).map(|v| Bytes::copy_from_slice(v)).ok_or(Errno::ENODATA)
    }
    async fn setxattr(&self, args: SetxattrArgs<'_>) -> Result<(), Errno> {
        let SetxattrArgs { fid, name, value, flags, .. } = args;
        let mut inodes = self.inodes.borrow_mut();
        let i = inodes.get_mut(&fid).ok_or(Errno::ESTALE)?;
        match (flags, i.xattrs.contains_key(name)) {
            (1, true) => Err(Errno::EEXIST),
            (2, false) => Err(Errno::ENODATA),
            _ => {
                i.xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }
    async fn listxattr(&self, fid: Fid) -> Result<Vec<Bytes>, Errno> {
        let inodes = self.inodes.borrow();
        Ok(inodes.get(&fid).ok_or(Errno::ESTALE)?.xattrs.keys().map(|k| Bytes::copy_from_slice(k)).collect())
    }
    async fn removexattr(&self, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        let mut inodes = self.inodes.borrow_mut();
        inodes.get_mut(&fid).ok_or(Errno::ESTALE)?.xattrs.remove(name).map(drop).ok_or(Errno::ENODATA)
    }
    async fn allocate(&self, handle: OpenHandle, args: AllocateArgs) -> Result<(), Errno> {
        let AllocateArgs { offset, len, mode, .. } = args;
        let fid = self.file(handle)?;
        let mut inodes = self.inodes.borrow_mut();
        let i = inodes.get_mut(&fid).ok_or(Errno::ESTALE)?;
        let (start, asked) = (offset as usize, (offset + len) as usize);
        let end = asked.min(ALLOCATE_MAX);
        if let AllocateMode::Space { keep_size: false } | AllocateMode::Zeros { keep_size: false } = mode {
            i.data.resize(i.data.len().max(end), 0);
            i.attr.size = i.data.len() as u64;
        }
        if !matches!(mode, AllocateMode::Space { .. }) {
            let end = end.min(i.data.len());
            i.data[start.min(end)..end].fill(0);
        }
        if asked > end { Err(Errno::ENOSPC) } else { Ok(()) }
    }
    async fn statfs(&self) -> Result<StatfsReply, Errno> {
        let (bytes_total, bytes_free, bytes_avail) = (1 << 30, 1 << 29, 1 << 28);
        Ok(StatfsReply { bytes_total, bytes_free, bytes_avail, files_used: 5, files_free: 1000, device: 0 })
    }
    async fn flock(&self, handle: OpenHandle, lock: FileLock, wait: bool) -> Result<FlockOutcome, Errno> {
        let fid = self.file(handle)?;
        if lock.kind == FlockType::Unlock {
            self.locks
                .borrow_mut()
                .retain(|(f, l)| *f != fid || l.owner != lock.owner || l.family != lock.family);
            self.changed.wake_all();
            return Ok(FlockOutcome::Granted);
        }
        while self.conflict(fid, &lock).is_some() {
            if !wait {
                return Ok(FlockOutcome::Conflict);
            }
            self.ctx.while_wanted(self.changed.wait()).await.ok_or(Errno::EINTR)?;
        }
        self.locks.borrow_mut().push((fid, lock));
        Ok(FlockOutcome::Granted)
    }
    async fn flock_test(&self, fid: Fid, lock: FileLock) -> Result<Option<FileLock>, Errno> {
        Ok(self.conflict(fid, &lock))
    }
    async fn paths(&self, fid: Fid, _: &Caller) -> Result<Vec<Bytes>, Errno> {
        let inodes = self.inodes.borrow();
        let root = inodes.get(&Fid::ROOT).ok_or(Errno::ESTALE)?;
        Ok(root.entries.values().filter(|(_, f)| *f == fid).map(|(n, _)| n.clone().into()).collect())
    }
}
