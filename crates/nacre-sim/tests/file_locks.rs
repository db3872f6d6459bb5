//! File locks over kills of the MDT and the loss of its machine: who waits goes on waiting and gets the lock, and
//! never do two hold it. What was done under them is done before they are dropped.

mod support;

use nacre_client::Client;
use nacre_sim::cluster::Cluster;
use nacre_sim::{DieAt, NodeId};
use nacre_types::{Failure, Fid, OpenHandle};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{FILE, MDT, MS, OST, SEC, caller, make, on_devices, read, run, write, write_back};

fn lock(family: FlockFamily, kind: FlockType, owner: u64) -> FileLock {
    FileLock { family, kind, start: 0, end: u64::MAX, owner, pid: 1 }
}
fn file(c: &mut Cluster) -> Fid {
    let mount = c.mounts[0];
    run(c, mount, async |client| make(&client, Fid::ROOT, "locked", FILE).await).expect("made")
}
async fn open(client: &Client, fid: Fid) -> Result<OpenHandle, Failure> {
    client.open(fid, 2, caller()).await.map(|(_, handle)| handle)
}

#[test]
fn who_waits_while_the_mdt_is_killed_waits_again_and_gets_the_lock() {
    for seed in 1..=12 {
        let family = if seed % 2 == 0 { FlockFamily::Flock } else { FlockFamily::Posix };
        let mut c = on_devices(seed, 2);
        let fid = file(&mut c);
        let (holder, waiter, mdt) = (c.mounts[0], c.mounts[1], c.servers[MDT]);
        let held = run(&mut c, holder, async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, lock(family, FlockType::Write, 1), false).await?;
            Ok::<_, Failure>(handle)
        });
        let held = held.expect("locked");
        let wait = c.jobs.start(&mut c.world, waiter, async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, lock(family, FlockType::Write, 2), true).await
        });
        c.world.run_for(SEC / 2);
        assert!(!c.jobs.is_done(wait));
        if seed % 3 == 0 {
            c.power_loss(MDT);
        } else {
            c.world.kill(mdt);
        }
        c.world.start_later(mdt, 100_000_000);
        c.world.run_for(2 * SEC);
        c.jobs.collect(&mut c.world);
        assert!(!c.jobs.is_done(wait), "seed {seed}: granted although it is held\n{}", c.world.trace(60));
        if seed % 4 < 2 {
            let unlock = lock(family, FlockType::Unlock, 1);
            run(&mut c, holder, async move |client| client.flock(held, unlock, false).await)
                .expect("unlocked");
        } else {
            c.world.kill(holder);
        }
        let got: Option<Result<FlockOutcome, Failure>> = c.jobs.wait(&mut c.world, wait, 30 * SEC);
        assert_eq!(got, Some(Ok(FlockOutcome::Granted)), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A lock that came with a callback is part of a change of somebody else, which may be lost with the machine.
#[test]
fn a_lock_that_was_waited_for_is_still_held_after_the_loss_of_the_machine() {
    for seed in 1..=16 {
        let mut c = on_devices(seed, 3);
        let fid = file(&mut c);
        let nodes = c.mounts.clone();
        let family = FlockFamily::Posix;
        let held = run(&mut c, nodes[0], async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, lock(family, FlockType::Write, 1), false).await?;
            Ok::<_, Failure>(handle)
        });
        let held = held.expect("locked");
        let wait = c.jobs.start(&mut c.world, nodes[1], async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, lock(family, FlockType::Write, 2), true).await
        });
        // The wait itself is committed, and nobody remembers it after the loss.
        c.world.run_for(SEC);
        let unlock = lock(family, FlockType::Unlock, 1);
        run(&mut c, nodes[0], async move |client| client.flock(held, unlock, false).await).expect("unlocked");
        let got: Option<Result<FlockOutcome, Failure>> = c.jobs.wait(&mut c.world, wait, SEC);
        assert_eq!(got, Some(Ok(FlockOutcome::Granted)), "seed {seed}");
        c.power_loss(MDT);
        let mdt = c.servers[MDT];
        c.world.start_later(mdt, 100_000_000);
        let third = run(&mut c, nodes[2], async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, lock(family, FlockType::Write, 3), false).await
        });
        assert_eq!(third, Ok(FlockOutcome::Conflict), "seed {seed}: two hold it\n{}", c.world.trace(80));
    }
}

