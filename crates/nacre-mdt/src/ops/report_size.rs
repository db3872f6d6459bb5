//! ReportSize: a client reports the size and times of a file that it has found out, or set by a truncate.
//!
//! Rule: the reported size becomes that of the file only if no other client could have changed the file meanwhile.

use crate::ops::size::{check_written, grow};
use crate::ops::{Applied, Context, Operation, Recorded, WriteBound};
use crate::rows::read_set::ReadSet;
use crate::rows::row::{Inode, Unsettled};
use crate::rows::state_change::StateChange;
use crate::rows::table::UNSETTLED;
use crate::rows::view::{Step, View};
use nacre_types::name::HashKey;
use nacre_types::{Errno, Fid, Generation, SizeState};
use nacre_wire::mdt::ReportSize;

impl Operation for ReportSize {
    fn counter(&self) -> Option<&'static str> {
        Some("setattr")
    }

    fn read_set(&self, _hash: HashKey, _export: Generation) -> ReadSet {
        let mut read_set = ReadSet::of_inode(self.fid);
        if self.truncate {
            read_set.key(UNSETTLED, &self.fid.key());
        }
        read_set
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(2).freeing()
    }

    fn apply(&self, view: &mut View<'_>, context: &mut Context<'_>) -> Step<Applied> {
        let fid = self.fid;
        check_written(&self.written)?;
        let mut inode = view.file(fid)?;
        if !inode.is_regular() {
            return Err(Errno::EINVAL.into());
        }
        if !self.truncate {
            if inode.attr.size_state == SizeState::Open {
                grow(&mut inode, &self.written);
                view.put_inode(&inode);
            }
            return Ok(Applied::entry(&inode.reply()));
        }
        let Some(mut row) = view.row::<Unsettled>(UNSETTLED, &fid.key())? else {
            return Err(Errno::EINVAL.into());
        };
        let Some(at) = row.pending.iter().position(|g| *g == context.export()) else {
            return Err(Errno::EINVAL.into());
        };
        row.pending.remove(at);
        view.state_change(StateChange::TruncateEnded { export: context.export(), fid, last: false });
        inode.attr.size = self.written.size;
        inode.attr.blocks = self.written.blocks;
        inode.written_at(self.written.mtime);
        end_truncate(view, &mut inode, &row);
        view.put_inode(&inode);
        Ok(Applied::entry(&inode.reply()))
    }

    fn described(&self, _record: &Recorded) -> Option<Fid> {
        Some(self.fid)
    }
}

/// The last report of a truncate decides: the size is known, or the OSTs are asked, or writers are still there.
fn end_truncate(view: &mut View<'_>, inode: &mut Inode, row: &Unsettled) {
    let fid = inode.attr.fid;
    let writers = view.opens().writers(fid);
    if row.pending.is_empty() && (writers > 0 || !row.tainted) {
        if writers == 0 {
            inode.attr.size_state = SizeState::Exact;
        }
        view.delete(UNSETTLED, &fid.key());
        return;
    }
    view.put(UNSETTLED, &fid.key(), row);
    if row.pending.is_empty() {
        view.state_change(StateChange::SizeUnknown(fid));
    }
}
