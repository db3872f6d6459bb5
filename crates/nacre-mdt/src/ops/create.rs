//! Create: makes an inode of any type, and opens it in the same transaction.
//!
//! Rules: the FID belongs to a sequence that was granted to this client, and is unused; a set-gid directory hands down
//! its group; a default ACL replaces the umask; if the name exists and exclusive creation was not requested, its inode
//! is opened. A file without a name (O_TMPFILE) changes nothing in the directory; it is an orphan from the beginning.

use crate::ops::opening::open_inode;
use crate::ops::{Applied, Context, Operation, Recorded, WriteBound};
use crate::osts::allocator::{check_template, resolve};
use crate::rows::acl::{self, Acl};
use crate::rows::inode::DIR_BYTES;
use crate::rows::opens::is_writer;
use crate::rows::read_set::ReadSet;
use crate::rows::row::{EntryRow, Inode};
use crate::rows::table::{self, NEVER_NAMED, ORPHAN, SEQUENCE};
use crate::rows::versions::PARENT;
use crate::rows::view::{Slot, Step, View};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::name::{self, HashKey};
use nacre_types::{ClientUuid, Codec, DOM_BYTES_MAX, Errno, Fid, FileType, Generation, Layout, Name, mode};
use nacre_wire::mdt::{Create, CreateReply, EntryReply, open_flags};
use tracing::warn;

impl Operation for Create<'_> {
    fn counter(&self) -> Option<&'static str> {
        Some(match FileType::of_mode(self.mode) {
            Some(FileType::Directory) => "mkdir",
            _ => "mknod",
        })
    }

    fn read_set(&self, hash: HashKey, _export: Generation) -> ReadSet {
        let mut read_set = ReadSet::of_inode(self.parent);
        read_set.new_fid(self.fid);
        if let Some(name) = self.name {
            read_set.name(hash, self.parent, name);
        }
        read_set
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(4)
    }

    fn needs_ost(&self) -> bool {
        FileType::of_mode(self.mode) == Some(FileType::Regular)
    }

    fn apply(&self, view: &mut View<'_>, context: &mut Context<'_>) -> Step<Applied> {
        let file_type = check_arguments(self)?;
        let mut dir = view.dir(self.parent)?;
        view.depends_on(PARENT, &dir)?;
        let place = match self.name {
            None => None,
            Some(name) => match find_place(self, view, name)? {
                Place::Free(cookie) => Some((cookie, name)),
                Place::Taken(entry) => return open_existing(view, context, self, &entry),
            },
        };
        check_fid(view, context.client()?, self.fid)?;
        let mut inode = new_inode(&dir, self, file_type);
        inherit(view, &dir, &mut inode, self)?;
        if self.open.is_some() && file_type == FileType::Directory {
            return Err(Errno::EISDIR.into());
        }
        if file_type == FileType::Regular {
            let mut template = resolve(self.layout, dir.template, context.default_layout());
            // A writer that keeps nothing never has all bytes of the file at once: its file takes the turn of its OST now.
            let keeps =
                self.open.is_none_or(|how| !is_writer(how.flags) || how.flags & open_flags::WRITE_BACK != 0);
            if !keeps && template.dom_bytes.is_some_and(|bytes| bytes <= DOM_BYTES_MAX) {
                template.dom_bytes = Some(0);
            }
            inode.layout = Some(context.choose_layout(&template)?);
        }
        match place {
            Some((_, name)) => view.add_link(&mut inode, self.parent, name),
            None => inode.attr.nlink = 0,
        }
        inode.attr.version = view.transno().0;
        if let Some(how) = &self.open {
            open_inode(view, context.export(), &mut inode, how)?;
        }
        view.put_inode(&inode);
        view.account(inode.owner(), 1);
        match place {
            Some((cookie, name)) => enter(self, view, &mut dir, file_type, cookie, name)?,
            None => view.put_bytes(ORPHAN, &self.fid.key(), NEVER_NAMED),
        }
        view.describes(&inode);
        Ok(applied(inode.into_reply(), true))
    }

    fn replayed_layout(&self, reply: &[u8]) -> Option<Layout> {
        CreateReply::from_slice(reply).ok()?.entry.layout
    }

    fn described(&self, record: &Recorded) -> Option<Fid> {
        Some(record.fid)
    }

    fn reconstruct(&self, record: &Recorded, inode: Option<Inode>) -> Result<Vec<u8>, Errno> {
        let entry = inode.map_or_else(|| removed(self, record.fid), Inode::into_reply);
        Ok(CreateReply { entry, created: record.data != 0 }.to_vec())
    }
}

