//! Directories that the kernel knows at another place than the file system has them, because another mount has moved them.
//!
//! When the kernel looks up a directory that it knows under another name, it moves its own entry. It does so only if
//! it gets the locks of a rename at once, so a lookup within a rename, or beside one, fails with ESTALE, and so does
//! its only repetition: a local file system never does that. The kernel repeats the lookup on the same thread. The
//! second one gets a *stand-in*: another node number for the same directory, which the kernel knows at no place. Its
//! attributes have the inode number as always.
//!
//! Invariants: nothing that is reached through a stand-in has a validity; after a change through it the kernel forgets
//! everything, and after a rename or removal, which may be one of the stand-in, the attributes of its directory
//! (`door.rs`); the next lookup after [`RETRY`] gets the own number
//! again. A stand-in is given up when the kernel has forgotten it. Directories are noted from the reply that shows them
//! until the kernel forgets them, at most [`KNOWN_MAX`]; a directory that is not noted is taken to be where it is asked for.

use nacre_types::{Fid, Instant};
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The kernel repeats a lookup within this time.
const RETRY: Duration = Duration::from_secs(1);
/// Stand-ins at a time; beyond it lookups within renames fail with ESTALE.
const STAND_INS_MAX: usize = 65_536;
/// Threads that look up one directory within [`RETRY`]; one more gets a stand-in at once.
const PIDS_MAX: usize = 8;
/// Directories that are noted.
const KNOWN_MAX: usize = 400_000;
/// Node numbers of stand-ins: no FID has them, because sequence 0 has the root directory only.
const STAND_INS: std::ops::Range<u64> = 0x10_0000..0x100_0000;

/// Nodes that the kernel has forgotten, as the thread that reads requests has seen it. No visit is made for them: they are
/// looked at when a directory is found at another place, or when they are many.
#[derive(Default)]
pub(crate) struct Forgotten(Mutex<Vec<(u64, u64)>>);

impl Forgotten {
    /// More are dropped: their directories are then noted until the end.
    const MAX: usize = 65_536;

