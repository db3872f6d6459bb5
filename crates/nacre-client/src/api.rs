//! Arguments and results of the calls of a client.

use crate::files::atime::AtimePolicy;
use crate::kept_log::KeptLogConfig;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Attr, Caller, Fid, FileType, FsName, LayoutTemplate, OpenHandle, OstIndex};
use nacre_wire::ost::Write;

/// Configuration of a mount.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// Addresses of the MGS, tried in turn.
    pub mgs_addresses: Vec<String>,
    /// Name of the file system.
    pub fs: FsName,
    /// Name in the servers' logs, for people: host and mount point.
    pub name: String,
    /// Names this mount wherever it is shown: the first half of its uuid. A mount that is recreated after a bug keeps it and is
    /// a new client to the servers. `None`: chosen at random.
    pub instance: Option<u64>,
    /// Changes fail with EROFS.
    pub read_only: bool,
    /// When reads change access times.
    pub atime: AtimePolicy,
    /// Names that a listing requests at a time: [`MountConfig::NAMES_PER_PAGE`], fewer in the simulator.
    pub names_per_page: u32,
    /// Writes to files that no other client has open are kept in memory for a moment (`llite.*.write_back`).
    pub write_back: bool,
    /// The island has a store, to which kept writes are logged (`kept_log`).
    pub kept_log: Option<KeptLogConfig>,
    /// Writes that the former island of this mount, which has ended with a bug, had acknowledged: they are sent first. Until its
    /// lease ends, the MDT lets nobody open the files.
    pub left_writes: Vec<(OstIndex, Write, Vec<Bytes>)>,
}
impl MountConfig {
    /// Limited by the size of a reply, and by the work of one visit on the server.
    pub const NAMES_PER_PAGE: u32 = 1024;
    /// `demo-0011223344556677`: the mount as parameters, metrics, logs and tools name it.
    pub fn mount_name(fs: &FsName, instance: u64) -> String {
        alloc::format!("{fs}-{instance:016x}")
    }
}

/// An inode with its resolved size.
#[derive(Debug, Clone)]
pub struct ResolvedInode {
    /// Attributes.
    pub attr: Attr,
    /// A write by an ordinary user must remove set-id bits or capabilities first.
    pub kill_priv: bool,
}

/// An extended attribute and its new value.
#[derive(Debug, Clone)]
pub struct SetxattrArgs<'a> {
    /// The inode.
    pub fid: Fid,
    /// Name with its prefix, for example `user.`.
    pub name: &'a [u8],
    /// The new value.
    pub value: &'a [u8],
    /// `XATTR_CREATE` and `XATTR_REPLACE` of setxattr(2), or 0.
    pub flags: u32,
    /// An access ACL also removes the set-group-id bit.
    pub kill_sgid: bool,
    /// Identity of the caller.
    pub caller: Caller,
}

/// A new inode.
#[derive(Debug, Clone)]
pub struct CreateArgs<'a> {
    /// Directory of the new name.
    pub parent: Fid,
    /// The new name.
    pub name: &'a [u8],
    /// Type and permission bits before the umask.
    pub mode: u32,
    /// Number of a device.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    /// Layout of a file; `None`: that of the directory.
    pub layout: Option<LayoutTemplate>,
    /// Fails with EEXIST if the name exists.
    pub exclusive: bool,
    /// Identity of the caller.
    pub caller: Caller,
}
impl<'a> CreateArgs<'a> {
    /// A new inode whose name must not exist, without a device number, a target or a layout of its own.
    pub fn new(parent: Fid, name: &'a [u8], mode: u32, caller: Caller) -> Self {
        Self { parent, name, mode, rdev: 0, target: &[], layout: None, exclusive: true, caller }
    }
}

/// One request of the kernel, at most `max_write` bytes: atomic with regard to other mounts.
#[derive(Debug, Clone)]
pub struct WriteArgs {
    /// The open handle.
    pub handle: OpenHandle,
    /// Offset in the file. With `append` the data is written at the end of the file, found under the lock; the offset only
    /// tells whether the request continues the one before.
    pub offset: u64,
    /// Writes at the end of the file.
    pub append: bool,
    /// For an append, the bytes of its whole call from this request on, as far as known: more than in `data` if the kernel has
    /// split the call. The file then stays locked for the next request.
    pub call_bytes: u64,
    /// The bytes.
    pub data: Bytes,
    /// An ordinary user, whose change removes set-id bits and file capabilities.
    pub kill_suidgid: Option<Caller>,
    /// The call returns when the data is durable (O_SYNC, O_DSYNC).
    pub sync: bool,
}

/// What a range of a file gets by fallocate(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Space for later writes; bytes stay as they are. `keep_size`: the file does not grow (FALLOC_FL_KEEP_SIZE).
    Space { keep_size: bool },
    /// Zeros without space (FALLOC_FL_PUNCH_HOLE). The size stays.
    Hole,
    /// Zeros with space (FALLOC_FL_ZERO_RANGE).
    Zeros { keep_size: bool },
}

/// fallocate(2).
#[derive(Debug, Clone)]
pub struct AllocateArgs {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// What becomes of the range.
    pub mode: AllocateMode,
    /// An ordinary user, whose change removes set-id bits and file capabilities.
    pub kill_suidgid: Option<Caller>,
}

/// One entry of a directory listing.
#[derive(Debug, Clone)]
pub struct ListedEntry {
    /// Position of the entry; a listing continues behind it.
    pub cookie: u64,
    /// Name in the directory.
    pub name: Bytes,
    /// The inode.
    pub fid: Fid,
    /// Type of the inode.
    pub file_type: FileType,
    /// Attributes, if they were requested.
    pub entry: Option<ResolvedInode>,
}

/// A page of a directory listing; `.` and `..` included with cookies 1 and 2.
#[derive(Debug, Clone)]
pub struct ReaddirPage {
    /// Entries in the order of their cookies.
    pub entries: Vec<ListedEntry>,
    /// The page ends the directory.
    pub eof: bool,
}

/// Progress of a mount until it can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attach {
    /// The mount waits; the text names the target and the reason, as a part of a sentence.
    Waiting(String),
    /// The mount can be used.
    Ready,
    /// The mount has failed, and waiting cannot help: a sentence for the user.
    Failed(String),
}
impl Attach {
    /// Bound of the reports to one front end.
    pub const NEWS_MAX: usize = 32;
}

/// State of a connection to a target, for people.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Name of the target.
    pub target: String,
    /// Whether requests can be sent now.
    pub connected: bool,
    /// Why the last attempt failed.
    pub error: Option<String>,
}