/// Evicted while it waits: it had no lock to lose, and waits on.
#[test]
fn a_wait_outlives_the_eviction_and_gets_the_lock_once() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 3);
        let fid = file(&mut c);
        let nodes = c.mounts.clone();
        let family = FlockFamily::Flock;
        let locking = |number: u64, wait: bool| {
            async move |client: Rc<Client>| {
                let handle = open(&client, fid).await?;
                let outcome = client.flock(handle, lock(family, FlockType::Write, number), wait).await?;
                Ok::<_, Failure>((handle, outcome))
            }
        };
        let (held, _) = run(&mut c, nodes[0], locking(1, false)).expect("locked");
        let wait = c.jobs.start(&mut c.world, nodes[1], locking(2, true));
        c.world.run_for(SEC);
        c.world.pause(nodes[1], true);
        c.world.run_for(15 * SEC);
        c.world.pause(nodes[1], false);
        c.world.run_for(5 * SEC);
        assert!(!c.jobs.is_done(wait), "seed {seed}");
        let unlock = lock(family, FlockType::Unlock, 1);
        run(&mut c, nodes[0], async move |client| client.flock(held, unlock, false).await).expect("unlocked");
        let ended: Option<Result<(OpenHandle, FlockOutcome), Failure>> =
            c.jobs.wait(&mut c.world, wait, 10 * SEC);
        let (handle, outcome) = ended.expect("in time").expect("granted");
        assert_eq!(outcome, FlockOutcome::Granted, "seed {seed}");
        let third = run(&mut c, nodes[2], locking(3, false)).expect("asked");
        assert_eq!(third.1, FlockOutcome::Conflict, "seed {seed}");
        run(&mut c, nodes[1], async move |client| client.release(handle, Some(2)).await).expect("closed");
        let third = run(&mut c, nodes[2], locking(3, false)).expect("asked");
        assert_eq!(third.1, FlockOutcome::Granted, "seed {seed}: it is free");
    }
}

/// The MDT dies with the grant in its log. Whose wait is interrupted then has the lock or does not, and so says its call.
#[test]
fn a_wait_that_is_interrupted_while_the_mdt_is_killed_leaves_no_lock_behind() {
    let mut granted = 0;
    for seed in 1..=24 {
        let mut c = on_devices(seed, 3);
        let fid = file(&mut c);
        let (nodes, mdt) = (c.mounts.clone(), c.servers[MDT]);
        let locking = |number: u64, wait: bool| {
            async move |client: Rc<Client>| {
                let handle = open(&client, fid).await?;
                let lock = lock(FlockFamily::Flock, FlockType::Write, number);
                Ok::<_, Failure>((handle, client.flock(handle, lock, wait).await?))
            }
        };
        let (held, _) = run(&mut c, nodes[0], locking(1, false)).expect("locked");
        let wait = c.jobs.start(&mut c.world, nodes[1], locking(2, true));
        c.world.run_for(SEC);
        c.world.kill_in_visit(mdt, DieAt::AfterLog, SEC / 2);
        let unlock = lock(FlockFamily::Flock, FlockType::Unlock, 1);
        c.jobs.start(&mut c.world, nodes[0], async move |client| client.flock(held, unlock, false).await);
        c.world.run_for(seed * SEC / 40);
        c.jobs.give_up(&mut c.world, nodes[1], wait);
        let ended: Option<Result<(OpenHandle, FlockOutcome), Failure>> =
            c.jobs.wait(&mut c.world, wait, 30 * SEC);
        c.world.run_for(SEC);
        let others = run(&mut c, nodes[2], locking(3, false)).map(|(_, outcome)| outcome);
        match ended {
            Some(Err(Failure::EINTR)) => assert_eq!(others, Ok(FlockOutcome::Granted), "seed {seed}"),
            Some(Ok((_, FlockOutcome::Granted))) => {
                assert_eq!(others, Ok(FlockOutcome::Conflict), "seed {seed}");
                granted += 1;
            }
            other => panic!("seed {seed}: {other:?}\n{}", c.world.trace(60)),
        }
    }
    assert!(granted > 0);
}

