//! Opens and closes: rows, share counts, and what a close tells about the size.
//!
//! Rules: the first open for write makes the size `Open` in the same transaction; the close of the only writer there
//! was since then makes it `Exact` again; after any other last close the OSTs are asked in the background.

use crate::ops::setattr::check_written;
use crate::rows::opens::Before;
use crate::rows::row::{Inode, Opened, Unsettled};
use crate::rows::table::{self, OPEN, ORPHAN, UNSETTLED};
use crate::rows::view::{Note, Step, View, Wants};
use alloc::vec::Vec;
use nacre_types::{Errno, Fid, FileType, Generation, OpenHandle, SizeState, Timestamp};
use nacre_wire::mdt::{Close, EntryReply, Open, OpenHow, Written, open_flags};

/// Stores the open of a loaded inode. True: the inode is another one by it, and has to be stored as well.
pub(crate) fn open_inode(
    view: &mut View<'_>,
    export: Generation,
    inode: &mut Inode,
    how: &OpenHow,
) -> Step<bool> {
    let opened = Opened { fid: inode.attr.fid, flags: how.flags & !open_flags::TRUNC };
    match view.opens.get(export, how.handle) {
        Some(old) if old != opened => return Err(Errno::EINVAL.into()),
        Some(_) => {}
        None if view.opens.is_full(export) => return Err(Errno::ENOMEM.into()),
        None => {}
    }
    if opened.writes() && inode.attr.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    let before = Before { exact: inode.attr.size_state == SizeState::Exact, objects: inode.may_have_objects };
    let changes = opened.writes() && inode.is_regular() && (before.exact || !before.objects);
    if changes {
        inode.attr.size_state = SizeState::Open;
        inode.may_have_objects = true;
    }
    view.put(OPEN, &table::open(export, how.handle), &opened);
    view.notes.push(Note::Opened { export, handle: how.handle, opened, before });
    Ok(changes)
}

pub(crate) fn wants_open(fid: Fid) -> Wants {
    let mut wants = Wants::default();
    wants.inode(fid);
    wants
}

pub(crate) fn apply_open(view: &mut View<'_>, export: Generation, args: &Open) -> Step<EntryReply> {
    let mut inode = view.file(args.fid)?;
    if inode.attr.file_type() == FileType::Symlink {
        return Err(Errno::ELOOP.into());
    }
    if open_inode(view, export, &mut inode, &args.how)? {
        view.put_inode(&inode);
    }
    Ok(inode.reply())
}

pub(crate) fn wants_close(export: Generation, args: &Close) -> Wants {
    let mut wants = wants_open(args.fid);
    wants.key(OPEN, &table::open(export, args.handle));
    wants
}

pub(crate) fn apply_close(view: &mut View<'_>, export: Generation, args: &Close) -> Step<()> {
    let opened = view.opens.get(export, args.handle).ok_or(Errno::EBADF)?;
    if opened.fid != args.fid {
        return Err(Errno::EINVAL.into());
    }
    let how = match (args.dirty, args.written) {
        (false, _) => Ending::Unchanged,
        (true, Some(written)) => {
            check_written(&written)?;
            Ending::Written(written)
        }
        (true, None) => Ending::Unknown,
    };
    close(view, export, args.handle, opened, how, args.atime)
}

/// How an open ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ending {
    /// The client changed nothing.
    Unchanged,
    /// The client knows the state of every object.
    Written(Written),
    /// The client does not know, or is gone.
    Unknown,
}

/// Ends an open; the last one of an orphan ends the inode.
pub(crate) fn close(
    view: &mut View<'_>,
    export: Generation,
    handle: OpenHandle,
    opened: Opened,
    how: Ending,
    atime: Option<Timestamp>,
) -> Step<()> {
    let Some(mut inode) = view.inode(opened.fid)? else {
        // Cannot happen while rows and inodes agree; the open itself must be able to go.
        view.delete(OPEN, &table::open(export, handle));
        view.notes.push(Note::Closed { export, handle });
        return Ok(());
    };
    let accessed = atime.is_some_and(|atime| atime > inode.attr.atime);
    inode.attr.atime = inode.attr.atime.max(atime.unwrap_or(inode.attr.atime));
    let mut changed = false;
    if opened.writes() && inode.is_regular() {
        changed = true;
        settle_at_close(view, export, &mut inode, how)?;
    }
    view.delete(OPEN, &table::open(export, handle));
    view.notes.push(Note::Closed { export, handle });
    if inode.attr.nlink == 0 && view.opens.count(opened.fid) <= 1 {
        view.delete(ORPHAN, &opened.fid.key());
        view.destroy(&inode);
    } else if changed {
        view.put_inode(&inode);
    } else if accessed {
        view.put_accessed(&inode);
    }
    Ok(())
}

/// Takes in what a writer says and decides whether the size is known now.
fn settle_at_close(view: &mut View<'_>, export: Generation, inode: &mut Inode, how: Ending) -> Step<()> {
    let fid = inode.attr.fid;
    let sole = view.opens.sole_writer(fid).filter(|(sole, _)| *sole == export);
    match (how, sole) {
        (Ending::Written(w), Some(_)) => {
            inode.attr.size = w.size;
            inode.attr.blocks = w.blocks;
            inode.written_at(w.mtime);
        }
        (Ending::Written(w), None) => grow(inode, &w),
        (Ending::Unchanged | Ending::Unknown, _) => {}
    }
    let cut = view.opens.is_being_cut(fid);
    if cut && !matches!(how, Ending::Unchanged) {
        // Written before or after the cut? Its report must not be believed.
        mark_unsettled(view, fid)?;
    }
    if view.opens.writers(fid) > 1 {
        // The others will say. One that cannot be asked any more has made the epoch a mixed one.
        if matches!(how, Ending::Unknown) {
            view.notes.push(Note::Mixed(fid));
        }
        return Ok(());
    }
    match (how, sole) {
        // The report of the truncate decides.
        _ if cut => {}
        (Ending::Unknown, _) | (_, None) => mark_unsettled(view, fid)?,
        (Ending::Written(_), Some(_)) => inode.attr.size_state = SizeState::Exact,
        (Ending::Unchanged, Some((_, objects))) => {
            inode.attr.size_state = SizeState::Exact;
            // No write was tried in this epoch: no object has come into being.
            inode.may_have_objects = objects;
        }
    }
    Ok(())
}

/// Size, blocks and times of a writer, merged: they only grow.
pub(crate) fn grow(inode: &mut Inode, w: &Written) {
    inode.attr.size = inode.attr.size.max(w.size);
    inode.attr.blocks = inode.attr.blocks.max(w.blocks);
    inode.written_at(w.mtime);
}

/// Lets the background ask the OSTs, also after a restart.
pub(crate) fn mark_unsettled(view: &mut View<'_>, fid: Fid) -> Step<()> {
    view.update(UNSETTLED, &fid.key(), |old: Option<Unsettled>| {
        let mut row = old.unwrap_or(Unsettled { pending: Vec::new(), tainted: true });
        row.tainted = true;
        Some(row)
    })?;
    view.notes.push(Note::Unsettled(fid));
    Ok(())
}
