//! The operations that are tried: made from the seed, executed through a client as a kernel would, applied to the
//! model.

use crate::model::{Kind, Model, Outcome, Stat, Value};
use bytes::Bytes;
use nacre_client::{AllocateArgs, Client, CreateArgs, ResolvedInode, SetxattrArgs, WriteArgs};
use nacre_node::Rng;
use nacre_types::{Caller, Errno, Fid, FileType, LayoutTemplate, OpenHandle, SetAttr, mode};
use nacre_wire::mdt::rename_flags::{EXCHANGE, NOREPLACE};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

/// Handles kept open, by slot.
pub const SLOTS: u32 = 3;
const O_RDWR: u32 = 2;

/// One operation. Contents are a byte value repeated with a counter, so that misplaced pieces show.
#[derive(Debug, Clone)]
pub enum Op {
    Mkdir(String),
    Mkfifo(String),
    Symlink(String, String),
    /// With a number of stripes; 0 = the default.
    Create {
        path: String,
        exclusive: bool,
        stripes: i32,
    },
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename {
        from: String,
        to: String,
        flags: u32,
    },
    Write {
        path: String,
        offset: u64,
        len: usize,
        byte: u8,
        sync: bool,
    },
    Append {
        path: String,
        len: usize,
        byte: u8,
    },
    Read {
        path: String,
        offset: u64,
        len: usize,
    },
    Truncate(String, u64),
    Allocate {
        path: String,
        offset: u64,
        len: u64,
        keep_size: bool,
    },
    Stat(String),
    Readdir {
        path: String,
        page: u32,
        with_attrs: bool,
    },
    Readlink(String),
    Chmod(String, u32),
    Setxattr {
        path: String,
        name: String,
        value: Vec<u8>,
        flags: u32,
    },
    Getxattr(String, String),
    Removexattr(String, String),
    Listxattr(String),
    Fsync(String),
    /// Everything that this mount has completed.
    SyncAll,
    /// Keeps the file open in a slot.
    Open(u32, String),
    WriteSlot {
        slot: u32,
        offset: Option<u64>,
        len: usize,
        byte: u8,
    },
    ReadSlot {
        slot: u32,
        offset: u64,
        len: usize,
    },
    StatSlot(u32),
    Close(u32),
}

/// `len` bytes that tell their place.
pub fn pattern(byte: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| byte.wrapping_add((i / 1000) as u8)).collect()
}

/// A path below `base`; few names, so that operations meet.
fn path(rng: &mut Rng, base: &str) -> String {
    let depth = [1, 1, 2, 2, 2, 3][rng.below(6) as usize];
    let mut path = base.to_string();
    for _ in 0..depth {
        path.push('/');
        path.push((b'a' + rng.below(4) as u8) as char);
    }
    path
}

