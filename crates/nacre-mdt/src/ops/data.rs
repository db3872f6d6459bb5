//! Data on the MDT: the bytes of a small file in a row, until they move to objects.
//!
//! Rules: a file with `Layout::dom_bytes` has no object with bytes; all of its bytes are its row of [`DATA`], and its size is
//! their number at all times, also while it is open for writing. Bytes that a client keeps (`InodeBits::WRITE_BACK`) come as a
//! whole, in place of the row. A file never returns from its objects. Not here: the way of the bytes to the OSTs
//! (`osts/move_data.rs`).

use crate::ops::{Applied, Context, Operation, Recorded, WriteBound};
use crate::rows::read_set::ReadSet;
use crate::rows::row::Inode;
use crate::rows::state_change::StateChange;
use crate::rows::table::{self, DATA, OPEN};
use crate::rows::versions::CHILD;
use crate::rows::view::{Step, View};
use alloc::vec::Vec;
use nacre_types::name::HashKey;
use nacre_types::{
    Attr, DOM_BYTES_MAX, Errno, Fid, Generation, InodeBits, ProtocolOutcome, Timestamp, Transno,
};
use nacre_wire::mdt::{MoveData, StoreData};

impl Operation for StoreData<'_> {
    fn counter(&self) -> Option<&'static str> {
        Some("store_data")
    }

    fn read_set(&self, _hash: HashKey, export: Generation) -> ReadSet {
        let mut read_set = ReadSet::of_inode(self.fid);
        read_set.key(OPEN, &table::open(export, self.handle));
        read_set
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(1).with_value(self.data.len().min(DOM_BYTES_MAX as usize) as u32)
    }

    fn apply(&self, view: &mut View<'_>, context: &mut Context<'_>) -> Step<Applied> {
        let opened = view.opens().get(context.export(), self.handle);
        if opened.is_none_or(|opened| opened.fid != self.fid || !opened.writes()) {
            return Err(Errno::EBADF.into());
        }
        let mut inode = view.file(self.fid)?;
        view.depends_on(CHILD, &inode)?;
        store(view, &mut inode, self.data, self.mtime)?;
        view.put_data_changed(&mut inode);
        view.describes(&inode);
        Ok(Applied::entry(&inode.reply()))
    }

    fn described(&self, _record: &Recorded) -> Option<Fid> {
        Some(self.fid)
    }
}

/// Takes all bytes of a file from a client, the latest of them written at `mtime`; the caller stores the inode.
pub(crate) fn store(view: &mut View<'_>, inode: &mut Inode, data: &[u8], mtime: Timestamp) -> Step<()> {
    match inode.dom_bytes() as usize {
        0 => return Err(ProtocolOutcome::InObjects.into()),
        most if data.len() > most => return Err(Errno::EFBIG.into()),
        _ => {}
    }
    set_data(view, inode, data);
    inode.written_at(mtime);
    Ok(())
}
/// Sets all bytes of a file; the caller stores the inode.
fn set_data(view: &mut View<'_>, inode: &mut Inode, data: &[u8]) {
    put_data(view, inode, data);
    view.breaks(inode.attr.fid, InodeBits::SIZE);
}
/// The same without a word to other clients.
fn put_data(view: &mut View<'_>, inode: &mut Inode, data: &[u8]) {
    let key = inode.attr.fid.key();
    match data {
        [] if inode.attr.size > 0 => view.delete(DATA, &key),
        [] => {}
        _ => view.put_bytes(DATA, &key, data),
    }
    inode.attr.size = data.len() as u64;
    inode.attr.blocks = Attr::blocks_of(inode.attr.size);
}

/// Truncates or extends a file whose bytes the target has; the caller stores the inode.
pub(crate) fn truncate(
    view: &mut View<'_>,
    export: Generation,
    inode: &mut Inode,
    size: u64,
    time: Timestamp,
) -> Step<()> {
    let fid = inode.attr.fid;
    if size > u64::from(inode.dom_bytes()) {
        return Err(ProtocolOutcome::MoveDataFirst.into());
    }
    let mut data = match inode.attr.size {
        0 => Vec::new(),
        _ => view.bytes(DATA, &fid.key())?.unwrap_or_default().to_vec(),
    };
    data.resize(usize::try_from(size).map_err(|_| Errno::EFBIG)?, 0);
    view.breaks(fid, InodeBits::SIZE | InodeBits::WRITE_BACK);
    // A writer that is not the sender does not know the size any more.
    view.state_change(StateChange::TruncateStarted { export, fid });
    view.state_change(StateChange::TruncateEnded { export, fid, last: false });
    set_data(view, inode, &data);
    inode.modified_at(time);
    Ok(())
}

impl Operation for MoveData {
    fn counter(&self) -> Option<&'static str> {
        Some("move_data")
    }

    fn read_set(&self, _hash: HashKey, _export: Generation) -> ReadSet {
        ReadSet::of_inode(self.fid)
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(1).freeing()
    }

    fn apply(&self, view: &mut View<'_>, _context: &mut Context<'_>) -> Step<Applied> {
        move_to_objects(view, self.fid, None)
    }

    fn described(&self, _record: &Recorded) -> Option<Fid> {
        Some(self.fid)
    }
}

/// From now on the bytes are in objects, which have them as they were at version `moved`. EAGAIN: they have to be written
/// there first, or the objects may have bytes that were cut off since. A replay comes after that: its first execution did.
pub(crate) fn move_to_objects(view: &mut View<'_>, fid: Fid, moved: Option<Transno>) -> Step<Applied> {
    let mut inode = view.file(fid)?;
    view.depends_on(CHILD, &inode)?;
    if inode.dom_bytes() > 0 {
        let has_moved = moved.is_some_and(|version| version.0 == inode.attr.version) || view.is_replay();
        if (inode.attr.size > 0 || inode.may_have_objects) && !has_moved {
            return Err(Errno::EAGAIN.into());
        }
        if inode.attr.size > 0 {
            view.delete(DATA, &fid.key());
        }
        end_of_data(&mut inode);
        for ost in inode.layout.iter().flat_map(|layout| &layout.components).flat_map(|c| &c.stripes) {
            view.state_change(StateChange::MovedTo(*ost));
        }
        view.put_data_changed(&mut inode);
    } else {
        // The sender may have a lock under which it believes in the old layout.
        view.shows_to_sender(&inode);
    }
    view.describes(&inode);
    Ok(Applied::entry(&inode.reply()))
}

/// The layout without data on the MDT.
fn end_of_data(inode: &mut Inode) {
    inode.may_have_objects = true;
    if let Some(layout) = &mut inode.layout {
        layout.dom_bytes = 0;
        layout.generation += 1;
    }
}

/// A killed process had kept these bytes, all of the file, the latest of them written at `mtime`: the target has them now,
/// unless they are in objects already, or the file is gone. OSTs may have executed the writes, too. `None`: the bytes are not
/// those of such a file. Returns whether no byte is missing.
///
/// No lock is broken: while that process kept bytes, no other client had SIZE.
pub(crate) fn restore(view: &mut View<'_>, fid: Fid, data: Option<&[u8]>, mtime: Timestamp) -> Step<bool> {
    let Some(mut inode) = view.inode(fid)?.filter(|inode| inode.dom_bytes() > 0) else { return Ok(true) };
    let Some(data) = data.filter(|data| data.len() <= inode.dom_bytes() as usize) else { return Ok(false) };
    put_data(view, &mut inode, data);
    inode.written_at(mtime);
    inode.may_have_objects = true;
    view.put_data_changed(&mut inode);
    Ok(true)
}
