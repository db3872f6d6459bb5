//! POSIX (fcntl), OFD and flock locks of files: owners, split and merge, waiting, deadlock detection.
//!
//! A value: requests in, outcomes out, and a queue of answers for those who waited. Locks of one owner replace each other
//! byte by byte and never conflict; the two families do not see each other. Waiters are served in their order as
//! soon as nothing held conflicts with them; held locks alone decide, as in the kernel, so a reader may pass a
//! waiting writer.
//!
//! Invariants: no two incompatible locks of different owners overlap; the locks of an owner are disjoint and in order;
//! every waiter conflicts with something held, or its file is on the list of [`FlockSpace::settle`]; no POSIX waiter
//! waits for itself, on whatever files. Everything is bounded: see the constants.
//! Not here: rows (the MDT writes what [`FlockSpace::take_changed`] names into the same transaction), callbacks.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use nacre_types::{Fid, Generation, LockCookie};

/// Disjoint ranges of one owner on one file.
pub const SEGMENTS_MAX: usize = 1024;
/// Waiting requests of one client.
pub const WAITERS_MAX: usize = 4096;
/// Answers of waits that are remembered per client, for a cancel that crosses its grant.
const ANSWERS_MAX: usize = 256;
/// Owners that a deadlock check looks at; beyond it the request is refused as if it were one.
const CHECKED_MAX: usize = 10_000;

/// The two kinds of file locks that do not see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// flock(2): the owner is an open file.
    Flock,
    /// fcntl(2), OFD included.
    Posix,
}

/// Read locks share, a write lock is alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Read,
    Write,
}

/// Who holds or wants a lock: an owner inside a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub client: Generation,
    pub family: Family,
    pub owner: u64,
}

/// A locked range, `end` inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lock {
    pub start: u64,
    pub end: u64,
    pub kind: Kind,
    /// Process, for F_GETLK.
    pub pid: u32,
}
impl Lock {
    fn overlaps(&self, other: &Lock) -> bool {
        self.start <= other.end && other.start <= self.end
    }
    fn conflicts(&self, other: &Lock) -> bool {
        self.overlaps(other) && (self.kind == Kind::Write || other.kind == Kind::Write)
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Granted,
    /// An [`Answer`] follows.
    Waiting,
    Conflict,
    Deadlock,
    /// A bound was reached (ENOLCK).
    NoLocks,
}

/// A waiter's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub client: Generation,
    pub cookie: LockCookie,
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
    held: BTreeMap<Owner, Vec<Lock>>,
    /// By arrival.
    waiters: BTreeMap<u64, Waiter>,
}

impl File {
    fn conflict(&self, owner: Owner, lock: &Lock) -> Option<(Owner, Lock)> {
        let others = self.held.iter().filter(|(o, _)| o.family == owner.family && **o != owner);
        others.flat_map(|(o, locks)| locks.iter().map(|l| (*o, *l))).find(|(_, l)| l.conflicts(lock))
    }
    fn blockers<'a>(&'a self, owner: Owner, lock: &'a Lock) -> impl Iterator<Item = Owner> + 'a {
        let others = self.held.iter().filter(move |(o, _)| o.family == owner.family && **o != owner);
        others.filter(|(_, locks)| locks.iter().any(|l| l.conflicts(lock))).map(|(o, _)| *o)
    }
    /// Takes a range from an owner; whether it had any of it.
    fn clear(&mut self, owner: Owner, start: u64, end: u64) -> bool {
        let Some(locks) = self.held.get_mut(&owner) else { return false };
        let mut touched = false;
        let mut rest = Vec::with_capacity(locks.len() + 1);
        for lock in locks.iter() {
            if lock.end < start || end < lock.start {
                rest.push(*lock);
                continue;
            }
            touched = true;
            if lock.start < start {
                rest.push(Lock { end: start - 1, ..*lock });
            }
            if end < lock.end {
                rest.push(Lock { start: end + 1, ..*lock });
            }
        }
        *locks = rest;
        if locks.is_empty() {
            self.held.remove(&owner);
        }
        touched
    }
    /// Gives a range to an owner, merged with neighbours of the same kind.
    fn set(&mut self, owner: Owner, lock: Lock) {
        self.clear(owner, lock.start, lock.end);
        let locks = self.held.entry(owner).or_default();
        let at = locks.partition_point(|l| l.start < lock.start);
        locks.insert(at, lock);
        let mut merged: Vec<Lock> = Vec::with_capacity(locks.len());
        for next in locks.iter() {
            match merged.last_mut() {
                Some(last)
                    if last.kind == next.kind
                        && last.pid == next.pid
                        && last.end.checked_add(1) == Some(next.start) =>
                {
                    last.end = next.end;
                }
                _ => merged.push(*next),
            }
        }
        *locks = merged;
    }
    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.waiters.is_empty()
    }
}