impl Op {
    /// A random operation below `base`. `big` allows sizes over several stripes.
    pub fn random(rng: &mut Rng, base: &str, big: bool) -> Self {
        let byte = rng.next_u64() as u8;
        let slot = rng.below(u64::from(SLOTS)) as u32;
        let most = if big { 200_000 } else { 3000 };
        let len_most = if rng.below(4) == 0 { most } else { 500 };
        let offset_most = if rng.below(3) == 0 { most } else { 1000 };
        let len = 1 + rng.below(len_most) as usize;
        let offset = rng.below(offset_most);
        let p = path(rng, base);
        match rng.below(64) {
            0..=5 => Op::Mkdir(p),
            6 => Op::Mkfifo(p),
            7 | 8 => Op::Symlink(p, format!("to-{byte}")),
            9..=16 => Op::Create {
                path: p,
                exclusive: rng.below(2) == 0,
                stripes: [0, 0, 1, 2, -1][rng.below(5) as usize],
            },
            17 | 18 => Op::Link(p, path(rng, base)),
            19..=21 => Op::Unlink(p),
            22 | 23 => Op::Rmdir(p),
            24..=28 => {
                let flags = [0, 0, 0, 1, 2][rng.below(5) as usize];
                Op::Rename { from: p, to: path(rng, base), flags }
            }
            29..=33 => Op::Write { path: p, offset, len, byte, sync: rng.below(10) == 0 },
            34..=36 => Op::Append { path: p, len, byte },
            37..=39 => Op::Read { path: p, offset: offset / 2, len: len * 2 },
            40 | 41 => Op::Truncate(p, if rng.below(3) == 0 { 0 } else { offset }),
            42 => Op::Allocate { path: p, offset, len: len as u64, keep_size: rng.below(2) == 0 },
            43..=45 => Op::Stat(p),
            46..=48 => {
                let path = if rng.below(3) == 0 { base.to_string() } else { p };
                Op::Readdir { path, page: 1 + rng.below(4) as u32, with_attrs: rng.below(2) == 0 }
            }
            49 => Op::Readlink(p),
            50 => Op::Chmod(p, 0o600 + rng.below(0o100) as u32),
            51 => Op::Setxattr {
                path: p,
                name: format!("user.{}", rng.below(3)),
                value: pattern(byte, rng.below(100) as usize),
                flags: rng.below(3) as u32,
            },
            52 => Op::Getxattr(p, format!("user.{}", rng.below(3))),
            53 => match rng.below(2) {
                0 => Op::Removexattr(p, format!("user.{}", rng.below(3))),
                _ => Op::Listxattr(p),
            },
            54 => Op::Fsync(p),
            55 | 56 => Op::Open(slot, p),
            57 | 58 => Op::WriteSlot { slot, offset: (rng.below(3) > 0).then_some(offset), len, byte },
            59 | 60 => Op::ReadSlot { slot, offset: offset / 2, len: len * 2 },
            61 => Op::StatSlot(slot),
            _ => Op::Close(slot),
        }
    }

    /// Whether an outcome is the one that POSIX asks for. A rename into itself or onto its ancestor breaks several rules at
    /// once; the kernel, which a mount does not have here, decides which one is named.
    pub fn agrees(&self, got: &Outcome, want: &Outcome) -> bool {
        if let (Op::Rename { from, to, .. }, Err(_), Err(_)) = (self, got, want)
            && (from.starts_with(to.as_str()) || to.starts_with(from.as_str()))
        {
            return true;
        }
        got == want
    }

    /// Whether it is made wholly or not at all, wherever its mount dies: it changes nothing, or in one request.
    pub fn is_one_change(&self) -> bool {
        match self {
            Op::Mkdir(_) | Op::Mkfifo(_) | Op::Symlink(..) | Op::Create { .. } | Op::Link(..) => true,
            Op::Unlink(_) | Op::Rmdir(_) | Op::Rename { .. } | Op::Chmod(..) | Op::Setxattr { .. } => true,
            Op::Removexattr(..) => true,
            Op::Stat(_) | Op::Readdir { .. } | Op::Readlink(_) | Op::Getxattr(..) | Op::Listxattr(_) => true,
            Op::Read { .. } | Op::Fsync(_) | Op::SyncAll => true,
            Op::Write { .. } | Op::Append { .. } | Op::Truncate(..) | Op::Allocate { .. } => false,
            Op::Open(..) | Op::WriteSlot { .. } | Op::ReadSlot { .. } | Op::StatSlot(_) | Op::Close(_) => {
                false
            }
        }
    }

    /// Whether it leaves anything behind.
    pub fn is_change(&self) -> bool {
        !matches!(
            self,
            Op::Stat(_)
                | Op::Readdir { .. }
                | Op::Readlink(_)
                | Op::Getxattr(..)
                | Op::Listxattr(_)
                | Op::Read { .. }
                | Op::Fsync(_)
                | Op::SyncAll
        )
    }

    /// The slot that it uses.
    pub fn slot(&self) -> Option<u32> {
        match self {
            Op::Open(slot, _) | Op::StatSlot(slot) | Op::Close(slot) => Some(*slot),
            Op::WriteSlot { slot, .. } | Op::ReadSlot { slot, .. } => Some(*slot),
            _ => None,
        }
    }