/// A program unlocks, another of its mount locks, and the second reply overtakes the first. Connection and machine are
/// lost between them: only the lock is made again before the recovery ends, the unlock after it.
#[test]
fn a_lock_is_made_again_whose_reply_overtook_that_of_the_unlock() {
    let mut overtaken = 0;
    for seed in 1..=30 {
        let kind = if seed % 2 == 0 { FlockType::Write } else { FlockType::Read };
        let gives_back = if seed % 3 == 0 { FlockType::Unlock } else { kind };
        let gives_back = if kind == FlockType::Write { FlockType::Unlock } else { gives_back };
        let mut c = on_devices(seed, 2);
        let fid = file(&mut c);
        let (mount, other, mdt) = (c.mounts[0], c.mounts[1], c.servers[MDT]);
        let posix = |kind, owner| lock(FlockFamily::Posix, kind, owner);
        let handles = run(&mut c, mount, async move |client| {
            let handles = (open(&client, fid).await?, open(&client, fid).await?);
            client.flock(handles.0, posix(FlockType::Write, 1), false).await?;
            Ok::<_, Failure>(handles)
        });
        let (first, second) = handles.expect("locked");
        c.world.run_for(2 * SEC);
        c.world.faults.slow_one_in = 0;
        let back = c.jobs.start(&mut c.world, mount, async move |client| {
            client.flock(first, posix(gives_back, 1), false).await
        });
        c.world.faults.noise.swap_one_in = 1;
        c.world.run_for(MS / 2);
        c.world.faults.noise = Default::default();
        let next = c.jobs.start(&mut c.world, mount, async move |client| {
            client.flock(second, posix(kind, 2), false).await
        });
        c.world.run_for(MS / 2);
        c.jobs.collect(&mut c.world);
        let is_overtaken = c.jobs.is_done(next) && !c.jobs.is_done(back);
        c.world.cut_between(mount, mdt);
        c.power_loss(MDT);
        c.world.start_later(mdt, 100 * MS);
        let [back, next] = [back, next].map(|job| {
            let got: Option<Result<FlockOutcome, Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
            got
        });
        if !is_overtaken || next != Some(Ok(FlockOutcome::Granted)) {
            continue;
        }
        overtaken += 1;
        assert_eq!(back, Some(Ok(FlockOutcome::Granted)), "seed {seed}\n{}", c.world.trace(80));
        let wrote = run(&mut c, mount, async move |client| write(&client, second, 0, vec![1]).await);
        assert_eq!(wrote, Ok(1), "seed {seed}: its mount was evicted\n{}", c.world.trace(80));
        let theirs = run(&mut c, other, async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, posix(FlockType::Write, 3), false).await
        });
        assert_eq!(theirs, Ok(FlockOutcome::Conflict), "seed {seed}\n{}", c.world.trace(80));
    }
    assert!(overtaken > 5, "the reply was overtaken {overtaken} times");
}

