//! Names expire when a file system is mounted on a directory of the mount: a notification that has the kernel forget a
//! name would detach it. No name gets a validity from then on (`neighbours.rs`), and those that are valid are made to
//! expire by INVAL_ENTRY with EXPIRE_ONLY, which detaches nothing.
//!
//! The kernel makes an expired name valid again when the caller of a LOOKUP takes over a reply that was written before.
//! So all names expire a second time, when such callers have had the time to run.

use super::{NAME_TIMEOUT, State, To, Written};
use crate::notify::Notification;
use bytes::Bytes;
use nacre_types::Fid;
use std::collections::VecDeque;
use std::time::Duration;

/// Notifications of names that expire together: in each, and at a time.
pub(super) const EXPIRING_NAMES: usize = 64;
pub(super) const EXPIRING_ORDERS: usize = 8;
/// How long the caller of a LOOKUP may take to run after its reply was written, on a machine with other work.
const TAKE_OVER_TIMEOUT: Duration = Duration::from_millis(500);

impl State {
    /// Waits until no name is valid, instead of notifications that would detach neighbours. From the look that has found the
    /// neighbours on, names get no validity.
    pub(super) async fn names_run_out(&self) {
        while self.names_until.get() > self.ctx.now() {
            self.ctx.timeout(self.names_until.get(), self.names_expired.wait()).await;
        }
    }

    /// Makes all names expire that are valid.
    pub(super) async fn expire_names(&self, generation: u64) {
        let Some(link) = self.link.borrow().clone() else { return };
        let to = To { link: &link, generation, is_forced: false };
        let until = self.names_until.get();
        let mut names = loop {
            if let Some(names) = self.door.names_in_kernel() {
                break names;
            }
            if until <= self.ctx.now() {
                return;
            }
            self.ctx.sleep(NAME_TIMEOUT).await;
        };
        let first = self.expire(to, &names).await;
        self.ctx.sleep(TAKE_OVER_TIMEOUT).await;
        // A reply that was decided before the first pass may have brought a name that was not in the list then.
        names = self.door.names_in_kernel().unwrap_or(names);
        let second = self.expire(to, &names).await;
        // Names may have got a validity again since: then there are no neighbours any more.
        if first && second && self.names_until.get() == until {
            self.names_until.set(self.ctx.now());
            self.names_expired.wake_all();
        }
    }

    /// False if a notification was not written.
    async fn expire(&self, to: To<'_>, names: &[(Fid, Bytes)]) -> bool {
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
