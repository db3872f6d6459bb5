//! Rename, as renameat2: moves, replaces, NOREPLACE, EXCHANGE.
//!
//! Rules: a directory never moves into its own subtree; an inode that is replaced must be of the same kind, a directory
//! empty; the sticky bits of both directories count; the name keeps the cookie of the entry that it replaces. A whiteout
//! takes the place of the old name, with its cookie.

use crate::ops::create::check_fid;
use crate::ops::{Applied, Context, Operation, WriteBound};
use crate::rows::inode::check_sticky;
use crate::rows::read_set::ReadSet;
use crate::rows::row::{EntryRow, Inode};
use crate::rows::versions::{SOURCE_CHILD, SOURCE_DIR, TARGET_CHILD, TARGET_DIR};
use crate::rows::view::{Slot, Step, View};
use nacre_types::name::HashKey;
use nacre_types::{Errno, Fid, FileType, Generation, Name, Timestamp, mode};
use nacre_wire::mdt::{Rename, rename_flags};

impl Operation for Rename<'_> {
    fn counter(&self) -> Option<&'static str> {
        Some("rename")
    }

    fn read_set(&self, hash: HashKey, _export: Generation) -> ReadSet {
        let mut read_set = ReadSet::of_inode(self.parent);
        read_set.inode(self.new_parent);
        read_set.present_name(hash, self.parent, self.name);
        read_set.name(hash, self.new_parent, self.new_name);
        if let Some(fid) = self.whiteout {
            read_set.new_fid(fid);
        }
        read_set
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(8).freeing()
    }

    fn apply(&self, view: &mut View<'_>, context: &mut Context<'_>) -> Step<Applied> {
        if let Some(fid) = self.whiteout {
            if self.flags & rename_flags::EXCHANGE != 0 {
                return Err(Errno::EINVAL.into());
            }
            check_fid(view, context.client()?, fid)?;
        }
        rename(view, self).map(|()| Applied::empty())
    }
}

/// One of the two names of a rename, with its entry.
struct End<'a> {
    dir: Fid,
    name: Name<'a>,
    cookie: u64,
    entry: EntryRow,
}

fn rename(view: &mut View<'_>, args: &Rename<'_>) -> Step<()> {
    let exchange = match args.flags {
        0 | rename_flags::NOREPLACE => false,
        rename_flags::EXCHANGE => true,
        _ => return Err(Errno::EINVAL.into()),
    };
    let from_dir = view.dir(args.parent)?;
    let to_dir = view.dir(args.new_parent)?;
    view.depends_on(SOURCE_DIR, &from_dir)?;
    view.depends_on(TARGET_DIR, &to_dir)?;
    let source = view.slot(args.parent, args.name)?.taken();
    let target = view.slot(args.new_parent, args.new_name)?;
    let (cookie, entry) = source.ok_or(Errno::ENOENT)?;
    let source = End { dir: args.parent, name: args.name, cookie, entry };
    let child = view.file(source.entry.fid)?;
    // The version of an inode changes with its names, so it stands for the name as well.
    view.depends_on(SOURCE_CHILD, &child)?;
    check_sticky(&from_dir, &child, &args.caller)?;
    // The order of these refusals is the kernel's.
    match target {
        Slot::Free { .. } | Slot::Full if exchange => return Err(Errno::ENOENT.into()),
        Slot::Taken { .. } if args.flags == rename_flags::NOREPLACE => return Err(Errno::EEXIST.into()),
        Slot::Taken { .. } | Slot::Free { .. } | Slot::Full => {}
    }
    // Within one directory nothing can come below itself.
    let moves = args.parent != args.new_parent;
    if moves && child.attr.is_dir() && view.is_below(args.new_parent, child.attr.fid)? {
        return Err(Errno::EINVAL.into());
    }
    match target {
        Slot::Full => Err(Errno::ENOSPC.into()),
        Slot::Free { cookie } => {
            view.depends_on_nothing(TARGET_CHILD, args.new_parent)?;
            move_to(view, args, &source, child, cookie)
        }
        // Two names of one file, or the same name: nothing to do.
        Slot::Taken { entry, .. } if entry.fid == source.entry.fid => view.depends_on(TARGET_CHILD, &child),
        Slot::Taken { cookie, entry } => {
            let target = End { dir: args.new_parent, name: args.new_name, cookie, entry };
            let other = view.file(target.entry.fid)?;
            view.depends_on(TARGET_CHILD, &other)?;
            // A directory that is replaced is empty, so nothing lies below it; a file learns of that before it learns of the
            // other type.
            let may_be_above = other.attr.is_dir() && (exchange || other.entries > 0 && !child.attr.is_dir());
            if moves && may_be_above && view.is_below(args.parent, other.attr.fid)? {
                return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
            }
            check_sticky(&to_dir, &other, &args.caller)?;
            if exchange {
                swap(view, args.time, (source, child), (target, other))
            } else {
                check_replaceable(&child, &other)?;
                replace(view, args, &source, child, &target, other)
            }
        }
    }
}

