//! Verification of an OST's rows against each other, against its blobs and against its accounts, for `nacre check`.
//!
//! Reads only. Checked are: every object row and its block rows (masks inside the size, block counts, blob long enough,
//! no block marked as lost and, with the option `sums`, the checksum of every written block), block rows without an object,
//! tombstones with one, the count of objects, usage per owner. The following are counted and reported, but are not problems: a
//! blob without rows (space that a crash left behind); after an unplanned stop, in regions that were changed or marked
//! after the last stable write, bytes that are missing and checksums that differ. An overwrite that a crash interrupted
//! before its row was written leaves such a checksum; the next start examines these regions.

use crate::locks::PERSISTENT_LOCKS;
use crate::room::{self, ObjectCount};
use crate::tombstone;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_node::{Ctx, FileId, FileKind, ReadFrom, StoreDone, StoreError, StoreOp};
use nacre_osd::checksum::block_checksum;
use nacre_osd::object_rows::{BlockRow, block_key, object_key, object_of_key, region_of_key};
use nacre_osd::{
    BLOCK_BYTES, OBJECT_BYTES_MAX, ObjectRow, Osd, OsdError, REGION_BYTES, STABLE_KEY, UNVERIFIED_KEY,
    key_after, table,
};
use nacre_target::parse_persistent_lock;
use nacre_types::{Codec, ObjectId, Transno};
use nacre_wire::ost::Enqueue;

/// Rows of one scan.
const PAGE: u32 = 512;
/// Problems and notes that are described; the others are only counted.
const DESCRIBED_MAX: usize = 100;
const BLOCKS_PER_REGION: u64 = REGION_BYTES / BLOCK_BYTES;
const SECTORS_PER_BLOCK: u64 = BLOCK_BYTES / 512;

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Objects with a row.
    pub objects: u64,
    /// Allocated, in units of 512 bytes.
    pub blocks: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Locks that the next start restores.
    pub persistent_locks: u64,
    /// Blobs without a row.
    pub blobs_without_rows: u64,
    /// Written blocks whose checksum was compared.
    pub sums: u64,
    /// Those whose checksum differs.
    pub sums_differ: u64,
    /// Contradictions between rows, blobs and accounts.
    pub problems: u64,
    /// The first problems, in words.
    pub descriptions: Vec<String>,
    /// The first findings that are not problems, in words.
    pub notes: Vec<String>,
}

impl Checked {
    fn problem(&mut self, text: String) {
        self.problems += 1;
        if self.descriptions.len() < DESCRIBED_MAX {
            self.descriptions.push(text);
        }
    }
    fn note(&mut self, text: String) {
        if self.notes.len() < DESCRIBED_MAX {
            self.notes.push(text);
        }
    }
}

/// Where the last of these blocks of a region ends; 0 for none.
fn end_of(region: u64, mask: u64) -> u64 {
    let blocks = u64::from(64 - mask.leading_zeros());
    if blocks == 0 {
        0
    } else {
        (region.saturating_mul(BLOCKS_PER_REGION).saturating_add(blocks)).saturating_mul(BLOCK_BYTES)
    }
}

/// (kind, id) → (bytes, objects): kind 0 user, 1 group, 2 project.
type Usage = BTreeMap<(u8, u32), (u64, u64)>;

struct Check<'a> {
    ctx: &'a Rc<Ctx>,
    osd: &'a Rc<Osd>,
    sums: bool,
    /// Bytes of later changes may have gone with a machine: the target's next start looks at them.
    stable: Option<Transno>,
    found: Checked,
    usage: Usage,
}

/// Checks the rows of an open engine. `sums`: every written block is read as well.
///
/// # Errors
/// Those of engine and store; problems of the rows are in the result.
pub async fn check(ctx: &Rc<Ctx>, osd: &Rc<Osd>, sums: bool) -> Result<Checked, OsdError> {
    let stable = stable(osd).await?;
    let mut check = Check { ctx, osd, sums, stable, found: Checked::default(), usage: Usage::new() };
    if stable.is_some() && osd.was_clean() {
        check.found.note(
            "checksums of its last changes before a crash are not all verified yet: the next start continues"
                .into(),
        );
    }
    check.objects().await?;
    check.strays().await?;
    check.tombstones().await?;
    check.persistent_locks().await?;
    check.blobs().await?;
    check.count().await?;
    check.accounts().await?;
    Ok(check.found)
}

/// The transno up to which bytes are stable; bytes of later changes may be lost without damage.
async fn stable(osd: &Osd) -> Result<Option<Transno>, OsdError> {
    let unverified = osd.get(table::TARGET, UNVERIFIED_KEY).await?;
    let row = match unverified {
        None if osd.was_clean() => return Ok(None),
        None => osd.get(table::TARGET, STABLE_KEY).await?,
        found => found,
    };
    Ok(Some(row.and_then(|row| Transno::from_slice(&row).ok()).unwrap_or(Transno(0))))
}