/// As flock(2) on one kernel: the conversion removes the shared lock first. A lock of fcntl(2) stays.
#[test]
fn a_conversion_that_fails_or_waits_gives_up_the_shared_lock_of_flock() {
    for seed in 1..=8 {
        let family = if seed % 2 == 0 { FlockFamily::Flock } else { FlockFamily::Posix };
        let mut c = on_devices(seed, 2);
        let fid = file(&mut c);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        // Seeds from 5 on: both holders use one mount, which may grant the locks itself because it keeps bytes.
        let other = if seed < 5 { second } else { first };
        if other == first {
            write_back(&mut c);
        }
        let share = |owner| {
            async move |client: Rc<Client>| {
                let handle = open(&client, fid).await?;
                let outcome = client.flock(handle, lock(family, FlockType::Read, owner), false).await?;
                Ok::<_, Failure>((handle, outcome))
            }
        };
        let (ours, outcome) = run(&mut c, first, share(1)).expect("shared");
        assert_eq!(outcome, FlockOutcome::Granted, "seed {seed}");
        let (theirs, outcome) = run(&mut c, other, share(2)).expect("shared");
        assert_eq!(outcome, FlockOutcome::Granted, "seed {seed}");
        let convert = |handle, owner, wait| {
            async move |client: Rc<Client>| {
                client.flock(handle, lock(family, FlockType::Write, owner), wait).await
            }
        };
        let refused = run(&mut c, first, convert(ours, 1, false));
        assert_eq!(refused, Ok(FlockOutcome::Conflict), "seed {seed}");
        let expected = match family {
            FlockFamily::Flock => FlockOutcome::Granted,
            FlockFamily::Posix => FlockOutcome::Conflict,
        };
        assert_eq!(run(&mut c, other, convert(theirs, 2, false)), Ok(expected), "seed {seed}");
        if family == FlockFamily::Posix {
            continue;
        }
        // Both have a shared lock again and wait for an exclusive one: one gets it, and the other after its end.
        let downgrade = async move |client: Rc<Client>| {
            client.flock(theirs, lock(family, FlockType::Read, 2), false).await
        };
        assert_eq!(run(&mut c, other, downgrade), Ok(FlockOutcome::Granted));
        let again =
            async move |client: Rc<Client>| client.flock(ours, lock(family, FlockType::Read, 1), false).await;
        assert_eq!(run(&mut c, first, again), Ok(FlockOutcome::Granted));
        let jobs = [(first, ours, 1), (other, theirs, 2)].map(|(mount, handle, owner)| {
            c.jobs.start(&mut c.world, mount, async move |client: Rc<Client>| {
                let outcome = client.flock(handle, lock(family, FlockType::Write, owner), true).await?;
                client.flock(handle, lock(family, FlockType::Unlock, owner), false).await?;
                Ok::<_, Failure>(outcome)
            })
        });
        for job in jobs {
            let outcome: Option<Result<FlockOutcome, Failure>> = c.jobs.wait(&mut c.world, job, 30 * SEC);
            assert_eq!(outcome, Some(Ok(FlockOutcome::Granted)), "seed {seed}\n{}", c.world.trace(60));
        }
    }
}

/// A process is killed in a write that a stopped OST keeps waiting, and with it goes its lock: the next holder finds what
/// it wrote.
#[test]
fn locks_are_dropped_after_writes_whose_callers_were_killed() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let fid = file(&mut c);
        let (mount, other, ost) = (c.mounts[0], c.mounts[1], c.servers[OST]);
        let posix = |owner| lock(FlockFamily::Posix, FlockType::Write, owner);
        let locked = run(&mut c, mount, async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, posix(1), false).await?;
            Ok::<_, Failure>(handle)
        });
        let handle = locked.expect("locked");
        let theirs = run(&mut c, other, async move |client| open(&client, fid).await).expect("opened");
        c.world.pause(ost, true);
        let _write = c
            .jobs
            .start(&mut c.world, mount, async move |client| write(&client, handle, 0, vec![1; 4]).await);
        c.world.run_for(SEC / 10);
        let _flush = c.jobs.start(&mut c.world, mount, async move |client| client.flush(handle, 1).await);
        c.world.run_for(SEC);
        let next =
            c.jobs.start(&mut c.world, other, async move |client| client.flock(theirs, posix(2), true).await);
        c.world.run_for(SEC);
        c.jobs.collect(&mut c.world);
        assert!(!c.jobs.is_done(next), "seed {seed}: locked before the write has ended");
        c.world.pause(ost, false);
        let got: Option<Result<FlockOutcome, Failure>> = c.jobs.wait(&mut c.world, next, 30 * SEC);
        assert_eq!(got, Some(Ok(FlockOutcome::Granted)), "seed {seed}");
        assert_eq!(read(&mut c, other, fid), Ok(vec![1; 4]), "seed {seed}");
    }
}

/// Kills of the MDT, losses of its machine and of connections, with pauses of up to `pause_ns` before each.
fn the_mdt_comes_and_goes(c: &mut Cluster, pause_ns: u64) {
    let mdt = c.servers[MDT];
    for _ in 0..8 {
        let pause = c.world.rng().below(pause_ns);
        c.world.run_for(pause);
        match c.world.rng().below(4) {
            0 => c.power_loss(MDT),
            1 => c.world.kill(mdt),
            2 => {
                c.world.cut_some_link(mdt);
                continue;
            }
            _ => continue,
        }
        c.world.start_later(mdt, 50_000_000);
        let settle = c.world.rng().below(1_500_000_000);
        c.world.run_for(settle);
    }
}

