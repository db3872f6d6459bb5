//! Errors of a target's storage, named after the reaction of the caller.

use alloc::string::String;
use nacre_node::StoreError;
use nacre_types::{Errno, Failure, ObjectId};

/// An error of the engine or of its store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OsdError {
    /// Neither the store nor the ballast has room. The caller may wait for freed space, or fail with ENOSPC.
    #[error("no space on the target, {needed_bytes} bytes needed")]
    NoSpace { needed_bytes: u64 },
    /// The device is full, and the target has no file left that could be deleted to make room.
    #[error(
        "there is no room to start: the device is full and the target's reserve is used up\nhint: free a few MiB on the file system below this target (not inside the target), then start it again: files can then be removed through a mount"
    )]
    NoRoomToStart,
    /// A record, row or block is damaged; where there are two copies, both are.
    #[error("checksum mismatch in {what}")]
    Corrupt { what: String },
    /// Bytes of the object were lost in a failed sync: it returns EIO until it is destroyed.
    #[error("object {0} is quarantined")]
    Quarantined(ObjectId),
    /// Bytes that were written are not on the device any more; other ranges of the object can be used.
    #[error(
        "bytes {from} to {to} of object {object} are lost: they were written, and their file does not have them\nhint: restore the file from a backup; overwriting these bytes as a whole, or truncating the file to a length before them, makes it usable again"
    )]
    Lost { object: ObjectId, from: u64, to: u64 },
    /// A block is not as it was written; other ranges of the object can be used.
    #[error(
        "bytes {from} to {to} of object {object} are damaged: the device returns other bytes than were written (their checksum does not match)\nhint: restore the file from a backup; overwriting these bytes as a whole, or truncating the file to a length before them, makes it usable again"
    )]
    Damaged { object: ObjectId, from: u64, to: u64 },
    #[error("object {0} cannot have more than 2^63 - 1 bytes")]
    TooLarge(ObjectId),
    /// The store holds something else, or another format version. The text says what and what to do.
    #[error("{0}")]
    Format(String),
    /// The log could not be written or synced: the target has stopped.
    #[error("target stopped: {0}")]
    Stopped(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<OsdError> for Failure {
    fn from(e: OsdError) -> Self {
        Errno::from(e).into()
    }
}
impl From<OsdError> for Errno {
    fn from(e: OsdError) -> Self {
        match e {
            OsdError::NoSpace { .. } | OsdError::NoRoomToStart | OsdError::Store(StoreError::NoSpace) => {
                Errno::ENOSPC
            }
            OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped) => Errno::ESHUTDOWN,
            OsdError::TooLarge(_) => Errno::EFBIG,
            OsdError::Corrupt { .. }
            | OsdError::Quarantined(_)
            | OsdError::Lost { .. }
            | OsdError::Damaged { .. }
            | OsdError::Format(_)
            | OsdError::Store(_) => Errno::EIO,
        }
    }
}
