//! Opens and closes: the row of an open, and the state of the file's size when a writer opens or closes it.
//!
//! Rules: the first open for write makes the size `Open` in the same transaction; the close of the only writer since then
//! makes it `Exact` again; after any other last close the OSTs are asked in the background. A close that reports a new
//! access time takes the old one from the caches of other clients, but does not wait for them: two clients that have both
//! read a file would wait for each other's closes, and one that does not reply would delay the closes of all.

use crate::ops::data;
use crate::ops::size::{grow, mark_size_unknown};
use crate::rows::row::{Inode, OpenRow};
use crate::rows::state_change::{SizeBefore, StateChange};
use crate::rows::table::{self, OPEN, ORPHAN};
use crate::rows::view::{Step, View};
use nacre_types::{Errno, Fid, Generation, InodeBits, OpenHandle, ProtocolOutcome, SizeState, Timestamp};
use nacre_wire::mdt::{NOT_REPORTED, OpenHow, Written, open_flags};

/// Stores an open of a loaded inode. True: the inode was changed by it, and has to be stored as well.
pub(crate) fn open_inode(
    view: &mut View<'_>,
    export: Generation,
    inode: &mut Inode,
    how: &OpenHow,
) -> Step<bool> {
    let once = open_flags::TRUNC | open_flags::WRITE_BACK;
    let opened = OpenRow { fid: inode.attr.fid, flags: how.flags & !once };
    if how.handle == NOT_REPORTED {
        return Err(Errno::EINVAL.into());
    }
    match view.opens().get(export, how.handle) {
        Some(old) if old != opened => return Err(Errno::EINVAL.into()),
        Some(_) => {}
        None if view.opens().is_full(export) => return Err(Errno::ENOMEM.into()),
        None => {}
    }
    if opened.writes() && inode.attr.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    let objects = inode.may_have_objects;
    let before = match inode.attr.size_state {
        SizeState::Exact => SizeBefore::Exact { objects },
        SizeState::Open => SizeBefore::Open,
    };
    // While the target has the bytes, no object comes into being.
    let gets_objects = !objects && inode.dom_bytes() == 0;
    let changes = opened.writes() && inode.is_regular() && (before != SizeBefore::Open || gets_objects);
    if changes {
        inode.attr.size_state = SizeState::Open;
        inode.may_have_objects |= gets_objects;
    }
    if opened.writes() {
        // From now on this client, too, changes size and times. To keep what it writes, it must know of all opens.
        let opens = if how.flags & open_flags::WRITE_BACK != 0 { InodeBits::OPEN } else { InodeBits::NONE };
        view.breaks(opened.fid, InodeBits::SIZE | opens);
    }
    if before == SizeBefore::Open {
        // The bytes are at the OSTs before another client reads or overwrites them.
        view.breaks(opened.fid, InodeBits::WRITE_BACK);
    }
    view.put(OPEN, &table::open(export, how.handle), &opened);
    view.state_change(StateChange::Opened { export, handle: how.handle, opened, before });
    Ok(changes)
}

/// The report about the contents of a file with which an open ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CloseReport<'a> {
    /// The client changed nothing.
    Unchanged,
    /// The client knows the state of every object.
    Written(Written),
    /// All bytes of the file, for the target, and when the latest was written.
    Stored(&'a [u8], Timestamp),
    /// The client does not know, or is gone.
    Unknown,
}

/// Ends an open; the last one of an orphan ends the inode.
pub(crate) fn end_open(
    view: &mut View<'_>,
    export: Generation,
    handle: OpenHandle,
    opened: OpenRow,
    report: CloseReport<'_>,
    atime: Option<Timestamp>,
) -> Step<()> {
    let Some(mut inode) = view.inode(opened.fid)? else {
        // Cannot happen while rows and inodes agree; the open itself must be able to end.
        view.delete(OPEN, &table::open(export, handle));
        view.state_change(StateChange::Closed { export, handle });
        return Ok(());
    };
    let accessed = was_read(view, &mut inode, atime);
    let mut changed = false;
    if opened.writes() && inode.is_regular() {
        changed = true;
        take_report(view, export, &mut inode, report)?;
    }
    view.delete(OPEN, &table::open(export, handle));
    view.state_change(StateChange::Closed { export, handle });
    if inode.attr.nlink == 0 && view.opens().count(opened.fid) <= 1 {
        view.delete(ORPHAN, &opened.fid.key());
        view.destroy(&inode);
    } else if matches!(report, CloseReport::Stored(..)) {
        view.put_data_changed(&mut inode);
    } else if changed && !matches!(report, CloseReport::Unchanged) {
        view.put_inode(&inode);
    } else if changed || accessed {
        view.put_unnoticed(&inode);
    } else {
        view.shows_to_sender(&inode);
    }
    Ok(())
}

