//! Random histories of a lock space against a model that looks at every pair of locks.

use nacre_dlm::policy::Mode;
use nacre_dlm::server::{
    Enqueued, Holder, LockEffect, LockError, LockId, LockRequest, LockSpace, ResourceId,
};
use nacre_types::{Extent, Generation, LockCookie};
use proptest::prelude::*;

const LIMIT: u32 = 12;

#[derive(Debug, Clone)]
enum Step {
    Enqueue { resource: u64, mode: Mode, extent: Extent, export: u32, cookie: u64 },
    Operation { resource: u64, mode: Mode, extent: Extent },
    Cancel(usize),
    CancelCookie { export: u32, cookie: u64 },
    Use(usize),
    Unuse(usize),
    RemoveClient { export: u32, at_most: usize },
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![4 => Just(Mode::Pr), 4 => Just(Mode::Pw), 1 => Just(Mode::Ex), 1 => Just(Mode::Cr)]
}

fn extent() -> impl Strategy<Value = Extent> {
    prop_oneof![
        6 => (0u64..24, 1u64..8).prop_map(|(s, l)| Extent::new(s, s + l)),
        1 => (0u64..24).prop_map(|s| Extent::new(s, u64::MAX)),
        1 => Just(Extent::ALL),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..2, mode(), extent(), 1u32..4, 0u64..12).prop_map(
            |(resource, mode, extent, export, cookie)| Step::Enqueue { resource, mode, extent, export, cookie }
        ),
        4 => (0u64..2, mode(), extent())
            .prop_map(|(resource, mode, extent)| Step::Operation { resource, mode, extent }),
        6 => any::<usize>().prop_map(Step::Cancel),
        2 => (1u32..4, 0u64..12).prop_map(|(export, cookie)| Step::CancelCookie { export, cookie }),
        2 => any::<usize>().prop_map(Step::Use),
        2 => any::<usize>().prop_map(Step::Unuse),
        1 => (1u32..4, 1usize..6).prop_map(|(export, at_most)| Step::RemoveClient { export, at_most }),
    ]
}

#[derive(Debug, Clone)]
struct Entry {
    id: LockId,
    request: LockRequest,
    granted: bool,
    notified: bool,
    released: bool,
    users: u32,
}

impl Entry {
    fn conflicts_with(&self, older: &Entry) -> bool {
        let (r, o) = (&self.request, &older.request);
        r.resource == o.resource && r.extent.overlaps(o.extent) && !r.mode.is_compatible(o.mode)
    }
    fn is_client(&self) -> bool {
        matches!(self.request.holder, Holder::Client { .. })
    }
}

/// Locks in order of arrival.
#[derive(Debug, Default)]
struct Model {
    locks: Vec<Entry>,
}

impl Model {
    /// Removes what nobody holds, grants what nothing older conflicts with, tells holders; the ids of both.
    fn settle(&mut self) -> (Vec<LockId>, Vec<LockId>) {
        self.locks.retain(|l| !l.released || l.users > 0);
        let (mut granted, mut notified) = (Vec::new(), Vec::new());
        for at in 0..self.locks.len() {
            let (older, rest) = self.locks.split_at_mut(at);
            let lock = &mut rest[0];
            if !lock.granted && !older.iter().any(|o| lock.conflicts_with(o)) {
                lock.granted = true;
                granted.push(lock.id);
            }
        }
        for at in 0..self.locks.len() {
            let (older, rest) = self.locks.split_at_mut(at + 1);
            let lock = &mut older[at];
            let wanted = rest.iter().any(|y| !y.granted && y.conflicts_with(lock));
            if wanted && lock.granted && !lock.notified && !lock.released && lock.is_client() {
                lock.notified = true;
                notified.push(lock.id);
            }
        }
        (granted, notified)
    }
    fn find_cookie(&mut self, export: u32, cookie: u64) -> Option<&mut Entry> {
        let holder = Holder::Client { export: Generation(export), cookie: LockCookie(cookie) };
        self.locks.iter_mut().find(|l| l.request.holder == holder && !l.released)
    }
    fn pick(&mut self, n: usize) -> Option<&mut Entry> {
        let len = self.locks.len();
        (len > 0).then(|| &mut self.locks[n % len])
    }
}

/// Takes the effects out and compares them with what the model says must have happened.
fn check(space: &mut LockSpace, model: &mut Model, enqueued: Option<Enqueued>) {
    let (mut granted, mut notified) = model.settle();
    if let Some(reply) = enqueued {
        let at = granted.iter().position(|&id| id == reply.lock);
        assert_eq!(at.is_some(), reply.granted, "granted exactly when nothing older conflicts");
        at.map(|at| granted.remove(at));
    }
    let (mut granted_seen, mut notified_seen) = (Vec::new(), Vec::new());
    while let Some(effect) = space.poll_effect() {
        match effect {
            LockEffect::Granted { lock, .. } => granted_seen.push(lock),
            LockEffect::Blocking { lock, .. } => notified_seen.push(lock),
        }
    }
    for list in [&mut granted, &mut notified, &mut granted_seen, &mut notified_seen] {
        list.sort();
    }
    assert_eq!(granted_seen, granted, "wake-ups");
    assert_eq!(notified_seen, notified, "blocking callbacks");
    for lock in &model.locks {
        assert_eq!(space.is_granted(lock.id), lock.granted);
    }
    assert_eq!(space.len(), model.locks.len());
    assert_eq!(space.waiting(), model.locks.iter().filter(|l| !l.granted).count());
    for (at, lock) in model.locks.iter().enumerate().filter(|(_, l)| l.granted) {
        for older in model.locks[..at].iter().filter(|o| o.granted) {
            assert!(!lock.conflicts_with(older), "two incompatible grants");
        }
    }
}

