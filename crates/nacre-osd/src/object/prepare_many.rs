//! The first half of many small writes of many objects, which one transaction applies.
//!
//! Why: a small write of its own costs a transaction and a record in the log, which take longer than its bytes.
//!
//! The order is that of a single write (`object/prepare.rs`), step by step for all: range locks, rows, marks, room for the
//! transaction, admission, bytes. All writes are admitted at once, when nothing is waited for any more but the store.
//! Range locks are taken in the order of objects, and all of an object together, so two such calls do not wait for each
//! other in a circle; whoever locks one object only waits for none of these.
//!
//! Writes of one object may touch the same block. Then one follows the other, and keeps what that one has left of the
//! block; only the last checksum counts.
//!
//! An object of which one write fails fails as a whole, and is repaired when its [`Prepared`] is dropped. What a single
//! write repeats under other conditions (bytes of the file are missing) fails here: the caller makes single writes of it.

use crate::engine::credits::Credits;
use crate::engine::room::Reservation;
use crate::error::OsdError;
use crate::object::apply::{ObjectChange, Prepared, WrittenPart};
use crate::object::checksum::{BLOCK_BYTES, zeros};
use crate::object::marks::OverwriteGuard;
use crate::object::objects::{Objects, unexpected_result};
use crate::object::prepare::{blocks_around, end_of, store_error};
use crate::object::range_lock::RangeGuard;
use crate::object::rows::{
    BLOCK_ROW_BYTES_MAX, ObjectRow, REGION_BYTES, block_floor, block_key, blocks_of, object_key, regions_of,
};
use crate::table;
use crate::table::key::Key;
use crate::table::pins::Pins;
use alloc::collections::BTreeSet;
use alloc::rc::Rc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Range;
use nacre_node::{FileId, Keep, StoreDone, StoreError, StoreOp, WriteTo, join_all};
use nacre_types::{Extent, ObjectId};

/// Store operations of one object, and objects, that are under way together.
const AT_A_TIME: usize = 16;

/// The writes of one object.
#[derive(Debug)]
pub struct ObjectWrites {
    /// The object, which its first write creates.
    pub object: ObjectId,
    /// Offset and bytes of each: not empty, in order, without overlap.
    pub writes: Vec<(u64, Vec<Bytes>)>,
}

/// Changes of several objects that are to be applied in one transaction, with what that needs.
#[must_use = "the ranges stay locked until the changes are applied or dropped"]
pub struct PreparedMany<A> {
    /// For each object, in order.
    pub changes: Vec<Result<Prepared, OsdError>>,
    /// The rows that all of them read.
    pub pins: Pins,
    /// Room for all of them.
    pub reservation: Reservation,
    /// The result of the admission.
    pub admitted: A,
}

/// A write of an object whose range is locked.
struct Part {
    offset: u64,
    end: u64,
    data: Vec<Bytes>,
    keep_head: Keep,
    keep_tail: Keep,
}
impl Part {
    fn blocks(&self) -> Range<u64> {
        blocks_of(self.offset, self.end)
    }
    /// The range of a part ends at its last byte, whatever it is padded with in front.
    fn written(&self, sums: Vec<u32>) -> WrittenPart {
        WrittenPart::new(self.offset / BLOCK_BYTES, sums, Extent::new(self.offset, self.end))
    }
}

/// An object whose ranges are locked.
struct Locked {
    object: ObjectId,
    guard: RangeGuard,
    row: ObjectRow,
    parts: Vec<Part>,
    /// The last block of the object gets zeros from its size on, in a write of its own.
    zeroed: bool,
}
impl Locked {
    fn regions(&self) -> BTreeSet<u64> {
        let zeroed = self.zeroed.then_some(self.row.size / REGION_BYTES);
        self.parts.iter().flat_map(|part| regions_of(&part.blocks())).chain(zeroed).collect()
    }
    /// Adds the keys of the rows that the change of the object reads; returns what it writes at most.
    fn rows(&self, keys: &mut Vec<Key>) -> Credits {
        let (object, key) = (self.object, object_key(self.object));
        keys.extend([Key::new(table::OBJECT, &key), Key::new(table::RECLAIM, &key)]);
        let regions = self.regions();
        keys.extend(regions.iter().map(|&region| Key::new(table::BLOCK, &block_key(object, region))));
        let regions = u32::try_from(regions.len()).unwrap_or(u32::MAX);
        Credits {
            rows: regions.saturating_add(3),
            row_bytes: regions.saturating_add(1).saturating_mul(BLOCK_ROW_BYTES_MAX).saturating_add(256),
            ..Credits::default()
        }
    }
    /// The blocks that are overwritten, as the object is.
    fn overwritten(&self) -> Vec<Range<u64>> {
        let size = self.row.size;
        self.parts.iter().map(|part| blocks_of(part.offset, part.end.min(size))).collect()
    }
}