#[test]
fn never_do_two_hold_a_lock_while_the_mdt_and_its_machine_come_and_go() {
    for seed in 1..=30 {
        let mut c = on_devices(seed, 3);
        let fid = file(&mut c);
        let (inside, rounds) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut jobs = Vec::new();
        for (number, mount) in (1..).zip(c.mounts.clone()) {
            let (inside, rounds) = (inside.clone(), rounds.clone());
            let family = if seed % 2 == 0 { FlockFamily::Flock } else { FlockFamily::Posix };
            jobs.push(c.jobs.start(&mut c.world, mount, move |client: Rc<Client>| async move {
                let handle = open(&client, fid).await?;
                for _ in 0..25 {
                    let got = client.flock(handle, lock(family, FlockType::Write, number), true).await?;
                    assert_eq!(got, FlockOutcome::Granted);
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two hold the lock");
                    client.getattr(fid).await?;
                    inside.fetch_sub(1, Ordering::Relaxed);
                    rounds.fetch_add(1, Ordering::Relaxed);
                    client.flock(handle, lock(family, FlockType::Unlock, number), false).await?;
                }
                Ok::<_, Failure>(())
            }));
        }
        the_mdt_comes_and_goes(&mut c, 80_000_000);
        for job in jobs {
            let done: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, job, 120 * SEC);
            assert_eq!(done, Some(Ok(())), "seed {seed}: {rounds:?} rounds\n{}", c.world.trace(80));
        }
    }
}

/// A stopped MDT replies to nobody, so a call that ends meanwhile has sent no request that it needs.
#[test]
fn a_mount_that_alone_has_a_file_open_locks_it_without_a_request() {
    for family in [FlockFamily::Posix, FlockFamily::Flock] {
        let mut c = on_devices(7, 2);
        write_back(&mut c);
        let fid = file(&mut c);
        let (mount, other, mdt) = (c.mounts[0], c.mounts[1], c.servers[MDT]);
        let ask = |c: &mut Cluster, at: NodeId, handle: OpenHandle, kind: FlockType, owner: u64| {
            run(c, at, async move |client| client.flock(handle, lock(family, kind, owner), false).await)
        };
        let handle = run(&mut c, mount, async move |client| open(&client, fid).await).expect("open");
        c.world.run_for(SEC);
        c.world.pause(mdt, true);
        assert_eq!(ask(&mut c, mount, handle, FlockType::Read, 1), Ok(FlockOutcome::Granted));
        assert_eq!(ask(&mut c, mount, handle, FlockType::Read, 2), Ok(FlockOutcome::Granted));
        assert_eq!(ask(&mut c, mount, handle, FlockType::Write, 2), Ok(FlockOutcome::Conflict));
        assert_eq!(ask(&mut c, mount, handle, FlockType::Unlock, 1), Ok(FlockOutcome::Granted));
        assert_eq!(ask(&mut c, mount, handle, FlockType::Write, 2), Ok(FlockOutcome::Granted));
        let test = lock(family, FlockType::Read, 3);
        let found = run(&mut c, mount, async move |client| client.flock_test(fid, test).await);
        assert_eq!(found, Ok(Some(lock(family, FlockType::Write, 2))));
        c.world.pause(mdt, false);
        // Another mount that opens the file meets the lock.
        let there = run(&mut c, other, async move |client| open(&client, fid).await).expect("open");
        assert_eq!(ask(&mut c, other, there, FlockType::Read, 1), Ok(FlockOutcome::Conflict));
        let wait = c.jobs.start(&mut c.world, other, async move |client| {
            client.flock(there, lock(family, FlockType::Write, 1), true).await
        });
        c.world.run_for(SEC);
        assert!(!c.jobs.is_done(wait));
        // Its end is a request now, also as part of a close.
        run(&mut c, mount, async move |client| client.release(handle, Some(2)).await).expect("closed");
        let got: Option<Result<FlockOutcome, Failure>> = c.jobs.wait(&mut c.world, wait, SEC);
        assert_eq!(got, Some(Ok(FlockOutcome::Granted)), "{family:?}");
    }
}