fn enqueue(space: &mut LockSpace, model: &mut Model, request: LockRequest) {
    if let Holder::Client { export, cookie } = request.holder {
        if let Some(known) = model.find_cookie(export.0, cookie.0) {
            let expected = if request == known.request {
                Ok(Enqueued { lock: known.id, granted: known.granted })
            } else {
                Err(LockError::CookieInUse)
            };
            assert_eq!(space.enqueue(request), expected);
            return check(space, model, None);
        }
        let held = model
            .locks
            .iter()
            .filter(|l| !l.released && l.is_client())
            .filter(|l| matches!(l.request.holder, Holder::Client { export: e, .. } if e == export));
        let held = held.count() as u32;
        assert_eq!(space.held_by(export), held);
        if held >= LIMIT {
            assert_eq!(space.enqueue(request), Err(LockError::TooMany { held }));
            return check(space, model, None);
        }
    }
    let reply = space.enqueue(request).expect("cookie and limit were checked");
    let entry = Entry { id: reply.lock, request, granted: false, notified: false, released: false, users: 0 };
    model.locks.push(entry);
    check(space, model, Some(reply));
}

fn apply(space: &mut LockSpace, model: &mut Model, step: Step) {
    match step {
        Step::Enqueue { resource, mode, extent, export, cookie } => {
            let holder = Holder::Client { export: Generation(export), cookie: LockCookie(cookie) };
            let resource = ResourceId([resource, 0, 0, 0]);
            return enqueue(space, model, LockRequest { resource, mode, extent, holder });
        }
        Step::Operation { resource, mode, extent } => {
            let (resource, holder) = (ResourceId([resource, 0, 0, 0]), Holder::Operation);
            return enqueue(space, model, LockRequest { resource, mode, extent, holder });
        }
        Step::Cancel(n) => {
            if let Some(lock) = model.pick(n) {
                assert_eq!(space.cancel(lock.id), !lock.released);
                lock.released = true;
            }
        }
        Step::CancelCookie { export, cookie } => {
            let known = model.find_cookie(export, cookie);
            let cancelled = space.cancel_cookie(Generation(export), LockCookie(cookie));
            assert_eq!(cancelled, known.is_some());
            if let Some(lock) = known {
                lock.released = true;
            }
        }
        Step::Use(n) => {
            if let Some(lock) = model.pick(n) {
                assert_eq!(space.use_lock(lock.id), lock.granted);
                lock.users += u32::from(lock.granted);
            }
        }
        Step::Unuse(n) => {
            if let Some(lock) = model.pick(n)
                && lock.users > 0
            {
                space.unuse(lock.id);
                lock.users -= 1;
            }
        }
        Step::RemoveClient { export, at_most } => {
            let mut own: Vec<(LockCookie, usize)> = Vec::new();
            for (at, lock) in model.locks.iter().enumerate() {
                if let Holder::Client { export: e, cookie } = lock.request.holder
                    && e.0 == export
                    && !lock.released
                {
                    own.push((cookie, at));
                }
            }
            own.sort();
            assert_eq!(space.remove_client(Generation(export), at_most), own.len() <= at_most);
            for &(_, at) in own.iter().take(at_most) {
                model.locks[at].released = true;
            }
        }
    }
    check(space, model, None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_end_as_the_naive_model_says(steps in prop::collection::vec(step(), 1..120)) {
        let (mut space, mut model) = (LockSpace::new(LIMIT, 1), Model::default());
        for step in steps {
            apply(&mut space, &mut model, step);
        }
        // Once everybody lets go, everybody has been granted and nothing is left.
        while let Some(lock) = model.locks.iter_mut().find(|l| l.granted) {
            let id = lock.id;
            for _ in 0..core::mem::take(&mut lock.users) {
                space.unuse(id);
            }
            if !core::mem::replace(&mut lock.released, true) {
                space.cancel(id);
            }
            check(&mut space, &mut model, None);
        }
        prop_assert!(model.locks.is_empty() && space.is_empty());
        prop_assert_eq!((space.resources(), space.waiting()), (0, 0));
    }
}

/// Ten thousand locks on one resource, disjoint, shared and queued: seconds would mean a quadratic search.
#[test]
fn many_locks_of_one_resource_cost_no_quadratic_search() {
    const N: u64 = 10_000;
    let mut space = LockSpace::new(u32::MAX, 1);
    let resource = ResourceId([1, 2, 0, 0]);
    let request = |space: &mut LockSpace, n: u64, mode, extent| {
        let holder = Holder::Client { export: Generation(1 + (n % 7) as u32), cookie: LockCookie(n) };
        space.enqueue(LockRequest { resource, mode, extent, holder }).unwrap()
    };
    let disjoint: Vec<_> =
        (0..N).map(|n| request(&mut space, n, Mode::Pw, Extent::new(n * 4096, (n + 1) * 4096))).collect();
    assert!(disjoint.iter().all(|e| e.granted));
    let shared = Extent::new(N * 4096, u64::MAX);
    let readers: Vec<_> = (N..2 * N).map(|n| request(&mut space, n, Mode::Pr, shared)).collect();
    assert!(readers.iter().all(|e| e.granted));
    let queued: Vec<_> = (2 * N..3 * N).map(|n| request(&mut space, n, Mode::Pw, shared)).collect();
    assert!(queued.iter().all(|e| !e.granted));
    for lock in readers.iter().chain(&queued) {
        assert!(space.is_granted(lock.lock));
        space.cancel(lock.lock);
    }
    assert_eq!((space.len() as u64, space.waiting()), (N, 0));
}
