//! The write-ahead log: segments of consecutive records, written at the end of each visit.
//!
//! A segment is a zero-filled file: a header of 64 bytes, then records at multiples of 8. A record carries its
//! number (`lsn`, consecutive over all segments), the transno of its transaction, the position up to which the log was
//! synced when the record was written, and its rows with absolute values. Its checksum is bound to segment and log
//! epoch, so that bytes of another segment are never accepted. A record never crosses a segment; the rest of a segment
//! stays zero. The file of a segment has room for two copies of all this, one after the other: the first is written at
//! the end of each visit, the second before a sync, in larger pieces (`log/copies.rs` reads them).
//!
//! The log ends at the first record that is missing or broken. If a later record states that the log was synced beyond
//! that point, bytes that were durable are missing: that is damage, and not the end of the log ([`Scan`]). The format
//! is in docs/disk-format.md. Not here: when to sync (`log/commit.rs`), when segments are deleted
//! (`maintenance/flush.rs`).

use crate::crc::crc32c;
use crate::object::checksum::zeros;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{FileId, StoreOp};

pub(crate) const LOG_MAGIC: [u8; 8] = *b"NACRELOG";
pub(crate) const LOG_VERSION: u32 = 1;
pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;
pub(crate) const RECORD_HEADER_BYTES: usize = 40;
pub(crate) const ALIGN: usize = 8;
/// Unit in which the kernel caches files.
const PAGE_BYTES: u64 = 4096;
/// The second copy is written when so much of it is due, at the latest.
const COPY_BYTES_MAX: usize = 64 << 10;
/// Capacity at most that a visit has from the start: a batch of changes fits.
const VISIT_BYTES_MAX: usize = 16 << 10;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RecordKind {
    /// Rows of one transaction.
    Change = 1,
    /// The list of runs (`table/run.rs`).
    Runs = 2,
}
impl RecordKind {
    fn from_number(n: u32) -> Option<Self> {
        [Self::Change, Self::Runs].into_iter().find(|k| *k as u32 == n)
    }
}

const OP_PUT: u8 = 1;
const OP_DELETE: u8 = 2;
const OP_DELETE_RANGE: u8 = 3;

/// One change of a row; keys start with the table number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RowOp<'a> {
    Put { key: &'a [u8], value: &'a [u8] },
    Delete { key: &'a [u8] },
    DeleteRange { from: &'a [u8], to: &'a [u8] },
}

/// The identity of a segment: its number, and the epoch and store of its log. A plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentId {
    pub(crate) number: u64,
    pub(crate) epoch: u32,
    pub(crate) store: [u8; 16],
}
impl SegmentId {
    /// The seed of the checksums of records in this segment.
    pub(crate) fn seed(&self) -> u32 {
        let mut b = [0u8; 28];
        b[..8].copy_from_slice(&self.number.to_le_bytes());
        b[8..12].copy_from_slice(&self.epoch.to_le_bytes());
        b[12..].copy_from_slice(&self.store);
        crc32c(&b)
    }
    fn header(&self, first_lsn: u64) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut h = [0u8; SEGMENT_HEADER_BYTES];
        h[..8].copy_from_slice(&LOG_MAGIC);
        h[8..12].copy_from_slice(&LOG_VERSION.to_le_bytes());
        h[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        h[16..24].copy_from_slice(&self.number.to_le_bytes());
        h[24..32].copy_from_slice(&first_lsn.to_le_bytes());
        h[32..48].copy_from_slice(&self.store);
        let sum = crc32c(&h[..60]);
        h[60..].copy_from_slice(&sum.to_le_bytes());
        h
    }
}

/// A segment that holds records: a plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    /// Length of one copy: half of the file.
    pub(crate) bytes: u64,
    pub(crate) last_lsn: u64,
    /// Records of this segment up to this lsn are synced.
    pub(crate) synced_lsn: u64,
}

