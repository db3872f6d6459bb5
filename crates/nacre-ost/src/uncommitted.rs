//! Acknowledge or commit, for bytes: a change of bytes that another client has changed waits until the earlier change is
//! stable.
//!
//! Why, first: A writes a range and its reply is lost; B sees the bytes, overwrites them and gets a reply; the machine dies. B
//! replays its write in the recovery, and A, which has no reply, resends its own after it: the older bytes would cover the
//! newer ones. Once A's write is durable, so is its reply record, and the reply to the resend is reconstructed from it.
//!
//! Second, although A has its reply: A keeps its write until it is stable, and replays it after an unclean start. Replayed
//! bytes are put back into blocks that do not match their checksums, and a block does not match when its next overwrite was
//! cut off, too. Then A's bytes would cover those of B, which cannot replay them if it is gone (it ended, or it was a mount in
//! the process of the target). Once A's write is stable, nobody puts it back.
//!
//! So a change that overlaps one of another client waits for the stable point. It waits as well for changes of which it is not
//! known whether they overlap: those of a former process, and those that were not recorded.

use crate::store::Store;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_target::{ExportId, Request, TargetCore};
use nacre_types::{Extent, ObjectId, Transno};

/// Ranges that are recorded.
const RANGES_MAX: usize = 64 << 10;
/// Fewer ranges are not searched for stable ones.
const SWEEP_MIN: usize = 256;

/// The latest change of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Change {
    end: u64,
    export: ExportId,
    transno: Transno,
}

/// The latest change of each byte. Neighbouring ranges of one client are one range, of which the latest change counts: a file
/// that is written in order is one range.
#[derive(Debug, Default)]
struct Changes {
    /// By their starts, without overlap.
    ranges: BTreeMap<(ObjectId, u64), Change>,
    /// Stable ones are removed when there are so many ranges, and the stable point has moved since the last time.
    sweep_at: usize,
    swept: Transno,
}

impl Changes {
    /// The changes of these bytes.
    fn of(&self, object: ObjectId, extent: Extent) -> impl Iterator<Item = (u64, Change)> {
        let before = self.ranges.range((object, 0)..(object, extent.start)).next_back();
        let others = self.ranges.range((object, extent.start)..(object, extent.end));
        let before = before.filter(move |(_, change)| change.end > extent.start);
        before.into_iter().chain(others).map(|((_, start), change)| (*start, *change))
    }
    /// Records a change, if there is room for it.
    fn record(&mut self, object: ObjectId, extent: Extent, export: ExportId, transno: Transno) -> bool {
        if self.ranges.len() >= RANGES_MAX {
            return false;
        }
        let covered: Vec<(u64, Change)> = self.of(object, extent).collect();
        for (start, change) in covered {
            self.ranges.remove(&(object, start));
            if start < extent.start {
                self.ranges.insert((object, start), Change { end: extent.start, ..change });
            }
            if change.end > extent.end {
                self.ranges.insert((object, extent.end), change);
            }
        }
        let (mut start, mut end) = (extent.start, extent.end);
        let before = self.ranges.range((object, 0)..(object, start)).next_back();
        if let Some((&(_, first), change)) = before
            && change.end == start
            && change.export == export
        {
            start = first;
        }
        if self.ranges.get(&(object, end)).is_some_and(|change| change.export == export)
            && let Some(change) = self.ranges.remove(&(object, end))
        {
            end = change.end;
        }
        self.ranges.insert((object, start), Change { end, export, transno });
        true
    }
    /// Forgets what is stable, at times.
    fn sweep(&mut self, stable: Transno) {
        if self.ranges.len() >= self.sweep_at && stable > self.swept {
            self.swept = stable;
            self.ranges.retain(|_, change| change.transno > stable);
            self.sweep_at = (2 * self.ranges.len()).clamp(SWEEP_MIN, RANGES_MAX);
        }
    }
}

/// The changes of bytes that another client must not overwrite yet.
pub(crate) struct UncommittedBytes {
    core: Rc<TargetCore>,
    store: Rc<Store>,
    changes: RefCell<Changes>,
    /// The latest change of each client that is not among them.
    unrecorded: RefCell<BTreeMap<ExportId, Transno>>,
    /// Changes up to this one were made by a former process, or are replayed: any client may have made them. 0: all are stable.
    former: Cell<Transno>,
}

impl UncommittedBytes {
    pub(crate) fn new(core: &Rc<TargetCore>, store: &Rc<Store>) -> Self {
        let all_stable = core.osd.was_clean() && !core.in_recovery();
        // Replayed changes keep their numbers, which are lower than those of this start.
        let former = if all_stable { Transno(0) } else { core.osd.last_transno() };
        Self {
            core: core.clone(),
            store: store.clone(),
            changes: RefCell::default(),
            unrecorded: RefCell::default(),
            former: Cell::new(former),
        }
    }

