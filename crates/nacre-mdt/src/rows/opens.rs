//! The opens of all clients: the rows of [`crate::rows::table::OPEN`] in memory, counted by file.
//!
//! A *write epoch* of a file lasts from the first open for write to the close of the last writer. If one client alone wrote
//! and truncated the file in an epoch, that client knows the size at its end; otherwise only the OSTs do.
//!
//! A start does not know which clients have [`InodeBits::WRITE_BACK`]: whoever had the file open for writing may keep bytes of
//! it (`former_writers`), until it is asked to write them, or the file is closed by all.
//!
//! Invariants: equal to the table after every transaction; changed only after the transaction of the change has
//! succeeded, in the same visit. Bounded: an export may have [`OPENS_PER_EXPORT_MAX`] opens.

use crate::rows::row::OpenRow;
use crate::rows::state_change::{SizeBefore, StateChange};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
#[cfg(doc)]
use nacre_types::InodeBits;
use nacre_types::{Fid, Generation, OpenHandle};
use nacre_wire::mdt::open_flags;

/// Opens of one export; further ones are refused with ENOMEM.
pub(crate) const OPENS_PER_EXPORT_MAX: usize = 1 << 20;

impl OpenRow {
    /// `O_WRONLY` or `O_RDWR`.
    pub(crate) fn writes(&self) -> bool {
        is_writer(self.flags)
    }
}

/// Whether an open with these flags is `O_WRONLY` or `O_RDWR`.
pub(crate) fn is_writer(flags: u32) -> bool {
    flags & open_flags::ACCMODE != 0
}

/// The source of a file's size at the end of a write epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteEpoch {
    /// Only this client has opened for write or truncated since the size was exact: it knows the size. `objects`: the
    /// file might have had objects when the epoch began.
    Sole { export: Generation, objects: bool },
    /// Only the OSTs know the size; or there is no writer.
    Mixed,
}

#[derive(Debug, Clone)]
struct File {
    opens: u32,
    writers: u32,
    epoch: WriteEpoch,
    /// `None`: several clients have, or had, the file open.
    opener: Option<Generation>,
    /// Clients that had it open for writing before the start, and have not been asked since for bytes that they may keep.
    former_writers: Vec<Generation>,
}

/// The state that one change overwrites, for [`Opens::undo`].
#[derive(Debug)]
pub(crate) struct Undo {
    open: Option<((Generation, OpenHandle), Option<OpenRow>)>,
    file: Option<(Fid, Option<File>)>,
    truncate: Option<((Generation, Fid), Option<u32>)>,
}

/// All opens of a target.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// The map of an export stays until the export is gone, because most exports have one open at a time.
    rows: BTreeMap<Generation, BTreeMap<OpenHandle, OpenRow>>,
    files: BTreeMap<Fid, File>,
    /// Truncates whose end has not been reported, by client and file.
    truncates: BTreeMap<(Generation, Fid), u32>,
}

