//! Directories that another mount has moved while the kernel still has them at their former place.
//!
//! When the kernel looks up a directory that it knows under another name, it moves its own entry. It does so only if
//! it gets the locks of a rename at once. So a lookup within a rename, or beside a change of the former directory, fails
//! with ESTALE; and a lookup fails with ELOOP if the kernel still has the directory above the place of the lookup. A local
//! file system returns neither. The kernel walks a path once more after ESTALE (`walks.rs`), but not for the name of
//! something new. In that second walk, where ELOOP would follow, and while other callers have locks of names
//! (`name_locks.rs`), such a directory gets a *stand-in*: another node number for the same directory, which the kernel
//! knows at no place. Its attributes have the inode number as always.
//!
//! The table has the node that the kernel knows at each place (a name in a directory), and the directory above each
//! node. Once a reply has shown a directory at a second place, the kernel may have it at the first or at the second
//! one: its place is not known until a request shows that the kernel has taken over the reply.
//!
//! Invariants: nothing that is reached through a stand-in has a validity; after a change through it the kernel forgets
//! everything, and after a rename or removal, which may be one of the stand-in, the attributes of its directory
//! (`door.rs`). A stand-in exists at one place only, and ends when the kernel has forgotten it. After [`YOUNG`] a
//! lookup shows the own number again: then the kernel drops the stand-in at that place, forgets the reply, and looks up
//! once more. Directories are in the table from the reply that shows them until the kernel forgets them, at most
//! [`KNOWN_MAX`] of them. Any other directory is assumed to be at the place at which it is looked up.

use crate::walks::Walks;
use nacre_types::{Fid, Instant, SeededHash};
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A stand-in is used for this time before the own number is shown again.
const YOUNG: Duration = Duration::from_secs(1);
/// Stand-ins at a time; beyond it lookups within renames fail with ESTALE.
const STAND_INS_MAX: usize = 65_536;
/// Directories that are noted.
const KNOWN_MAX: usize = 400_000;
/// Levels of directories that are examined; a deeper directory gets a stand-in.
const DEPTH_MAX: usize = 1000;
/// Node numbers of stand-ins: no FID has them, because sequence 0 has the root directory only.
const STAND_INS: std::ops::Range<u64> = 0x10_0000..0x100_0000;

/// Nodes that the kernel has forgotten, as the thread that reads requests has seen it. No visit is made for them: they are
/// looked at when a directory is found at another place, or when they are many.
#[derive(Default)]
pub(crate) struct Forgotten(Mutex<Vec<(u64, u64)>>);

impl Forgotten {
    /// Beyond this they are dropped, and their directories stay in the table until the end of the mount.
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

/// A name in a directory of the kernel, as a hash: a collision costs no more than an ESTALE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place(u64);

/// Where the kernel has a node.
#[derive(Debug, Clone, Copy)]
struct At {
    place: Place,
    /// The node of the directory.
    parent: u64,
}

/// A directory that was shown at a second place under its own number.
#[derive(Debug)]
pub(crate) struct Tried {
    fid: Fid,
    at: At,
    /// [`Known::shown_elsewhere`] then.
    serial: u64,
    /// [`Known::forgotten`] then, if the kernel may have had a stand-in there.
    instead: Option<u64>,
}

/// A directory that the kernel knows by its own number.
#[derive(Debug, Default)]
struct Known {
    /// `None`: it may be at one of several places.
    at: Option<At>,
    /// Replies with the own number; the kernel says how many of them it forgets.
    shown: u64,
    /// How many the kernel has forgotten.
    forgotten: u64,
    /// How many of them showed it at another place than the kernel had it.
    shown_elsewhere: u64,
}

#[derive(Debug)]
struct StandIn {
    fid: Fid,
    at: Option<At>,
    shown: u64,
    /// When it was first given, or kept although it was to be dropped.
    since: Instant,
}

/// The directories that the kernel of one mount knows.
#[derive(Default)]
pub(crate) struct Moved {
    walks: Walks<Tried>,
    forgotten: Arc<Forgotten>,
    hasher: SeededHash,
    known: HashMap<Fid, Known, SeededHash>,
    stand_ins: BTreeMap<u64, StandIn>,
    next: u64,
    /// The node that the kernel has at a place.
    nodes: HashMap<Place, u64, SeededHash>,
}

impl Moved {
    /// An empty table. `hasher`: with a seed of its own.
    pub(crate) fn new(hasher: SeededHash) -> Self {
        let (known, nodes) = (HashMap::with_hasher(hasher), HashMap::with_hasher(hasher));
        Self { hasher, known, nodes, ..Self::default() }
    }
    /// The place where the thread that reads requests puts what the kernel has forgotten.
    pub(crate) fn set_forgotten(&mut self, forgotten: Arc<Forgotten>) {
        self.forgotten = forgotten;
    }
    pub(crate) fn walks(&mut self) -> &mut Walks<Tried> {
        &mut self.walks
    }
    /// The own node number for that of a request. `None`: it is its own.
    pub(crate) fn own_number(&self, nodeid: u64) -> Option<u64> {
        if !STAND_INS.contains(&nodeid) {
            return None;
        }
        self.stand_ins.get(&nodeid).map(|stand_in| stand_in.fid.ino())
    }
    /// Whether the kernel knows the node as a directory.
    pub(crate) fn is_directory(&self, node: u64) -> bool {
        self.stand_ins.contains_key(&node) || self.known.contains_key(&Fid::from_ino(node))
    }
    /// The directories that have stand-ins.
    pub(crate) fn with_stand_ins(&self) -> impl Iterator<Item = Fid> {
        self.stand_ins.values().map(|stand_in| stand_in.fid)
    }

