//! Names expire when a file system is mounted on a directory of the mount: a notification that has the kernel forget a
//! name would detach it. No name gets a validity from then on (`neighbours.rs`), and those that are valid are made to
//! expire by INVAL_ENTRY with EXPIRE_ONLY, which detaches nothing.
//!
//! The kernel makes an expired name valid again when the caller of a LOOKUP takes over a reply that was written before.
//! So names of directories in which there are such callers expire a second time, when these callers have run. Both times
//! are to be short: until the second one has ended, changes of names wait, and what waits may hold a directory's lock.

use super::{KernelLink, NAME_TIMEOUT, SETTLE_TIMEOUT, State, To, Written};
use crate::notify::Notification;
use bytes::Bytes;
use nacre_types::Fid;
use std::collections::VecDeque;
use std::time::Duration;

/// Notifications of names that expire together: in each, and at a time.
pub(super) const EXPIRING_NAMES: usize = 64;
pub(super) const EXPIRING_ORDERS: usize = 8;

/// How often a notification that was left out looks whether there are still neighbours.
const LOOK: Duration = Duration::from_millis(5);

impl State {
    /// Waits until no name is valid that was valid before this call, instead of notifications that would detach neighbours.
    /// From the look that has found the neighbours on, names get no validity. False: the neighbours have gone first, and
    /// the notifications can be written.
    pub(super) async fn names_run_out(&self, link: &KernelLink) -> bool {
        let until = self.names_until.get();
        while self.names_until.get().min(until) > self.ctx.now() {
            if !link.gate.neighbours().were_present() {
                return false;
            }
            let look = until.min(self.ctx.now() + LOOK);
            self.ctx.timeout(look, self.names_expired.wait()).await;
        }
        true
    }

    /// Makes all names expire that are valid.
    pub(super) async fn expire_names(&self, generation: u64) {
        let Some(link) = self.link.borrow().clone() else { return };
        let to = To { link: &link, generation, is_forced: false };
        let until = self.names_until.get();
        let names = loop {
            if let Some(names) = self.door.names_in_kernel() {
                break names;
            }
            if until <= self.ctx.now() {
                return;
            }
            self.ctx.sleep(NAME_TIMEOUT).await;
        };
        let done = self.expire(to, names).await;
        // Names may have got a validity again since: then there are no neighbours any more.
        if done && self.names_until.get() == until {
            self.names_until.set(self.ctx.now());
            self.names_expired.wake_all();
        }
    }

    /// The notification of names that have changed was left out, because there are neighbours: makes them expire, or waits
    /// until no name is valid.
    pub(super) async fn expire_or_run_out(&self, to: To<'_>, names: Vec<(Fid, Bytes)>) {
        let until = self.names_until.get();
        if self.ctx.timeout(until, self.expire(to, names)).await == Some(false) {
            self.names_run_out(to.link).await;
        }
    }

    /// Makes names expire for good. False if a notification was not written.
    async fn expire(&self, to: To<'_>, mut names: Vec<(Fid, Bytes)>) -> bool {
        let start = self.ctx.now();
        let late_callers = || self.unsettled.borrow().dirs_before(start, self.ctx.now());
        let dirs = late_callers();
        let done = self.expire_once(to, &names).await;
        if dirs.is_empty() {
            return done;
        }
        let end = self.ctx.now() + SETTLE_TIMEOUT;
        while !late_callers().is_empty() && self.ctx.now() < end {
            self.ctx.sleep(NAME_TIMEOUT).await;
        }
        names.retain(|(parent, _)| dirs.contains(parent));
        done & self.expire_once(to, &names).await
    }

    async fn expire_once(&self, to: To<'_>, names: &[(Fid, Bytes)]) -> bool {
        let mut pending = VecDeque::new();
        let mut done = true;
        for some in names.chunks(EXPIRING_NAMES) {
            let entry = |(parent, name): &(Fid, Bytes)| Notification::ExpireEntry {
                parent: *parent,
                name: name.to_vec(),
            };
            pending.push_back(self.order(to, some.iter().map(entry).collect()));
            if pending.len() >= EXPIRING_ORDERS
                && let Some(first) = pending.pop_front()
            {
                done &= first.written.await == Some(Written::Done);
            }
        }
        for order in pending {
            done &= order.written.await == Some(Written::Done);
        }
        done
    }
}
