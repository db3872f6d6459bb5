//! The overwrites that are under way, and the width of the next mark of each object (`object/overwrite.rs`).

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use core::cell::RefCell;
use nacre_types::{ObjectId, Transno};

/// Regions that one mark covers at most (16 MiB).
const MARK_REGIONS_MAX: u64 = 64;
/// Objects whose width is remembered; beyond it all begin anew with narrow marks.
const WIDTHS_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Overwrites {
    /// Earliest versions of regions that writes under way overwrite, with the number of these writes.
    under_way: RefCell<BTreeMap<u64, u32>>,
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
