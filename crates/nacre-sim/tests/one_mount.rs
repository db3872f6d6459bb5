//! Changes of one mount that build on each other: one whose reply was lost with its connection, one that was
//! acknowledged. The machine of the MDT dies; both are there in the end, and the mount is not evicted.

mod support;

use nacre_client::Client;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, SetAttr};
use std::rc::Rc;
use support::{DIR, FILE, MDT, MS, SEC, caller, make, on_devices, run};

/// What `first` does, while a rename of `held/a` to `free/b`, which was sent before it, waits for another mount's hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    Chmod,
    ChmodOfTheDirectory,
    Mkdir,
    Rmdir,
    MoveOfTheDirectory,
}

#[derive(Debug, Clone, Copy)]
struct Things {
    held: Fid,
    free: Fid,
    a: Fid,
}

async fn things(client: Rc<Client>, first: First) -> Result<Things, Failure> {
    let held = client.lookup(Fid::ROOT, b"held").await?.attr.fid;
    let free = make(&client, Fid::ROOT, "free", DIR).await?;
    let a = make(&client, held, "a", DIR).await?;
    if first == First::Rmdir {
        make(&client, free, "b", DIR).await?;
    }
    Ok(Things { held, free, a })
}

async fn change(client: Rc<Client>, first: First, t: Things) -> Result<(), Failure> {
    let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    match first {
        First::Chmod => client.setattr(t.a, mode, caller()).await.map(drop),
        First::ChmodOfTheDirectory => client.setattr(t.free, mode, caller()).await.map(drop),
        First::Mkdir => make(&client, t.free, "b", DIR).await.map(drop),
        First::Rmdir => client.unlink(t.free, b"b", true, caller()).await,
        First::MoveOfTheDirectory => {
            client.rename((Fid::ROOT, b"free"), (Fid::ROOT, b"moved"), 0, caller()).await
        }
    }
}

/// Whether the acknowledged rename survives the end of the machine, and its mount.
fn survives(seed: u64, rule: bool, first: First) -> bool {
    is_known(seed, rule, first, true)
}
/// Whether the mount finds what the two changes have left. The machine dies once the later one is acknowledged, or does not.
fn is_known(seed: u64, rule: bool, first: First, dies: bool) -> bool {
    let mut c = on_devices_with(seed, rule);
    let (mount, other, mdt) = (c.mounts[0], c.mounts[1], c.servers[MDT]);
    run(&mut c, mount, async |client| make(&client, Fid::ROOT, "held", DIR).await).expect("made");
    let t = run(&mut c, mount, async move |client| things(client, first).await).expect("made");
    c.world.run_for(3 * SEC);
    run(&mut c, other, async move |client| client.getattr(t.held).await)
        .expect("the other mount has a lock of the directory");

    // The order in which they are executed is what this is about.
    c.world.faults.slow_one_in = 0;
    c.world.block(mdt, other);
    let renamed = c.jobs.start(&mut c.world, mount, async move |client| {
        client.rename((t.held, b"a"), (t.free, b"b"), 0, caller()).await
    });
    // Soon enough that the rename keeps its slot while it waits.
    c.world.run_for(MS);
    c.world.block(mdt, mount);
    let changed = c.jobs.start(&mut c.world, mount, async move |client| change(client, first, t).await);
    c.world.run_for(MS);
    c.world.heal(mdt, other);
    c.world.run_for(40 * MS);
    c.jobs.collect(&mut c.world);
    assert!(!c.jobs.is_done(renamed) && !c.jobs.is_done(changed), "seed {seed}: nothing is acknowledged yet");
    c.world.cut_between(mount, mdt);
    c.world.heal(mdt, mount);

    // Both are sent again. The rename, which was executed last, is acknowledged first.
    let until = c.world.now_ns() + 20 * SEC;
    let (world, jobs) = (&mut c.world, &mut c.jobs);
    let acknowledged = world.run_until(until, |world| {
        jobs.collect(world);
        jobs.is_done(renamed)
    });
    assert!(acknowledged, "seed {seed}: the rename is acknowledged\n{}", c.world.trace(60));
    let renamed: Option<Result<(), Failure>> = c.jobs.take(renamed);
    assert_eq!(renamed, Some(Ok(())), "seed {seed}");
    if dies {
        c.power_loss(MDT);
        c.world.start_later(mdt, 100 * MS);
    }
    let changed: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, changed, 60 * SEC);
    let found = run(&mut c, mount, async move |client| client.lookup(t.free, b"b").await);
    changed == Some(Ok(())) && found.map(|entry| entry.attr.fid) == Ok(t.a)
}

