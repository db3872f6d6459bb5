//! Loss of machines: what was acknowledged is there again, exactly once, and nobody waits for longer than a lease.

mod support;

use nacre_client::Client;
use nacre_node::Event;
use nacre_sim::cluster::Cluster;
use nacre_sim::{DieAt, NodeId};
use nacre_types::{Failure, Fid};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockType};
use std::collections::BTreeSet;
use support::{DIR, FILE, MDT, MS, OST, SEC, caller, create, make, on_devices as cluster, read, run, write};

/// For a program that waits for a name: it may be served from the memory of the mount, and without a request nothing
/// else would run.
async fn another_request(client: &Client) {
    client.statfs().await.expect("the MDT replies");
}

fn names(c: &mut Cluster, mount: NodeId) -> BTreeSet<String> {
    let page = run(c, mount, async |client| client.readdir(Fid::ROOT, 2, 1000, false).await);
    let entries = page.expect("the root is readable").entries;
    entries.into_iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect()
}
#[test]
fn acknowledged_changes_of_two_mounts_survive_the_loss_of_the_machine_of_the_mdt() {
    for seed in 1..=30 {
        let mut c = cluster(seed, 2);
        let mut jobs = Vec::new();
        for number in 0..2 {
            let mount = c.mounts[number];
            jobs.push(c.jobs.start(&mut c.world, mount, async move |client| {
                let mut expected = BTreeSet::new();
                let mut last = format!("m{number}.moved.0");
                make(&client, Fid::ROOT, &last, FILE).await?;
                for i in 1..40 {
                    let kept = format!("m{number}.kept.{i}");
                    make(&client, Fid::ROOT, &kept, if i % 2 == 0 { DIR } else { FILE }).await?;
                    expected.insert(kept);
                    let gone = format!("m{number}.gone.{i}");
                    make(&client, Fid::ROOT, &gone, DIR).await?;
                    client.unlink(Fid::ROOT, gone.as_bytes(), true, caller()).await?;
                    let next = format!("m{number}.moved.{i}");
                    client
                        .rename((Fid::ROOT, last.as_bytes()), (Fid::ROOT, next.as_bytes()), 0, caller())
                        .await?;
                    last = next;
                }
                expected.insert(last);
                Ok::<_, Failure>(expected)
            }));
        }
        let mut losses = 0;
        while losses < 3 {
            let pause = 5_000_000 + c.world.rng().below(60_000_000);
            c.world.run_for(pause);
            c.power_loss(MDT);
            losses += 1;
            let mdt = c.servers[MDT];
            c.world.start_later(mdt, 300_000_000);
            let settle = c.world.rng().below(1_500_000_000);
            c.world.run_for(settle);
        }
        let mut expected = BTreeSet::new();
        for job in jobs {
            let done: Option<Result<BTreeSet<String>, Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
            match done {
                Some(Ok(names)) => expected.extend(names),
                other => panic!("seed {seed}: {other:?} {:?}\n{}", c.world.fatal, c.world.trace(80)),
            }
        }
        let mount = c.mounts[0];
        let found = names(&mut c, mount);
        assert_eq!(found, expected, "seed {seed}\n{}", c.world.trace(80));
    }
}

#[test]
fn an_absent_client_ends_the_window_with_its_lease() {
    let mut c = cluster(3, 2);
    let (stays, leaves) = (c.mounts[0], c.mounts[1]);
    run(&mut c, leaves, async |client| make(&client, Fid::ROOT, "theirs", DIR).await).expect("made");
    run(&mut c, stays, async |client| make(&client, Fid::ROOT, "ours", DIR).await).expect("made");
    c.world.kill(leaves);
    c.power_loss(MDT);
    let mdt = c.servers[MDT];
    c.world.start(mdt);
    let start = c.world.now_ns();
    run(&mut c, stays, async |client| make(&client, Fid::ROOT, "after", DIR).await).expect("made");
    let took = c.world.now_ns() - start;
    assert!((9 * SEC..12 * SEC).contains(&took), "{took}");
    let found = names(&mut c, stays);
    assert!(found.contains("ours") && found.contains("after"), "{found:?}");
}

