//! The regions whose bytes may differ from their checksums after an unclean start, until `object/rechecksum.rs` has
//! verified them: those that were changed, or marked for an overwrite, after the last stable point.
//!
//! They are recognized by their version. A change after the start gives its region a late version, too, although all
//! bytes of a region that was stable before still match. Such regions are remembered, at most [`EXACT_MAX`] of them;
//! further ones count as unverified.

use alloc::collections::BTreeSet;
use core::cell::{Cell, RefCell};
use nacre_types::{ObjectId, Transno};

/// Regions that are remembered.
const EXACT_MAX: usize = 256 << 10;

#[derive(Default)]
pub(crate) struct Unverified {
    /// Changes after this one may be incomplete. `None`: everything has been verified.
    since: Cell<Option<Transno>>,
    /// Regions with a later version whose bytes are exact.
    exact: RefCell<BTreeSet<(ObjectId, u64)>>,
}

impl Unverified {
    pub(crate) fn since(&self) -> Option<Transno> {
        self.since.get()
    }
    pub(crate) fn set(&self, since: Option<Transno>) {
        self.since.set(since);
        self.exact.borrow_mut().clear();
    }
    /// Whether bytes of an object, or region, with this version may be missing or differ without damage.
    pub(crate) fn is_later(&self, version: u64) -> bool {
        self.since.get().is_some_and(|stable| version > stable.0)
    }
    /// The same for a region, some of which are exact all the same.
    pub(crate) fn may_differ(&self, object: ObjectId, region: u64, version: u64) -> bool {
        self.is_later(version) && !self.exact.borrow().contains(&(object, region))
    }
    /// A region whose row had `version` gets a later one.
    pub(crate) fn changes(&self, object: ObjectId, region: u64, version: u64) {
        if !self.is_later(version) {
            self.is_exact(object, region);
        }
    }
    /// All bytes of the region match their checksums.
    pub(crate) fn is_exact(&self, object: ObjectId, region: u64) {
        let mut exact = self.exact.borrow_mut();
        if self.since.get().is_some() && exact.len() < EXACT_MAX {
            exact.insert((object, region));
        }
    }
}
