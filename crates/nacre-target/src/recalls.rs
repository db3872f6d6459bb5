//! What clients were asked to give back (extent locks, holds of directories), and until when.
//!
//! Rules: whoever keeps it for a lease after it was asked for loses its own lease, so that it is evicted when that has run
//! out, whether it has acknowledged the callback or not. The time begins anew while work under it goes on (a request
//! under the lock; of a client with many callbacks to take in, any acknowledgement) and with a new connection, but after
//! [`LEASES_MAX`] leases it is over. While a client is not connected its lease alone decides.
//! Not here: callbacks that are not acknowledged at all (`lease.rs`).

use crate::lease::lease;
use crate::target_core::{ExportId, TargetCore};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use nacre_types::{Instant, LockCookie, Xid};

/// However much goes on under it, nobody keeps what others wait for longer than so many leases.
pub(crate) const LEASES_MAX: u32 = 30;

/// Names what is to be given back by its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recalled {
    /// The acknowledgement of this callback gives it back.
    Callback(Xid),
    /// A cancel gives it back.
    Lock(LockCookie),
}

#[derive(Debug, Clone, Copy)]
struct Recall {
    since: Instant,
    /// When something went on under it last.
    progress: Instant,
}

/// See the module. Bounded by the locks and the unacknowledged callbacks of the clients.
#[derive(Debug, Default)]
pub(crate) struct Recalls {
    all: RefCell<BTreeMap<(ExportId, Recalled), Recall>>,
    /// Nobody is overdue before.
    look_at: Cell<Instant>,
}

impl TargetCore {
    /// A callback has asked this client to give something back.
    pub fn recalled(&self, export: ExportId, what: Recalled) {
        let now = self.ctx.now();
        let mut all = self.recalls.all.borrow_mut();
        if all.is_empty() {
            self.recalls.look_at.set(now + lease(self));
            self.reaper.wake_all();
        }
        all.entry((export, what)).or_insert(Recall { since: now, progress: now });
    }
    /// Work goes on under it.
    pub fn recall_is_used(&self, export: ExportId, what: Recalled) {
        if let Some(recall) = self.recalls.all.borrow_mut().get_mut(&(export, what)) {
            recall.progress = self.ctx.now();
        }
    }
    pub fn given_back(&self, export: ExportId, what: Recalled) {
        self.recalls.all.borrow_mut().remove(&(export, what));
    }

    /// The export is gone, and everything that it had.
    pub(crate) fn forget_recalls(&self, export: ExportId) {
        self.recalls.all.borrow_mut().retain(|(of, _), _| *of != export);
    }
    /// When somebody may be overdue.
    pub(crate) fn next_recall_end(&self) -> Option<Instant> {
        (!self.recalls.all.borrow().is_empty()).then(|| self.recalls.look_at.get())
    }
    /// Whose lease is to be ended, and why.
    pub(crate) fn overdue_recalls(&self) -> Vec<(ExportId, String)> {
        let (now, lease) = (self.ctx.now(), lease(self));
        if now < self.recalls.look_at.get() {
            return Vec::new();
        }
        let (mut overdue, mut next) = (Vec::<(ExportId, String)>::new(), now + lease);
        let exports = self.exports.borrow();
        for ((export, what), recall) in self.recalls.all.borrow().iter() {
            let Some(entry) = exports.get(*export) else { continue };
            let Some(since) = entry.connected_since.filter(|_| entry.ending.is_none()) else { continue };
            let acknowledged = match what {
                Recalled::Callback(_) => entry.acknowledged,
                Recalled::Lock(_) => recall.progress,
            };
            let progress = recall.progress.max(since).max(acknowledged);
            let until = (progress + lease).min(recall.since + lease * LEASES_MAX);
            if until > now {
                next = next.min(until);
            } else if overdue.last().is_none_or(|(last, _)| last != export) {
                let what = match what {
                    Recalled::Callback(_) => "the hold of a directory",
                    Recalled::Lock(_) => "an extent lock",
                };
                let ms = now.saturating_since(recall.since).as_millis();
                overdue
                    .push((*export, format!("{what} for which others wait was not given back for {ms} ms")));
            }
        }
        self.recalls.look_at.set(next);
        overdue
    }
}
