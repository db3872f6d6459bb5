//! After the loss of a machine: sums of bytes that nobody has put back.
//!
//! The rows of a write may be in the log while its bytes are lost, and its client may never come to make it again. The
//! device then holds older bytes, some of the new ones, or nothing. So once the recovery is over every object that was
//! changed after the last stable write is read, blocks get the sums of what they hold, and blocks that are not on the
//! device at all are written with zeros: those of regions that were changed after the last stable write. What is
//! missing of others is no loss of the machine's but damage, and is marked as lost (`object/lost.rs`).
//!
//! Invariants: a row ([`UNSUMMED_KEY`]) is there from the start that found the loss until all of this is durable, so
//! that the next start goes on with it; it begins only when nobody can put bytes back any more, because what is put
//! back goes where sums do not fit. It runs beside requests, a region at a time under its range lock.

use crate::error::OsdError;
use crate::object::checksum::{BLOCK_BYTES, block_sum, zeros};
use crate::object::objects::{Objects, wrong_answer};
use crate::object::rows::{BLOCKS_PER_REGION, ObjectRow, REGION_BYTES, block_key, region_of_key};
use crate::object::scan::is_stopped;
use crate::table;
use crate::table::pins::Pins;
use alloc::rc::Rc;
use alloc::vec::Vec;
use nacre_node::{FileId, StoreDone, StoreError, StoreOp};
use nacre_types::{Codec, Extent, ObjectId, Transno};

/// Row of `TARGET`: objects changed after this may have sums of bytes that were lost.
pub const UNSUMMED_KEY: &[u8] = b"unsummed";

/// Rows of one scan.
const PAGE: u32 = 256;

impl Objects {
    /// What a start knows of bytes that may be gone.
    pub(crate) async fn begin_unverified(&self) -> Result<(), OsdError> {
        let row = self.osd().get(table::TARGET, UNSUMMED_KEY).await?;
        let stable = row.map(|row| Transno::from_slice(&row)).transpose();
        self.set_unverified_since(stable.map_err(|_| wrong_answer("unsummed row"))?);
        Ok(())
    }

    /// Starts the task, if there is something to do. Nobody puts bytes back from here on.
    pub fn sum_lost(self: &Rc<Self>) {
        let this = self.clone();
        self.spawn_task(async move {
            match this.sum_all().await {
                Ok(0) | Err(OsdError::Stopped(_) | OsdError::Store(StoreError::Stopped)) => {}
                Ok(blocks) => tracing::warn!(
                    blocks,
                    "blocks whose latest bytes were lost with the machine, and not made again, hold older ones or zeros"
                ),
                Err(error) => tracing::error!(%error,
                    "sums of bytes that were lost with the machine stay, and are looked at again at the next start"),
            }
        });
    }

    /// How many blocks had other sums.
    async fn sum_all(self: &Rc<Self>) -> Result<u64, OsdError> {
        let Some(stable) = self.unverified_since() else { return Ok(0) };
        let (mut found, mut left) = (0, 0);
        self.each_object(async |object, row| {
            match self.sum_if_later(object, row, stable).await {
                Ok(blocks) => found += blocks,
                Err(error) if is_stopped(&error) => return Err(error),
                // The others have a right to theirs. Damaged rows are read by nobody, and the next start reads no more.
                Err(error) => {
                    left += u64::from(!matches!(error, OsdError::Corrupt { .. }));
                    tracing::error!(target_name = %self.osd().label().name, %object, %error,
                        "sums of bytes that were lost with the machine stay");
                }
            }
            Ok(!self.tasks().is_stopping())
        })
        .await?;
        if self.tasks().is_stopping() {
            return Ok(found);
        }
        if left > 0 {
            tracing::error!(objects = left, "the next start looks at the sums of all again");
            return Ok(found);
        }
        self.osd().commit(self.osd().last_transno()).await?;
        let room = self.osd().reserve(Objects::small_credits(true)).await?;
        self.osd().transact(&Pins::default(), room, |tx| {
            tx.delete(table::TARGET, UNSUMMED_KEY);
            Ok::<(), OsdError>(())
        })?;
        self.set_unverified_since(None);
        Ok(found)
    }

    async fn sum_if_later(
        self: &Rc<Self>,
        object: ObjectId,
        row: Result<ObjectRow, OsdError>,
        stable: Transno,
    ) -> Result<u64, OsdError> {
        let row = row?;
        if row.version <= stable.0 || row.is_quarantined() {
            return Ok(0);
        }
        let blocks = self.sum_object(object).await?;
        let longer = self.lengthen(object).await?;
        if blocks > 0 || longer {
            self.sync_aside(object).await;
        }
        Ok(blocks)
    }

    /// The file is as long again as the row says, with a hole where nothing is written. (Written blocks are there, or
    /// marked as lost.)
    async fn lengthen(self: &Rc<Self>, object: ObjectId) -> Result<bool, OsdError> {
        let _guard = self.locks().lock(object, Extent::ALL, true).await;
        let written_to = self.row(object).await?.unwrap_or_default().written_to;
        let file = FileId::Blob(object);
        match self.ctx().io(StoreOp::Len { file }).await? {
            StoreDone::Len(len) if len.unwrap_or(0) < written_to => {}
            _ => return Ok(false),
        }
        self.note_unstable(object, self.osd().last_transno(), 0);
        self.io(StoreOp::Truncate { file, len: written_to }).await.map(|()| true)
    }

    async fn sum_object(self: &Rc<Self>, object: ObjectId) -> Result<u64, OsdError> {
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
                found += self.sum_region(object, region).await?;
                if self.tasks().is_stopping() {
                    return Ok(found);
                }
            }
        }
    }

    async fn sum_region(self: &Rc<Self>, object: ObjectId, region: u64) -> Result<u64, OsdError> {
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
        let (bytes, held) = match self.read_written(object, start, start + u64::from(len)).await? {
            Ok(bytes) => (bytes, u64::from(len)),
            Err(held) => match self.ctx().io(StoreOp::Read { file, offset: start, len }).await? {
                StoreDone::Bytes(bytes) => (bytes, held - start),
                _ => return Err(wrong_answer("read")),
            },
        };
        let is_damage = held < u64::from(len) && !self.may_be_gone(blocks.version);
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
                self.note_unstable(object, self.osd().last_transno(), to - from);
                let op = StoreOp::Write { file, offset: start + from, data: zeros(to - from) };
                self.ctx().io(op).await?;
            }
            let found = bytes.slice(from.min(held) as usize..to.min(held) as usize);
            if block_sum(&found) != sum {
                sums.push((region * BLOCKS_PER_REGION + at, block_sum(&found)));
            }
        }
        if sums.is_empty() {
            return Ok(missing);
        }
        let all = region * BLOCKS_PER_REGION..(region + 1) * BLOCKS_PER_REGION;
        self.put_sums(object, &all, &sums).await?;
        Ok(missing.max(sums.len() as u64))
    }
}
