//! The kernel's FUSE interface, version 7.45: structures, operation numbers, flags.
//!
//! The specification is the public header `<linux/fuse.h>`; numbers and field order are taken from it. Every structure
//! is read field by field from bytes and written field by field, so no `unsafe` is needed and a short request is an
//! error, not a fault. The kernel uses its native byte order; this crate builds for little-endian machines only. Not
//! here: what a request means (`handlers`), how its bytes arrive (`device.rs`).

use bytes::BufMut;

#[cfg(not(target_endian = "little"))]
compile_error!("the FUSE layer reads the kernel's structures as little-endian");

/// Version that this build speaks.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 45;
/// Oldest minor version that has all requested features (FUSE_SETXATTR_EXT, HANDLE_KILLPRIV_V2, INIT_EXT: Linux 5.17).
pub(crate) const MINOR_MIN: u32 = 36;

/// Bytes that ended too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Short;

/// A number of the interface.
pub trait Field: Sized {
    const BYTES: usize;
    fn take(from: &mut &[u8]) -> Result<Self, Short>;
    /// Into a vector, or into memory that has room for it.
    fn put(&self, out: &mut impl BufMut);
}
macro_rules! number_field {
    ($($t:ty),*) => {$(
        impl Field for $t {
            const BYTES: usize = size_of::<$t>();
            #[inline]
            fn take(from: &mut &[u8]) -> Result<Self, Short> {
                let (head, rest) = from.split_first_chunk().ok_or(Short)?;
                *from = rest;
                Ok(<$t>::from_le_bytes(*head))
            }
            #[inline]
            fn put(&self, out: &mut impl BufMut) {
                out.put_slice(&self.to_le_bytes());
            }
        }
    )*};
}
number_field!(u16, u32, u64, i32, i64);

/// Declares a structure of the interface: its fields in order, and its size as the header has it.
macro_rules! abi {
    ($($(#[$m:meta])* $name:ident = $size:literal { $($f:ident : $t:ty),* $(,)? })*) => {$(
        $(#[$m])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name { $(pub $f: $t),* }
        impl Field for $name {
            const BYTES: usize = 0 $(+ <$t as Field>::BYTES)*;
            fn take(from: &mut &[u8]) -> Result<Self, Short> {
                $(let $f = <$t as Field>::take(from)?;)*
                Ok(Self { $($f),* })
            }
            fn put(&self, out: &mut impl BufMut) {
                $(self.$f.put(out);)*
            }
        }
        const _: () = assert!(<$name as Field>::BYTES == $size);
    )*};
}

abi! {
    /// Head of every request.
    InHeader = 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    /// Head of every reply (`error` is 0 or a negative errno) and notification (`unique` 0, `error` its code).
    OutHeader = 16 { len: u32, error: i32, unique: u64 }
    Attr = 88 {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut = 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: Attr,
    }
    AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    SxTime = 16 { sec: i64, nsec: u32, reserved: i32 }
    StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    /// `fuse_statx_out` up to the spare words, which `SPARE_BYTES` zero bytes follow.
    StatxOut = 176 {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare0: u64, spare1: u64,
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare2: u16, ino: u64,
        size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32,
    }
    GetattrIn = 16 { flags: u32, dummy: u32, fh: u64 }
    SetattrIn = 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn = 8 { mode: u32, umask: u32 }
    RenameIn = 8 { newdir: u64 }
    Rename2In = 16 { newdir: u64, flags: u32, padding: u32 }
    LinkIn = 8 { oldnodeid: u64 }
    OpenIn = 8 { flags: u32, open_flags: u32 }
    CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn = 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn = 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteOut = 8 { size: u32, padding: u32 }
    Kstatfs = 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare0: u64, spare1: u64, spare2: u64,
    }
    FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32 }
    /// With FUSE_SETXATTR_EXT.
    SetxattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn = 8 { size: u32, padding: u32 }
    GetxattrOut = 8 { size: u32, padding: u32 }
    FileLock = 24 { start: u64, end: u64, kind: u32, pid: u32 }
    LkIn = 48 { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32 }
    InterruptIn = 8 { unique: u64 }
    FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut = 8 { offset: u64 }
    /// `fuse_init_in` without its unused tail.
    InitIn = 20 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32 }
    InitOut = 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused0: u16, unused1: u32, unused2: u64, unused3: u64,
    }
    Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
    ExtHeader = 8 { size: u32, kind: u32 }
    NotifyInvalInode = 24 { ino: u64, off: i64, len: i64 }
    NotifyInvalEntry = 16 { parent: u64, namelen: u32, flags: u32 }
    NotifyDelete = 24 { parent: u64, child: u64, namelen: u32, padding: u32 }
    NotifyRetrieve = 32 { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32 }
    /// `fuse_uring_ent_in_out`: the ring's part of a slot's header.
    UringEntry = 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    /// `fuse_uring_cmd_req`: the argument of a command to the ring.
    UringCommand = 24 { flags: u64, commit_id: u64, qid: u16, padding0: u16, padding1: u32 }
}

