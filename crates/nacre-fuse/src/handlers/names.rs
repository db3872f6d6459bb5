//! Operations on names: LOOKUP, create, link, rename, remove, READLINK.
//!
//! The kernel has checked permissions (`default_permissions`) and holds its own lock of the directory; it sends modes
//! before the umask (DONT_MASK), because a default ACL replaces the umask.

use crate::abi::{self, op};
use crate::door::{Door, Reply};
use crate::handlers::data::close_if_given_up;
use crate::kernel_cache::Grant;
use crate::ops::{OpenedFile, Ops};
use crate::reply::{Body, open_out};
use crate::request::{FuseRequest, fid_of};
use nacre_client::{CreateArgs, ResolvedInode, Validity};
use nacre_types::{Errno, Fid, Name, mode};
use std::rc::Rc;
use std::time::Duration;

/// A name from the kernel, as an entry may have it.
fn checked(name: &[u8]) -> Result<&[u8], Errno> {
    Name::new(name).map(Name::as_bytes)
}

/// "." and ".." come when the kernel opens a file handle (EXPORT_SUPPORT): the inode itself, its parent.
pub(crate) async fn lookup<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let fid = request.fid()?;
    // The kernel does not hold its lock of the directory then, so the names have no validity.
    let name = match request.args().name()? {
        b"." => return Ok(unnamed(&door, &door.ops.getattr(fid).await?)),
        b".." => return Ok(unnamed(&door, &door.ops.parent(fid).await?)),
        name => checked(name)?,
    };
    match door.removals().read_beside(async || look_up(&door, &request, fid, name).await).await {
        Ok(entry) => match stand_in_of_file(&door, &request, (fid, name), &entry) {
            Some(node) => {
                door.moved().is_no_directory((request.node(), name));
                Ok(Body::stand_in(&entry, node))
            }
            None => Ok(found(&door, &request, (fid, name), &entry)),
        },
        Err(Errno::ENOENT) => {
            door.moved().is_no_directory((request.node(), name));
            match door.ops.negative_validity(fid, name) {
                Duration::ZERO => Err(Errno::ENOENT),
                validity => Ok(Body::no_entry(validity, door.grant(&request))),
            }
        }
        // The directory is gone, so it has no names. ESTALE would reach the program if the name is that of something new: the
        // kernel does not walk the path again then.
        Err(Errno::ESTALE) => Err(Errno::ENOENT),
        Err(error) => Err(error),
    }
}

/// Looks a name up. A regular file that a second walk finds stays open for a while (`walks.rs`).
async fn look_up<O: Ops>(
    door: &Rc<Door<O>>,
    request: &FuseRequest,
    parent: Fid,
    name: &[u8],
) -> Result<ResolvedInode, Errno> {
    /// Until the request that follows has come.
    const KEPT: Duration = Duration::from_secs(1);
    /// A file that is replaced between its lookup and the open is looked up again so often.
    const REPLACED_MAX: usize = 100;
    let mut entry = door.ops.lookup(parent, name).await?;
    for _ in 0..REPLACED_MAX {
        let is_regular = entry.attr.mode & mode::FMT == mode::REG;
        if !is_regular || !door.moved().walks().is_certain(request.header.pid) {
            break;
        }
        match door.ops.open(entry.attr.fid, 0, request.caller(0)).await {
            Ok((_, handle)) => {
                let kept = entry.attr.fid;
                let closes = door.clone();
                door.ctx.spawn(async move {
                    closes.ctx.sleep(KEPT).await;
                    // It fails only if the handle is already closed.
                    let _ = closes.ops.release(handle, None).await;
                });
                // Again: the attributes may have changed meanwhile, and a reply with a validity is decided when they are read.
                entry = door.ops.lookup(parent, name).await?;
                if entry.attr.fid == kept {
                    break;
                }
            }
            Err(Errno::ESTALE) => entry = door.ops.lookup(parent, name).await?,
            // The request that follows tells the caller.
            Err(_) => {
                entry = door.ops.lookup(parent, name).await?;
                break;
            }
        }
    }
    Ok(entry)
}

