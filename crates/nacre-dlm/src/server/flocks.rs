//! The file locks of a target: waiting requests, deadlock detection, and which owners' rows have changed.
//!
//! A value: requests go in, outcomes come out, and so does a queue of results for requests that waited. Waiting requests are
//! granted in order of arrival, each as soon as no granted lock conflicts with it; waiting requests do not block each
//! other, as in the kernel, so a reader may overtake a waiting writer.
//!
//! Invariants: no two conflicting locks of different owners are granted; every waiting request conflicts with a granted
//! lock, or its file awaits [`FlockSpace::reprocess`]; no POSIX owner waits for itself, directly or through other files.
//! Everything is bounded: see the constants.
//! Not here: conflicts and ranges (`policy/flock.rs`), rows (the MDT writes the owners of [`FlockSpace::take_changed`]
//! into the transaction of the change), callbacks.

use crate::policy::flock::{Family, FileLocks, Lock, Owner};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use nacre_types::{Fid, Generation, LockCookie};

/// Disjoint ranges of one owner on one file.
pub const SEGMENTS_MAX: usize = 1024;
/// Waiting requests of one client.
pub const WAITERS_MAX: usize = 4096;
/// Results of waits that are remembered per client, for a cancel that crosses its grant.
const RESULTS_MAX: usize = 256;
/// Owners that one deadlock check visits. A request that would need more is refused as a deadlock.
const CHECKED_MAX: usize = 10_000;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The lock is granted, or the unlock is done.
    Granted,
    /// The request waits; a [`WaitResult`] follows.
    Waiting,
    /// Another owner holds a conflicting lock.
    Conflict,
    /// The owner would wait for itself.
    Deadlock,
    /// A bound was reached (ENOLCK).
    NoLocks,
}

/// The end of a wait, to be sent to its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitResult {
    /// The client whose request waited.
    pub client: Generation,
    /// The client's name of the request.
    pub cookie: LockCookie,
    /// Its outcome.
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    owner: Owner,
    lock: Lock,
    cookie: LockCookie,
}

#[derive(Debug, Default)]
struct File {
    granted: FileLocks,
    /// By arrival.
    waiters: BTreeMap<u64, Waiter>,
}

impl File {
    /// Whether another range of this owner would exceed its bound.
    fn is_full(&self, owner: Owner) -> bool {
        self.granted.of_owner(owner).len() >= SEGMENTS_MAX
    }
    fn is_idle(&self) -> bool {
        self.granted.owner_count() == 0 && self.waiters.is_empty()
    }
}

/// All file locks of a target.
#[derive(Debug, Default)]
pub struct FlockSpace {
    files: BTreeMap<Fid, File>,
    /// Files in which a client has a granted lock or a waiting request.
    of_client: BTreeSet<(Generation, Fid)>,
    /// The waiting requests of an owner.
    waits: BTreeSet<(Owner, Fid, u64)>,
    by_cookie: BTreeMap<(Generation, LockCookie), (Fid, u64)>,
    /// The latest results per client, the oldest first.
    remembered: BTreeMap<Generation, VecDeque<(LockCookie, Outcome)>>,
    results: VecDeque<WaitResult>,
    changed: BTreeSet<(Fid, Owner)>,
    /// Files whose waiting requests have to be looked at again.
    to_reprocess: BTreeSet<Fid>,
    next: u64,
}

impl FlockSpace {
    /// Restores the locks of an owner from its row, at the start of a target.
    pub fn restore(&mut self, fid: Fid, owner: Owner, locks: &[Lock]) {
        let file = self.files.entry(fid).or_default();
        locks.iter().for_each(|lock| file.granted.set(owner, *lock));
        self.of_client.insert((owner.client, fid));
    }

    /// Requests a lock. With `wait`, a request that conflicts waits; the same request sent again returns its present
    /// state.
    pub fn lock(&mut self, fid: Fid, owner: Owner, lock: Lock, wait: Option<LockCookie>) -> Outcome {
        if wait.is_some_and(|cookie| self.by_cookie.contains_key(&(owner.client, cookie))) {
            return Outcome::Waiting;
        }
        let file = self.files.entry(fid).or_default();
        self.of_client.insert((owner.client, fid));
        let outcome = if file.granted.conflict(owner, &lock).is_none() {
            if file.is_full(owner) {
                Outcome::NoLocks
            } else {
                file.granted.set(owner, lock);
                self.changed.insert((fid, owner));
                // A weaker lock in place of a stronger one lets others in; a new one may complete a deadlock.
                self.to_reprocess.insert(fid);
                Outcome::Granted
            }
        } else {
            match wait {
                None => Outcome::Conflict,
                Some(cookie) => self.wait(fid, owner, lock, cookie),
            }
        };
        self.remove_if_idle(fid, owner.client);
        outcome
    }

