//! Making an inode, and opening it in the same transaction.
//!
//! Rules: the FID is one of a sequence granted to this client and unused; set-gid directories hand down their group;
//! a default ACL replaces the umask; a name that is there and was not asked for exclusively is opened instead.

use crate::osts::allocator::{check_template, resolve};
use crate::rows::acl::{self, Acl};
use crate::rows::row::{Entry, Inode};
use crate::rows::table::{self, SEQUENCE};
use crate::rows::versions::PARENT;
use crate::rows::view::{Halt, Slot, Step, View, Wants};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::name::{self, HashKey};
use nacre_types::{
    Attr, ClientUuid, Errno, Fid, FileType, Generation, Layout, LayoutTemplate, Seq, Timestamp, mode,
};
use nacre_wire::mdt::{Create, CreateReply, open_flags};
use tracing::warn;

/// Size that `stat` shows for a directory.
const DIR_BYTES: u64 = 4096;

/// Who asks, and what the target lends to the operation.
pub(crate) struct Maker<'a> {
    pub(crate) export: Generation,
    pub(crate) client: ClientUuid,
    pub(crate) default: LayoutTemplate,
    /// Chooses OSTs; called last, when nothing else can fail.
    pub(crate) layout: &'a mut dyn FnMut(&LayoutTemplate) -> Result<Layout, Errno>,
}

/// Rows that a create looks at.
pub(crate) fn wants(hash: HashKey, args: &Create<'_>) -> Wants {
    let mut wants = Wants::default();
    wants.inode(args.parent);
    wants.inode(args.fid);
    wants.key(SEQUENCE, &table::sequence(args.fid.seq));
    wants.name(hash, args.parent, args.name);
    wants
}

pub(crate) fn apply(view: &mut View<'_>, maker: &mut Maker<'_>, args: &Create<'_>) -> Step<CreateReply> {
    let file_type = FileType::of_mode(args.mode).ok_or(Errno::EINVAL)?;
    if file_type == FileType::Symlink && args.target.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if args.target.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    if args.target.len() > name::SYMLINK_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if let Some(template) = &args.layout {
        check_template(template).map_err(Errno::from)?;
    }
    let mut dir = view.dir(args.parent)?;
    view.depends_on(PARENT, &dir)?;
    let slot = view.slot(args.parent, args.name)?;
    view.depends_on_name(args.parent, &slot)?;
    let cookie = match slot {
        Slot::Taken { entry, .. } => return existing(view, maker, args, &entry),
        Slot::Free { cookie } => cookie,
        Slot::Full => {
            warn!(dir = %args.parent, "seventeenth name with one hash refused");
            return Err(Errno::ENOSPC.into());
        }
    };
    check_fid(view, maker, args.fid)?;
    let mut inode = new_inode(&dir, args, file_type);
    inherit(view, &dir, &mut inode, args)?;
    let opening = match &args.open {
        Some(_) if file_type == FileType::Directory => return Err(Errno::EISDIR.into()),
        how => how,
    };
    if file_type == FileType::Regular {
        let template = resolve(args.layout, dir.template, maker.default);
        inode.layout = Some((maker.layout)(&template)?);
    }
    view.add_link(&mut inode, args.parent, args.name);
    inode.attr.version = view.transno().0;
    if let Some(how) = opening {
        crate::ops::open::open_inode(view, maker.export, &mut inode, how)?;
    }
    view.put_inode(&inode);
    view.account(inode.owner(), 1);
    let entry = Entry { name: args.name.to_bytes(), fid: args.fid, file_type, version: 0 };
    view.put_name(args.parent, cookie, entry);
    dir.entries += 1;
    if file_type == FileType::Directory {
        view.placed.push((args.fid, args.parent));
        dir.attr.nlink = dir.attr.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
    }
    dir.modified_at(args.time);
    view.put_inode(&dir);
    Ok(CreateReply { entry: inode.reply(), created: true })
}

/// The name is there: open it, unless the caller wanted to be the one who makes it.
fn existing(view: &mut View<'_>, maker: &Maker<'_>, args: &Create<'_>, entry: &Entry) -> Step<CreateReply> {
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
    // Who cuts a file must be allowed to write it, even when it is opened for reading.
    let cuts = if how.flags & open_flags::TRUNC != 0 { 2 } else { 0 };
    let want = cuts
        | match how.flags & open_flags::ACCMODE {
            0 => 4,
            1 => 2,
            _ => 6,
        };
    if !acl::permits(&inode.attr, acl.as_ref(), &args.caller, want) {
        // The kernel has not checked this file, and it knows more groups than we do: it must look again.
        return Err(Errno::ESTALE.into());
    }
    if crate::ops::open::open_inode(view, maker.export, &mut inode, how)? {
        view.put_inode(&inode);
    }
    Ok(CreateReply { entry: inode.reply(), created: false })
}

fn check_fid(view: &mut View<'_>, maker: &Maker<'_>, fid: Fid) -> Step<()> {
    if !fid.is_valid() || fid.seq < Seq::FIRST_CLIENT || fid.oid.0 == 0 {
        warn!(%fid, client = %maker.client, "create with an impossible fid refused");
        return Err(Errno::EINVAL.into());
    }
    if view.row::<ClientUuid>(SEQUENCE, &table::sequence(fid.seq))? != Some(maker.client) {
        warn!(%fid, client = %maker.client, "create with a fid of a sequence of somebody else refused");
        return Err(Errno::EPERM.into());
    }
    if view.inode(fid)?.is_some() {
        warn!(%fid, client = %maker.client, "create with a fid in use refused");
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
    let mut inode = blank(args.fid, file_type.mode_bits() | bits, args.time);
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

/// An inode of which only this is known.
pub(crate) fn blank(fid: Fid, mode: u32, time: Timestamp) -> Inode {
    Inode {
        attr: Attr::new(fid, mode, time),
        mtime_order: time,
        layout: None,
        may_have_objects: false,
        target: Bytes::new(),
        template: None,
        entries: 0,
        links: Vec::new(),
        links_beyond: 0,
        xattrs: Vec::new(),
    }
}

/// What is known of an inode that was made and is gone: whatever its directory had handed down is not.
pub(crate) fn gone(fid: Fid, args: &Create<'_>) -> Inode {
    let permissions = args.mode & mode::PERM & !(args.caller.umask & 0o777);
    let mut inode = blank(fid, args.mode & mode::FMT | permissions, args.time);
    (inode.attr.uid, inode.attr.gid) = (args.caller.uid, args.caller.gid);
    inode
}

/// The root directory of a new file system.
pub(crate) fn root(time: Timestamp) -> Inode {
    let mut inode = blank(Fid::ROOT, mode::DIR | 0o755, time);
    inode.attr.nlink = 2;
    inode.attr.size = DIR_BYTES;
    inode
}

/// Default ACL of the directory, or the umask.
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
    view.set_access_acl(inode, &access).map_err(Halt::Errno)?;
    if inode.attr.is_dir() {
        view.set_xattr(inode, acl::DEFAULT, &default.to_bytes())?;
    }
    Ok(())
}
