//! INIT: the negotiation with the kernel before the first request.
//!
//! Requested: large requests; locks, ACLs and the removal of set-id bits by the file system; file handles; shared
//! mappings of direct files; operations on one directory in parallel; listings with attributes; targets of symbolic links
//! in the kernel's cache (they never change). Deliberately not requested: WRITEBACK_CACHE (the kernel would ignore the file system's
//! sizes), ATOMIC_O_TRUNC (a separate truncate needs one implementation instead of two), opens without a message (the
//! servers would not know the open files), splice (replies are small, or already in memory).

use crate::abi::{self, Field, InitIn, InitOut, init, op};
use crate::device::{Channel, MAX_PAGES, MAX_WRITE_BYTES, Read};
use crate::reply::Body;
use crate::request::FuseRequest;
use nacre_types::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::Arc;

/// Required features.
const REQUIRED: u64 = init::BIG_WRITES
    | init::MAX_PAGES
    | init::DONT_MASK
    | init::POSIX_ACL
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::EXPORT_SUPPORT;
/// Used if the kernel has them.
const WANTED: u64 = init::ASYNC_READ
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::AUTO_INVAL_DATA
    | init::CACHE_SYMLINKS
    | init::INIT_EXT
    | init::CREATE_SUPP_GROUP
    | init::DIRECT_IO_ALLOW_MMAP;
/// Listings with attributes, where the kernel requests them. Not on a kernel without epochs: names have no validity there.
const READDIRPLUS: u64 = init::DO_READDIRPLUS | init::READDIRPLUS_AUTO;

/// The version that has INC_EPOCH.
const EPOCH_MINOR: u32 = 44;

/// Options of a mount.
#[derive(Debug, Clone, Copy)]
pub struct SessionConfig {
    /// Offers READDIRPLUS, if the kernel may cache names.
    pub readdirplus: bool,
    /// Asynchronous requests (read-ahead, direct AIO) in progress at a time.
    pub background_max: u16,
    /// Requests through io_uring where the kernel allows it.
    pub rings: bool,
}
impl Default for SessionConfig {
    fn default() -> Self {
        Self { readdirplus: true, background_max: 64, rings: true }
    }
}

/// The result of the negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Minor version of the kernel's interface.
    pub minor: u32,
    /// Flags of FUSE_INIT that both sides use; those of `flags2` from bit 32 on.
    pub flags: u64,
}
impl Session {
    /// INC_EPOCH is supported (7.44).
    pub fn has_epoch(&self) -> bool {
        self.minor >= EPOCH_MINOR
    }
    /// Requests wait until there are rings.
    pub(crate) fn has_rings(&self) -> bool {
        self.flags & init::OVER_IO_URING != 0
    }
}

/// The reason why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(
        "the kernel speaks FUSE 7.{minor}, nacre needs 7.{needed} (Linux 5.17) or later\n  hint: use a newer kernel",
        needed = abi::MINOR_MIN
    )]
    TooOld { minor: u32 },
    #[error(
        "the kernel's FUSE lacks features that nacre needs (flags {missing:#x})\n  hint: use a newer kernel"
    )]
    Missing { missing: u64 },
    #[error("the kernel did not begin the FUSE session within {seconds} s")]
    Silent { seconds: u64 },
    #[error("the file system was unmounted while it was being mounted")]
    Gone,
    #[error("reading /dev/fuse failed")]
    Device(#[source] rustix::io::Errno),
}

