//! The two copies of a log segment, as a start reads and restores them.
//!
//! The file of a segment has two halves with the same bytes. A record that is damaged in one half is read from the
//! other; a record that is damaged in both at different places is put together from both. So damage of one sector costs
//! nothing. The second half is written before each sync: after a crash it may end earlier than the first one, and after a
//! power loss either may. Therefore the log has every record that at least one copy has, and ends where the longer copy
//! does. No I/O up to [`unite`]; used by `log/recover.rs`.

use crate::combine::combine;
use crate::engine::files::read_all;
use crate::engine::full_device::write_log;
use crate::engine::superblock::Super;
use crate::error::OsdError;
use crate::log::segment::{ALIGN, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Scan, SegmentHeader, u32_at};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::{Ctx, FileId, StoreDone, StoreOp};

/// A segment as its two copies show it together.
pub(crate) struct United {
    bytes: Vec<u8>,
    single: Option<u64>,
    synced_beyond: u64,
}
impl United {
    /// One copy, with every record that the file has.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    /// The first record that only one of the copies has.
    pub(crate) fn single(&self) -> Option<u64> {
        self.single
    }
    /// The highest lsn that records behind the end, in either copy, state to be synced.
    pub(crate) fn synced_beyond(&self) -> u64 {
        self.synced_beyond
    }
}

/// Unites the halves of a segment's file.
pub(crate) fn unite(mut file: Vec<u8>) -> United {
    let half = file.len() / 2;
    let (first, second) = file.split_at(half);
    let mut united = United { bytes: Vec::new(), single: None, synced_beyond: 0 };
    let mut taken = Vec::new();
    let mut combined = Vec::new();
    let heads = [first, second].map(|copy| copy.get(..SEGMENT_HEADER_BYTES).unwrap_or_default());
    let head = combine(heads[0], heads[1], |bytes| SegmentHeader::parse(bytes).is_some());
    let header = head.as_deref().and_then(SegmentHeader::parse);
    if let (Some(head), Some(header)) = (head, header) {
        let [mut one, mut two] = [first, second].map(|copy| Scan::new(&header, copy));
        let mut lsn = header.first_lsn;
        if heads[0] != heads[1] {
            united.single = Some(lsn);
            combined.push((0, head));
        }
        loop {
            let [in_one, in_two] =
                [&one, &two].map(|copy| copy.record_at(copy.at).filter(|record| record.lsn == lsn));
            let Some(record) = in_one.as_ref().or(in_two.as_ref()) else {
                let Some(record) =
                    combine_record(&header, [first, second].map(|copy| &copy[one.at.min(half)..]), lsn)
                else {
                    break;
                };
                united.single.get_or_insert(lsn);
                let end = one.at + record.len();
                combined.push((one.at, record));
                (one.at, two.at) = (end.next_multiple_of(ALIGN), end.next_multiple_of(ALIGN));
                lsn += 1;
                continue;
            };
            if in_one.is_none() || in_two.is_none() {
                united.single.get_or_insert(lsn);
            }
            let end = one.at + record.bytes;
            if in_one.is_none() {
                taken.push(one.at..end.min(half));
            }
            (one.at, two.at) = (end, end);
            lsn += 1;
        }
        united.synced_beyond = one.synced_beyond().max(two.synced_beyond());
    }
    for range in taken {
        file.copy_within(range.start + half..range.end + half, range.start);
    }
    for (at, record) in combined {
        file[at..at + record.len()].copy_from_slice(&record);
    }
    file.truncate(half);
    united.bytes = file;
    united
}

/// Returns the record `lsn` at the beginning of both copies, each of which is damaged at another place.
fn combine_record(header: &SegmentHeader, copies: [&[u8]; 2], lsn: u64) -> Option<Vec<u8>> {
    let lens = copies.map(|copy| u32_at(copy, 4).unwrap_or(0) as usize);
    lens.into_iter().filter(|len| *len >= RECORD_HEADER_BYTES).find_map(|len| {
        let whole = |bytes: &[u8]| Scan::new(header, bytes).record_at(0).is_some_and(|r| r.lsn == lsn);
        combine(copies[0].get(..len)?, copies[1].get(..len)?, whole)
    })
}

/// Reads a segment.
pub(crate) async fn read_segment(ctx: &Ctx, number: u64) -> Result<United, OsdError> {
    let file = FileId::Log(number);
    let StoreDone::Len(len) = ctx.io(StoreOp::Len { file }).await? else {
        return Ok(unite(Vec::new()));
    };
    Ok(unite(read_all(ctx, file, len.unwrap_or(0)).await?))
}

