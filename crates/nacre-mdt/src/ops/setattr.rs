//! chmod, chown, utimes, truncate, and what clients report about size and times.
//!
//! Rules: ctime only grows, mtime follows the latest of write and explicit order; a truncate makes the size `Open`
//! until its client reports that the objects are cut; a report is believed to be the size only when nobody else
//! could have changed it meanwhile.

use crate::ops::open::{grow, wants_open};
use crate::rows::acl;
use crate::rows::row::{Inode, Stripes, Unsettled};
use crate::rows::table::{self, CHOWN, UNSETTLED};
use crate::rows::versions::CHILD;
use crate::rows::view::{Note, Step, View, Wants};
use alloc::vec::Vec;
use nacre_types::{Caller, Errno, Fid, Generation, SetAttr, SizeState, Timestamp, mode};
use nacre_wire::mdt::{EntryReply, ReportSize, Setattr, Written};

/// Truncates of one file under way at a time.
pub(crate) const TRUNCATES_MAX: usize = 64;

pub(crate) fn wants_setattr(args: &Setattr) -> Wants {
    wants_size(args.fid, args.set.size.is_some())
}
pub(crate) fn wants_report(args: &ReportSize) -> Wants {
    wants_size(args.fid, args.truncate)
}
fn wants_size(fid: Fid, truncate: bool) -> Wants {
    let mut wants = wants_open(fid);
    if truncate {
        wants.key(UNSETTLED, &fid.key());
    }
    wants
}

/// Sizes and blocks of 512 bytes are signed for the kernel: nobody could look at a file beyond.
pub(crate) fn check_written(written: &Written) -> Result<(), Errno> {
    let bytes = written.blocks.checked_mul(512).ok_or(Errno::EFBIG)?;
    check_size(written.size).and_then(|()| check_size(bytes))
}
fn check_size(size: u64) -> Result<(), Errno> {
    i64::try_from(size).map(drop).map_err(|_| Errno::EFBIG)
}

pub(crate) fn apply_setattr(view: &mut View<'_>, export: Generation, args: &Setattr) -> Step<EntryReply> {
    args.set.size.map_or(Ok(()), check_size)?;
    let mut inode = view.file(args.fid)?;
    view.depends_on(CHILD, &inode)?;
    check_owner(&inode, &args.set, &args.caller)?;
    if args.set.uid.is_some() || args.set.gid.is_some() {
        chown(view, &mut inode, &args.set);
    }
    if args.set.kill_suidgid {
        let in_group = args.caller.uid == 0 || args.caller.in_group(inode.attr.gid);
        view.kill_privileges(&mut inode, in_group);
    }
    if let Some(mode) = args.set.mode {
        chmod(view, &mut inode, mode)?;
    }
    if args.set.size.is_some() {
        start_truncate(view, export, &mut inode, args.time)?;
    }
    set_times(&mut inode, &args.set, args.time);
    view.put_changed(&mut inode);
    Ok(inode.reply())
}

/// What uid and ownership decide; groups and capabilities are the kernel's business.
fn check_owner(inode: &Inode, set: &SetAttr, caller: &Caller) -> Result<(), Errno> {
    if caller.uid == 0 {
        return Ok(());
    }
    let owns = caller.uid == inode.attr.uid;
    let gives_away = set.uid.is_some_and(|uid| uid != inode.attr.uid);
    if gives_away || !owns && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) {
        return Err(Errno::EPERM);
    }
    Ok(())
}

fn chmod(view: &mut View<'_>, inode: &mut Inode, mode: u32) -> Step<()> {
    inode.attr.mode = inode.attr.mode & mode::FMT | mode & mode::PERM;
    if let Some(mut acl) = view.acl(inode, acl::ACCESS)? {
        acl.chmod(mode);
        view.set_xattr(inode, acl::ACCESS, &acl.to_bytes())?;
    }
    Ok(())
}

fn chown(view: &mut View<'_>, inode: &mut Inode, set: &SetAttr) {
    let old = inode.owner();
    inode.attr.uid = set.uid.unwrap_or(inode.attr.uid);
    inode.attr.gid = set.gid.unwrap_or(inode.attr.gid);
    view.kill_privileges(inode, true);
    if inode.owner() == old {
        return;
    }
    view.account(old, -1);
    view.account(inode.owner(), 1);
    if inode.may_have_objects {
        for (ost, stripes) in inode.objects() {
            view.put(CHOWN, &table::of_ost(ost, inode.attr.fid), &Stripes { stripes });
            view.notes.push(Note::OstWork(ost));
        }
    }
}

