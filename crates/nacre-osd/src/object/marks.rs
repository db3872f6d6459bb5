//! The overwrites that are under way, the regions that are marked, and the width of the next mark of each object
//! (`object/overwrite.rs`).

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::RefCell;
use nacre_types::{ObjectId, Transno};

/// Regions that one mark covers at most (16 MiB).
const MARK_REGIONS_MAX: u64 = 64;
/// Objects whose width is remembered; beyond it all begin anew with narrow marks.
const WIDTHS_MAX: usize = 1024;
/// Marked regions that are remembered; beyond it they are marked anew.
const MARKED_MAX: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct Overwrites {
    /// Earliest versions of regions that writes under way overwrite, with the number of these writes.
    under_way: RefCell<BTreeMap<u64, u32>>,
    /// The lowest versions that the rows of regions can have after any loss of the log.
    marked: RefCell<BTreeMap<(ObjectId, u64), u64>>,
    /// Regions of the next mark of an object.
    widths: RefCell<BTreeMap<ObjectId, u64>>,
}

impl Overwrites {
    /// Regions of the next mark of the object; the one after that has twice as many.
    pub(crate) fn width(&self, object: ObjectId) -> u64 {
        let mut widths = self.widths.borrow_mut();
        if widths.len() >= WIDTHS_MAX && !widths.contains_key(&object) {
            widths.clear();
        }
        let width = widths.entry(object).or_insert(1);
        let now = *width;
        *width = (now * 2).min(MARK_REGIONS_MAX);
        now
    }
    /// Records that after a crash the row of the region has this version or a later one. `stable`: marks up to this
    /// transno are forgotten when there are too many.
    pub(crate) fn is_marked(&self, object: ObjectId, region: u64, version: u64, stable: Transno) {
        let mut marked = self.marked.borrow_mut();
        if marked.len() >= MARKED_MAX {
            marked.retain(|_, version| *version > stable.0);
        }
        if marked.len() >= MARKED_MAX {
            marked.clear();
        }
        marked.insert((object, region), version);
    }
    /// The version of the latest mark; 0: none is known.
    pub(crate) fn marked(&self, object: ObjectId, region: u64) -> u64 {
        self.marked.borrow().get(&(object, region)).copied().unwrap_or(0)
    }
    /// The stable point may not reach this version.
    pub(crate) fn earliest(&self) -> Option<Transno> {
        self.under_way.borrow().keys().next().copied().map(Transno)
    }
}

/// A write that overwrites bytes of regions of this version, or later ones, is under way.
pub(crate) struct OverwriteGuard {
    all: Rc<Overwrites>,
    version: u64,
}
impl OverwriteGuard {
    pub(crate) fn new(all: &Rc<Overwrites>, version: u64) -> Self {
        *all.under_way.borrow_mut().entry(version).or_insert(0) += 1;
        Self { all: all.clone(), version }
    }
}
impl Drop for OverwriteGuard {
    fn drop(&mut self) {
        let mut under_way = self.all.under_way.borrow_mut();
        if let Some(n) = under_way.get_mut(&self.version) {
            *n -= 1;
            if *n == 0 {
                under_way.remove(&self.version);
            }
        }
    }
}
