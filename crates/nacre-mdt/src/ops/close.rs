//! Close: ends an open. A writer reports the size, a reader the access time. A close can also report only the access time,
//! for an open that was never reported to the MDT.

use crate::ops::opening::{CloseReport, accessed, end_open};
use crate::ops::size::check_written;
use crate::ops::{Applied, Context, Operation, WriteBound};
use crate::rows::read_set::ReadSet;
use crate::rows::table::{self, OPEN};
use crate::rows::view::{Step, View};
use nacre_types::name::HashKey;
use nacre_types::{DOM_BYTES_MAX, Errno, Generation};
use nacre_wire::mdt::{Close, NOT_REPORTED};

impl Operation for Close {
    fn counter(&self) -> Option<&'static str> {
        Some("close")
    }

    fn read_set(&self, _hash: HashKey, export: Generation) -> ReadSet {
        let mut read_set = ReadSet::of_inode(self.fid);
        read_set.key(OPEN, &table::open(export, self.handle));
        read_set
    }

    fn bound(&self) -> WriteBound {
        match &self.data {
            None => WriteBound::inodes(2).freeing(),
            Some(data) => WriteBound::inodes(2).with_value(data.len().min(DOM_BYTES_MAX as usize) as u32),
        }
    }

    fn apply(&self, view: &mut View<'_>, context: &mut Context<'_>) -> Step<Applied> {
        let export = context.export();
        if self.handle == NOT_REPORTED {
            accessed(view, self.fid, self.atime)?;
            return Ok(Applied::empty());
        }
        let opened = view.opens().get(export, self.handle).ok_or(Errno::EBADF)?;
        if opened.fid != self.fid {
            return Err(Errno::EINVAL.into());
        }
        let report = match (self.dirty, self.written) {
            (false, _) => CloseReport::Unchanged,
            (true, Some(written)) => {
                check_written(&written)?;
                match &self.data {
                    Some(data) => CloseReport::Stored(data, written.mtime),
                    None => CloseReport::Written(written),
                }
            }
            (true, None) => CloseReport::Unknown,
        };
        end_open(view, export, self.handle, opened, report, self.atime)?;
        Ok(Applied::empty())
    }
}
