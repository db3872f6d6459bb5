//! The space that a change of an object needs, beyond what its blocks have.

use crate::error::OsdError;
use crate::object::checksum::BLOCK_BYTES;
use crate::object::objects::Objects;
use crate::object::rows::{block_key, blocks_of, decode_block, mask_of, region_of_key, regions_of};
use crate::table;
use nacre_types::{Extent, ObjectId};

/// Block rows of one scan.
const SLICE: u32 = 256;

impl Objects {
    /// Bytes of the blocks of a range that have no space yet, neither written nor set aside. Rows say so; blocks whose
    /// bytes were found to be gone have none. Costs a lookup for 256 KiB of the range.
    ///
    /// # Errors
    /// Those of the engine.
    pub async fn unallocated_bytes(&self, object: ObjectId, range: Extent) -> Result<u64, OsdError> {
        let blocks = blocks_of(range.start, range.end);
        let regions = regions_of(&blocks);
        let (mut next, last) = (block_key(object, regions.start), block_key(object, regions.end));
        let mut missing = blocks.end - blocks.start;
        loop {
            let rows = self.osd().scan(table::BLOCK, &next, &last, SLICE).await?;
            for (key, value) in &rows {
                let region = region_of_key(key).unwrap_or_default();
                let row = decode_block(object, region, value)?;
                let has_space = row.allocated & !row.lost & mask_of(region, &blocks);
                missing = missing.saturating_sub(has_space.count_ones().into());
                next = block_key(object, region + 1);
            }
            if rows.len() < SLICE as usize {
                return Ok(missing.saturating_mul(BLOCK_BYTES));
            }
            self.ctx().yield_now().await;
        }
    }
}