/// The outcome of one write to the store.
enum Written {
    Done(WrittenPart),
    /// Bytes may have been written, without effect.
    Torn(WrittenPart, OsdError),
    /// Nothing was written.
    Not(OsdError),
}

impl Objects {
    /// Writes the bytes of all these writes, those of each object under the locks of their blocks. The objects are in order.
    /// `own`: what the transaction writes beside them. `admit` is called once, after every wait and immediately before the
    /// first byte is written.
    ///
    /// # Errors
    /// That of `admit`, `NoSpace` and those of the engine: nothing has changed. An object that fails alone has its error in
    /// the result, and has changed as after a failed [`Self::prepare_write`].
    pub async fn prepare_many<A, E: From<OsdError>>(
        self: &Rc<Self>,
        writes: Vec<ObjectWrites>,
        own: Credits,
        admit: &dyn Fn() -> Result<A, E>,
    ) -> Result<PreparedMany<A>, E> {
        self.wait_for_writeback().await;
        let mut locked = Vec::with_capacity(writes.len());
        for of_object in writes {
            locked.push(self.lock_writes(of_object).await);
        }
        let marked = join_all(locked.into_iter().map(async |locked| {
            let locked = locked?;
            let overwrite = self.begin_overwrite(locked.object, &locked.overwritten()).await?;
            Ok::<_, OsdError>((locked, overwrite))
        }))
        .await;
        // The caller has seen to the space of the bytes, so only rows need room, as after a single write.
        let (mut keys, mut credits) = (Vec::new(), Credits { in_place: true, ..own });
        let mut all_credits = Vec::with_capacity(marked.len());
        for (locked, _) in marked.iter().flatten() {
            let of_object = locked.rows(&mut keys);
            credits.rows = credits.rows.saturating_add(of_object.rows);
            credits.row_bytes = credits.row_bytes.saturating_add(of_object.row_bytes);
            all_credits.push(of_object);
        }
        let pins = self.osd().fetch_set(&keys, &[], 0).await?;
        let reservation = self.osd().reserve(credits).await?;
        let admitted = admit()?;
        let mut changes = Vec::with_capacity(marked.len());
        let (mut marked, mut all_credits) = (marked.into_iter(), all_credits.into_iter());
        loop {
            let some: Vec<_> = marked.by_ref().take(AT_A_TIME).collect();
            if some.is_empty() {
                break;
            }
            let written = some.into_iter().map(|marked| {
                let credits = if marked.is_ok() { all_credits.next() } else { None };
                async move {
                    let (locked, overwrite) = marked?;
                    self.write_locked(locked, overwrite, credits.unwrap_or_default()).await
                }
            });
            changes.extend(join_all(written).await);
        }
        Ok(PreparedMany { changes, pins, reservation, admitted })
    }

    /// Locks the blocks of all writes of an object, and finds out what stays of these.
    async fn lock_writes(self: &Rc<Self>, of_object: ObjectWrites) -> Result<Locked, OsdError> {
        let ObjectWrites { object, writes } = of_object;
        let mut blocks: Vec<Extent> = Vec::with_capacity(writes.len());
        let mut parts: Vec<Part> = Vec::with_capacity(writes.len());
        for (offset, data) in writes {
            let end = end_of(object, offset, data.iter().map(|b| b.len() as u64).sum())?;
            assert!(offset < end && parts.last().is_none_or(|last| last.end <= offset), "in order");
            let around = blocks_around(offset, end);
            match blocks.last_mut() {
                Some(last) if last.end >= around.start => last.end = last.end.max(around.end),
                _ => blocks.push(around),
            }
            parts.push(Part { offset, end, data, keep_head: Keep::Nothing, keep_tail: Keep::Nothing });
        }
        let end = parts.last().map_or(0, |part| part.end);
        let (guard, row, tail) = loop {
            let (guard, row, tail) = self.lock_to_change(object, blocks.clone(), end).await?;
            if self.find_kept(object, &mut parts, row.size).await? {
                break (guard, row, tail);
            }
            drop(guard);
            self.reclaim_object(object).await?;
        };
        // The first write beyond the size makes the bytes from there on part of the object.
        let mut zeroed = false;
        if let Some(tail) = tail
            && let Some(part) = parts.iter_mut().find(|part| part.end > row.size)
            && part.offset > row.size
        {
            if block_floor(part.offset) == tail {
                let mut padded = zeros(part.offset - row.size);
                padded.append(&mut part.data);
                (part.offset, part.data) = (row.size, padded);
            } else {
                zeroed = true;
            }
        }
        Ok(Locked { object, guard, row, parts, zeroed })
    }