/// What a start does to a segment before it continues the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Restore {
    number: u64,
    bytes: u64,
    first: bool,
}
impl Restore {
    /// Each copy gets so many `bytes`. `first`: the first copy is written as well, because it is damaged or nothing proves
    /// that the device has it.
    pub(crate) fn new(number: u64, bytes: u64, first: bool) -> Self {
        Self { number, bytes, first }
    }
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Writes the copies of a segment, shortens its file to them, and syncs it. At any time at least one copy is whole on the
/// device if one was before.
pub(crate) async fn restore_segment(ctx: &Ctx, superblock: &Super, restore: Restore) -> Result<(), OsdError> {
    let Restore { number, bytes, first } = restore;
    let file = FileId::Log(number);
    let mut copy = read_segment(ctx, number).await?.bytes;
    copy.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
    let copy = Bytes::from(copy);
    if first {
        write_log(ctx, superblock, file, 0, &copy).await?;
        ctx.io(StoreOp::Sync { file }).await?;
    }
    write_log(ctx, superblock, file, bytes, &copy).await?;
    ctx.io(StoreOp::Truncate { file, len: 2 * bytes }).await?;
    ctx.io(StoreOp::Sync { file }).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::segment::{LogWriter, RecordKind};

    const HALF: usize = 64 << 10;

    /// The file of a segment with records 11 to 40, of which the second copy has all but the last `missing`.
    fn segment(missing: u32) -> Vec<u8> {
        let mut w = LogWriter::new([7; 16], 3, 1, HALF as u64, 10, Vec::new());
        let mut file = Vec::new();
        for n in 0..30u32 {
            w.begin();
            w.put(&n.to_be_bytes(), &alloc::vec![n as u8; (n as usize * 37) % 900]);
            w.end(RecordKind::Change, u64::from(n));
            if n + missing == 29 {
                w.flush_copy();
            }
        }
        let mut ops = Vec::new();
        w.take_writes(&mut ops);
        for op in ops {
            match op {
                StoreOp::Create { len, .. } => file.resize(len as usize, 0),
                StoreOp::Write { offset, data, .. } => {
                    let data = data.concat();
                    file[offset as usize..][..data.len()].copy_from_slice(&data);
                }
                other => panic!("{other:?}"),
            }
        }
        file
    }
    fn lsns(copy: &[u8]) -> Vec<u64> {
        let header = SegmentHeader::parse(copy).unwrap();
        let mut scan = Scan::new(&header, copy);
        core::iter::from_fn(|| scan.next()).map(|record| record.lsn).collect()
    }

    #[test]
    fn damage_of_one_copy_costs_nothing_wherever_it_is() {
        let whole = segment(0);
        let used = unite(whole.clone());
        assert_eq!((used.single, &used.bytes[..]), (None, &whole[..HALF]));
        assert_eq!(lsns(&used.bytes), (11..=40).collect::<Vec<_>>());
        let end = 16_000;
        assert!(whole[end..HALF].iter().all(|byte| *byte == 0) && whole[..end].len() > 64);
        for at in (0..end).step_by(61).flat_map(|at| [at, at + HALF]) {
            let mut bad = whole.clone();
            bad[at..at + 64].iter_mut().for_each(|byte| *byte = !*byte);
            let united = unite(bad);
            assert_eq!(lsns(&united.bytes), (11..=40).collect::<Vec<_>>(), "damage at {at}");
        }
    }

    #[test]
    fn headers_that_are_damaged_at_different_places_complete_each_other() {
        for (one, two) in [(0, 40), (20, 0), (40, 20), (56, 8)] {
            let mut bad = segment(0);
            for at in [one, HALF + two] {
                bad[at..at + 8].iter_mut().for_each(|byte| *byte = !*byte);
            }
            let united = unite(bad);
            assert_eq!(lsns(&united.bytes), (11..=40).collect::<Vec<_>>(), "damage at {one} and {two}");
            assert_eq!(united.single, Some(11), "both are written again");
        }
    }

    #[test]
    fn what_one_copy_lacks_is_known() {
        let united = unite(segment(4));
        assert_eq!(united.single, Some(37));
        assert_eq!(lsns(&united.bytes).last(), Some(&40));
        // After a power loss it may be the first copy that ends earlier.
        let (one, two) = (segment(4), segment(0));
        let mut swapped = one[HALF..].to_vec();
        swapped.extend_from_slice(&two[..HALF]);
        let united = unite(swapped);
        assert_eq!((united.single, lsns(&united.bytes).last()), (Some(37), Some(&40)));
        // Damage of both copies of a record ends the log where it overlaps, and nowhere else.
        let damaged = |at: usize, other: usize| {
            let mut bad = segment(0);
            bad[at..at + 64].iter_mut().for_each(|byte| *byte = !*byte);
            bad[HALF + other..HALF + other + 64].iter_mut().for_each(|byte| *byte = !*byte);
            lsns(&unite(bad).bytes).len()
        };
        assert!(damaged(6000, 6030) < 25);
        for at in (100..9000).step_by(101) {
            assert_eq!(
                (damaged(at, at + 80), damaged(at + 80, at), damaged(at, at + 500)),
                (30, 30, 30),
                "{at}"
            );
        }
        for len in [0, 1, 63, 64, 100, 129, HALF, HALF + 100] {
            let united = unite(segment(0)[..len].to_vec());
            assert!(united.bytes.len() <= HALF);
        }
    }
}
