//! Messages of the metadata target.
//!
//! Times come from the client's clock, corrected by the server's time at connect. FIDs of new inodes come from the
//! client's sequence. A reply that returns attributes of a regular file whose size is `Open` carries the layout, so
//! that the client can ask the OSTs.

use crate::opcode::rpc;
use crate::status::Status;
use crate::target::Empty;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{
    Attr, Caller, Codec, DecodeError, Fid, FileType, InodeBits, InodeMode, Layout, LayoutTemplate,
    LockCookie, Name, OpenHandle, OstIndex, Reader, Seq, SetAttr, Timestamp, Transno, Writer, Xid,
    codec_enum, codec_struct,
};

codec_struct! {
    /// Grants a FID sequence, durable when the reply is sent.
    pub struct GrantSeq {}
}
codec_struct! {
    /// A new sequence: each of its object ids may be used for one create.
    pub struct GrantSeqReply { pub seq: Seq }
}

codec_struct! {
    /// Looks up a name in a directory.
    pub struct Lookup<'a> { pub parent: Fid, pub name: Name<'a> }
}
codec_struct! {
    /// The inode of a name.
    pub struct LookupReply {
        /// `None`: the directory has no such name.
        pub entry: Option<EntryReply>,
    }
}
codec_struct! {
    /// Attributes and layout of an inode; ESTALE: no such inode.
    pub struct Getattr { pub fid: Fid }
}
codec_struct! {
    /// Waits until no other client has bytes of a regular file that the OSTs do not have; replies with the inode, like
    /// [`Getattr`]. It may wait for long, so that it has the class of a callback: other reads do not wait behind it.
    pub struct Settle { pub fid: Fid }
}
/// State of one inode: the reply to lookups, getattr and most changes. `L`: the layout as its owner has it, which may be
/// encoded already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryReplyWith<L> {
    /// Attributes after the request. The size is that of the MDT's record, see [`Attr::size_state`].
    pub attr: Attr,
    /// Regular files: always.
    pub layout: L,
    /// The inode has set-id bits or file capabilities that a write by an ordinary user must remove.
    pub kill_priv: bool,
    /// The inode has extended attributes; access control lists count.
    pub has_xattrs: bool,
    /// When the modification time was last set explicitly (utimensat; `Setattr::time` of that request). Writes up
    /// to this time do not change mtime: neither an object's nor `Written::mtime`.
    pub mtime_set_at: Timestamp,
    /// For a size that is `Open`: only this client can have changed the file since the size was `Exact`, so `attr`
    /// lacks only this client's own writes.
    pub yours: bool,
    /// For a size that is `Open` and not `yours`: another client may have written bytes that the OSTs do not have yet. The
    /// client asks with [`Settle`] before it asks the OSTs.
    pub buffered: bool,
}
/// See [`EntryReplyWith`].
pub type EntryReply = EntryReplyWith<Option<Layout>>;

impl<L> EntryReplyWith<L> {
    /// The same state, with the layout in another form.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn map_layout<M, E>(self, change: impl FnOnce(L) -> Result<M, E>) -> Result<EntryReplyWith<M>, E> {
        let Self { attr, layout, kill_priv, has_xattrs, mtime_set_at, yours, buffered } = self;
        let layout = change(layout)?;
        Ok(EntryReplyWith { attr, layout, kill_priv, has_xattrs, mtime_set_at, yours, buffered })
    }
}

impl<'a, L: Codec<'a>> Codec<'a> for EntryReplyWith<L> {
    fn encode(&self, w: &mut Writer) {
        self.attr.encode(w);
        self.layout.encode(w);
        (self.kill_priv, self.has_xattrs).encode(w);
        self.mtime_set_at.encode(w);
        (self.yours, self.buffered).encode(w);
    }
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (attr, layout) = Codec::decode(r)?;
        let (kill_priv, has_xattrs) = Codec::decode(r)?;
        let mtime_set_at = Codec::decode(r)?;
        let (yours, buffered) = Codec::decode(r)?;
        Ok(Self { attr, layout, kill_priv, has_xattrs, mtime_set_at, yours, buffered })
    }
}

