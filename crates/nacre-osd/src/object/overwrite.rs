//! Bytes that are overwritten in place, and the loss of a machine or process in between.
//!
//! A write overwrites bytes before its rows are in the log. If only the bytes survive, the checksum in the old row does
//! not match them, which must not be taken for damage. So before the first overwrite of a region since the last stable
//! point, the region is *marked*: its row gets the version of a change that is durable before a byte is written. After an
//! unclean start a version later than the stable point says that bytes may differ without damage, until
//! `object/rechecksum.rs` has looked at them; everywhere else a mismatch is damage.
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
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::ops::Range;
use nacre_types::{Codec, ObjectId, Transno};

impl Objects {
    /// Called under the lock of the range, before `blocks`, which end at the object's size, are overwritten: marks their
    /// regions durably where this is necessary. The guard is kept until the rows of the write are applied, or the blocks
    /// repaired.
    ///
    /// # Errors
    /// Those of the engine: nothing may be overwritten.
    pub(crate) async fn begin_overwrite(
        self: &Rc<Self>,
        object: ObjectId,
        blocks: &Range<u64>,
    ) -> Result<Option<OverwriteGuard>, OsdError> {
        let mut versions = Vec::new();
        for region in regions_of(blocks) {
            let row = self.block_row(object, region).await?;
            if row.written & !row.lost & mask_of(region, blocks) != 0 {
                versions.push((region, row.version));
            }
        }
        let stable = self.osd().stable().recorded().0;
        let Some(earliest) = versions
            .iter()
            .map(|(_, version)| *version)
            .filter(|v| *v > stable)
            .min()
            .or((!versions.is_empty()).then_some(u64::MAX))
        else {
            return Ok(None);
        };
        let mut guard = OverwriteGuard::new(self.overwrites(), earliest);
        let mut due = versions.iter().filter(|(_, version)| *version <= stable).map(|(region, _)| *region);
        if let Some(first) = due.next() {
            let last = due.next_back().unwrap_or(first);
            let marked = self.mark(object, first..last + 1, stable).await?;
            guard = OverwriteGuard::new(self.overwrites(), earliest.min(marked.0));
            self.osd().commit(marked).await?;
        }
        Ok(Some(guard))
    }

    /// Gives the regions, and some around them, a version later than the stable point. Returns it.
    async fn mark(
        self: &Rc<Self>,
        object: ObjectId,
        regions: Range<u64>,
        stable: u64,
    ) -> Result<Transno, OsdError> {
        let width = self.overwrites().width(object);
        let regions = regions.start / width * width..regions.end.div_ceil(width) * width;
        let pins = self.pins_of(object, &regions).await?;
        let (from, to) = (block_key(object, regions.start), block_key(object, regions.end));
        let limit = u32::try_from(regions.end - regions.start).unwrap_or(u32::MAX);
        let rows = self.osd().scan(table::BLOCK, &from, &to, limit).await?;
        let marked: Vec<u64> = rows.iter().filter_map(|(key, _)| region_of_key(key)).collect();
        let credits =
            Credits { object_bytes: 0, ..Objects::write_credits(0, marked.len() as u64 * REGION_BYTES) };
        let room = self.osd().reserve(credits).await?;
        let (transno, ()) = self.osd().transact(&pins, room, |tx| {
            let version = tx.transno().0;
            for &region in &marked {
                let mut row = block_of_tx(tx, object, region)?;
                // Other writers may have changed it, or cut it off, meanwhile.
                if row.written != 0 && row.version <= stable {
                    self.unverified().changes(object, region, row.version);
                    row.version = version;
                    tx.put(table::BLOCK, &block_key(object, region), row.encode());
                }
            }
            let key = object_key(object);
            if let Some(bytes) = tx.get(table::OBJECT, &key) {
                let mut row = decode_object(object, bytes)?;
                row.version = version;
                tx.put(table::OBJECT, &key, row.to_vec());
            }
            Ok::<(), OsdError>(())
        })?;
        Ok(transno)
    }
}