    /// The outcome that POSIX requires.
    pub fn apply(&self, m: &mut Model) -> Outcome {
        match self {
            Op::Mkdir(p) => m.make(p, Kind::Directory(BTreeMap::new()), 0o755),
            Op::Mkfifo(p) => m.make(p, Kind::Fifo, 0o644),
            Op::Symlink(p, target) => m.make(p, Kind::Symlink(target.clone()), 0o777),
            Op::Create { path, exclusive, .. } => m.create(path, *exclusive).map(|_| Value::Unit),
            Op::Link(from, to) => m.link(from, to),
            Op::Unlink(p) => m.unlink(p),
            Op::Rmdir(p) => m.rmdir(p),
            Op::Rename { from, to, flags } => m.rename(from, to, flags & 1 != 0, flags & 2 != 0),
            Op::Write { path, offset, len, byte, .. } => {
                let i = m.file(path)?;
                m.write(i, Some(*offset), &pattern(*byte, *len))
            }
            Op::Append { path, len, byte } => {
                let i = m.file(path)?;
                m.write(i, None, &pattern(*byte, *len))
            }
            Op::Read { path, offset, len } => {
                let i = m.file(path)?;
                m.read(i, *offset, *len)
            }
            Op::Truncate(p, size) => {
                let i = m.file(p)?;
                m.truncate(i, *size)
            }
            Op::Allocate { path, offset, len, keep_size } => {
                let i = m.file(path)?;
                m.allocate(i, *offset, *len, *keep_size)
            }
            Op::Stat(p) => m.stat(p),
            Op::Readdir { path, .. } => m.readdir(path),
            Op::Readlink(p) => m.readlink(p),
            Op::Chmod(p, mode) => match m.resolve(p) {
                Ok(i) if matches!(m.inode(i).kind, Kind::Symlink(_)) => Err(Errno::ELOOP),
                Ok(_) => m.chmod(p, *mode),
                Err(e) => Err(e),
            },
            Op::Setxattr { path, name, value, flags } => {
                check_xattr(m, path)?;
                m.setxattr(path, name, value, *flags)
            }
            Op::Getxattr(p, name) => {
                check_xattr(m, p)?;
                m.getxattr(p, name)
            }
            Op::Removexattr(p, name) => {
                check_xattr(m, p)?;
                m.removexattr(p, name)
            }
            Op::Listxattr(p) => {
                check_xattr(m, p)?;
                m.listxattr(p)
            }
            Op::Fsync(p) => m.file(p).map(|_| Value::Unit),
            Op::SyncAll => Ok(Value::Unit),
            Op::Open(slot, p) => {
                let i = m.file(p)?;
                if m.open.contains_key(slot) {
                    return Err(Errno::EBUSY);
                }
                m.open.insert(*slot, i);
                Ok(Value::Unit)
            }
            Op::WriteSlot { slot, offset, len, byte } => {
                let i = *m.open.get(slot).ok_or(Errno::EBADF)?;
                m.write(i, *offset, &pattern(*byte, *len))
            }
            Op::ReadSlot { slot, offset, len } => {
                let i = *m.open.get(slot).ok_or(Errno::EBADF)?;
                m.read(i, *offset, *len)
            }
            Op::StatSlot(slot) => {
                let i = *m.open.get(slot).ok_or(Errno::EBADF)?;
                Ok(Value::Stat(m.stat_of(i)))
            }
            Op::Close(slot) => m.open.remove(slot).map(|_| Value::Unit).ok_or(Errno::EBADF),
        }
    }
}

/// user.* belongs to files and directories only.
fn check_xattr(m: &Model, path: &str) -> Result<(), Errno> {
    match m.inode(m.resolve(path)?).kind {
        Kind::File(_) | Kind::Directory(_) => Ok(()),
        Kind::Symlink(_) | Kind::Fifo => Err(Errno::EPERM),
    }
}

/// The state that a kernel keeps for one task on one mount: open handles by slot.
#[derive(Debug, Clone, Default)]
pub struct Session(Arc<Mutex<BTreeMap<u32, (OpenHandle, Fid)>>>);

fn parts(path: &str) -> Vec<&[u8]> {
    path.split('/').filter(|p| !p.is_empty()).map(str::as_bytes).collect()
}

