//! The writes that are left in a log: those that are not void, as writes of objects.

use crate::data::stripes;
use crate::files::dirty_bytes::DirtyBytes;
use crate::kept_log::record::{FileRecord, KeptRecord, PlacedRecord, Record, records};
use crate::targets::target::RPC_BYTES_MIN;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Boot, Extent, Fid, KeptPlace, LockCookie, OstIndex, Timestamp};
use nacre_wire::ost::Write;

/// What a former process of this machine has left in its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptWrites {
    /// Identity of the log.
    pub log: u64,
    /// Writes by OST. They do not overlap.
    pub writes: Vec<(OstIndex, Write, Vec<Bytes>)>,
}

/// A file with writes in the log.
#[derive(Default)]
struct Left {
    file: Option<FileRecord>,
    /// By their numbers.
    writes: BTreeMap<u64, LeftWrite>,
}
struct LeftWrite {
    offset: u64,
    len: u64,
    mtime: Timestamp,
    /// `None`: there are others in their place, so that the OSTs have them, or later ones.
    data: Option<Bytes>,
}

/// Reads the segments of a log. `boot`: the present start of the machine; what was written during another one is worthless.
/// `placed` reads bytes in the memory that the log names, unless others have their place. `None`: it has no records.
pub fn kept_writes(
    segments: &[Bytes],
    boot: Boot,
    placed: &mut dyn FnMut(KeptPlace, u64) -> Option<Bytes>,
) -> Option<KeptWrites> {
    let mut all: Vec<(Record, u64, Bytes)> =
        segments.iter().flat_map(|segment| records(segment.clone(), boot)).collect();
    all.sort_by_key(|(_, serial, _)| *serial);
    let mut log = None;
    let mut files: BTreeMap<Fid, Left> = BTreeMap::new();
    for (record, serial, data) in all {
        match record {
            Record::Segment(segment) => log = Some(segment.log),
            Record::File(file) => {
                let left = files.entry(file.fid).or_default();
                left.file = Some(file);
            }
            Record::Kept(kept) => {
                let KeptRecord { fid, offset, mtime } = kept;
                let write = LeftWrite { offset, len: data.len() as u64, mtime, data: Some(data) };
                files.entry(fid).or_default().writes.insert(serial, write);
            }
            Record::Placed(PlacedRecord { fid, offset, mtime, len, place }) => {
                let write = LeftWrite { offset, len, mtime, data: placed(place, len) };
                files.entry(fid).or_default().writes.insert(serial, write);
            }
            Record::Void(void) => {
                if let Some(left) = files.get_mut(&void.fid) {
                    left.writes = left.writes.split_off(&(void.serial + 1));
                }
            }
        }
    }
    Some(KeptWrites { log: log?, writes: files.values().flat_map(writes_of).collect() })
}

fn writes_of(left: &Left) -> Vec<(OstIndex, Write, Vec<Bytes>)> {
    let Some(file) = &left.file else { return Vec::new() };
    let (mut bytes, mut mtime) = (DirtyBytes::new(RPC_BYTES_MIN, None), Timestamp::default());
    for write in left.writes.values() {
        match &write.data {
            Some(data) => bytes.write(write.offset, data),
            // Earlier bytes of its range must not be written over what the OSTs have.
            None => drop(bytes.take(Extent::new(write.offset, write.offset.saturating_add(write.len)))),
        }
        mtime = mtime.max(write.mtime);
    }
    let mut writes = Vec::new();
    for run in bytes.take(Extent::ALL) {
        for range in stripes::by_object(&file.component, run.offset(), run.len()) {
            let stripes::Laid { object, laid } = range.of(file.fid);
            let write =
                Write { object, laid, offset: range.offset, owner: file.owner, mtime, lock: LockCookie(0) };
            writes.push((range.ost, write, stripes::gather_parts(&range, run.data())));
        }
    }
    writes
}