/// The end of the log that records are appended to.
pub(crate) struct LogWriter {
    epoch: u32,
    store: [u8; 16],
    /// Length of each copy in new segments if there is enough space.
    segment_bytes: u64,
    /// Segments below this number are of earlier epochs.
    first_number: u64,
    /// Live segments, oldest first; records are appended to the last one.
    segments: VecDeque<Segment>,
    /// Position of the next record in the last segment.
    position: u64,
    seed: u32,
    /// Bytes of this visit, to be written before `position` of the last segment.
    buffer: Vec<u8>,
    buffer_at: u64,
    /// The bytes before `buffer_at` that the second copy does not have yet.
    copy: Vec<u8>,
    /// Length of the largest of the latest writes of the second copy.
    copy_bytes: usize,
    /// Ends of the pages that were written, in both copies of the last segment.
    paged_to: [u64; 2],
    /// Bytes of the largest of the latest visits.
    visit_bytes: usize,
    /// Writes of this visit to segments that are now full.
    full: Vec<StoreOp>,
    /// Segments created in advance: numbers and lengths.
    ready: VecDeque<(u64, u64)>,
    next_number: u64,
    last_lsn: u64,
    synced_lsn: u64,
    record_at: usize,
    record_rows: u32,
}

impl LogWriter {
    /// Creates a log that continues after `last_lsn`. `old` are segments of earlier epochs that are still needed.
    pub(crate) fn new(
        store: [u8; 16],
        epoch: u32,
        next_number: u64,
        segment_bytes: u64,
        last_lsn: u64,
        old: Vec<Segment>,
    ) -> Self {
        assert!(segment_bytes >= 64 << 10, "segments are too small");
        Self {
            epoch,
            store,
            segment_bytes,
            first_number: next_number,
            segments: old.into(),
            position: u64::MAX, // the first record opens a segment
            seed: 0,
            buffer: Vec::new(),
            buffer_at: 0,
            copy: Vec::new(),
            copy_bytes: 0,
            paged_to: [0; 2],
            visit_bytes: 0,
            full: Vec::new(),
            ready: VecDeque::new(),
            next_number,
            last_lsn,
            synced_lsn: last_lsn,
            record_at: 0,
            record_rows: 0,
        }
    }

