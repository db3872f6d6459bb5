//! Extended attributes: user, trusted, security and the two POSIX ACLs.
//!
//! Rules: the kernel checks who may; here is what the object's state decides. An access ACL sets the mode; one that
//! says no more than the mode is not stored. Names of no known namespace are EOPNOTSUPP.

use crate::ops::open::wants_open;
use crate::rows::acl::{self, Acl};
use crate::rows::row::Inode;
use crate::rows::versions::CHILD;
use crate::rows::view::{Halt, Step, View, Wants};
use nacre_types::name::{XATTR_NAME_MAX, XATTR_VALUE_MAX};
use nacre_types::{Errno, FileType, mode};
use nacre_wire::mdt::{EntryReply, Removexattr, Setxattr};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;

/// Refuses what has no meaning here.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX || name.contains(&0) {
        return Err(Errno::ERANGE);
    }
    if name == acl::ACCESS || name == acl::DEFAULT {
        return Ok(());
    }
    let known = [&b"user."[..], b"trusted.", b"security."];
    match known.iter().find(|prefix| name.starts_with(prefix)) {
        None => Err(Errno::EOPNOTSUPP),
        Some(prefix) if prefix.len() == name.len() => Err(Errno::EINVAL),
        Some(_) => Ok(()),
    }
}

pub(crate) fn wants_set(args: &Setxattr<'_>) -> Wants {
    wants_open(args.fid)
}

pub(crate) fn apply_set(view: &mut View<'_>, args: &Setxattr<'_>) -> Step<EntryReply> {
    check_name(args.name)?;
    if args.value.len() > XATTR_VALUE_MAX {
        return Err(Errno::E2BIG.into());
    }
    let mut inode = view.file(args.fid)?;
    view.depends_on(CHILD, &inode)?;
    if args.name.starts_with(b"user.") && !inode.is_regular() && !inode.attr.is_dir() {
        return Err(Errno::EPERM.into());
    }
    let exists = inode.xattrs.iter().any(|x| x.name == args.name);
    match args.flags {
        0 => {}
        CREATE if exists => return Err(Errno::EEXIST.into()),
        REPLACE if !exists => return Err(Errno::ENODATA.into()),
        CREATE | REPLACE => {}
        _ => return Err(Errno::EINVAL.into()),
    }
    if args.name == acl::ACCESS || args.name == acl::DEFAULT {
        set_acl(view, &mut inode, args)?;
    } else {
        view.set_xattr(&mut inode, args.name, args.value)?;
    }
    inode.changed_at(args.time);
    view.put_changed(&mut inode);
    Ok(inode.reply())
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
            Some(acl) => view.set_xattr(inode, acl::DEFAULT, &acl.to_bytes()).map_err(Halt::Errno),
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

pub(crate) fn wants_remove(args: &Removexattr<'_>) -> Wants {
    wants_open(args.fid)
}

pub(crate) fn apply_remove(view: &mut View<'_>, args: &Removexattr<'_>) -> Step<EntryReply> {
    check_name(args.name)?;
    let mut inode = view.file(args.fid)?;
    view.depends_on(CHILD, &inode)?;
    let is_acl = args.name == acl::ACCESS || args.name == acl::DEFAULT;
    if !view.remove_xattr(&mut inode, args.name) {
        // An ACL that says no more than the mode is there and not stored.
        return if is_acl { Ok(inode.reply()) } else { Err(Errno::ENODATA.into()) };
    }
    inode.changed_at(args.time);
    view.put_changed(&mut inode);
    Ok(inode.reply())
}