    /// Thread `pid` has made a request for `node`.
    pub(crate) fn arrived(&mut self, pid: u32, node: u64, now: Instant) {
        if let Some(tried) = self.walks.arrived(pid, node, now)
            && self.known.get(&tried.fid).is_some_and(|known| known.shown_elsewhere == tried.serial)
        {
            self.put(tried.fid.ino(), tried.at);
        }
    }
    /// The node number for a directory that thread `pid` has looked up as `name` in node `parent`. `may_move`: whether the
    /// kernel can move its entry out of the given directory, or out of any, as far as requests tell; called only if that
    /// matters.
    pub(crate) fn looked_up(
        &mut self,
        fid: Fid,
        (parent, name): (u64, &[u8]),
        (pid, may_move): (u32, impl FnOnce(Option<u64>) -> bool),
        now: Instant,
    ) -> u64 {
        let at = self.at(parent, name);
        if self.nodes.get(&at.place) != Some(&fid.ino()) || self.forgotten.is_many() {
            for (node, count) in self.forgotten.take() {
                self.has_forgotten(node, count);
            }
        }
        let number = self.number(fid, at, (pid, may_move), now);
        if number == fid.ino() {
            self.shown(fid);
        } else if let Some(stand_in) = self.stand_ins.get_mut(&number) {
            stand_in.shown += 1;
        }
        number
    }
    fn number(
        &mut self,
        fid: Fid,
        at: At,
        (pid, may_move): (u32, impl FnOnce(Option<u64>) -> bool),
        now: Instant,
    ) -> u64 {
        let own = fid.ino();
        let here = self.nodes.get(&at.place).copied();
        let Some(known) = self.known.get(&fid) else {
            self.note(fid, at);
            return own;
        };
        if here == Some(own) {
            return own;
        }
        let former = known.at.map(|at| at.parent);
        let stand_in = here.filter(|node| self.stand_ins.get(node).is_some_and(|s| s.fid == fid));
        let since = stand_in.and_then(|node| self.stand_ins.get(&node)).map(|s| s.since);
        let shows_own = match self.walks.second(pid) {
            None => {
                since.is_none_or(|since| now - since >= YOUNG) && self.walks.has_room(now) && may_move(former)
            }
            // The kernel has dropped the stand-in that it had here, and forgotten the own number.
            Some(tried) => tried.is_some_and(|tried| {
                tried.at.place == at.place && tried.instead.is_some_and(|n| n < known.forgotten)
            }),
        };
        let is_full = stand_in.is_none() && self.stand_ins.len() >= STAND_INS_MAX;
        if is_full || shows_own && !self.is_above(own, at.parent) {
            self.show_elsewhere(fid, at, stand_in.is_some(), pid, now);
            return own;
        }
        let number = stand_in.unwrap_or_else(|| next_free(&self.stand_ins, &mut self.next));
        let given = self.stand_ins.entry(number).or_insert(StandIn { fid, at: None, shown: 0, since: now });
        if now - given.since >= YOUNG {
            given.since = now;
        }
        self.put(number, at);
        number
    }
    /// Shows a directory at another place than the kernel has it.
    fn show_elsewhere(&mut self, fid: Fid, at: At, has_stand_in: bool, pid: u32, now: Instant) {
        let Some(known) = self.known.get_mut(&fid) else { return };
        known.shown_elsewhere += 1;
        let instead = has_stand_in.then_some(known.forgotten);
        let instead = if self.walks.second(pid).is_some() { None } else { instead };
        let tried = Tried { fid, at, serial: known.shown_elsewhere, instead };
        self.walks.tries(pid, (fid.ino(), tried), now);
        self.take_away(fid.ino());
        self.vacate(at.place);
    }
    /// A name leads to no directory.
    pub(crate) fn is_no_directory(&mut self, (parent, name): (u64, &[u8])) {
        let at = self.at(parent, name);
        self.vacate(at.place);
    }
    /// The kernel drops the directory that it had at this place: a rename of the name does not move that.
    fn vacate(&mut self, place: Place) {
        if let Some(node) = self.nodes.get(&place).copied() {
            self.take_away(node);
        }
    }
    /// Whether the kernel may have directory `own` above `node`, or as `node`.
    fn is_above(&self, own: u64, mut node: u64) -> bool {
        for _ in 0..DEPTH_MAX {
            if node == own || node == Fid::ROOT.ino() {
                return node == own;
            }
            let at = match self.stand_ins.get(&node) {
                Some(stand_in) => stand_in.at,
                None => self.known.get(&Fid::from_ino(node)).and_then(|known| known.at),
            };
            let Some(at) = at else { break };
            node = at.parent;
        }
        true
    }
    /// Whether a listing may show the directory at this place with its attributes.
    pub(crate) fn may_list(&mut self, fid: Fid, (parent, name): (u64, &[u8])) -> bool {
        let at = self.at(parent, name);
        let is_new = !self.known.contains_key(&fid);
        if is_new {
            self.note(fid, at);
        }
        let may = is_new || self.nodes.get(&at.place) == Some(&fid.ino());
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
    /// The kernel moves its entries: the first name to the second one, or exchanges them.
    pub(crate) fn renamed(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchanged: bool) {
        let (from, to) = (self.at(from.0, from.1), self.at(to.0, to.1));
        let (old, new) = (self.nodes.remove(&from.place), self.nodes.remove(&to.place));
        if let Some(new) = new {
            self.take_away(new);
        }
        if let Some(old) = old {
            self.put(old, to);
        }
        if let Some(new) = new.filter(|_| exchanged) {
            self.put(new, from);
        }
    }
    /// The kernel has forgotten a node as often as `count` replies have shown it.
    fn has_forgotten(&mut self, node: u64, count: u64) {
        let fid = Fid::from_ino(node);
        let left = if let Some(stand_in) = self.stand_ins.get_mut(&node) {
            stand_in.shown = stand_in.shown.saturating_sub(count);
            stand_in.shown
        } else if let Some(known) = self.known.get_mut(&fid) {
            known.forgotten += count;
            known.shown = known.shown.saturating_sub(count);
            known.shown
        } else {
            return;
        };
        if left == 0 {
            self.take_away(node);
            if self.stand_ins.remove(&node).is_none() {
                self.known.remove(&fid);
            }
        }
    }

    fn at(&self, parent: u64, name: &[u8]) -> At {
        At { place: Place(self.hasher.hash_one((parent, name))), parent }
    }
    fn note(&mut self, fid: Fid, at: At) {
        if self.known.len() < KNOWN_MAX || self.known.contains_key(&fid) {
            self.known.entry(fid).or_default();
            self.put(fid.ino(), at);
        }
    }
    /// The place of a node, if the kernel knows it.
    fn at_mut(&mut self, node: u64) -> Option<&mut Option<At>> {
        match self.stand_ins.get_mut(&node) {
            Some(stand_in) => Some(&mut stand_in.at),
            None => self.known.get_mut(&Fid::from_ino(node)).map(|known| &mut known.at),
        }
    }
    /// The kernel has a node at this place.
    fn put(&mut self, node: u64, at: At) {
        self.take_away(node);
        if let Some(place) = self.at_mut(node) {
            *place = Some(at);
            self.nodes.insert(at.place, node);
        }
    }
    /// It is not known where the kernel has a node.
    fn take_away(&mut self, node: u64) {
        if let Some(at) = self.at_mut(node).and_then(Option::take)
            && self.nodes.get(&at.place) == Some(&node)
        {
            self.nodes.remove(&at.place);
        }
    }
}

/// A number that the kernel does not know: there are at most [`STAND_INS_MAX`].
fn next_free(used: &BTreeMap<u64, StandIn>, next: &mut u64) -> u64 {
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
    use crate::abi::op;
    use crate::walks::Replied;
    use nacre_types::{Oid, Seq};

    fn fid(n: u32) -> Fid {
        Fid::new(Seq(0x100), Oid(n))
    }
    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }
    const ROOT: u64 = 1;
    const HERE: (u64, &[u8]) = (ROOT, b"here");
    const THERE: (u64, &[u8]) = (ROOT, b"there");
    const PID: u32 = 7;

