//! The rules by which segments form the log after a restart: a sequence of records without a gap, or damage.
//!
//! Each segment is summarized by itself, then [`plan`] decides. Segments that were deleted may reappear after a power
//! loss, with or without their neighbours. The log is therefore the *latest* chain of segments without a gap that
//! reaches back to the last record that the chain's own list of runs covers. The log ends with its last complete
//! record; if any record states that records beyond this end had been synced, the log is damaged. A record is complete if
//! one of its two copies in the segment is (`log/copies.rs`). No I/O in here; used by `log/recover.rs`.

use crate::error::OsdError;
use crate::log::copies::{Restore, United};
use crate::log::segment::{LOG_VERSION, Record, RecordKind, Scan, Segment, SegmentHeader};
use crate::table::run::RunList;
use alloc::format;
use alloc::vec::Vec;
use nacre_types::Codec;

/// The log epochs according to the superblock: the named parameters of a plan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epochs<'a> {
    pub(crate) latest: u32,
    /// Epochs that have ended and may still have segments, each with its last lsn.
    pub(crate) ends: &'a [(u32, u64)],
    /// The lsn up to which the log is durable according to the mark.
    pub(crate) mark: u64,
}

/// Granularity of truncations: a block of the device.
const CUT_BYTES: u64 = 4096;

/// Summary of one segment.
#[derive(Debug)]
pub(crate) struct Summary {
    number: u64,
    epoch: u32,
    /// Length of one copy.
    bytes: u64,
    first_lsn: u64,
    /// Position in the segment after its last valid record.
    end_bytes: u64,
    /// Lsn of the last complete record; below `first_lsn` if there is none.
    last_lsn: u64,
    last_transno: u64,
    /// The latest list of runs in this segment.
    runs: Option<RunList>,
    /// The highest lsn that records of this segment, also those behind a gap, state to be synced.
    synced_lsn: u64,
    /// The first record that only one copy has.
    single: Option<u64>,
}

/// Returns the valid records of a segment, in order.
fn records<'a>(header: &SegmentHeader, bytes: &'a [u8], end: u64) -> (Vec<Record<'a>>, Scan<'a>) {
    let mut scan = Scan::new(header, bytes);
    let mut records = Vec::new();
    let mut lsn = header.first_lsn;
    while lsn <= end {
        let at = scan.at;
        match scan.next() {
            Some(record) if record.lsn == lsn => records.push(record),
            _ => {
                scan.at = at;
                break;
            }
        }
        lsn += 1;
    }
    (records, scan)
}
/// Returns the last valid lsn of an epoch. The latest epoch has no end yet. An earlier epoch that is not listed has no
/// valid records: its segments had been deleted and have reappeared.
fn end_of(epoch: u32, epochs: &Epochs<'_>) -> u64 {
    let listed = epochs.ends.iter().find(|(e, _)| *e == epoch).map(|(_, lsn)| *lsn);
    listed.unwrap_or(if epoch >= epochs.latest { u64::MAX } else { 0 })
}

/// Summarizes a segment.
///
/// # Errors
/// `Format` for segments of another version or store, `Corrupt` for a list of runs that cannot be read.
pub(crate) fn summarize(
    store: [u8; 16],
    epochs: &Epochs<'_>,
    number: u64,
    segment: &United,
) -> Result<Summary, OsdError> {
    let bytes = segment.bytes();
    let mut summary = Summary {
        number,
        epoch: 0,
        bytes: bytes.len() as u64,
        first_lsn: u64::MAX,
        end_bytes: 0,
        last_lsn: 0,
        last_transno: 0,
        runs: None,
        synced_lsn: 0,
        single: None,
    };
    // No header: the segment was created in advance, or its first write was lost.
    let Some(header) = SegmentHeader::parse(bytes) else { return Ok(summary) };
    if header.version != LOG_VERSION || header.id.store != store || header.id.number != number {
        return Err(OsdError::Format(format!(
            "log segment {number} belongs to another store or format (version {}, number {}): remove it from this directory",
            header.version, header.id.number
        )));
    }
    let end = end_of(header.id.epoch, epochs);
    let (records, scan) = records(&header, bytes, end);
    if end == u64::MAX {
        summary.synced_lsn = segment.synced_beyond();
    }
    summary.end_bytes = scan.at as u64;
    summary.epoch = header.id.epoch;
    summary.first_lsn = header.first_lsn;
    summary.last_lsn = header.first_lsn - 1;
    summary.single = segment.single().filter(|lsn| *lsn <= end);
    for record in records {
        summary.last_lsn = record.lsn;
        summary.last_transno = summary.last_transno.max(record.transno);
        summary.synced_lsn = summary.synced_lsn.max(record.synced_lsn);
        if record.kind == RecordKind::Runs {
            let list = RunList::from_slice(record.body)
                .map_err(|e| OsdError::Corrupt { what: format!("the list of runs in the log ({e})") })?;
            summary.runs = Some(list);
        }
    }
    Ok(summary)
}

