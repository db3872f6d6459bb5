//! The objects that were dropped from the kernel's cache since an unclean start (`refresh.rs` has the reason).
//!
//! Bound: the set is emptied when the recovery and the sync of bytes from before the start have ended; nothing is added
//! later.

use alloc::collections::BTreeSet;
use core::cell::{Cell, RefCell};
use nacre_types::ObjectId;

/// The part of the kernel's cache that is trusted.
#[derive(Default)]
pub(crate) struct CacheTrust {
    /// Work that must end before the cache is trusted again: the sync of former bytes, and the recovery.
    pending: Cell<u8>,
    refreshed: RefCell<BTreeSet<ObjectId>>,
}
impl CacheTrust {
    pub(crate) fn new(was_clean: bool) -> Self {
        Self { pending: Cell::new(if was_clean { 0 } else { 2 }), refreshed: RefCell::default() }
    }
    /// Whether every file may be read and written as the cache has it.
    pub(crate) fn is_whole(&self) -> bool {
        self.pending.get() == 0
    }
    pub(crate) fn is_refreshed(&self, object: ObjectId) -> bool {
        self.refreshed.borrow().contains(&object)
    }
    pub(crate) fn refreshed(&self, object: ObjectId) {
        self.refreshed.borrow_mut().insert(object);
    }
    /// One of the two kinds of work has ended.
    pub(crate) fn work_ended(&self) {
        self.pending.set(self.pending.get().saturating_sub(1));
        if self.pending.get() == 0 {
            self.refreshed.borrow_mut().clear();
        }
    }
}