    /// The table, the time in milliseconds, whether the kernel may move its entries.
    struct World(Moved, u64, bool);
    impl World {
        fn new() -> Self {
            Self(Moved::default(), 0, true)
        }
        /// The number that a lookup gets, a millisecond after the call before.
        fn look(&mut self, dir: Fid, place: (u64, &[u8]), pid: u32) -> u64 {
            self.1 += 1;
            self.0.arrived(pid, place.0, at(self.1));
            let may_move = self.2;
            let number = self.0.looked_up(dir, place, (pid, |_| may_move), at(self.1));
            let replied = Replied::new(pid, (op::LOOKUP, place.0), true, Some(number));
            assert!(!self.0.walks.replied(replied, None, at(self.1)));
            number
        }
        /// Whether a lookup gets the number of the inode itself.
        fn is_own(&mut self, dir: Fid, place: (u64, &[u8]), pid: u32) -> bool {
            self.look(dir, place, pid) == dir.ino()
        }
        fn enter(&mut self, dir: Fid, pid: u32) {
            self.0.arrived(pid, dir.ino(), at(self.1));
        }
        fn later(&mut self, ms: u64) {
            self.1 += ms;
        }
    }

    #[test]
    fn a_second_walk_gets_stand_ins_for_all_moved_directories() {
        let (mut w, dir, other) = (World::new(), fid(5), fid(6));
        assert!(w.is_own(dir, HERE, PID) && w.is_own(dir, HERE, PID), "it is where the kernel has it");
        assert!(w.is_own(other, (ROOT, b"other"), PID));
        assert!(w.is_own(dir, THERE, PID), "the kernel may move its entry");
        assert!(w.is_own(dir, THERE, 8), "another thread");
        // The kernel did not move it: ESTALE, and the second walk.
        let stand_in = w.look(dir, THERE, PID);
        assert_eq!((w.0.own_number(stand_in), stand_in == dir.ino()), (Some(dir.ino()), false));
        assert_eq!(w.look(dir, THERE, PID), stand_in);
        let second = w.look(other, HERE, PID);
        assert!(second != other.ino() && second != stand_in, "another one in the same walk");
        assert_eq!(w.look(dir, THERE, 9), stand_in, "the kernel has it there");
        assert!(!w.0.may_list(dir, THERE));
        w.0.has_forgotten(stand_in, 3);
        assert_eq!(w.0.own_number(stand_in), None);
        assert_eq!(w.0.own_number(dir.ino()), None);
    }

