//! GETATTR, STATX, SETATTR, STATFS.

use crate::abi::{self, fattr};
use crate::door::{Door, Reply};
use crate::kernel_cache::Grant;
use crate::ops::Ops;
use crate::reply::{Body, statx_out};
use crate::request::FuseRequest;
use nacre_client::{ResolvedInode, Validity};
use nacre_types::{Errno, OpenHandle, SetAttr, Timestamp};
use std::rc::Rc;

pub(crate) async fn getattr<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::GetattrIn { flags, .. } = request.args().take()?;
    let mut entry = attributes(&door, &request).await?;
    if flags & abi::getattr::FH != 0 && door.ops.pages_are_doubtful(entry.attr.fid) {
        // A read(2) through a cached handle, which must not use the pages that are there. The attributes have no validity,
        // so stat(2) asks again.
        entry.attr.mtime = door.other_time(entry.attr.mtime);
    }
    Ok(Body::attr(&entry, door.ops.validity(None, entry.attr.fid), door.grant(&request)))
}

pub(crate) async fn statx<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let entry = attributes(&door, &request).await?;
    Ok(statx_out(&entry, door.ops.validity(None, entry.attr.fid), door.grant(&request)))
}

async fn attributes<O: Ops>(door: &Door<O>, request: &FuseRequest) -> Result<ResolvedInode, Errno> {
    let fid = request.fid()?;
    match door.removals().read_beside(async || door.ops.getattr(fid).await).await {
        Err(Errno::ESTALE) => door.special_files().removed(fid).ok_or(Errno::ESTALE),
        entry => entry.inspect(|entry| door.special_files().note(entry)),
    }
}

pub(crate) async fn setattr<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let args: abi::SetattrIn = request.args().take()?;
    let set = set_attr(&args, door.ops.now(door.ctx.wall()))?;
    let handle = (args.valid & fattr::FH != 0).then_some(OpenHandle(args.fh));
    // The kernel asks to drop set-id bits with every chown(2). The groups of root decide nothing (see `ops::setattr` of the
    // MDT), and their lookup takes as long as the change itself.
    let caller = request.caller(0);
    let caller = match set.kill_suidgid && caller.uid != 0 {
        true => door.caller_in_groups(&request).await?,
        false => caller,
    };
    let fid = request.fid()?;
    let entry = match door.ops.setattr(fid, handle, set.clone(), caller).await {
        Err(Errno::ESTALE) => {
            let now = door.ops.now(door.ctx.wall());
            door.special_files().change_removed(fid, &set, now).ok_or(Errno::ESTALE)?
        }
        entry => entry?,
    };
    door.special_files().note(&entry);
    // The kernel would take over the attributes also after an INVAL_INODE: they have no validity.
    Ok(Body::attr(&entry, Validity::default(), Grant::none()))
}

/// The change that `args` requests. "Now" comes from the file system, so that it is never later than the change time; other
/// times are the caller's.
fn set_attr(args: &abi::SetattrIn, now: Timestamp) -> Result<SetAttr, Errno> {
    let has = |bit: u32| args.valid & bit != 0;
    let given = |bit: u32, sec: u64, nsec: u32| {
        if !has(bit) {
            return Ok(None);
        }
        if nsec >= 1_000_000_000 {
            return Err(Errno::EINVAL);
        }
        Ok(Some(Timestamp { sec: sec.cast_signed(), nsec }))
    };
    let or_now = |bit: u32, time: Option<Timestamp>| if has(bit) { Some(now) } else { time };
    let atime = given(fattr::ATIME, args.atime, args.atimensec)?;
    let mtime = given(fattr::MTIME, args.mtime, args.mtimensec)?;
    Ok(SetAttr {
        mode: has(fattr::MODE).then_some(args.mode),
        uid: has(fattr::UID).then_some(args.uid),
        gid: has(fattr::GID).then_some(args.gid),
        size: has(fattr::SIZE).then_some(args.size),
        atime: or_now(fattr::ATIME_NOW, atime),
        mtime: or_now(fattr::MTIME_NOW, mtime),
        ctime: given(fattr::CTIME, args.ctime, args.ctimensec)?,
        kill_suidgid: has(fattr::KILL_SUIDGID),
    })
}

/// Unit of the numbers of STATFS.
const BLOCK_BYTES: u32 = 4096;

pub(crate) async fn statfs<O: Ops>(door: Rc<Door<O>>, _request: Rc<FuseRequest>) -> Reply {
    let s = door.ops.statfs().await?;
    let block = u64::from(BLOCK_BYTES);
    Ok(Body::of(&abi::Kstatfs {
        blocks: s.bytes_total / block,
        bfree: s.bytes_free / block,
        bavail: s.bytes_avail / block,
        files: s.files_used.saturating_add(s.files_free),
        ffree: s.files_free,
        bsize: BLOCK_BYTES,
        namelen: 255,
        frsize: BLOCK_BYTES,
        ..abi::Kstatfs::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_valid_bit_reaches_the_change_and_nothing_else_does() {
        let now = Timestamp { sec: 100, nsec: 1 };
        let mut args =
            abi::SetattrIn { mode: 0o644, uid: 1, gid: 2, size: 3, atime: 4, mtime: 5, ..Default::default() };
        assert_eq!(set_attr(&args, now), Ok(SetAttr::default()));
        args.valid = fattr::MODE | fattr::UID | fattr::SIZE | fattr::ATIME | fattr::MTIME | fattr::MTIME_NOW;
        let set = set_attr(&args, now).unwrap();
        assert_eq!((set.mode, set.uid, set.gid, set.size), (Some(0o644), Some(1), None, Some(3)));
        assert_eq!((set.atime, set.mtime), (Some(Timestamp { sec: 4, nsec: 0 }), Some(now)));
        assert!(!set.kill_suidgid);
        args.atimensec = 1_000_000_000;
        assert_eq!(set_attr(&args, now), Err(Errno::EINVAL));
    }
}
