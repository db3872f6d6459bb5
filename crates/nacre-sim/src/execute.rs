//! Execution of operations through a client, in the way in which a kernel would do it.

use crate::kernel::Kernel;
use crate::model::{Outcome, Stat, Value};
use crate::ops::{Op, pattern};
use bytes::Bytes;
use nacre_client::{AllocateArgs, AllocateMode, Client, CreateArgs, ResolvedInode, SetxattrArgs, WriteArgs};
use nacre_types::{Caller, Failure, Fid, FileType, LayoutTemplate, OpenHandle, SetAttr, mode};
use nacre_wire::mdt::rename_flags::{EXCHANGE, NOREPLACE};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};

const O_RDWR: u32 = 2;

/// The state that a kernel keeps for one task on one mount: open handles by slot.
#[derive(Debug, Clone, Default)]
pub struct Session(Arc<Mutex<BTreeMap<u32, (OpenHandle, Fid)>>>);

fn parts(path: &str) -> Vec<&[u8]> {
    path.split('/').filter(|p| !p.is_empty()).map(str::as_bytes).collect()
}

async fn walk(client: &Client, names: &[&[u8]]) -> Result<ResolvedInode, Failure> {
    let mut at = client.getattr(Fid::ROOT).await?;
    for name in names {
        if !at.attr.is_dir() {
            return Err(Failure::ENOTDIR);
        }
        at = client.lookup(at.attr.fid, name).await?;
    }
    Ok(at)
}
/// Walks from the root with one lookup per part; follows no symbolic links, as the model.
pub async fn resolve(client: &Client, path: &str) -> Result<ResolvedInode, Failure> {
    walk(client, &parts(path)).await
}
async fn parent<'a>(client: &Client, path: &'a str) -> Result<(Fid, &'a [u8]), Failure> {
    let parts = parts(path);
    let (last, dirs) = parts.split_last().expect("operations name something below the root");
    let dir = walk(client, dirs).await?;
    let last: &'a [u8] = last;
    if dir.attr.is_dir() { Ok((dir.attr.fid, last)) } else { Err(Failure::ENOTDIR) }
}
/// A change of the names of directories: the kernel notices it before and after.
async fn changing<T>(client: &Client, dirs: &[Fid], change: impl Future<Output = T>) -> T {
    let noticed = || dirs.iter().for_each(|dir| Kernel::of(client).changes_names(*dir));
    noticed();
    let done = change.await;
    noticed();
    done
}
/// Errors that the kernel returns without a request to the file system.
fn check_file(entry: &ResolvedInode) -> Result<Fid, Failure> {
    match entry.attr.file_type() {
        FileType::Regular => Ok(entry.attr.fid),
        FileType::Directory => Err(Failure::EISDIR),
        FileType::Symlink => Err(Failure::ELOOP),
        _ => Err(Failure::ENXIO),
    }
}
async fn file(client: &Client, path: &str) -> Result<Fid, Failure> {
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
) -> Result<Vec<u8>, Failure> {
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

/// The names of a directory, by requests.
pub(crate) async fn names(
    client: &Client,
    dir: Fid,
    page: u32,
    with_attrs: bool,
) -> Result<Vec<String>, Failure> {
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
            return Err(Failure::EIO);
        }
    }
}

impl Op {
    /// Executes through a mount.
    pub async fn execute(&self, client: Rc<Client>, session: Session) -> Outcome {
        let client = &client;
        match self {
            Op::Mkdir(p) => make(client, p, mode::DIR | 0o755, b"").await,
            Op::Mkfifo(p) => make(client, p, mode::FIFO | 0o644, b"").await,
            Op::Symlink(p, target) => make(client, p, mode::LNK | 0o777, target.as_bytes()).await,
            Op::Create { path, exclusive, stripes } => create(client, path, *exclusive, *stripes).await,
            Op::Link(from, to) => link(client, from, to).await,
            Op::Unlink(p) => unlink(client, p, false).await,
            Op::Rmdir(p) => unlink(client, p, true).await,
            Op::Rename { from, to, flags } => rename(client, from, to, *flags).await,
            Op::Write { path, offset, len, byte, sync } => {
                write_file(client, path, Some(*offset), pattern(*byte, *len), *sync).await
            }
            Op::Append { path, len, byte } => {
                write_file(client, path, None, pattern(*byte, *len), false).await
            }
            Op::Read { path, offset, len } => read_file(client, path, *offset, *len).await,
            Op::Truncate(p, size) => truncate(client, (None, file(client, p).await?), *size).await,
            Op::Allocate { path, offset, len, mode } => allocate(client, path, *offset, *len, *mode).await,
            Op::Stat(p) => Ok(Value::Stat(stat_of(&resolve(client, p).await?))),
            Op::Readdir { path, page, with_attrs } => {
                let entry = resolve(client, path).await?;
                if !entry.attr.is_dir() {
                    return Err(Failure::ENOTDIR);
                }
                let listed = Kernel::of(client).list(client, entry.attr.fid, *page, *with_attrs).await;
                listed.map(Value::Names)
            }
            Op::Readlink(p) => readlink(client, p).await,
            Op::Chmod(p, mode) => chmod(client, p, *mode).await,
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
            Op::Listxattr(p) => listxattr(client, p).await,
            Op::Fsync(p) => fsync(client, p).await,
            Op::SyncAll => client.sync_all().await.map(|()| Value::Unit),
            Op::Open(..)
            | Op::WriteSlot { .. }
            | Op::ReadSlot { .. }
            | Op::TruncateSlot { .. }
            | Op::StatSlot(_)
            | Op::Close(_) => self.execute_on_slot(client, &session).await,
        }
    }