/// Stores the access time of a file that was read through opens of which the MDT does not know.
pub(crate) fn accessed(view: &mut View<'_>, fid: Fid, atime: Option<Timestamp>) -> Step<()> {
    if let Some(mut inode) = view.inode(fid)?
        && was_read(view, &mut inode, atime)
    {
        view.put_unnoticed(&inode);
    }
    Ok(())
}

/// Sets the access time of an inode, if it is a later one. When many clients read a file that has changed, each reports an
/// access, and each has read the attributes meanwhile: only the first one in each second takes them from the others, which
/// then show an access time that is wrong by less than a second.
fn was_read(view: &mut View<'_>, inode: &mut Inode, atime: Option<Timestamp>) -> bool {
    let old = inode.attr.atime;
    let Some(atime) = atime.filter(|atime| *atime > old) else { return false };
    inode.attr.atime = atime;
    let is_first = old <= inode.attr.mtime.max(inode.attr.ctime);
    if is_first || old.sec != atime.sec {
        view.shows_access(inode.attr.fid);
    }
    true
}

/// Applies the report of a writer and decides whether the size is known now.
fn take_report(
    view: &mut View<'_>,
    export: Generation,
    inode: &mut Inode,
    report: CloseReport<'_>,
) -> Step<()> {
    let fid = inode.attr.fid;
    if inode.dom_bytes() > 0 {
        return take_report_of_data(view, inode, report);
    }
    let sole = view.opens().sole_writer(fid).filter(|(sole, _)| *sole == export);
    match (report, sole) {
        (CloseReport::Written(w), Some(_)) => {
            inode.attr.size = w.size;
            inode.attr.blocks = w.blocks;
            inode.written_at(w.mtime);
        }
        (CloseReport::Written(w), None) => grow(inode, &w),
        (CloseReport::Stored(..), _) => return Err(ProtocolOutcome::InObjects.into()),
        (CloseReport::Unchanged | CloseReport::Unknown, _) => {}
    }
    let truncated = view.opens().is_being_truncated(fid);
    if truncated && !matches!(report, CloseReport::Unchanged) {
        // Whether the bytes were written before or after the truncate is not known: the report must not be believed.
        mark_size_unknown(view, fid)?;
    }
    if view.opens().writers(fid) > 1 {
        // The other writers will report. If this one cannot, the size at the end of the epoch is unknown.
        if matches!(report, CloseReport::Unknown) {
            view.state_change(StateChange::WriterLost(fid));
        }
        return Ok(());
    }
    match (report, sole) {
        // The report of the truncate decides.
        _ if truncated => {}
        (CloseReport::Unknown, _) | (_, None) => mark_size_unknown(view, fid)?,
        (CloseReport::Written(_) | CloseReport::Stored(..), Some(_)) => {
            inode.attr.size_state = SizeState::Exact;
        }
        (CloseReport::Unchanged, Some((_, objects))) => {
            inode.attr.size_state = SizeState::Exact;
            // No write was tried in this epoch, unless an earlier close of the same client has reported it: no object has come
            // into being.
            inode.may_have_objects = objects || inode.attr.size > 0;
        }
    }
    Ok(())
}

/// The same for a file whose bytes the target has: it knows the size.
fn take_report_of_data(view: &mut View<'_>, inode: &mut Inode, report: CloseReport<'_>) -> Step<()> {
    match report {
        CloseReport::Stored(bytes, mtime) => data::store(view, inode, bytes, mtime)?,
        CloseReport::Written(written) => inode.written_at(written.mtime),
        CloseReport::Unchanged | CloseReport::Unknown => {}
    }
    if view.opens().writers(inode.attr.fid) <= 1 {
        inode.attr.size_state = SizeState::Exact;
    } else if matches!(report, CloseReport::Unknown) {
        view.state_change(StateChange::WriterLost(inode.attr.fid));
    }
    Ok(())
}
