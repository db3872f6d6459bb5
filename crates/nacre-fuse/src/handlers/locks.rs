//! File locks: GETLK, SETLK, SETLKW for fcntl(2), OFD and flock(2). The kernel keeps none of them.
//!
//! A waiting lock is a task that waits; its reply comes with the grant. INTERRUPT ends the wait with EINTR.

use crate::abi;
use crate::door::{Door, Reply};
use crate::ops::Ops;
use crate::reply::Body;
use crate::request::FuseRequest;
use nacre_types::{Errno, OpenHandle};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use std::rc::Rc;

/// F_UNLCK, the kernel's number.
const UNLOCK: u32 = 2;

/// A lock as the kernel has sent it; `owner`: the name of its owner.
fn file_lock(args: &abi::LkIn, owner: u64) -> Result<FileLock, Errno> {
    let kind = u8::try_from(args.lk.kind).ok().and_then(FlockType::from_number).ok_or(Errno::EINVAL)?;
    Ok(FileLock {
        family: family(args),
        kind,
        start: args.lk.start,
        end: args.lk.end,
        owner,
        pid: args.lk.pid,
    })
}
fn family(args: &abi::LkIn) -> FlockFamily {
    if args.lk_flags & abi::LK_FLOCK != 0 { FlockFamily::Flock } else { FlockFamily::Posix }
}

pub(crate) async fn getlk<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let args: abi::LkIn = request.args().take()?;
    let lock = file_lock(&args, door.lock_owners().name(args.owner))?;
    let conflict = door.ops.flock_test(request.fid()?, lock).await?;
    let lk = match conflict {
        None => abi::FileLock { kind: UNLOCK, ..args.lk },
        Some(c) => abi::FileLock { start: c.start, end: c.end, kind: u32::from(c.kind.number()), pid: c.pid },
    };
    Ok(Body::of(&lk))
}

pub(crate) async fn setlk<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    lock(&door, &request, false).await
}

pub(crate) async fn setlkw<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    door.waits(&request);
    lock(&door, &request, true).await
}

async fn lock<O: Ops>(door: &Door<O>, request: &FuseRequest, wait: bool) -> Reply {
    let args: abi::LkIn = request.args().take()?;
    let owner = match family(&args) {
        FlockFamily::Flock => args.fh,
        FlockFamily::Posix if args.lk.kind == UNLOCK => door.lock_owners().name(args.owner),
        FlockFamily::Posix => door.lock_owner(request, args.owner, args.fh).await?,
    };
    let (handle, lock) = (OpenHandle(args.fh), file_lock(&args, owner)?);
    let fid = request.fid()?;
    let granted = door.lock(fid, handle, lock, wait).await?;
    if granted == FlockOutcome::Granted && lock.kind != FlockType::Unlock {
        door.locked(request, fid).await;
    }
    if request.has_reply() && granted == FlockOutcome::Granted {
        // Abandoned, the caller is ending: the kernel may have released its locks before this one was granted.
        let _ = door.ops.flock(handle, FileLock { kind: FlockType::Unlock, ..lock }, false).await;
    }
    outcome(granted)
}

fn outcome(outcome: FlockOutcome) -> Reply {
    match outcome {
        FlockOutcome::Granted => Ok(Body::empty()),
        // A wait that ends without a grant was interrupted.
        FlockOutcome::Waiting => Err(Errno::EINTR),
        FlockOutcome::Conflict => Err(Errno::EAGAIN),
        FlockOutcome::Deadlock => Err(Errno::EDEADLK),
    }
}