    /// The operations on handles that stay open.
    async fn execute_on_slot(&self, client: &Client, session: &Session) -> Outcome {
        match self {
            Op::Open(slot, p) => {
                let fid = file(client, p).await?;
                if session.slots().contains_key(slot) {
                    return Err(Failure::EBUSY);
                }
                let (_, handle) = client.open(fid, O_RDWR, root()).await?;
                session.slots().insert(*slot, (handle, fid));
                Ok(Value::Unit)
            }
            Op::WriteSlot { slot, offset, len, byte } => {
                let opened = session.slot(*slot)?;
                write_through(client, opened, *offset, pattern(*byte, *len), false).await
            }
            Op::ReadSlot { slot, offset, len } => {
                let (handle, _) = session.slot(*slot)?;
                read_all(client, handle, *offset, *len).await.map(Value::Bytes)
            }
            Op::TruncateSlot { slot, size } => {
                let (handle, fid) = session.slot(*slot)?;
                truncate(client, (Some(handle), fid), *size).await
            }
            Op::StatSlot(slot) => {
                let (_, fid) = session.slot(*slot)?;
                Kernel::of(client).stat(client, fid).await.map(|entry| Value::Stat(stat_of(&entry)))
            }
            Op::Close(slot) => {
                let (handle, _) = session.slot(*slot)?;
                session.slots().remove(slot);
                client.release(handle, None).await.map(|()| Value::Unit)
            }
            _ => unreachable!("{self:?} uses no slot"),
        }
    }
}

