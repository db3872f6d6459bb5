//! Locks of inodes: a mount that serves calls from its memory never shows what another mount's completed change has
//! replaced, whatever happens to connections, leases and the MDT.

mod support;

use nacre_client::Client;
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_sim::kernel::Kernel;
use nacre_types::{Failure, Fid, SetAttr};
use std::rc::Rc;
use support::{DIR, FILE, MDT, MS, SEC, caller, create, make, on_devices, run, write};

/// The lease, and what reading and evicting take beyond it.
const LEASE: u64 = 13 * SEC;
/// A mount that still reaches the MGS in the MDT's process is renewed by that until its callback is overdue, a lease later.
const TWO_LEASES: u64 = 10 * SEC + LEASE;

async fn nlink(client: &Client, dir: Fid) -> Result<u32, Failure> {
    client.getattr(dir).await.map(|entry| entry.attr.nlink)
}
/// Calls that were served from the memory of a mount.
fn cached(c: &mut Cluster, mount: NodeId) -> u64 {
    let hits = run(c, mount, async |client: Rc<Client>| {
        let is_hits = |name: &str| name.starts_with("ldlm.namespaces.") && name.ends_with(".hits");
        client.params().into_iter().find(|p| is_hits(&p.name)).expect("a mount has it").value
    });
    hits.parse().expect("a number")
}

/// Two mounts, and a directory of which the first has locks.
fn with_locks(seed: u64) -> (Cluster, [NodeId; 2], Fid) {
    let mut c = on_devices(seed, 2);
    let [first, second] = [c.mounts[0], c.mounts[1]];
    let made = run(&mut c, first, async |client| make(&client, Fid::ROOT, "d", DIR).await);
    let dir = made.expect("made");
    let before = cached(&mut c, first);
    let seen = run(&mut c, first, async move |client| {
        client.lookup(Fid::ROOT, b"d").await?;
        client.lookup(Fid::ROOT, b"d").await?;
        nlink(&client, dir).await
    });
    assert_eq!(seen, Ok(2), "seed {seed}");
    assert_eq!(
        cached(&mut c, first),
        before + 3,
        "seed {seed}: the name and the attributes are served from memory"
    );
    (c, [first, second], dir)
}

fn separate(c: &mut Cluster, mount: NodeId, apart: bool) {
    let mdt = c.servers[MDT];
    for (from, to) in [(mount, mdt), (mdt, mount)] {
        if apart { c.world.block(from, to) } else { c.world.heal(from, to) }
    }
}

/// The second mount makes a directory in `dir`; the first, which may be cut off, asks all the time. Gives how long that
/// took; a reply to a question that was asked afterwards must know of it.
fn changed_by_the_second(c: &mut Cluster, [first, second]: [NodeId; 2], dir: Fid, seed: u64) -> u64 {
    let began = c.world.now_ns();
    let change =
        c.jobs.start(&mut c.world, second, async move |client| make(&client, dir, "theirs", DIR).await);
    let mut ended = None;
    let mut asked = Vec::new();
    while c.world.now_ns() < began + TWO_LEASES + 2 * SEC {
        c.world.run_for(100 * MS);
        c.jobs.collect(&mut c.world);
        if ended.is_none() && c.jobs.is_done(change) {
            let made: Option<Result<Fid, Failure>> = c.jobs.take(change);
            made.expect("it is done").expect("made");
            ended = Some(c.world.now_ns());
        }
        let job = c.jobs.start(&mut c.world, first, async move |client| nlink(&client, dir).await);
        asked.push((job, c.world.now_ns()));
    }
    let ended = ended.unwrap_or_else(|| panic!("seed {seed}: the change never ends\n{}", c.world.trace(60)));
    separate(c, first, false);
    for (job, at) in asked {
        let got: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
        let got = got.unwrap_or_else(|| panic!("seed {seed}: a read never gets its reply"));
        let got = got.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(
            got == 3 || (got == 2 && at < ended),
            "seed {seed}: asked at {at}, changed at {ended}, got {got}"
        );
    }
    ended - began
}

#[test]
fn a_change_of_another_mount_is_seen_at_once() {
    for seed in 1..=8 {
        let (mut c, mounts, dir) = with_locks(seed);
        let took = changed_by_the_second(&mut c, mounts, dir, seed);
        assert!(took < SEC, "seed {seed}: nobody waits for a lease");
    }
}

