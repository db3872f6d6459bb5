//! The room that changes reserve in the log, from the bounds of their operations.

use crate::ops::WriteBound;
use nacre_osd::Credits;
use nacre_rpc::SubRecord;
use nacre_target::{RECORD_BYTES, RECORD_ROWS};
use nacre_types::STRIPES_MAX;

/// Upper bound of an inode's row: names, small attributes, a layout of [`STRIPES_MAX`] stripes.
const INODE_BYTES_MAX: u32 = 20 << 10;

/// Rows of a removed file for each of its OSTs: a key of CHOWN and a row of DESTROY.
const REMOVED_BYTES: u32 = 64;
// The end of an inode needs the room of two.
const _: () = assert!(STRIPES_MAX as u32 * REMOVED_BYTES + 1024 <= 2 * INODE_BYTES_MAX);

/// Bytes of an average inode's row. An operation in a batch reserves no more: the rest (orphans over hundreds of OSTs that
/// are closed together) is reserved when it is known.
const INODE_BYTES_AVERAGE: u32 = 2 << 10;

/// The bytes of one result in the record of a batch.
const RESULT_BYTES: u32 = SubRecord::BYTES as u32;

/// For an operation in a request of its own: its upper bound, and its reply record.
pub(crate) fn credits_of(bound: WriteBound) -> Credits {
    Credits {
        rows: bound.inode_count() * 4 + RECORD_ROWS,
        row_bytes: bound.inode_count() * INODE_BYTES_MAX + bound.value_bytes() + RECORD_BYTES,
        frees: bound.is_freeing(),
        ..Credits::default()
    }
}

/// For an operation in a batch, without a record.
pub(crate) fn credits_in_batch(bound: WriteBound) -> Credits {
    Credits {
        rows: bound.inode_count() * 4,
        row_bytes: bound.inode_count() * INODE_BYTES_AVERAGE + bound.value_bytes(),
        frees: bound.is_freeing(),
        ..Credits::default()
    }
}

/// For the record of a batch with so many results, which is written last.
pub(crate) fn credits_of_record(results: usize) -> Credits {
    let record = credits_of(WriteBound::inodes(0).freeing());
    Credits { row_bytes: record.row_bytes + RESULT_BYTES * results as u32, ..record }
}