impl OutHeader {
    /// Writes the header into the room in front of a message.
    pub(crate) fn put_in_front(&self, message: &mut [u8]) {
        if let Some(room) = message.first_chunk_mut::<16>() {
            let (len, error) = (self.len.to_le_bytes(), self.error.to_le_bytes());
            let [[l0, l1, l2, l3], [e0, e1, e2, e3]] = [len, error];
            let [u0, u1, u2, u3, u4, u5, u6, u7] = self.unique.to_le_bytes();
            *room = [l0, l1, l2, l3, e0, e1, e2, e3, u0, u1, u2, u3, u4, u5, u6, u7];
        }
    }
}
impl StatxOut {
    pub(crate) const SPARE_BYTES: usize = 288 - 176;
}

/// Operation numbers.
pub mod op {
    macro_rules! operations {
        ($($name:ident = $number:literal,)*) => {
            $(
                #[doc = concat!("FUSE_", stringify!($name), " of the header.")]
                pub const $name: u32 = $number;
            )*
            /// Names as in the header, for logs.
            pub fn name(opcode: u32) -> &'static str {
                match opcode {
                    $($number => stringify!($name),)*
                    _ => "unknown",
                }
            }
        };
    }
    operations! {
        LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8, MKDIR = 9,
        UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16, STATFS = 17,
        RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23, REMOVEXATTR = 24,
        FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29, FSYNCDIR = 30, GETLK = 31,
        SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36, BMAP = 37, DESTROY = 38,
        IOCTL = 39, POLL = 40, NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43, READDIRPLUS = 44,
        RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SETUPMAPPING = 48, REMOVEMAPPING = 49, SYNCFS = 50,
        TMPFILE = 51, STATX = 52, COPY_FILE_RANGE_64 = 53,
    }
    /// One more than the highest.
    pub const COUNT: usize = 54;

    /// Whether the operation may change names in a directory.
    pub(crate) fn changes_names(opcode: u32) -> bool {
        matches!(opcode, CREATE | MKNOD | MKDIR | SYMLINK | LINK | UNLINK | RMDIR | RENAME | RENAME2)
    }
    /// Whether the operation asks for something that an inode has, without its data.
    pub(crate) fn only_asks(opcode: u32) -> bool {
        matches!(opcode, GETATTR | STATX | GETXATTR | LISTXATTR | READLINK | STATFS)
    }
}

/// Codes of notifications.
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const RETRIEVE: i32 = 5;
    pub(crate) const DELETE: i32 = 6;
    pub(crate) const INC_EPOCH: i32 = 8;
    /// Flag of INVAL_ENTRY: the name is asked for again, and nothing below it is detached (7.38).
    pub(crate) const EXPIRE_ONLY: u32 = 1;
}

/// Flags of INIT; those from bit 32 on are in `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1;
    pub(crate) const POSIX_LOCKS: u64 = 1 << 1;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub(crate) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// Commands to the ring.
pub(crate) mod uring {
    pub(crate) const REGISTER: u32 = 1;
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
}

/// Flags of the OPEN reply.
pub mod fopen {
    /// Every read and write is a request.
    pub const DIRECT_IO: u32 = 1;
    /// Keep cached pages from before the open.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The names of a listing are kept, and served from there.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// The kernel need not order direct writes of one inode.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of `GetattrIn::flags`.
pub mod getattr {
    /// For a call that uses the size of an open file: the caller does not get the attributes.
    pub const FH: u32 = 1;
}

/// Bits of `ReadIn::read_flags`.
pub mod read {
    /// The caller is a read(2): the bytes go to it, not into pages.
    pub const LOCKOWNER: u32 = 1 << 1;
}

/// Bits of `SetattrIn::valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const FH: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

pub(crate) const WRITE_CACHE: u32 = 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const LK_FLOCK: u32 = 1;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// Type of the extension with supplementary groups.
pub(crate) const EXT_GROUPS: u32 = 32;

/// Flags of open(2) on Linux, the same on all supported machines.
pub(crate) mod o {
    pub(crate) const EXCL: u32 = 0o200;
    pub(crate) const TRUNC: u32 = 0o1000;
    pub(crate) const APPEND: u32 = 0o2000;
    /// Also set in O_SYNC.
    pub(crate) const DSYNC: u32 = 0o10000;
}

/// Bits of statx(2).
pub(crate) mod statx {
    pub(crate) const BASIC_STATS: u32 = 0x7ff;
    pub(crate) const BTIME: u32 = 0x800;
}

/// Bytes between records of a directory listing.
pub(crate) const fn align8(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_come_back_and_short_bytes_are_refused() {
        let lk = LkIn {
            fh: 1,
            owner: 2,
            lk: FileLock { start: 3, end: u64::MAX, kind: 1, pid: 9 },
            ..LkIn::default()
        };
        let mut bytes = Vec::new();
        lk.put(&mut bytes);
        assert_eq!(bytes.len(), LkIn::BYTES);
        assert_eq!(LkIn::take(&mut &bytes[..]), Ok(lk));
        for n in 0..bytes.len() {
            assert_eq!(LkIn::take(&mut &bytes[..n]), Err(Short), "{n} bytes");
        }
    }

    #[test]
    fn operation_names_stand_at_their_numbers() {
        assert_eq!((op::name(op::COPY_FILE_RANGE_64), op::name(op::FSYNC)), ("COPY_FILE_RANGE_64", "FSYNC"));
        assert_eq!(
            (op::name(op::CREATE), op::name(op::STATX), op::name(4096)),
            ("CREATE", "STATX", "unknown")
        );
    }
}
