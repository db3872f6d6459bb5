//! The store's own files as fuzz targets (`fuzz/`): any bytes in them are either read or refused with an error.
//!
//! Each file is read once as it is, and once with corrected checksums, so that the code behind the checks is reached.

use crate::crc::crc32c;
use crate::engine::superblock::Super;
use crate::log::mark::{MARK_BYTES, Mark};
use crate::log::segment::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Scan, SegmentHeader, u32_at};
use crate::table::run::{FOOTER_BYTES, Footer, Run, RunList, RunMeta, open_block, sign_block};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::Codec;

/// A segment of the log.
pub fn log(bytes: &[u8]) {
    let mut signed = bytes.to_vec();
    sign_segment(&mut signed);
    for bytes in [bytes, &signed] {
        let Some(header) = SegmentHeader::parse(bytes) else { continue };
        let mut scan = Scan::new(&header, bytes);
        let mut at = scan.at;
        while let Some(record) = scan.next() {
            assert!(scan.at > at && record.body.len() <= bytes.len());
            at = scan.at;
            for row in record.rows() {
                core::hint::black_box(row);
            }
        }
        core::hint::black_box(scan.synced_beyond());
        assert!(crate::log::copies::unite(bytes.to_vec()).bytes().len() <= bytes.len() / 2);
    }
}

fn sign_segment(bytes: &mut [u8]) {
    let Some(head) = bytes.get_mut(..SEGMENT_HEADER_BYTES) else { return };
    head[..8].copy_from_slice(&crate::log::segment::LOG_MAGIC);
    let sum = crc32c(&head[..60]);
    head[60..64].copy_from_slice(&sum.to_le_bytes());
    let Some(header) = SegmentHeader::parse(bytes) else { return };
    let mut at = SEGMENT_HEADER_BYTES;
    while let Some(rest) = bytes.get_mut(at..) {
        let len = u32_at(rest, 4).unwrap_or(0) as usize;
        let Some(record) = rest.get_mut(..len).filter(|r| r.len() >= RECORD_HEADER_BYTES) else { break };
        let sum = crc32c(&record[4..]) ^ header.id.seed();
        record[..4].copy_from_slice(&sum.to_le_bytes());
        at += len.next_multiple_of(8);
    }
}

/// A run: footer, index, blocks.
pub fn run(bytes: &[u8]) {
    const ID: u64 = 3;
    read_run(ID, bytes);
    let mut signed = bytes.to_vec();
    let Some(tail_end) = signed.len().checked_sub(FOOTER_BYTES as usize) else { return };
    let (body, footer) = signed.split_at_mut(tail_end);
    let at = crate::log::segment::u64_at(footer, 24).unwrap_or(0).min(body.len() as u64);
    footer[..8].copy_from_slice(b"NACRERUN");
    footer[8..12].copy_from_slice(&1u32.to_le_bytes());
    footer[12..16].copy_from_slice(&crc32c(&body[at as usize..]).to_le_bytes());
    footer[16..24].copy_from_slice(&ID.to_le_bytes());
    footer[24..32].copy_from_slice(&at.to_le_bytes());
    footer[32..40].copy_from_slice(&(body.len() as u64 - at).to_le_bytes());
    let sum = crc32c(&footer[..60]);
    footer[60..64].copy_from_slice(&sum.to_le_bytes());
    read_run(ID, &signed);
}

fn read_run(id: u64, bytes: &[u8]) {
    let Some(end) = bytes.len().checked_sub(FOOTER_BYTES as usize) else { return };
    let Ok(footer) = Footer::parse(id, &bytes[end..]) else { return };
    let (tail_at, tail_len) = footer.tail();
    let Some(tail) = bytes.get(tail_at as usize..tail_at.saturating_add(tail_len) as usize) else { return };
    let meta = RunMeta {
        id,
        bytes: 2 * bytes.len() as u64,
        rows: crate::log::segment::u64_at(&bytes[end..], 40).unwrap_or(0),
    };
    let Ok(run) = Run::parse(meta, &footer, tail) else { return };
    for (index, block) in run.blocks.iter().enumerate() {
        let from = usize::try_from(block.offset).unwrap_or(usize::MAX);
        let Some(found) = bytes.get(from..from.saturating_add(block.len as usize)) else { continue };
        let mut signed = found.to_vec();
        sign_block(&mut signed, id, block.offset);
        for found in [found, &signed] {
            let Ok(mut rows) = open_block(&run, index, &Bytes::copy_from_slice(found)) else { continue };
            while let Some(key) = rows.key() {
                core::hint::black_box((run.block_for(key), run.may_overlap(key, key), rows.value_bytes()));
                rows.step();
            }
        }
    }
}

