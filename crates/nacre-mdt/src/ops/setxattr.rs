//! Setxattr: sets an extended attribute.
//!
//! Rules: the kernel checks permissions, this file the state of the inode. An access ACL sets the mode; an ACL that is
//! equivalent to the mode is not stored.

use crate::ops::{Applied, Context, Operation, Recorded, WriteBound};
use crate::rows::acl::{self, Acl};
use crate::rows::read_set::ReadSet;
use crate::rows::row::Inode;
use crate::rows::versions::CHILD;
use crate::rows::view::{Step, View};
use crate::rows::xattr_name::check_xattr_name;
use nacre_types::name::{HashKey, XATTR_VALUE_MAX};
use nacre_types::{Errno, Fid, FileType, Generation, mode};
use nacre_wire::mdt::Setxattr;

/// Flags of setxattr(2).
const CREATE: u32 = 1;
const REPLACE: u32 = 2;

impl Operation for Setxattr<'_> {
    fn counter(&self) -> Option<&'static str> {
        Some("setxattr")
    }

    fn read_set(&self, _hash: HashKey, _export: Generation) -> ReadSet {
        ReadSet::of_inode(self.fid)
    }

    fn bound(&self) -> WriteBound {
        WriteBound::inodes(2).with_value(self.value.len().min(XATTR_VALUE_MAX) as u32)
    }

    fn apply(&self, view: &mut View<'_>, _context: &mut Context<'_>) -> Step<Applied> {
        check_xattr_name(self.name)?;
        if self.value.len() > XATTR_VALUE_MAX {
            return Err(Errno::E2BIG.into());
        }
        let mut inode = view.file(self.fid)?;
        view.depends_on(CHILD, &inode)?;
        if self.name.starts_with(b"user.") && !inode.is_regular() && !inode.attr.is_dir() {
            return Err(Errno::EPERM.into());
        }
        let exists = inode.xattrs.iter().any(|x| x.name == self.name);
        match self.flags {
            0 => {}
            CREATE if exists => return Err(Errno::EEXIST.into()),
            REPLACE if !exists => return Err(Errno::ENODATA.into()),
            CREATE | REPLACE => {}
            _ => return Err(Errno::EINVAL.into()),
        }
        if self.name == acl::ACCESS || self.name == acl::DEFAULT {
            set_acl(view, &mut inode, self)?;
        } else {
            view.set_xattr(&mut inode, self.name, self.value)?;
        }
        inode.changed_at(self.time);
        view.put_changed(&mut inode);
        Ok(Applied::entry(&inode.reply()))
    }

    fn described(&self, _record: &Recorded) -> Option<Fid> {
        Some(self.fid)
    }
}

fn set_acl(view: &mut View<'_>, inode: &mut Inode, args: &Setxattr<'_>) -> Step<()> {
    if inode.attr.file_type() == FileType::Symlink {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if args.caller.uid != 0 && args.caller.uid != inode.attr.uid {
        return Err(Errno::EPERM.into());
    }
    let acl = Acl::parse(args.value)?;
    if args.name == acl::DEFAULT {
        return match acl {
            None => {
                view.remove_xattr(inode, acl::DEFAULT);
                Ok(())
            }
            Some(_) if !inode.attr.is_dir() => Err(Errno::EACCES.into()),
            Some(acl) => Ok(view.set_xattr(inode, acl::DEFAULT, &acl.to_bytes())?),
        };
    }
    match acl {
        None => {
            view.remove_xattr(inode, acl::ACCESS);
        }
        Some(acl) => view.set_access_acl(inode, &acl)?,
    }
    if args.kill_sgid {
        inode.attr.mode &= !mode::SGID;
    }
    Ok(())
}