    /// Lsn of the latest record.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.last_lsn
    }
    /// Largest body of a record.
    pub(crate) fn body_bytes_max(&self) -> u64 {
        body_bytes(self.segment_bytes)
    }
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }
    /// Bytes that still fit into the segment that records are appended to.
    fn bytes_left(&self) -> u64 {
        let open = self.segments.back().filter(|_| self.position != u64::MAX);
        open.map_or(0, |s| s.bytes.saturating_sub(self.position))
    }
    /// Bytes of the device held by live segments.
    pub(crate) fn bytes(&self) -> u64 {
        let full: u64 = self.segments.iter().map(|s| s.bytes).sum();
        2 * (full - self.bytes_left().min(full))
    }
    /// Bytes of full segments, which a flush can free.
    pub(crate) fn full_bytes(&self) -> u64 {
        let all: u64 = self.segments.iter().map(|s| s.bytes).sum();
        let open = self.segments.back().filter(|_| self.position != u64::MAX);
        2 * (all - open.map_or(0, |s| s.bytes))
    }
    /// Number of segments from earlier openings.
    pub(crate) fn old_count(&self) -> usize {
        self.segments.iter().filter(|s| s.number < self.first_number).count()
    }
    pub(crate) fn ready_count(&self) -> usize {
        self.ready.len()
    }
    /// Assigns the number of a segment that will be created in advance.
    pub(crate) fn take_number(&mut self) -> u64 {
        let n = self.next_number;
        self.next_number += 1;
        n
    }
    /// Adds a segment that was created, with `bytes` for each copy, and filled with zeros. Returns `false` if a later segment is already in use:
    /// segments are used in the order of their numbers, so the caller deletes this one.
    pub(crate) fn add_ready(&mut self, number: u64, bytes: u64) -> bool {
        let fits = self.segments.back().is_none_or(|s| s.number < number);
        if fits {
            self.ready.push_back((number, bytes));
        }
        fits
    }
    /// Largest body of a record that fits into the next segment; unlimited if no segment is ready.
    pub(crate) fn ready_body(&self) -> u64 {
        self.ready.front().map_or(u64::MAX, |(_, bytes)| body_bytes(*bytes))
    }
    /// Bytes that can be appended without creating a segment, if no change is larger than `record`.
    pub(crate) fn room(&self, record: u64) -> u64 {
        let record = record + (RECORD_HEADER_BYTES + ALIGN) as u64;
        let usable = |bytes: u64| if bytes >= record { bytes } else { 0 };
        let ready = self.ready.iter().map(|(_, bytes)| usable(body_bytes(*bytes)));
        usable(self.bytes_left()) + ready.sum::<u64>()
    }

    // ---- records

    pub(crate) fn begin(&mut self) {
        self.record_at = self.buffer.len();
        self.record_rows = 0;
        self.buffer.resize(self.record_at + RECORD_HEADER_BYTES, 0);
    }
    fn op(&mut self, kind: u8, first: usize, second: usize) {
        let mut h = [0u8; 9];
        h[0] = kind;
        h[1..5].copy_from_slice(&(first as u32).to_le_bytes());
        h[5..9].copy_from_slice(&(second as u32).to_le_bytes());
        self.buffer.extend_from_slice(&h);
        self.record_rows += 1;
    }
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.op(OP_PUT, key.len(), value.len());
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(value);
    }
    pub(crate) fn delete(&mut self, key: &[u8]) {
        self.op(OP_DELETE, key.len(), 0);
        self.buffer.extend_from_slice(key);
    }
    pub(crate) fn delete_range(&mut self, from: &[u8], to: &[u8]) {
        self.op(OP_DELETE_RANGE, from.len(), to.len());
        self.buffer.extend_from_slice(from);
        self.buffer.extend_from_slice(to);
    }
    pub(crate) fn body(&mut self, body: &[u8]) {
        self.buffer.extend_from_slice(body);
    }
    /// Returns a position in the open record that the caller can roll back to.
    pub(crate) fn mark(&self) -> (usize, u32) {
        (self.buffer.len(), self.record_rows)
    }
    /// Rows and bytes of the open record so far.
    pub(crate) fn written(&self) -> (u32, u64) {
        (self.record_rows, (self.buffer.len() - self.record_at) as u64)
    }
    pub(crate) fn back_to(&mut self, mark: (usize, u32)) {
        self.buffer.truncate(mark.0);
        self.record_rows = mark.1;
    }
    pub(crate) fn abandon(&mut self) {
        self.buffer.truncate(self.record_at);
    }
    /// Ends the open record; it gets the next lsn. Returns its length.
    ///
    /// # Panics
    /// When the record is larger than a segment: `reserve` refuses such credits.
    pub(crate) fn end(&mut self, kind: RecordKind, transno: u64) -> u64 {
        let len = self.buffer.len() - self.record_at;
        let padded = len.next_multiple_of(ALIGN);
        self.buffer.resize(self.record_at + padded, 0);
        assert!(
            padded + SEGMENT_HEADER_BYTES <= self.segment_bytes as usize,
            "a transaction of {len} bytes is larger than a log segment"
        );
        self.last_lsn += 1;
        if self.bytes_left() < padded as u64 {
            self.next_segment(padded as u64);
        }
        let record = &mut self.buffer[self.record_at..];
        record[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        record[8..16].copy_from_slice(&self.last_lsn.to_le_bytes());
        record[16..24].copy_from_slice(&transno.to_le_bytes());
        record[24..32].copy_from_slice(&self.synced_lsn.to_le_bytes());
        record[32..36].copy_from_slice(&(kind as u32).to_le_bytes());
        record[36..40].copy_from_slice(&self.record_rows.to_le_bytes());
        let sum = crc32c(&record[4..len]) ^ self.seed;
        record[..4].copy_from_slice(&sum.to_le_bytes());
        self.position += padded as u64;
        let segment = self.segments.back_mut().expect("a segment was opened above");
        segment.last_lsn = self.last_lsn;
        padded as u64
    }
    /// Closes the last segment and moves the open record, of `record_bytes`, to a new one.
    fn next_segment(&mut self, record_bytes: u64) {
        let record = self.buffer.split_off(self.record_at);
        self.flush_copy();
        // A segment that was created small on a full device may be too small.
        while let Some((number, _)) =
            self.ready.pop_front_if(|(_, bytes)| *bytes < record_bytes + SEGMENT_HEADER_BYTES as u64)
        {
            self.full.push(StoreOp::Delete { file: FileId::Log(number) });
        }
        let (number, bytes) = match self.ready.pop_front() {
            Some(ready) => ready,
            None => {
                let n = self.take_number();
                self.full.push(StoreOp::Create { file: FileId::Log(n), len: 2 * self.segment_bytes });
                (n, self.segment_bytes)
            }
        };
        let id = SegmentId { number, epoch: self.epoch, store: self.store };
        self.seed = id.seed();
        self.segments.push_back(Segment {
            number,
            bytes,
            last_lsn: self.last_lsn - 1,
            synced_lsn: self.last_lsn - 1,
        });
        self.buffer_at = 0;
        self.paged_to = [0; 2];
        self.buffer.extend_from_slice(&id.header(self.last_lsn));
        self.position = SEGMENT_HEADER_BYTES as u64;
        self.record_at = self.buffer.len();
        self.buffer.extend_from_slice(&record);
    }
    fn flush_buffer(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        // Capacity for a visit like the latest ones: allocators serve small pieces faster.
        self.visit_bytes = self.buffer.len().max(self.visit_bytes - self.visit_bytes / 16);
        let capacity = self.visit_bytes.next_multiple_of(256).min(VISIT_BYTES_MAX);
        let data = core::mem::replace(&mut self.buffer, Vec::with_capacity(capacity));
        self.copy.extend_from_slice(&data);
        let end = self.buffer_at + data.len() as u64;
        self.write(0, self.buffer_at, data);
        self.buffer_at = end;
        if self.copy.len() >= COPY_BYTES_MAX {
            self.flush_copy();
        }
    }
    /// Writes everything up to here to both copies. A visit that starts a sync calls this first, so that the sync makes
    /// both durable.
    pub(crate) fn flush_copy(&mut self) {
        self.flush_buffer();
        if !self.copy.is_empty() {
            // The next one will be about as large as the largest of the latest, and is not to be copied when it is a little
            // larger.
            self.copy_bytes = self.copy.len().max(self.copy_bytes - self.copy_bytes / 16);
            let next = Vec::with_capacity(self.copy_bytes + self.copy_bytes / 4);
            let data = core::mem::replace(&mut self.copy, next);
            self.write(1, self.buffer_at - data.len() as u64, data);
        }
    }
    /// Adds a write to a copy of the last segment. The first write to a page fills it with zeros up to its end: otherwise
    /// the kernel would read the page from the device first if its cache has forgotten it, and the island would wait for
    /// that.
    fn write(&mut self, copy: usize, at: u64, data: Vec<u8>) {
        let &Segment { number, bytes, .. } = self.segments.back().expect("bytes belong to a segment");
        let end = at + data.len() as u64;
        let mut data = alloc::vec![Bytes::from(data)];
        let paged_to = &mut self.paged_to[copy];
        if end > *paged_to {
            *paged_to = end.next_multiple_of(PAGE_BYTES).min(bytes);
            data.extend(zeros(*paged_to - end));
        }
        self.full.push(StoreOp::Write { file: FileId::Log(number), offset: copy as u64 * bytes + at, data });
    }
    /// Takes the writes of this visit, in order.
    pub(crate) fn take_writes(&mut self, out: &mut Vec<StoreOp>) {
        self.flush_buffer();
        out.append(&mut self.full);
    }

    // ---- syncs

    /// Segments with unsynced records.
    pub(crate) fn unsynced(&self) -> Vec<u64> {
        self.segments.iter().filter(|s| s.synced_lsn < s.last_lsn).map(|s| s.number).collect()
    }
    /// Records that everything up to `lsn` is durable.
    pub(crate) fn synced(&mut self, lsn: u64) {
        self.synced_lsn = self.synced_lsn.max(lsn);
        for s in &mut self.segments {
            s.synced_lsn = s.last_lsn.min(self.synced_lsn);
        }
    }
    /// Removes and returns the segments whose records are all at or below `lsn`; the last segment stays.
    pub(crate) fn drop_through(&mut self, lsn: u64) -> Vec<u64> {
        let mut dropped = Vec::new();
        let writing = self.position != u64::MAX;
        while let Some(s) = self.segments.front() {
            if s.last_lsn > lsn || (writing && self.segments.len() == 1) {
                break;
            }
            dropped.push(s.number);
            self.segments.pop_front();
        }
        dropped
    }
}