/// The place of a name in the directory.
enum Place {
    Free(u64),
    Taken(EntryRow),
}

fn find_place(args: &Create<'_>, view: &mut View<'_>, name: Name<'_>) -> Step<Place> {
    let slot = view.slot(args.parent, name)?;
    view.depends_on_name(args.parent, &slot)?;
    match slot {
        Slot::Taken { entry, .. } => Ok(Place::Taken(entry)),
        Slot::Free { cookie } => Ok(Place::Free(cookie)),
        Slot::Full => {
            warn!(dir = %args.parent, "seventeenth name with one hash refused");
            Err(Errno::ENOSPC.into())
        }
    }
}

/// Gives the new inode its name.
fn enter(
    args: &Create<'_>,
    view: &mut View<'_>,
    dir: &mut Inode,
    file_type: FileType,
    cookie: u64,
    name: Name<'_>,
) -> Step<()> {
    let entry = EntryRow { name: name.to_bytes(), fid: args.fid, file_type, version: 0 };
    view.put_name(args.parent, cookie, entry);
    dir.entries += 1;
    if file_type == FileType::Directory {
        view.dir_placed(args.fid, args.parent);
        dir.attr.nlink = dir.attr.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
    }
    dir.modified_at(args.time);
    view.put_inode(dir);
    Ok(())
}

fn applied(entry: EntryReply, created: bool) -> Applied {
    let record = Recorded { data: u8::from(created), fid: entry.attr.fid };
    Applied { body: CreateReply { entry, created }.to_vec(), record }
}

/// The description of an inode that was created and has been removed since. The attributes that it inherited from its
/// directory are not known.
fn removed(args: &Create<'_>, fid: Fid) -> EntryReply {
    let permissions = args.mode & mode::PERM & !(args.caller.umask & 0o777);
    let mut inode = Inode::blank(fid, args.mode & mode::FMT | permissions, args.time);
    (inode.attr.uid, inode.attr.gid) = (args.caller.uid, args.caller.gid);
    inode.attr.nlink = 0;
    inode.reply()
}

/// Refuses arguments that no inode could have.
fn check_arguments(args: &Create<'_>) -> Result<FileType, Errno> {
    let file_type = FileType::of_mode(args.mode).ok_or(Errno::EINVAL)?;
    if file_type == FileType::Symlink && args.target.is_empty() {
        return Err(Errno::ENOENT);
    }
    if args.name.is_none() && (file_type != FileType::Regular || args.open.is_none()) {
        return Err(Errno::EINVAL);
    }
    if args.target.contains(&0) {
        return Err(Errno::EINVAL);
    }
    if args.target.len() > name::SYMLINK_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    args.layout.as_ref().map_or(Ok(()), check_template)?;
    Ok(file_type)
}

