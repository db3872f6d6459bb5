//! Names that inodes have left, and that a call of the kernel may still use.
//!
//! A call that names two files looks up one after the other, under the locks of their directories. On a local file system
//! these locks keep names from changing in between; another mount does not have them, and may rename the first file to the
//! second name. Then the kernel finds the same inode under both names, and a rename of a file to another name of it does
//! nothing, with success: two mounts that claim a file by renaming it would both have it.
//!
//! So a lookup that finds a file which a call may have found under another name before gets a *stand-in*: a node number that
//! no inode has. The kernel takes it for another file and sends the rename, which fails if the first name is gone. Questions
//! about a stand-in are answered, because the kernel may ask for permissions without walking the path again after an error.
//! Every other request for it fails with ESTALE, and the kernel walks the path once more, in which it gets the own number
//! (`walks.rs`). (Directories have stand-ins of their own, `moved.rs`.)
//!
//! Names are noted for [`RECENT`]: those that a lookup has found without a validity, for the thread that has looked them up, and
//! those that had a validity until another mount changed them, for all threads. Files with several names are left alone:
//! the kernel may rightly find them twice.

use nacre_types::{Fid, Instant, SeededHash};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::time::Duration;

/// A call looks up its second name this long after the first one.
const RECENT: Duration = Duration::from_secs(1);
/// Names, and stand-ins, that are noted; beyond it the oldest names are dropped, and no stand-ins are given.
const NOTED_MAX: usize = 4096;
/// Of the names noted last, so many are examined when a call changes one: its thread has looked it up just before.
const LATEST: usize = 16;
/// Node numbers of stand-ins: no FID has them, because sequence 0 has the root directory only.
const STAND_INS: std::ops::Range<u64> = 0x1000..0x10_0000;
/// Callers in other name spaces of processes all have this number.
const UNKNOWN: u32 = 0;

/// Whether a node number is such a stand-in.
pub(crate) fn is_stand_in_of_file(nodeid: u64) -> bool {
    STAND_INS.contains(&nodeid)
}

/// A name in a directory, as a hash: names with the same hash count as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place(u64);

struct Left {
    place: Place,
    /// The only thread that may use it. `None`: any.
    pid: Option<u32>,
    until: Instant,
}

#[derive(Default)]
pub(crate) struct LeftNames {
    hasher: SeededHash,
    left: HashMap<Fid, Vec<Left>, SeededHash>,
    /// In the order in which they were noted.
    order: VecDeque<(Instant, Fid)>,
    /// The stand-ins that the kernel may have at a place.
    stand_ins: HashMap<Place, StandIn, SeededHash>,
    /// The inodes of all of these, and of those that have ended.
    inodes: BTreeMap<u64, Fid>,
    /// Stand-ins that have ended, the oldest first: handles that a program has opened with O_PATH keep them.
    ended: VecDeque<u64>,
    next: u64,
}
struct StandIn {
    node: u64,
    until: Instant,
}