#[test]
fn a_name_that_another_mount_takes_away_or_gives_to_another_is_seen_at_once() {
    for seed in 1..=8 {
        let (mut c, [first, second], dir) = with_locks(seed);
        let renamed = run(&mut c, second, async |client| {
            client.rename((Fid::ROOT, b"d"), (Fid::ROOT, b"e"), 0, caller()).await
        });
        assert_eq!(renamed, Ok(()), "seed {seed}");
        let looked = run(&mut c, first, async |client| {
            let fid = |found: Result<nacre_client::ResolvedInode, Failure>| found.map(|entry| entry.attr.fid);
            (fid(client.lookup(Fid::ROOT, b"d").await), fid(client.lookup(Fid::ROOT, b"e").await))
        });
        assert_eq!(looked, (Err(Failure::ENOENT), Ok(dir)), "seed {seed}");
        let removed =
            run(&mut c, second, async |client| client.unlink(Fid::ROOT, b"e", true, caller()).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        let looked = run(&mut c, first, async move |client| {
            (client.lookup(Fid::ROOT, b"e").await.map(drop), client.getattr(dir).await.map(drop))
        });
        assert_eq!(looked, (Err(Failure::ENOENT), Err(Failure::ESTALE)), "seed {seed}");
    }
}

/// Its own change ends nothing: the reply brings the attributes.
#[test]
fn own_changes_keep_the_locks() {
    for seed in 1..=4 {
        let (mut c, [first, _], dir) = with_locks(seed);
        let before = cached(&mut c, first);
        let seen = run(&mut c, first, async move |client| {
            make(&client, dir, "sub", DIR).await?;
            let one = nlink(&client, dir).await?;
            client.unlink(dir, b"sub", true, caller()).await?;
            let none = nlink(&client, dir).await?;
            client.rename((Fid::ROOT, b"d"), (Fid::ROOT, b"e"), 0, caller()).await?;
            let gone = client.lookup(Fid::ROOT, b"d").await.map(drop);
            let there = client.lookup(Fid::ROOT, b"e").await.map(|e| e.attr.fid);
            Ok::<_, Failure>((one, none, gone, there))
        });
        assert_eq!(seen, Ok((3, 2, Err(Failure::ENOENT), Ok(dir))), "seed {seed}");
        assert_eq!(cached(&mut c, first), before + 3, "seed {seed}");
    }
}

#[test]
fn a_mount_that_is_cut_off_holds_up_others_for_a_lease_and_is_silent_before() {
    for seed in 1..=80 {
        let (mut c, [first, second], dir) = with_locks(seed);
        // The mount pings the MDT once more after the starts of all targets: from then on a ping of the MGS in the same
        // process renews the lease at the MDT, too.
        c.world.run_for(7 * SEC);
        separate(&mut c, first, true);
        let took = changed_by_the_second(&mut c, [first, second], dir, seed);
        assert!((3 * SEC..TWO_LEASES).contains(&took), "seed {seed}: {took} ns");
    }
}

#[test]
fn an_mdt_that_has_forgotten_its_locks_waits_for_those_who_may_rely_on_them() {
    for seed in 1..=16 {
        let (mut c, [first, second], dir) = with_locks(seed);
        separate(&mut c, first, true);
        let mdt = c.servers[MDT];
        // After a kill, recovery waits for the clients as well.
        if seed % 2 == 0 {
            c.world.tell(mdt, nacre_node::Event::Stop);
            let until = c.world.now_ns() + 20 * SEC;
            assert!(c.world.run_until(until, |world| !world.take_stopped().is_empty()), "seed {seed}");
        }
        c.world.kill(mdt);
        c.world.start(mdt);
        let took = changed_by_the_second(&mut c, [first, second], dir, seed);
        assert!(took < LEASE, "seed {seed}: {took} ns");
    }
}

#[test]
fn after_a_restart_nobody_waits_when_everybody_is_there() {
    for seed in 1..=4 {
        let (mut c, mounts, dir) = with_locks(seed);
        let mdt = c.servers[MDT];
        c.world.kill(mdt);
        c.world.start(mdt);
        let took = changed_by_the_second(&mut c, mounts, dir, seed);
        assert!(took < 3 * SEC, "seed {seed}: {took} ns");
    }
}

/// Locks survive a connection, and so do revokes that were on their way.
#[test]
fn what_was_cached_before_new_connections_is_still_true() {
    for seed in 1..=8 {
        let (mut c, [first, second], dir) = with_locks(seed);
        let other = run(&mut c, first, async |client| {
            let other = make(&client, Fid::ROOT, "other", DIR).await?;
            nlink(&client, other).await.map(|_| other)
        });
        let other = other.expect("made");
        for _ in 0..12 {
            c.world.cut_some_link(first);
            c.world.run_for(300 * MS);
        }
        assert_eq!(run(&mut c, first, async move |client| nlink(&client, other).await), Ok(2), "seed {seed}");
        let made = run(&mut c, second, async move |client| make(&client, dir, "x", DIR).await);
        assert!(made.is_ok(), "seed {seed}");
        assert_eq!(run(&mut c, first, async move |client| nlink(&client, dir).await), Ok(3), "seed {seed}");
    }
}

/// A revoke that was on its way when the connection broke comes again on the next one, and does not keep later grants out.
#[test]
fn a_revoke_that_was_lost_with_its_connection_ends_nothing_that_is_granted_later() {
    for seed in 1..=8 {
        let (mut c, [first, second], dir) = with_locks(seed);
        let mdt = c.servers[MDT];
        c.world.block(mdt, first);
        let change =
            c.jobs.start(&mut c.world, second, async move |client| make(&client, dir, "x", DIR).await);
        c.world.run_for(300 * MS);
        for _ in 0..12 {
            c.world.cut_some_link(first);
        }
        c.world.heal(mdt, first);
        let made: Option<Result<Fid, Failure>> = c.jobs.wait(&mut c.world, change, 60 * SEC);
        assert!(made.is_some_and(|made| made.is_ok()), "seed {seed}");
        c.world.run_for(2 * SEC);
        assert_eq!(run(&mut c, first, async move |client| nlink(&client, dir).await), Ok(3), "seed {seed}");
        let before = cached(&mut c, first);
        assert_eq!(run(&mut c, first, async move |client| nlink(&client, dir).await), Ok(3), "seed {seed}");
        assert_eq!(cached(&mut c, first), before + 1, "seed {seed}: it is held again");
    }
}

/// It does not know yet that its lease is over and its connection gone.
#[test]
fn a_mount_that_stood_still_for_longer_than_its_lease_asks() {
    for seed in 1..=8 {
        let (mut c, [first, second], dir) = with_locks(seed);
        c.world.pause(first, true);
        let made = run(&mut c, second, async move |client| make(&client, dir, "x", DIR).await);
        assert!(made.is_ok(), "seed {seed}");
        let asked = c.jobs.start(&mut c.world, first, async move |client| nlink(&client, dir).await);
        c.world.pause(first, false);
        let got: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, asked, 60 * SEC);
        assert_eq!(got, Some(Ok(3)), "seed {seed}");
    }
}

