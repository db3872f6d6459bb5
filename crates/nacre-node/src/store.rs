//! The store port: the only way bytes reach a device. A store is a flat set of files; the engine above
//! (`nacre-osd`) gives them meaning. Implemented by `nacre-osd-fs`, `nacre-osd-mem` and the simulator's disk.
//!
//! Invariants asked of a store: writes of one file are seen in order by later reads; `Sync` of a file makes all earlier
//! writes, its length and its existence durable; `Replace` is atomic and durable; `Delete` of a file that is not there
//! succeeds. Writes that were not synced may be lost or torn, in any order, when the machine dies; if only the process
//! dies, no executed operation is lost.

use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::ObjectId;

/// A file of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileId {
    /// Label and superblock: small, written with `Replace` only.
    Super,
    /// Reserved space, released for unlink, checkpoint and merge on a full device.
    Ballast,
    /// The durable end of the log: small, overwritten in place, never synced after its creation.
    Mark,
    /// Segment of the log.
    Log(u64),
    /// Immutable sorted run.
    Run(u64),
    /// Bytes of an object.
    Blob(ObjectId),
}

/// The kind of files to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    Log,
    Run,
    Blob,
}

/// A store operation. Payload is passed by reference.
#[derive(Debug, Clone)]
pub enum StoreOp {
    /// Creates (or empties) a file of `len` zero bytes whose blocks are allocated.
    Create {
        file: FileId,
        len: u64,
    },
    /// Writes; a missing blob or run is created (unless there is nothing to write), other files are not (`NotFound`).
    Write {
        file: FileId,
        offset: u64,
        data: Vec<Bytes>,
    },
    /// Writes to a blob and returns [`StoreDone::Checksums`]: crc32c of each whole 4 KiB block that was touched, where
    /// bytes at or beyond `size` (the object's size after the write) count as zeros. `keep_head`: whether the first
    /// block's bytes before `offset` are data, not zeros; `keep_tail`: likewise after the end. Bytes that are not kept
    /// are written as zeros, up to the block boundaries. Kept bytes that do not match their checksum are
    /// [`StoreError::Mismatch`], and nothing is written. With `written_to` the blob has been written up to there: if it
    /// ends earlier, so that this write would leave a hole, or if bytes to keep are missing, the result is
    /// [`StoreError::Missing`] and nothing is written. Without `written_to`, missing bytes count as zeros.
    /// With `to` the caller says where the bytes may go.
    WriteChecksummed {
        file: FileId,
        offset: u64,
        data: Vec<Bytes>,
        keep_head: Keep,
        keep_tail: Keep,
        size: u64,
        written_to: Option<u64>,
        to: WriteTo,
    },
    /// Reads at most `len` bytes; short at the end of the file; empty for a blob that does not exist, `NotFound`
    /// for another file.
    Read {
        file: FileId,
        offset: u64,
        len: u32,
    },
    /// Reads exactly `len` bytes of a blob and returns [`StoreDone::Checksummed`]: the bytes, and crc32c of each 4 KiB from
    /// `offset` on, the last one padded with zeros. [`StoreError::Missing`] when one of them is beyond the end of its file,
    /// or when the file is not there. Holes inside a file are zeros.
    ReadWritten {
        file: FileId,
        offset: u64,
        len: u32,
        from: ReadFrom,
    },
    /// Truncates or extends (with a hole). A missing blob is created unless `len` is 0.
    Truncate {
        file: FileId,
        len: u64,
    },
    /// Allocates blocks without changing the length; a missing blob is created.
    Allocate {
        file: FileId,
        offset: u64,
        len: u64,
    },
    /// Frees the blocks of a range, which reads as zeros; the length stays.
    Punch {
        file: FileId,
        offset: u64,
        len: u64,
    },
    /// Makes zeros of the bytes of a range; its blocks stay allocated, and the length stays.
    Zero {
        file: FileId,
        offset: u64,
        len: u64,
    },
    /// Makes all earlier changes of the file durable; of a missing file: its absence. [`StoreError::Gone`]: somebody else
    /// has deleted the log segment or run while it was open.
    Sync {
        file: FileId,
    },
    /// The same for a blob that has been written up to `len`: [`StoreError::Missing`] when it ends earlier, is not
    /// there, or has lost its name. The existing part is durable in this case as well. `aside`: no request waits for it.
    SyncWritten {
        file: FileId,
        len: u64,
        aside: bool,
    },
    /// The same as `Sync`, for a file for which no request waits: it must not delay other syncs. The file may have been
    /// deleted since.
    SyncAside {
        file: FileId,
    },
    /// Makes all earlier changes of many blobs durable in one step, for which no request waits. The result
    /// ([`StoreDone::Synced`]) says of each blob what `SyncWritten` would say of it, with its length here. After an error,
    /// nothing is known of any of them: each must be synced alone. [`StoreError::Unsupported`]: the store has no such step.
    SyncMany {
        /// Blobs, and the length up to which each has been written.
        files: Vec<(FileId, u64)>,
    },
    /// Begins to write back a range of a blob that was written, without waiting for the device, so that a later sync finds
    /// little to do. Promises nothing: a failure of the write-back is reported by the next sync of the blob.
    StartWriteback {
        file: FileId,
        offset: u64,
        len: u64,
    },
    /// Writes back what the cache has of a blob and lets the cache forget it: afterwards reads show what the device has,
    /// and writes do not build on pages that the device has refused. A write-back that fails is no error here.
    Refresh {
        file: FileId,
    },
    /// Replaces the whole file atomically and durably.
    Replace {
        file: FileId,
        data: Bytes,
    },
    Delete {
        file: FileId,
    },
    /// Files of a kind in order, after `after`.
    List {
        kind: FileKind,
        after: Option<FileId>,
        limit: u32,
    },
    Len {
        file: FileId,
    },
    Space,
}

