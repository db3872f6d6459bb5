//! Acknowledge or commit, for bytes (see `nacre_target::Uncommitted`).
//!
//! Why: A writes a range and its reply is lost; B sees the bytes, overwrites them and gets a reply; the machine dies. B
//! replays its write in the recovery, and A, which has no reply, resends its own after it: the older bytes would cover the
//! newer ones. Once A's write is durable, so is its reply record, and the reply to the resend is reconstructed from it.
//!
//! So a change that overlaps one of another client, which is not known to have the reply, waits until the object is
//! synced. A change is durable when its rows are committed and its bytes are stable.

use crate::store::Store;
use alloc::rc::Rc;
use core::cell::RefCell;
use core::ops::RangeInclusive;
use nacre_target::{ConflictKey, Request, TargetCore, Uncommitted, UncommittedChange};
use nacre_types::{Errno, Extent, ObjectId, Transno};

/// Changes that are recorded; beyond it a change is synced before its reply.
const CHANGES_MAX: usize = 64 << 10;
/// Unfinished changes that are skipped in the search for finished ones, for each change that is recorded. More than one,
/// so that the finished ones are found faster than others are added.
const SKIPS_MAX: usize = 2;

/// The bytes that a change covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Bytes {
    object: ObjectId,
    extent: Extent,
}

impl ConflictKey for Bytes {
    fn neighbours(&self) -> RangeInclusive<Self> {
        let first = Extent { start: 0, end: 0 };
        let last = Extent { start: self.extent.end, end: u64::MAX };
        Bytes { extent: first, ..*self }..=Bytes { extent: last, ..*self }
    }
    fn conflicts(&self, other: &Self) -> bool {
        self.extent.overlaps(other.extent)
    }
}

/// The changes of bytes that another client must not overwrite yet.
pub(crate) struct UncommittedBytes {
    core: Rc<TargetCore>,
    store: Rc<Store>,
    changes: RefCell<Uncommitted<Bytes>>,
}

impl UncommittedBytes {
    pub(crate) fn new(core: &Rc<TargetCore>, store: &Rc<Store>) -> Self {
        Self { core: core.clone(), store: store.clone(), changes: RefCell::default() }
    }

    /// Waits until no change of another client that this change covers can be lost.
    pub(crate) async fn wait(
        &self,
        request: &Request,
        object: ObjectId,
        extent: Extent,
    ) -> Result<(), Errno> {
        let bytes = Bytes { object, extent };
        let must_wait = |change: &UncommittedChange| {
            change.export != request.export
                && change.transno > self.core.osd.last_stable()
                && !self.core.is_acknowledged(change)
        };
        if self.core.tracks_uncommitted(request) && self.changes.borrow().conflicting(bytes).any(must_wait) {
            let last = self.core.osd.last_transno();
            self.store.sync(object).await?;
            self.changes.borrow_mut().remove_durable(bytes, last);
        }
        Ok(())
    }

    /// Records a change: until it is durable or its client has the reply, overlapping changes of others wait.
    pub(crate) async fn record(
        &self,
        request: &Request,
        object: ObjectId,
        extent: Extent,
        transno: Transno,
    ) -> Result<(), Errno> {
        if !self.core.tracks_uncommitted(request) {
            return Ok(());
        }
        let stable = self.core.osd.last_stable();
        let is_over =
            |change: &UncommittedChange| change.transno <= stable || self.core.is_acknowledged(change);
        let is_full = {
            let mut changes = self.changes.borrow_mut();
            changes.prune(SKIPS_MAX, is_over);
            let is_full = changes.len() >= CHANGES_MAX;
            if !is_full {
                changes.record(request, Bytes { object, extent }, transno);
            }
            is_full
        };
        if is_full { self.store.sync(object).await } else { Ok(()) }
    }
}