    /// Fills in what each write keeps beside its bytes. False: truncated bytes that are still in the blob must be removed
    /// first.
    async fn find_kept(&self, object: ObjectId, parts: &mut [Part], size: u64) -> Result<bool, OsdError> {
        let mut before = None;
        for part in parts {
            let Some((head, tail)) = self.kept_beside(object, part.offset, part.end, size).await? else {
                return Ok(false);
            };
            let (first, last) = (part.offset / BLOCK_BYTES, (part.end - 1) / BLOCK_BYTES);
            let follows = before == Some(first);
            // The write before has verified the block, and has written all of it.
            part.keep_head = if follows { Keep::Bytes } else { head };
            part.keep_tail = match follows && last == first {
                true if part.end < size => Keep::Bytes,
                true => Keep::Nothing,
                false => tail,
            };
            before = Some(last);
        }
        Ok(true)
    }

    /// Writes the bytes of an object.
    async fn write_locked(
        self: &Rc<Self>,
        locked: Locked,
        overwrite: Option<OverwriteGuard>,
        credits: Credits,
    ) -> Result<Prepared, OsdError> {
        let Locked { object, guard, row, parts, zeroed } = locked;
        let zeroed = if zeroed { Some(self.zero_tail(object, row.size).await?) } else { None };
        // Writes that touch the same block follow one another.
        let shares = |a: &Part, b: &Part| a.blocks().end > b.blocks().start;
        let mut chains: Vec<Vec<Part>> = Vec::with_capacity(parts.len());
        for part in parts {
            match chains.last_mut() {
                Some(chain) if chain.last().is_some_and(|last| shares(last, &part)) => chain.push(part),
                _ => chains.push(alloc::vec![part]),
            }
        }
        let mut written = Vec::new();
        let mut chains = chains.into_iter();
        loop {
            let some: Vec<Vec<Part>> = chains.by_ref().take(AT_A_TIME).collect();
            if some.is_empty() {
                break;
            }
            let ended = join_all(some.into_iter().map(|chain| self.write_chain(object, &row, chain))).await;
            written.extend(ended.into_iter().flatten());
        }
        let (mut done, mut failed) = (Vec::new(), None);
        for outcome in written {
            match outcome {
                Written::Done(part) => done.push(part),
                Written::Torn(part, error) => {
                    done.push(part);
                    failed = Some(error);
                }
                Written::Not(error) => failed = Some(error),
            }
        }
        let change = ObjectChange::WriteMany { parts: done };
        let prepared = self.prepared(object, guard, Pins::default(), credits, change);
        let prepared = prepared.zeroed(zeroed).overwriting(overwrite);
        match failed {
            None => Ok(prepared),
            Some(error) => {
                drop(prepared); // the blocks that were written are repaired
                Err(error)
            }
        }
    }
    async fn write_chain(&self, object: ObjectId, row: &ObjectRow, chain: Vec<Part>) -> Vec<Written> {
        let mut written = Vec::with_capacity(chain.len());
        for part in chain {
            let bytes = part.end - part.offset;
            let blocks = part.blocks();
            let op = StoreOp::WriteChecksummed {
                file: FileId::Blob(object),
                offset: part.offset,
                data: part.data.clone(),
                keep_head: part.keep_head,
                keep_tail: part.keep_tail,
                size: row.size.max(part.end),
                written_to: Some(row.written_to),
                to: WriteTo::Cache,
            };
            let unknown = || alloc::vec![0; (blocks.end - blocks.start) as usize];
            let outcome = match self.ctx().io(op).await {
                Ok(StoreDone::Checksums(sums)) if sums.len() as u64 == blocks.end - blocks.start => {
                    Written::Done(part.written(sums))
                }
                Ok(_) => Written::Torn(part.written(unknown()), unexpected_result("checksummed write")),
                Err(StoreError::Mismatch { offset, .. }) => {
                    Written::Not(self.damaged(object, offset / BLOCK_BYTES))
                }
                Err(error @ StoreError::Missing { .. }) => Written::Not(OsdError::Store(error)),
                Err(error) => Written::Torn(part.written(unknown()), store_error(error, bytes)),
            };
            let is_done = matches!(outcome, Written::Done(_));
            written.push(outcome);
            if !is_done {
                break;
            }
        }
        written
    }
}