/// The node number for a file that a call of the kernel may have found under another name before (`left_names.rs`).
fn stand_in_of_file<O: Ops>(
    door: &Door<O>,
    request: &FuseRequest,
    (parent, name): (Fid, &[u8]),
    entry: &ResolvedInode,
) -> Option<u64> {
    if entry.attr.is_dir()
        || entry.attr.nlink > 1
        || door.moved().walks().second(request.header.pid).is_some()
    {
        return None;
    }
    let mut left = door.left_names();
    let place = left.place(parent, name);
    left.stand_in(entry.attr.fid, place, request.header.pid, door.ctx.now())
}
/// The reply to a LOOKUP.
fn found<O: Ops>(
    door: &Door<O>,
    request: &FuseRequest,
    (parent, name): (Fid, &[u8]),
    entry: &ResolvedInode,
) -> Body {
    let body = named(door, request, name, entry);
    if !entry.attr.is_dir() && !body.has_valid_name() {
        let mut left = door.left_names();
        let place = left.place(parent, name);
        left.add(entry.attr.fid, place, Some(request.header.pid), door.ctx.now());
    }
    body
}

/// The reply that shows an inode under a name in the directory of the request.
fn named<O: Ops>(door: &Door<O>, request: &FuseRequest, name: &[u8], entry: &ResolvedInode) -> Body {
    let fid = entry.attr.fid;
    if entry.attr.is_dir() {
        let (place, pid) = ((request.node(), name), request.header.pid);
        let may_move = |former| !door.others_lock_names(request, former);
        let node = door.moved().looked_up(fid, place, (pid, may_move), door.ctx.now());
        if node != fid.ino() {
            return Body::stand_in(entry, node);
        }
    } else {
        door.moved().is_no_directory((request.node(), name));
    }
    door.special_files().note(entry);
    let validity = door.ops.validity(request.fid().ok().map(|parent| (parent, name)), fid);
    Body::entry(entry, validity, door.grant(request))
}
fn unnamed<O: Ops>(door: &Door<O>, entry: &ResolvedInode) -> Body {
    door.moved().shown(entry.attr.fid);
    Body::entry(entry, Validity::default(), Grant::none())
}

pub(crate) async fn readlink<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    Ok(Body::bulk(vec![door.ops.readlink(request.fid()?).await?]))
}

pub(crate) async fn mknod<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let abi::MknodIn { mode, rdev, umask, .. } = args.take()?;
    let name = args.name()?;
    make(&door, &request, New { name, mode, rdev, target: b"", umask }).await
}

pub(crate) async fn mkdir<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let abi::MkdirIn { mode, umask } = args.take()?;
    let mode = mode & mode::PERM | mode::DIR;
    let name = args.name()?;
    make(&door, &request, New { name, mode, rdev: 0, target: b"", umask }).await
}

pub(crate) async fn symlink<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let (name, target) = (args.name()?, args.name()?);
    make(&door, &request, New { name, mode: mode::LNK | 0o777, rdev: 0, target, umask: 0 }).await
}

struct New<'a> {
    name: &'a [u8],
    mode: u32,
    rdev: u32,
    target: &'a [u8],
    umask: u32,
}
impl<'a> New<'a> {
    fn args(self, request: &FuseRequest, exclusive: bool) -> Result<CreateArgs<'a>, Errno> {
        Ok(CreateArgs {
            parent: request.fid()?,
            name: checked(self.name)?,
            mode: self.mode,
            rdev: self.rdev,
            target: self.target,
            layout: None,
            exclusive,
            caller: request.caller(self.umask),
        })
    }
}

async fn make<O: Ops>(door: &Door<O>, request: &FuseRequest, new: New<'_>) -> Reply {
    let name = new.name;
    let entry = door.ops.make(new.args(request, true)?).await?;
    door.changed(request, request.fid()?).await;
    Ok(named(door, request, name, &entry))
}

