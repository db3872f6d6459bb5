//! Setattr: chmod, chown, utimes, and the beginning of a truncate.
//!
//! Rules: ctime only grows; mtime follows the latest of writes and explicit changes; a truncate makes the size `Open` until
//! its client reports that the objects are truncated.

use crate::ops::data;
use crate::ops::size::check_size;
use crate::ops::{Applied, Context, Operation, Recorded, WriteBound, reconstruct_entry};
use crate::rows::acl;
use crate::rows::inode::entry_of_removed;
use crate::rows::read_set::ReadSet;
use crate::rows::row::{Inode, Stripes, Unsettled};
use crate::rows::state_change::StateChange;
use crate::rows::table::{self, CHOWN, UNSETTLED};
use crate::rows::versions::CHILD;
use crate::rows::view::{Step, View};
use alloc::vec::Vec;
use nacre_types::name::HashKey;
use nacre_types::{
    Caller, Codec, DOM_BYTES_MAX, Errno, Fid, Generation, InodeBits, SetAttr, SizeState, Timestamp, mode,
};
use nacre_wire::mdt::Setattr;

/// Truncates of one file that may be under way.
const TRUNCATES_MAX: usize = 64;

impl Operation for Setattr {
    fn counter(&self) -> Option<&'static str> {
        Some("setattr")
    }

    fn read_set(&self, _hash: HashKey, _export: Generation) -> ReadSet {
        let mut read_set = ReadSet::of_inode(self.fid);
        if self.set.size.is_some() {
            read_set.key(UNSETTLED, &self.fid.key());
        }
        read_set
    }

    fn bound(&self) -> WriteBound {
        // A truncate frees space in the end; a chmod or chown may be what makes an unlink possible.
        let bound = WriteBound::inodes(3).freeing();
        match self.set.size {
            // The target may have the bytes, and writes all of them anew.
            Some(size) if size <= u64::from(DOM_BYTES_MAX) => bound.with_value(size as u32),
            _ => bound,
        }
    }

    fn apply(&self, view: &mut View<'_>, context: &mut Context<'_>) -> Step<Applied> {
        self.set.size.map_or(Ok(()), check_size)?;
        let mut inode = view.file(self.fid)?;
        view.depends_on(CHILD, &inode)?;
        check_owner(&inode, &self.set, &self.caller)?;
        // Before a chown: the group that counts is that of the file so far.
        if self.set.kill_suidgid {
            let in_group = self.caller.uid == 0 || self.caller.in_group(inode.attr.gid);
            view.kill_privileges(&mut inode, in_group);
        }
        if self.set.uid.is_some() || self.set.gid.is_some() {
            chown(view, &mut inode, &self.set);
        }
        if let Some(mode) = self.set.mode {
            chmod(view, &mut inode, mode)?;
        }
        match self.set.size {
            Some(size) if inode.dom_bytes() > 0 => {
                data::truncate(view, context.export(), &mut inode, size, self.time)?;
            }
            Some(_) => start_truncate(view, context.export(), &mut inode, self.time)?,
            None => {}
        }
        set_times(&mut inode, &self.set, self.time);
        view.put_changed(&mut inode);
        view.describes(&inode);
        Ok(Applied::entry(&inode.reply()))
    }

    fn described(&self, _record: &Recorded) -> Option<Fid> {
        Some(self.fid)
    }

    fn reconstruct(&self, record: &Recorded, inode: Option<Inode>) -> Result<Vec<u8>, Errno> {
        match (&inode, record.file_type_bits()) {
            // A truncate goes on with the objects, which are gone as well: ESTALE is the right reply.
            (None, Some(type_bits)) if self.set.size.is_none() => {
                let permissions = self.set.mode.unwrap_or(0) & mode::PERM;
                Ok(entry_of_removed(self.fid, type_bits | permissions).to_vec())
            }
            (None, _) => Err(Errno::ESTALE),
            (Some(_), _) => reconstruct_entry(self.fid, record, inode),
        }
    }
}

/// Checks uid and ownership. Groups and capabilities are checked by the kernel.
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
            view.state_change(StateChange::OstWork(ost));
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

/// Begins a truncate: the size becomes `Open`, and this client owes a report.
fn start_truncate(view: &mut View<'_>, export: Generation, inode: &mut Inode, time: Timestamp) -> Step<()> {
    let fid = inode.attr.fid;
    if inode.attr.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    if !inode.is_regular() {
        return Err(Errno::EINVAL.into());
    }
    let trusted = inode.attr.size_state == SizeState::Exact
        || view.opens().sole_writer(fid).is_some_and(|(sole, _)| sole == export);
    let old: Option<Unsettled> = view.row(UNSETTLED, &fid.key())?;
    let mut row = old.unwrap_or(Unsettled { pending: Vec::new(), tainted: !trusted });
    if row.pending.len() >= TRUNCATES_MAX {
        return Err(Errno::EBUSY.into());
    }
    row.tainted |= !row.pending.is_empty();
    row.pending.push(export);
    view.put(UNSETTLED, &fid.key(), &row);
    // Also if a client has the file open for writing already and no attribute changes, as with a clock that is behind.
    view.breaks(fid, InodeBits::SIZE | InodeBits::WRITE_BACK);
    inode.attr.size_state = SizeState::Open;
    inode.may_have_objects = true;
    inode.modified_at(time);
    view.state_change(StateChange::TruncateStarted { export, fid });
    Ok(())
}
