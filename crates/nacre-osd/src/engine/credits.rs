//! Credits: the most that a transaction may write. They are reserved before it begins (`engine/reserve.rs`).

/// The most that a transaction may write, reserved before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credits {
    /// Rows written or deleted, without accounting rows.
    pub rows: u32,
    /// Keys and values together.
    pub row_bytes: u32,
    /// New object bytes on the device.
    pub object_bytes: u64,
    /// This change frees space in the end (unlink, destroy): it may use the ballast.
    pub frees: bool,
    /// The bytes of this change have their space, and most of its rows take the place of others: it may use the room that
    /// is kept for log and tables, but not the ballast. So an overwrite succeeds on a full device.
    pub in_place: bool,
}

impl Credits {
    /// Upper bound of the record in the log. (Accounting rows and headers are the engine's own.)
    pub(crate) fn record_bytes(&self) -> u64 {
        u64::from(self.row_bytes) + u64::from(self.rows) * 16 + 640
    }
}
