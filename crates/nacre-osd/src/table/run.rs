//! Immutable sorted runs: the format, the builder, the index in memory.
//!
//! A run is a file of checksummed blocks of about 4 KiB with rows in key order, then a tail {index of blocks,
//! bloom filter, range tombstones}, then a footer of 64 bytes that locates the tail; then all of this a second time.
//! Index and filter stay in memory while the run is live; blocks are read when a row of them is looked up.
//! The rows of a newer run replace those of an older one; range tombstones of a run hide rows of older runs only.
//! Damage of one copy of a block costs nothing, damage of both only the block's own keys. The format is in docs/disk-format.md.

use crate::crc::crc32c;
use crate::error::OsdError;
use crate::log::segment::{u32_at, u64_at};
use crate::table::Table;
use crate::table::bloom::{Bloom, hash};
use crate::table::interval::IntervalSet;
use crate::table::key::Key;
use alloc::format;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::codec_struct;

const RUN_MAGIC: [u8; 8] = *b"NACRERUN";
const RUN_VERSION: u32 = 1;
pub(crate) const FOOTER_BYTES: u64 = 64;
/// Copies of everything in a run.
pub(crate) const COPIES: u64 = 2;
/// Each copy of a run ends at a multiple of this: no sector holds parts of both.
const COPY_ALIGN: u64 = 4096;
const BLOCK_TARGET_BYTES: usize = 4096 - BLOCK_HEADER_BYTES;
/// {crc32c, length of the rows, number of rows}
const BLOCK_HEADER_BYTES: usize = 12;
const ROW_HEADER_BYTES: usize = 6;
const DELETED: u32 = u32::MAX;

codec_struct! {
    /// An entry of the list of runs.
    #[derive(Copy)]
    pub struct RunMeta {
        /// Number of the file; grows with each run and is never used again.
        pub id: u64,
        /// Bytes of the file: both copies together.
        pub bytes: u64,
        /// Rows in it, deletions included.
        pub rows: u64,
    }
}
codec_struct! {
    /// The log record that lists the runs, oldest first.
    #[derive(Default)]
    pub struct RunList {
        /// Log records up to this one are in runs.
        pub flushed_lsn: u64,
        /// Those in use, oldest first: a later run wins.
        pub runs: Vec<RunMeta>,
    }
}

impl RunMeta {
    /// Where a copy begins in the file.
    pub(crate) fn copy_at(&self, copy: u64) -> u64 {
        copy * self.copy_bytes()
    }
    /// Length of each copy.
    pub(crate) fn copy_bytes(&self) -> u64 {
        self.bytes / COPIES
    }
}

/// The place of a block in each copy: a plain value.
#[derive(Debug, Clone)]
pub(crate) struct BlockRef {
    pub(crate) first: Key,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Tables whose filters contain prefixes of keys, with the length of the prefix.
pub(crate) type Prefixes = Vec<(Table, u8)>;

/// The part of a raw key that the filter contains.
fn bloom_part<'k>(prefixes: &Prefixes, raw: &'k [u8]) -> &'k [u8] {
    let table = raw.first().copied().unwrap_or(0);
    match prefixes.iter().find(|(t, _)| t.0 == table) {
        Some((_, len)) => raw.get(..usize::from(*len) + 1).unwrap_or(raw),
        None => raw,
    }
}

/// Whether all keys between `part` and `to` begin with `part`.
fn is_within(to: &[u8], part: &[u8]) -> bool {
    if to.starts_with(part) {
        return true;
    }
    // `to` may also be the prefix that follows `part`.
    let mut next = part.to_vec();
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    to.starts_with(&next) && to.iter().skip(next.len()).all(|b| *b == 0)
}

/// A live run.
#[derive(Debug)]
pub(crate) struct Run {
    // Never changed once the run is written or read: lookups, scans and merges read them.
    pub(crate) meta: RunMeta,
    pub(crate) blocks: Vec<BlockRef>,
    pub(crate) ranges: IntervalSet,
    /// Rows that mark a key as deleted.
    pub(crate) deleted: u64,
    bloom: Bloom,
    prefixes: Prefixes,
    last: Option<Key>,
}