/// Computes the reply to INIT. Pure.
fn negotiate(args: &InitIn, config: SessionConfig) -> Result<(Session, InitOut), SessionError> {
    if args.major != abi::MAJOR || args.minor < abi::MINOR_MIN {
        return Err(SessionError::TooOld { minor: args.minor });
    }
    let upper = if u64::from(args.flags) & init::INIT_EXT != 0 { u64::from(args.flags2) << 32 } else { 0 };
    let offered = u64::from(args.flags) | upper;
    let missing = REQUIRED & !offered;
    if missing != 0 {
        return Err(SessionError::Missing { missing });
    }
    let minor = args.minor.min(abi::MINOR);
    let readdirplus = if config.readdirplus && minor >= EPOCH_MINOR { READDIRPLUS } else { 0 };
    let rings = if config.rings { init::OVER_IO_URING } else { 0 };
    let flags = offered & (REQUIRED | WANTED | readdirplus | rings);
    let out = InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR,
        max_readahead: args.max_readahead,
        flags: (flags & u64::from(u32::MAX)) as u32,
        flags2: (flags >> 32) as u32,
        max_background: config.background_max,
        congestion_threshold: config.background_max / 4 * 3,
        max_write: MAX_WRITE_BYTES,
        time_gran: 1,
        max_pages: MAX_PAGES,
        ..InitOut::default()
    };
    Ok((Session { minor, flags }, out))
}

/// Waits for the kernel's INIT on a fresh connection and replies to it.
pub(crate) fn begin(channel: &Arc<Channel>, config: SessionConfig) -> Result<Session, SessionError> {
    const INIT_TIMEOUT_S: u64 = 10;
    loop {
        match channel.read().map_err(SessionError::Device)? {
            Read::Request(request) if request.opcode() == op::INIT => return reply(&request, config),
            // Nothing else may come before the reply to INIT.
            Read::Request(request) => {
                request.reply(Err(Errno::EIO)).send();
            }
            Read::Gone => return Err(SessionError::Gone),
            Read::Empty => {
                let Some(fd) = channel.poll_fd() else { return Err(SessionError::Gone) };
                let timeout = Timespec { tv_sec: INIT_TIMEOUT_S as i64, tv_nsec: 0 };
                match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
                    Ok(0) => return Err(SessionError::Silent { seconds: INIT_TIMEOUT_S }),
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(e) => return Err(SessionError::Device(e)),
                }
            }
        }
    }
}

fn reply(request: &FuseRequest, config: SessionConfig) -> Result<Session, SessionError> {
    let args = request.args().take::<InitIn>().unwrap_or_default();
    let decided = negotiate(&args, config);
    let body = match &decided {
        Ok((_, out)) => Ok(Body::of(out)),
        Err(_) => Err(Errno::EPROTO),
    };
    request.reply(body).send();
    decided.map(|(session, _)| session)
}

const _: () = assert!(MAX_PAGES as u32 * 4096 == MAX_WRITE_BYTES);
const _: () = assert!(InitIn::BYTES <= 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(minor: u32, flags: u64) -> InitIn {
        InitIn { major: 7, minor, max_readahead: 131072, flags: flags as u32, flags2: (flags >> 32) as u32 }
    }

    #[test]
    fn what_is_agreed_is_what_both_know_and_no_more() {
        let all = u64::MAX;
        let (session, out) = negotiate(&kernel(45, all), SessionConfig::default()).unwrap();
        assert_eq!(session.flags, REQUIRED | WANTED | READDIRPLUS | init::OVER_IO_URING);
        assert_eq!(u64::from(out.flags) | u64::from(out.flags2) << 32, session.flags);
        assert_eq!((out.max_write, out.max_pages, session.has_epoch()), (1 << 20, 256, true));
        let listings = REQUIRED | READDIRPLUS;
        let (session, _) = negotiate(&kernel(40, listings), SessionConfig::default()).unwrap();
        assert_eq!((session.flags, session.has_epoch()), (REQUIRED, false));
        // Without INIT_EXT the second word means nothing.
        let (session, _) =
            negotiate(&kernel(40, REQUIRED | init::DIRECT_IO_ALLOW_MMAP), SessionConfig::default()).unwrap();
        assert_eq!(session.flags, REQUIRED);
    }

    #[test]
    fn an_old_kernel_is_refused_in_one_sentence() {
        let error = negotiate(&kernel(34, u64::MAX), SessionConfig::default()).unwrap_err();
        assert!(error.to_string().contains("7.34"), "{error}");
        let error =
            negotiate(&kernel(45, REQUIRED & !init::POSIX_ACL), SessionConfig::default()).unwrap_err();
        assert!(matches!(error, SessionError::Missing { missing } if missing == init::POSIX_ACL));
    }
}