async fn walk(client: &Client, names: &[&[u8]]) -> Result<ResolvedInode, Errno> {
    let mut at = client.getattr(Fid::ROOT).await?;
    for name in names {
        if !at.attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        at = client.lookup(at.attr.fid, name).await?;
    }
    Ok(at)
}
/// Walks from the root with one lookup per part; follows no symbolic links, as the model.
pub async fn resolve(client: &Client, path: &str) -> Result<ResolvedInode, Errno> {
    walk(client, &parts(path)).await
}
async fn parent<'a>(client: &Client, path: &'a str) -> Result<(Fid, &'a [u8]), Errno> {
    let parts = parts(path);
    let (last, dirs) = parts.split_last().expect("operations name something below the root");
    let dir = walk(client, dirs).await?;
    let last: &'a [u8] = last;
    if dir.attr.is_dir() { Ok((dir.attr.fid, last)) } else { Err(Errno::ENOTDIR) }
}
/// Errors that the kernel returns without a request to the file system.
fn check_file(entry: &ResolvedInode) -> Result<Fid, Errno> {
    match entry.attr.file_type() {
        FileType::Regular => Ok(entry.attr.fid),
        FileType::Directory => Err(Errno::EISDIR),
        FileType::Symlink => Err(Errno::ELOOP),
        _ => Err(Errno::ENXIO),
    }
}
async fn file(client: &Client, path: &str) -> Result<Fid, Errno> {
    check_file(&resolve(client, path).await?)
}
/// The attributes that the model predicts.
pub fn stat_of(entry: &ResolvedInode) -> Stat {
    let (kind, size) = match entry.attr.file_type() {
        FileType::Regular => ('f', entry.attr.size),
        FileType::Directory => ('d', 0),
        FileType::Symlink => ('l', entry.attr.size),
        _ => ('p', 0),
    };
    Stat { kind, mode: entry.attr.mode & mode::PERM, nlink: entry.attr.nlink, size }
}
fn root() -> Caller {
    Caller::root()
}
fn create_args<'a>(parent: Fid, name: &'a [u8], mode: u32) -> CreateArgs<'a> {
    CreateArgs::new(parent, name, mode, root())
}

/// Reads as a kernel does: in requests of at most 128 KiB, until one is short.
pub async fn read_all(
    client: &Client,
    handle: OpenHandle,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, Errno> {
    const PART: usize = 128 << 10;
    let mut data = Vec::new();
    while data.len() < len {
        let wanted = PART.min(len - data.len());
        let got = client.read(handle, offset + data.len() as u64, wanted as u32).await?.concat();
        let n = got.len();
        data.extend_from_slice(&got);
        if n < wanted {
            break;
        }
    }
    Ok(data)
}

async fn names(client: &Client, dir: Fid, page: u32, with_attrs: bool) -> Result<Vec<String>, Errno> {
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let got = client.readdir(dir, cookie, page, with_attrs).await?;
        for entry in &got.entries {
            cookie = entry.cookie;
            if &entry.name[..] != b"." && &entry.name[..] != b".." {
                names.push(String::from_utf8_lossy(&entry.name).into_owned());
            }
        }
        if got.eof {
            names.sort_unstable();
            return Ok(names);
        }
        if got.entries.is_empty() {
            return Err(Errno::EIO);
        }
    }
}