/// Reads and changes of one mount side by side, with replies that overtake each other: what is kept in the end is the
/// latest.
#[test]
fn a_reply_from_before_a_change_does_not_replace_what_the_change_has_brought() {
    for seed in 1..=150 {
        let mut c = on_devices(seed, 1);
        let first = c.mounts[0];
        let dir = run(&mut c, first, async |client| make(&client, Fid::ROOT, "d", DIR).await).expect("made");
        c.world.faults.noise.swap_one_in = 3;
        let mut reads = Vec::new();
        let mut change = None;
        for step in 0..8 {
            reads.push(c.jobs.start(&mut c.world, first, async move |client| nlink(&client, dir).await));
            if step == 4 {
                let make = async move |client: Rc<Client>| make(&client, dir, "x", DIR).await;
                change = Some(c.jobs.start(&mut c.world, first, make));
            }
            c.world.run_for(seed * 2_000);
        }
        let made: Option<Result<Fid, Failure>> = c.jobs.wait(&mut c.world, change.expect("step 4"), 60 * SEC);
        assert!(made.is_some_and(|made| made.is_ok()), "seed {seed}");
        for read in reads {
            let _: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, read, 60 * SEC);
        }
        c.world.faults.noise = Default::default();
        let got = run(&mut c, first, async move |client| nlink(&client, dir).await);
        assert_eq!(got, Ok(3), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// The first mount's change is made and its reply does not come; the second has seen what it did.
#[test]
fn what_others_have_seen_of_a_pending_change_is_not_denied() {
    for seed in 1..=8 {
        let (mut c, [first, second], dir) = with_locks(seed);
        let mdt = c.servers[MDT];
        c.world.block(mdt, first);
        let own = c.jobs.start(&mut c.world, first, async move |client| make(&client, dir, "own", DIR).await);
        c.world.run_for(300 * MS);
        assert_eq!(run(&mut c, second, async move |client| nlink(&client, dir).await), Ok(3), "seed {seed}");
        let asked = c.jobs.start(&mut c.world, first, async move |client| nlink(&client, dir).await);
        c.world.run_for(SEC);
        c.world.heal(mdt, first);
        let got: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, asked, 60 * SEC);
        assert_eq!(got, Some(Ok(3)), "seed {seed}\n{}", c.world.trace(60));
        let own: Option<Result<Fid, Failure>> = c.jobs.wait(&mut c.world, own, 60 * SEC);
        assert!(own.is_some_and(|made| made.is_ok()), "seed {seed}");
    }
}

/// A grant and a revoke on their way at the same time, on a network that doubles frames and swaps them.
#[test]
fn a_grant_that_a_revoke_has_overtaken_is_not_taken() {
    for seed in 1..=150 {
        let mut c = on_devices(seed, 2);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let dir = run(&mut c, first, async |client| make(&client, Fid::ROOT, "d", DIR).await).expect("made");
        c.world.faults.noise.swap_one_in = 4;
        c.world.faults.noise.double_one_in = 8;
        let look = c.jobs.start(&mut c.world, first, async move |client| nlink(&client, dir).await);
        c.world.run_for(seed * 5_000);
        let change =
            c.jobs.start(&mut c.world, second, async move |client| make(&client, dir, "x", DIR).await);
        let made: Option<Result<Fid, Failure>> = c.jobs.wait(&mut c.world, change, 60 * SEC);
        assert!(made.is_some_and(|made| made.is_ok()), "seed {seed}");
        c.world.faults.noise = Default::default();
        let _: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, look, 60 * SEC);
        let got = run(&mut c, first, async move |client| nlink(&client, dir).await);
        assert_eq!(got, Ok(3), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A rename between two directories, each cached by another mount. While the acknowledgement of the one is under way the
/// other mount asks for its own again.
#[test]
fn two_directories_that_two_others_hold_are_free_at_one_time() {
    for seed in 1..=10 {
        let mut c = on_devices(seed, 3);
        let [first, second, third] = [c.mounts[0], c.mounts[1], c.mounts[2]];
        let dirs = run(&mut c, first, async |client| {
            let [p, q] =
                [make(&client, Fid::ROOT, "p", DIR).await?, make(&client, Fid::ROOT, "q", DIR).await?];
            make(&client, p, "x", FILE).await.map(|_| [p, q])
        });
        let [mut p, mut q] = dirs.expect("made");
        for _ in 0..4 {
            c.world.run_for(2 * SEC);
            for (mount, dir) in [(second, p), (third, q)] {
                let got = run(&mut c, mount, async move |client| nlink(&client, dir).await);
                assert_eq!(got, Ok(2), "seed {seed}");
            }
            separate(&mut c, third, true);
            let change = c.jobs.start(&mut c.world, first, async move |client| {
                client.rename((p, b"x"), (q, b"x"), 0, caller()).await
            });
            for i in 0..200 {
                c.world.run_for(10 * MS);
                if i == 30 {
                    separate(&mut c, third, false);
                }
                let asked = c.jobs.start(&mut c.world, second, async move |client| nlink(&client, p).await);
                c.world.run_for(MS);
                c.jobs.collect(&mut c.world);
                let _: Option<Result<u32, Failure>> = c.jobs.take(asked);
            }
            assert!(c.jobs.is_done(change), "seed {seed}: waits for ever\n{}", c.world.trace(60));
            let moved: Option<Result<(), Failure>> = c.jobs.take(change);
            assert_eq!(moved, Some(Ok(())), "seed {seed}");
            (p, q) = (q, p);
        }
    }
}

/// More changes than there are slots wait for a mount that stands still; the others of their mount go on.
#[test]
fn a_mount_that_stands_still_delays_only_what_conflicts_with_it() {
    for seed in 1..=10 {
        let (mut c, [first, second], dir) = with_locks(seed);
        let other =
            run(&mut c, second, async |client| make(&client, Fid::ROOT, "other", DIR).await).expect("made");
        c.world.pause(first, true);
        let waiting: Vec<_> = (0..20)
            .map(|n| {
                let change = async move |client: Rc<Client>| {
                    make(&client, dir, &format!("f{n}"), FILE).await.map(drop)
                };
                c.jobs.start(&mut c.world, second, change)
            })
            .collect();
        c.world.run_for(SEC);
        for n in 0..20 {
            let change =
                async move |client: Rc<Client>| make(&client, other, &format!("f{n}"), FILE).await.map(drop);
            let made = c.jobs.start(&mut c.world, second, change);
            let made: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, made, SEC / 2);
            assert_eq!(made, Some(Ok(())), "seed {seed}: change {n} beside it\n{}", c.world.trace(60));
        }
        assert!(waiting.iter().all(|change| !c.jobs.is_done(*change)), "seed {seed}: the lease is not over");
        c.world.run_for(TWO_LEASES);
        for change in waiting {
            let made: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, change, SEC);
            assert_eq!(made, Some(Ok(())), "seed {seed}");
        }
    }
}

/// More directories than may be locked: the oldest go, and everything is as before.
#[test]
fn locks_are_bounded() {
    let (mut c, [first, second], _) = with_locks(1);
    c.set_param(MDT, "mdt.*.inode_locks_max", "1024");
    let seen = run(&mut c, first, async |client| {
        for i in 0..1100 {
            make(&client, Fid::ROOT, &format!("n{i}"), DIR).await?;
        }
        for _ in 0..2 {
            for i in 0..1100 {
                client.lookup(Fid::ROOT, format!("n{i}").as_bytes()).await?;
            }
        }
        Ok::<_, Failure>(())
    });
    assert_eq!(seen, Ok(()));
    let held = c.params(|name| name.ends_with(".inode_locks"));
    let held: u64 = held.iter().map(|(_, _, n)| n.parse::<u64>().expect("a number")).sum();
    assert!((900..=1024).contains(&held), "{held}");
    let made = run(&mut c, second, async |client| {
        let dir = client.lookup(Fid::ROOT, b"n0").await?.attr.fid;
        make(&client, dir, "f", FILE).await
    });
    assert!(made.is_ok());
}

fn revokes(c: &mut Cluster) -> u64 {
    let sent = c.params(|name| name.ends_with(".inode_lock_revokes"));
    sent.iter().map(|(_, _, n)| n.parse::<u64>().expect("a number")).sum()
}

/// Walks through a tree of more directories than may be held, again and again: that takes no hold away, until they have
/// stood for a while.
#[test]
fn who_walks_through_a_large_tree_ends_few_locks() {
    let (mut c, [first, _], _) = with_locks(1);
    c.set_param(MDT, "mdt.*.inode_locks_max", "16");
    let walk = async |client: Rc<Client>| {
        for i in 0..100 {
            client.lookup(Fid::ROOT, format!("n{i}").as_bytes()).await?;
        }
        Ok::<_, Failure>(())
    };
    let made = run(&mut c, first, async |client| {
        for i in 0..100 {
            make(&client, Fid::ROOT, &format!("n{i}"), DIR).await?;
        }
        Ok::<_, Failure>(())
    });
    assert_eq!(made, Ok(()));
    let before = (revokes(&mut c), cached(&mut c, first));
    for _ in 0..4 {
        assert_eq!(run(&mut c, first, walk), Ok(()));
    }
    assert_eq!(revokes(&mut c), before.0, "nothing is taken away from who may hold it");
    let held = cached(&mut c, first) - before.1;
    assert!(held >= 3 * 12, "{held} of 300 lookups served from memory, with 16 locks");
    // Others get their turn.
    c.world.run_for(31 * SEC);
    let before = cached(&mut c, first);
    for _ in 0..3 {
        let seen = run(&mut c, first, async |client| client.lookup(Fid::ROOT, b"n99").await.map(drop));
        assert_eq!(seen, Ok(()));
        c.world.run_for(100 * MS);
    }
    assert!(cached(&mut c, first) > before, "it is locked after all");
    for _ in 0..4 {
        assert_eq!(run(&mut c, first, walk), Ok(()));
    }
    assert!((1..=17).contains(&revokes(&mut c)), "{} revokes", revokes(&mut c));
}

/// A mount of the MDT's own process hears at once that the MDT was started again, and nobody waits for its lease.
#[test]
fn without_a_connection_nothing_is_served_from_memory() {
    for seed in 1..=4 {
        let (mut c, [first, _], dir) = with_locks(seed);
        let mdt = c.servers[MDT];
        c.world.kill(mdt);
        c.world.run_for(50 * MS); // so long until the mount hears of it
        let mut asked = Vec::new();
        for _ in 0..30 {
            asked.push(c.jobs.start(&mut c.world, first, async move |client| nlink(&client, dir).await));
            c.world.run_for(MS);
        }
        c.jobs.collect(&mut c.world);
        for (ms, &job) in asked.iter().enumerate() {
            assert!(!c.jobs.is_done(job), "seed {seed}, asked {} ms after the end", ms + 50);
        }
        c.world.start(mdt);
        for job in asked {
            let got: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
            assert_eq!(got, Some(Ok(2)), "seed {seed}");
        }
    }
}

#[test]
fn an_open_of_a_directory_by_another_ends_no_lock() {
    for seed in 1..=4 {
        let (mut c, [first, second], dir) = with_locks(seed);
        let (before, sent) = (cached(&mut c, first), revokes(&mut c));
        let listed = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(dir, 0, caller()).await?;
            let page = client.readdir(dir, 0, 100, false).await?;
            client.release(handle, None).await.map(|()| page.entries.len())
        });
        assert_eq!(listed, Ok(2), "seed {seed}");
        assert_eq!(run(&mut c, first, async move |client| nlink(&client, dir).await), Ok(2), "seed {seed}");
        assert_eq!((cached(&mut c, first), revokes(&mut c)), (before + 1, sent), "seed {seed}");
    }
}

