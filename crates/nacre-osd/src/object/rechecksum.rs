//! After the loss of a machine: checksums of blocks whose bytes no client has replayed.
//!
//! The rows of a write may be in the log while its bytes are lost, and its client may never return to replay it. The
//! device then holds older bytes, some of the new ones, or none. So when the recovery is over, every object that was
//! changed after the last stable write is read. In regions that were changed after it, blocks get the checksum of their
//! actual content, and blocks that are not on the device are written with zeros. Blocks that are missing elsewhere were
//! not lost with the machine: they are damage, and are marked as lost (`object/lost.rs`).
//!
//! Invariants: the row [`UNVERIFIED_KEY`] exists from the start that found the loss until all of this is durable, so
//! that the next start continues; the work begins only when no client can replay bytes any more, because replayed bytes
//! are written to blocks whose checksum does not match. It runs beside requests, one region at a time under its range
//! lock.

use crate::error::OsdError;
use crate::object::checksum::{BLOCK_BYTES, block_checksum, zeros};
use crate::object::objects::{Objects, unexpected_result};
use crate::object::rows::{BLOCKS_PER_REGION, ObjectRow, REGION_BYTES, block_key, region_of_key};
use crate::object::scan::is_stopped;
use crate::table;
use crate::table::pins::Pins;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_node::{FileId, ReadFrom, StoreDone, StoreError, StoreOp};
use nacre_types::{Codec, Extent, ObjectId, Transno};

/// Key of the row of `TARGET` with the transno of the last stable write: objects that were changed after it may have
/// checksums of lost bytes, and must be verified.
pub const UNVERIFIED_KEY: &[u8] = b"unverified";

/// Rows of one scan.
const PAGE: u32 = 256;

impl Objects {
    /// Reads at a start which bytes have not been verified since the loss of the machine.
    pub(crate) async fn begin_unverified(&self) -> Result<(), OsdError> {
        let row = self.osd().get(table::TARGET, UNVERIFIED_KEY).await?;
        let stable = row.map(|row| Transno::from_slice(&row)).transpose();
        self.unverified().set(stable.map_err(|_| unexpected_result("row of unverified bytes"))?);
        Ok(())
    }

