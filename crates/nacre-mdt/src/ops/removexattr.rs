//! Removexattr: removes an extended attribute.

use crate::ops::{Applied, Context, Operation, Recorded, WriteBound};
use crate::rows::acl;
use crate::rows::read_set::ReadSet;
use crate::rows::versions::CHILD;
use crate::rows::view::{Step, View};
use crate::rows::xattr_name::check_xattr_name;
use nacre_types::name::HashKey;
use nacre_types::{Errno, Fid, Generation};
use nacre_wire::mdt::Removexattr;

impl Operation for Removexattr<'_> {
    fn counter(&self) -> Option<&'static str> {
        Some("setxattr")
    }

    fn read_set(&self, _hash: HashKey, _export: Generation) -> ReadSet {
        ReadSet::of_inode(self.fid)
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(1).freeing()
    }

    fn apply(&self, view: &mut View<'_>, _context: &mut Context<'_>) -> Step<Applied> {
        check_xattr_name(self.name)?;
        let mut inode = view.file(self.fid)?;
        view.depends_on(CHILD, &inode)?;
        let is_acl = self.name == acl::ACCESS || self.name == acl::DEFAULT;
        if !view.remove_xattr(&mut inode, self.name) {
            // An ACL that says no more than the mode is there and not stored.
            return if is_acl { Ok(Applied::entry(&inode.reply())) } else { Err(Errno::ENODATA.into()) };
        }
        inode.changed_at(self.time);
        view.put_changed(&mut inode);
        Ok(Applied::entry(&inode.reply()))
    }

    fn described(&self, _record: &Recorded) -> Option<Fid> {
        Some(self.fid)
    }
}
