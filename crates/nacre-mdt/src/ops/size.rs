//! The size of a file as the target learns it: from writers, from truncates, from the OSTs.

use crate::rows::row::{Inode, Unsettled};
use crate::rows::state_change::StateChange;
use crate::rows::table::UNSETTLED;
use crate::rows::view::{Step, View};
use alloc::vec::Vec;
use nacre_types::{Errno, Fid, Generation, SizeState};
use nacre_wire::mdt::Written;

/// Refuses sizes that the kernel cannot represent: it takes sizes, and blocks of 512 bytes, as signed numbers.
pub(crate) fn check_written(written: &Written) -> Result<(), Errno> {
    let bytes = written.blocks.checked_mul(512).ok_or(Errno::EFBIG)?;
    check_size(written.size).and_then(|()| check_size(bytes))
}
pub(crate) fn check_size(size: u64) -> Result<(), Errno> {
    i64::try_from(size).map(drop).map_err(|_| Errno::EFBIG)
}

/// Merges the size, blocks and times of a writer, which only grow.
pub(crate) fn grow(inode: &mut Inode, w: &Written) {
    inode.attr.size = inode.attr.size.max(w.size);
    inode.attr.blocks = inode.attr.blocks.max(w.blocks);
    inode.written_at(w.mtime);
}

/// Writes down that the OSTs have to be asked for the size, now or after a restart.
pub(crate) fn store_size_unknown(view: &mut View<'_>, fid: Fid) -> Step<()> {
    view.update(UNSETTLED, &fid.key(), |old: Option<Unsettled>| {
        let mut row = old.unwrap_or(Unsettled { pending: Vec::new(), tainted: true });
        row.tainted = true;
        Some(row)
    })
}

/// Has the OSTs asked for the size in the background, also after a restart.
pub(crate) fn mark_size_unknown(view: &mut View<'_>, fid: Fid) -> Step<()> {
    store_size_unknown(view, fid)?;
    view.state_change(StateChange::SizeUnknown(fid));
    Ok(())
}

/// Forgets the truncates that an export has not reported, because it is gone. The OSTs know the size.
pub(crate) fn forget_truncates(view: &mut View<'_>, export: Generation, fid: Fid) -> Step<()> {
    view.state_change(StateChange::TruncateEnded { export, fid, last: true });
    let Some(mut row) = view.row::<Unsettled>(UNSETTLED, &fid.key())? else { return Ok(()) };
    if row.pending.contains(&export) {
        row.pending.retain(|g| *g != export);
        row.tainted = true;
        view.put(UNSETTLED, &fid.key(), &row);
        view.state_change(StateChange::SizeUnknown(fid));
    }
    Ok(())
}

/// Stores the size that the OSTs have reported of a file without writers, unless a writer has come meanwhile.
pub(crate) fn store_size_of_objects(view: &mut View<'_>, fid: Fid, written: &Written) -> Step<()> {
    let Some(mut inode) = view.inode(fid)? else {
        view.delete(UNSETTLED, &fid.key());
        return Ok(());
    };
    let row: Option<Unsettled> = view.row(UNSETTLED, &fid.key())?;
    if view.opens().writers(fid) > 0 || row.is_none_or(|r| !r.pending.is_empty()) {
        return Ok(());
    }
    inode.attr.size = written.size;
    inode.attr.blocks = written.blocks;
    inode.attr.size_state = SizeState::Exact;
    inode.written_at(written.mtime);
    view.delete(UNSETTLED, &fid.key());
    view.put_inode(&inode);
    Ok(())
}