codec_struct! {
    /// Bits of a lock of an inode that the client has from now on, in addition to those that it has.
    #[derive(Copy)]
    pub struct InodeGrant {
        /// The inode.
        pub fid: Fid,
        /// The mode of these bits.
        pub mode: InodeMode,
        /// The parts of the inode that they cover.
        pub bits: InodeBits,
        /// Its place among the grants and revokes of this client. A grant whose bits were revoked with a greater number is
        /// not taken.
        pub number: u64,
    }
}
codec_struct! {
    /// Follows the body of a reply with `flags::LOCKS`.
    #[derive(Default)]
    pub struct LockTail {
        /// Changes up to this are in the reply.
        pub seen: Transno,
        /// Granted locks. A listing has those of its entries with the entries.
        pub granted: Vec<InodeGrant>,
        /// Inodes of which the client has locks and that this request has changed, as they are after the change.
        pub changed: Vec<EntryReply>,
        /// Inodes of which the client had locks and that this request has removed.
        pub removed: Vec<Fid>,
        /// Those of the inodes in the reply, `changed` included, whose `EntryReply::yours` is true now. The replies to
        /// changes do not show it in the entry itself.
        pub yours: Vec<Fid>,
    }
}
/// Maximum number of locks in a callback, or in a request that returns locks.
pub const INODE_LOCKS_MAX: usize = 64;
codec_struct! {
    /// Bits that others want.
    #[derive(Copy)]
    pub struct InodeRevoke {
        /// The inode.
        pub fid: Fid,
        /// The bits.
        pub bits: InodeBits,
        /// The mode in which they are wanted: for PR the client may keep them in PR.
        pub wanted: InodeMode,
        /// Names the revoke in its acknowledgement; its place among the grants and revokes of this client.
        pub number: u64,
    }
}
codec_struct! {
    /// Callback: others wait for these bits of locks. The client stops using them, has its kernel forget what rests on
    /// them, and acknowledges with `CancelInodeLocks`.
    pub struct RevokeInodeLocks {
        /// At most [`INODE_LOCKS_MAX`].
        pub revokes: Vec<InodeRevoke>,
    }
}
codec_struct! {
    /// Acknowledges a revoke.
    #[derive(Copy)]
    pub struct RevokeAck {
        /// That of the revoke.
        pub number: u64,
        /// The client keeps the bits in PR, which others want too; otherwise it has dropped them.
        pub converted: bool,
    }
}
codec_struct! {
    /// Bits that the client does not need any more.
    #[derive(Copy)]
    pub struct InodeCancel {
        /// The inode.
        pub fid: Fid,
        /// The bits.
        pub bits: InodeBits,
        /// The number of the latest grant on the inode that the client has taken: if there is a later one, the cancel is
        /// outdated and has no effect.
        pub number: u64,
    }
}
codec_struct! {
    /// Returns bits of locks: revoked ones, and others.
    pub struct CancelInodeLocks {
        /// The start of the MDT that has granted the locks (`ConnectReply::instance`). Another one ignores the message: its
        /// numbers begin anew.
        pub instance: u64,
        /// At most [`INODE_LOCKS_MAX`].
        pub acks: Vec<RevokeAck>,
        /// At most [`INODE_LOCKS_MAX`].
        pub cancels: Vec<InodeCancel>,
        /// Numbers of revokes for which the client is still writing bytes to the OSTs: their deadlines are extended. At most
        /// [`INODE_LOCKS_MAX`].
        pub flushing: Vec<u64>,
    }
}
/// Maximum number of opens in a report.
pub const REPORTED_OPENS_MAX: usize = 64;
codec_struct! {
    /// An open for reading that the client has made under the OPEN bit of its lock.
    #[derive(Copy)]
    pub struct ReportedOpen {
        /// The inode.
        pub fid: Fid,
        /// The handle, and the flags: for reading.
        pub how: OpenHow,
    }
}
codec_struct! {
    /// Tells the MDT of opens, before their OPEN bits are returned. Durable when it is acknowledged, so that it needs
    /// no replay.
    pub struct ReportOpens {
        /// At most [`REPORTED_OPENS_MAX`].
        pub opens: Vec<ReportedOpen>,
    }
}
codec_struct! {
    /// The reply to [`ReportOpens`].
    pub struct ReportOpensReply {
        /// One for each open, in order.
        pub results: Vec<Status>,
    }
}
codec_struct! {
    /// After the MDT has restarted: neither this client nor its kernel relies on a lock of an earlier start any more.
    pub struct FormerLocksEnded {
        /// This start of the MDT. Another one ignores the message.
        pub instance: u64,
    }
}
codec_struct! {
    /// A change was refused with `LocksAwaited`: the reply comes when the locks that it waits for have been returned.
    pub struct AwaitInodeLocks {
        /// Number of the request with the change.
        pub change: Xid,
    }
}
codec_struct! {
    /// Callback: the file system was in memory and ends with its server. There is nothing to wait for.
    pub struct Ended {}
}

