//! Unlink: removes a name, or an empty directory. Works on a full device.

use crate::ops::{Applied, Context, Operation, WriteBound};
use crate::rows::inode::check_sticky;
use crate::rows::read_set::ReadSet;
use crate::rows::versions::{CHILD, PARENT};
use crate::rows::view::{Step, View};
use nacre_types::name::HashKey;
use nacre_types::{Errno, FileType, Generation};
use nacre_wire::mdt::Unlink;

impl Operation for Unlink<'_> {
    fn counter(&self) -> Option<&'static str> {
        Some(if self.directory { "rmdir" } else { "unlink" })
    }

    fn read_set(&self, hash: HashKey, _export: Generation) -> ReadSet {
        let mut read_set = ReadSet::of_inode(self.parent);
        read_set.present_name(hash, self.parent, self.name);
        read_set
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(3).freeing()
    }

    fn apply(&self, view: &mut View<'_>, _context: &mut Context<'_>) -> Step<Applied> {
        let mut dir = view.dir(self.parent)?;
        view.depends_on(PARENT, &dir)?;
        let slot = view.slot(self.parent, self.name)?;
        view.depends_on_name(self.parent, &slot)?;
        let (cookie, entry) = slot.taken().ok_or(Errno::ENOENT)?;
        match (self.directory, entry.file_type) {
            (true, FileType::Directory) => {}
            (true, _) => return Err(Errno::ENOTDIR.into()),
            (false, FileType::Directory) => return Err(Errno::EISDIR.into()),
            (false, _) => {}
        }
        let mut child = view.file(entry.fid)?;
        view.depends_on(CHILD, &child)?;
        check_sticky(&dir, &child, &self.caller)?;
        if self.directory && child.entries > 0 {
            return Err(Errno::ENOTEMPTY.into());
        }
        view.delete_name(self.parent, cookie);
        child.changed_at(self.time);
        view.drop_name(&mut child, self.parent, self.name, self.reported == entry.fid);
        dir.entries = dir.entries.saturating_sub(1);
        if self.directory {
            dir.attr.nlink = dir.attr.nlink.saturating_sub(1);
        }
        dir.modified_at(self.time);
        view.put_inode(&dir);
        Ok(Applied::empty())
    }
}