/// Lookups on a cold store, and directories that are removed under them: no hold of one that is gone is left.
#[test]
fn of_a_directory_that_vanishes_under_a_lookup_no_lock_is_left() {
    for seed in 1..=30 {
        let mut c = on_devices(seed, 2);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let made = run(&mut c, first, async |client| {
            for i in 0..20 {
                make(&client, Fid::ROOT, &format!("n{i}"), DIR).await?;
            }
            Ok::<_, Failure>(())
        });
        assert_eq!(made, Ok(()), "seed {seed}");
        let mdt = c.servers[MDT];
        c.world.tell(mdt, nacre_node::Event::Stop);
        let until = c.world.now_ns() + 20 * SEC;
        assert!(c.world.run_until(until, |world| !world.take_stopped().is_empty()), "seed {seed}");
        c.world.kill(mdt);
        c.world.start(mdt);
        c.world.run_for(2 * SEC);
        let mut jobs = Vec::new();
        for i in 0..20 {
            jobs.push(c.jobs.start(&mut c.world, second, async move |client| {
                client.unlink(Fid::ROOT, format!("n{i}").as_bytes(), true, caller()).await
            }));
            let pause = c.world.rng().below(MS);
            c.world.run_for(pause);
            c.jobs.start(&mut c.world, first, async move |client| {
                client.lookup(Fid::ROOT, format!("n{i}").as_bytes()).await.map(drop)
            });
        }
        for job in jobs {
            let done: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
            assert_eq!(done, Some(Ok(())), "seed {seed}");
        }
        c.world.run_for(2 * SEC);
        run(&mut c, second, async |client| make(&client, Fid::ROOT, "last", DIR).await).expect("made");
        let held = c.params(|name| name.ends_with(".inode_locks"));
        assert_eq!(
            held[0].2, "2",
            "seed {seed}: of the last directory, and of the root by the one who has made it"
        );
    }
}