codec_struct! {
    /// Entries after `cookie` in hash order; `.` and `..` are added by the client.
    pub struct Readdir { pub dir: Fid, pub cookie: u64, pub entries_max: u32, pub with_attrs: bool }
}
codec_struct! {
    /// One name of a listing.
    pub struct DirEntry {
        /// Place of the name in hash order. A listing that continues after it begins with the next name.
        pub cookie: u64,
        /// Neither `.` nor `..`; the client adds them.
        pub name: Bytes,
        /// The inode of the name.
        pub fid: Fid,
        /// As in the entry itself: known without the inode.
        pub file_type: FileType,
        /// With [`Readdir::with_attrs`]: the state of the inode. If `None`, the client requests it when it needs it.
        pub entry: Option<EntryReply>,
        /// A lock of this inode; the reply has a `LockTail` then.
        pub granted: Option<InodeGrant>,
    }
}
codec_struct! {
    /// A page of a listing; `eof`: no entry follows the last one.
    pub struct ReaddirReply { pub entries: Vec<DirEntry>, pub eof: bool }
}

codec_struct! {
    /// The handle and flags of an open.
    #[derive(Copy)]
    pub struct OpenHow {
        /// Chosen by the client, unique among its opens at this MDT.
        pub handle: OpenHandle,
        /// See [`open_flags`].
        pub flags: u32,
    }
}
codec_struct! {
    /// Makes an inode of any type, and opens it when `open` is given.
    pub struct Create<'a> {
        /// The directory.
        pub parent: Fid,
        /// Of the new entry. `None`: the regular file gets no name now and must be opened (O_TMPFILE); [`Link`] may give it one.
        pub name: Option<Name<'a>>,
        /// Of the new inode, from a sequence of the client; not used if the name exists.
        pub fid: Fid,
        /// Type and permission bits before the umask.
        pub mode: u32,
        /// Device number of a device node, in the kernel's 32-bit encoding; else 0.
        pub rdev: u32,
        /// Target of a symbolic link.
        pub target: &'a [u8],
        /// Of a regular file; `None`: that of the directory, or else the file system's default.
        pub layout: Option<LayoutTemplate>,
        /// Opens the file in the same transaction.
        pub open: Option<OpenHow>,
        /// An existing name is an error; otherwise an existing regular file is opened.
        pub exclusive: bool,
        /// Becomes the owner, and is checked for permission to write in the directory.
        pub caller: Caller,
        /// The client's clock: all times of the inode, mtime and ctime of the directory.
        pub time: Timestamp,
    }
}
codec_struct! {
    /// Reply to [`Create`].
    pub struct CreateReply {
        /// The inode that the name has now.
        pub entry: EntryReply,
        /// False: the name existed, `entry` is its inode, and the proposed FID is unused.
        pub created: bool,
    }
}
codec_struct! {
    /// Opens an inode by its FID.
    pub struct Open { pub fid: Fid, pub how: OpenHow, pub caller: Caller }
}
codec_struct! {
    /// A writer's knowledge of the file at close.
    #[derive(Copy)]
    pub struct Written {
        /// File size as far as this writer knows (maximum over its stripes).
        pub size: u64,
        /// Units of 512 bytes, over all stripes.
        pub blocks: u64,
        /// The latest write of this client.
        pub mtime: Timestamp,
    }
}
/// The handle of a [`Close`] that ends no open, because the MDT has no record of one: it only reports the access time.
pub const NOT_REPORTED: OpenHandle = OpenHandle(u64::MAX);
codec_struct! {
    /// Ends an open. A writer whose client has changed the file brings the size, and only when all its data has
    /// reached the OSTs and it knows the state of every object.
    pub struct Close {
        /// The file or directory that was opened.
        pub fid: Fid,
        /// That of the open; [`NOT_REPORTED`] if the MDT has no record of it.
        pub handle: OpenHandle,
        /// The client has tried to write or truncate the file since its first open for write: without `written` only
        /// the OSTs know the size.
        pub dirty: bool,
        /// Size and times, if this client knows the state of every object; needed only with `dirty`.
        pub written: Option<Written>,
        /// The client has read the file, or listed the directory, and its access time is at least this.
        pub atime: Option<Timestamp>,
        /// With `written`: all bytes of the file, for the MDT, as in [`StoreData`].
        pub data: Option<Bytes>,
    }
}
codec_struct! {
    /// Adds a name to an inode that is not a directory.
    pub struct Link<'a> {
        /// The inode.
        pub fid: Fid,
        /// Directory of the new name.
        pub parent: Fid,
        /// The new name; EEXIST if it exists.
        pub name: Name<'a>,
        /// Checked for permission to write in the directory.
        pub caller: Caller,
        /// The client's clock: ctime of the inode, mtime and ctime of the directory.
        pub time: Timestamp,
    }
}
codec_struct! {
    /// Removes a name; the inode too if it was the last one and nobody has it open.
    pub struct Unlink<'a> {
        /// The directory.
        pub parent: Fid,
        /// The name to remove.
        pub name: Name<'a>,
        /// rmdir(2).
        pub directory: bool,
        /// Checked for permission, the sticky bit included.
        pub caller: Caller,
        /// The client's clock: ctime of the inode, mtime and ctime of the directory.
        pub time: Timestamp,
        /// The inode to which the name leads as far as the client knows, zero if it does not know: its opens of this inode
        /// are reported, and until the reply it makes none without a request.
        pub reported: Fid,
    }
}
/// Bits of open(2) that a target interprets.
pub mod open_flags {
    /// Not 0: for writing.
    pub const ACCMODE: u32 = 0o3;
    /// Applies once, at the open; not stored with it.
    pub const TRUNC: u32 = 0o1000;
    /// Each write of the handle goes to the end of the file.
    pub const APPEND: u32 = 0o2000;
    /// Applies once, at the open; not stored with it: the client asks for `InodeBits::WRITE_BACK`.
    pub const WRITE_BACK: u32 = 0o2_0000_0000;
    /// For clients: reads through this open leave the access time as it is.
    pub const NOATIME: u32 = 0o1_000_000;
}
/// Flags of [`Rename`], as in renameat2(2).
pub mod rename_flags {
    /// Fails with EEXIST if the new name exists.
    pub const NOREPLACE: u32 = 1;
    /// Swaps the two names, which must both exist.
    pub const EXCHANGE: u32 = 2;
    /// RENAME_WHITEOUT of renameat2(2). Not in messages, which have [`Rename::whiteout`](super::Rename::whiteout) for it.
    pub const WHITEOUT: u32 = 4;
}
codec_struct! {
    /// Moves a name within or between directories, in one transaction.
    pub struct Rename<'a> {
        /// Directory of the old name.
        pub parent: Fid,
        /// The old name.
        pub name: Name<'a>,
        /// Directory of the new name.
        pub new_parent: Fid,
        /// The new name; an inode that has it is replaced, unless `flags` say otherwise.
        pub new_name: Name<'a>,
        /// Bits of [`rename_flags`].
        pub flags: u32,
        /// Checked for permission in both directories, the sticky bit included.
        pub caller: Caller,
        /// The client's clock: ctime of the inodes, mtime and ctime of the directories.
        pub time: Timestamp,
        /// As in [`Unlink`], of the inode that is replaced.
        pub reported: Fid,
        /// A FID of the client, as in [`Create::fid`], for an inode that takes the old name: a character device 0/0, by
        /// which overlayfs marks a removed name (RENAME_WHITEOUT). Not with `EXCHANGE`.
        pub whiteout: Option<Fid>,
    }
}
codec_struct! {
    /// Changes attributes. With `set.size` of a regular file: the size becomes `Open`, the client truncates the objects
    /// and then sends `ReportSize` with `truncate`. A file whose bytes the MDT keeps is truncated by the request itself, which
    /// fails with `ProtocolOutcome::MoveDataFirst` if the size is greater than `Layout::dom_bytes`.
    pub struct Setattr { pub fid: Fid, pub set: SetAttr, pub caller: Caller, pub time: Timestamp }
}
codec_struct! {
    /// Size and times that a client has determined or set.
    pub struct ReportSize {
        /// A regular file.
        pub fid: Fid,
        /// Size, space and mtime over all stripes.
        pub written: Written,
        /// After a truncate: the size is valid even if it is smaller.
        pub truncate: bool,
    }
}
codec_struct! {
    /// Reads the bytes of a file that its MDT keeps (`Layout::dom_bytes`), all of them.
    pub struct ReadData { pub fid: Fid }
}
codec_struct! {
    /// The bytes of a file.
    pub struct ReadDataReply {
        /// As many as the file has. `None`: they are in objects now.
        pub data: Option<Bytes>,
        /// The file's time of modification.
        pub mtime: Timestamp,
    }
}
codec_struct! {
    /// Stores all bytes of a file at its MDT, instead of those that it has, and sets the size to their number. Only a client
    /// that may keep bytes of the file (`InodeBits::WRITE_BACK`) knows all of them. Fails with `ProtocolOutcome::InObjects` if
    /// the bytes of the file are in objects.
    pub struct StoreData<'a> {
        /// A regular file.
        pub fid: Fid,
        /// An open for writing of the sender.
        pub handle: OpenHandle,
        /// At most `Layout::dom_bytes`.
        pub data: &'a [u8],
        /// The latest write.
        pub mtime: Timestamp,
    }
}
codec_struct! {
    /// Moves the bytes of a file from its MDT to its objects: from the reply on they are there. For a file whose bytes are in
    /// objects this changes nothing.
    pub struct MoveData { pub fid: Fid }
}
codec_struct! {
    /// Reads the target of a symbolic link.
    pub struct Readlink { pub fid: Fid }
}
codec_struct! {
    /// The target as it was stored, without a NUL.
    pub struct ReadlinkReply { pub target: Bytes }
}
codec_struct! {
    /// Reads an extended attribute; ENODATA if the inode has none of this name.
    pub struct Getxattr<'a> { pub fid: Fid, pub name: &'a [u8] }
}
codec_struct! {
    /// The whole value; the kernel compares it with the size of the caller's buffer.
    pub struct XattrReply { pub value: Bytes }
}
codec_struct! {
    /// Sets an extended attribute, POSIX ACLs (`system.posix_acl_*`) included.
    pub struct Setxattr<'a> {
        /// Any inode.
        pub fid: Fid,
        /// With its namespace (`user.`), at most [`nacre_types::name::XATTR_NAME_MAX`] bytes.
        pub name: &'a [u8],
        /// At most [`nacre_types::name::XATTR_VALUE_MAX`] bytes.
        pub value: &'a [u8],
        /// XATTR_CREATE 1, XATTR_REPLACE 2.
        pub flags: u32,
        /// The caller may not keep set-gid (FUSE_SETXATTR_ACL_KILL_SGID).
        pub kill_sgid: bool,
        /// Checked for permission as in setxattr(2).
        pub caller: Caller,
        /// The client's clock: ctime of the inode.
        pub time: Timestamp,
    }
}
codec_struct! {
    /// Lists the names of the extended attributes of an inode.
    pub struct Listxattr { pub fid: Fid }
}
codec_struct! {
    /// Names with their namespaces, without NULs.
    pub struct ListxattrReply { pub names: Vec<Bytes> }
}
codec_struct! {
    /// Removes an extended attribute; ENODATA if the inode has none of this name.
    pub struct Removexattr<'a> { pub fid: Fid, pub name: &'a [u8], pub time: Timestamp }
}