impl Op {
    /// Executes through a mount.
    pub async fn execute(&self, client: Rc<Client>, session: Session) -> Outcome {
        let client = &*client;
        match self {
            Op::Mkdir(p) => make(client, p, mode::DIR | 0o755, b"").await,
            Op::Mkfifo(p) => make(client, p, mode::FIFO | 0o644, b"").await,
            Op::Symlink(p, target) => make(client, p, mode::LNK | 0o777, target.as_bytes()).await,
            Op::Create { path, exclusive, stripes } => {
                let (dir, name) = parent(client, path).await?;
                match client.lookup(dir, name).await {
                    Ok(_) if *exclusive => return Err(Errno::EEXIST),
                    Ok(entry) => return check_file(&entry).map(|_| Value::Unit),
                    Err(Errno::ENOENT) => {}
                    Err(e) => return Err(e),
                }
                let layout = (*stripes != 0).then_some(LayoutTemplate {
                    stripe_count: *stripes,
                    stripe_bytes: 64 << 10,
                    first_ost: -1,
                });
                let args =
                    CreateArgs { exclusive: *exclusive, layout, ..create_args(dir, name, mode::REG | 0o644) };
                let (_, handle) = client.create(args, O_RDWR).await?;
                client.release(handle, None).await?;
                Ok(Value::Unit)
            }
            Op::Link(from, to) => {
                let entry = resolve(client, from).await?;
                let (dir, name) = parent(client, to).await?;
                client.link(entry.attr.fid, dir, name, root()).await.map(|_| Value::Unit)
            }
            Op::Unlink(p) => {
                let (dir, name) = parent(client, p).await?;
                client.unlink(dir, name, false, root()).await.map(|()| Value::Unit)
            }
            Op::Rmdir(p) => {
                let (dir, name) = parent(client, p).await?;
                client.unlink(dir, name, true, root()).await.map(|()| Value::Unit)
            }
            Op::Rename { from, to, flags } => {
                let from = parent(client, from).await?;
                let to = parent(client, to).await?;
                // The kernel looks both up before it looks at the tree.
                client.lookup(from.0, from.1).await?;
                match client.lookup(to.0, to.1).await {
                    Ok(_) if *flags == NOREPLACE => return Err(Errno::EEXIST),
                    Err(e) if *flags == EXCHANGE || e != Errno::ENOENT => return Err(e),
                    _ => {}
                }
                client.rename(from, to, *flags, root()).await.map(|()| Value::Unit)
            }
            Op::Write { path, offset, len, byte, sync } => {
                let fid = file(client, path).await?;
                write_file(client, fid, Some(*offset), pattern(*byte, *len), *sync).await
            }
            Op::Append { path, len, byte } => {
                let fid = file(client, path).await?;
                write_file(client, fid, None, pattern(*byte, *len), false).await
            }
            Op::Read { path, offset, len } => {
                let fid = file(client, path).await?;
                let (_, handle) = client.open(fid, 0, root()).await?;
                let data = read_all(client, handle, *offset, *len).await;
                client.release(handle, None).await?;
                data.map(Value::Bytes)
            }
            Op::Truncate(p, size) => {
                let fid = file(client, p).await?;
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                let entry = client.setattr(fid, set, root()).await?;
                if entry.attr.size == *size { Ok(Value::Unit) } else { Ok(Value::Stat(stat_of(&entry))) }
            }
            Op::Allocate { path, offset, len, keep_size } => {
                let fid = file(client, path).await?;
                let (_, handle) = client.open(fid, O_RDWR, root()).await?;
                let done = client
                    .allocate(
                        handle,
                        AllocateArgs {
                            offset: *offset,
                            len: *len,
                            keep_size: *keep_size,
                            kill_suidgid: Some(root()),
                        },
                    )
                    .await;
                client.release(handle, None).await?;
                done.map(|()| Value::Unit)
            }
            Op::Stat(p) => Ok(Value::Stat(stat_of(&resolve(client, p).await?))),
            Op::Readdir { path, page, with_attrs } => {
                let entry = resolve(client, path).await?;
                if !entry.attr.is_dir() {
                    return Err(Errno::ENOTDIR);
                }
                names(client, entry.attr.fid, *page, *with_attrs).await.map(Value::Names)
            }
            Op::Readlink(p) => {
                let entry = resolve(client, p).await?;
                if entry.attr.file_type() != FileType::Symlink {
                    return Err(Errno::EINVAL);
                }
                client.readlink(entry.attr.fid).await.map(|target| Value::Bytes(target.to_vec()))
            }
            Op::Chmod(p, mode) => {
                let entry = resolve(client, p).await?;
                if entry.attr.file_type() == FileType::Symlink {
                    return Err(Errno::ELOOP);
                }
                let set = SetAttr { mode: Some(*mode), ..SetAttr::default() };
                client.setattr(entry.attr.fid, set, root()).await.map(|_| Value::Unit)
            }
            Op::Setxattr { path, name, value, flags } => {
                let fid = xattr_fid(client, path).await?;
                let (name, caller) = (name.as_bytes(), root());
                let args = SetxattrArgs { fid, name, value, flags: *flags, kill_sgid: false, caller };
                client.setxattr(args).await.map(|()| Value::Unit)
            }
            Op::Getxattr(p, name) => {
                let fid = xattr_fid(client, p).await?;
                client.getxattr(fid, name.as_bytes()).await.map(|v| Value::Bytes(v.to_vec()))
            }
            Op::Removexattr(p, name) => {
                let fid = xattr_fid(client, p).await?;
                client.removexattr(fid, name.as_bytes()).await.map(|()| Value::Unit)
            }
            Op::Listxattr(p) => {
                let fid = xattr_fid(client, p).await?;
                let mut names: Vec<String> = client
                    .listxattr(fid)
                    .await?
                    .iter()
                    .map(|n| String::from_utf8_lossy(n).into_owned())
                    .collect();
                names.sort_unstable();
                Ok(Value::Names(names))
            }
            Op::Fsync(p) => {
                let fid = file(client, p).await?;
                let (_, handle) = client.open(fid, 0, root()).await?;
                let done = client.fsync(fid, Some(handle)).await;
                client.release(handle, None).await?;
                done.map(|()| Value::Unit)
            }
            Op::SyncAll => client.sync_all().await.map(|()| Value::Unit),
            Op::Open(slot, p) => {
                let fid = file(client, p).await?;
                if session.slots().contains_key(slot) {
                    return Err(Errno::EBUSY);
                }
                let (_, handle) = client.open(fid, O_RDWR, root()).await?;
                session.slots().insert(*slot, (handle, fid));
                Ok(Value::Unit)
            }
            Op::WriteSlot { slot, offset, len, byte } => {
                let (handle, _) = session.slot(*slot)?;
                write_handle(client, handle, *offset, pattern(*byte, *len), false).await
            }
            Op::ReadSlot { slot, offset, len } => {
                let (handle, _) = session.slot(*slot)?;
                read_all(client, handle, *offset, *len).await.map(Value::Bytes)
            }
            Op::StatSlot(slot) => {
                let (_, fid) = session.slot(*slot)?;
                client.getattr(fid).await.map(|entry| Value::Stat(stat_of(&entry)))
            }
            Op::Close(slot) => {
                let (handle, _) = session.slot(*slot)?;
                session.slots().remove(slot);
                client.release(handle, None).await.map(|()| Value::Unit)
            }
        }
    }
}