impl Opens {
    pub(crate) fn get(&self, export: Generation, handle: OpenHandle) -> Option<OpenRow> {
        self.rows.get(&export)?.get(&handle).copied()
    }
    pub(crate) fn len(&self) -> usize {
        self.rows.values().map(BTreeMap::len).sum()
    }
    pub(crate) fn is_full(&self, export: Generation) -> bool {
        self.rows.get(&export).is_some_and(|opens| opens.len() >= OPENS_PER_EXPORT_MAX)
    }
    /// Opens of a file by all clients.
    pub(crate) fn count(&self, fid: Fid) -> u32 {
        self.files.get(&fid).map_or(0, |f| f.opens)
    }
    pub(crate) fn writers(&self, fid: Fid) -> u32 {
        self.files.get(&fid).map_or(0, |f| f.writers)
    }
    /// The client that knows the size because no other could have changed it, and whether the file might have had objects
    /// when the epoch began.
    pub(crate) fn sole_writer(&self, fid: Fid) -> Option<(Generation, bool)> {
        match self.files.get(&fid)?.epoch {
            WriteEpoch::Sole { export, objects } => Some((export, objects)),
            WriteEpoch::Mixed => None,
        }
    }
    /// The only client that has had the file open since it was last closed by all.
    pub(crate) fn opener(&self, fid: Fid) -> Option<Generation> {
        self.files.get(&fid)?.opener
    }
    /// Whether clients other than `own` may keep bytes of the file since before the start.
    pub(crate) fn has_former_writers(&self, own: Option<Generation>, fid: Fid) -> bool {
        self.files.get(&fid).is_some_and(|f| f.former_writers.iter().any(|writer| Some(*writer) != own))
    }
    /// These clients; they are asked now.
    pub(crate) fn take_former_writers(&mut self, own: Option<Generation>, fid: Fid) -> Vec<Generation> {
        let Some(file) = self.files.get_mut(&fid) else { return Vec::new() };
        let (own, others) = file.former_writers.iter().partition(|writer| Some(**writer) == own);
        file.former_writers = own;
        others
    }
    /// Whether a truncate of this file is under way.
    pub(crate) fn is_being_truncated(&self, fid: Fid) -> bool {
        self.truncates.keys().any(|(_, f)| *f == fid)
    }
    /// Files with truncates whose end an export has not reported.
    pub(crate) fn truncates_of(&self, export: Generation) -> Vec<Fid> {
        self.truncates.keys().filter(|(g, _)| *g == export).map(|(_, fid)| *fid).collect()
    }
    /// Up to `limit` opens of an export.
    pub(crate) fn of_export(&self, export: Generation, limit: usize) -> Vec<(OpenHandle, OpenRow)> {
        let opens = self.rows.get(&export).into_iter().flatten();
        opens.take(limit).map(|(&handle, &opened)| (handle, opened)).collect()
    }
    /// Applies a change that a transaction has made.
    pub(crate) fn apply(&mut self, change: &StateChange) {
        match *change {
            StateChange::Opened { export, handle, opened, before } => {
                self.insert(export, handle, opened, before)
            }
            StateChange::Closed { export, handle } => self.remove(export, handle),
            StateChange::TruncateStarted { export, fid } => self.start_truncate(export, fid),
            StateChange::TruncateEnded { export, fid, last: false } => self.end_truncate(export, fid),
            StateChange::TruncateEnded { export, fid, last: true } => self.forget_truncates(export, fid),
            StateChange::WriterLost(fid) => self.writer_lost(fid),
            StateChange::SizeUnknown(_)
            | StateChange::OstWork(_)
            | StateChange::MovedTo(_)
            | StateChange::UnusedReservation(_)
            | StateChange::InodeRemoved(_) => {}
        }
    }
    /// The state that [`Self::apply`] would overwrite.
    pub(crate) fn undo_of(&self, change: &StateChange) -> Undo {
        let (open, fid, truncate) = match *change {
            StateChange::Opened { export, handle, opened, .. } => {
                (Some((export, handle)), Some(opened.fid), None)
            }
            StateChange::Closed { export, handle } => {
                (Some((export, handle)), self.get(export, handle).map(|o| o.fid), None)
            }
            StateChange::TruncateStarted { export, fid } | StateChange::TruncateEnded { export, fid, .. } => {
                (None, Some(fid), Some((export, fid)))
            }
            StateChange::WriterLost(fid) => (None, Some(fid), None),
            StateChange::SizeUnknown(_)
            | StateChange::OstWork(_)
            | StateChange::MovedTo(_)
            | StateChange::UnusedReservation(_)
            | StateChange::InodeRemoved(_) => (None, None, None),
        };
        Undo {
            open: open.map(|(export, handle)| ((export, handle), self.get(export, handle))),
            file: fid.map(|fid| (fid, self.files.get(&fid).cloned())),
            truncate: truncate.map(|key| (key, self.truncates.get(&key).copied())),
        }
    }
    /// Takes a change back. Several changes are taken back in reverse order.
    pub(crate) fn undo(&mut self, undo: Undo) {
        fn put_back<K: Ord, V>(map: &mut BTreeMap<K, V>, old: Option<(K, Option<V>)>) {
            match old {
                Some((key, Some(value))) => drop(map.insert(key, value)),
                Some((key, None)) => drop(map.remove(&key)),
                None => {}
            }
        }
        match undo.open {
            Some(((export, handle), Some(opened))) => drop(self.put(export, handle, opened)),
            Some(((export, handle), None)) => drop(self.take(export, handle)),
            None => {}
        }
        put_back(&mut self.files, undo.file);
        put_back(&mut self.truncates, undo.truncate);
    }
    /// An open that was made before the start, from its row or from a replay, is in the table: its client may keep bytes.
    pub(crate) fn note_former(&mut self, export: Generation, opened: OpenRow) {
        if let Some(file) = self.files.get_mut(&opened.fid).filter(|_| opened.writes())
            && !file.former_writers.contains(&export)
        {
            file.former_writers.push(export);
        }
    }
    pub(crate) fn insert(
        &mut self,
        export: Generation,
        handle: OpenHandle,
        opened: OpenRow,
        before: SizeBefore,
    ) {
        if let Some(old) = self.put(export, handle, opened) {
            // The same open again (a replay), which has been counted.
            assert!(old == opened, "an open handle was given to another file");
            return;
        }
        let new = File {
            opens: 0,
            writers: 0,
            epoch: WriteEpoch::Mixed,
            opener: Some(export),
            former_writers: Vec::new(),
        };
        let file = self.files.entry(opened.fid).or_insert(new);
        file.opens += 1;
        file.opener = file.opener.filter(|opener| *opener == export);
        if opened.writes() {
            file.epoch = match (file.epoch, before) {
                (_, SizeBefore::Exact { objects }) if file.writers == 0 => {
                    WriteEpoch::Sole { export, objects }
                }
                (WriteEpoch::Sole { export: sole, .. }, _) if file.writers > 0 && sole == export => {
                    file.epoch
                }
                (WriteEpoch::Sole { .. } | WriteEpoch::Mixed, _) => WriteEpoch::Mixed,
            };
            file.writers += 1;
        }
    }
    pub(crate) fn remove(&mut self, export: Generation, handle: OpenHandle) {
        let Some(opened) = self.take(export, handle) else { return };
        let Some(file) = self.files.get_mut(&opened.fid) else { return };
        file.opens -= 1;
        if opened.writes() {
            file.writers -= 1;
            if file.writers == 0 {
                // The epoch has ended: other clients may be granted SIZE and OPEN although the file is open.
                file.epoch = WriteEpoch::Mixed;
            }
        }
        if file.opens == 0 {
            self.files.remove(&opened.fid);
        }
    }
    /// The export is gone and has no opens any more.
    pub(crate) fn forget(&mut self, export: Generation) {
        self.rows.remove(&export);
    }
    fn put(&mut self, export: Generation, handle: OpenHandle, opened: OpenRow) -> Option<OpenRow> {
        self.rows.entry(export).or_default().insert(handle, opened)
    }
    fn take(&mut self, export: Generation, handle: OpenHandle) -> Option<OpenRow> {
        self.rows.get_mut(&export)?.remove(&handle)
    }
    /// A client that wrote to the file can no longer report the size.
    fn writer_lost(&mut self, fid: Fid) {
        if let Some(file) = self.files.get_mut(&fid) {
            file.epoch = WriteEpoch::Mixed;
        }
    }
    /// A client begins to truncate a file.
    pub(crate) fn start_truncate(&mut self, export: Generation, fid: Fid) {
        *self.truncates.entry((export, fid)).or_insert(0) += 1;
        if let Some(file) = self.files.get_mut(&fid) {
            file.epoch = match file.epoch {
                WriteEpoch::Sole { export: sole, .. } if sole == export => {
                    WriteEpoch::Sole { export, objects: true }
                }
                WriteEpoch::Sole { .. } | WriteEpoch::Mixed => WriteEpoch::Mixed,
            };
        }
    }
    /// The client has reported the end of a truncate.
    pub(crate) fn end_truncate(&mut self, export: Generation, fid: Fid) {
        if let Some(count) = self.truncates.get_mut(&(export, fid)) {
            *count -= 1;
            if *count == 0 {
                self.truncates.remove(&(export, fid));
            }
        }
    }
    /// The client will never report the end of its truncates.
    pub(crate) fn forget_truncates(&mut self, export: Generation, fid: Fid) {
        self.truncates.remove(&(export, fid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    const EXACT: SizeBefore = SizeBefore::Exact { objects: false };
    const OPEN: SizeBefore = SizeBefore::Open;

    #[test]
    fn only_a_client_that_was_alone_knows_the_size() {
        let fid = Fid::new(Seq(0x100), Oid(1));
        let (a, b) = (Generation(1), Generation(2));
        let row = |flags| OpenRow { fid, flags };
        let sole = |opens: &Opens| opens.sole_writer(fid).map(|(export, _)| export);
        let mut opens = Opens::default();
        opens.insert(a, OpenHandle(1), row(0), EXACT);
        assert_eq!(sole(&opens), None);
        opens.insert(a, OpenHandle(2), row(1), EXACT);
        opens.insert(a, OpenHandle(3), row(2), OPEN);
        opens.start_truncate(a, fid);
        assert_eq!(sole(&opens), Some(a));
        assert!(opens.is_being_truncated(fid));
        opens.end_truncate(a, fid);
        assert!(!opens.is_being_truncated(fid));
        opens.insert(b, OpenHandle(1), row(2), OPEN);
        opens.remove(a, OpenHandle(2));
        opens.remove(a, OpenHandle(3));
        assert_eq!((opens.count(fid), opens.writers(fid), sole(&opens)), (2, 1, None));
        opens.remove(b, OpenHandle(1));
        opens.insert(b, OpenHandle(2), row(2), EXACT);
        opens.start_truncate(a, fid);
        assert_eq!((sole(&opens), opens.truncates_of(a)), (None, alloc::vec![fid]));
        opens.forget_truncates(a, fid);
        opens.remove(b, OpenHandle(2));
        opens.remove(a, OpenHandle(1));
        assert!(opens.len() == 0 && !opens.is_being_truncated(fid));
        assert_eq!(opens.count(fid), 0);
    }

    #[test]
    fn an_epoch_ends_with_its_last_writer_although_the_file_is_open() {
        let fid = Fid::new(Seq(0x100), Oid(1));
        let (a, b) = (Generation(1), Generation(2));
        let row = |flags| OpenRow { fid, flags };
        let sole = |opens: &Opens| opens.sole_writer(fid).map(|(export, _)| export);
        let mut opens = Opens::default();
        opens.insert(a, OpenHandle(1), row(2), EXACT);
        opens.insert(a, OpenHandle(2), row(2), OPEN);
        opens.insert(b, OpenHandle(1), row(0), OPEN);
        opens.remove(a, OpenHandle(1));
        assert_eq!(sole(&opens), Some(a));
        let closed = StateChange::Closed { export: a, handle: OpenHandle(2) };
        let undo = opens.undo_of(&closed);
        opens.apply(&closed);
        assert_eq!((opens.count(fid), sole(&opens)), (1, None));
        opens.undo(undo);
        assert_eq!(sole(&opens), Some(a));
    }

    #[test]
    fn an_export_at_its_limit_is_full_and_others_are_not() {
        let opened = OpenRow { fid: Fid::new(Seq(0x100), Oid(1)), flags: 0 };
        let (a, b) = (Generation(1), Generation(2));
        let mut opens = Opens::default();
        for handle in 0..OPENS_PER_EXPORT_MAX as u64 {
            assert!(!opens.is_full(a));
            opens.insert(a, OpenHandle(handle), opened, EXACT);
        }
        assert!(opens.is_full(a) && !opens.is_full(b));
        let closed = StateChange::Closed { export: a, handle: OpenHandle(5) };
        let undo = opens.undo_of(&closed);
        opens.apply(&closed);
        assert!(!opens.is_full(a));
        opens.undo(undo);
        assert!(opens.is_full(a));
    }
}