/// Where the bytes of a read come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// The cache, or else the device, whose bytes the cache then keeps.
    Cache,
    /// The device: the cache first forgets of them what it need not keep.
    Device,
    /// The device, past the cache as far as the store can: other readers find in it what they would have found anyway.
    /// Bytes that are not yet on the device are written first.
    PastCache,
}

/// Where the bytes of a write go. They are durable after a sync in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteTo {
    /// The cache, which writes them to the device later: the writer waits for as short a time as possible.
    Cache,
    /// The device, past the cache, if the store finds that faster: the writer has other requests on the way while it waits.
    PastCache,
}

/// Which bytes of a block stay that a write covers in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// None: they are zeros.
    Nothing,
    /// The bytes of the file, unverified.
    Bytes,
    /// The bytes of the file, if the first `len` bytes of the block, padded with zeros, have this crc32c.
    Verified { sum: u32, len: u32 },
}
impl Keep {
    /// Whether bytes stay.
    pub fn is_any(self) -> bool {
        self != Self::Nothing
    }
}

impl StoreOp {
    /// Whether the operation changes neither the store's content nor its durability.
    pub fn only_reads(&self) -> bool {
        match self {
            Self::Read { .. }
            | Self::ReadWritten { .. }
            | Self::List { .. }
            | Self::Len { .. }
            | Self::Space => true,
            Self::Create { .. }
            | Self::Write { .. }
            | Self::WriteChecksummed { .. }
            | Self::Truncate { .. }
            | Self::Allocate { .. }
            | Self::Punch { .. }
            | Self::Zero { .. }
            | Self::Sync { .. }
            | Self::SyncWritten { .. }
            | Self::SyncAside { .. }
            | Self::SyncMany { .. }
            | Self::StartWriteback { .. }
            | Self::Refresh { .. }
            | Self::Replace { .. }
            | Self::Delete { .. } => false,
        }
    }
}

/// Result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreDone {
    Unit,
    Bytes(Bytes),
    /// Bytes, and the checksums of their blocks.
    Checksummed(Bytes, Vec<u32>),
    Checksums(Vec<u32>),
    /// One result for each blob of a `SyncMany`.
    Synced(Vec<Result<(), StoreError>>),
    /// `None`: there is no such file.
    Len(Option<u64>),
    List(Vec<FileId>),
    Space(StoreSpace),
}

/// Free space as reported by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreSpace {
    /// Size of the file system.
    pub bytes_total: u64,
    /// Free, with the part that is reserved for root.
    pub bytes_free: u64,
    /// Free without the part that is reserved for root.
    pub bytes_avail: u64,
    /// Inodes that can still be created; `None` if the file system allocates them from free space.
    pub files_free: Option<u64>,
    /// Number of the device: stores with the same number share their space. 0: not shared.
    pub device: u64,
    /// Writes to blocks that a file has, written or set aside, need no free space. Not so where blocks are copied on
    /// write, or where this is unknown.
    pub overwrites_in_place: bool,
}

/// The reason why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("no space on the device")]
    NoSpace,
    #[error("{file:?} does not exist")]
    NotFound { file: FileId },
    /// Bytes that were written are not in their file; `from` is the first of them.
    #[error("{file:?} has no bytes {from} to {to}")]
    Missing { file: FileId, from: u64, to: u64 },
    /// The block at `offset` does not match its checksum.
    #[error("{file:?}: the block at byte {offset} does not match its checksum")]
    Mismatch { file: FileId, offset: u64 },
    /// Files of the store were deleted or moved by others while it was open, so that nothing that is written to it is
    /// kept. The island ends with the visit that is told so. The text names file and operation.
    #[error("files were removed from the store while it was in use ({0}): what is written to it is not kept")]
    Gone(String),
    /// The text names file and operation.
    #[error("device: {0}")]
    Device(String),
    #[error("the store does not support this")]
    Unsupported,
    #[error("the store is stopped")]
    Stopped,
}

/// A store as its driver sees it: synchronous, callable from any thread. Which thread calls is the driver's
/// decision (law 2 of the design).
pub trait Store: Send + Sync {
    /// Executes; may block.
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError>;

    /// Executes the operation if it cannot block for long (page cache, memory), else returns it.
    fn try_execute(&self, op: StoreOp) -> Result<Result<StoreDone, StoreError>, StoreOp> {
        Err(op)
    }
}
