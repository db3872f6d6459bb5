//! File locks: random histories against a model that knows single bytes, and the classic deadlocks.

mod support;

use nacre_dlm::policy::flock::{Family, Kind, Lock, Owner};
use nacre_dlm::server::{FlockSpace, Outcome, WaitResult};
use nacre_types::{Fid, Generation, LockCookie};
use std::collections::{BTreeMap, BTreeSet};
use support::Rng;

const FILES: u64 = 3;
const BYTES: u64 = 24;

fn fid(n: u64) -> Fid {
    Fid::from_ino((0x100 << 24) + 1 + n)
}
fn owner(client: u32, owner: u64, family: Family) -> Owner {
    Owner { client: Generation(client), family, owner }
}
fn lock(start: u64, end: u64, kind: Kind) -> Lock {
    Lock { start, end, kind, pid: 1 }
}

/// Who holds each byte, and who waits for what.
#[derive(Default)]
struct Model {
    bytes: BTreeMap<(u64, Family, u64), BTreeMap<Owner, Kind>>,
    waiting: BTreeMap<(Generation, LockCookie), (u64, Owner, Lock)>,
}
impl Model {
    fn conflicts(&self, file: u64, who: Owner, l: &Lock) -> BTreeSet<Owner> {
        (l.start..=l.end)
            .flat_map(|b| self.bytes.get(&(file, who.family, b)).into_iter().flatten())
            .filter(|(o, k)| **o != who && (l.kind == Kind::Write || **k == Kind::Write))
            .map(|(o, _)| *o)
            .collect()
    }
    fn set(&mut self, file: u64, who: Owner, l: &Lock) {
        for b in l.start..=l.end {
            self.bytes.entry((file, who.family, b)).or_default().insert(who, l.kind);
        }
    }
    fn clear(&mut self, file: u64, who: Owner, start: u64, end: u64) {
        for b in start..=end.min(BYTES) {
            if let Some(owners) = self.bytes.get_mut(&(file, who.family, b)) {
                owners.remove(&who);
            }
        }
    }
    fn reaches(&self, from: BTreeSet<Owner>, to: Owner) -> bool {
        let (mut next, mut seen) = (from, BTreeSet::new());
        while let Some(o) = next.pop_first() {
            if o == to {
                return true;
            }
            if seen.insert(o) {
                for (file, who, l) in self.waiting.values().filter(|(_, who, _)| *who == o) {
                    next.extend(self.conflicts(*file, *who, l));
                }
            }
        }
        false
    }
    /// Takes in the results of the space, each of which must be right at its turn.
    fn take(&mut self, space: &mut FlockSpace) {
        while let Some(WaitResult { client, cookie, outcome }) = space.poll_result() {
            let (file, who, l) = self.waiting.remove(&(client, cookie)).expect("a result for nobody");
            let conflicts = self.conflicts(file, who, &l);
            match outcome {
                Outcome::Granted => {
                    assert!(conflicts.is_empty());
                    self.set(file, who, &l);
                }
                Outcome::Deadlock => assert!(self.reaches(conflicts, who)),
                other => panic!("the result is {other:?}"),
            }
        }
    }
    fn check(&self, space: &FlockSpace, owners: &[Owner]) {
        for ((file, family, byte), holders) in &self.bytes {
            for o in owners.iter().filter(|o| o.family == *family) {
                let held = space.granted(fid(*file), *o).iter().find(|l| l.start <= *byte && *byte <= l.end);
                assert_eq!(held.map(|l| l.kind), holders.get(o).copied(), "file {file} byte {byte} {o:?}");
            }
        }
        for (file, who, l) in self.waiting.values() {
            let conflicts = self.conflicts(*file, *who, l);
            assert!(!conflicts.is_empty(), "{who:?} waits for nothing");
            if who.family == Family::Posix {
                assert!(!self.reaches(conflicts, *who), "{who:?} waits for itself");
            }
        }
    }
}