/// All file locks of a target.
#[derive(Debug, Default)]
pub struct FlockSpace {
    files: BTreeMap<Fid, File>,
    /// Files in which a client holds or wants something.
    of_client: BTreeSet<(Generation, Fid)>,
    /// Where an owner waits.
    waits: BTreeSet<(Owner, Fid, u64)>,
    by_cookie: BTreeMap<(Generation, LockCookie), (Fid, u64)>,
    answered: BTreeMap<Generation, VecDeque<(LockCookie, Outcome)>>,
    answers: VecDeque<Answer>,
    changed: BTreeSet<(Fid, Owner)>,
    unsettled: BTreeSet<Fid>,
    next: u64,
}

impl FlockSpace {
    /// Locks of an owner as a row had them: at the start of a target.
    pub fn load(&mut self, fid: Fid, owner: Owner, locks: &[Lock]) {
        let file = self.files.entry(fid).or_default();
        locks.iter().for_each(|lock| file.set(owner, *lock));
        self.of_client.insert((owner.client, fid));
    }

    /// Asks for a lock. With `wait` a conflict is answered `Waiting`; the same request again is answered with its
    /// state.
    pub fn lock(&mut self, fid: Fid, owner: Owner, lock: Lock, wait: Option<LockCookie>) -> Outcome {
        if wait.is_some_and(|cookie| self.by_cookie.contains_key(&(owner.client, cookie))) {
            return Outcome::Waiting;
        }
        let file = self.files.entry(fid).or_default();
        self.of_client.insert((owner.client, fid));
        let outcome = if file.conflict(owner, &lock).is_none() {
            if file.held.get(&owner).is_some_and(|l| l.len() >= SEGMENTS_MAX) {
                Outcome::NoLocks
            } else {
                file.set(owner, lock);
                self.changed.insert((fid, owner));
                // A weaker lock in place of a stronger one lets others in, a new one may close a circle.
                self.unsettled.insert(fid);
                Outcome::Granted
            }
        } else {
            match wait {
                None => Outcome::Conflict,
                Some(cookie) => self.wait(fid, owner, lock, cookie),
            }
        };
        self.tidy(fid, owner.client);
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
        if owner.family == Family::Flock && file.clear(owner, 0, u64::MAX) {
            // flock(2): a conversion that must wait gives up the old lock first, or two of them wait for ever.
            self.changed.insert((fid, owner));
            self.unsettled.insert(fid);
        }
        let order = self.next;
        self.next += 1;
        file.waiters.insert(order, Waiter { owner, lock, cookie });
        self.waits.insert((owner, fid, order));
        self.by_cookie.insert((owner.client, cookie), (fid, order));
        Outcome::Waiting
    }

    /// Drops a range.
    pub fn unlock(&mut self, fid: Fid, owner: Owner, start: u64, end: u64) -> Outcome {
        let Some(file) = self.files.get_mut(&fid) else { return Outcome::Granted };
        let splits =
            file.held.get(&owner).is_some_and(|l| l.len() >= SEGMENTS_MAX) && (start, end) != (0, u64::MAX);
        if splits {
            return Outcome::NoLocks;
        }
        if file.clear(owner, start, end) {
            self.changed.insert((fid, owner));
            self.unsettled.insert(fid);
        }
        self.tidy(fid, owner.client);
        Outcome::Granted
    }

    /// What stands in the way of a lock.
    pub fn test(&self, fid: Fid, owner: Owner, lock: &Lock) -> Option<(Owner, Lock)> {
        self.files.get(&fid)?.conflict(owner, lock)
    }

    /// Gives up a wait: `Granted` or `Deadlock` if that was first, else `Conflict`.
    pub fn cancel(&mut self, client: Generation, cookie: LockCookie) -> Outcome {
        if let Some((fid, order)) = self.by_cookie.get(&(client, cookie)).copied() {
            self.end_wait(fid, order);
            self.tidy(fid, client);
            return Outcome::Conflict;
        }
        let answered = self.answered.get(&client);
        answered.and_then(|a| a.iter().find(|(c, _)| *c == cookie)).map_or(Outcome::Conflict, |(_, o)| *o)
    }