    #[test]
    fn a_directory_that_was_moved_to_and_fro_is_at_no_known_place() {
        let (mut w, dir) = (World::new(), fid(5));
        assert!(w.is_own(dir, HERE, PID));
        assert!(w.is_own(dir, THERE, PID), "the kernel may have moved its entry");
        // Another mount has moved it back.
        assert!(w.is_own(dir, HERE, 8));
        assert!(!w.is_own(dir, HERE, 8), "the kernel had it there");
        // A third thread enters it, so it is there.
        assert!(w.is_own(dir, THERE, 9));
        w.enter(dir, 9);
        for _ in 0..3 {
            assert!(w.is_own(dir, THERE, 9));
        }
        assert!(w.is_own(dir, (ROOT, b"elsewhere"), 9), "it is no second walk");
        // A reply in between shows it at another place.
        assert!(w.is_own(dir, (ROOT, b"between"), 10));
        w.enter(dir, 9);
        assert!(w.is_own(dir, (ROOT, b"elsewhere"), 11) && !w.is_own(dir, (ROOT, b"elsewhere"), 11));
    }

    #[test]
    fn a_stand_in_is_dropped_when_nobody_needs_it() {
        let (mut w, dir) = (World::new(), fid(5));
        assert!(w.is_own(dir, HERE, PID) && w.is_own(dir, THERE, PID));
        let stand_in = w.look(dir, THERE, PID);
        assert_eq!(w.look(dir, THERE, 8), stand_in, "it is young");
        w.later(1001);
        assert!(w.is_own(dir, THERE, 8), "the kernel drops the stand-in");
        assert!(!w.is_own(dir, THERE, 8), "or has refused the own number");
        w.later(1001);
        assert!(w.is_own(dir, THERE, 9));
        w.0.has_forgotten(dir.ino(), 1);
        assert!(w.is_own(dir, THERE, 9), "it has dropped the stand-in and the reply");
        assert!(!w.is_own(dir, THERE, 9), "it has refused the own number");
        w.later(1001);
        assert!(w.is_own(dir, THERE, 10));
        w.enter(dir, 10);
        w.later(1001);
        assert!(w.is_own(dir, THERE, 10) && w.is_own(dir, THERE, 10));
    }