impl Run {
    /// Memory that the run needs while it is live, without the bytes of unusually long keys.
    pub(crate) fn index_bytes(&self) -> u64 {
        let ranges = self.ranges.len() * size_of::<(Key, Key)>();
        (self.blocks.len() * size_of::<BlockRef>() + self.bloom.bytes() + ranges) as u64
    }
    /// Deleted rows and range tombstones.
    pub(crate) fn deletions(&self) -> u64 {
        self.deleted + self.ranges.len() as u64
    }
    /// The block that may contain the key; `None`: the run does not contain it.
    pub(crate) fn block_for(&self, raw: &[u8]) -> Option<usize> {
        if !self.bloom.may_hold(hash(bloom_part(&self.prefixes, raw))) {
            return None;
        }
        self.first_block(raw)
    }
    /// The last block that begins at or before the key.
    pub(crate) fn first_block(&self, raw: &[u8]) -> Option<usize> {
        if self.last.as_ref().is_none_or(|last| last.raw() < raw) {
            return None;
        }
        self.blocks.partition_point(|b| b.first.raw() <= raw).checked_sub(1)
    }
    /// Whether the run may contain rows of `from..to`.
    pub(crate) fn may_overlap(&self, from: &[u8], to: &[u8]) -> bool {
        let (Some(first), Some(last)) = (self.blocks.first(), &self.last) else { return false };
        if to <= first.first.raw() || from > last.raw() {
            return false;
        }
        let part = bloom_part(&self.prefixes, from);
        // The filter can exclude the range only if all its keys have the same part.
        if part.len() < from.len() && is_within(to, part) {
            return self.bloom.may_hold(hash(part));
        }
        true
    }
}

/// Position of a row in the bytes of its block.
#[derive(Debug, Clone, Copy)]
struct RowAt {
    key: usize,
    value: usize,
    end: usize,
    deleted: bool,
}
fn row_at(bytes: &[u8], at: usize) -> Option<RowAt> {
    let rest = bytes.get(at..)?;
    let key_len = usize::from(u16::from_le_bytes(rest.get(..2)?.try_into().ok()?));
    let value_len = u32_at(rest, 2)?;
    let deleted = value_len == DELETED;
    let key = at + ROW_HEADER_BYTES;
    let value = key + key_len;
    let end = value + if deleted { 0 } else { value_len as usize };
    (end <= bytes.len()).then_some(RowAt { key, value, end, deleted })
}

/// A verified block and a position in it: the current row, until the end.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlockRows {
    bytes: Bytes,
    row: Option<RowAt>,
}
impl BlockRows {
    fn new(bytes: Bytes) -> Self {
        let row = row_at(&bytes, 0);
        Self { bytes, row }
    }
    /// Key of the current row; `None` at the end.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        let row = self.row?;
        self.bytes.get(row.key..row.value)
    }
    /// Value of the current row; `None`: it was deleted.
    pub(crate) fn value(&self) -> Option<&[u8]> {
        let row = self.row.filter(|row| !row.deleted)?;
        self.bytes.get(row.value..row.end)
    }
    /// The value as bytes that keep the block in memory.
    pub(crate) fn value_bytes(&self) -> Option<Bytes> {
        let row = self.row.filter(|row| !row.deleted)?;
        Some(self.bytes.slice(row.value..row.end))
    }
    pub(crate) fn step(&mut self) {
        self.row = self.row.and_then(|row| row_at(&self.bytes, row.end));
    }
    /// Advances to the first row at or beyond a key. Returns whether it has that key.
    pub(crate) fn seek(&mut self, raw: &[u8]) -> bool {
        while let Some(key) = self.key() {
            if key >= raw {
                return key == raw;
            }
            self.step();
        }
        false
    }
}

fn block_checksum(run: u64, offset: u64, body: &[u8]) -> u32 {
    let place = run.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ offset.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    crc32c(body) ^ (place >> 32) as u32
}