    pub(crate) fn add(&self, nodes: Vec<(u64, u64)>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = Self::MAX - all.len();
        all.extend(nodes.into_iter().take(room));
    }
    pub(crate) fn is_many(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len() >= Self::MAX / 16
    }
    fn take(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A name in a directory of the kernel, as a hash: a collision costs no more than the ESTALE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Place(u64);

/// A lookup at another place.
#[derive(Debug, Clone)]
struct Tried {
    place: Place,
    /// The threads that have looked it up, at most [`PIDS_MAX`].
    pids: Vec<u32>,
    at: Instant,
    /// Given in reply to the second lookup.
    stand_in: Option<u64>,
    /// The kernel had another node at this place, dropped the reply, and looks up again.
    is_dropped: bool,
}

#[derive(Debug)]
struct Known {
    place: Place,
    tried: Option<Tried>,
    /// Replies with the own number; the kernel says how many of them it forgets.
    shown: u64,
}

/// The directories that the kernel of one mount knows.
#[derive(Default)]
pub(crate) struct Moved {
    forgotten: Arc<Forgotten>,
    hasher: RandomState,
    known: HashMap<Fid, Known>,
    by_place: HashMap<Place, Fid>,
    /// With the number of replies that have shown each.
    stand_ins: BTreeMap<u64, (Fid, u64)>,
    next: u64,
}

impl Moved {
    /// The place where the thread that reads requests puts what the kernel has forgotten.
    pub(crate) fn set_forgotten(&mut self, forgotten: Arc<Forgotten>) {
        self.forgotten = forgotten;
    }
    /// The own node number for that of a request. `None`: it is its own.
    pub(crate) fn own_number(&self, nodeid: u64) -> Option<u64> {
        if !STAND_INS.contains(&nodeid) {
            return None;
        }
        self.stand_ins.get(&nodeid).map(|(fid, _)| fid.ino())
    }

    /// The directories that have stand-ins.
    pub(crate) fn with_stand_ins(&self) -> impl Iterator<Item = Fid> {
        self.stand_ins.values().map(|(fid, _)| *fid)
    }
    /// The node number for a directory that thread `pid` has looked up as `name` in node `parent`.
    pub(crate) fn looked_up(
        &mut self,
        fid: Fid,
        (parent, name): (u64, &[u8]),
        pid: u32,
        now: Instant,
    ) -> u64 {
        let place = self.place(parent, name);
        if self.known.get(&fid).is_some_and(|known| known.place != place) || self.forgotten.is_many() {
            for (node, count) in self.forgotten.take() {
                self.has_forgotten(node, count);
            }
        }
        let number = self.number(fid, place, pid, now);
        if number == fid.ino() {
            self.shown(fid);
        }
        number
    }
    fn number(&mut self, fid: Fid, place: Place, pid: u32, now: Instant) -> u64 {
        let Some(known) = self.known.get_mut(&fid) else {
            self.note(fid, place);
            return fid.ino();
        };
        if known.place == place {
            return fid.ino();
        }
        match &mut known.tried {
            Some(tried) if tried.place == place && now - tried.at < RETRY => {
                let is_new = !tried.pids.contains(&pid) && tried.pids.len() < PIDS_MAX;
                if is_new {
                    tried.pids.push(pid);
                }
                let is_first = is_new || std::mem::take(&mut tried.is_dropped);
                if tried.stand_in.is_none() && is_first || self.stand_ins.len() >= STAND_INS_MAX {
                    return fid.ino();
                }
                if tried.stand_in.is_none() {
                    tried.at = now;
                }
                let free = || next_free(&self.stand_ins, &mut self.next);
                let number = *tried.stand_in.get_or_insert_with(free);
                // The kernel may have forgotten it meanwhile.
                self.stand_ins.entry(number).or_insert((fid, 0)).1 += 1;
                number
            }
            Some(tried) if tried.place == place && tried.stand_in.is_none() => {
                // The first lookup was not repeated: the kernel has moved its entry.
                self.note(fid, place);
                fid.ino()
            }
            tried => {
                // A stand-in that the kernel still has at this place makes it drop the first reply.
                let before =
                    tried.as_ref().filter(|tried| tried.place == place).and_then(|tried| tried.stand_in);
                let is_dropped = before.is_some_and(|number| self.stand_ins.contains_key(&number));
                *tried = Some(Tried { place, pids: vec![pid], at: now, stand_in: None, is_dropped });
                fid.ino()
            }
        }
    }
    /// Whether a listing may show the directory at this place with its attributes.
    pub(crate) fn may_list(&mut self, fid: Fid, (parent, name): (u64, &[u8])) -> bool {
        let place = self.place(parent, name);
        let known = self.known.get(&fid).map(|known| known.place);
        if known.is_none() {
            self.note(fid, place);
        }
        let may = known.is_none_or(|known| known == place);
        if may {
            self.shown(fid);
        }
        may
    }
    /// A reply shows the inode under its own number.
    pub(crate) fn shown(&mut self, fid: Fid) {
        if let Some(known) = self.known.get_mut(&fid) {
            known.shown += 1;
        }
    }
    /// The kernel has moved its entries: the first name to the second one, or exchanged them.
    pub(crate) fn renamed(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchanged: bool) {
        let (from, to) = (self.place(from.0, from.1), self.place(to.0, to.1));
        // The entry may be that of a stand-in.
        for (fid, _) in self.stand_ins.values() {
            let tried = self.known.get_mut(fid).and_then(|known| known.tried.as_mut());
            match tried {
                Some(tried) if tried.place == from => tried.place = to,
                Some(tried) if tried.place == to && exchanged => tried.place = from,
                _ => {}
            }
        }
        let (old, new) = (self.by_place.remove(&from), self.by_place.remove(&to));
        let mut put = |fid: Option<Fid>, place| {
            if let Some(fid) = fid
                && let Some(known) = self.known.get_mut(&fid)
            {
                known.place = place;
                self.by_place.insert(place, fid);
            }
        };
        put(old, to);
        if exchanged {
            put(new, from);
        }
    }
    /// The kernel has forgotten a node as often as `count` replies have shown it.
    fn has_forgotten(&mut self, nodeid: u64, count: u64) {
        if let Some((_, shown)) = self.stand_ins.get_mut(&nodeid) {
            *shown = shown.saturating_sub(count);
            if *shown == 0 {
                self.stand_ins.remove(&nodeid);
            }
            return;
        }
        let fid = Fid::from_ino(nodeid);
        let Some(known) = self.known.get_mut(&fid) else { return };
        known.shown = known.shown.saturating_sub(count);
        if let Some(tried) = &mut known.tried {
            tried.is_dropped = true;
        }
        if known.shown == 0 {
            let place = known.place;
            self.known.remove(&fid);
            self.leave(place, fid);
        }
    }

    fn place(&self, parent: u64, name: &[u8]) -> Place {
        Place(self.hasher.hash_one((parent, name)))
    }
    fn note(&mut self, fid: Fid, place: Place) {
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&fid) {
            return;
        }
        let before = self.known.get(&fid).map(|known| (known.place, known.shown));
        if let Some((before, _)) = before {
            self.leave(before, fid);
        }
        let shown = before.map_or(0, |(_, shown)| shown);
        self.known.insert(fid, Known { place, tried: None, shown });
        self.by_place.insert(place, fid);
    }
    fn leave(&mut self, place: Place, fid: Fid) {
        if self.by_place.get(&place) == Some(&fid) {
            self.by_place.remove(&place);
        }
    }
}

/// A number that the kernel does not know: there are more than [`STAND_INS_MAX`].
fn next_free(used: &BTreeMap<u64, (Fid, u64)>, next: &mut u64) -> u64 {
    loop {
        *next = if STAND_INS.contains(&(*next + 1)) { *next + 1 } else { STAND_INS.start };
        if !used.contains_key(next) {
            return *next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Oid, Seq};

    fn fid(n: u32) -> Fid {
        Fid::new(Seq(0x100), Oid(n))
    }
    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }
    const HERE: (u64, &[u8]) = (1, b"here");
    const THERE: (u64, &[u8]) = (1, b"there");
    const PID: u32 = 7;

    #[test]
    fn the_second_lookup_of_a_moved_directory_gets_a_stand_in_for_a_while() {
        let (mut moved, dir) = (Moved::default(), fid(5));
        assert_eq!(moved.looked_up(dir, HERE, PID, at(0)), dir.ino());
        assert_eq!(moved.looked_up(dir, HERE, PID, at(1)), dir.ino(), "it is where the kernel has it");
        assert_eq!(moved.looked_up(dir, THERE, PID, at(2)), dir.ino(), "the kernel may move its entry");
        assert_eq!(moved.looked_up(dir, THERE, 8, at(3)), dir.ino(), "another thread");
        let stand_in = moved.looked_up(dir, THERE, PID, at(4));
        assert_eq!((moved.own_number(stand_in), stand_in == dir.ino()), (Some(dir.ino()), false));
        assert_eq!(moved.looked_up(dir, THERE, 8, at(5)), stand_in);
        assert_eq!(
            moved.looked_up(dir, THERE, PID, at(1004)),
            dir.ino(),
            "the kernel may move its entry now"
        );
        moved.has_forgotten(dir.ino(), 1);
        assert_eq!(
            moved.looked_up(dir, THERE, PID, at(1004)),
            dir.ino(),
            "it has dropped the stand-in first"
        );
        let again = moved.looked_up(dir, THERE, PID, at(1005));
        assert!(again != stand_in && again != dir.ino());
        moved.has_forgotten(stand_in, 2);
        assert_eq!((moved.own_number(stand_in), moved.own_number(again)), (None, Some(dir.ino())));
        assert_eq!(moved.own_number(dir.ino()), None);
        // Moved again: the kernel has no stand-in there. Two threads look it up.
        let elsewhere = (1, &b"elsewhere"[..]);
        for pid in [8, PID] {
            assert_eq!(moved.looked_up(dir, elsewhere, pid, at(1006)), dir.ino());
        }
        for pid in [8, PID] {
            assert!(moved.looked_up(dir, elsewhere, pid, at(1007)) != dir.ino(), "{pid}");
        }
    }

    #[test]
    fn a_directory_that_the_kernel_has_moved_is_where_it_is_asked_for() {
        let (mut moved, dir) = (Moved::default(), fid(5));
        assert_eq!(moved.looked_up(dir, HERE, PID, at(0)), dir.ino());
        moved.renamed(HERE, THERE, false);
        for ms in 0..3 {
            assert_eq!(moved.looked_up(dir, THERE, PID, at(ms)), dir.ino(), "an own rename");
        }
        assert_eq!(moved.looked_up(dir, HERE, PID, at(10)), dir.ino());
        for ms in [1010, 1011, 1012] {
            assert_eq!(moved.looked_up(dir, HERE, PID, at(ms)), dir.ino(), "no second lookup followed");
        }
        assert_eq!(moved.looked_up(fid(6), THERE, PID, at(1012)), fid(6).ino());
        moved.renamed(HERE, THERE, true);
        assert!(moved.may_list(dir, THERE) && moved.may_list(fid(6), HERE) && !moved.may_list(dir, HERE));
        let shown = moved.known[&dir].shown;
        assert_eq!(shown, 9);
        moved.has_forgotten(dir.ino(), 1);
        assert!(!moved.may_list(dir, HERE), "the kernel knows it still");
        moved.has_forgotten(dir.ino(), shown - 1);
        assert!(moved.may_list(dir, HERE), "it is new to the kernel");
    }
}