fn check_replaceable(child: &Inode, other: &Inode) -> Result<(), Errno> {
    match (child.attr.is_dir(), other.attr.is_dir()) {
        (true, false) => Err(Errno::ENOTDIR),
        (false, true) => Err(Errno::EISDIR),
        (true, true) if other.entries > 0 => Err(Errno::ENOTEMPTY),
        (true, true) | (false, false) => Ok(()),
    }
}

/// Adds to the counts of a directory and marks the change of its content.
fn adjust(view: &mut View<'_>, dir: Fid, entries: i64, subdirs: i64, time: Timestamp) -> Step<()> {
    let mut inode = view.dir(dir)?;
    inode.entries = inode.entries.saturating_add_signed(entries);
    inode.attr.nlink = inode.attr.nlink.saturating_add_signed(subdirs as i32);
    inode.modified_at(time);
    view.put_inode(&inode);
    Ok(())
}

/// Gives a loaded inode another name, and stores it.
fn relink(
    view: &mut View<'_>,
    inode: &mut Inode,
    from: (Fid, Name<'_>),
    to: (Fid, Name<'_>),
    time: Timestamp,
) {
    view.remove_link(inode, from.0, from.1);
    view.add_link(inode, to.0, to.1);
    if inode.attr.is_dir() {
        view.dir_placed(inode.attr.fid, to.0);
    }
    inode.changed_at(time);
    view.put_changed(inode);
}

/// Takes the old name from its directory, or gives it to the whiteout. Returns how many entries are left in its place.
fn leave(view: &mut View<'_>, args: &Rename<'_>, source: &End<'_>) -> Step<i64> {
    let Some(fid) = args.whiteout else {
        view.delete_name(source.dir, source.cookie);
        return Ok(0);
    };
    let mut whiteout = Inode::blank(fid, mode::CHR, args.time);
    (whiteout.attr.uid, whiteout.attr.gid) = (args.caller.uid, args.caller.gid);
    whiteout.attr.projid = view.dir(source.dir)?.attr.projid;
    whiteout.attr.nlink = 1;
    whiteout.attr.version = view.transno().0;
    view.add_link(&mut whiteout, source.dir, source.name);
    view.put_inode(&whiteout);
    view.account(whiteout.owner(), 1);
    let name = source.name.to_bytes();
    view.put_name(
        source.dir,
        source.cookie,
        EntryRow { name, fid, file_type: FileType::CharDevice, version: 0 },
    );
    Ok(1)
}

fn move_to(
    view: &mut View<'_>,
    args: &Rename<'_>,
    source: &End<'_>,
    mut child: Inode,
    cookie: u64,
) -> Step<()> {
    let subdir = i64::from(child.attr.is_dir());
    let left = leave(view, args, source)?;
    let entry = EntryRow { name: args.new_name.to_bytes(), ..source.entry.clone() };
    view.put_name(args.new_parent, cookie, entry);
    relink(view, &mut child, (source.dir, source.name), (args.new_parent, args.new_name), args.time);
    if source.dir == args.new_parent {
        return adjust(view, source.dir, left, 0, args.time);
    }
    adjust(view, source.dir, left - 1, -subdir, args.time)?;
    adjust(view, args.new_parent, 1, subdir, args.time)
}

fn replace(
    view: &mut View<'_>,
    args: &Rename<'_>,
    source: &End<'_>,
    mut child: Inode,
    target: &End<'_>,
    mut other: Inode,
) -> Step<()> {
    let subdir = i64::from(child.attr.is_dir());
    let left = leave(view, args, source)?;
    let entry = EntryRow { name: target.name.to_bytes(), ..source.entry.clone() };
    view.put_name(target.dir, target.cookie, entry);
    other.changed_at(args.time);
    view.drop_name(&mut other, target.dir, target.name, args.reported == target.entry.fid);
    relink(view, &mut child, (source.dir, source.name), (target.dir, target.name), args.time);
    // The target's directory loses one entry and gains one.
    adjust(view, source.dir, left - 1, -subdir, args.time)?;
    if source.dir != target.dir {
        adjust(view, target.dir, 0, 0, args.time)?;
    }
    Ok(())
}

fn swap(
    view: &mut View<'_>,
    time: Timestamp,
    (source, mut child): (End<'_>, Inode),
    (target, mut other): (End<'_>, Inode),
) -> Step<()> {
    let fids = |end: &End<'_>, of: &End<'_>| EntryRow {
        name: end.entry.name.clone(),
        fid: of.entry.fid,
        file_type: of.entry.file_type,
        version: 0,
    };
    view.put_name(source.dir, source.cookie, fids(&source, &target));
    view.put_name(target.dir, target.cookie, fids(&target, &source));
    relink(view, &mut child, (source.dir, source.name), (target.dir, target.name), time);
    relink(view, &mut other, (target.dir, target.name), (source.dir, source.name), time);
    let is_dir = |end: &End<'_>| i64::from(end.entry.file_type == FileType::Directory);
    let subdirs = is_dir(&target) - is_dir(&source);
    if source.dir == target.dir {
        return adjust(view, source.dir, 0, 0, time);
    }
    adjust(view, source.dir, 0, subdirs, time)?;
    adjust(view, target.dir, 0, -subdirs, time)
}
