//! Extended attributes. A size probe returns the size; a buffer that is too small gets ERANGE.

use crate::abi;
use crate::door::{Door, Reply};
use crate::ops::Ops;
use crate::reply::Body;
use crate::request::FuseRequest;
use crate::virtual_xattr::{self, VirtualName};
use nacre_client::SetxattrArgs;
use nacre_types::Errno;
use std::rc::Rc;

/// The kernel's limits: XATTR_SIZE_MAX, XATTR_LIST_MAX, XATTR_NAME_MAX.
const VALUE_BYTES_MAX: usize = 64 << 10;
const NAME_BYTES_MAX: usize = 255;

fn checked(name: &[u8]) -> Result<&[u8], Errno> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX { Err(Errno::ERANGE) } else { Ok(name) }
}

/// A value for a caller with `room` bytes; 0 asks for the size.
fn sized(value: &[u8], room: u32) -> Reply {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Errno::E2BIG);
    }
    match room as usize {
        0 => Ok(Body::of(&abi::GetxattrOut { size: value.len() as u32, padding: 0 })),
        room if room < value.len() => Err(Errno::ERANGE),
        _ => Ok(Body::bytes(value)),
    }
}

pub(crate) async fn getxattr<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let abi::GetxattrIn { size, .. } = args.take()?;
    let name = checked(args.name()?)?;
    let fid = request.fid()?;
    match VirtualName::parse(name) {
        None => match door.ops.getxattr(fid, name).await {
            Err(Errno::ESTALE) if door.special_files().removed(fid).is_some() => Err(Errno::ENODATA),
            value => sized(&value?, size),
        },
        Some(name) => {
            sized(&virtual_xattr::get(&*door.ops, fid, name?, size == 0, &request.caller(0)).await?, size)
        }
    }
}

pub(crate) async fn setxattr<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let abi::SetxattrIn { size, flags, setxattr_flags, .. } = args.take()?;
    let name = checked(args.name()?)?;
    let value = args.bytes(size)?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(Errno::E2BIG);
    }
    let (fid, caller) = (request.fid()?, request.caller(0));
    match VirtualName::parse(name) {
        None => {
            let kill_sgid = setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
            door.ops.setxattr(SetxattrArgs { fid, name, value, flags, kill_sgid, caller }).await?;
        }
        Some(name) => virtual_xattr::set(&*door.ops, fid, name?, value, caller).await?,
    }
    door.changed(&request, fid).await;
    Ok(Body::empty())
}

/// What only administrators may read: the kernel refuses the values to others, not their names.
const TRUSTED: &[u8] = b"trusted.";

/// Virtual names are not listed: `cp -a` and backups must not copy them. Nor are names whose values the caller may not read.
pub(crate) async fn listxattr<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::GetxattrIn { size, .. } = request.args().take()?;
    let fid = request.fid()?;
    let names = match door.ops.listxattr(fid).await {
        Err(Errno::ESTALE) if door.special_files().removed(fid).is_some() => Vec::new(),
        names => names?,
    };
    let mut list = Vec::new();
    let is_root = request.header.uid == 0;
    for name in names.iter().filter(|name| is_root || !name.starts_with(TRUSTED)) {
        list.extend_from_slice(name);
        list.push(0);
    }
    sized(&list, size)
}

pub(crate) async fn removexattr<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let name = checked(args.name()?)?;
    let fid = request.fid()?;
    match VirtualName::parse(name) {
        None => door.ops.removexattr(fid, name).await?,
        Some(name) => virtual_xattr::remove(&*door.ops, fid, name?, request.caller(0)).await?,
    }
    door.changed(&request, fid).await;
    Ok(Body::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_get_the_size_and_small_buffers_erange() {
        assert_eq!(sized(b"value", 0).map(|b| b.head_len()), Ok(8));
        assert_eq!(sized(b"value", 4).map(|b| b.head_len()), Err(Errno::ERANGE));
        assert_eq!(sized(b"value", 5).map(|b| b.head_len()), Ok(5));
        assert_eq!(sized(b"", 5).map(|b| b.head_len()), Ok(0));
        assert_eq!(sized(&vec![0; VALUE_BYTES_MAX + 1], 1 << 20).map(|b| b.head_len()), Err(Errno::E2BIG));
    }
}