impl Session {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<u32, (OpenHandle, Fid)>> {
        self.0.lock().expect("one thread runs the world")
    }
    fn slot(&self, slot: u32) -> Result<(OpenHandle, Fid), Errno> {
        self.slots().get(&slot).copied().ok_or(Errno::EBADF)
    }
}

async fn make(client: &Client, path: &str, mode: u32, target: &[u8]) -> Outcome {
    let (dir, name) = parent(client, path).await?;
    let args = CreateArgs { target, ..create_args(dir, name, mode) };
    client.make(args).await.map(|_| Value::Unit)
}

async fn xattr_fid(client: &Client, path: &str) -> Result<Fid, Errno> {
    let entry = resolve(client, path).await?;
    match entry.attr.file_type() {
        FileType::Regular | FileType::Directory => Ok(entry.attr.fid),
        _ => Err(Errno::EPERM),
    }
}

async fn write_file(client: &Client, fid: Fid, offset: Option<u64>, data: Vec<u8>, sync: bool) -> Outcome {
    let (_, handle) = client.open(fid, O_RDWR, root()).await?;
    let written = write_handle(client, handle, offset, data, sync).await;
    client.release(handle, None).await?;
    written
}

/// Writes at `offset`, or appends if it is `None`; `sync` makes the data durable before it returns.
pub async fn write_handle(
    client: &Client,
    handle: OpenHandle,
    offset: Option<u64>,
    data: Vec<u8>,
    sync: bool,
) -> Outcome {
    let args = WriteArgs {
        handle,
        offset: offset.unwrap_or(0),
        append: offset.is_none(),
        call_bytes: 0,
        data: Bytes::from(data),
        kill_suidgid: None,
        sync,
    };
    client.write(args).await.map(|_| Value::Unit)
}