/// A mount holds `d` and is cut off; another wants to make `d/theirs`, and at that time loses its connection or dies. A
/// third looks.
fn while_a_change_waits(seed: u64, what: impl FnOnce(&mut Cluster, NodeId)) -> (Cluster, NodeId, Fid) {
    let mut c = on_devices(seed, 3);
    let [first, second, third] = [c.mounts[0], c.mounts[1], c.mounts[2]];
    let dir = run(&mut c, first, async |client| make(&client, Fid::ROOT, "d", DIR).await).expect("made");
    run(&mut c, first, async move |client| nlink(&client, dir).await).expect("it is held");
    run(&mut c, second, async |client| client.getattr(Fid::ROOT).await.map(drop)).expect("it lives");
    separate(&mut c, first, true);
    c.world.run_for(5 * SEC);
    c.jobs.start(&mut c.world, second, async move |client| {
        make(&client, dir, "theirs", DIR).await.expect("made at the first go");
    });
    c.world.run_for(100 * MS);
    assert_eq!(
        run(&mut c, third, async move |client| nlink(&client, dir).await),
        Ok(2),
        "seed {seed}: it waits"
    );
    what(&mut c, second);
    (c, third, dir)
}

#[test]
fn what_a_dead_mount_waited_to_change_is_not_changed_when_its_turn_comes() {
    for seed in 1..=8 {
        let (mut c, third, dir) = while_a_change_waits(seed, |c, second| c.world.kill(second));
        // Between the ends of the first one's lease and of the second's, and after both.
        for after in [7 * SEC, 10 * SEC] {
            c.world.run_for(after);
            let seen = run(&mut c, third, async move |client| nlink(&client, dir).await);
            assert_eq!(seen, Ok(2), "seed {seed}: a change of a mount that died seconds ago");
        }
    }
}