/// Largest body of a record in a segment of this length.
fn body_bytes(segment_bytes: u64) -> u64 {
    segment_bytes.saturating_sub((SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + ALIGN) as u64)
}

/// A record read from a segment: a plain value.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) kind: RecordKind,
    pub(crate) lsn: u64,
    pub(crate) transno: u64,
    pub(crate) synced_lsn: u64,
    pub(crate) body: &'a [u8],
    pub(crate) bytes: usize,
}
impl<'a> Record<'a> {
    /// Rows of a `Change`, in order; `None` in place of bytes that cannot be decoded.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Option<RowOp<'a>>> + use<'a> {
        let mut rest = self.body;
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let row = take_row(&mut rest);
            if row.is_none() {
                rest = &[];
            }
            Some(row)
        })
    }
}
fn take_row<'a>(rest: &mut &'a [u8]) -> Option<RowOp<'a>> {
    let (head, tail) = rest.split_at_checked(9)?;
    let first = u32_at(head, 1)? as usize;
    let second = u32_at(head, 5)? as usize;
    let (a, tail) = tail.split_at_checked(first)?;
    let (b, tail) = tail.split_at_checked(second)?;
    *rest = tail;
    match *head.first()? {
        OP_PUT => Some(RowOp::Put { key: a, value: b }),
        OP_DELETE => Some(RowOp::Delete { key: a }),
        OP_DELETE_RANGE => Some(RowOp::DeleteRange { from: a, to: b }),
        _ => None,
    }
}
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The content of a segment's header: a plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) id: SegmentId,
    pub(crate) version: u32,
    pub(crate) first_lsn: u64,
}
impl SegmentHeader {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let h = bytes.get(..SEGMENT_HEADER_BYTES)?;
        if h[..8] != LOG_MAGIC || u32_at(h, 60)? != crc32c(&h[..60]) {
            return None;
        }
        Some(Self {
            id: SegmentId {
                number: u64_at(h, 16)?,
                epoch: u32_at(h, 12)?,
                store: h.get(32..48)?.try_into().ok()?,
            },
            version: u32_at(h, 8)?,
            first_lsn: u64_at(h, 24)?,
        })
    }
}

