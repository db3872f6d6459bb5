//! Where an object holds bytes, and where it has holes: blocks that are not written, allocated or not.

use crate::error::OsdError;
use crate::object::checksum::BLOCK_BYTES;
use crate::object::objects::Objects;
use crate::object::rows::{BLOCKS_PER_REGION, block_key, decode_block, region_of_key};
use crate::table;
use alloc::rc::Rc;
use nacre_types::{Extent, ObjectId};

/// Block rows of one scan.
const SLICE: u32 = 256;

impl Objects {
    /// The first byte of the object from `offset` on that is in a written block (`is_data`) or in a hole. The object's
    /// end is a hole; `None`: no data up to the end, or `offset` is behind it.
    ///
    /// # Errors
    /// `Quarantined`; those of the engine.
    pub async fn seek(
        self: &Rc<Self>,
        object: ObjectId,
        offset: u64,
        is_data: bool,
    ) -> Result<Option<u64>, OsdError> {
        let _guard = self.locks().lock(object, Extent::new(offset, u64::MAX), false).await;
        let size = self.healthy_row(object).await?.unwrap_or_default().size;
        if offset >= size {
            return Ok(None);
        }
        // The first block for which nothing is known yet.
        let mut block = offset / BLOCK_BYTES;
        let last = block_key(object, u64::MAX);
        let at = 'found: loop {
            let key = block_key(object, block / BLOCKS_PER_REGION);
            let rows = self.osd().scan(table::BLOCK, &key, &last, SLICE).await?;
            for (key, value) in &rows {
                let region = region_of_key(key).unwrap_or_default();
                let base = region * BLOCKS_PER_REGION;
                if block < base && !is_data {
                    break 'found Some(block);
                }
                block = block.max(base);
                let row = decode_block(object, region, value)?;
                let matching = if is_data { row.written } else { !row.written } >> (block - base);
                if matching != 0 {
                    break 'found Some(block + u64::from(matching.trailing_zeros()));
                }
                block = base + BLOCKS_PER_REGION;
            }
            if rows.len() < SLICE as usize {
                break (!is_data).then_some(block);
            }
        };
        let found = at.map(|block| block.saturating_mul(BLOCK_BYTES).max(offset));
        Ok(match found {
            Some(at) if at < size => Some(at),
            _ if is_data => None,
            _ => Some(size),
        })
    }
}