#[test]
fn what_a_mount_waited_to_change_as_its_connection_broke_is_changed_once() {
    for seed in 1..=8 {
        let (mut c, third, dir) = while_a_change_waits(seed, |c, second| {
            separate(c, second, true);
            c.world.cut_between(second, c.servers[MDT]);
            c.world.run_for(6 * SEC);
            separate(c, second, false);
        });
        // The first one's lease goes on where the MDT has an OST for a neighbour, until its acknowledgement is overdue.
        c.world.run_for(20 * SEC);
        let seen = run(&mut c, third, async move |client| nlink(&client, dir).await);
        assert_eq!(seen, Ok(3), "seed {seed}");
    }
}

/// What a bit has protected is not used again when the same bit is granted anew, here with a lookup of another name.
#[test]
fn what_another_mount_has_changed_is_not_revived_by_a_later_grant() {
    for seed in 1..=8 {
        let (mut c, [first, second], dir) = with_locks(seed);
        let missing = async move |client: Rc<Client>, name: &'static [u8]| {
            client.lookup(dir, name).await.map(drop) == Err(Failure::ENOENT)
        };
        let before = run(&mut c, first, async move |client| {
            make(&client, dir, "mine", FILE).await.expect("made");
            (missing(client.clone(), b"theirs").await, nlink(&client, dir).await)
        });
        assert_eq!(before, (true, Ok(2)), "seed {seed}");
        let made = run(&mut c, second, async move |client| make(&client, dir, "theirs", DIR).await);
        assert!(made.is_ok(), "seed {seed}");
        c.world.run_for(3 * SEC);
        for name in [&b"other"[..], b"another"] {
            assert!(run(&mut c, first, async move |client| missing(client, name).await), "seed {seed}");
        }
        let after = run(&mut c, first, async move |client| {
            (missing(client.clone(), b"theirs").await, nlink(&client, dir).await)
        });
        assert_eq!(after, (false, Ok(3)), "seed {seed}");
    }
}