/// Reads the records of one segment in memory.
pub(crate) struct Scan<'a> {
    bytes: &'a [u8],
    seed: u32,
    /// Where the next record begins. Open to the crate: a reader of two copies moves both.
    pub(crate) at: usize,
}
impl<'a> Scan<'a> {
    pub(crate) fn new(header: &SegmentHeader, bytes: &'a [u8]) -> Self {
        Self { bytes, seed: header.id.seed(), at: SEGMENT_HEADER_BYTES }
    }
    /// Returns the record at the current position if it is complete, and moves behind it.
    pub(crate) fn next(&mut self) -> Option<Record<'a>> {
        let record = self.record_at(self.at)?;
        self.at += record.bytes;
        Some(record)
    }
    pub(crate) fn record_at(&self, at: usize) -> Option<Record<'a>> {
        let rest = self.bytes.get(at..)?;
        let len = u32_at(rest, 4)? as usize;
        if len < RECORD_HEADER_BYTES {
            return None;
        }
        let record = rest.get(..len)?;
        let kind = RecordKind::from_number(u32_at(record, 32)?)?;
        if crc32c(record.get(4..)?) ^ self.seed != u32_at(record, 0)? {
            return None;
        }
        Some(Record {
            kind,
            lsn: u64_at(record, 8)?,
            transno: u64_at(record, 16)?,
            synced_lsn: u64_at(record, 24)?,
            body: record.get(RECORD_HEADER_BYTES..)?,
            bytes: len.next_multiple_of(ALIGN),
        })
    }
    /// Returns the highest `synced_lsn` of any complete record from here on, wherever it begins. Records up to that lsn
    /// must exist.
    pub(crate) fn synced_beyond(&self) -> u64 {
        let mut at = self.at;
        let mut highest = 0;
        while at + RECORD_HEADER_BYTES <= self.bytes.len() {
            match self.record_at(at) {
                Some(r) => {
                    highest = highest.max(r.synced_lsn);
                    at += r.bytes;
                }
                None => at += ALIGN,
            }
        }
        highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer() -> LogWriter {
        LogWriter::new([7; 16], 3, 1, 64 << 10, 10, Vec::new())
    }
    /// Executes the writes into segments.
    fn apply(files: &mut alloc::collections::BTreeMap<u64, Vec<u8>>, ops: &[StoreOp]) {
        for op in ops {
            match op {
                StoreOp::Create { file: FileId::Log(n), len } => {
                    files.insert(*n, alloc::vec![0; *len as usize]);
                }
                StoreOp::Write { file: FileId::Log(n), offset, data } => {
                    let mut at = *offset as usize;
                    for d in data {
                        files.get_mut(n).unwrap()[at..at + d.len()].copy_from_slice(d);
                        at += d.len();
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Appends record `n`; some are longer than a page.
    fn append(w: &mut LogWriter, n: u32) {
        w.begin();
        w.put(&n.to_be_bytes(), &alloc::vec![n as u8; (n as usize * 37) % 9000]);
        w.end(RecordKind::Change, u64::from(n));
    }
    fn writes(w: &mut LogWriter) -> Vec<StoreOp> {
        let mut ops = Vec::new();
        w.take_writes(&mut ops);
        ops
    }

    #[test]
    fn records_come_back_in_order_over_segments() {
        let mut w = writer();
        let mut files = alloc::collections::BTreeMap::new();
        for n in 0..200u32 {
            w.begin();
            w.put(&n.to_be_bytes(), &[n as u8; 1000]);
            let mark = w.mark();
            w.delete(b"taken back");
            w.back_to(mark);
            w.delete_range(b"a", b"b");
            w.end(RecordKind::Change, u64::from(n) + 100);
            if n % 7 == 0 {
                w.begin();
                w.put(b"x", b"y");
                w.abandon();
            }
            if n % 3 == 0 {
                apply(&mut files, &writes(&mut w));
            }
        }
        apply(&mut files, &writes(&mut w));
        assert!(files.len() > 3);
        let mut lsn = 10;
        for (number, bytes) in &files {
            let header = SegmentHeader::parse(bytes).unwrap();
            assert_eq!((header.id.number, header.first_lsn), (*number, lsn + 1));
            let mut scan = Scan::new(&header, bytes);
            while let Some(r) = scan.next() {
                lsn += 1;
                assert_eq!((r.lsn, r.transno), (lsn, lsn + 89));
                let n = (lsn - 11) as u32;
                let rows: Vec<_> = r.rows().map(Option::unwrap).collect();
                assert_eq!(
                    rows,
                    [
                        RowOp::Put { key: &n.to_be_bytes(), value: &[n as u8; 1000] },
                        RowOp::DeleteRange { from: b"a", to: b"b" }
                    ]
                );
            }
        }
        assert_eq!(lsn, 210);
        assert_eq!(w.unsynced().len(), files.len());
        w.synced(210);
        assert!(w.unsynced().is_empty());
        assert_eq!(w.drop_through(210).len(), files.len() - 1);
    }

    /// Both copies of everything that was appended are the same.
    #[test]
    fn a_sync_finds_both_copies() {
        let mut w = writer();
        let mut files = alloc::collections::BTreeMap::new();
        for n in 0..300u32 {
            append(&mut w, n);
            if n % 5 == 0 {
                w.flush_copy();
            }
            apply(&mut files, &writes(&mut w));
            if n % 5 == 0 {
                for bytes in files.values() {
                    let (first, second) = bytes.split_at(bytes.len() / 2);
                    assert!(first == second, "after record {n}");
                }
            }
        }
        assert!(files.len() > 10);
    }

    #[test]
    fn every_page_is_whole_in_the_first_write_to_it_and_no_write_changes_an_earlier_record() {
        let mut w = writer();
        let mut files = alloc::collections::BTreeMap::new();
        let mut paged = alloc::collections::BTreeMap::new();
        for n in 0..300u32 {
            append(&mut w, n);
            let ops = writes(&mut w);
            for op in &ops {
                let StoreOp::Write { file: FileId::Log(number), offset, data } = op else { continue };
                let end = offset + data.iter().map(|b| b.len() as u64).sum::<u64>();
                let copy = offset / (64 << 10);
                let (offset, end) = (offset % (64 << 10), end - copy * (64 << 10));
                let reached = paged.entry((*number, copy)).or_insert(0);
                assert!(offset <= *reached, "the write begins in a page that is cached, or with one");
                assert!(end <= *reached || end % PAGE_BYTES == 0, "{offset}..{end} beyond {reached}");
                assert!(end <= 64 << 10);
                *reached = end.max(*reached);
            }
            apply(&mut files, &ops);
        }
        let mut lsn = 10;
        for bytes in files.values() {
            let header = SegmentHeader::parse(bytes).unwrap();
            let mut scan = Scan::new(&header, &bytes[..64 << 10]);
            while let Some(record) = scan.next() {
                lsn += 1;
                assert_eq!(record.lsn, lsn);
            }
        }
        assert_eq!(lsn, 310);
    }

    #[test]
    fn golden_bytes_of_header_and_record() {
        let mut w = writer();
        w.begin();
        w.put(b"\x20key", b"value");
        w.delete_range(b"\x20a", b"\x20b");
        w.end(RecordKind::Change, 0x0102_0304);
        let mut ops = Vec::new();
        w.take_writes(&mut ops);
        let mut files = alloc::collections::BTreeMap::new();
        apply(&mut files, &ops);
        let bytes = &files[&1][..152];
        let header = b"NACRELOG\x01\0\0\0\x03\0\0\0\x01\0\0\0\0\0\0\0\x0b\0\0\0\0\0\0\0";
        assert_eq!(bytes[..32], header[..]);
        assert_eq!(bytes[68..72], 71u32.to_le_bytes());
        assert_eq!(bytes[104..117], b"\x01\x04\0\0\0\x05\0\0\0\x20key"[..]);
        assert_eq!(crc32c(bytes), 0x26cc_9bf2, "{bytes:02x?}");
    }

    #[test]
    fn a_broken_record_ends_the_log_and_later_synced_ones_betray_damage() {
        let mut w = writer();
        for n in 0..4u8 {
            w.begin();
            w.put(&[n], b"value");
            w.end(RecordKind::Change, u64::from(n));
            if n == 2 {
                w.synced(13);
            }
        }
        let mut ops = Vec::new();
        w.take_writes(&mut ops);
        let mut files = alloc::collections::BTreeMap::new();
        apply(&mut files, &ops);
        let mut bytes = files.remove(&1).unwrap();
        let header = SegmentHeader::parse(&bytes).unwrap();
        bytes[64 + 56 + 50] ^= 1; // In the second record.
        let mut scan = Scan::new(&header, &bytes);
        assert!(scan.next().is_some());
        assert!(scan.next().is_none());
        assert_eq!(scan.synced_beyond(), 13);
        // The same bytes in another segment are not accepted.
        let other = SegmentHeader { id: SegmentId { number: 2, ..header.id }, ..header };
        assert!(Scan::new(&other, &bytes).next().is_none());
    }
}