codec_enum! {
    /// Family of a file lock; flock(2) and fcntl(2) locks do not see each other.
    pub enum FlockFamily: u8 { Flock = 1, Posix = 2 }
}
codec_enum! {
    /// What a lock request asks for: a shared lock, an exclusive lock, or the release of the range.
    pub enum FlockType: u8 { Read = 0, Write = 1, Unlock = 2 }
}
codec_struct! {
    /// A file lock, in bytes, `end` inclusive as the kernel has it.
    #[derive(Copy)]
    pub struct FileLock {
        /// Locks of different families never conflict.
        pub family: FlockFamily,
        /// Shared, exclusive, or the removal of the owner's locks in the range.
        pub kind: FlockType,
        /// First byte.
        pub start: u64,
        /// Last byte, included; `u64::MAX`: to the end of the file, wherever it is.
        pub end: u64,
        /// Lock owner inside the client (the kernel's).
        pub owner: u64,
        /// Process that F_GETLK names; of the client's machine.
        pub pid: u32,
    }
}
codec_struct! {
    /// Sets or drops a file lock. With `wait` the reply to a conflict is `Waiting`, at once, and a `FlockGranted`
    /// callback with this cookie follows.
    pub struct Flock { pub fid: Fid, pub lock: FileLock, pub wait: bool, pub cookie: LockCookie }
}
codec_enum! {
    /// Result of a lock request. `Waiting`: a [`FlockGranted`] follows; `Conflict`: without `wait`; `Deadlock`: EDEADLK.
    pub enum FlockOutcome: u8 { Granted = 0, Waiting = 1, Conflict = 2, Deadlock = 3 }
}
codec_struct! {
    /// Reply to [`Flock`] and [`FlockCancel`].
    pub struct FlockReply { pub outcome: FlockOutcome }
}
codec_struct! {
    /// Looks for a lock of another owner that conflicts with `lock` (F_GETLK).
    pub struct FlockTest { pub fid: Fid, pub lock: FileLock }
}
codec_struct! {
    /// One of the conflicting locks; `None`: the lock could be granted.
    pub struct FlockTestReply { pub conflict: Option<FileLock> }
}
codec_struct! {
    /// Cancels a waiting request (a signal). The reply has its state: the lock may have been granted meanwhile.
    pub struct FlockCancel { pub fid: Fid, pub cookie: LockCookie }
}
codec_struct! {
    /// Callback: the waiting lock `cookie` is now granted, or refused for a deadlock.
    pub struct FlockGranted { pub cookie: LockCookie, pub outcome: FlockOutcome }
}