/// The name exists: opens it, unless the caller asked for exclusive creation.
fn open_existing(
    view: &mut View<'_>,
    context: &Context<'_>,
    args: &Create<'_>,
    entry: &EntryRow,
) -> Step<Applied> {
    let (false, Some(how)) = (args.exclusive, &args.open) else { return Err(Errno::EEXIST.into()) };
    match entry.file_type {
        FileType::Regular => {}
        FileType::Directory => return Err(Errno::EISDIR.into()),
        // The caller saw no name here a moment ago: it must look again and follow or open what is there now.
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharDevice
        | FileType::BlockDevice => {
            return Err(Errno::ESTALE.into());
        }
    }
    let mut inode = view.file(entry.fid)?;
    let acl = view.acl(&inode, acl::ACCESS)?;
    // A truncate needs the permission to write, even when the file is opened for reading.
    let truncates = if how.flags & open_flags::TRUNC != 0 { 2 } else { 0 };
    let want = truncates
        | match how.flags & open_flags::ACCMODE {
            0 => 4,
            1 => 2,
            _ => 6,
        };
    if !acl::permits(&inode.attr, acl.as_ref(), &args.caller, want) {
        // The kernel has not checked this file, and it knows more groups than we do: it must look again.
        return Err(Errno::ESTALE.into());
    }
    if open_inode(view, context.export(), &mut inode, how)? {
        view.put_inode(&inode);
    }
    view.describes(&inode);
    Ok(applied(inode.into_reply(), false))
}

/// Whether a FID that a client proposes belongs to a sequence of this client and is unused.
pub(super) fn check_fid(view: &mut View<'_>, client: ClientUuid, fid: Fid) -> Step<()> {
    if !fid.is_valid() || !fid.seq.is_grantable_by(fid.mdt()) || fid.oid.0 == 0 {
        warn!(%fid, %client, "create with an impossible fid refused");
        return Err(Errno::EINVAL.into());
    }
    if view.row::<ClientUuid>(SEQUENCE, &table::sequence(fid.seq))? != Some(client) {
        warn!(%fid, %client, "create with a fid of a sequence of another client refused");
        return Err(Errno::EPERM.into());
    }
    if view.has_inode(fid)? {
        warn!(%fid, %client, "create with a fid in use refused");
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

fn new_inode(dir: &Inode, args: &Create<'_>, file_type: FileType) -> Inode {
    let mut bits = args.mode & mode::PERM;
    let mut gid = args.caller.gid;
    if dir.attr.mode & mode::SGID != 0 {
        gid = dir.attr.gid;
        if file_type == FileType::Directory {
            bits |= mode::SGID;
        } else if bits & (mode::SGID | mode::XGRP) == mode::SGID | mode::XGRP
            && args.caller.uid != 0
            && !args.caller.in_group(gid)
        {
            bits &= !mode::SGID;
        }
    }
    let (size, nlink) = match file_type {
        FileType::Directory => (DIR_BYTES, 2),
        FileType::Symlink => (args.target.len() as u64, 1),
        _ => (0, 1),
    };
    let device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    let target: &[u8] = if file_type == FileType::Symlink { args.target } else { &[] };
    let mut inode = Inode::blank(args.fid, file_type.mode_bits() | bits, args.time);
    inode.attr.uid = args.caller.uid;
    inode.attr.gid = gid;
    inode.attr.projid = dir.attr.projid;
    inode.attr.nlink = nlink;
    inode.attr.rdev = if device { args.rdev } else { 0 };
    inode.attr.size = size;
    inode.target = Bytes::copy_from_slice(target);
    inode.template = if file_type == FileType::Directory { args.layout.or(dir.template) } else { None };
    inode
}

/// Applies the default ACL of the directory, or the umask.
fn inherit(view: &mut View<'_>, dir: &Inode, inode: &mut Inode, args: &Create<'_>) -> Step<()> {
    if inode.attr.file_type() == FileType::Symlink {
        inode.attr.mode |= 0o777;
        return Ok(());
    }
    let Some(default) = view.acl(dir, acl::DEFAULT)? else {
        inode.attr.mode &= !(args.caller.umask & 0o777);
        return Ok(());
    };
    let access: Acl = default.inherited(inode.attr.mode);
    view.set_access_acl(inode, &access)?;
    if inode.attr.is_dir() {
        view.set_xattr(inode, acl::DEFAULT, &default.to_bytes())?;
    }
    Ok(())
}
