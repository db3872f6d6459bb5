//! After a change of an object that did not come about: blocks that were overwritten get sums that fit, blocks that
//! were taken are given back.
//!
//! Invariant: the range lock of the change is held until this is done.

use crate::engine::credits::Credits;
use crate::error::OsdError;
use crate::object::apply::block_of_tx;
use crate::object::checksum::{BLOCK_BYTES, block_sum};
use crate::object::objects::{Objects, wrong_answer};
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
use nacre_types::ObjectId;

impl Objects {
    /// After a write that failed in the middle, under its lock: blocks that held data get the sums of what they
    /// hold now, blocks that did not are given back. An object that cannot be repaired is taken out of use.
    pub(crate) async fn repair(self: &Rc<Self>, object: ObjectId, blocks: &Range<u64>, size: u64) {
        match self.sum_again(object, blocks, size).await {
            Ok(()) => self.leak(object, blocks.start * BLOCK_BYTES).await,
            Err(error) if is_stopped(&error) => {}
            Err(error) => self.quarantine(object, &error).await,
        }
    }
    async fn sum_again(
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
                match self.needed(object, &row, from, end).await {
                    Ok(bytes) => sums.push((block, block_sum(&bytes))),
                    Err(OsdError::Lost { .. }) => {
                        self.mark_lost(object, region, from, size).await?;
                        break; // what comes behind it in this region is gone as well
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        if sums.is_empty() { Ok(()) } else { self.put_sums(object, blocks, &sums).await }
    }
    /// What the blob holds of a block up to `end`, with zeros for bytes that are not there.
    pub(crate) async fn held_by(&self, object: ObjectId, block: u64, end: u64) -> Result<Bytes, OsdError> {
        let offset = block * BLOCK_BYTES;
        let len = u32::try_from(end.saturating_sub(offset)).expect("at most a block");
        match self.ctx().io(StoreOp::Read { file: FileId::Blob(object), offset, len }).await? {
            StoreDone::Bytes(bytes) if bytes.len() == len as usize => Ok(bytes),
            StoreDone::Bytes(short) => {
                let mut padded = Vec::from(short);
                padded.resize(len as usize, 0);
                Ok(padded.into())
            }
            _ => Err(wrong_answer("read")),
        }
    }
    pub(crate) async fn put_sums(
        self: &Rc<Self>,
        object: ObjectId,
        blocks: &Range<u64>,
        sums: &[(u64, u32)],
    ) -> Result<(), OsdError> {
        let pins = self.pins_of(object, &regions_of(blocks)).await?;
        let bytes = (blocks.end - blocks.start) * BLOCK_BYTES;
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
                    row.version = tx.transno().0;
                    tx.put(table::BLOCK, &block_key(object, region), row.encode());
                }
                self.note_unstable(object, tx.transno(), bytes);
                Ok::<_, OsdError>(())
            })
            .map(drop)
    }

    /// The blob may hold blocks from `from` on that no row speaks of.
    pub(crate) async fn leak(&self, object: ObjectId, from: u64) {
        let done: Result<(), OsdError> = async {
            let key = object_key(object);
            let pins = self.osd().fetch(&[(table::OBJECT, &key), (table::RECLAIM, &key)]).await?;
            let room = self.osd().reserve(Objects::small_credits(true)).await?;
            self.osd().transact(&pins, room, |tx| self.let_go(tx, object, block_floor(from))).map(drop)
        }
        .await;
        if let Err(error) = done
            && !is_stopped(&error)
        {
            tracing::warn!(%object, %error, "space of a failed write is not given back");
        }
    }
}