impl Check<'_> {
    async fn objects(&mut self) -> Result<(), OsdError> {
        let mut pages = self.osd.pages(table::OBJECT, PAGE);
        while let Some(rows) = pages.next().await? {
            for (key, value) in &rows {
                let object = object_of_key(key).filter(|o| key.len() == 16 && o.fid.is_valid());
                match (object, ObjectRow::from_slice(value)) {
                    (Some(object), Ok(row)) => self.object(object, &row).await?,
                    _ => self.found.problem(format!("object row {key:02x?} cannot be read")),
                }
            }
        }
        Ok(())
    }

    async fn object(&mut self, object: ObjectId, row: &ObjectRow) -> Result<(), OsdError> {
        self.found.objects += 1;
        self.found.blocks += row.blocks;
        let owner = row.owner;
        for key in [(0, owner.uid), (1, owner.gid), (2, owner.projid)] {
            let usage = self.usage.entry(key).or_default();
            *usage = (usage.0 + row.blocks * 512, usage.1 + 1);
        }
        if row.is_quarantined() {
            self.found.problem(format!("object {object} is quarantined: bytes of it were lost"));
        }
        if row.size > OBJECT_BYTES_MAX {
            self.found.problem(format!("object {object} has an impossible size, {} bytes", row.size));
        }
        let (mut allocated, mut written_end, mut needed) = (0, 0, 0);
        let (mut lost, mut first_lost) = (0, u64::MAX);
        let (from, to) = (block_key(object, 0), key_after(&block_key(object, u64::MAX)));
        let mut pages = self.osd.pages(table::BLOCK, PAGE).within(&from, &to);
        while let Some(rows) = pages.next().await? {
            for (key, value) in &rows {
                let (Some(region), Some(blocks)) = (region_of_key(key), BlockRow::decode(value)) else {
                    self.found.problem(format!("a block row of object {object} cannot be read"));
                    continue;
                };
                allocated += u64::from(blocks.allocated.count_ones());
                written_end = end_of(region, blocks.written).max(written_end);
                if !self.may_be_gone(blocks.version) {
                    needed = end_of(region, blocks.written & !blocks.lost).max(needed);
                }
                if blocks.lost != 0 {
                    lost += u64::from(blocks.lost.count_ones());
                    first_lost = first_lost.min(end_of(region, blocks.lost & blocks.lost.wrapping_neg()));
                }
                if self.sums && !row.is_quarantined() {
                    self.region_sums(object, row.size, region, &blocks).await?;
                }
            }
        }
        if allocated * SECTORS_PER_BLOCK != row.blocks {
            let text = format!(
                "object {object} says {} blocks of 512 bytes, its block rows say {}",
                row.blocks,
                allocated * SECTORS_PER_BLOCK
            );
            self.found.problem(text);
        }
        if written_end > row.size.next_multiple_of(BLOCK_BYTES) {
            let text =
                format!("object {object} has written blocks up to {written_end}, its size is {}", row.size);
            self.found.problem(text);
        }
        if lost > 0 {
            let first = first_lost - BLOCK_BYTES;
            let text = format!(
                "object {object}: {lost} blocks are lost, the first at byte {first}: they return EIO until they are overwritten"
            );
            self.found.problem(text);
        }
        self.blob_length(object, needed.min(row.size)).await
    }

    /// Checks that the blob of an object has the bytes that its rows need.
    async fn blob_length(&mut self, object: ObjectId, needed: u64) -> Result<(), OsdError> {
        let op = StoreOp::Len { file: FileId::Blob(object) };
        if needed > 0
            && let StoreDone::Len(len) = self.ctx.io(op).await?
            && len.unwrap_or(0) < needed
        {
            let text = match len {
                None => format!("object {object}: the file of its {needed} bytes is gone"),
                Some(len) => format!("object {object}: its file has {len} bytes, {needed} were written"),
            };
            self.found.problem(text);
        }
        Ok(())
    }

    fn may_be_gone(&self, version: u64) -> bool {
        self.stable.is_some_and(|stable| version > stable.0)
    }

    /// Compares the written blocks of a region with their sums, over the bytes below the size.
    async fn region_sums(
        &mut self,
        object: ObjectId,
        size: u64,
        region: u64,
        row: &BlockRow,
    ) -> Result<(), OsdError> {
        let start = region.saturating_mul(REGION_BYTES);
        if row.written == 0 || start >= size {
            return Ok(());
        }
        let len = (size - start).min(REGION_BYTES) as u32;
        let mut op =
            StoreOp::ReadWritten { file: FileId::Blob(object), offset: start, len, from: ReadFrom::Cache };
        let mut held = u64::MAX;
        let done = match self.ctx.io(op).await {
            Err(StoreError::Missing { from, .. }) => {
                held = from;
                op = StoreOp::Read { file: FileId::Blob(object), offset: start, len };
                self.ctx.io(op).await
            }
            other => other,
        };
        let (StoreDone::Bytes(bytes) | StoreDone::Checksummed(bytes, _)) = done? else { return Ok(()) };
        let lacks =
            |at: u64| row.is_written(at) && !row.is_lost(at) && held < ((at + 1) * BLOCK_BYTES).min(size);
        let base = region.saturating_mul(BLOCKS_PER_REGION);
        if let Some(at) = (base..base.saturating_add(BLOCKS_PER_REGION)).find(|at| lacks(*at)) {
            let text = format!(
                "object {object}: the file ends at byte {held}, and the block at byte {} was written",
                at * BLOCK_BYTES
            );
            if self.may_be_gone(row.version) {
                self.found.note(format!(
                    "{text}: not durable when its machine was lost, the next start looks at it"
                ));
            } else {
                self.found.problem(text);
            }
        }
        let blocks = bytes.chunks(BLOCK_BYTES as usize).zip(&row.sums).enumerate();
        let mut differ = Vec::new();
        for (at, (block, &sum)) in blocks {
            let end = start + ((at as u64 + 1) * BLOCK_BYTES).min(u64::from(len));
            if row.written & !row.lost & (1 << at) != 0 && end <= held {
                self.found.sums += 1;
                if block_checksum(block) != sum {
                    differ.push(start + at as u64 * BLOCK_BYTES);
                }
            }
        }
        self.found.sums_differ += differ.len() as u64;
        // A crash between the bytes of an overwrite and its record: the region was marked before it.
        let explained = self.may_be_gone(row.version);
        for at in differ {
            let text = format!("object {object}: the block at byte {at} does not match its checksum");
            if explained {
                self.found
                    .note(format!("{text}: an overwrite that a crash cut off, the next start looks at it"));
            } else {
                self.found.problem(text);
            }
        }
        Ok(())
    }

    /// Block rows without their object.
    async fn strays(&mut self) -> Result<(), OsdError> {
        let mut from = Vec::new();
        loop {
            let rows = self.osd.scan(table::BLOCK, &from, &[], 1).await?;
            let Some((key, _)) = rows.first() else { return Ok(()) };
            let Some(object) = object_of_key(key) else {
                self.found.problem(format!("block row {key:02x?} cannot be read"));
                from = key_after(key);
                continue;
            };
            if self.osd.get(table::OBJECT, &object_key(object)).await?.is_none() {
                self.found.problem(format!("block rows of {object}, which is not there"));
            }
            from = key_after(&block_key(object, u64::MAX));
        }
    }

    async fn tombstones(&mut self) -> Result<(), OsdError> {
        let mut pages = self.osd.pages(tombstone::TABLE, PAGE);
        while let Some(rows) = pages.next().await? {
            for (key, _) in &rows {
                self.found.tombstones += 1;
                let Some(object) = object_of_key(key) else {
                    self.found.problem(format!("tombstone {key:02x?} cannot be read"));
                    continue;
                };
                if self.osd.get(table::OBJECT, key).await?.is_some() {
                    self.found.problem(format!("object {object} was destroyed and is there"));
                }
            }
        }
        Ok(())
    }

    async fn persistent_locks(&mut self) -> Result<(), OsdError> {
        let mut pages = self.osd.pages(PERSISTENT_LOCKS, PAGE);
        while let Some(rows) = pages.next().await? {
            for (key, value) in &rows {
                self.found.persistent_locks += 1;
                if parse_persistent_lock(key, value, |lock: &Enqueue| lock.cookie).is_none() {
                    self.found.problem(format!("the row {key:02x?} of a lock cannot be read"));
                }
            }
        }
        Ok(())
    }

    async fn blobs(&mut self) -> Result<(), OsdError> {
        let mut last: Option<FileId> = None;
        loop {
            let op = StoreOp::List { kind: FileKind::Blob, after: last, limit: PAGE };
            let StoreDone::List(files) = self.ctx.io(op).await? else { return Ok(()) };
            let Some(&end) = files.last() else { return Ok(()) };
            last = Some(end);
            for file in files {
                let FileId::Blob(object) = file else { continue };
                let key = object_key(object);
                let known = self.osd.get(table::OBJECT, &key).await?.is_some()
                    || self.osd.get(table::RECLAIM, &key).await?.is_some();
                if !known {
                    self.found.blobs_without_rows += 1;
                }
            }
        }
    }

    async fn count(&mut self) -> Result<(), OsdError> {
        let row = self.osd.get(room::TABLE, room::KEY).await?;
        let count = match row.as_deref().map(ObjectCount::from_slice) {
            None => ObjectCount::default(),
            Some(Ok(count)) => count,
            Some(Err(_)) => {
                self.found.problem("the row that counts the objects cannot be read".into());
                return Ok(());
            }
        };
        if count.existing != self.found.objects {
            let text = format!("{} objects are counted, {} are there", count.existing, self.found.objects);
            self.found.problem(text);
        }
        Ok(())
    }

    async fn accounts(&mut self) -> Result<(), OsdError> {
        let usage = core::mem::take(&mut self.usage);
        for ((kind, id), sum) in usage {
            let account = self.osd.usage(kind, id).await?;
            if account != sum {
                let who = ["user", "group", "project"].get(usize::from(kind)).copied().unwrap_or("owner");
                let text = format!(
                    "{who} {id} is charged {} bytes in {} objects, its objects are {} bytes in {}",
                    account.0, account.1, sum.0, sum.1
                );
                self.found.problem(text);
            }
        }
        Ok(())
    }
}
