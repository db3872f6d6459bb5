//! Byte objects: object rows, block rows (masks and sums), accounting of blocks.

/// Unit of checksums and allocation.
pub const BLOCK_BYTES: u64 = 4096;
/// Bytes described by one block row.
pub const REGION_BYTES: u64 = 256 << 10;