fn on_devices_with(seed: u64, rule: bool) -> Cluster {
    let mut c = Cluster::on_devices(seed, 1, 2);
    c.ack_or_commit.set(rule);
    c.world.run_for(SEC);
    for mount in c.mounts.clone() {
        run(&mut c, mount, async |client| client.ready().await).expect("it starts");
    }
    c
}

const ALL: [First; 5] =
    [First::Chmod, First::ChmodOfTheDirectory, First::Mkdir, First::Rmdir, First::MoveOfTheDirectory];

#[test]
fn an_acknowledged_change_survives_that_builds_on_one_of_its_own_mount_whose_reply_was_lost() {
    for first in ALL {
        for seed in 1..=10 {
            assert!(survives(seed, true, first), "seed {seed}, {first:?}");
        }
    }
}

#[test]
fn the_names_that_two_changes_leave_are_known_although_the_later_one_is_acknowledged_first() {
    for first in ALL {
        for seed in 1..=10 {
            assert!(is_known(seed, true, first, false), "seed {seed}, {first:?}");
        }
    }
}

#[test]
fn without_the_rule_such_a_change_is_lost() {
    // A rename that replaces a directory of which the mount may have unreported opens waits for their report: the mount is
    // connected then, and has the reply to the mkdir.
    for first in ALL.into_iter().filter(|first| *first != First::Mkdir) {
        let lost = (1..=10).filter(|&seed| !survives(seed, false, first)).count();
        assert!(lost > 0, "{first:?}: the rule is for nothing");
    }
}

/// One program makes directories, changes and renames them; another of the same mount makes files in them as soon as it
/// sees them. Connections break and the machine of the MDT dies, at any time.
#[test]
fn two_programs_of_a_mount_lose_nothing_that_was_acknowledged() {
    for seed in 1..=30 {
        let mut c = on_devices(seed, 2);
        let (mount, mdt) = (c.mounts[0], c.servers[MDT]);
        let maker = c.jobs.start(&mut c.world, mount, async |client: Rc<Client>| {
            for i in 0..40 {
                let fid = make(&client, Fid::ROOT, &format!("d{i}"), DIR).await?;
                let mode = SetAttr { mode: Some(0o711), ..SetAttr::default() };
                client.setattr(fid, mode, caller()).await?;
                let (old, new) = (format!("d{i}"), format!("e{i}"));
                client.rename((Fid::ROOT, old.as_bytes()), (Fid::ROOT, new.as_bytes()), 0, caller()).await?;
            }
            Ok::<_, Failure>(())
        });
        let user = c.jobs.start(&mut c.world, mount, async |client: Rc<Client>| {
            let mut made = Vec::new();
            for i in 0..40 {
                let dir = loop {
                    let (old, new) = (format!("d{i}"), format!("e{i}"));
                    for name in [old, new] {
                        match client.lookup(Fid::ROOT, name.as_bytes()).await {
                            Ok(entry) => break_with(&mut made, entry.attr.fid),
                            Err(Failure::ENOENT) => {}
                            Err(e) => return Err(e),
                        }
                    }
                    if let Some((fid, 0)) = made.last_mut() {
                        break *fid;
                    }
                    // Names may be served from the memory of the mount: without a request nothing else would run.
                    client.statfs().await?;
                };
                for n in 0..5 {
                    make(&client, dir, &format!("f{n}"), FILE).await?;
                    made.last_mut().expect("the directory").1 += 1;
                }
            }
            Ok::<_, Failure>(made)
        });
        for _ in 0..12 {
            let pause = c.world.rng().below(40 * MS);
            c.world.run_for(pause);
            c.world.cut_between(mount, mdt);
            if c.world.rng().below(3) == 0 {
                let pause = c.world.rng().below(30 * MS);
                c.world.run_for(pause);
                c.power_loss(MDT);
                c.world.start_later(mdt, 50 * MS);
                c.world.run_for(500 * MS);
            }
        }
        let done: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, maker, 60 * SEC);
        assert_eq!(done, Some(Ok(())), "seed {seed}\n{}", c.world.trace(80));
        let made: Option<Result<Vec<(Fid, u32)>, Failure>> = c.jobs.wait(&mut c.world, user, 60 * SEC);
        let made = made.expect("it ends").unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for (dir, files) in made {
            let page = run(&mut c, mount, async move |client| client.readdir(dir, 2, 100, false).await);
            assert_eq!(page.map(|p| p.entries.len()), Ok(files as usize), "seed {seed}");
        }
    }
}

fn break_with(made: &mut Vec<(Fid, u32)>, fid: Fid) {
    if made.last().is_none_or(|(last, _)| *last != fid) {
        made.push((fid, 0));
    }
}