    /// Starts the task. No client may replay bytes from here on.
    pub fn start_rechecksum(self: &Rc<Self>) {
        let this = self.clone();
        self.spawn_task(async move {
            match this.rechecksum_all().await {
                Ok(0) | Err(OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped)) => {}
                Ok(blocks) => tracing::warn!(
                    blocks,
                    "blocks whose latest bytes were lost with the machine, and were not replayed, hold older bytes or zeros"
                ),
                Err(error) => tracing::error!(%error,
                    "checksums of bytes that were lost with the machine remain; the next start verifies them again"),
            }
            this.cache_trust().work_ended();
        });
    }

    /// Returns how many blocks got another checksum.
    async fn rechecksum_all(self: &Rc<Self>) -> Result<u64, OsdError> {
        let Some(stable) = self.unverified().since() else { return Ok(0) };
        let (mut found, mut left) = (0, 0);
        self.each_object(async |object, row| {
            match self.rechecksum_if_later(object, row, stable).await {
                Ok(blocks) => found += blocks,
                Err(error) if is_stopped(&error) => return Err(error),
                // Other objects are verified all the same. Damaged rows cannot be read at the next start either.
                Err(error) => {
                    left += u64::from(!matches!(error, OsdError::Corrupt { .. }));
                    tracing::error!(target_name = %self.osd().label().name, %object, %error,
                        "checksums of bytes that were lost with the machine remain");
                }
            }
            Ok(!self.tasks().is_stopping())
        })
        .await?;
        if self.tasks().is_stopping() {
            return Ok(found);
        }
        if left > 0 {
            tracing::error!(objects = left, "the next start verifies all checksums again");
            return Ok(found);
        }
        self.osd().commit(self.osd().last_transno()).await?;
        let room = self.osd().reserve(Objects::small_credits(true)).await?;
        self.osd().transact(&Pins::default(), room, |tx| {
            tx.delete(table::TARGET, UNVERIFIED_KEY);
            Ok::<(), OsdError>(())
        })?;
        self.unverified().set(None);
        Ok(found)
    }

    async fn rechecksum_if_later(
        self: &Rc<Self>,
        object: ObjectId,
        row: Result<ObjectRow, OsdError>,
        stable: Transno,
    ) -> Result<u64, OsdError> {
        let row = row?;
        if row.version <= stable.0 || row.is_quarantined() {
            return Ok(0);
        }
        let blocks = self.rechecksum_object(object).await?;
        let longer = self.extend_blob(object).await?;
        if blocks > 0 || longer {
            self.sync_in_background(object).await;
        }
        Ok(blocks)
    }

    /// Extends the file to the length that the row says, with a hole where nothing is written. (Written blocks are present
    /// or marked as lost.) Returns whether it was shorter.
    async fn extend_blob(self: &Rc<Self>, object: ObjectId) -> Result<bool, OsdError> {
        let _guard = self.locks().lock(object, Extent::ALL, true).await;
        let written_to = self.row(object).await?.unwrap_or_default().written_to;
        let file = FileId::Blob(object);
        match self.ctx().io(StoreOp::Len { file }).await? {
            StoreDone::Len(len) if len.unwrap_or(0) < written_to => {}
            _ => return Ok(false),
        }
        self.note_unstable(object, self.osd().last_transno(), Extent::new(0, 0));
        self.io(StoreOp::Truncate { file, len: written_to }).await.map(|()| true)
    }

    async fn rechecksum_object(self: &Rc<Self>, object: ObjectId) -> Result<u64, OsdError> {
        let (mut next, last) = (block_key(object, 0), block_key(object, u64::MAX));
        let mut found = 0;
        loop {
            let rows = self.osd().scan(table::BLOCK, &next, &last, PAGE).await?;
            if rows.is_empty() {
                return Ok(found);
            }
            for (key, _) in &rows {
                let region = region_of_key(key).unwrap_or_default();
                next = block_key(object, region + 1);
                found += self.rechecksum_region(object, region).await?;
                if self.tasks().is_stopping() {
                    return Ok(found);
                }
            }
        }
    }

    async fn rechecksum_region(self: &Rc<Self>, object: ObjectId, region: u64) -> Result<u64, OsdError> {
        let start = region.saturating_mul(REGION_BYTES);
        let range = Extent::new(start, start.saturating_add(REGION_BYTES));
        let _guard = self.locks().lock(object, range, true).await;
        let row = self.row(object).await?.unwrap_or_default();
        let blocks = self.block_row(object, region).await?;
        if blocks.written == 0 || start >= row.size {
            return Ok(0);
        }
        let file = FileId::Blob(object);
        let len = u32::try_from((row.size - start).min(REGION_BYTES)).expect("at most a region");
        let (bytes, held) =
            match self.read_summed(object, start, start + u64::from(len), ReadFrom::Cache).await? {
                Ok((bytes, _)) => (bytes, u64::from(len)),
                Err(held) => match self.ctx().io(StoreOp::Read { file, offset: start, len }).await? {
                    StoreDone::Bytes(bytes) => (bytes, held - start),
                    _ => return Err(unexpected_result("read")),
                },
            };
        let is_unverified = self.unverified().may_differ(object, region, blocks.version);
        let is_damage = held < u64::from(len) && !is_unverified;
        if is_damage {
            self.mark_lost(object, region, start + held, row.size).await?;
        }
        let (mut sums, mut missing) = (Vec::new(), 0);
        for (at, sum) in (0..BLOCKS_PER_REGION).zip(blocks.sums) {
            let (from, to) = (at * BLOCK_BYTES, ((at + 1) * BLOCK_BYTES).min(u64::from(len)));
            if blocks.written & !blocks.lost & (1 << at) == 0 || from >= to || is_damage && held < to {
                continue;
            }
            if held < to {
                missing += 1;
                let from = from.max(held);
                let range = Extent::new(start + from, start + to);
                self.note_unstable(object, self.osd().last_transno(), range);
                let op = StoreOp::Write { file, offset: start + from, data: zeros(to - from) };
                self.ctx().io(op).await?;
            }
            let found = bytes.slice(from.min(held) as usize..to.min(held) as usize);
            if block_checksum(&found) != sum && !is_unverified {
                let error = self.damaged(object, region * BLOCKS_PER_REGION + at);
                tracing::error!(target_name = %self.osd().label().name, %error, "found while objects are verified after a crash");
            } else if block_checksum(&found) != sum {
                sums.push((region * BLOCKS_PER_REGION + at, block_checksum(&found)));
            }
        }
        if !sums.is_empty() {
            let all = region * BLOCKS_PER_REGION..(region + 1) * BLOCKS_PER_REGION;
            self.put_checksums(object, &all, &sums).await?;
        }
        self.unverified().is_exact(object, region);
        Ok(missing.max(sums.len() as u64))
    }
}