/// The segments that form the log, as `plan` finds them. A plain record: the opening of the store takes it apart.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Segments of the chain, oldest first.
    pub(crate) segments: Vec<Segment>,
    /// Epochs of these segments.
    pub(crate) epochs: Vec<u32>,
    /// Segments of the chain whose unused ends are worth freeing, or whose copies must be written.
    pub(crate) restores: Vec<Restore>,
    damaged_copies: Vec<(u64, u64)>,
    /// Segments to delete: never used, behind the end of the log, or flushed long ago.
    pub(crate) unused: Vec<u64>,
    pub(crate) last_lsn: u64,
    /// Records up to this lsn are proven durable; nothing is known about later ones.
    pub(crate) proven_lsn: u64,
    pub(crate) last_transno: u64,
    pub(crate) runs: RunList,
}

impl Plan {
    /// Segments in which a copy of a record that had been synced is damaged: number and record.
    pub(crate) fn damaged_copies(&self) -> &[(u64, u64)] {
        &self.damaged_copies
    }
}

/// Decides from all segments in order of their numbers. `clean`: the store was stopped as planned.
///
/// # Errors
/// `Corrupt` when records that had been synced, or are needed, are missing.
pub(crate) fn plan(summaries: &[Summary], epochs: &Epochs<'_>, clean: bool) -> Result<Plan, OsdError> {
    let used: Vec<&Summary> = summaries.iter().filter(|s| s.last_lsn >= s.first_lsn).collect();
    let mut plan = Plan::default();
    // Candidates: chains from the latest to the oldest.
    let mut end = used.len();
    let mut chain: &[&Summary] = &[];
    while end > 0 {
        let mut begin = end - 1;
        while begin > 0 && used[begin - 1].last_lsn + 1 == used[begin].first_lsn {
            begin -= 1;
        }
        let candidate = &used[begin..end];
        let runs = candidate.iter().rev().find_map(|s| s.runs.as_ref());
        let flushed_lsn = runs.map_or(0, |r| r.flushed_lsn);
        if candidate[0].first_lsn <= flushed_lsn + 1 {
            chain = candidate;
            plan.runs = runs.cloned().unwrap_or_default();
            break;
        }
        end = begin;
    }
    for s in chain {
        plan.last_lsn = s.last_lsn;
        plan.epochs.push(s.epoch);
        plan.last_transno = plan.last_transno.max(s.last_transno);
        plan.segments.push(Segment {
            number: s.number,
            bytes: s.bytes,
            last_lsn: s.last_lsn,
            synced_lsn: s.last_lsn,
        });
    }
    let in_chain = |s: &Summary| chain.iter().any(|c| c.number == s.number);
    plan.unused = summaries.iter().filter(|s| !in_chain(s)).map(|s| s.number).collect();
    let synced = summaries.iter().map(|s| s.synced_lsn).max().unwrap_or(0);
    let ended = epochs.ends.iter().map(|(_, lsn)| *lsn).max().unwrap_or(0);
    let known = synced.max(ended).max(epochs.mark);
    plan.proven_lsn = known;
    for s in chain {
        let bytes = s.end_bytes.next_multiple_of(CUT_BYTES).min(s.bytes);
        let unproven = !clean && s.last_lsn > known;
        if bytes < s.bytes || unproven || s.single.is_some() {
            plan.restores.push(Restore::new(s.number, bytes, unproven || s.single.is_some()));
        }
        plan.damaged_copies.extend(s.single.filter(|lsn| *lsn <= known).map(|lsn| (s.number, lsn)));
    }
    if plan.last_lsn < known {
        return Err(OsdError::Corrupt {
            what: format!(
                "the log: it was durable up to record {known}, but record {} cannot be read; the changes from there on are lost: run `nacre check`, then restore the target from a copy",
                plan.last_lsn + 1
            ),
        });
    }
    Ok(plan)
}

