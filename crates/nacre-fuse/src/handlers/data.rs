//! Open files: OPEN, READ, WRITE, FLUSH, RELEASE, FSYNC, FALLOCATE, LSEEK, COPY_FILE_RANGE. The kernel's file handle is the open handle of the
//! client.

use crate::abi::{self, o};
use crate::call;
use crate::device::MAX_WRITE_BYTES;
use crate::door::{Door, Reply};
use crate::interrupt::SIGNAL_DELAY;
use crate::ops::{OpenedFile, Ops};
use crate::reply::Body;
use crate::request::FuseRequest;
use nacre_client::{AllocateArgs, AllocateMode, WriteArgs};
use nacre_types::{Caller, Errno, OpenHandle};
use std::pin::pin;
use std::rc::Rc;

/// The kernel sends a truncate as SETATTR after the open (no ATOMIC_O_TRUNC), so O_TRUNC never comes here.
pub(crate) async fn open<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::OpenIn { flags, .. } = request.args().take()?;
    let fid = request.fid()?;
    let (_, handle) = door.ops.open(fid, flags & !o::TRUNC, request.caller(0)).await?;
    door.note_opener(&request, fid, handle).await;
    close_if_given_up(&door, &request, handle).await;
    Ok(Body::opened(OpenedFile { handle, fopen_flags: door.ops.fopen_flags(handle, flags) }))
}

/// No RELEASE follows for a handle that the caller never got.
pub(crate) async fn close_if_given_up<O: Ops>(door: &Door<O>, request: &FuseRequest, handle: OpenHandle) {
    if request.has_reply() {
        // It fails only if the handle is already closed.
        let _ = door.ops.release(handle, None).await;
    }
}

pub(crate) async fn read<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::ReadIn { fh, offset, size, .. } = request.args().take()?;
    let mut parts = door.ops.read(OpenHandle(fh), offset, size.min(MAX_WRITE_BYTES)).await?;
    // The kernel refuses a reply that is longer than requested.
    let mut left = size as usize;
    for part in &mut parts {
        part.truncate(left);
        left -= part.len();
    }
    Ok(Body::bulk(parts))
}

pub(crate) async fn write<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let mut args = request.args();
    let abi::WriteIn { fh, offset, size, write_flags, flags, .. } = args.take()?;
    let data = request.payload(&args, size)?;
    // A page of a mapping is written to the mapped file, through any descriptor that the kernel found.
    let from_cache = write_flags & abi::WRITE_CACHE != 0;
    let append = flags & o::APPEND != 0 && !from_cache;
    // The rest of the call follows in further requests: the client keeps the file locked for them.
    let call_bytes = match append && size >= call::SPLIT_BYTES_MIN {
        true => door.call_bytes(&request).await.unwrap_or(0),
        false => 0,
    };
    let by_user = write_flags & abi::WRITE_KILL_SUIDGID != 0;
    let kill_suidgid =
        if by_user { loser_of_privileges(&door, &request, OpenHandle(fh)).await? } else { None };
    let written = door
        .ops
        .write(WriteArgs {
            handle: OpenHandle(fh),
            offset,
            append,
            call_bytes,
            data,
            kill_suidgid,
            sync: flags & o::DSYNC != 0 && !from_cache,
        })
        .await?;
    Ok(Body::of(&abi::WriteOut { size: written, padding: 0 }))
}

pub(crate) async fn flush<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::FlushIn { fh, lock_owner, .. } = request.args().take()?;
    let start = door.ctx.now();
    let process = door.lock_owners().closes(lock_owner, fh);
    let mut work = pin!(door.ops.flush(OpenHandle(fh), process));
    let done = match door.ctx.timeout(start + SIGNAL_DELAY, work.as_mut()).await {
        Some(done) => done,
        None => {
            // An ending process closes its files and gets no more signals.
            door.ctx.spawn(door.clone().patiently(request, start));
            work.await
        }
    };
    done.map(|()| Body::empty())
}

pub(crate) async fn release<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::ReleaseIn { fh, release_flags, .. } = request.args().take()?;
    let flock = release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
    door.release(request.fid()?, fh, flock).await?;
    Ok(Body::empty())
}

/// Also FSYNCDIR: a directory's entries are in the same log.
pub(crate) async fn fsync<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let abi::FsyncIn { fh, .. } = request.args().take()?;
    let handle = (request.opcode() == abi::op::FSYNC).then_some(OpenHandle(fh));
    door.ops.fsync(request.fid()?, handle).await?;
    Ok(Body::empty())
}

pub(crate) async fn fallocate<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    const KEEP_SIZE: u32 = 0x1;
    const PUNCH_HOLE: u32 = 0x2;
    const ZERO_RANGE: u32 = 0x10;
    let abi::FallocateIn { fh, offset, length, mode, .. } = request.args().take()?;
    let keep_size = mode & KEEP_SIZE != 0;
    let mode = match mode & !KEEP_SIZE {
        0 => AllocateMode::Space { keep_size },
        PUNCH_HOLE if keep_size => AllocateMode::Hole,
        ZERO_RANGE => AllocateMode::Zeros { keep_size },
        _ => return Err(Errno::EOPNOTSUPP),
    };
    // The kernel leaves this to the file system and sends no flag: unlike WRITE, FALLOCATE has none. Root is taken to
    // have CAP_FSETID.
    let by_user = request.header.uid != 0;
    let kill_suidgid =
        if by_user { loser_of_privileges(&door, &request, OpenHandle(fh)).await? } else { None };
    let args = AllocateArgs { offset, len: length, mode, kill_suidgid };
    let allocated = door.ops.allocate(OpenHandle(fh), args).await;
    if allocated.is_err() {
        // A part of it may be done; the kernel asks for the attributes again only after a success.
        door.forget_attributes(request.fid()?).await;
    }
    allocated.map(|()| Body::empty())
}

/// SEEK_DATA and SEEK_HOLE: the kernel serves the others.
pub(crate) async fn lseek<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    const SEEK_DATA: u32 = 3;
    const SEEK_HOLE: u32 = 4;
    let abi::LseekIn { fh, offset, whence, .. } = request.args().take()?;
    if whence != SEEK_DATA && whence != SEEK_HOLE {
        return Err(Errno::EINVAL);
    }
    let offset = door.ops.seek(OpenHandle(fh), offset, whence == SEEK_DATA).await?;
    Ok(Body::of(&abi::LseekOut { offset }))
}

/// COPY_FILE_RANGE: the kernel copies by itself after this reply, through pages of the source, even if its handle is direct. It
/// does not ask for attributes before it uses them, as it does for read(2), so pages that may be from before another mount's
/// write are dropped here.
pub(crate) async fn copy_file_range<O: Ops>(door: Rc<Door<O>>, request: Rc<FuseRequest>) -> Reply {
    let fid = request.fid()?;
    if !door.ops.pages_are_trusted(fid) {
        door.forget_pages(fid).await;
    }
    Err(Errno::EOPNOTSUPP)
}

/// The ordinary user whose change removes set-id bits of a file. The kernel does not send groups, and their lookup
/// takes time: it is done only for files with such bits.
async fn loser_of_privileges<O: Ops>(
    door: &Door<O>,
    request: &FuseRequest,
    handle: OpenHandle,
) -> Result<Option<Caller>, Errno> {
    if !door.ops.may_lose_privileges(handle, &request.caller(0)) {
        return Ok(None);
    }
    door.caller_in_groups(request).await.map(Some)
}
