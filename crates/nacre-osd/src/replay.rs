//! Where the log ends: the rules by which segments become a prefix of records, or damage.
//!
//! A value fed with whole segments in order of their numbers; no I/O. Used by `open` and by `check`.

use crate::error::OsdError;
use crate::log::{LOG_VERSION, Record, Scan, Segment, SegmentHeader};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Reads segments into records.
pub(crate) struct Replay {
    store: [u8; 16],
    epoch_ends: Vec<(u32, u64)>,
    /// Lsn of the last record taken in.
    pub(crate) last_lsn: u64,
    pub(crate) first_lsn: Option<u64>,
    pub(crate) last_transno: u64,
    /// Segments that hold records of the log.
    pub(crate) segments: Vec<Segment>,
    /// Segments that hold nothing that counts: never used, or behind the end of their epoch.
    pub(crate) unused: Vec<u64>,
    /// What the records seen so far say must be there.
    synced_lsn: u64,
    epoch: u32,
    ended: bool,
}

impl Replay {
    pub(crate) fn new(store: [u8; 16], epoch_ends: &[(u32, u64)]) -> Self {
        Self {
            store,
            epoch_ends: epoch_ends.to_vec(),
            last_lsn: 0,
            first_lsn: None,
            last_transno: 0,
            segments: Vec::new(),
            unused: Vec::new(),
            synced_lsn: 0,
            epoch: 0,
            ended: false,
        }
    }
    fn end_of(&self, epoch: u32) -> Option<u64> {
        self.epoch_ends.iter().find(|(e, _)| *e == epoch).map(|(_, lsn)| *lsn)
    }
    fn damaged(&self, what: &str) -> OsdError {
        OsdError::Corrupt {
            what: format!(
                "the log: record {} ({what}) is missing or broken although later ones were synced; the rows it held are lost: run `nacre check`, restore the target from a copy, or let clients replay into a fresh one",
                self.last_lsn + 1
            ),
        }
    }

    /// Takes in a segment; `each` gets its records that count, in order.
    ///
    /// # Errors
    /// `Corrupt` when records that had been synced are gone, `Format` for segments of another version or store.
    pub(crate) fn segment(
        &mut self,
        number: u64,
        bytes: &[u8],
        mut each: impl FnMut(&Record<'_>) -> Result<(), OsdError>,
    ) -> Result<(), OsdError> {
        let Some(header) = SegmentHeader::parse(bytes) else {
            // Made in advance, or its first write was lost: whatever follows decides.
            self.unused.push(number);
            return Ok(());
        };
        if header.version != LOG_VERSION || header.id.store != self.store || header.id.number != number {
            return Err(OsdError::Format(format!(
                "log segment {number} belongs to another store or format (version {}, number {}): remove it from this directory",
                header.version, header.id.number
            )));
        }
        if header.id.epoch != self.epoch {
            self.finish_epoch()?;
            self.epoch = header.id.epoch;
            self.ended = false;
        }
        let mut scan = Scan::new(&header, bytes);
        let limit = self.end_of(self.epoch).unwrap_or(u64::MAX);
        let mut taken = 0u64;
        if self.first_lsn.is_none() && header.first_lsn <= limit {
            self.last_lsn = header.first_lsn - 1;
        }
        if !self.ended && header.first_lsn == self.last_lsn + 1 {
            loop {
                if self.last_lsn >= limit {
                    self.ended = true;
                    break;
                }
                let at = scan.at;
                let Some(record) = scan.next() else { break };
                if record.lsn != self.last_lsn + 1 {
                    scan.at = at;
                    break;
                }
                each(&record)?;
                self.last_lsn = record.lsn;
                self.last_transno = self.last_transno.max(record.transno);
                self.synced_lsn = self.synced_lsn.max(record.synced_lsn);
                self.first_lsn.get_or_insert(record.lsn);
                taken += 1;
            }
        }
        if limit == u64::MAX {
            self.synced_lsn = self.synced_lsn.max(scan.synced_beyond());
        }
        if taken == 0 {
            self.unused.push(number);
            return Ok(());
        }
        self.segments.push(Segment {
            number,
            bytes: bytes.len() as u64,
            last_lsn: self.last_lsn,
            synced_lsn: self.last_lsn,
        });
        Ok(())
    }
    /// What an epoch promised must have been there.
    fn finish_epoch(&mut self) -> Result<(), OsdError> {
        if let Some(end) = self.end_of(self.epoch)
            && self.last_lsn < end
        {
            return Err(self.damaged(&format!("epoch {} ended with record {end}", self.epoch)));
        }
        if self.last_lsn < self.synced_lsn {
            return Err(self.damaged(&format!("synced up to record {}", self.synced_lsn)));
        }
        Ok(())
    }
    /// All segments were given.
    ///
    /// # Errors
    /// See `segment`. `known_end`: a clean stop wrote down the last lsn.
    pub(crate) fn finish(&mut self, flushed_lsn: u64) -> Result<(), OsdError> {
        self.finish_epoch()?;
        if let Some((epoch, end)) = self.epoch_ends.last()
            && self.last_lsn < *end
            && flushed_lsn < *end
        {
            return Err(self.damaged(&format!("epoch {epoch} ended with record {end}")));
        }
        if let Some(first) = self.first_lsn
            && first > flushed_lsn + 1
        {
            return Err(OsdError::Corrupt {
                what: format!(
                    "the log: it begins with record {first}, but records from {} on are needed",
                    flushed_lsn + 1
                ),
            });
        }
        Ok(())
    }
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} segments, records {} to {}",
            self.segments.len(),
            self.first_lsn.unwrap_or(0),
            self.last_lsn
        )
    }
}
