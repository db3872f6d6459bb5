//! Who has what open: the rows of [`crate::rows::table::OPEN`] in memory, counted by file.
//!
//! An *epoch* of a file lasts from its first open for write to its last close of those. When one client alone wrote and cut the
//! file in it, that client knows the size at the end; otherwise only the OSTs do.
//!
//! Invariants: equal to the table after every transaction; changed only after the transaction of the change has
//! succeeded, in the same visit. Bounded by what exports may have open.

use crate::rows::row::Opened;
use crate::rows::view::Note;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use nacre_types::{Fid, Generation, OpenHandle};
use nacre_wire::mdt::open_flags;

/// Opens of one export. More are refused with ENFILE's nearest relative.
pub(crate) const OPENS_PER_EXPORT_MAX: usize = 1 << 20;

impl Opened {
    /// `O_WRONLY` or `O_RDWR`.
    pub(crate) fn writes(&self) -> bool {
        self.flags & open_flags::ACCMODE != 0
    }
}

/// What the record said when an open came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Before {
    /// The size was exact.
    pub(crate) exact: bool,
    /// The file might have objects.
    pub(crate) objects: bool,
}

/// What the MDT may conclude from the report of the last writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteEpoch {
    /// Only this client has opened for write or cut since the size was exact: it knows the size.
    Sole { export: Generation, objects: bool },
    /// Only the OSTs know the size.
    Mixed,
}

#[derive(Debug, Clone, Copy)]
struct File {
    opens: u32,
    writers: u32,
    epoch: WriteEpoch,
}

/// What one note overwrites, for [`Opens::restore`].
#[derive(Debug)]
pub(crate) struct Undo {
    open: Option<((Generation, OpenHandle), Option<Opened>)>,
    file: Option<(Fid, Option<File>)>,
    cut: Option<((Generation, Fid), Option<u32>)>,
}

/// All opens of a target.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    /// An export stays until it is gone: most have one open at a time.
    rows: BTreeMap<Generation, BTreeMap<OpenHandle, Opened>>,
    files: BTreeMap<Fid, File>,
    /// Truncates whose report has not come, by client and file.
    cuts: BTreeMap<(Generation, Fid), u32>,
}