/// A listing, a walk and a failing lookup again cost no request.
#[test]
fn what_was_asked_once_costs_no_request_again() {
    let (mut c, [first, second], dir) = with_locks(1);
    let made = run(&mut c, second, async move |client| {
        for i in 0..300 {
            make(&client, dir, &format!("f{i}"), FILE).await?;
        }
        Ok::<_, Failure>(())
    });
    assert_eq!(made, Ok(()));
    c.world.run_for(3 * SEC);
    let walk = async move |client: Rc<Client>| {
        let (mut cookie, mut names) = (0, 0);
        loop {
            let page = client.readdir(dir, cookie, 50, true).await?;
            for listed in &page.entries {
                names += 1;
                cookie = listed.cookie;
            }
            if page.eof {
                break;
            }
        }
        for i in 0..300 {
            client.lookup(dir, format!("f{i}").as_bytes()).await?;
        }
        let missing = client.lookup(dir, b"nothing").await.map(drop);
        Ok::<_, Failure>((names, missing))
    };
    let requests = |c: &mut Cluster| {
        let text = run(c, first, async |client: Rc<Client>| {
            let is_it = |name: &str| name.starts_with("mdc.") && name.ends_with(".stats");
            client.params().into_iter().find(|p| is_it(&p.name)).expect("a mount has it").value
        });
        let questions = text.lines().filter(|line| {
            ["mds_lookup", "mds_getattr", "mds_readpage", "mds_fid_links"]
                .iter()
                .any(|name| line.starts_with(name))
        });
        let counts = questions.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        counts.sum::<u64>()
    };
    let before = requests(&mut c);
    assert_eq!(run(&mut c, first, walk), Ok((302, Err(Failure::ENOENT))));
    let cold = requests(&mut c) - before;
    assert!(cold <= 5, "{cold} requests for a listing of 300 files with their attributes");
    assert_eq!(run(&mut c, first, walk), Ok((302, Err(Failure::ENOENT))));
    assert_eq!(requests(&mut c) - before, cold, "the second walk is served from memory");
}

