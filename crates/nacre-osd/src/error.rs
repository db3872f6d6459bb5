//! What can go wrong in a target's storage, named after what the caller can do about it.

use alloc::string::String;
use nacre_node::StoreError;
use nacre_types::{Errno, ObjectId};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OsdError {
    #[error("no space on the target, {needed_bytes} bytes needed")]
    NoSpace { needed_bytes: u64 },
    /// The device is full, and nothing of the target's own is left that could be given up.
    #[error(
        "there is no room to start: the device is full and the target's reserve is used up\nhint: free a few MiB on the file system below this target (not inside the target), then start it again: files can then be removed through a mount"
    )]
    NoRoomToStart,
    #[error("checksum mismatch in {what}")]
    Corrupt { what: String },
    #[error("object {0} is quarantined")]
    Quarantined(ObjectId),
    /// Bytes that were written are not on the device any more; other ranges of the object can be used.
    #[error(
        "bytes {from} to {to} of object {object} are lost: they were written, and their file does not have them\nhint: restore the file from a backup; overwriting these bytes as a whole, or cutting them off, makes it usable again"
    )]
    Lost { object: ObjectId, from: u64, to: u64 },
    /// The caller wants the change no more: nothing was begun.
    #[error("not begun: {0}")]
    NotBegun(Errno),
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

impl From<OsdError> for Errno {
    fn from(e: OsdError) -> Self {
        match e {
            OsdError::NoSpace { .. } | OsdError::NoRoomToStart | OsdError::Store(StoreError::NoSpace) => {
                Errno::ENOSPC
            }
            OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped) => Errno::ESHUTDOWN,
            OsdError::TooLarge(_) => Errno::EFBIG,
            OsdError::NotBegun(errno) => errno,
            OsdError::Corrupt { .. }
            | OsdError::Quarantined(_)
            | OsdError::Lost { .. }
            | OsdError::Format(_)
            | OsdError::Store(_) => Errno::EIO,
        }
    }
}
