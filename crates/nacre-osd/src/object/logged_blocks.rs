//! Which blocks are dirty, and which are in the log for a sync (`object/logged.rs` has the rules).
//!
//! Changes are numbered by a counter of this process: transnos of replayed changes are not in the order of their bytes.

use crate::engine::tx::Tx;
use crate::object::rows::{block_key, blocks_of};
use crate::table;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::Range;
use nacre_types::{Extent, ObjectId, Transno};

/// Changed blocks of an object that a sync puts into the log; an object with more of them is synced with its file.
const BLOCKS_MAX: usize = 16;
/// Rows of a target. From half of that on, files are written back at once.
const ROWS_MAX: usize = 1024;

/// Blocks of an object that were changed since they were last durable.
#[derive(Default)]
struct Dirty {
    /// Each with the number of its latest change. Empty if there are too many.
    blocks: BTreeMap<u64, u64>,
    /// The latest change since there are too many.
    many: Option<u64>,
}

/// What is dirty, and what is in rows of LOGGED.
#[derive(Default)]
pub(crate) struct Logged {
    /// Number of the latest change of bytes.
    serial: Cell<u64>,
    dirty: RefCell<BTreeMap<ObjectId, Dirty>>,
    /// Blocks that have a row, each with the number of the latest change of the block that is in it.
    rows: RefCell<BTreeMap<ObjectId, BTreeMap<u64, u64>>>,
    count: Cell<usize>,
    /// The latest change that has deleted rows.
    deleted: Cell<Transno>,
}