/// The superblock, the list of runs, and the mark of the log.
pub fn superblock(bytes: &[u8]) {
    mark(bytes);
    let settle = |found: Super| assert_eq!(Super::parse(&found.to_bytes()).ok(), Some(found));
    drop(Super::parse(bytes).map(settle));
    if let Some(payload) = bytes.get(20..) {
        let head: [&[u8]; 5] = [
            b"NACREOSD",
            &crate::FORMAT_VERSION.to_le_bytes(),
            &(payload.len() as u32).to_le_bytes(),
            &crc32c(payload).to_le_bytes(),
            payload,
        ];
        drop(Super::parse(&head.concat()).map(settle));
        if let Ok(list) = RunList::from_slice(payload) {
            let again: Vec<u8> = list.to_vec();
            assert_eq!(RunList::from_slice(&again).map(|l| l.to_vec()), Ok(again));
        }
    }
}

fn mark(bytes: &[u8]) {
    if let Some(found) = Mark::parse(bytes) {
        assert_eq!(found.to_bytes(), bytes[..MARK_BYTES]);
    }
    let mut signed = bytes.to_vec();
    let Some(head) = signed.get_mut(..MARK_BYTES) else { return };
    head[..12].copy_from_slice(b"NACREMRK\x01\0\0\0");
    let sum = crc32c(&head[..40]);
    head[40..].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(Mark::parse(&signed).map(Mark::to_bytes).as_ref().map(|b| &b[..]), signed.get(..MARK_BYTES));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::superblock::Label;
    use crate::log::segment::{LogWriter, RecordKind};
    use crate::replay_corpus::{replay, seeds};
    use crate::table::Table;
    use crate::table::interval::IntervalSet;
    use crate::table::key::Key;
    use crate::table::run::RunBuilder;
    use alloc::vec;
    use nacre_node::StoreOp;

    #[test]
    fn segments_of_the_log() {
        let mut writer = LogWriter::new([7; 16], 2, 5, 1 << 20, 0, Vec::new());
        for n in 0..4u8 {
            writer.begin();
            writer.put(&[1, n], b"value");
            writer.delete(&[1, n, 2]);
            writer.delete_range(&[2], &[3, n]);
            writer.end(RecordKind::Change, u64::from(n) + 1);
        }
        let mut writes = Vec::new();
        writer.take_writes(&mut writes);
        let mut segment = Vec::new();
        for write in writes {
            if let StoreOp::Write { data, .. } = write {
                data.iter().for_each(|bytes| segment.extend_from_slice(bytes));
            }
        }
        assert!(SegmentHeader::parse(&segment).is_some(), "a seed that is good");
        seeds("log", &[("changes", segment), ("zeros", vec![0; 256]), ("ones", vec![0xff; 256])]);
        replay("log", log);
    }

    #[test]
    fn runs() {
        let mut b = RunBuilder::new(3, 100, &vec![(Table(5), 4)]);
        for n in 0..100u32 {
            let value = (n % 3 != 0).then(|| vec![n as u8; (n % 60) as usize]);
            b.add(Key::new(Table(5), &n.to_be_bytes()).raw(), value.as_deref());
        }
        let mut ranges = IntervalSet::default();
        drop(ranges.insert(Key::new(Table(6), b"a"), Key::new(Table(6), b"b")));
        let (_, bytes, _) = b.finish(ranges);
        seeds("run", &[("rows", bytes), ("zeros", vec![0; 256]), ("ones", vec![0xff; 256])]);
        replay("run", run);
    }

    #[test]
    fn superblocks() {
        let label = Label {
            uuid: nacre_types::ClientUuid([7; 16]),
            name: "demo-MDT0000".into(),
            mgs_nodes: vec!["10.0.0.1:9988".into()],
            format_version: crate::FORMAT_VERSION,
        };
        let list = RunList { flushed_lsn: 9, runs: vec![RunMeta { id: 3, bytes: 5000, rows: 20 }] };
        let list = [vec![0; 20], list.to_vec()].concat();
        let mark = Mark { epoch: 2, lsn: 77, store: [7; 16] }.to_bytes().to_vec();
        let label = Super::new(label).to_bytes().to_vec();
        seeds("superblock", &[("label", label), ("runs", list), ("mark", mark)]);
        replay("superblock", superblock);
    }
}