#[test]
fn acknowledged_data_survives_the_loss_of_the_machine_of_its_ost() {
    for seed in 1..=20 {
        let mut c = cluster(seed, 2);
        let writer = c.mounts[0];
        let fid = run(&mut c, writer, async |client| {
            let (fid, handle) = create(&client, "data").await?;
            for i in 0..50u64 {
                write(&client, handle, i * 3000, vec![i as u8; 3000]).await?;
            }
            Ok::<_, Failure>(fid)
        });
        let fid = fid.expect("written");
        let pause = c.world.rng().below(1_500_000_000);
        c.world.run_for(pause);
        c.power_loss(OST);
        let ost = c.servers[OST];
        c.world.start_later(ost, 100_000_000);
        let reader = c.mounts[1];
        let read = read(&mut c, reader, fid).expect("readable");
        let expected: Vec<u8> = (0..50u8).flat_map(|i| vec![i; 3000]).collect();
        let differs = read.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!((read.len(), differs), (expected.len(), None), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A makes X and never hears of it, B makes X/f and gets its reply, the machine dies: whether X/f is there.
fn dependent_change_survives(seed: u64, rule: bool) -> bool {
    let mut c = Cluster::on_devices(seed, 1, 2);
    c.ack_or_commit.set(rule);
    c.world.run_for(SEC);
    let (a, b) = (c.mounts[0], c.mounts[1]);
    for mount in [a, b] {
        run(&mut c, mount, async |client| {
            make(&client, Fid::ROOT, &format!("{:?}", client.new_cookie()), DIR).await
        })
        .ok();
    }
    support::without_cache(&mut c);
    let mdt = c.servers[MDT];
    c.world.block(mdt, a);
    let first = c.jobs.start(&mut c.world, a, async |client| make(&client, Fid::ROOT, "X", DIR).await);
    let acknowledged = run(&mut c, b, async |client| {
        let x = loop {
            if let Ok(entry) = client.lookup(Fid::ROOT, b"X").await {
                break entry.attr.fid;
            }
            another_request(&client).await;
        };
        make(&client, x, "f", DIR).await
    });
    acknowledged.expect("B gets its reply");
    c.power_loss(MDT);
    c.world.heal(mdt, a);
    c.world.start_later(mdt, 100_000_000);
    let made: Option<Result<Fid, Failure>> = c.jobs.wait(&mut c.world, first, 60 * SEC);
    let x = made.expect("A gets its reply in the end").expect("X is made");
    run(&mut c, b, async move |client| client.lookup(x, b"f").await.is_ok())
}

#[test]
fn a_change_that_builds_on_one_whose_reply_was_lost_survives() {
    for seed in 1..=20 {
        assert!(dependent_change_survives(seed, true), "seed {seed}");
    }
}

#[test]
fn without_acknowledge_or_commit_such_a_change_is_lost() {
    let lost = (1..=20).filter(|&seed| !dependent_change_survives(seed, false)).count();
    assert!(lost > 0, "the rule is for nothing");
}

/// The same where A's change was begun while A was the only client, and waited for cold rows while B came.
#[test]
fn a_change_that_began_before_the_other_client_came_is_not_built_upon_too_early() {
    for seed in 1..=6 {
        let mut c = cluster(seed, 2);
        let (a, b, mdt) = (c.mounts[0], c.mounts[1], c.servers[MDT]);
        let (x, deep) = run(&mut c, a, async |client| {
            let x = make(&client, Fid::ROOT, "X", DIR).await?;
            let mut deep = Fid::ROOT;
            for _ in 0..600 {
                deep = make(&client, deep, "d", DIR).await?;
            }
            // So much that the rows of these directories leave the log and the memory.
            for _ in 0..300 {
                client.setxattr(support::xattr(x, b"user.x", &[1; 60_000])).await?;
            }
            Ok::<_, Failure>((x, deep))
        })
        .expect("made");
        support::without_cache(&mut c);
        c.world.kill(b);
        c.world.run_for(15 * SEC);
        c.world.tell(mdt, Event::Stop);
        c.world.run_for(2 * SEC);
        c.world.kill(mdt);
        c.world.start(mdt);
        c.world.run_for(2 * SEC);
        c.world.block(mdt, a);
        // A walks up from the deepest directory, a cold row after the other.
        c.world.faults.io_us = (0, 20_000);
        let first = c.jobs.start(&mut c.world, a, async move |client| {
            client.rename((Fid::ROOT, b"X"), (deep, b"X"), 0, caller()).await
        });
        c.world.run_for(MS);
        c.world.start(b);
        let acknowledged = run(&mut c, b, async move |client| {
            client.ready().await.expect("it starts");
            let name = format!("llite.{}.dir_attr_cache", client.mount_name());
            client.set_param(&name, "0").expect("a mount has it");
            while client.lookup(deep, b"X").await.is_err() {
                another_request(&client).await;
            }
            make(&client, x, "f", DIR).await
        });
        acknowledged.expect("B gets its reply");
        c.power_loss(MDT);
        c.world.heal(mdt, a);
        c.world.start_later(mdt, 100_000_000);
        let moved: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, first, 60 * SEC);
        assert_eq!(moved, Some(Ok(())));
        let there = run(&mut c, b, async move |client| client.lookup(x, b"f").await.map(drop));
        assert_eq!(there, Ok(()), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A mount that slept longer than its lease finds its file lock with somebody else: its handle writes nothing more.
#[test]
fn a_mount_that_slept_beyond_its_lease_does_not_write_under_a_lock_it_has_lost() {
    for seed in 1..=10 {
        let mut c = cluster(seed, 2);
        let (sleeper, other) = (c.mounts[0], c.mounts[1]);
        let lock = |owner| FileLock {
            family: FlockFamily::Flock,
            kind: FlockType::Write,
            start: 0,
            end: u64::MAX,
            owner,
            pid: 1,
        };
        let (fid, mine) = run(&mut c, sleeper, async move |client| {
            let fid = make(&client, Fid::ROOT, "shared", FILE).await?;
            let (_, handle) = client.open(fid, 2, caller()).await?;
            client.flock(handle, lock(1), false).await?;
            write(&client, handle, 0, vec![1; 100]).await?;
            Ok::<_, Failure>((fid, handle))
        })
        .expect("locked and written");
        c.world.pause(sleeper, true);
        run(&mut c, other, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            client.flock(handle, lock(2), true).await?;
            write(&client, handle, 0, vec![2; 100]).await
        })
        .expect("the lock is free after a lease");
        c.world.pause(sleeper, false);
        let late = run(&mut c, sleeper, async move |client| write(&client, mine, 0, vec![3; 100]).await);
        let found = read(&mut c, other, fid).expect("readable");
        assert_eq!((late, found), (Err(Failure::EIO), vec![2; 100]), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// The first start after the loss dies in its first log write; the second must know of the loss all the same.
#[test]
fn a_start_that_dies_after_the_loss_of_the_machine_does_not_hide_the_loss() {
    for seed in 1..=20 {
        for at in [DieAt::BeforeLog, DieAt::InLog, DieAt::AfterLog] {
            let mut c = cluster(seed, 1);
            let (mount, mdt) = (c.mounts[0], c.servers[MDT]);
            c.world.run_for(3 * SEC);
            for name in ["a", "b", "c"] {
                run(&mut c, mount, async move |client| make(&client, Fid::ROOT, name, FILE).await)
                    .expect("made");
            }
            c.power_loss(MDT);
            c.world.kill_in_visit(mdt, at, SEC);
            c.world.start(mdt);
            c.world.run_for(3 * SEC);
            let expected = ["a", "b", "c"].map(String::from).into();
            assert_eq!(names(&mut c, mount), expected, "seed {seed}, {at:?}\n{}", c.world.trace(60));
        }
    }
}

/// The MDT is stopped for longer than a lease while it starts after the loss of its machine: its clients have waited in its
/// sockets, and what it had acknowledged to them comes back.
#[test]
fn a_recovery_that_begins_with_a_standstill_waits_for_its_clients() {
    for seed in 1..=2 {
        for at in (0..SEC / 50).step_by(1_000_000) {
            let mut c = cluster(seed, 1);
            let (mount, mdt) = (c.mounts[0], c.servers[MDT]);
            run(&mut c, mount, async |client| make(&client, Fid::ROOT, "x", DIR).await).expect("made");
            c.power_loss(MDT);
            c.world.start(mdt);
            c.world.run_for(at);
            c.world.pause(mdt, true);
            c.world.run_for(12 * SEC);
            c.world.pause(mdt, false);
            c.world.run_for(2 * SEC);
            let found = run(&mut c, mount, async |client| client.lookup(Fid::ROOT, b"x").await.map(drop));
            assert_eq!(found, Ok(()), "seed {seed}, stopped after {at} ns\n{}", c.world.trace(60));
        }
    }
}

/// The connection of a mount is lost in the middle of its replay, and the mount begins the replay anew. A change that was
/// replayed before is not made again: none of these could be, and the mount would be evicted.
#[test]
fn a_replay_that_begins_anew_makes_no_change_twice() {
    for seed in 1..=30 {
        let mut c = cluster(seed, 1);
        let (mount, mdt) = (c.mounts[0], c.servers[MDT]);
        c.world.run_for(3 * SEC);
        let made = run(&mut c, mount, async |client| {
            let mut expected = BTreeSet::new();
            for n in 0..20 {
                make(&client, Fid::ROOT, "new", FILE).await?;
                let name = format!("f{n}");
                client.rename((Fid::ROOT, b"new"), (Fid::ROOT, name.as_bytes()), 0, caller()).await?;
                expected.insert(name);
            }
            Ok::<_, Failure>(expected)
        });
        let expected = made.expect("made");
        c.power_loss(MDT);
        c.world.start(mdt);
        for _ in 0..4 {
            let pause = 15 * MS + c.world.rng().below(12 * MS);
            c.world.run_for(pause);
            c.world.cut_between(mount, mdt);
        }
        c.world.run_for(SEC);
        assert_eq!(names(&mut c, mount), expected, "seed {seed}\n{}", c.world.trace(60));
        let evictions = run(&mut c, mount, async |client| {
            let imports = client.params().into_iter().filter(|p| p.name.ends_with(".import"));
            imports.filter(|p| p.value.contains("evictions: ") && !p.value.contains("evictions: 0")).count()
        });
        assert_eq!(evictions, 0, "seed {seed}\n{}", c.world.trace(60));
    }
}

/// The offset of a client's clock is what the target's reply to connect says, however long the recovery lasts after it.
#[test]
fn a_recovery_does_not_set_the_clock_of_a_mount_back() {
    let mut c = cluster(1, 2);
    let (first, second, mdt) = (c.mounts[0], c.mounts[1], c.servers[MDT]);
    let made = run(&mut c, first, async |client| create(&client, "f").await);
    let (fid, handle) = made.expect("created");
    let stamp = |c: &mut Cluster| {
        let written = run(c, first, async move |client| {
            write(&client, handle, 0, vec![1; 10]).await?;
            client.getattr(fid).await.map(|entry| entry.attr.mtime.as_nanos())
        });
        written.expect("written") - i128::from(c.world.now_ns())
    };
    let before = stamp(&mut c);
    // The MDT waits for the client that does not return.
    c.world.kill(second);
    c.world.kill(mdt);
    c.world.run_for(SEC);
    c.world.start(mdt);
    c.world.run_for(30 * SEC);
    let error = stamp(&mut c) - before;
    assert!(error.abs() < 100 * i128::from(MS), "the clock is {error} ns off");
}