    /// Serves waiters of files whose locks have changed, at most `limit` of them. Whether there may be more.
    pub fn settle(&mut self, limit: usize) -> bool {
        let mut left = limit;
        while let Some(fid) = self.unsettled.first().copied() {
            match self.next_served(fid) {
                None => {
                    self.unsettled.remove(&fid);
                }
                Some(_) if left == 0 => return true,
                Some((order, outcome)) => {
                    left -= 1;
                    self.serve(fid, order, outcome);
                }
            }
        }
        false
    }
    /// Whether [`Self::settle`] has something to look at.
    pub fn has_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }
    /// The first waiter of a file that can be answered.
    fn next_served(&self, fid: Fid) -> Option<(u64, Outcome)> {
        let file = self.files.get(&fid)?;
        file.waiters.iter().find_map(|(order, w)| {
            if file.conflict(w.owner, &w.lock).is_none() {
                let full = file.held.get(&w.owner).is_some_and(|l| l.len() >= SEGMENTS_MAX);
                Some((*order, if full { Outcome::NoLocks } else { Outcome::Granted }))
            } else if w.owner.family == Family::Posix && self.is_deadlock(fid, w.owner, &w.lock) {
                Some((*order, Outcome::Deadlock))
            } else {
                None
            }
        })
    }
    fn serve(&mut self, fid: Fid, order: u64, outcome: Outcome) {
        let Some(waiter) = self.end_wait(fid, order) else { return };
        if outcome == Outcome::Granted
            && let Some(file) = self.files.get_mut(&fid)
        {
            file.set(waiter.owner, waiter.lock);
            self.changed.insert((fid, waiter.owner));
        }
        self.answer(waiter, outcome);
        self.tidy(fid, waiter.owner.client);
    }
    fn answer(&mut self, waiter: Waiter, outcome: Outcome) {
        let client = waiter.owner.client;
        let answered = self.answered.entry(client).or_default();
        if answered.len() >= ANSWERS_MAX {
            answered.pop_front();
        }
        answered.push_back((waiter.cookie, outcome));
        self.answers.push_back(Answer { client, cookie: waiter.cookie, outcome });
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
        let mut next: Vec<Owner> = file.blockers(owner, lock).collect();
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
                    next.extend(file.blockers(w.owner, &w.lock));
                }
            }
        }
        false
    }

    /// Drops everything of a client in at most `limit` files; whether there is more.
    pub fn drop_client(&mut self, client: Generation, limit: usize) -> bool {
        self.answered.remove(&client);
        let fids: Vec<Fid> = self.files_of(client).take(limit).collect();
        for fid in fids {
            let Some(file) = self.files.get_mut(&fid) else { continue };
            let owners: Vec<Owner> = file.held.keys().filter(|o| o.client == client).copied().collect();
            let waits: Vec<u64> = file
                .waiters
                .iter()
                .filter(|(_, w)| w.owner.client == client)
                .map(|(order, _)| *order)
                .collect();
            for owner in owners {
                file.held.remove(&owner);
                self.changed.insert((fid, owner));
            }
            for order in waits {
                self.end_wait(fid, order);
            }
            self.unsettled.insert(fid);
            self.tidy(fid, client);
        }
        self.files_of(client).next().is_some()
    }
    fn files_of(&self, client: Generation) -> impl Iterator<Item = Fid> + '_ {
        let range = (client, Fid::from_ino(0))..;
        self.of_client.range(range).take_while(move |(c, _)| *c == client).map(|(_, fid)| *fid)
    }
    /// The file is gone; whoever waited is told `Conflict`.
    pub fn forget(&mut self, fid: Fid) {
        let Some(file) = self.files.get(&fid) else { return };
        let clients: BTreeSet<Generation> =
            file.held.keys().map(|o| o.client).chain(file.waiters.values().map(|w| w.owner.client)).collect();
        let waits: Vec<u64> = file.waiters.keys().copied().collect();
        for order in waits {
            if let Some(waiter) = self.end_wait(fid, order) {
                self.answer(waiter, Outcome::Conflict);
            }
        }
        self.files.remove(&fid);
        self.unsettled.remove(&fid);
        for client in clients {
            self.of_client.remove(&(client, fid));
        }
    }
    /// Forgets a client's place in a file, and the file, once nothing is left.
    fn tidy(&mut self, fid: Fid, client: Generation) {
        let Some(file) = self.files.get(&fid) else {
            self.of_client.remove(&(client, fid));
            return;
        };
        let first = Owner { client, family: Family::Flock, owner: 0 };
        let holds = file.held.range(first..).next().is_some_and(|(o, _)| o.client == client);
        if !holds && !file.waiters.values().any(|w| w.owner.client == client) {
            self.of_client.remove(&(client, fid));
        }
        if file.is_idle() {
            self.files.remove(&fid);
        }
    }

    // ---- what the target takes out

    /// The next answer for somebody who waited.
    pub fn poll_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }
    /// Owners whose locks on a file are not what their row says.
    pub fn take_changed(&mut self) -> BTreeSet<(Fid, Owner)> {
        core::mem::take(&mut self.changed)
    }
    /// Locks of an owner on a file.
    pub fn held(&self, fid: Fid, owner: Owner) -> &[Lock] {
        self.files.get(&fid).and_then(|f| f.held.get(&owner)).map_or(&[], |locks| locks)
    }
    /// Ranges held and requests waiting on a file: bounds what a change may write.
    pub fn load_of(&self, fid: Fid) -> usize {
        self.files.get(&fid).map_or(0, |f| f.held.values().map(Vec::len).sum::<usize>() + f.waiters.len())
    }
    /// Owners that hold something, and requests that wait.
    pub fn counts(&self) -> (usize, usize) {
        (self.files.values().map(|f| f.held.len()).sum(), self.waits.len())
    }
}
