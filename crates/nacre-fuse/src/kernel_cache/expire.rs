//! Names expire when a file system is mounted on a directory of the mount: a notification that has the kernel forget a
//! name would detach it. No name gets a validity from then on (`neighbours.rs`), and those that are valid are made to
//! expire by INVAL_ENTRY with EXPIRE_ONLY, which detaches nothing.
//!
//! Two things bring a valid name back. The kernel makes an expired name valid again when the caller of a LOOKUP takes over
//! a reply that was written before. So names of directories in which there are such callers expire a second time, when
//! these callers have run. And a rename moves the kernel's entry with its validity, perhaps from a name that has not expired
//! yet to one that is not among those that expire. So names to which entries were moved meanwhile expire as well.
//! All of this is to be short: until it has ended, changes of names wait, and what waits may hold a directory's lock.

use super::{KernelLink, NAME_TIMEOUT, State, To, Written};
use crate::notify::Notification;
use bytes::Bytes;
use nacre_types::{Fid, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// Notifications of names that expire together: in each, and at a time.
pub(super) const EXPIRING_NAMES: usize = 64;
pub(super) const EXPIRING_ORDERS: usize = 8;

/// How often a notification that was left out looks whether there are still neighbours.
const LOOK: Duration = Duration::from_millis(5);

/// The names to which renames have moved entries of the kernel, noted while all names are made to expire.
#[derive(Default)]
pub(super) struct Moves {
    /// How many tasks need them.
    needed: usize,
    names: Vec<(Fid, Bytes)>,
    /// There were more than [`Moves::MAX`].
    are_many: bool,
}
impl Moves {
    /// Beyond this the names do not count as expired.
    const MAX: usize = 4096;

    pub(super) fn add(&mut self, parent: Fid, name: &[u8]) {
        if self.needed == 0 {
            return;
        }
        if self.names.len() < Self::MAX {
            self.names.push((parent, Bytes::copy_from_slice(name)));
        } else {
            self.are_many = true;
        }
    }
    fn begin(&mut self) {
        self.needed += 1;
    }
    fn end(&mut self) {
        self.needed -= 1;
        if self.needed == 0 {
            *self = Self::default();
        }
    }
    /// Those behind the first `known`. `None`: not all of them were noted.
    fn since(&self, known: usize) -> Option<Vec<(Fid, Bytes)>> {
        (!self.are_many).then(|| self.names.get(known..).unwrap_or_default().to_vec())
    }
}

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
        let (until, given) = (self.names_until.get(), self.names_given.get());
        if until <= self.ctx.now() || self.expiring.replace(Some(given)) == Some(given) {
            return; // neighbours come and go
        }
        self.moves.borrow_mut().begin();
        let done = self.expire_all(to, until).await;
        self.moves.borrow_mut().end();
        if self.expiring.get() == Some(given) {
            self.expiring.set(None);
        }
        // If names have got a validity again since, there were no neighbours for a while.
        if done && self.names_given.get() == given {
            self.names_until.set(self.ctx.now());
            self.names_expired.wake_all();
        }
    }
    /// False if some names may still be valid before `until`.
    async fn expire_all(&self, to: To<'_>, until: Instant) -> bool {
        let names = loop {
            if let Some(names) = self.door.names_in_kernel() {
                break names;
            }
            if until <= self.ctx.now() {
                return false;
            }
            self.ctx.sleep(NAME_TIMEOUT).await;
        };
        let mut known = self.moves.borrow().names.len();
        if !self.expire(to, names).await {
            return false;
        }
        // A rename whose entry was still valid holds its directories until the entry has moved: it has been noted when the
        // notification of its former name returns, and that of its new name waits for it.
        loop {
            let Some(moved) = self.moves.borrow().since(known) else { return false };
            if moved.is_empty() {
                return true;
            }
            known += moved.len();
            if until <= self.ctx.now() || !self.expire_once(to, &moved).await {
                return false;
            }
        }
    }

    /// The notification of names that have changed was left out, because there are neighbours: makes them expire, or waits
    /// until no name is valid.
    pub(super) async fn expire_or_run_out(&self, to: To<'_>, names: Vec<(Fid, Bytes)>) {
        let until = self.names_until.get();
        // Also if the neighbours have gone meanwhile: what cannot be written now is written later.
        let expired = async {
            while !self.expire(to, names.clone()).await {
                self.ctx.sleep(NAME_TIMEOUT).await;
            }
        };
        self.ctx.timeout(until, expired).await;
    }

    /// Makes names expire for good. False if a notification was not written.
    async fn expire(&self, to: To<'_>, mut names: Vec<(Fid, Bytes)>) -> bool {
        // Replies from after that have no valid names. A caller has run when it has made another request, or after the time
        // for which a thread in the kernel is kept from running at the most (`unsettled.rs`).
        let last = self.names_given_at.get();
        let late_callers = || self.unsettled.borrow().dirs_before(last, self.ctx.now());
        let dirs = late_callers();
        let done = self.expire_once(to, &names).await;
        if dirs.is_empty() {
            return done;
        }
        while !late_callers().is_empty() {
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
