//! Acknowledge or commit, for bytes: what a client has written and may not know of yet is durable before another
//! client's change covers it.
//!
//! Why: A writes a range and its reply is lost; B sees the bytes, writes over them and is answered; the machine dies. B
//! makes its write again in the recovery, and A, who was never answered, sends its own again after it: the older bytes
//! would cover the newer ones. When A's write is durable its record is too, and its resend is answered from there.
//! So a change that overlaps one of another client, who is not known to have the reply, waits until that object is
//! synced. Ranges that do not overlap never meet, and a client's own changes are in its own order.
//!
//! Reads wait for nothing: what they saw comes back with the resend. With one client nothing is kept.

use crate::service::Ost;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use nacre_target::{ExportId, Request};
use nacre_types::{Errno, Extent, ObjectId, Transno, Xid};

/// Changes that are remembered; beyond it a change is synced before it is answered.
const CHANGES_MAX: usize = 64 << 10;

#[derive(Debug, Clone, Copy)]
struct Change {
    extent: Extent,
    export: ExportId,
    xid: Xid,
    transno: Transno,
}

/// Changes whose clients may not know of them.
#[derive(Debug, Default)]
pub(crate) struct Held {
    by_object: BTreeMap<ObjectId, Vec<Change>>,
    order: VecDeque<(Transno, ObjectId)>,
    count: usize,
}

impl Held {
    /// Forgets of an object what `is_over` says.
    fn forget(&mut self, object: ObjectId, is_over: impl Fn(&Change) -> bool) {
        if let Some(changes) = self.by_object.get_mut(&object) {
            let before = changes.len();
            changes.retain(|change| !is_over(change));
            self.count -= before - changes.len();
            if changes.is_empty() {
                self.by_object.remove(&object);
            }
        }
    }
}

impl Ost {
    /// Waits until nothing of another client that this change covers can be lost.
    pub(crate) async fn wait_for_held(
        &self,
        request: &Request,
        object: ObjectId,
        extent: Extent,
    ) -> Result<(), Errno> {
        let meets = |change: &Change| {
            change.export != request.export
                && change.extent.overlaps(extent)
                && change.transno > self.core.osd.last_stable()
                && !self.core.has_reply(change.export, change.xid)
        };
        let must_wait = self.tracks(request)
            && self.held.borrow().by_object.get(&object).is_some_and(|changes| changes.iter().any(meets));
        if must_wait {
            let last = self.core.osd.last_transno();
            self.store.sync(object).await?;
            self.held.borrow_mut().forget(object, |change| change.transno <= last);
        }
        self.core.still_wanted(request)
    }

    /// A change was made: until its client has the reply or it is durable, others wait for it.
    pub(crate) async fn hold(
        &self,
        request: &Request,
        object: ObjectId,
        extent: Extent,
        transno: Transno,
    ) -> Result<(), Errno> {
        if !self.tracks(request) {
            return Ok(());
        }
        if self.held.borrow().count >= CHANGES_MAX {
            return self.store.sync(object).await;
        }
        let stable = self.core.osd.last_stable();
        let is_over = |c: &Change| c.transno <= stable || self.core.has_reply(c.export, c.xid);
        let mut held = self.held.borrow_mut();
        // The oldest first: two are looked at for each that comes.
        for _ in 0..2 {
            let Some((transno, of)) = held.order.pop_front() else { break };
            held.forget(of, is_over);
            if held.by_object.get(&of).is_some_and(|changes| changes.iter().any(|c| c.transno == transno)) {
                held.order.push_back((transno, of));
            }
        }
        let change = Change { extent, export: request.export, xid: request.header.xid, transno };
        held.by_object.entry(object).or_default().push(change);
        held.order.push_back((transno, object));
        held.count += 1;
        Ok(())
    }

    fn tracks(&self, request: &Request) -> bool {
        self.core.config.ack_or_commit
            && request.replayed_transno().is_none()
            && self.core.has_several_clients()
    }
}