/// Passes the records of a planned segment that are not in runs yet to `each`.
///
/// # Errors
/// Those of `each`; `Corrupt` if the segment has changed since it was planned.
pub(crate) fn replay(
    plan: &Plan,
    epochs: &Epochs<'_>,
    segment: &Segment,
    bytes: &[u8],
    mut each: impl FnMut(&Record<'_>) -> Result<(), OsdError>,
) -> Result<(), OsdError> {
    let Some(header) = SegmentHeader::parse(bytes) else {
        return Err(OsdError::Corrupt { what: format!("log segment {}", segment.number) });
    };
    let (records, _) = records(&header, bytes, end_of(header.id.epoch, epochs));
    for record in records.iter().filter(|r| r.lsn > plan.runs.flushed_lsn && r.lsn <= plan.last_lsn) {
        each(record)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(number: u64, first_lsn: u64, last_lsn: u64, synced_lsn: u64, flushed: Option<u64>) -> Summary {
        Summary {
            number,
            epoch: 1,
            bytes: 1,
            first_lsn,
            end_bytes: 1,
            last_lsn,
            last_transno: last_lsn,
            runs: flushed.map(|flushed_lsn| RunList { flushed_lsn, runs: Vec::new() }),
            synced_lsn,
            single: None,
        }
    }
    /// Returns the segment numbers of the chain and its last lsn; `None` for damage.
    fn check(segments: &[Summary], ends: &[(u32, u64)], expected: Option<(&[u64], u64)>) {
        check_marked(segments, ends, 0, expected);
    }
    fn check_marked(segments: &[Summary], ends: &[(u32, u64)], mark: u64, expected: Option<(&[u64], u64)>) {
        let plan = plan(segments, &Epochs { latest: 9, ends, mark }, false);
        let got = plan.as_ref().ok();
        let numbers = got.map(|p| p.segments.iter().map(|s| s.number).collect::<Vec<_>>());
        assert_eq!(numbers.as_deref(), expected.map(|e| e.0));
        assert_eq!(got.map(|p| p.last_lsn), expected.map(|e| e.1));
    }

    #[test]
    fn the_log_is_the_latest_chain_that_reaches_back_to_what_is_flushed() {
        check(&[], &[], Some((&[], 0)));
        let unused = || segment(9, u64::MAX, 0, 0, None);
        check(&[segment(1, 1, 5, 3, None), segment(2, 6, 9, 7, None), unused()], &[], Some((&[1, 2], 9)));
        // The end of segment 1 was lost before it was synced, so segment 2 is not part of the log.
        check(&[segment(1, 1, 4, 3, None), segment(2, 6, 9, 4, None)], &[], Some((&[1], 4)));
        // The end of segment 1 had been synced: damage.
        check(&[segment(1, 1, 4, 3, None), segment(2, 6, 9, 5, None)], &[], None);
        // Segment 1 had been deleted and has reappeared, 2 is gone; the list of runs in 3 explains it.
        check(&[segment(1, 1, 4, 3, None), segment(3, 8, 12, 9, Some(9))], &[(1, 7)], Some((&[3], 12)));
        // Needed records are missing.
        check(&[segment(3, 8, 12, 9, Some(6))], &[], None);
        check(&[], &[(1, 7)], None);
    }

    #[test]
    fn a_log_that_ends_before_the_mark_is_damaged() {
        let first = || segment(1, 1, 5, 3, None);
        check_marked(&[first(), segment(2, 6, 9, 5, None)], &[], 9, Some((&[1, 2], 9)));
        // Segment 2 is missing, empty or truncated.
        check_marked(&[first()], &[], 9, None);
        check_marked(&[first(), segment(2, u64::MAX, 0, 0, None)], &[], 9, None);
        check_marked(&[first(), segment(2, 6, 8, 5, None)], &[], 9, None);
        check_marked(&[], &[], 1, None);
        // Records behind the mark may be missing.
        check_marked(&[first()], &[], 5, Some((&[1], 5)));
        // Everything up to the mark is in runs, and its segments are deleted.
        check_marked(&[segment(3, 10, 12, 9, Some(9))], &[], 9, Some((&[3], 12)));
    }
}
