//! Inspection of a region: which of its written bytes the device does not return as they were written.
//!
//! Unlike a read (`object/verify.rs`), an inspection names every bad block of the region, goes past the cache, which may
//! hold good bytes of a bad block, and changes nothing.
//!
//! Invariant: rows and bytes are read under the shared lock of the region, so they belong together; a change that is
//! under way is never taken for damage. Regions whose bytes a crash may have changed (`object/unverified.rs`) are left
//! out: `object/rechecksum.rs` verifies them.

use crate::error::OsdError;
use crate::maintenance::scrub_status::DamageKind;
use crate::object::checksum::BLOCK_BYTES;
use crate::object::objects::Objects;
use crate::object::rows::{BLOCKS_PER_REGION, REGION_BYTES};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use nacre_node::{ReadFrom, StoreError};
use nacre_types::{Extent, ObjectId};

/// The result of an inspection.
#[derive(Debug, Default)]
pub(crate) struct Inspected {
    allocated_bytes: u64,
    verified_bytes: u64,
    is_unverified: bool,
    damage: Vec<(Range<u64>, DamageKind)>,
}

impl Inspected {
    /// Allocated blocks of the region, in bytes.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }
    /// Blocks that were compared with their checksums, in bytes.
    pub(crate) fn verified_bytes(&self) -> u64 {
        self.verified_bytes
    }
    /// The region has written blocks that a crash may have changed: nothing was compared.
    pub(crate) fn is_unverified(&self) -> bool {
        self.is_unverified
    }
    /// Bad bytes in order.
    pub(crate) fn damage(&self) -> &[(Range<u64>, DamageKind)] {
        &self.damage
    }
}

impl Objects {
    /// Compares all written blocks of a region with their checksums.
    ///
    /// # Errors
    /// Those of rows that cannot be read, and `Stopped`.
    pub(crate) async fn inspect_region(
        self: &Rc<Self>,
        object: ObjectId,
        region: u64,
    ) -> Result<Inspected, OsdError> {
        let start = region.saturating_mul(REGION_BYTES);
        let range = Extent::new(start, start.saturating_add(REGION_BYTES));
        let _guard = self.locks().lock(object, range, false).await;
        let size = self.row(object).await?.unwrap_or_default().size;
        let row = self.block_row(object, region).await?;
        let mut found = Inspected {
            allocated_bytes: u64::from(row.allocated.count_ones()) * BLOCK_BYTES,
            ..Inspected::default()
        };
        if row.written == 0 || start >= size {
            return Ok(found);
        }
        if self.unverified().may_differ(object, region, row.version) {
            found.is_unverified = true;
            return Ok(found);
        }
        let blocks = region * BLOCKS_PER_REGION..(region + 1) * BLOCKS_PER_REGION;
        let expected: Vec<_> = self.expected(object, region, &row, &blocks).collect();
        found.verified_bytes = expected.len() as u64 * BLOCK_BYTES;
        let mut bad = self.bad_blocks(object, &expected, size).await?;
        bad.extend(blocks.filter(|block| row.is_lost(*block)).map(|block| (block, DamageKind::Lost)));
        bad.sort_unstable_by_key(|(block, _)| *block);
        found.damage = ranges(&bad, size);
        Ok(found)
    }

    /// The blocks that are bad at two reads. Blocks that are bad at one of them only are logged.
    async fn bad_blocks(
        &self,
        object: ObjectId,
        expected: &[(u64, u32)],
        size: u64,
    ) -> Result<Vec<(u64, DamageKind)>, OsdError> {
        let first = self.compare(object, expected, size).await?;
        if first.is_empty() {
            return Ok(first);
        }
        let second = self.compare(object, expected, size).await?;
        let is_in = |list: &[(u64, DamageKind)], block: u64| list.iter().any(|(b, _)| *b == block);
        for (block, _) in first.iter().filter(|(block, _)| !is_in(&second, *block)) {
            tracing::warn!(target_name = %self.osd().label().name, %object, offset = block * BLOCK_BYTES,
                "a block did not match its checksum and does at the second read: suspect the memory or the device");
        }
        Ok(second.into_iter().filter(|(block, _)| is_in(&first, *block)).collect())
    }

    /// One read over all blocks; one for each where that fails, so that each bad one is found.
    async fn compare(
        &self,
        object: ObjectId,
        expected: &[(u64, u32)],
        size: u64,
    ) -> Result<Vec<(u64, DamageKind)>, OsdError> {
        let (Some(&(first, _)), Some(&(last, _))) = (expected.first(), expected.last()) else {
            return Ok(Vec::new());
        };
        let end = ((last + 1) * BLOCK_BYTES).min(size);
        let read = self.read_summed(object, first * BLOCK_BYTES, end, ReadFrom::PastCache).await;
        if let Ok(Ok((_, sums))) = &read {
            let differs = |(block, sum): &&(u64, u32)| sums.get((block - first) as usize) != Some(sum);
            return Ok(expected.iter().filter(differs).map(|(b, _)| (*b, DamageKind::Checksum)).collect());
        }
        let mut bad = Vec::new();
        for &(block, sum) in expected {
            if let Some(kind) = self.compare_block(object, block, sum, size).await? {
                bad.push((block, kind));
            }
        }
        Ok(bad)
    }
    async fn compare_block(
        &self,
        object: ObjectId,
        block: u64,
        sum: u32,
        size: u64,
    ) -> Result<Option<DamageKind>, OsdError> {
        let (from, to) = (block * BLOCK_BYTES, ((block + 1) * BLOCK_BYTES).min(size));
        match self.read_summed(object, from, to, ReadFrom::PastCache).await {
            Ok(Ok((_, sums))) => Ok((sums.first() != Some(&sum)).then_some(DamageKind::Checksum)),
            Ok(Err(_)) => Ok(Some(DamageKind::Lost)),
            Err(OsdError::Store(StoreError::Device(_))) => Ok(Some(DamageKind::Unreadable)),
            Err(error) => Err(error),
        }
    }
}

/// Joins blocks that follow one another and have the same damage.
fn ranges(bad: &[(u64, DamageKind)], size: u64) -> Vec<(Range<u64>, DamageKind)> {
    let mut out: Vec<(Range<u64>, DamageKind)> = Vec::new();
    for &(block, kind) in bad {
        let (from, to) = (block * BLOCK_BYTES, ((block + 1) * BLOCK_BYTES).min(size));
        match out.last_mut() {
            Some((range, last)) if range.end == from && *last == kind => range.end = to,
            _ => out.push((from..to, kind)),
        }
    }
    out
}