impl Opens {
    pub(crate) fn get(&self, export: Generation, handle: OpenHandle) -> Option<Opened> {
        self.rows.get(&export)?.get(&handle).copied()
    }
    pub(crate) fn len(&self) -> usize {
        self.rows.values().map(BTreeMap::len).sum()
    }
    pub(crate) fn is_full(&self, export: Generation) -> bool {
        self.rows.get(&export).is_some_and(|opens| opens.len() >= OPENS_PER_EXPORT_MAX)
    }
    /// Opens of a file by anybody.
    pub(crate) fn count(&self, fid: Fid) -> u32 {
        self.files.get(&fid).map_or(0, |f| f.opens)
    }
    pub(crate) fn writers(&self, fid: Fid) -> u32 {
        self.files.get(&fid).map_or(0, |f| f.writers)
    }
    /// The client that knows the size, because nobody else could have changed it; and whether there might have been
    /// objects when its epoch began.
    pub(crate) fn sole_writer(&self, fid: Fid) -> Option<(Generation, bool)> {
        match self.files.get(&fid)?.epoch {
            WriteEpoch::Sole { export, objects } => Some((export, objects)),
            WriteEpoch::Mixed => None,
        }
    }
    /// A truncate of this file is under way.
    pub(crate) fn is_being_cut(&self, fid: Fid) -> bool {
        self.cuts.keys().any(|(_, f)| *f == fid)
    }
    /// Files whose truncates an export has not reported.
    pub(crate) fn cuts_of(&self, export: Generation) -> Vec<Fid> {
        self.cuts.keys().filter(|(g, _)| *g == export).map(|(_, fid)| *fid).collect()
    }
    /// Up to `limit` opens of an export.
    pub(crate) fn of_export(&self, export: Generation, limit: usize) -> Vec<(OpenHandle, Opened)> {
        let opens = self.rows.get(&export).into_iter().flatten();
        opens.take(limit).map(|(&handle, &opened)| (handle, opened)).collect()
    }
    /// Takes in what a transaction has changed.
    pub(crate) fn learn(&mut self, note: &Note) {
        match *note {
            Note::Opened { export, handle, opened, before } => self.insert(export, handle, opened, before),
            Note::Closed { export, handle } => self.remove(export, handle),
            Note::Cut { export, fid } => self.cut(export, fid),
            Note::CutEnded { export, fid, last: false } => self.cut_reported(export, fid),
            Note::CutEnded { export, fid, last: true } => self.cut_forgotten(export, fid),
            Note::Mixed(fid) => self.mix(fid),
            Note::Unsettled(_) | Note::OstWork(_) | Note::Unused(_) | Note::Removed(_) => {}
        }
    }
    /// What `learn` would overwrite.
    pub(crate) fn before(&self, note: &Note) -> Undo {
        let (open, fid, cut) = match *note {
            Note::Opened { export, handle, opened, .. } => (Some((export, handle)), Some(opened.fid), None),
            Note::Closed { export, handle } => {
                (Some((export, handle)), self.get(export, handle).map(|o| o.fid), None)
            }
            Note::Cut { export, fid } | Note::CutEnded { export, fid, .. } => {
                (None, Some(fid), Some((export, fid)))
            }
            Note::Mixed(fid) => (None, Some(fid), None),
            Note::Unsettled(_) | Note::OstWork(_) | Note::Unused(_) | Note::Removed(_) => (None, None, None),
        };
        Undo {
            open: open.map(|(export, handle)| ((export, handle), self.get(export, handle))),
            file: fid.map(|fid| (fid, self.files.get(&fid).copied())),
            cut: cut.map(|key| (key, self.cuts.get(&key).copied())),
        }
    }
    /// Takes back; the latest first.
    pub(crate) fn restore(&mut self, undo: Undo) {
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
        put_back(&mut self.cuts, undo.cut);
    }
    pub(crate) fn insert(&mut self, export: Generation, handle: OpenHandle, opened: Opened, before: Before) {
        if let Some(old) = self.put(export, handle, opened) {
            // The same open again (a replay): counted already.
            assert!(old == opened, "an open handle was given to another file");
            return;
        }
        let file =
            self.files.entry(opened.fid).or_insert(File { opens: 0, writers: 0, epoch: WriteEpoch::Mixed });
        file.opens += 1;
        if opened.writes() {
            file.epoch = match file.epoch {
                _ if file.writers == 0 && before.exact => {
                    WriteEpoch::Sole { export, objects: before.objects }
                }
                WriteEpoch::Sole { export: sole, .. } if file.writers > 0 && sole == export => file.epoch,
                WriteEpoch::Sole { .. } | WriteEpoch::Mixed => WriteEpoch::Mixed,
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
        }
        if file.opens == 0 {
            self.files.remove(&opened.fid);
        }
    }
    /// The export is gone and has no open any more.
    pub(crate) fn forget(&mut self, export: Generation) {
        self.rows.remove(&export);
    }
    fn put(&mut self, export: Generation, handle: OpenHandle, opened: Opened) -> Option<Opened> {
        self.rows.entry(export).or_default().insert(handle, opened)
    }
    fn take(&mut self, export: Generation, handle: OpenHandle) -> Option<Opened> {
        self.rows.get_mut(&export)?.remove(&handle)
    }
    /// Somebody who wrote cannot be asked any more.
    pub(crate) fn mix(&mut self, fid: Fid) {
        if let Some(file) = self.files.get_mut(&fid) {
            file.epoch = WriteEpoch::Mixed;
        }
    }
    /// A client starts to cut a file.
    pub(crate) fn cut(&mut self, export: Generation, fid: Fid) {
        *self.cuts.entry((export, fid)).or_insert(0) += 1;
        if let Some(file) = self.files.get_mut(&fid) {
            file.epoch = match file.epoch {
                WriteEpoch::Sole { export: sole, .. } if sole == export => {
                    WriteEpoch::Sole { export, objects: true }
                }
                WriteEpoch::Sole { .. } | WriteEpoch::Mixed => WriteEpoch::Mixed,
            };
        }
    }
    /// It has reported.
    pub(crate) fn cut_reported(&mut self, export: Generation, fid: Fid) {
        if let Some(count) = self.cuts.get_mut(&(export, fid)) {
            *count -= 1;
            if *count == 0 {
                self.cuts.remove(&(export, fid));
            }
        }
    }
    /// It will never report.
    pub(crate) fn cut_forgotten(&mut self, export: Generation, fid: Fid) {
        self.cuts.remove(&(export, fid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    const EXACT: Before = Before { exact: true, objects: false };
    const OPEN: Before = Before { exact: false, objects: true };

    #[test]
    fn only_a_client_that_was_alone_knows_the_size() {
        let fid = Fid::new(Seq(0x100), Oid(1));
        let (a, b) = (Generation(1), Generation(2));
        let row = |flags| Opened { fid, flags };
        let sole = |opens: &Opens| opens.sole_writer(fid).map(|(export, _)| export);
        let mut opens = Opens::default();
        opens.insert(a, OpenHandle(1), row(0), EXACT);
        assert_eq!(sole(&opens), None);
        opens.insert(a, OpenHandle(2), row(1), EXACT);
        opens.insert(a, OpenHandle(3), row(2), OPEN);
        opens.cut(a, fid);
        assert_eq!(sole(&opens), Some(a));
        assert!(opens.is_being_cut(fid));
        opens.cut_reported(a, fid);
        assert!(!opens.is_being_cut(fid));
        opens.insert(b, OpenHandle(1), row(2), OPEN);
        opens.remove(a, OpenHandle(2));
        opens.remove(a, OpenHandle(3));
        assert_eq!((opens.count(fid), opens.writers(fid), sole(&opens)), (2, 1, None));
        opens.remove(b, OpenHandle(1));
        opens.insert(b, OpenHandle(2), row(2), EXACT);
        opens.cut(a, fid);
        assert_eq!((sole(&opens), opens.cuts_of(a)), (None, alloc::vec![fid]));
        opens.cut_forgotten(a, fid);
        opens.remove(b, OpenHandle(2));
        opens.remove(a, OpenHandle(1));
        assert!(opens.len() == 0 && !opens.is_being_cut(fid));
        assert_eq!(opens.count(fid), 0);
    }

    #[test]
    fn an_export_at_its_limit_is_full_and_others_are_not() {
        let opened = Opened { fid: Fid::new(Seq(0x100), Oid(1)), flags: 0 };
        let (a, b) = (Generation(1), Generation(2));
        let mut opens = Opens::default();
        for handle in 0..OPENS_PER_EXPORT_MAX as u64 {
            assert!(!opens.is_full(a));
            opens.insert(a, OpenHandle(handle), opened, EXACT);
        }
        assert!(opens.is_full(a) && !opens.is_full(b));
        let closed = Note::Closed { export: a, handle: OpenHandle(5) };
        let undo = opens.before(&closed);
        opens.learn(&closed);
        assert!(!opens.is_full(a));
        opens.restore(undo);
        assert!(opens.is_full(a));
    }
}
