//! Bytes that are overwritten in place, and the loss of a machine or process in between.
//!
//! A write overwrites bytes before its rows are in the log. If only the bytes survive, the checksum in the old row does
//! not match them, which must not be taken for damage. So before the first overwrite of a region since the last stable
//! point, the region is *marked*: its row gets the version of a change that is durable before a byte is written. After an
//! unclean start a version later than the stable point says that bytes may differ without damage, until
//! `object/rechecksum.rs` has looked at them; everywhere else a mismatch is damage.
//!
//! A version that is not durable in the log yet is no mark, because a crash may bring an older row back. So this file
//! remembers the versions that survive any crash: those of durable marks, and of the first row of a region.
//!
//! Marks are widened: each mark of an object covers twice the regions of the one before, so a sequential or random writer
//! waits for few commits.
//!
//! Invariant: while a write is under way, the stable point stays below the versions of the regions that it overwrites
//! ([`OverwriteGuard`]). Once its rows are applied this is not needed: a stable point that is recorded later follows them
//! in the log.

use crate::engine::credits::Credits;
use crate::error::OsdError;
use crate::object::apply::block_of_tx;
use crate::object::marks::OverwriteGuard;
use crate::object::objects::Objects;
use crate::object::rows::{
    REGION_BYTES, block_key, decode_object, mask_of, object_key, region_of_key, regions_of,
};
use crate::table;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use nacre_types::{Codec, ObjectId, Transno};

/// Regions that one mark covers at most beyond those that are overwritten: its rows are one transaction.
const MARKED_AT_ONCE_MAX: u64 = 512;

impl Objects {
    /// Called under the lock of the ranges, before these blocks, which end at the object's size, are overwritten: marks their
    /// regions durably where this is necessary, all of them together. The ranges are in order. The guard is kept until the rows of the write are applied, or the blocks
    /// repaired.
    ///
    /// # Errors
    /// Those of the engine: nothing may be overwritten.
    pub(crate) async fn begin_overwrite(
        self: &Rc<Self>,
        object: ObjectId,
        ranges: &[Range<u64>],
    ) -> Result<Option<OverwriteGuard>, OsdError> {
        let mut versions: Vec<(u64, u64)> = Vec::new();
        for blocks in ranges {
            self.renew_rows(object, blocks.clone()).await?;
            for region in regions_of(blocks) {
                let row = self.block_row(object, region).await?;
                let is_listed = versions.last().is_some_and(|(last, _)| *last == region);
                if !is_listed && row.written & !row.lost & mask_of(region, blocks) != 0 {
                    versions.push((region, row.version));
                }
            }
        }
        if versions.is_empty() {
            return Ok(None);
        }
        // A version that the log has not made durable may be lost, and an older row be there again.
        let (stable, durable) = (self.osd().stable().recorded().0, self.osd().last_committed().0);
        // A row in the log records `stable`: if a crash keeps it, it keeps every version before it as well, and if not, the
        // stable point is the one before.
        let before = self.osd().last_stable().0;
        let recorded_by = self.osd().stable().pending(Transno(durable)).map_or(0, |row| row.0);
        let (mut due, mut others) = (Vec::new(), u64::MAX);
        for (region, version) in versions {
            let marked = self.overwrites().marked(object, region);
            let is_durable =
                version <= durable || marked > stable || version < recorded_by && marked > before;
            match version > stable && is_durable {
                true => others = others.min(version),
                false => due.push(region),
            }
        }
        let mut guard = OverwriteGuard::new(self.overwrites(), others);
        if !due.is_empty() {
            let (version, marked) = self.mark(object, &due).await?;
            guard = OverwriteGuard::new(self.overwrites(), others.min(version.0));
            self.osd().commit(version).await?;
            for region in marked {
                self.overwrites().is_marked(object, region, version.0, Transno(stable));
            }
        }
        Ok(Some(guard))
    }

    /// Gives the regions, and some around them, a version later than the stable point. Returns it, and all these regions.
    async fn mark(self: &Rc<Self>, object: ObjectId, due: &[u64]) -> Result<(Transno, Vec<u64>), OsdError> {
        let widest = (MARKED_AT_ONCE_MAX / due.len() as u64).max(1);
        let width = self.overwrites().width(object).min(widest);
        let mut pins = self.pins_of(object, &(0..0)).await?;
        let mut marked: Vec<u64> = Vec::new();
        for around in due.iter().map(|region| region / width).collect::<BTreeSet<u64>>() {
            let (from, to) = (block_key(object, around * width), block_key(object, (around + 1) * width));
            let limit = u32::try_from(width).unwrap_or(u32::MAX);
            self.osd().fetch_range(table::BLOCK, &from, &to, limit, &mut pins).await?;
            let rows = self.osd().scan(table::BLOCK, &from, &to, limit).await?;
            marked.extend(rows.iter().filter_map(|(key, _)| region_of_key(key)));
        }
        let rows = Objects::write_credits(0, marked.len() as u64 * REGION_BYTES);
        let credits = Credits { object_bytes: 0, in_place: true, ..rows };
        let room = self.osd().reserve(credits).await?;
        self.osd().transact(&pins, room, |tx| {
            let version = tx.transno().0;
            let mut changed = Vec::new();
            for &region in &marked {
                let mut row = block_of_tx(tx, object, region)?;
                // Other writers may have cut it off meanwhile.
                if row.written != 0 {
                    self.unverified().changes(object, region, row.version);
                    row.version = version;
                    tx.put(table::BLOCK, &block_key(object, region), row.encode());
                    changed.push(region);
                }
            }
            let key = object_key(object);
            if let Some(bytes) = tx.get(table::OBJECT, &key) {
                let mut row = decode_object(object, bytes)?;
                row.version = version;
                tx.put(table::OBJECT, &key, row.to_vec());
            }
            Ok::<_, OsdError>(changed)
        })
    }
}