    fn wait(&mut self, fid: Fid, owner: Owner, lock: Lock, cookie: LockCookie) -> Outcome {
        let client = (owner.client, LockCookie(0))..=(owner.client, LockCookie(u64::MAX));
        if self.by_cookie.len() >= WAITERS_MAX && self.by_cookie.range(client).count() >= WAITERS_MAX {
            return Outcome::NoLocks;
        }
        if owner.family == Family::Posix && self.is_deadlock(fid, owner, &lock) {
            return Outcome::Deadlock;
        }
        let Some(file) = self.files.get_mut(&fid) else { return Outcome::NoLocks };
        if owner.family == Family::Flock && file.granted.clear(owner, 0, u64::MAX) {
            // flock(2): a conversion that must wait releases the old lock first; otherwise two conversions would wait
            // for each other for ever.
            self.changed.insert((fid, owner));
            self.to_reprocess.insert(fid);
        }
        let order = self.next;
        self.next += 1;
        file.waiters.insert(order, Waiter { owner, lock, cookie });
        self.waits.insert((owner, fid, order));
        self.by_cookie.insert((owner.client, cookie), (fid, order));
        Outcome::Waiting
    }

    /// Unlocks a range, `end` inclusive.
    pub fn unlock(&mut self, fid: Fid, owner: Owner, start: u64, end: u64) -> Outcome {
        let Some(file) = self.files.get_mut(&fid) else { return Outcome::Granted };
        let may_split = (start, end) != (0, u64::MAX);
        if may_split && file.is_full(owner) {
            return Outcome::NoLocks;
        }
        if file.granted.clear(owner, start, end) {
            self.changed.insert((fid, owner));
            self.to_reprocess.insert(fid);
        }
        self.remove_if_idle(fid, owner.client);
        Outcome::Granted
    }

    /// Returns a granted lock that conflicts with this one (F_GETLK).
    pub fn test(&self, fid: Fid, owner: Owner, lock: &Lock) -> Option<(Owner, Lock)> {
        self.files.get(&fid)?.granted.conflict(owner, lock)
    }

    /// Cancels a wait. Returns `Conflict`, or the outcome of the wait if it ended before the cancel.
    pub fn cancel(&mut self, client: Generation, cookie: LockCookie) -> Outcome {
        if let Some((fid, order)) = self.by_cookie.get(&(client, cookie)).copied() {
            self.end_wait(fid, order);
            self.remove_if_idle(fid, client);
            return Outcome::Conflict;
        }
        let remembered = self.remembered.get(&client);
        let result = remembered.and_then(|results| results.iter().find(|(c, _)| *c == cookie));
        result.map_or(Outcome::Conflict, |(_, outcome)| *outcome)
    }

    /// Ends the wait of requests that can be granted or refused since locks have changed, at most `limit` of them.
    /// Returns whether there may be more.
    pub fn reprocess(&mut self, limit: usize) -> bool {
        let mut left = limit;
        while let Some(fid) = self.to_reprocess.first().copied() {
            match self.next_ready(fid) {
                None => {
                    self.to_reprocess.remove(&fid);
                }
                Some(_) if left == 0 => return true,
                Some((order, outcome)) => {
                    left -= 1;
                    self.resolve(fid, order, outcome);
                }
            }
        }
        false
    }
    /// Whether [`Self::reprocess`] has files to look at.
    pub fn must_reprocess(&self) -> bool {
        !self.to_reprocess.is_empty()
    }
    /// The first waiting request of a file whose wait can end.
    fn next_ready(&self, fid: Fid) -> Option<(u64, Outcome)> {
        let file = self.files.get(&fid)?;
        file.waiters.iter().find_map(|(order, w)| {
            if file.granted.conflict(w.owner, &w.lock).is_none() {
                Some((*order, if file.is_full(w.owner) { Outcome::NoLocks } else { Outcome::Granted }))
            } else if w.owner.family == Family::Posix && self.is_deadlock(fid, w.owner, &w.lock) {
                Some((*order, Outcome::Deadlock))
            } else {
                None
            }
        })
    }
    fn resolve(&mut self, fid: Fid, order: u64, outcome: Outcome) {
        let Some(waiter) = self.end_wait(fid, order) else { return };
        if outcome == Outcome::Granted
            && let Some(file) = self.files.get_mut(&fid)
        {
            file.granted.set(waiter.owner, waiter.lock);
            self.changed.insert((fid, waiter.owner));
        }
        self.report(waiter, outcome);
        self.remove_if_idle(fid, waiter.owner.client);
    }
    fn report(&mut self, waiter: Waiter, outcome: Outcome) {
        let client = waiter.owner.client;
        let remembered = self.remembered.entry(client).or_default();
        if remembered.len() >= RESULTS_MAX {
            remembered.pop_front();
        }
        remembered.push_back((waiter.cookie, outcome));
        self.results.push_back(WaitResult { client, cookie: waiter.cookie, outcome });
    }
    fn end_wait(&mut self, fid: Fid, order: u64) -> Option<Waiter> {
        let waiter = self.files.get_mut(&fid)?.waiters.remove(&order)?;
        self.waits.remove(&(waiter.owner, fid, order));
        self.by_cookie.remove(&(waiter.owner.client, waiter.cookie));
        Some(waiter)
    }