/// That there are no extended attributes is known from the attributes. The clock of the mount that has made the file is
/// ahead, so its times stand still when another sets the first one, or removes the last.
#[test]
fn the_first_extended_attribute_of_another_mount_is_seen_at_once() {
    for seed in 1..=8 {
        let (mut c, [first, second], dir) = with_locks(seed);
        c.world.set_wall(first, 1_000 * SEC as i64);
        let made = run(&mut c, first, async move |client| make(&client, dir, "f", FILE).await);
        let file = made.expect("made");
        let value = |c: &mut Cluster| {
            run(c, first, async move |client: Rc<Client>| {
                client.getattr(file).await?;
                client.getxattr(file, b"user.a").await
            })
        };
        drop(value(&mut c)); // its locks come with this reply, if the create did not bring them
        let before = cached(&mut c, first);
        assert_eq!(value(&mut c), Err(Failure::ENODATA), "seed {seed}");
        assert_eq!(cached(&mut c, first), before + 2, "seed {seed}: both are served from memory");
        let set = run(&mut c, second, async move |client| {
            client.setxattr(support::xattr(file, b"user.a", b"value")).await
        });
        assert_eq!((set, value(&mut c)), (Ok(()), Ok("value".into())), "seed {seed}");
        let removed = run(&mut c, second, async move |client| client.removexattr(file, b"user.a").await);
        assert_eq!((removed, value(&mut c)), (Ok(()), Err(Failure::ENODATA)), "seed {seed}");
    }
}

/// The clock of the mount that has made the directory is ahead, so a rename by another leaves the times as they are.
#[test]
fn a_name_is_seen_at_once_although_the_times_of_its_directory_stand_still() {
    for seed in 1..=8 {
        let (mut c, [first, second], dir) = with_locks(seed);
        c.world.set_wall(first, 1_000 * SEC as i64);
        let cached = run(&mut c, first, async move |client| {
            make(&client, dir, "f", FILE).await?;
            Ok((client.lookup(dir, b"f").await.map(drop), client.lookup(dir, b"g").await.map(drop)))
        });
        assert_eq!(cached, Ok::<_, Failure>((Ok(()), Err(Failure::ENOENT))), "seed {seed}");
        let renamed = run(&mut c, second, async move |client| {
            client.rename((dir, b"f"), (dir, b"g"), 0, caller()).await
        });
        assert_eq!(renamed, Ok(()), "seed {seed}");
        let seen = run(&mut c, first, async move |client| {
            (client.lookup(dir, b"f").await.map(drop), client.lookup(dir, b"g").await.map(drop))
        });
        assert_eq!(seen, (Err(Failure::ENOENT), Ok(())), "seed {seed}");
    }
}

/// Several mounts have opened the file for writing since its size was exact, and one of them still has it open. The reply
/// to a change by another one must not give its kernel the size.
#[test]
fn a_change_by_another_mount_does_not_hide_what_the_last_of_several_writers_writes() {
    for seed in 1..=8 {
        let (mut c, [first, second], _) = with_locks(seed);
        let (file, handle) = run(&mut c, second, async |client| create(&client, "f").await).expect("made");
        let closed = run(&mut c, first, async move |client| {
            let (_, handle) = client.open(file, 1, caller()).await?;
            client.release(handle, None).await
        });
        assert_eq!(closed, Ok(()), "seed {seed}");
        // After the pause in which the MDT grants nothing that it has just revoked.
        c.world.run_for(10 * SEC);
        let size = async move |client: Rc<Client>| Kernel::of(&client).size(&client, file).await;
        let changed = run(&mut c, first, async move |client| {
            let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            client.setattr(file, mode, caller()).await?;
            size(client).await
        });
        assert_eq!(changed, Ok(0), "seed {seed}");
        let written = run(&mut c, second, async move |client| write(&client, handle, 0, vec![1; 5]).await);
        assert_eq!((written, run(&mut c, first, size)), (Ok(5), Ok(5)), "seed {seed}");
    }
}

/// The clients say that they rely on no former lock when the recovery is over: a replay must not wait for that.
#[test]
fn the_replay_of_a_change_waits_for_no_former_lock() {
    for seed in 1..=4 {
        let (mut c, [first, second], _) = with_locks(seed);
        c.world.run_for(3 * SEC);
        let made = run(&mut c, second, async |client| make(&client, Fid::ROOT, "e", DIR).await.map(drop));
        assert_eq!(made, Ok(()), "seed {seed}");
        c.power_loss(MDT);
        let (mdt, began) = (c.servers[MDT], c.world.now_ns());
        c.world.start_later(mdt, 10 * MS);
        let made = run(&mut c, first, async |client| make(&client, Fid::ROOT, "f", DIR).await.map(drop));
        assert_eq!(made, Ok(()), "seed {seed}");
        let took = c.world.now_ns() - began;
        assert!(took < 2 * SEC, "seed {seed}: {} ms", took / MS);
    }
}
