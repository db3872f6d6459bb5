//! Attributes of an inode, in messages and in table rows.

use crate::codec::FixedWriter;
use crate::{Codec, DecodeError, Fid, Reader, Timestamp, Writer, codec_enum, codec_struct};
use alloc::vec::Vec;

/// Bits of `mode`, as in `stat(2)`.
pub mod mode {
    /// Mask of the type bits.
    pub const FMT: u32 = 0o170000;
    /// Type: socket.
    pub const SOCK: u32 = 0o140000;
    /// Type: symbolic link.
    pub const LNK: u32 = 0o120000;
    /// Type: regular file.
    pub const REG: u32 = 0o100000;
    /// Type: block device.
    pub const BLK: u32 = 0o060000;
    /// Type: directory.
    pub const DIR: u32 = 0o040000;
    /// Type: character device.
    pub const CHR: u32 = 0o020000;
    /// Type: FIFO.
    pub const FIFO: u32 = 0o010000;
    /// Set-user-ID.
    pub const SUID: u32 = 0o4000;
    /// Set-group-ID; on a directory, new entries inherit its group.
    pub const SGID: u32 = 0o2000;
    /// The sticky bit; in such a directory only owners may remove a name.
    pub const VTX: u32 = 0o1000;
    /// Mask of everything but the type.
    pub const PERM: u32 = 0o7777;
    /// Execute permission of the group; with it, set-group-ID is cleared by a write.
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
    /// The type bits of `st_mode`.
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

/// The attributes that `stat` returns, and the version of the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Of the inode; gives the inode number ([`Fid::ino`]).
    pub fid: Fid,
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Project, for quota; 0: none.
    pub projid: u32,
    /// Number of names; of a directory, 2 and one for each subdirectory.
    pub nlink: u32,
    /// Device number of a device node, in the kernel's 32-bit encoding.
    pub rdev: u32,
    /// Bytes. Meaningful for a regular file only while `size_state` is `Exact`.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Latest access that the MDT has recorded.
    pub atime: Timestamp,
    /// Latest change of the bytes, or of the names in a directory.
    pub mtime: Timestamp,
    /// Latest change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Whether `size` and `blocks` of a regular file can be used.
    pub size_state: SizeState,
    /// Transno of the last change of this inode's own attributes.
    pub version: u64,
}
/// The fields in their order. They have a fixed length together, so they are written and read at once: an inode is encoded for
/// its row and for each reply.
impl<'a> Codec<'a> for Attr {
    fn encode(&self, w: &mut Writer) {
        let mut fields = FixedWriter::<{ Self::BYTES }>::new();
        fields.add(self.fid.seq.0.to_le_bytes());
        fields.add(self.fid.oid.0.to_le_bytes());
        for field in [self.mode, self.uid, self.gid, self.projid, self.nlink, self.rdev] {
            fields.add(field.to_le_bytes());
        }
        fields.add(self.size.to_le_bytes());
        fields.add(self.blocks.to_le_bytes());
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            fields.add(time.sec.to_le_bytes());
            fields.add(time.nsec.to_le_bytes());
        }
        fields.add([self.size_state.number()]);
        fields.add(self.version.to_le_bytes());
        fields.append_to(w);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let r = &mut Reader::new(r.raw(Self::BYTES)?);
        Ok(Self {
            fid: Codec::decode(r)?,
            mode: Codec::decode(r)?,
            uid: Codec::decode(r)?,
            gid: Codec::decode(r)?,
            projid: Codec::decode(r)?,
            nlink: Codec::decode(r)?,
            rdev: Codec::decode(r)?,
            size: Codec::decode(r)?,
            blocks: Codec::decode(r)?,
            atime: Codec::decode(r)?,
            mtime: Codec::decode(r)?,
            ctime: Codec::decode(r)?,
            btime: Codec::decode(r)?,
            size_state: Codec::decode(r)?,
            version: Codec::decode(r)?,
        })
    }
}
impl Attr {
    /// Encoded length.
    const BYTES: usize = 12 + 6 * 4 + 2 * 8 + 4 * 12 + 1 + 8;

    /// Space of so many bytes without holes, in the unit of `blocks`; it is allocated in blocks of 4096 bytes.
    pub const fn blocks_of(bytes: u64) -> u64 {
        bytes.div_ceil(4096) * (4096 / 512)
    }
    /// The same of the blocks that so many bytes fill.
    pub const fn whole_blocks_of(bytes: u64) -> u64 {
        bytes / 4096 * (4096 / 512)
    }

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
    /// Type bits that do not exist count as a regular file.
    pub fn file_type(&self) -> FileType {
        FileType::of_mode(self.mode).unwrap_or(FileType::Regular)
    }
    /// Whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & mode::FMT == mode::DIR
    }
}

codec_struct! {
    /// A partial change of attributes: `None` leaves a field alone. `ctime` is the caller's clock.
    #[derive(Default)]
    pub struct SetAttr {
        /// Permission bits; type bits are ignored.
        pub mode: Option<u32>,
        /// New owner.
        pub uid: Option<u32>,
        /// New group.
        pub gid: Option<u32>,
        /// Truncates or extends a regular file to so many bytes.
        pub size: Option<u64>,
        /// New access time.
        pub atime: Option<Timestamp>,
        /// New modification time, from utimensat(2) or a truncate.
        pub mtime: Option<Timestamp>,
        /// New change time, see above.
        pub ctime: Option<Timestamp>,
        /// Take away set-uid, and set-gid if the file is group-executable or the caller is not in its group (a write or
        /// truncate by an ordinary user).
        pub kill_suidgid: bool,
    }
}

codec_struct! {
    /// The process that makes a request, as the FUSE front end knows it.
    pub struct Caller {
        /// Effective user, as the file system sees it (fsuid).
        pub uid: u32,
        /// Effective group, likewise.
        pub gid: u32,
        /// Process, in the PID namespace of the mount; 0 if the kernel knows none.
        pub pid: u32,
        /// Permission bits that a create removes, unless the directory has a default ACL.
        pub umask: u32,
        /// Supplementary groups as far as the front end knows them (FUSE: only the parent's, when it matters).
        pub groups: Vec<u32>,
    }
}
impl Caller {
    /// Root without supplementary groups: passes every check.
    pub const fn root() -> Self {
        Self { uid: 0, gid: 0, pid: 0, umask: 0, groups: Vec::new() }
    }
    /// Whether the caller is in the group, by its own or a supplementary one.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

codec_struct! {
    /// The account that an object or inode is charged to.
    #[derive(Copy, Default, PartialOrd, Ord)]
    pub struct Owner { pub uid: u32, pub gid: u32, pub projid: u32 }
}