    /// Whether `owner`, waiting for `lock`, would wait for itself.
    fn is_deadlock(&self, fid: Fid, owner: Owner, lock: &Lock) -> bool {
        let Some(file) = self.files.get(&fid) else { return false };
        let mut seen = BTreeSet::new();
        let mut next: Vec<Owner> = file.granted.blockers(owner, lock).collect();
        while let Some(blocker) = next.pop() {
            if blocker == owner || seen.len() >= CHECKED_MAX {
                return true;
            }
            if !seen.insert(blocker) {
                continue;
            }
            let waits = self.waits.range((blocker, Fid::from_ino(0), 0)..);
            for (_, fid, order) in waits.take_while(|(o, _, _)| *o == blocker) {
                if let Some(file) = self.files.get(fid)
                    && let Some(w) = file.waiters.get(order)
                {
                    next.extend(file.granted.blockers(w.owner, &w.lock));
                }
            }
        }
        false
    }

    /// Removes all locks and waits of a client in at most `limit` files. Returns whether there are more.
    pub fn remove_client(&mut self, client: Generation, limit: usize) -> bool {
        self.remembered.remove(&client);
        let fids: Vec<Fid> = self.files_of(client).take(limit).collect();
        for fid in fids {
            let Some(file) = self.files.get_mut(&fid) else { continue };
            let owners: Vec<Owner> = file.granted.owners().filter(|o| o.client == client).collect();
            let waits = file.waiters.iter().filter(|(_, w)| w.owner.client == client);
            let waits: Vec<u64> = waits.map(|(order, _)| *order).collect();
            for owner in owners {
                file.granted.remove(owner);
                self.changed.insert((fid, owner));
            }
            for order in waits {
                self.end_wait(fid, order);
            }
            self.to_reprocess.insert(fid);
            self.remove_if_idle(fid, client);
        }
        self.files_of(client).next().is_some()
    }
    fn files_of(&self, client: Generation) -> impl Iterator<Item = Fid> + '_ {
        let range = (client, Fid::from_ino(0))..;
        self.of_client.range(range).take_while(move |(c, _)| *c == client).map(|(_, fid)| *fid)
    }
    /// Removes a deleted file with its locks; requests that wait end with `Conflict`.
    pub fn remove_file(&mut self, fid: Fid) {
        let Some(file) = self.files.get(&fid) else { return };
        let waiting = file.waiters.values().map(|w| w.owner);
        let clients: BTreeSet<Generation> = file.granted.owners().chain(waiting).map(|o| o.client).collect();
        let waits: Vec<u64> = file.waiters.keys().copied().collect();
        for order in waits {
            if let Some(waiter) = self.end_wait(fid, order) {
                self.report(waiter, Outcome::Conflict);
            }
        }
        self.files.remove(&fid);
        self.to_reprocess.remove(&fid);
        for client in clients {
            self.of_client.remove(&(client, fid));
        }
    }
    /// Removes a client from the index of a file, and the file, once nothing of them is left.
    fn remove_if_idle(&mut self, fid: Fid, client: Generation) {
        let Some(file) = self.files.get(&fid) else {
            self.of_client.remove(&(client, fid));
            return;
        };
        if !file.granted.has_client(client) && !file.waiters.values().any(|w| w.owner.client == client) {
            self.of_client.remove(&(client, fid));
        }
        if file.is_idle() {
            self.files.remove(&fid);
        }
    }

    // ---- output

    /// The next result to be sent to a client whose request waited.
    pub fn poll_result(&mut self) -> Option<WaitResult> {
        self.results.pop_front()
    }
    /// Takes the owners whose locks on a file differ from their row.
    pub fn take_changed(&mut self) -> BTreeSet<(Fid, Owner)> {
        core::mem::take(&mut self.changed)
    }
    /// The granted locks of an owner on a file.
    pub fn granted(&self, fid: Fid, owner: Owner) -> &[Lock] {
        self.files.get(&fid).map_or(&[], |f| f.granted.of_owner(owner))
    }
    /// Granted ranges and waiting requests of a file: an upper bound of what a change may write.
    pub fn load_of(&self, fid: Fid) -> usize {
        self.files.get(&fid).map_or(0, |f| f.granted.range_count() + f.waiters.len())
    }
    /// Owners with granted locks, and waiting requests.
    pub fn counts(&self) -> (usize, usize) {
        (self.files.values().map(|f| f.granted.owner_count()).sum(), self.waits.len())
    }
}
