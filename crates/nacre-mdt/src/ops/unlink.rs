//! Taking a name away: unlink and rmdir. Works on a full disk (the handler reserves with `frees`).

use crate::rows::inode::check_sticky;
use crate::rows::row::Entry;
use crate::rows::versions::{CHILD, PARENT};
use crate::rows::view::Slot;
use crate::rows::view::{Halt, Step, View, Wants};
use nacre_types::name::HashKey;
use nacre_types::{Errno, FileType};
use nacre_wire::mdt::{EntryReply, Link, Unlink};

/// Most names of a file.
pub(crate) const LINKS_MAX: u32 = 65_000;

pub(crate) fn wants_unlink(hash: HashKey, args: &Unlink<'_>) -> Wants {
    let mut wants = Wants::default();
    wants.inode(args.parent);
    wants.name(hash, args.parent, args.name);
    wants
}

pub(crate) fn apply_unlink(view: &mut View<'_>, args: &Unlink<'_>) -> Step<()> {
    let mut dir = view.dir(args.parent)?;
    view.depends_on(PARENT, &dir)?;
    let slot = view.slot(args.parent, args.name)?;
    view.depends_on_name(args.parent, &slot)?;
    let (cookie, entry) = slot.taken().ok_or(Halt::Errno(Errno::ENOENT))?;
    match (args.directory, entry.file_type) {
        (true, FileType::Directory) => {}
        (true, _) => return Err(Errno::ENOTDIR.into()),
        (false, FileType::Directory) => return Err(Errno::EISDIR.into()),
        (false, _) => {}
    }
    let mut child = view.file(entry.fid)?;
    view.depends_on(CHILD, &child)?;
    check_sticky(&dir, &child, &args.caller)?;
    if args.directory && child.entries > 0 {
        return Err(Errno::ENOTEMPTY.into());
    }
    view.delete_entry(args.parent, cookie);
    child.changed_at(args.time);
    view.drop_name(&mut child, args.parent, args.name);
    dir.entries = dir.entries.saturating_sub(1);
    if args.directory {
        dir.attr.nlink = dir.attr.nlink.saturating_sub(1);
    }
    dir.modified_at(args.time);
    view.put_inode(&dir);
    Ok(())
}

pub(crate) fn wants_link(hash: HashKey, args: &Link<'_>) -> Wants {
    let mut wants = Wants::default();
    wants.inode(args.parent);
    wants.inode(args.fid);
    wants.name(hash, args.parent, args.name);
    wants
}

/// link(2).
pub(crate) fn apply_link(view: &mut View<'_>, args: &Link<'_>) -> Step<EntryReply> {
    let mut dir = view.dir(args.parent)?;
    view.depends_on(PARENT, &dir)?;
    let slot = view.slot(args.parent, args.name)?;
    view.depends_on_name(args.parent, &slot)?;
    let mut inode = view.file(args.fid)?;
    view.depends_on(CHILD, &inode)?;
    let cookie = match slot {
        Slot::Taken { .. } => return Err(Errno::EEXIST.into()),
        Slot::Free { cookie } => cookie,
        Slot::Full => return Err(Errno::ENOSPC.into()),
    };
    if inode.attr.is_dir() {
        return Err(Errno::EPERM.into());
    }
    if inode.attr.nlink == 0 {
        return Err(Errno::ENOENT.into());
    }
    if inode.attr.nlink >= LINKS_MAX {
        return Err(Errno::EMLINK.into());
    }
    let name = args.name.to_bytes();
    let entry = Entry { name, fid: args.fid, file_type: inode.attr.file_type(), version: 0 };
    view.put_name(args.parent, cookie, entry);
    view.add_link(&mut inode, args.parent, args.name);
    inode.attr.nlink += 1;
    inode.changed_at(args.time);
    view.put_changed(&mut inode);
    dir.entries += 1;
    dir.modified_at(args.time);
    view.put_inode(&dir);
    Ok(inode.reply())
}