    /// Waits until nobody can put back a change of another client that this change covers. What cannot become stable now
    /// is not waited for: it does harm only if two more things fail.
    pub(crate) async fn wait(&self, request: &Request, object: ObjectId, extent: Extent) {
        let Some(last) = self.latest_of_others(request, object, extent) else { return };
        match self.store.make_stable(last).await {
            Ok(true) if self.former.get() <= self.core.osd.last_stable() => self.former.set(Transno(0)),
            Ok(true) => {}
            // An engine that has stopped refuses the change itself.
            result => tracing::debug!(target_name = %self.core.name, %object, ?result,
                "a write does not wait until the bytes that it covers are stable"),
        }
    }
    /// The latest change that is not stable, may be of another client, and may overlap these bytes.
    fn latest_of_others(&self, request: &Request, object: ObjectId, extent: Extent) -> Option<Transno> {
        if !self.core.config.ack_or_commit || request.replayed_transno().is_some() {
            return None;
        }
        let stable = self.core.osd.last_stable();
        let mut latest = self.former.get();
        if self.core.tracks_uncommitted(request) {
            let changes = self.changes.borrow();
            let recorded = changes.of(object, extent).map(|(_, change)| (change.export, change.transno));
            let unrecorded = self.unrecorded.borrow();
            let all = recorded.chain(unrecorded.iter().map(|(export, transno)| (*export, *transno)));
            let others = all.filter(|(export, _)| *export != request.export);
            latest = others.map(|(_, transno)| transno).fold(latest, Transno::max);
        }
        (latest > stable).then_some(latest)
    }

    /// Records a change: until it is stable, overlapping changes of others wait.
    pub(crate) fn record(&self, request: &Request, object: ObjectId, extent: Extent, transno: Transno) {
        if request.replayed_transno().is_some() {
            return;
        }
        let stable = self.core.osd.last_stable();
        let mut changes = self.changes.borrow_mut();
        changes.sweep(stable);
        let is_tracked = self.core.tracks_uncommitted(request);
        if is_tracked && changes.record(object, extent, request.export, transno) {
            return;
        }
        let mut unrecorded = self.unrecorded.borrow_mut();
        if unrecorded.insert(request.export, transno).is_none() {
            unrecorded.retain(|_, latest| *latest > stable);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Fid, Generation, Oid, Seq};

    const A: Generation = Generation(1);
    const B: Generation = Generation(2);

    fn object(oid: u32) -> ObjectId {
        ObjectId { fid: Fid::new(Seq(0x400), Oid(oid)), stripe: 0 }
    }
    fn put(changes: &mut Changes, range: core::ops::Range<u64>, export: ExportId, transno: u64) {
        let extent = Extent::new(range.start, range.end);
        assert!(changes.record(object(1), extent, export, Transno(transno)));
    }
    /// Start, end, client and number of each change of a range.
    fn of(changes: &Changes, range: core::ops::Range<u64>) -> Vec<(u64, u64, u64, u64)> {
        let found = changes.of(object(1), Extent::new(range.start, range.end));
        found.map(|(start, change)| (start, change.end, change.export.0.into(), change.transno.0)).collect()
    }

    #[test]
    fn each_byte_has_its_latest_change() {
        let mut changes = Changes::default();
        assert!(changes.record(object(2), Extent::new(0, 1000), B, Transno(1)));
        put(&mut changes, 0..100, A, 2);
        put(&mut changes, 40..60, B, 3);
        assert_eq!(of(&changes, 0..100), [(0, 40, 1, 2), (40, 60, 2, 3), (60, 100, 1, 2)]);
        assert_eq!(of(&changes, 59..60), [(40, 60, 2, 3)]);
        assert_eq!(of(&changes, 100..200), []);
        put(&mut changes, 50..u64::MAX, A, 4);
        assert_eq!(of(&changes, 0..200), [(0, 40, 1, 2), (40, 50, 2, 3), (50, u64::MAX, 1, 4)]);
        put(&mut changes, 0..60, B, 5);
        assert_eq!(of(&changes, 0..200), [(0, 60, 2, 5), (60, u64::MAX, 1, 4)]);
    }

    #[test]
    fn neighbouring_ranges_of_one_client_are_one_until_they_are_stable() {
        let mut changes = Changes::default();
        put(&mut changes, 10..20, A, 1);
        put(&mut changes, 30..40, A, 2);
        put(&mut changes, 40..50, B, 3);
        put(&mut changes, 20..30, A, 4);
        assert_eq!(of(&changes, 0..100), [(10, 40, 1, 4), (40, 50, 2, 3)]);
        changes.sweep(Transno(3));
        assert_eq!(of(&changes, 0..100), [(10, 40, 1, 4)]);
    }

    #[test]
    fn the_ranges_are_bounded() {
        let mut changes = Changes::default();
        for n in 0..RANGES_MAX as u64 {
            put(&mut changes, 2 * n..2 * n + 1, A, n + 1);
        }
        assert!(!changes.record(object(1), Extent::new(0, 10), B, Transno(u64::MAX)));
        changes.sweep(Transno(RANGES_MAX as u64 - 1));
        assert_eq!(changes.ranges.len(), 1);
    }
}