/// Creates and opens. Flags are passed on: if another mount was faster, the server applies O_TRUNC and O_EXCL.
pub(crate) async fn create<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let abi::CreateIn { flags, mode, umask, .. } = args.take()?;
    let mode = mode & mode::PERM | mode::REG;
    let name = args.name()?;
    let new = New { name, mode, rdev: 0, target: b"", umask };
    let new = new.args(&request, flags & abi::o::EXCL != 0)?;
    let (entry, handle) = door.ops.create(new, flags).await?;
    door.changed(&request, request.fid()?).await;
    door.note_opener(&request, entry.attr.fid, handle).await;
    close_if_given_up(&door, &request, handle).await;
    let opened = OpenedFile { handle, fopen_flags: door.ops.fopen_flags(handle, flags) };
    Ok(named(&door, &request, name, &entry).and(&open_out(opened)))
}

/// O_TMPFILE: a file without a name. The kernel remembers whether it may be linked (without O_EXCL).
pub(crate) async fn tmpfile<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::CreateIn { flags, mode, umask, .. } = request.args().take()?;
    let mode = mode & mode::PERM | mode::REG;
    let new = CreateArgs::new(request.fid()?, b"", mode, request.caller(umask));
    let (entry, handle) = door.ops.create_unnamed(new, flags).await?;
    door.note_opener(&request, entry.attr.fid, handle).await;
    close_if_given_up(&door, &request, handle).await;
    let opened = OpenedFile { handle, fopen_flags: door.ops.fopen_flags(handle, flags) };
    Ok(unnamed(&door, &entry).and(&open_out(opened)))
}

pub(crate) async fn link<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let fid = fid_of(args.take::<abi::LinkIn>()?.oldnodeid)?;
    let name = checked(args.name()?)?;
    let parent = request.fid()?;
    let entry = door.ops.link(fid, parent, name, request.caller(0)).await?;
    door.changed(&request, parent).await;
    // The kernel would take over the attributes also after an INVAL_INODE.
    let validity = Validity { attr: Duration::ZERO, ..door.ops.validity(Some((parent, name)), fid) };
    Ok(Body::entry(&entry, validity, door.grant(&request)))
}

pub(crate) async fn unlink<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    remove(&door, &request).await
}
pub(crate) async fn rmdir<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    remove(&door, &request).await
}
async fn remove<O: Ops>(door: &Door<O>, request: &FuseRequest) -> Reply {
    let mut args = request.args();
    let name = checked(args.name()?)?;
    let (parent, directory) = (request.fid()?, request.opcode() == op::RMDIR);
    let _removal = if directory { None } else { door.removal_of(request, (parent, name)) };
    door.ops.unlink(parent, name, directory, request.caller(0)).await?;
    door.changed(request, parent).await;
    Ok(Body::empty())
}

pub(crate) async fn rename<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let abi::RenameIn { newdir } = args.take()?;
    move_name(&door, &request, newdir, 0, (args.name()?, args.name()?)).await
}

pub(crate) async fn rename2<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    use nacre_wire::mdt::rename_flags::{EXCHANGE, NOREPLACE, WHITEOUT};
    let mut args = request.args();
    let abi::Rename2In { newdir, flags, .. } = args.take()?;
    if flags & !(NOREPLACE | EXCHANGE | WHITEOUT) != 0 {
        return Err(Errno::EINVAL);
    }
    move_name(&door, &request, newdir, flags, (args.name()?, args.name()?)).await
}

async fn move_name<O: Ops>(
    door: &Door<O>,
    request: &FuseRequest,
    newdir: u64,
    flags: u32,
    (old, new): (&[u8], &[u8]),
) -> Reply {
    let from = (request.fid()?, checked(old)?);
    let own = door.moved().own_number(newdir);
    let to = (fid_of(own.unwrap_or(newdir))?, checked(new)?);
    let exchanged = flags & nacre_wire::mdt::rename_flags::EXCHANGE != 0;
    let _removal = if exchanged { None } else { door.removal_of(request, to) };
    door.ops.rename(from, to, flags, request.caller(0)).await?;
    door.moved().renamed((request.node(), old), (newdir, new), exchanged);
    door.left_names().renamed(from.0, from.1);
    door.kernel_moves(newdir, new);
    if exchanged {
        door.kernel_moves(request.node(), old);
    }
    door.changed(request, from.0).await;
    if to.0 != from.0 {
        door.changed(request, to.0).await;
    }
    Ok(Body::empty())
}