impl Logged {
    /// The bytes of `range` were changed. Empty: blocks were allocated.
    pub(crate) fn note(&self, object: ObjectId, range: Extent) {
        let serial = self.serial.get() + 1;
        self.serial.set(serial);
        let mut dirty = self.dirty.borrow_mut();
        let dirty = dirty.entry(object).or_default();
        let blocks = blocks_of(range.start, range.end);
        let is_many =
            range.is_empty() || dirty.many.is_some() || blocks.end - blocks.start > BLOCKS_MAX as u64;
        if !is_many {
            dirty.blocks.extend(blocks.map(|block| (block, serial)));
        }
        if is_many || dirty.blocks.len() > BLOCKS_MAX {
            dirty.blocks.clear();
            dirty.many = Some(serial);
        }
    }
    /// Number of the latest change.
    pub(crate) fn serial(&self) -> u64 {
        self.serial.get()
    }
    /// The dirty blocks of an object, if a sync may put them into the log. (Where nothing is dirty, a sync of the file costs
    /// little, and finds out whether the file is as long as it must be.)
    pub(crate) fn few(&self, object: ObjectId) -> Option<Vec<u64>> {
        let all = self.dirty.borrow();
        let dirty = all.get(&object).filter(|dirty| dirty.many.is_none())?;
        Some(dirty.blocks.keys().copied().collect())
    }
    /// What was changed up to `serial` is durable.
    pub(crate) fn settle(&self, object: ObjectId, serial: u64) {
        let mut all = self.dirty.borrow_mut();
        let Some(dirty) = all.get_mut(&object) else { return };
        dirty.many = dirty.many.filter(|latest| *latest > serial);
        dirty.blocks.retain(|_, latest| *latest > serial);
        if dirty.many.is_none() && dirty.blocks.is_empty() {
            all.remove(&object);
        }
    }
    /// Which of these blocks are dirty still. `None`: it is not known any more.
    pub(crate) fn still_dirty(&self, object: ObjectId, blocks: &[u64]) -> Option<Vec<u64>> {
        let all = self.dirty.borrow();
        let Some(dirty) = all.get(&object) else { return Some(Vec::new()) };
        let is_dirty = |block: &u64| dirty.blocks.contains_key(block);
        dirty.many.is_none().then(|| blocks.iter().copied().filter(is_dirty).collect())
    }
    /// Dirty blocks, under their lock, are no longer dirty: those of them that are part of the object have rows.
    pub(crate) fn are_logged(&self, object: ObjectId, blocks: &[u64], logged: &[u64]) {
        let mut numbered = Vec::with_capacity(blocks.len());
        if let Some(dirty) = self.dirty.borrow_mut().get_mut(&object) {
            numbered.extend(blocks.iter().filter_map(|block| dirty.blocks.remove_entry(block)));
        }
        self.settle(object, 0);
        numbered.retain(|(block, _)| logged.binary_search(block).is_ok());
        self.have_rows(object, numbered.into_iter());
    }
    /// Blocks with rows that hold the latest change of the block, whose number is given.
    pub(crate) fn have_rows(&self, object: ObjectId, numbered: impl Iterator<Item = (u64, u64)>) {
        let mut numbered = numbered.peekable();
        if numbered.peek().is_none() {
            return;
        }
        let mut rows = self.rows.borrow_mut();
        let rows = rows.entry(object).or_default();
        let before = rows.len();
        rows.extend(numbered);
        self.count.set(self.count.get() + rows.len() - before);
    }
    /// Those of these blocks that were changed since their row was written.
    pub(crate) fn stale(&self, object: ObjectId, blocks: Range<u64>) -> Vec<u64> {
        let (rows, dirty) = (self.rows.borrow(), self.dirty.borrow());
        let (Some(rows), Some(dirty)) = (rows.get(&object), dirty.get(&object)) else { return Vec::new() };
        if blocks.is_empty() {
            return Vec::new();
        }
        let is_stale = |block: &u64| dirty.many.is_some() || dirty.blocks.contains_key(block);
        rows.range(blocks).map(|(block, _)| *block).filter(is_stale).collect()
    }
    /// So many rows that files have to be written back.
    pub(crate) fn is_half_full(&self) -> bool {
        self.count.get() >= ROWS_MAX / 2
    }
    pub(crate) fn has_room(&self, rows: usize) -> bool {
        self.count.get() + rows <= ROWS_MAX
    }
    pub(crate) fn has_row(&self, object: ObjectId, blocks: Range<u64>) -> bool {
        self.rows.borrow().get(&object).is_some_and(|rows| rows.range(blocks).next().is_some())
    }
    /// How many rows hold changes up to `serial` only.
    pub(crate) fn count_until(&self, object: ObjectId, serial: u64) -> usize {
        let all = self.rows.borrow();
        all.get(&object).map_or(0, |rows| rows.values().filter(|at| **at <= serial).count())
    }
    /// Takes the rows that hold changes up to `serial` only, and says whether the object has no others.
    pub(crate) fn take_rows(&self, object: ObjectId, serial: u64) -> (Vec<u64>, bool) {
        let mut all = self.rows.borrow_mut();
        let Some(rows) = all.get_mut(&object) else { return (Vec::new(), true) };
        let old: Vec<u64> = rows.iter().filter(|(_, at)| **at <= serial).map(|(block, _)| *block).collect();
        rows.retain(|_, at| *at > serial);
        let is_all = rows.is_empty();
        if is_all {
            all.remove(&object);
        }
        self.count.set(self.count.get() - old.len());
        (old, is_all)
    }
    /// The object is destroyed, or its bytes are lost.
    pub(crate) fn forget(&self, object: ObjectId) {
        self.dirty.borrow_mut().remove(&object);
        let rows = self.rows.borrow_mut().remove(&object);
        self.count.set(self.count.get() - rows.map_or(0, |rows| rows.len()));
    }
    /// In a change that cuts blocks off: deletes their rows.
    pub(crate) fn cut(&self, tx: &mut Tx<'_>, object: ObjectId, from: u64) {
        if !self.has_row(object, from..u64::MAX) {
            return;
        }
        tx.delete_range(table::LOGGED, &block_key(object, from), &block_key(object, u64::MAX));
        let mut all = self.rows.borrow_mut();
        if let Some(rows) = all.get_mut(&object) {
            let cut = rows.split_off(&from).len();
            self.count.set(self.count.get() - cut);
            if rows.is_empty() {
                all.remove(&object);
            }
        }
    }
    /// This change has deleted rows.
    pub(crate) fn note_deleted(&self, transno: Transno) {
        self.deleted.set(transno);
    }
    /// The latest change that has deleted rows: a sync of a file ends when it is durable.
    pub(crate) fn deleted(&self) -> Transno {
        self.deleted.get()
    }
}