async fn create(client: &Client, path: &str, exclusive: bool, stripes: i32) -> Outcome {
    let (dir, name) = parent(client, path).await?;
    match client.lookup(dir, name).await {
        Ok(_) if exclusive => return Err(Failure::EEXIST),
        Ok(entry) => return check_file(&entry).map(|_| Value::Unit),
        Err(Failure::ENOENT) => {}
        Err(e) => return Err(e),
    }
    let layout = (stripes != 0).then_some(LayoutTemplate {
        stripe_count: stripes,
        stripe_bytes: 64 << 10,
        first_ost: -1,
        ..LayoutTemplate::default()
    });
    let args = CreateArgs { exclusive, layout, ..create_args(dir, name, mode::REG | 0o644) };
    let (_, handle) = changing(client, &[dir], client.create(args, O_RDWR)).await?;
    client.release(handle, None).await?;
    Ok(Value::Unit)
}
async fn link(client: &Client, from: &str, to: &str) -> Outcome {
    let entry = resolve(client, from).await?;
    let (dir, name) = parent(client, to).await?;
    changing(client, &[dir], client.link(entry.attr.fid, dir, name, root())).await.map(|_| Value::Unit)
}
async fn unlink(client: &Client, path: &str, directory: bool) -> Outcome {
    let (dir, name) = parent(client, path).await?;
    changing(client, &[dir], client.unlink(dir, name, directory, root())).await.map(|()| Value::Unit)
}
async fn rename(client: &Client, from: &str, to: &str, flags: u32) -> Outcome {
    let from = parent(client, from).await?;
    let to = parent(client, to).await?;
    // The kernel looks both up before it looks at the tree.
    client.lookup(from.0, from.1).await?;
    match client.lookup(to.0, to.1).await {
        Ok(_) if flags == NOREPLACE => return Err(Failure::EEXIST),
        Err(e) if flags == EXCHANGE || e != Failure::ENOENT => return Err(e),
        _ => {}
    }
    let renamed = client.rename(from, to, flags, root());
    changing(client, &[from.0, to.0], renamed).await.map(|()| Value::Unit)
}
async fn read_file(client: &Rc<Client>, path: &str, offset: u64, len: usize) -> Outcome {
    let fid = file(client, path).await?;
    Kernel::of(client).read_file(client, fid, offset, len).await.map(Value::Bytes)
}
async fn truncate(client: &Client, (handle, fid): (Option<OpenHandle>, Fid), size: u64) -> Outcome {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    let entry = match handle {
        Some(handle) => client.setattr_through(handle, fid, set, root()).await?,
        None => client.setattr(fid, set, root()).await?,
    };
    Kernel::of(client).wrote(fid);
    if entry.attr.size == size { Ok(Value::Unit) } else { Ok(Value::Stat(stat_of(&entry))) }
}
async fn allocate(client: &Client, path: &str, offset: u64, len: u64, mode: AllocateMode) -> Outcome {
    let fid = file(client, path).await?;
    let (_, handle) = client.open(fid, O_RDWR, root()).await?;
    let args = AllocateArgs { offset, len, mode, kill_suidgid: Some(root()) };
    let done = client.allocate(handle, args).await;
    client.release(handle, None).await?;
    Kernel::of(client).wrote(fid);
    done.map(|()| Value::Unit)
}
async fn readlink(client: &Client, path: &str) -> Outcome {
    let entry = resolve(client, path).await?;
    if entry.attr.file_type() != FileType::Symlink {
        return Err(Failure::EINVAL);
    }
    client.readlink(entry.attr.fid).await.map(|target| Value::Bytes(target.to_vec()))
}
async fn chmod(client: &Client, path: &str, mode: u32) -> Outcome {
    let entry = resolve(client, path).await?;
    if entry.attr.file_type() == FileType::Symlink {
        return Err(Failure::ELOOP);
    }
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    client.setattr(entry.attr.fid, set, root()).await.map(|_| Value::Unit)
}
async fn listxattr(client: &Client, path: &str) -> Outcome {
    let fid = xattr_fid(client, path).await?;
    let listed = client.listxattr(fid).await?;
    let mut names: Vec<String> = listed.iter().map(|n| String::from_utf8_lossy(n).into_owned()).collect();
    names.sort_unstable();
    Ok(Value::Names(names))
}
async fn fsync(client: &Client, path: &str) -> Outcome {
    let fid = file(client, path).await?;
    let (_, handle) = client.open(fid, 0, root()).await?;
    let done = client.fsync(fid, Some(handle)).await;
    client.release(handle, None).await?;
    done.map(|()| Value::Unit)
}

impl Session {
    fn slots(&self) -> MutexGuard<'_, BTreeMap<u32, (OpenHandle, Fid)>> {
        self.0.lock().expect("one thread runs the world")
    }
    fn slot(&self, slot: u32) -> Result<(OpenHandle, Fid), Failure> {
        self.slots().get(&slot).copied().ok_or(Failure::EBADF)
    }
}

async fn make(client: &Client, path: &str, mode: u32, target: &[u8]) -> Outcome {
    let (dir, name) = parent(client, path).await?;
    let args = CreateArgs { target, ..create_args(dir, name, mode) };
    changing(client, &[dir], client.make(args)).await.map(|_| Value::Unit)
}

async fn xattr_fid(client: &Client, path: &str) -> Result<Fid, Failure> {
    let entry = resolve(client, path).await?;
    match entry.attr.file_type() {
        FileType::Regular | FileType::Directory => Ok(entry.attr.fid),
        _ => Err(Failure::EPERM),
    }
}

async fn write_file(client: &Client, path: &str, offset: Option<u64>, data: Vec<u8>, sync: bool) -> Outcome {
    let fid = file(client, path).await?;
    let (_, handle) = client.open(fid, O_RDWR, root()).await?;
    let written = write_through(client, (handle, fid), offset, data, sync).await;
    client.release(handle, None).await?;
    written
}

/// Writes as a kernel does that may have pages of the file.
async fn write_through(
    client: &Client,
    (handle, fid): (OpenHandle, Fid),
    offset: Option<u64>,
    data: Vec<u8>,
    sync: bool,
) -> Outcome {
    Kernel::of(client).writes(fid);
    let written = write_handle(client, handle, offset, data, sync).await;
    Kernel::of(client).wrote(fid);
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
