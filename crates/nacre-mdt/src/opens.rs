//! Who has what open: the rows of [`crate::table::OPEN`] in memory, counted by file.
//!
//! Invariants: equal to the table after every transaction; changed only after the transaction of the change has
//! succeeded, in the same visit. Bounded by what exports may have open.

use crate::row::Opened;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_types::{Fid, Generation, OpenHandle};

/// Opens of one export. More are refused with ENFILE's nearest relative.
pub const OPENS_PER_EXPORT_MAX: usize = 1 << 20;

const ACCMODE: u32 = 3;

impl Opened {
    /// `O_WRONLY` or `O_RDWR`.
    pub fn writes(&self) -> bool {
        self.flags & ACCMODE != 0
    }
}

/// What the record said when an open came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Before {
    /// The size was exact.
    pub exact: bool,
    /// The file might have objects.
    pub objects: bool,
}

/// What the MDT may conclude from the report of the last writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteEpoch {
    /// One open for write since the size was exact, and no truncate: that writer knows the size.
    Sole(Before),
    /// Only the OSTs know the size.
    Mixed,
}

#[derive(Debug)]
struct File {
    opens: u32,
    writers: u32,
    epoch: WriteEpoch,
}

/// All opens of a target.
#[derive(Debug, Default)]
pub struct Opens {
    rows: BTreeMap<(Generation, OpenHandle), Opened>,
    files: BTreeMap<Fid, File>,
}

impl Opens {
    pub fn get(&self, export: Generation, handle: OpenHandle) -> Option<Opened> {
        self.rows.get(&(export, handle)).copied()
    }
    pub fn len(&self) -> usize {
        self.rows.len()
    }
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
    pub fn is_full(&self, export: Generation) -> bool {
        self.rows.len() >= OPENS_PER_EXPORT_MAX
            && self.rows.range((export, OpenHandle(0))..=(export, OpenHandle(u64::MAX))).count()
                >= OPENS_PER_EXPORT_MAX
    }
    /// Opens of a file by anybody.
    pub fn count(&self, fid: Fid) -> u32 {
        self.files.get(&fid).map_or(0, |f| f.opens)
    }
    pub fn writers(&self, fid: Fid) -> u32 {
        self.files.get(&fid).map_or(0, |f| f.writers)
    }
    /// Set when there is one writer and it knows the size.
    pub fn sole_writer(&self, fid: Fid) -> Option<Before> {
        match self.files.get(&fid)? {
            File { writers: 1, epoch: WriteEpoch::Sole(before), .. } => Some(*before),
            File { .. } => None,
        }
    }
    /// Up to `limit` opens of an export.
    pub fn of_export(&self, export: Generation, limit: usize) -> Vec<(OpenHandle, Opened)> {
        self.rows
            .range((export, OpenHandle(0))..=(export, OpenHandle(u64::MAX)))
            .take(limit)
            .map(|(&(_, handle), &opened)| (handle, opened))
            .collect()
    }
    pub fn insert(&mut self, export: Generation, handle: OpenHandle, opened: Opened, before: Before) {
        if let Some(old) = self.rows.insert((export, handle), opened) {
            // The same open again (a replay): counted already.
            assert!(old == opened, "an open handle was given to another file");
            return;
        }
        let file = self.files.entry(opened.fid).or_insert(File {
            opens: 0,
            writers: 0,
            epoch: WriteEpoch::Mixed,
        });
        file.opens += 1;
        if opened.writes() {
            let sole = file.writers == 0 && before.exact;
            file.epoch = if sole { WriteEpoch::Sole(before) } else { WriteEpoch::Mixed };
            file.writers += 1;
        }
    }
    pub fn remove(&mut self, export: Generation, handle: OpenHandle) {
        let Some(opened) = self.rows.remove(&(export, handle)) else { return };
        let Some(file) = self.files.get_mut(&opened.fid) else { return };
        file.opens -= 1;
        if opened.writes() {
            file.writers -= 1;
        }
        if file.opens == 0 {
            self.files.remove(&opened.fid);
        }
    }
    /// Somebody cut the file: no writer's report can be trusted to be the size.
    pub fn taint(&mut self, fid: Fid) {
        if let Some(file) = self.files.get_mut(&fid) {
            file.epoch = WriteEpoch::Mixed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    const EXACT: Before = Before { exact: true, objects: false };
    const OPEN: Before = Before { exact: false, objects: true };

    #[test]
    fn only_a_lone_untainted_writer_knows_the_size() {
        let fid = Fid::new(Seq(0x100), Oid(1));
        let (a, b) = (Generation(1), Generation(2));
        let row = |flags| Opened { fid, flags };
        let mut opens = Opens::default();
        opens.insert(a, OpenHandle(1), row(0), EXACT);
        assert!(!opens.sole_writer(fid).is_some());
        opens.insert(a, OpenHandle(2), row(1), EXACT);
        assert!(opens.sole_writer(fid).is_some());
        opens.insert(b, OpenHandle(1), row(2), OPEN);
        opens.remove(a, OpenHandle(2));
        assert_eq!((opens.count(fid), opens.writers(fid), opens.sole_writer(fid).is_some()), (2, 1, false));
        opens.remove(b, OpenHandle(1));
        opens.insert(b, OpenHandle(2), row(2), EXACT);
        opens.taint(fid);
        assert!(!opens.sole_writer(fid).is_some());
        opens.remove(b, OpenHandle(2));
        opens.remove(a, OpenHandle(1));
        assert!(opens.is_empty());
        assert_eq!(opens.count(fid), 0);
    }
}