codec_struct! {
    /// Sets the layout of a file that was never written, or the default layout of a directory.
    pub struct SetLayout { pub fid: Fid, pub template: LayoutTemplate, pub caller: Caller, pub time: Timestamp }
}
codec_struct! {
    /// Layout of a file, or template of a directory.
    pub struct GetLayout { pub fid: Fid }
}
codec_struct! {
    /// Layout of an inode.
    pub struct LayoutReply {
        /// Regular files.
        pub layout: Option<Layout>,
        /// Directories: the layout that was set, if any; and the file system's default.
        pub template: Option<LayoutTemplate>,
        /// The file system's default, in the reply for any inode.
        pub default: LayoutTemplate,
    }
}
codec_struct! {
    /// The links of an inode that `caller` may learn: those in directories that it may search, and also list unless the
    /// inode is its own. EACCES if there are others only.
    pub struct FidLinks { pub fid: Fid, pub caller: Caller }
}
codec_struct! {
    /// (parent, name) of each link; the root has none.
    pub struct FidLinksReply { pub links: Vec<(Fid, Bytes)> }
}

/// Maximum number of sub-operations of a batch.
pub const BATCH_MAX: usize = 64;
codec_struct! {
    /// One change of a batch: the opcode of a modifying request and its encoded body.
    pub struct SubOperation { pub opcode: u16, pub body: Bytes }
}
codec_struct! {
    /// Changes in order, in one transaction under one number: each sees the results of those before it. A failed one
    /// leaves nothing behind; the rest continue, or are refused with ECANCELED with `stop_at_error`.
    pub struct Batch { pub stop_at_error: bool, pub operations: Vec<SubOperation> }
}
codec_struct! {
    /// Success and the reply's body, or the error.
    pub struct SubResult { pub status: Status, pub body: Bytes }
}
codec_struct! {
    /// As many results as there were operations.
    pub struct BatchReply { pub results: Vec<SubResult> }
}