/// The revoke reaches the mount together with the end of its lease, when it continues.
#[test]
fn a_mount_that_was_evicted_reports_none_of_its_former_locks() {
    for seed in 1..=12 {
        let mut c = on_devices(seed, 2);
        write_back(&mut c);
        let fid = file(&mut c);
        let (mount, other) = (c.mounts[0], c.mounts[1]);
        let family = if seed % 2 == 0 { FlockFamily::Flock } else { FlockFamily::Posix };
        let held = run(&mut c, mount, async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, lock(family, FlockType::Write, 1), false).await?;
            Ok::<_, Failure>(handle)
        });
        let held = held.expect("locked");
        c.world.pause(mount, true);
        let there = run(&mut c, other, async move |client| open(&client, fid).await).expect("open");
        let again = (seed % 3 == 0).then(|| {
            let again = lock(family, FlockType::Read, 1);
            c.jobs.start(&mut c.world, mount, async move |client| client.flock(held, again, false).await)
        });
        c.world.pause(mount, false);
        c.world.run_for(5 * SEC);
        if let Some(again) = again {
            let got: Option<Result<FlockOutcome, Failure>> = c.jobs.wait(&mut c.world, again, SEC);
            assert_eq!(got, Some(Err(Failure::EIO)), "seed {seed}");
        }
        run(&mut c, mount, async move |client| client.release(held, Some(1)).await).expect("closed");
        let got = run(&mut c, other, async move |client| {
            client.flock(there, lock(family, FlockType::Write, 1), false).await
        });
        assert_eq!(got, Ok(FlockOutcome::Granted), "seed {seed}");
    }
}

#[test]
fn a_restarted_mdt_knows_the_locks_before_another_mount_can_have_one() {
    for seed in 1..=6 {
        let mut c = on_devices(seed, 2);
        write_back(&mut c);
        let fid = file(&mut c);
        let (mount, other, mdt) = (c.mounts[0], c.mounts[1], c.servers[MDT]);
        let family = FlockFamily::Posix;
        let handle = run(&mut c, mount, async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, lock(family, FlockType::Write, 1), false).await?;
            Ok::<_, Failure>(handle)
        });
        let handle = handle.expect("locked");
        if seed % 2 == 0 {
            c.power_loss(MDT);
        } else {
            c.world.kill(mdt);
        }
        c.world.start_later(mdt, 100_000_000);
        let got = run(&mut c, other, async move |client| {
            let there = open(&client, fid).await?;
            client.flock(there, lock(family, FlockType::Write, 1), false).await
        });
        assert_eq!(got, Ok(FlockOutcome::Conflict), "seed {seed}");
        run(&mut c, mount, async move |client| client.release(handle, None).await).expect("closed");
    }
}

/// Nobody has the file open for writing any more, so that others open it without a revoke.
#[test]
fn a_lock_through_a_handle_for_reading_is_met_by_others_when_the_writer_is_closed() {
    for close_first in [false, true] {
        let mut c = on_devices(9, 2);
        write_back(&mut c);
        let fid = file(&mut c);
        let (mount, other) = (c.mounts[0], c.mounts[1]);
        let family = FlockFamily::Flock;
        let got = run(&mut c, mount, async move |client| {
            let writer = open(&client, fid).await?;
            let (_, reader) = client.open(fid, 0, caller()).await?;
            if close_first {
                client.release(writer, None).await?;
            }
            let got = client.flock(reader, lock(family, FlockType::Write, 1), false).await?;
            if !close_first {
                client.release(writer, None).await?;
            }
            Ok::<_, Failure>(got)
        });
        assert_eq!(got, Ok(FlockOutcome::Granted));
        c.world.run_for(SEC);
        let got = run(&mut c, other, async move |client| {
            let (_, reader) = client.open(fid, 0, caller()).await?;
            client.flock(reader, lock(family, FlockType::Write, 1), false).await
        });
        assert_eq!(got, Ok(FlockOutcome::Conflict));
    }
}