    #[test]
    fn a_moved_directory_gets_a_stand_in_while_others_lock_names() {
        let (mut w, dir) = (World::new(), fid(5));
        assert!(w.is_own(dir, HERE, PID));
        w.2 = false;
        assert!(w.is_own(dir, HERE, PID), "the kernel has it there");
        assert!(w.is_own(fid(6), THERE, PID), "it is new to the kernel");
        let stand_in = w.look(dir, THERE, PID);
        assert_ne!(stand_in, dir.ino());
        w.later(1001);
        assert_eq!(w.look(dir, THERE, PID), stand_in);
        w.2 = true;
        w.later(1001);
        assert!(w.is_own(dir, THERE, PID), "nobody has locks any more");
    }

    #[test]
    fn a_directory_gets_a_stand_in_below_itself() {
        let mut w = World::new();
        let [a, b, c] = [1, 2, 3].map(fid);
        assert!(w.is_own(a, (ROOT, b"a"), PID));
        assert!(w.is_own(b, (a.ino(), b"b"), PID));
        assert!(w.is_own(c, (b.ino(), b"c"), PID));
        // Another mount has moved `b` to the root, and `a` below `c`.
        assert!(w.is_own(b, (ROOT, b"b"), PID));
        w.enter(b, PID);
        assert!(w.is_own(a, (c.ino(), b"a"), PID), "the kernel has it beside `b`");
        w.enter(a, PID);
        assert!(!w.is_own(b, (a.ino(), b"b"), PID), "it is above `a`");
        assert!(!w.is_own(c, (c.ino(), b"c"), PID));
    }

    #[test]
    fn a_rename_moves_no_directory_that_has_left_the_name() {
        let (mut w, dir, other) = (World::new(), fid(5), fid(6));
        let elsewhere = (ROOT, &b"elsewhere"[..]);
        for comes in [Some(other), None] {
            assert!(w.is_own(dir, HERE, PID) && w.is_own(other, THERE, PID));
            // Another mount puts another directory, or a file, here.
            match comes {
                Some(other) => assert!(w.is_own(other, HERE, PID)),
                None => w.0.is_no_directory(HERE),
            }
            w.0.renamed(HERE, elsewhere, false);
            assert!(w.is_own(dir, elsewhere, 8) && !w.is_own(dir, elsewhere, 8), "it may be anywhere");
            w = World::new();
        }
    }

    #[test]
    fn a_directory_that_the_kernel_has_moved_is_where_it_is_asked_for() {
        let (mut w, dir) = (World::new(), fid(5));
        assert!(w.is_own(dir, HERE, PID));
        w.0.renamed(HERE, THERE, false);
        assert!(w.is_own(dir, THERE, PID) && w.is_own(dir, THERE, PID), "an own rename");
        assert!(w.is_own(fid(6), HERE, PID));
        w.0.renamed(HERE, THERE, true);
        let moved = &mut w.0;
        assert!(moved.may_list(dir, HERE) && moved.may_list(fid(6), THERE) && !moved.may_list(dir, THERE));
        let shown = moved.known[&dir].shown;
        assert_eq!(shown, 4);
        moved.has_forgotten(dir.ino(), 1);
        assert!(!moved.may_list(dir, THERE), "the kernel knows it still");
        moved.has_forgotten(dir.ino(), shown - 1);
        assert!(moved.may_list(dir, THERE), "it is new to the kernel");
        // One that is replaced is at no place.
        moved.renamed(THERE, HERE, false);
        assert!(!moved.may_list(fid(6), THERE) && moved.may_list(dir, HERE));
        // A stand-in too.
        assert!(w.is_own(fid(6), THERE, PID));
        let stand_in = w.look(fid(6), THERE, PID);
        w.0.renamed(THERE, (ROOT, b"new"), false);
        assert_eq!(w.look(fid(6), (ROOT, b"new"), PID), stand_in);
    }
}
