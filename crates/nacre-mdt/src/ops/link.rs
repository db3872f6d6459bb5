//! Link: gives a file one more name, link(2).

use crate::ops::{Applied, Context, Operation, Recorded, WriteBound};
use crate::rows::read_set::ReadSet;
use crate::rows::row::EntryRow;
use crate::rows::table::{NEVER_NAMED, ORPHAN};
use crate::rows::versions::{CHILD, PARENT};
use crate::rows::view::{Slot, Step, View};
use nacre_types::name::HashKey;
use nacre_types::{Errno, Fid, Generation};
use nacre_wire::mdt::Link;

/// Names that one file may have.
const LINKS_MAX: u32 = 65_000;

impl Operation for Link<'_> {
    fn counter(&self) -> Option<&'static str> {
        Some("link")
    }

    fn read_set(&self, hash: HashKey, _export: Generation) -> ReadSet {
        let mut read_set = ReadSet::of_inode(self.parent);
        read_set.inode(self.fid);
        read_set.name(hash, self.parent, self.name);
        read_set
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(2)
    }

    fn apply(&self, view: &mut View<'_>, _context: &mut Context<'_>) -> Step<Applied> {
        let mut dir = view.dir(self.parent)?;
        view.depends_on(PARENT, &dir)?;
        let slot = view.slot(self.parent, self.name)?;
        view.depends_on_name(self.parent, &slot)?;
        let mut inode = view.file(self.fid)?;
        view.depends_on(CHILD, &inode)?;
        let cookie = match slot {
            Slot::Taken { .. } => return Err(Errno::EEXIST.into()),
            Slot::Free { cookie } => cookie,
            Slot::Full => return Err(Errno::ENOSPC.into()),
        };
        if inode.attr.is_dir() {
            return Err(Errno::EPERM.into());
        }
        if inode.attr.nlink == 0 {
            // A file whose last name was removed stays without one.
            let key = self.fid.key();
            if view.bytes(ORPHAN, &key)? != Some(NEVER_NAMED) {
                return Err(Errno::ENOENT.into());
            }
            view.delete(ORPHAN, &key);
        }
        if inode.attr.nlink >= LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        let file_type = inode.attr.file_type();
        let entry = EntryRow { name: self.name.to_bytes(), fid: self.fid, file_type, version: 0 };
        view.put_name(self.parent, cookie, entry);
        view.add_link(&mut inode, self.parent, self.name);
        inode.attr.nlink += 1;
        inode.changed_at(self.time);
        view.put_changed(&mut inode);
        dir.entries += 1;
        dir.modified_at(self.time);
        view.put_inode(&dir);
        view.describes(&inode);
        Ok(Applied::entry(&inode.reply()))
    }

    fn described(&self, _record: &Recorded) -> Option<Fid> {
        Some(self.fid)
    }
}