#[test]
fn random_histories_agree_with_a_model_of_bytes() {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let owners: Vec<Owner> = (0..8)
            .map(|n| owner(n % 3, u64::from(n), if n < 6 { Family::Posix } else { Family::Flock }))
            .collect();
        let (mut space, mut model) = (FlockSpace::default(), Model::default());
        for step in 0..400u64 {
            let who = owners[rng.below(8) as usize];
            let file = rng.below(FILES);
            let (a, b) = (rng.below(BYTES), rng.below(BYTES));
            let (start, end) = if who.family == Family::Flock { (0, BYTES) } else { (a.min(b), a.max(b)) };
            let kind = if rng.below(2) == 0 { Kind::Read } else { Kind::Write };
            let l = lock(start, end, kind);
            let conflicts = model.conflicts(file, who, &l);
            match rng.below(10) {
                0..=3 => {
                    let wait = (rng.below(2) == 0).then_some(LockCookie(step));
                    let outcome = space.lock(fid(file), who, l, wait);
                    match (outcome, wait) {
                        (Outcome::Granted, _) => {
                            assert!(conflicts.is_empty());
                            model.set(file, who, &l);
                        }
                        (Outcome::Conflict, None) => assert!(!conflicts.is_empty()),
                        (Outcome::Deadlock, Some(_)) => assert!(model.reaches(conflicts, who)),
                        (Outcome::Waiting, Some(cookie)) => {
                            assert!(!conflicts.is_empty());
                            if who.family == Family::Flock {
                                model.clear(file, who, 0, BYTES);
                            }
                            model.waiting.insert((who.client, cookie), (file, who, l));
                            assert_eq!(space.lock(fid(file), who, l, wait), Outcome::Waiting);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                4..=7 => {
                    space.unlock(fid(file), who, start, end);
                    model.clear(file, who, start, end);
                }
                8 => {
                    let some = model.waiting.keys().next().copied();
                    if let Some((client, cookie)) = some {
                        assert_eq!(space.cancel(client, cookie), Outcome::Conflict);
                        model.waiting.remove(&(client, cookie));
                    }
                }
                _ => {
                    assert_eq!(space.test(fid(file), who, &l).is_some(), !conflicts.is_empty());
                    if rng.below(20) == 0 {
                        while space.remove_client(who.client, 1) {}
                        model.waiting.retain(|(client, _), _| *client != who.client);
                        for holders in model.bytes.values_mut() {
                            holders.retain(|o, _| o.client != who.client);
                        }
                    }
                }
            }
            while space.reprocess(1) {}
            model.take(&mut space);
            model.check(&space, &owners);
        }
        for client in 0..3 {
            while space.remove_client(Generation(client), 2) {}
        }
        while space.reprocess(1) {}
        assert_eq!(space.counts(), (0, 0));
    }
}

#[test]
fn two_mounts_that_wait_for_each_other_are_a_deadlock() {
    let (a, b) = (owner(1, 7, Family::Posix), owner(2, 7, Family::Posix));
    let mut space = FlockSpace::default();
    let w = lock(0, 9, Kind::Write);
    assert_eq!(space.lock(fid(0), a, w, None), Outcome::Granted);
    assert_eq!(space.lock(fid(1), b, w, None), Outcome::Granted);
    assert_eq!(space.lock(fid(1), a, w, Some(LockCookie(1))), Outcome::Waiting);
    assert_eq!(space.lock(fid(0), b, w, Some(LockCookie(1))), Outcome::Deadlock);
    // The refused one gives up: the other goes on.
    space.unlock(fid(1), b, 0, u64::MAX);
    assert!(!space.reprocess(8));
    let reply = WaitResult { client: Generation(1), cookie: LockCookie(1), outcome: Outcome::Granted };
    assert_eq!(space.poll_result(), Some(reply));
    assert_eq!(space.cancel(Generation(1), LockCookie(1)), Outcome::Granted);
}

#[test]
fn a_circle_of_three_is_seen_and_flock_upgrades_do_not_wait_for_each_other() {
    let mut space = FlockSpace::default();
    let w = lock(0, 0, Kind::Write);
    let o: Vec<Owner> = (0..3).map(|n| owner(n, 1, Family::Posix)).collect();
    for n in 0..3 {
        assert_eq!(space.lock(fid(n), o[n as usize], w, None), Outcome::Granted);
    }
    assert_eq!(space.lock(fid(1), o[0], w, Some(LockCookie(1))), Outcome::Waiting);
    assert_eq!(space.lock(fid(2), o[1], w, Some(LockCookie(1))), Outcome::Waiting);
    assert_eq!(space.lock(fid(0), o[2], w, Some(LockCookie(1))), Outcome::Deadlock);

    let (a, b) = (owner(1, 1, Family::Flock), owner(2, 2, Family::Flock));
    let all = |kind| lock(0, u64::MAX, kind);
    assert_eq!(space.lock(fid(0), a, all(Kind::Read), None), Outcome::Granted);
    assert_eq!(space.lock(fid(0), b, all(Kind::Read), None), Outcome::Granted);
    assert_eq!(space.lock(fid(0), a, all(Kind::Write), Some(LockCookie(2))), Outcome::Waiting);
    assert_eq!(space.lock(fid(0), b, all(Kind::Write), None), Outcome::Granted);
}