/// A mount that has the file open for reading only may still have WRITE_BACK, which others did not revoke.
#[test]
fn a_mount_without_a_writer_asks_the_mdt_for_the_locks_of_others() {
    let mut c = on_devices(10, 2);
    write_back(&mut c);
    let fid = file(&mut c);
    let (mount, other) = (c.mounts[0], c.mounts[1]);
    let family = FlockFamily::Flock;
    run(&mut c, mount, async move |client| {
        let writer = open(&client, fid).await?;
        client.open(fid, 0, caller()).await?;
        client.release(writer, None).await
    })
    .expect("open");
    c.world.run_for(SEC);
    let got = run(&mut c, other, async move |client| {
        let (_, reader) = client.open(fid, 0, caller()).await?;
        client.flock(reader, lock(family, FlockType::Write, 1), false).await
    });
    assert_eq!(got, Ok(FlockOutcome::Granted));
    let test = lock(family, FlockType::Read, 3);
    let found = run(&mut c, mount, async move |client| client.flock_test(fid, test).await);
    assert_eq!(found, Ok(Some(lock(family, FlockType::Write, 1))));
}

/// Processes of one mount that wait for each other do so at the MDT.
#[test]
fn a_process_waits_for_a_lock_of_its_own_mount_that_was_granted_without_a_request() {
    for family in [FlockFamily::Posix, FlockFamily::Flock] {
        let mut c = on_devices(8, 1);
        write_back(&mut c);
        let fid = file(&mut c);
        let mount = c.mounts[0];
        let held = run(&mut c, mount, async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, lock(family, FlockType::Write, 1), false).await?;
            Ok::<_, Failure>(handle)
        });
        let held = held.expect("locked");
        let wait = c.jobs.start(&mut c.world, mount, async move |client| {
            let handle = open(&client, fid).await?;
            client.flock(handle, lock(family, FlockType::Write, 2), true).await
        });
        c.world.run_for(SEC);
        assert!(!c.jobs.is_done(wait));
        let unlock = lock(family, FlockType::Unlock, 1);
        run(&mut c, mount, async move |client| client.flock(held, unlock, false).await).expect("unlocked");
        let got: Option<Result<FlockOutcome, Failure>> = c.jobs.wait(&mut c.world, wait, SEC);
        assert_eq!(got, Some(Ok(FlockOutcome::Granted)), "{family:?}");
        let again = lock(family, FlockType::Write, 1);
        let again = run(&mut c, mount, async move |client| client.flock(held, again, false).await);
        assert_eq!(again, Ok(FlockOutcome::Conflict), "{family:?}: the MDT has granted it to the other");
    }
}

/// Whoever is alone grants itself locks; others come and go, and so does the MDT.
#[test]
fn never_do_two_hold_a_lock_while_mounts_open_and_close_the_file() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 3);
        write_back(&mut c);
        let fid = file(&mut c);
        let (inside, rounds) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut jobs = Vec::new();
        let mounts = c.mounts.clone();
        for (number, mount) in (1..).zip([mounts[0], mounts[0], mounts[1], mounts[2]]) {
            let (inside, rounds) = (inside.clone(), rounds.clone());
            let family = if seed % 2 == 0 { FlockFamily::Flock } else { FlockFamily::Posix };
            let is_rare = mount != mounts[0];
            jobs.push(c.jobs.start(&mut c.world, mount, move |client: Rc<Client>| async move {
                for round in 0..12 {
                    let handle = open(&client, fid).await?;
                    for _ in 0..3 {
                        let got = client.flock(handle, lock(family, FlockType::Write, number), true).await?;
                        assert_eq!(got, FlockOutcome::Granted);
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two hold the lock");
                        client.statfs().await?;
                        inside.fetch_sub(1, Ordering::Relaxed);
                        rounds.fetch_add(1, Ordering::Relaxed);
                        if round % 2 == 0 {
                            client.flock(handle, lock(family, FlockType::Unlock, number), false).await?;
                        }
                    }
                    client.flush(handle, number).await?;
                    client.release(handle, Some(number)).await?;
                    if is_rare {
                        for _ in 0..100 {
                            client.statfs().await?;
                        }
                    }
                }
                Ok::<_, Failure>(())
            }));
        }
        the_mdt_comes_and_goes(&mut c, 400_000_000);
        for job in jobs {
            let done: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, job, 120 * SEC);
            assert_eq!(done, Some(Ok(())), "seed {seed}: {rounds:?} rounds\n{}", c.world.trace(80));
        }
    }
}