fn set_times(inode: &mut Inode, set: &SetAttr, time: Timestamp) {
    if let Some(atime) = set.atime {
        inode.attr.atime = atime;
    }
    if let Some(mtime) = set.mtime {
        inode.attr.mtime = mtime;
        inode.mtime_order = inode.mtime_order.max(time);
    }
    inode.changed_at(set.ctime.unwrap_or(time));
}

/// The size becomes `Open`; this client owes a report.
fn start_truncate(view: &mut View<'_>, export: Generation, inode: &mut Inode, time: Timestamp) -> Step<()> {
    let fid = inode.attr.fid;
    if inode.attr.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    if !inode.is_regular() {
        return Err(Errno::EINVAL.into());
    }
    let trusted = inode.attr.size_state == SizeState::Exact
        || view.opens.sole_writer(fid).is_some_and(|(sole, _)| sole == export);
    let old: Option<Unsettled> = view.row(UNSETTLED, &fid.key())?;
    let mut row = old.unwrap_or(Unsettled { pending: Vec::new(), tainted: !trusted });
    if row.pending.len() >= TRUNCATES_MAX {
        return Err(Errno::EBUSY.into());
    }
    row.tainted |= !row.pending.is_empty();
    row.pending.push(export);
    view.put(UNSETTLED, &fid.key(), &row);
    inode.attr.size_state = SizeState::Open;
    inode.may_have_objects = true;
    inode.modified_at(time);
    view.notes.push(Note::Cut { export, fid });
    Ok(())
}

pub(crate) fn apply_report(view: &mut View<'_>, export: Generation, args: &ReportSize) -> Step<EntryReply> {
    let fid = args.fid;
    check_written(&args.written)?;
    let mut inode = view.file(fid)?;
    if !inode.is_regular() {
        return Err(Errno::EINVAL.into());
    }
    if !args.truncate {
        if inode.attr.size_state == SizeState::Open {
            grow(&mut inode, &args.written);
            view.put_inode(&inode);
        }
        return Ok(inode.reply());
    }
    let Some(mut row) = view.row::<Unsettled>(UNSETTLED, &fid.key())? else {
        return Err(Errno::EINVAL.into());
    };
    let Some(at) = row.pending.iter().position(|g| *g == export) else {
        return Err(Errno::EINVAL.into());
    };
    row.pending.remove(at);
    view.notes.push(Note::CutEnded { export, fid, last: false });
    inode.attr.size = args.written.size;
    inode.attr.blocks = args.written.blocks;
    inode.written_at(args.written.mtime);
    end_truncate(view, &mut inode, &row);
    view.put_inode(&inode);
    Ok(inode.reply())
}

/// The last report of a truncate decides: the size is known, or the OSTs are asked, or writers are still there.
fn end_truncate(view: &mut View<'_>, inode: &mut Inode, row: &Unsettled) {
    let fid = inode.attr.fid;
    let writers = view.opens.writers(fid);
    if row.pending.is_empty() && (writers > 0 || !row.tainted) {
        if writers == 0 {
            inode.attr.size_state = SizeState::Exact;
        }
        view.delete(UNSETTLED, &fid.key());
        return;
    }
    view.put(UNSETTLED, &fid.key(), row);
    if row.pending.is_empty() {
        view.notes.push(Note::Unsettled(fid));
    }
}

/// Forgets what a vanished export owed; the OSTs know the size.
pub(crate) fn forget_truncates(view: &mut View<'_>, export: Generation, fid: Fid) -> Step<()> {
    view.notes.push(Note::CutEnded { export, fid, last: true });
    let Some(mut row) = view.row::<Unsettled>(UNSETTLED, &fid.key())? else { return Ok(()) };
    if row.pending.contains(&export) {
        row.pending.retain(|g| *g != export);
        row.tainted = true;
        view.put(UNSETTLED, &fid.key(), &row);
        view.notes.push(Note::Unsettled(fid));
    }
    Ok(())
}

/// What the OSTs said about a file that nobody writes: stored unless somebody has come meanwhile.
pub(crate) fn apply_settle(
    view: &mut View<'_>,
    fid: Fid,
    size: u64,
    blocks: u64,
    mtime: Timestamp,
) -> Step<()> {
    let Some(mut inode) = view.inode(fid)? else {
        view.delete(UNSETTLED, &fid.key());
        return Ok(());
    };
    let row: Option<Unsettled> = view.row(UNSETTLED, &fid.key())?;
    if view.opens.writers(fid) > 0 || row.is_none_or(|r| !r.pending.is_empty()) {
        return Ok(());
    }
    inode.attr.size = size;
    inode.attr.blocks = blocks;
    inode.attr.size_state = SizeState::Exact;
    inode.written_at(mtime);
    view.delete(UNSETTLED, &fid.key());
    view.put_inode(&inode);
    Ok(())
}