impl LeftNames {
    /// An empty table. `hasher`: with a seed of its own.
    pub(crate) fn new(hasher: SeededHash) -> Self {
        let (left, stand_ins) = (HashMap::with_hasher(hasher), HashMap::with_hasher(hasher));
        Self { hasher, left, stand_ins, ..Self::default() }
    }
    pub(crate) fn place(&self, parent: Fid, name: &[u8]) -> Place {
        Place(self.hasher.hash_one((parent, name)))
    }
    /// Notes a name under which thread `pid` (`None`: any) may use the inode although it may have left it.
    pub(crate) fn add(&mut self, fid: Fid, place: Place, pid: Option<u32>, now: Instant) {
        while self.order.front().is_some_and(|(until, _)| *until < now) || self.order.len() >= NOTED_MAX {
            let Some((until, fid)) = self.order.pop_front() else { break };
            if let Some(names) = self.left.get_mut(&fid) {
                names.retain(|left| left.until > until);
                if names.is_empty() {
                    self.left.remove(&fid);
                }
            }
        }
        let until = now + RECENT;
        self.left.entry(fid).or_default().push(Left { place, pid, until });
        self.order.push_back((until, fid));
    }
    /// The stand-in for an inode that thread `pid` has looked up at a place. `None`: it may have the own number.
    pub(crate) fn stand_in(&mut self, fid: Fid, place: Place, pid: u32, now: Instant) -> Option<u64> {
        let may_use = |left: &Left| left.pid.is_none_or(|of| of == pid || of == UNKNOWN || pid == UNKNOWN);
        let names = self.left.get(&fid)?;
        if !names.iter().any(|left| left.place != place && left.until >= now && may_use(left)) {
            return None;
        }
        if self.stand_ins.len() >= NOTED_MAX {
            let old: Vec<u64> =
                self.stand_ins.extract_if(|_, s| s.until < now).map(|(_, s)| s.node).collect();
            old.into_iter().for_each(|node| self.end(node));
        }
        if self.stand_ins.len() >= NOTED_MAX {
            return None;
        }
        self.next = if STAND_INS.contains(&(self.next + 1)) { self.next + 1 } else { STAND_INS.start };
        let stand_in = StandIn { node: self.next, until: now + RECENT };
        if let Some(former) = self.stand_ins.insert(place, stand_in) {
            self.end(former.node);
        }
        self.inodes.insert(self.next, fid);
        Some(self.next)
    }
    /// The kernel does not find a stand-in at its place any more.
    fn end(&mut self, node: u64) {
        if self.ended.len() >= NOTED_MAX
            && let Some(oldest) = self.ended.pop_front()
        {
            self.inodes.remove(&oldest);
        }
        self.ended.push_back(node);
    }
    /// The inode behind a stand-in.
    pub(crate) fn inode(&self, node: u64) -> Option<Fid> {
        self.inodes.get(&node).copied()
    }
    /// An own change is about to change the name: the inode whose stand-in the kernel has there, so that it does not apply the
    /// change to the attributes of the own number.
    pub(crate) fn changes(&mut self, parent: Fid, name: &[u8]) -> Option<Fid> {
        if self.stand_ins.is_empty() {
            return None;
        }
        let stand_in = self.stand_ins.remove(&self.place(parent, name))?;
        self.end(stand_in.node);
        self.inode(stand_in.node)
    }
    /// The inode that was found under a name just now, if the name is noted.
    pub(crate) fn latest(&self, parent: Fid, name: &[u8]) -> Option<Fid> {
        let place = self.place(parent, name);
        let has_it =
            |fid: &Fid| self.left.get(fid).is_some_and(|names| names.iter().any(|n| n.place == place));
        self.order.iter().rev().take(LATEST).map(|(_, fid)| *fid).find(has_it)
    }
    /// The kernel has moved its entry of a file away from this name itself, so no call uses it any more.
    pub(crate) fn renamed(&mut self, parent: Fid, name: &[u8]) {
        let place = self.place(parent, name);
        for (_, fid) in self.order.iter().rev().take(LATEST) {
            if let Some(names) = self.left.get_mut(fid) {
                names.retain(|left| left.place != place);
            }
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

    #[test]
    fn a_file_that_is_found_under_a_second_name_gets_a_stand_in_for_a_while() {
        let mut names = LeftNames::default();
        let [here, there] = [&b"here"[..], b"there"].map(|name| names.place(Fid::ROOT, name));
        assert_eq!(names.stand_in(fid(5), here, 7, at(0)), None, "it has left no name");
        names.add(fid(5), here, None, at(0));
        assert_eq!(names.stand_in(fid(5), here, 7, at(1)), None, "this is the name");
        assert_eq!(names.stand_in(fid(6), there, 7, at(1)), None, "another file");
        let number = names.stand_in(fid(5), there, 7, at(1000)).expect("a stand-in");
        assert_eq!(crate::request::fid_of(number), Err(nacre_types::Errno::ESTALE), "a change of it");
        assert_eq!((names.inode(number), names.inode(number + 1)), (Some(fid(5)), None));
        assert_eq!(names.stand_in(fid(5), there, 7, at(1001)), None, "no call uses it any more");
        assert_eq!(names.changes(Fid::ROOT, b"here"), None);
        assert_eq!(names.changes(Fid::ROOT, b"there"), Some(fid(5)));
        assert_eq!(names.changes(Fid::ROOT, b"there"), None);
        assert_eq!(names.inode(number), Some(fid(5)), "a handle may have it");
    }

    #[test]
    fn a_name_without_a_validity_is_used_by_its_thread_only() {
        let mut names = LeftNames::default();
        let [here, there] = [&b"here"[..], b"there"].map(|name| names.place(Fid::ROOT, name));
        names.add(fid(5), here, Some(7), at(0));
        assert_eq!(names.stand_in(fid(5), there, 8, at(1)), None);
        assert!(names.stand_in(fid(5), there, 7, at(1)).is_some());
        assert!(names.stand_in(fid(5), there, UNKNOWN, at(1)).is_some(), "perhaps the same thread");
        assert_eq!(names.latest(Fid::ROOT, b"here"), Some(fid(5)));
        names.renamed(Fid::ROOT, b"here");
        assert_eq!(names.stand_in(fid(5), there, 7, at(1)), None, "an own rename");
        assert_eq!(names.latest(Fid::ROOT, b"here"), None);
    }

    #[test]
    fn names_and_stand_ins_are_bounded() {
        let mut names = LeftNames::default();
        let [here, there] = [&b"here"[..], b"there"].map(|name| names.place(Fid::ROOT, name));
        for n in 0..2 * NOTED_MAX as u32 {
            names.add(fid(n), here, None, at(u64::from(n) / 100));
        }
        assert_eq!((names.order.len(), names.left.len()), (NOTED_MAX, NOTED_MAX));
        assert_eq!(names.stand_in(fid(1), there, 7, at(82)), None, "it was dropped");
        assert!(names.stand_in(fid(2 * NOTED_MAX as u32 - 1), there, 7, at(82)).is_some());
        for n in 0..NOTED_MAX {
            names.stand_ins.insert(Place(n as u64), StandIn { node: n as u64, until: at(500) });
            names.inodes.insert(n as u64, fid(5));
        }
        assert_eq!(names.stand_in(fid(2 * NOTED_MAX as u32 - 1), there, 7, at(500)), None);
        assert!(names.stand_in(fid(2 * NOTED_MAX as u32 - 1), there, 7, at(501)).is_some());
        let known = (names.stand_ins.len(), names.ended.len(), names.inodes.len());
        assert_eq!(known, (1, NOTED_MAX, NOTED_MAX + 1), "the others are old");
        names.add(fid(1), here, None, at(5000));
        assert_eq!((names.order.len(), names.left.len()), (1, 1), "the others are old");
    }
}
