//! Tests of the features of the underlying file system: each is tried, not assumed from the name of the file system.

use crate::dirs::Dirs;
use crate::raw::{read_cached, write_zeros};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Features {
    /// Name of the file system by its magic number, for people.
    pub file_system: String,
    /// Blocks can be shared by copies of a file.
    pub reflink: bool,
    /// Holes can be made.
    pub punch: bool,
    /// Blocks can be set aside.
    pub allocate: bool,
    /// Reads can be tried in the page cache.
    pub cached_read: bool,
    /// syncfs(2) makes everything durable; some file systems do nothing.
    pub sync_all: bool,
    /// There is no disk to wait for.
    pub in_memory: bool,
}

const A: &str = "probe.a";
const B: &str = "probe.b";

/// Tries it with two small files, which are removed again. A full device is no reason not to open a store: what cannot
/// be tried for want of room is not used, or found out at its first use.
pub(crate) fn probe(dirs: &Dirs) -> Result<Features, Errno> {
    let root = dirs.root();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::RUSR | Mode::WUSR;
    let result = (|| {
        let file_system = name_of(rustix::fs::fstatfs(root)?.f_type);
        let in_memory = file_system == "tmpfs";
        let sync_all = matches!(&*file_system, "ext4" | "xfs" | "btrfs");
        let made = rustix::fs::openat(root, A, flags, mode)
            .and_then(|a| Ok((a, rustix::fs::openat(root, B, flags, mode)?)));
        let (a, b) = match made {
            Err(e) if is_full(e) => {
                return Ok(Features {
                    file_system,
                    sync_all,
                    in_memory,
                    cached_read: in_memory,
                    ..Features::default()
                });
            }
            made => made?,
        };
        match write_zeros(rustix::fd::AsFd::as_fd(&a), 0, 8192) {
            Err(e) if is_full(e) => {}
            written => written?,
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let mut byte = [0];
        Ok(Features {
            file_system,
            sync_all,
            in_memory,
            reflink: rustix::fs::ioctl_ficlone(&b, &a).is_ok(),
            punch: rustix::fs::fallocate(&a, hole, 0, 4096).is_ok(),
            allocate: match rustix::fs::fallocate(&a, FallocateFlags::KEEP_SIZE, 0, 4096) {
                Ok(()) => true,
                Err(e) => is_full(e),
            },
            cached_read: in_memory
                || !matches!(
                    read_cached(rustix::fd::AsFd::as_fd(&a), 0, &mut byte),
                    Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)
                ),
        })
    })();
    for name in [A, B] {
        match rustix::fs::unlinkat(root, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => tracing::warn!(name, %error, "probe file stays behind"),
        }
    }
    result
}

fn is_full(e: Errno) -> bool {
    matches!(e, Errno::NOSPC | Errno::DQUOT)
}

fn name_of(magic: rustix::fs::FsWord) -> String {
    match magic as u64 & 0xffff_ffff {
        0xef53 => "ext4".into(),
        0x5846_5342 => "xfs".into(),
        0x9123_683e => "btrfs".into(),
        0x2fc1_2fc1 => "zfs".into(),
        0x0102_1994 => "tmpfs".into(),
        0x794c_7630 => "overlayfs".into(),
        other => format!("file system {other:#x}"),
    }
}
