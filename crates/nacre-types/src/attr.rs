//! Attributes of an inode, in messages and in table rows.

use crate::{Fid, Timestamp, codec_enum, codec_struct};
use alloc::vec::Vec;

/// Bits of `mode`, as in `stat(2)`.
pub mod mode {
    pub const FMT: u32 = 0o170000;
    pub const SOCK: u32 = 0o140000;
    pub const LNK: u32 = 0o120000;
    pub const REG: u32 = 0o100000;
    pub const BLK: u32 = 0o060000;
    pub const DIR: u32 = 0o040000;
    pub const CHR: u32 = 0o020000;
    pub const FIFO: u32 = 0o010000;
    pub const SUID: u32 = 0o4000;
    pub const SGID: u32 = 0o2000;
    pub const VTX: u32 = 0o1000;
    pub const PERM: u32 = 0o7777;
    pub const XGRP: u32 = 0o10;
}

codec_enum! {
    /// Type of an inode; the number is that of `d_type` and of the four upper bits of `st_mode`.
    pub enum FileType: u8 {
        Fifo = 1, CharDevice = 2, Directory = 4, BlockDevice = 6, Regular = 8, Symlink = 10, Socket = 12,
    }
}
impl FileType {
    /// From a full `st_mode`; `None` for type bits that do not exist.
    pub fn of_mode(mode: u32) -> Option<Self> {
        Self::from_number(((mode & mode::FMT) >> 12) as u8)
    }
    pub fn mode_bits(self) -> u32 {
        u32::from(self.number()) << 12
    }
}

codec_enum! {
    /// Whether the size in the inode record is valid.
    pub enum SizeState: u8 {
        /// The record has the size.
        Exact = 0,
        /// A client may be writing: only the OSTs know the size.
        Open = 1,
    }
}

codec_struct! {
    /// The attributes that `stat` returns, and the version of the inode.
    #[derive(Copy)]
    pub struct Attr {
        pub fid: Fid,
        /// Type and permission bits.
        pub mode: u32,
        pub uid: u32,
        pub gid: u32,
        pub projid: u32,
        pub nlink: u32,
        /// Device number of a device node, in the kernel's 32-bit encoding.
        pub rdev: u32,
        /// Bytes. Meaningful for a regular file only while `size_state` is `Exact`.
        pub size: u64,
        /// Space in units of 512 bytes.
        pub blocks: u64,
        pub atime: Timestamp,
        pub mtime: Timestamp,
        pub ctime: Timestamp,
        pub btime: Timestamp,
        pub size_state: SizeState,
        /// Transno of the last change of this inode's own attributes.
        pub version: u64,
    }
}
impl Attr {
    /// Attributes of an empty inode with one name that belongs to root.
    pub fn new(fid: Fid, mode: u32, time: Timestamp) -> Self {
        Self {
            fid,
            mode,
            uid: 0,
            gid: 0,
            projid: 0,
            nlink: 1,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            size_state: SizeState::Exact,
            version: 0,
        }
    }
    pub fn file_type(&self) -> FileType {
        FileType::of_mode(self.mode).unwrap_or(FileType::Regular)
    }
    pub fn is_dir(&self) -> bool {
        self.mode & mode::FMT == mode::DIR
    }
}

codec_struct! {
    /// A partial change of attributes: `None` leaves a field alone. `ctime` is the caller's clock.
    #[derive(Default)]
    pub struct SetAttr {
        pub mode: Option<u32>,
        pub uid: Option<u32>,
        pub gid: Option<u32>,
        pub size: Option<u64>,
        pub atime: Option<Timestamp>,
        pub mtime: Option<Timestamp>,
        pub ctime: Option<Timestamp>,
        /// Take away set-uid, and set-gid if the file is group-executable or the caller is not in its group (a write or
        /// truncate by an ordinary user).
        pub kill_suidgid: bool,
    }
}

codec_struct! {
    /// The process that makes a request, as the FUSE front end knows it.
    pub struct Caller {
        pub uid: u32,
        pub gid: u32,
        pub pid: u32,
        pub umask: u32,
        /// Supplementary groups as far as the front end knows them (FUSE: only the parent's, when it matters).
        pub groups: Vec<u32>,
    }
}
impl Caller {
    pub const fn root() -> Self {
        Self { uid: 0, gid: 0, pid: 0, umask: 0, groups: Vec::new() }
    }
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

codec_struct! {
    /// The account that an object or inode is charged to.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct Owner { pub uid: u32, pub gid: u32, pub projid: u32 }
}