codec_struct! {
    /// An OST has no room for a write: the MDT sends now the destroys that it still owes the OSTs on that device, has these
    /// free their space, and asks them for it.
    pub struct Reclaim { pub ost: OstIndex }
}
codec_struct! {
    /// Whether there was space to free on that device: a write may find room now.
    pub struct ReclaimReply { pub freed: bool }
}
rpc! {
    GrantSeq => GrantSeq, Modify, GrantSeqReply;
    Lookup<'_> => Lookup, Read, LookupReply;
    Getattr => Getattr, Read, EntryReply;
    Settle => Settle, Callback, EntryReply;
    Readdir => Readdir, Read, ReaddirReply;
    Create<'_> => Create, Modify, CreateReply;
    Open => Open, Modify, EntryReply;
    Close => Close, Close, Empty;
    Link<'_> => Link, Modify, EntryReply;
    Unlink<'_> => Unlink, Modify, Empty;
    Rename<'_> => Rename, Modify, Empty;
    Setattr => Setattr, Modify, EntryReply;
    ReportSize => ReportSize, Modify, EntryReply;
    ReadData => ReadData, Read, ReadDataReply;
    StoreData<'_> => StoreData, Modify, EntryReply;
    MoveData => MoveData, Modify, EntryReply;
    Readlink => Readlink, Read, ReadlinkReply;
    Getxattr<'_> => Getxattr, Read, XattrReply;
    Setxattr<'_> => Setxattr, Modify, EntryReply;
    Listxattr => Listxattr, Read, ListxattrReply;
    Removexattr<'_> => Removexattr, Modify, EntryReply;
    Flock => Flock, Modify, FlockReply;
    FlockTest => FlockTest, Read, FlockTestReply;
    FlockCancel => FlockCancel, Modify, FlockReply;
    SetLayout => SetLayout, Modify, EntryReply;
    GetLayout => GetLayout, Read, LayoutReply;
    FidLinks => FidLinks, Read, FidLinksReply;
    Batch => Batch, Modify, BatchReply;
    Reclaim => Reclaim, Read, ReclaimReply;
    CancelInodeLocks => CancelInodeLocks, Callback, Empty;
    FormerLocksEnded => FormerLocksEnded, Callback, Empty;
    AwaitInodeLocks => AwaitInodeLocks, Callback, Empty;
    ReportOpens => ReportOpens, Callback, ReportOpensReply;
}