/// Corrects checksum and length of a damaged block, so that the fuzzer reaches the code behind these checks.
#[cfg(any(test, fuzzing))]
pub(crate) fn sign_block(block: &mut [u8], run: u64, offset: u64) {
    let Some(body) = block.len().checked_sub(BLOCK_HEADER_BYTES) else { return };
    block[4..8].copy_from_slice(&(body as u32).to_le_bytes());
    let sum = block_checksum(run, offset, &block[4..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Verifies the bytes of a block and returns its rows.
///
/// # Errors
/// `Corrupt` with the run, the position and the first key.
pub(crate) fn open_block(run: &Run, index: usize, bytes: &Bytes) -> Result<BlockRows, OsdError> {
    let block = run.blocks.get(index);
    let good = block.is_some_and(|b| {
        bytes.len() == b.len as usize
            && u32_at(bytes, 4).is_some_and(|len| len as usize + BLOCK_HEADER_BYTES == bytes.len())
            && u32_at(bytes, 0) == bytes.get(4..).map(|body| block_checksum(run.meta.id, b.offset, body))
    });
    match (block, good) {
        (Some(_), true) => Ok(BlockRows::new(bytes.slice(BLOCK_HEADER_BYTES..))),
        (Some(b), false) => Err(OsdError::Corrupt {
            what: format!("run {} at byte {} (rows from {:?} on)", run.meta.id, b.offset, b.first),
        }),
        (None, _) => Err(OsdError::Corrupt { what: format!("run {}: no block {index}", run.meta.id) }),
    }
}

/// Builds a run from rows in key order.
pub(crate) struct RunBuilder {
    id: u64,
    prefixes: Prefixes,
    blocks: Vec<BlockRef>,
    bloom: Bloom,
    rows: u64,
    deleted: u64,
    /// The unfinished block, with its header.
    block: Vec<u8>,
    block_rows: u32,
    block_first: Option<Key>,
    /// Key of the last row.
    last: Vec<u8>,
    /// Finished bytes that the caller has not taken yet.
    out: Vec<u8>,
    offset: u64,
}

impl RunBuilder {
    /// `rows_max`: upper bound of the number of rows, for the size of the filter.
    pub(crate) fn new(id: u64, rows_max: usize, prefixes: &Prefixes) -> Self {
        Self {
            id,
            prefixes: prefixes.clone(),
            blocks: Vec::new(),
            bloom: Bloom::for_keys(rows_max),
            rows: 0,
            deleted: 0,
            block: Vec::with_capacity(8192),
            block_rows: 0,
            block_first: None,
            last: Vec::new(),
            out: Vec::new(),
            offset: 0,
        }
    }
    pub(crate) fn add(&mut self, raw: &[u8], value: Option<&[u8]>) {
        assert!(self.rows == 0 || self.last[..] < *raw, "rows of a run must ascend");
        let row_bytes = ROW_HEADER_BYTES + raw.len() + value.map_or(0, <[u8]>::len);
        if !self.block.is_empty() && self.block.len() + row_bytes > BLOCK_TARGET_BYTES {
            self.end_block();
        }
        if self.block.is_empty() {
            self.block.resize(BLOCK_HEADER_BYTES, 0);
            self.block_first = Some(Key::from_raw(raw));
        }
        let key_len = u16::try_from(raw.len()).expect("keys are checked when they are written");
        self.block.extend_from_slice(&key_len.to_le_bytes());
        let value_len = value.map_or(DELETED, |v| v.len() as u32);
        self.block.extend_from_slice(&value_len.to_le_bytes());
        self.block.extend_from_slice(raw);
        self.block.extend_from_slice(value.unwrap_or(&[]));
        self.bloom.add(hash(bloom_part(&self.prefixes, raw)));
        self.block_rows += 1;
        self.rows += 1;
        self.deleted += u64::from(value.is_none());
        self.last.clear();
        self.last.extend_from_slice(raw);
    }
    fn end_block(&mut self) {
        let Some(first) = self.block_first.take() else { return };
        let body_len = (self.block.len() - BLOCK_HEADER_BYTES) as u32;
        self.block[4..8].copy_from_slice(&body_len.to_le_bytes());
        self.block[8..12].copy_from_slice(&self.block_rows.to_le_bytes());
        let offset = self.offset + self.out.len() as u64;
        let sum = block_checksum(self.id, offset, &self.block[4..]);
        self.block[..4].copy_from_slice(&sum.to_le_bytes());
        self.blocks.push(BlockRef { first, offset, len: self.block.len() as u32 });
        self.out.append(&mut self.block);
        self.block_rows = 0;
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }
    pub(crate) fn pending_bytes(&self) -> usize {
        self.out.len()
    }
    /// Takes the finished bytes, with their position in the file.
    pub(crate) fn take(&mut self) -> (u64, Vec<u8>) {
        let out = core::mem::take(&mut self.out);
        let at = self.offset;
        self.offset += out.len() as u64;
        (at, out)
    }
    /// Ends the run. Returns the position and content of the last bytes of its first copy, and the run.
    pub(crate) fn finish(mut self, ranges: IntervalSet) -> (u64, Vec<u8>, Run) {
        self.end_block();
        let tail_at = self.offset + self.out.len() as u64;
        let mut tail = Vec::new();
        let bytes = |tail: &mut Vec<u8>, b: &[u8]| {
            tail.extend_from_slice(&(b.len() as u32).to_le_bytes());
            tail.extend_from_slice(b);
        };
        tail.extend_from_slice(&(self.blocks.len() as u32).to_le_bytes());
        for b in &self.blocks {
            tail.extend_from_slice(&b.offset.to_le_bytes());
            tail.extend_from_slice(&b.len.to_le_bytes());
            bytes(&mut tail, b.first.raw());
        }
        bytes(&mut tail, &self.last);
        tail.extend_from_slice(&(ranges.len() as u32).to_le_bytes());
        for (from, to) in ranges.iter() {
            bytes(&mut tail, from.raw());
            bytes(&mut tail, to.raw());
        }
        tail.extend_from_slice(&(self.prefixes.len() as u32).to_le_bytes());
        for (table, len) in &self.prefixes {
            tail.extend_from_slice(&[table.0, *len]);
        }
        bytes(&mut tail, &self.bloom.to_bytes());

        let mut footer = [0u8; FOOTER_BYTES as usize];
        footer[..8].copy_from_slice(&RUN_MAGIC);
        footer[8..12].copy_from_slice(&RUN_VERSION.to_le_bytes());
        footer[12..16].copy_from_slice(&crc32c(&tail).to_le_bytes());
        footer[16..24].copy_from_slice(&self.id.to_le_bytes());
        footer[24..32].copy_from_slice(&tail_at.to_le_bytes());
        footer[32..40].copy_from_slice(&(tail.len() as u64).to_le_bytes());
        footer[40..48].copy_from_slice(&self.rows.to_le_bytes());
        footer[48..56].copy_from_slice(&self.deleted.to_le_bytes());
        let sum = crc32c(&footer[..60]);
        footer[60..].copy_from_slice(&sum.to_le_bytes());

        let (at, mut out) = self.take();
        out.append(&mut tail);
        let end = (at + out.len() as u64 + FOOTER_BYTES).next_multiple_of(COPY_ALIGN);
        out.resize((end - at - FOOTER_BYTES) as usize, 0);
        out.extend_from_slice(&footer);
        let run = Run {
            meta: RunMeta { id: self.id, bytes: COPIES * end, rows: self.rows },
            blocks: self.blocks,
            ranges,
            deleted: self.deleted,
            bloom: self.bloom,
            prefixes: self.prefixes,
            last: (self.rows > 0).then(|| Key::from_raw(&self.last)),
        };
        (at, out, run)
    }
}

/// The position of the tail, from the footer.
pub(crate) struct Footer {
    tail_at: u64,
    tail_len: u64,
    tail_sum: u32,
    rows: u64,
    deleted: u64,
}
impl Footer {
    /// Where the footer is in a copy of so many bytes.
    pub(crate) fn place(copy_bytes: u64) -> u64 {
        copy_bytes.saturating_sub(FOOTER_BYTES)
    }
    /// Where the tail is in its copy, and how long it is.
    pub(crate) fn tail(&self) -> (u64, u64) {
        (self.tail_at, self.tail_len)
    }
    pub(crate) fn parse(id: u64, bytes: &[u8]) -> Result<Self, OsdError> {
        let corrupt = || OsdError::Corrupt { what: format!("footer of run {id}") };
        let f = bytes.get(..FOOTER_BYTES as usize).ok_or_else(corrupt)?;
        if f[..8] != RUN_MAGIC || u32_at(f, 60) != Some(crc32c(&f[..60])) || u64_at(f, 16) != Some(id) {
            return Err(corrupt());
        }
        if u32_at(f, 8) != Some(RUN_VERSION) {
            return Err(OsdError::Format(format!(
                "run {id} was written in another format version: use the program that wrote it"
            )));
        }
        let field = |at| u64_at(f, at).ok_or_else(corrupt);
        Ok(Self {
            tail_at: field(24)?,
            tail_len: field(32)?,
            rows: field(40)?,
            deleted: field(48)?,
            tail_sum: u32_at(f, 12).ok_or_else(corrupt)?,
        })
    }
}

impl Run {
    /// Decodes the tail that the footer locates.
    ///
    /// # Errors
    /// `Corrupt`: without its tail a run cannot be read safely, because its range tombstones are in there.
    pub(crate) fn parse(meta: RunMeta, footer: &Footer, tail: &[u8]) -> Result<Self, OsdError> {
        let corrupt = || OsdError::Corrupt { what: format!("index of run {}", meta.id) };
        if crc32c(tail) != footer.tail_sum || footer.rows != meta.rows {
            return Err(corrupt());
        }
        Self::parse_tail(meta, footer.deleted, tail).ok_or_else(corrupt)
    }
    fn parse_tail(meta: RunMeta, deleted: u64, tail: &[u8]) -> Option<Self> {
        let mut rest = tail;
        fn take<'t>(rest: &mut &'t [u8], n: usize) -> Option<&'t [u8]> {
            let (a, b) = rest.split_at_checked(n)?;
            *rest = b;
            Some(a)
        }
        fn number(rest: &mut &[u8]) -> Option<u32> {
            u32_at(take(rest, 4)?, 0)
        }
        fn bytes<'t>(rest: &mut &'t [u8]) -> Option<&'t [u8]> {
            let n = number(rest)? as usize;
            take(rest, n)
        }
        let count = number(&mut rest)?;
        let mut blocks: Vec<BlockRef> = Vec::with_capacity((count as usize).min(rest.len() / 16));
        let mut end = 0;
        for _ in 0..count {
            let offset = u64_at(take(&mut rest, 8)?, 0)?;
            let len = number(&mut rest)?;
            let block = BlockRef { offset, len, first: Key::from_raw(bytes(&mut rest)?) };
            // Blocks are contiguous from the beginning of the file, in the order of their keys.
            if offset != end || blocks.last().is_some_and(|before| before.first >= block.first) {
                return None;
            }
            end += u64::from(len);
            blocks.push(block);
        }
        let last = bytes(&mut rest)?;
        let mut ranges = IntervalSet::default();
        for _ in 0..number(&mut rest)? {
            let from = Key::from_raw(bytes(&mut rest)?);
            drop(ranges.insert(from, Key::from_raw(bytes(&mut rest)?)));
        }
        let mut prefixes = Vec::new();
        for _ in 0..number(&mut rest)? {
            let pair = take(&mut rest, 2)?;
            prefixes.push((Table(*pair.first()?), *pair.get(1)?));
        }
        let bloom = Bloom::from_bytes(bytes(&mut rest)?)?;
        let last = (!last.is_empty()).then(|| Key::from_raw(last));
        Some(Self { meta, blocks, ranges, deleted, bloom, prefixes, last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    #[test]
    fn golden_bytes_of_a_run() {
        let mut b = RunBuilder::new(7, 4, &alloc::vec![(Table(5), 4)]);
        b.add(Key::new(Table(5), b"one").raw(), Some(b"1"));
        b.add(Key::new(Table(5), b"two").raw(), None);
        let mut ranges = IntervalSet::default();
        drop(ranges.insert(Key::new(Table(6), b"a"), Key::new(Table(6), b"b")));
        let (_, bytes, run) = b.finish(ranges);
        assert_eq!((run.meta.bytes, run.meta.copy_bytes() % COPY_ALIGN), (2 * bytes.len() as u64, 0));
        assert_eq!(bytes[8..19], b"\x02\0\0\0\x04\0\x01\0\0\0\x05"[..]);
        // The footer's counts of rows and deleted rows are compared here because the footer's own checksum hides them
        // from the checksum of everything.
        assert_eq!(bytes[bytes.len() - 24..][..16], b"\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"[..]);
        assert_eq!(crc32c(&bytes), 0xebc1_419c);
    }

    #[test]
    fn a_run_comes_back_block_by_block_and_damage_stays_in_its_block() {
        let prefixes = alloc::vec![(Table(5), 4)];
        let mut b = RunBuilder::new(3, 2000, &prefixes);
        let mut file = Vec::new();
        let mut want = BTreeMap::new();
        for n in 0..1000u32 {
            let key = Key::new(Table(5), &n.to_be_bytes().repeat(2));
            let value = (n % 3 != 0).then(|| alloc::vec![n as u8; (n % 300) as usize]);
            b.add(key.raw(), value.as_deref());
            want.insert(Bytes::copy_from_slice(key.raw()), value.map(Bytes::from));
            if b.pending_bytes() > 10_000 {
                file.extend(b.take().1);
            }
        }
        let mut ranges = IntervalSet::default();
        drop(ranges.insert(Key::new(Table(6), b"a"), Key::new(Table(6), b"b")));
        let (at, rest, built) = b.finish(ranges);
        assert_eq!(at as usize, file.len());
        file.extend(rest);
        let footer = Footer::parse(3, &file[file.len() - 64..]).unwrap();
        let (tail_at, len) = footer.tail();
        let tail = file[tail_at as usize..][..len as usize].to_vec();
        assert_eq!(Footer::place(built.meta.copy_bytes()), file.len() as u64 - 64);
        let run = Run::parse(built.meta, &footer, &tail).unwrap();
        assert_eq!((run.deleted, built.deleted), (334, 334));
        assert!(run.ranges.contains(Key::new(Table(6), b"aa").raw()));
        let mut got = BTreeMap::new();
        let mut bad = 0;
        file[5000] ^= 4;
        for (n, r) in run.blocks.iter().enumerate() {
            let bytes = Bytes::copy_from_slice(&file[r.offset as usize..][..r.len as usize]);
            match open_block(&run, n, &bytes) {
                Ok(mut rows) => {
                    while let Some(key) = rows.key() {
                        got.insert(Bytes::copy_from_slice(key), rows.value_bytes());
                        rows.step();
                    }
                }
                Err(e) => {
                    bad += 1;
                    assert!(alloc::string::ToString::to_string(&e).contains("run 3"));
                }
            }
        }
        assert_eq!(bad, 1);
        assert!(got.len() > 900 && got.iter().all(|(k, v)| want.get(k) == Some(v)));
        for key in got.keys() {
            assert!(run.block_for(key).is_some());
        }
        let key = |n: u32, last: u8| {
            let mut k = n.to_be_bytes().to_vec();
            k.push(last);
            Key::new(Table(5), &k)
        };
        assert!(run.may_overlap(key(77, 0).raw(), key(77, 9).raw()));
        let misses =
            (1 << 20..(1 << 20) + 100).filter(|n| run.may_overlap(key(*n, 0).raw(), key(*n, 9).raw()));
        assert_eq!(misses.count(), 0);
        for n in 0..tail.len() {
            assert!(Run::parse(built.meta, &footer, &tail[..n]).is_err());
        }
    }
}
