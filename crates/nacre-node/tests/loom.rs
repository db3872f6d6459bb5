//! Every interleaving of outbox and permit. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p nacre-node --test loom`.
#![cfg(loom)]

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use nacre_node::{Claim, Next, Outbox, Permit, Revoked};

/// Three preemptions per run: all interleavings that matter, in seconds.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// What the driver does after leaving an island.
fn drain(outbox: &Mutex<Outbox<u32>>, wire: &Mutex<Vec<u32>>) {
    if !outbox.lock().unwrap().take_token() {
        return;
    }
    loop {
        let next = outbox.lock().unwrap().take_next();
        match next {
            Next::Item(item) => wire.lock().unwrap().push(item),
            Next::Released => break,
        }
    }
}

/// The same for a thread that looks up to `looks` times whether it gets the token.
fn drain_patiently(outbox: &Mutex<Outbox<u32>>, wire: &Mutex<Vec<u32>>, mut looks: u32) {
    let mut claim = outbox.lock().unwrap().take_token_or_wait();
    while claim == Claim::Waiting {
        thread::yield_now();
        let mut outbox = outbox.lock().unwrap();
        claim = if looks > 0 { outbox.wait_for_token() } else { outbox.end_wait() };
        looks = looks.saturating_sub(1);
    }
    let mut holds = claim == Claim::Taken;
    while holds {
        let next = outbox.lock().unwrap().take_next();
        match next {
            Next::Item(item) => {
                wire.lock().unwrap().push(item);
                holds = !outbox.lock().unwrap().pass_token_on();
            }
            Next::Released => holds = false,
        }
    }
}

#[test]
fn an_outbox_keeps_the_order_of_visits_and_leaves_nothing_behind() {
    keeps_order_and_leaves_nothing(drain);
}
#[test]
fn an_outbox_whose_token_is_passed_on_does_so_too() {
    keeps_order_and_leaves_nothing(|outbox, wire| drain_patiently(outbox, wire, 1));
}
fn keeps_order_and_leaves_nothing(drain: fn(&Mutex<Outbox<u32>>, &Mutex<Vec<u32>>)) {
    model(move || {
        let outbox = Arc::new(Mutex::new(Outbox::new(usize::MAX)));
        let wire = Arc::new(Mutex::new(Vec::new()));
        // The island: a counter under its entry lock; the frame is queued inside.
        let island = Arc::new(Mutex::new(0u32));
        let visit = move |outbox: &Mutex<Outbox<u32>>, wire: &Mutex<Vec<u32>>, island: &Mutex<u32>| {
            {
                let mut n = island.lock().unwrap();
                *n += 1;
                outbox.lock().unwrap().push(*n, 1).unwrap();
            }
            drain(outbox, wire);
        };
        let other = {
            let (o, w, i) = (outbox.clone(), wire.clone(), island.clone());
            thread::spawn(move || visit(&o, &w, &i))
        };
        visit(&outbox, &wire, &island);
        other.join().unwrap();
        assert_eq!(*wire.lock().unwrap(), [1, 2]);
        assert!(outbox.lock().unwrap().is_empty());
    });
}

#[test]
fn a_permit_says_idle_once_and_after_the_last_use() {
    model(|| {
        let permit = Arc::new(Permit::new());
        let inside = Arc::new(AtomicUsize::new(0));
        let idle = Arc::new(AtomicUsize::new(0));
        let users: Vec<_> = (0..2)
            .map(|_| {
                let (p, inside, idle) = (permit.clone(), inside.clone(), idle.clone());
                thread::spawn(move || {
                    if p.try_use() {
                        inside.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        if p.end() {
                            assert_eq!(inside.load(Ordering::Relaxed), 0, "idle while somebody is inside");
                            idle.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        if permit.revoke() == Revoked::Idle {
            assert_eq!(inside.load(Ordering::Relaxed), 0, "idle while somebody is inside");
            idle.fetch_add(1, Ordering::Relaxed);
        }
        for user in users {
            user.join().unwrap();
        }
        assert_eq!(idle.load(Ordering::Relaxed), 1);
    });
}
