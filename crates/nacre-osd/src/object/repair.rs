//! Repair after a change of an object that was prepared and not applied: overwritten blocks get checksums of their new
//! bytes, and newly allocated blocks are released.
//!
//! Invariant: the range lock of the change is held until the repair has ended.

use crate::engine::credits::Credits;
use crate::error::OsdError;
use crate::object::apply::block_of_tx;
use crate::object::checksum::{BLOCK_BYTES, block_checksum};
use crate::object::objects::{Objects, unexpected_result};
use crate::object::rows::{
    BLOCKS_PER_REGION, REGION_BYTES, block_floor, block_key, mask_of, object_key, regions_of,
};
use crate::object::scan::is_stopped;
use crate::table;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Range;
use nacre_node::{FileId, StoreDone, StoreOp};
use nacre_types::{Extent, ObjectId};

impl Objects {
    /// Repairs after a write that failed in the middle, under its lock: blocks that held data get checksums of their
    /// present content, other blocks are released. An object that cannot be repaired is quarantined.
    pub(crate) async fn repair(self: &Rc<Self>, object: ObjectId, blocks: &Range<u64>, size: u64) {
        match self.recompute_checksums(object, blocks, size).await {
            Ok(()) => self.release_unused(object, blocks.start * BLOCK_BYTES).await,
            Err(error) if is_stopped(&error) => {}
            Err(error) => self.quarantine(object, &error).await,
        }
    }
    async fn recompute_checksums(
        self: &Rc<Self>,
        object: ObjectId,
        blocks: &Range<u64>,
        size: u64,
    ) -> Result<(), OsdError> {
        let mut sums = Vec::new();
        for region in regions_of(blocks) {
            let row = self.block_row(object, region).await?;
            let mask = mask_of(region, blocks) & row.written & !row.lost;
            for block in (region * BLOCKS_PER_REGION..).take(64).filter(|b| mask & (1 << (b % 64)) != 0) {
                let (from, end) = (block * BLOCK_BYTES, ((block + 1) * BLOCK_BYTES).min(size));
                match self.read_present(object, &row, from, end).await {
                    Ok(bytes) => sums.push((block, block_checksum(&bytes))),
                    Err(OsdError::Lost { .. }) => {
                        self.mark_lost(object, region, from, size).await?;
                        break; // later bytes of this region are lost as well
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if sums.is_empty() { Ok(()) } else { self.put_checksums(object, blocks, &sums).await }
    }
    /// Reads the bytes of a block up to `end`, with zeros for bytes that the file does not have.
    pub(crate) async fn read_padded(
        &self,
        object: ObjectId,
        block: u64,
        end: u64,
    ) -> Result<Bytes, OsdError> {
        let offset = block * BLOCK_BYTES;
        let len = u32::try_from(end.saturating_sub(offset)).expect("at most a block");
        match self.ctx().io(StoreOp::Read { file: FileId::Blob(object), offset, len }).await? {
            StoreDone::Bytes(bytes) if bytes.len() == len as usize => Ok(bytes),
            StoreDone::Bytes(short) => {
                let mut padded = Vec::from(short);
                padded.resize(len as usize, 0);
                Ok(padded.into())
            }
            _ => Err(unexpected_result("read")),
        }
    }
    pub(crate) async fn put_checksums(
        self: &Rc<Self>,
        object: ObjectId,
        blocks: &Range<u64>,
        sums: &[(u64, u32)],
    ) -> Result<(), OsdError> {
        let pins = self.pins_of(object, &regions_of(blocks)).await?;
        let range = Extent::new(blocks.start * BLOCK_BYTES, blocks.end * BLOCK_BYTES);
        let bytes = range.end - range.start;
        let credits =
            Credits { object_bytes: 0, frees: true, ..Objects::write_credits(0, bytes + REGION_BYTES) };
        let room = self.osd().reserve(credits).await?;
        self.osd()
            .transact(&pins, room, |tx| {
                for of_region in sums.chunk_by(|a, b| a.0 / BLOCKS_PER_REGION == b.0 / BLOCKS_PER_REGION) {
                    let Some((first, _)) = of_region.first() else { continue };
                    let region = first / BLOCKS_PER_REGION;
                    let mut row = block_of_tx(tx, object, region)?;
                    for &(block, sum) in of_region {
                        row.set(block, sum);
                    }
                    self.unverified().changes(object, region, row.version);
                    row.version = tx.transno().0;
                    tx.put(table::BLOCK, &block_key(object, region), row.encode());
                }
                self.note_unstable(object, tx.transno(), range);
                Ok::<_, OsdError>(())
            })
            .map(drop)
    }

    /// Requests a reclaim from `from` on: the blob may hold blocks there that no row describes.
    pub(crate) async fn release_unused(&self, object: ObjectId, from: u64) {
        let done: Result<(), OsdError> = async {
            let key = object_key(object);
            let pins = self.osd().fetch(&[(table::OBJECT, &key), (table::RECLAIM, &key)]).await?;
            let room = self.osd().reserve(Objects::small_credits(true)).await?;
            self.osd()
                .transact(&pins, room, |tx| self.release_blocks(tx, object, block_floor(from)))
                .map(drop)
        }
        .await;
        if let Err(error) = done
            && !is_stopped(&error)
        {
            tracing::warn!(%object, %error, "the space of a failed write cannot be released");
        }
    }
}
