//! Changes of the target's memory that follow from a transaction.
//!
//! An operation only lists them; they are applied in the visit of the transaction, after it has succeeded, so that the
//! memory never runs ahead of the rows.

use crate::rows::row::OpenRow;
use nacre_types::{Fid, Generation, OpenHandle, OstIndex};

/// The state of a file's size at the moment of an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizeBefore {
    /// The size was exact. `objects`: the file might have objects.
    Exact { objects: bool },
    /// Only writers or the OSTs knew the size.
    Open,
}

/// One change of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateChange {
    Opened {
        export: Generation,
        handle: OpenHandle,
        opened: OpenRow,
        before: SizeBefore,
    },
    Closed {
        export: Generation,
        handle: OpenHandle,
    },
    /// A client begins to truncate the file.
    TruncateStarted {
        export: Generation,
        fid: Fid,
    },
    /// The client has reported the end of its truncate. `last`: no other report will follow, because its export is gone.
    TruncateEnded {
        export: Generation,
        fid: Fid,
        last: bool,
    },
    /// A client that wrote to the file can no longer report the size.
    WriterLost(Fid),
    /// The OSTs have to be asked for the size.
    SizeUnknown(Fid),
    /// Rows of [`crate::rows::table::DESTROY`] or [`crate::rows::table::CHOWN`] were written for this OST.
    OstWork(OstIndex),
    /// A file whose bytes were here uses its object on this OST.
    MovedTo(OstIndex),
    /// The file never used an object that was reserved for it on this OST.
    UnusedReservation(OstIndex),
    /// The inode is gone, and its file locks with it.
    InodeRemoved(Fid),
}
