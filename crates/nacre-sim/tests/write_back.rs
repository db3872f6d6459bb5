//! Bytes that a mount keeps in memory after a write: no other mount sees a file without them, whoever dies or is cut off,
//! and what is lost with its mount is reported or was never synced.

mod support;

use nacre_client::{AllocateArgs, AllocateMode, Client, CreateArgs};
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, LayoutTemplate, OpenHandle, SetAttr};
use std::rc::Rc;
use support::{
    FILE, MDT, MS, OST, SEC, append, caller, cluster, create, new, read, run, wait, write, write_back,
};

const BYTES: usize = 10_000;

/// Two mounts that keep bytes; the first has a new file open, with such bytes in it.
fn with_dirty(seed: u64) -> (Cluster, Fid, OpenHandle) {
    let mut c = cluster(seed, 2, 2);
    write_back(&mut c);
    let first = c.mounts[0];
    let made = run(&mut c, first, async |client| {
        let (fid, handle) = create(&client, "kept").await?;
        write(&client, handle, 0, vec![1; BYTES]).await?;
        Ok::<_, Failure>((fid, handle))
    });
    let (fid, handle) = made.expect("written");
    assert_eq!(dirty(&mut c), BYTES as u64, "seed {seed}: the mount keeps them");
    (c, fid, handle)
}
/// Bytes that the first mount keeps.
fn dirty(c: &mut Cluster) -> u64 {
    let first = c.mounts[0];
    run(c, first, async |client: Rc<Client>| {
        let param = client.params().into_iter().find(|param| param.name.ends_with(".dirty_bytes"));
        param.and_then(|param| param.value.parse().ok()).expect("a mount has it")
    })
}
fn size(c: &mut Cluster, mount: usize, fid: Fid) -> Result<u64, Failure> {
    let mount = c.mounts[mount];
    run(c, mount, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size))
}

#[test]
fn the_own_mount_sees_what_it_keeps() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_dirty(seed);
        assert_eq!(size(&mut c, 0, fid), Ok(BYTES as u64));
        let first = c.mounts[0];
        let seen = run(&mut c, first, async move |client| {
            write(&client, handle, 3, vec![2; 4]).await?;
            append(&client, handle, vec![3; 5]).await?;
            write(&client, handle, 20_000, vec![4; 1]).await?;
            client.read(handle, 0, 30_000).await.map(|parts| parts.concat())
        });
        let mut expected = vec![1; BYTES];
        expected[3..7].fill(2);
        expected.extend([3; 5]);
        expected.resize(20_000, 0);
        expected.push(4);
        assert_eq!(seen.expect("read"), expected, "seed {seed}");
        assert!(dirty(&mut c) > 0);
        c.world.run_for(2 * SEC);
        assert_eq!(dirty(&mut c), 0, "seed {seed}: they are sent after a while");
        let second = c.mounts[1];
        assert_eq!(read(&mut c, second, fid), Ok(expected), "seed {seed}");
    }
}

/// The mount that keeps them computes them, the OST counts them.
#[test]
fn the_blocks_of_kept_bytes_behind_a_hole_are_those_of_the_ost() {
    for (seed, (offset, len)) in (1..).zip([(8191, 8200), (20_000, 8192), (4096, 4096), (1, 1), (12_287, 2)])
    {
        let mut c = cluster(seed, 1, 2);
        write_back(&mut c);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let kept = run(&mut c, first, async move |client| {
            let (fid, handle) = create(&client, "sparse").await?;
            write(&client, handle, offset, vec![1; len]).await?;
            client.getattr(fid).await.map(|entry| (fid, entry.attr.blocks))
        });
        assert!(dirty(&mut c) > 0);
        let (fid, blocks) = kept.expect("written");
        let counted = run(&mut c, second, async move |client| client.getattr(fid).await);
        assert_eq!(counted.map(|entry| entry.attr.blocks), Ok(blocks), "{len} bytes at {offset}");
    }
}

/// Programs skip what a file with fewer blocks than its size needs does not have: `tar -S` of a file whose bytes are kept.
#[test]
fn kept_bytes_in_holes_and_in_preallocated_space_are_counted_like_those_of_the_ost() {
    let truncated = async |client: &Client, fid: Fid, _: OpenHandle| {
        client.setattr(fid, SetAttr { size: Some(20_000), ..SetAttr::default() }, caller()).await.map(drop)
    };
    let behind_a_hole = async |client: &Client, _: Fid, handle: OpenHandle| {
        write(client, handle, 20_000, vec![1; 1]).await.map(drop)
    };
    let preallocated = async |client: &Client, offset: u64, len: u64, handle: OpenHandle| {
        let mode = AllocateMode::Space { keep_size: true };
        client.allocate(handle, AllocateArgs { offset, len, mode, kill_suidgid: None }).await
    };
    for seed in 1..=12 {
        let mut c = cluster(seed, 1, 2);
        write_back(&mut c);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let made = run(&mut c, first, async move |client| {
            let (fid, handle) = create(&client, "sparse").await?;
            match seed % 4 {
                0 => truncated(&client, fid, handle).await?,
                1 => behind_a_hole(&client, fid, handle).await?,
                2 => preallocated(&client, 12_288, 536, handle).await?,
                // As many blocks behind the end as holes before it.
                _ => {
                    truncated(&client, fid, handle).await?;
                    preallocated(&client, 20_480, 20_480, handle).await?;
                }
            }
            Ok::<_, Failure>((fid, handle))
        });
        let (fid, handle) = made.expect("made");
        for (offset, len) in [(0, 16_384), (12_288, 1), (24_576, 4)].into_iter().skip(seed as usize / 5) {
            let written =
                run(&mut c, first, async move |client| write(&client, handle, offset, vec![2; len]).await);
            assert_eq!(written, Ok(len as u32));
            assert!(dirty(&mut c) > 0, "seed {seed}: the mount keeps them");
            let [kept, counted] = [first, second].map(|mount| {
                let attr = run(&mut c, mount, async move |client| client.getattr(fid).await);
                attr.map(|entry| entry.attr.blocks)
            });
            assert_eq!(kept, counted, "seed {seed}, {len} bytes at {offset}");
            c.world.run_for(2 * SEC);
            let asks_again =
                run(&mut c, first, async move |client| write(&client, handle, 0, vec![2; 1]).await);
            assert_eq!(asks_again, Ok(1));
            c.world.run_for(2 * SEC);
        }
    }
}

#[test]
fn another_mount_that_asks_for_the_size_or_opens_the_file_sees_all_bytes() {
    for seed in 1..=16 {
        let (mut c, fid, handle) = with_dirty(seed);
        if seed % 2 == 0 {
            assert_eq!(size(&mut c, 1, fid), Ok(BYTES as u64), "seed {seed}\n{}", c.world.trace(60));
        } else {
            let second = c.mounts[1];
            assert_eq!(read(&mut c, second, fid), Ok(vec![1; BYTES]), "seed {seed}\n{}", c.world.trace(60));
        }
        assert_eq!(dirty(&mut c), 0, "seed {seed}");
        // Both write now, through to the OSTs.
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
        let (_, other) = opened.expect("opened");
        for round in 0..4u8 {
            let end = BYTES as u64 + u64::from(round);
            let wrote =
                run(&mut c, first, async move |client| write(&client, handle, end, vec![round; 1]).await);
            assert_eq!(wrote, Ok(1));
            let seen = run(&mut c, second, async move |client| {
                client.read(other, end, 10).await.map(|parts| parts.concat())
            });
            assert_eq!(seen, Ok(vec![round]), "seed {seed}");
        }
    }
}

#[test]
fn a_look_of_another_mount_ends_the_keeping_for_a_moment_only() {
    for seed in 1..=6 {
        let (mut c, fid, handle) = with_dirty(seed);
        assert_eq!(size(&mut c, 1, fid), Ok(BYTES as u64), "seed {seed}");
        let first = c.mounts[0];
        let mut kept = Vec::new();
        for round in 0..40 {
            let wrote = run(&mut c, first, async move |client| {
                write(&client, handle, BYTES as u64 + round, vec![5; 1]).await
            });
            assert_eq!(wrote, Ok(1), "seed {seed}");
            kept.push(dirty(&mut c) > 0);
            c.world.run_for(10 * MS);
        }
        assert!(!kept[0] && kept[39], "seed {seed}: {kept:?}");
        assert_eq!(size(&mut c, 1, fid), Ok(BYTES as u64 + 40), "seed {seed}");
    }
}

#[test]
fn changes_of_another_mount_follow_the_kept_bytes() {
    for seed in 1..=16 {
        let (mut c, fid, _handle) = with_dirty(seed);
        let second = c.mounts[1];
        let changed = run(&mut c, second, async move |client| {
            let set = SetAttr { size: Some(100 + seed), ..SetAttr::default() };
            client.setattr(fid, set, caller()).await.map(|entry| entry.attr.size)
        });
        assert_eq!(changed, Ok(100 + seed), "seed {seed}");
        c.world.run_for(3 * SEC);
        for mount in 0..2 {
            assert_eq!(size(&mut c, mount, fid), Ok(100 + seed), "seed {seed} mount {mount}");
        }
        assert_eq!(read(&mut c, second, fid), Ok(vec![1; 100 + seed as usize]), "seed {seed}");
    }
}

/// Its truncate changes no attribute then.
#[test]
fn a_truncate_of_a_mount_whose_clock_is_behind_follows_the_kept_bytes() {
    for seed in 1..=8 {
        let (mut c, fid, _handle) = with_dirty(seed);
        let second = c.mounts[1];
        c.world.set_wall(second, -3_600_000_000_000);
        let changed = run(&mut c, second, async move |client| {
            let set = SetAttr { size: Some(100), ..SetAttr::default() };
            client.setattr(fid, set, caller()).await.map(|entry| entry.attr.size)
        });
        assert_eq!(changed, Ok(100), "seed {seed}");
        c.world.run_for(3 * SEC);
        assert_eq!(size(&mut c, 1, fid), Ok(100), "seed {seed}");
        assert_eq!(read(&mut c, second, fid), Ok(vec![1; 100]), "seed {seed}");
    }
}

/// A restarted MDT has forgotten who keeps bytes: others wait until the mount has sent them.
#[test]
fn after_a_kill_of_the_mdt_no_mount_sees_the_file_without_the_kept_bytes() {
    for seed in 1..=24 {
        let (mut c, fid, _handle) = with_dirty(seed);
        let mdt = c.servers[MDT];
        c.world.kill(mdt);
        c.world.run_for((seed % 5) * 100 * MS);
        c.world.start(mdt);
        let second = c.mounts[1];
        if seed % 2 == 0 {
            assert_eq!(size(&mut c, 1, fid), Ok(BYTES as u64), "seed {seed}\n{}", c.world.trace(80));
        } else {
            assert_eq!(read(&mut c, second, fid), Ok(vec![1; BYTES]), "seed {seed}\n{}", c.world.trace(80));
        }
    }
}

fn stop_osts(c: &mut Cluster) {
    for ost in [OST, OST + 1] {
        let node = c.servers[ost];
        c.world.kill(node);
    }
}
fn start_osts(c: &mut Cluster) {
    for ost in [OST, OST + 1] {
        let node = c.servers[ost];
        c.world.start(node);
    }
}
/// Ends the MDT and starts it again. With `power`, it also loses the end of its log.
fn restart_mdt(c: &mut Cluster, power: bool) {
    let mdt = c.servers[MDT];
    if power {
        c.power_loss(MDT)
    } else {
        c.world.kill(mdt)
    }
    c.world.run_for(100 * MS);
    c.world.start(mdt);
}

/// The OSTs are away for longer than a lease when the MDT is restarted: it concludes from the open files which mounts may
/// keep bytes.
#[test]
fn a_restarted_mdt_lets_no_mount_overtake_bytes_that_another_one_keeps() {
    for seed in 1..=12 {
        let (mut c, fid, handle) = with_dirty(seed);
        stop_osts(&mut c);
        for _ in 0..=(seed / 2) % 3 {
            restart_mdt(&mut c, seed % 2 == 0);
            c.world.run_for((seed % 3) * 5 * SEC);
        }
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let job = c.jobs.start(&mut c.world, second, async move |client: Rc<Client>| {
            if seed % 4 < 2 {
                assert_eq!(client.getattr(fid).await?.attr.size, BYTES as u64);
            }
            let (_, other) = client.open(fid, 2, caller()).await?;
            let before = client.read(other, 0, 2 << 20).await?.concat();
            write(&client, other, 0, vec![9; 100]).await?;
            Ok::<_, Failure>((before, client.read(other, 0, 2 << 20).await?.concat()))
        });
        c.world.run_for(40 * SEC);
        start_osts(&mut c);
        let seen: Result<(Vec<u8>, Vec<u8>), Failure> = wait(&mut c, job);
        let mut after = vec![1; BYTES];
        after[..100].fill(9);
        assert_eq!(seen, Ok((vec![1; BYTES], after.clone())), "seed {seed}\n{}", c.world.trace(80));
        let synced = run(&mut c, first, async move |client| client.fsync(fid, Some(handle)).await);
        assert_eq!(synced, Ok(()), "seed {seed}: nothing was lost");
        for mount in [first, second] {
            assert_eq!(read(&mut c, mount, fid).as_ref(), Ok(&after), "seed {seed}");
        }
    }
}

/// The same when the mount that keeps the bytes dies, or is cut off: others wait for its lease only, and what they write stays.
#[test]
fn a_restarted_mdt_does_not_wait_for_the_bytes_of_a_mount_that_is_gone() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_dirty(seed);
        stop_osts(&mut c);
        restart_mdt(&mut c, seed % 2 == 0);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let job = c.jobs.start(&mut c.world, second, async move |client: Rc<Client>| {
            let (_, other) = client.open(fid, 2, caller()).await?;
            write(&client, other, 0, vec![9; 100]).await?;
            client.release(other, None).await
        });
        c.world.run_for(seed * SEC);
        let dies = seed % 4 < 2;
        if dies {
            c.world.kill(first)
        } else {
            c.world.pause(first, true)
        }
        c.world.run_for(40 * SEC);
        start_osts(&mut c);
        let wrote: Result<(), Failure> = wait(&mut c, job);
        assert_eq!(wrote, Ok(()), "seed {seed}\n{}", c.world.trace(60));
        if !dies {
            c.world.pause(first, false);
            let synced = run(&mut c, first, async move |client| client.fsync(fid, Some(handle)).await);
            assert_eq!(synced, Err(Failure::EIO), "seed {seed}");
            c.world.run_for(3 * SEC);
        }
        assert_eq!(read(&mut c, second, fid), Ok(vec![9; 100]), "seed {seed}");
    }
}

/// More files than a message names, and changes of names and sizes.
#[test]
fn a_restarted_mdt_waits_for_the_kept_bytes_of_each_file_that_another_mount_changes() {
    const FILES: usize = 70;
    for seed in 1..=4 {
        let mut c = cluster(seed, 2, 2);
        write_back(&mut c);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let made = run(&mut c, first, async |client| {
            let mut made = Vec::new();
            for nth in 0..FILES {
                made.push(create(&client, &format!("f{nth}")).await?);
            }
            for (_, handle) in &made {
                write(&client, *handle, 0, vec![1; 10]).await?;
            }
            Ok::<_, Failure>(made)
        });
        let made = made.expect("written");
        assert_eq!(dirty(&mut c), 10 * FILES as u64, "seed {seed}");
        stop_osts(&mut c);
        restart_mdt(&mut c, seed % 2 == 0);
        let fids: Vec<Fid> = made.iter().map(|(fid, _)| *fid).collect();
        let of_job = fids.clone();
        let job = c.jobs.start(&mut c.world, second, async move |client: Rc<Client>| {
            for (nth, fid) in of_job.into_iter().enumerate() {
                let set = SetAttr { size: Some(nth as u64 % 10), ..SetAttr::default() };
                client.setattr(fid, set, caller()).await?;
            }
            Ok::<_, Failure>(())
        });
        c.world.run_for(40 * SEC);
        start_osts(&mut c);
        assert_eq!(wait::<Result<(), Failure>>(&mut c, job), Ok(()), "seed {seed}");
        c.world.run_for(3 * SEC);
        for (nth, fid) in fids.into_iter().enumerate() {
            for mount in [first, second] {
                assert_eq!(read(&mut c, mount, fid), Ok(vec![1; nth % 10]), "seed {seed}");
            }
        }
    }
}

/// An OST that is away for longer than a lease: the mount keeps the bytes, is not evicted, and others wait.
#[test]
fn a_mount_that_cannot_reach_an_ost_is_not_evicted_for_the_bytes_it_keeps() {
    for seed in 1..=6 {
        let (mut c, fid, handle) = with_dirty(seed);
        for ost in [OST, OST + 1] {
            let node = c.servers[ost];
            c.world.kill(node);
        }
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let job = c.jobs.start(&mut c.world, second, async move |client: Rc<Client>| {
            client.getattr(fid).await.map(|entry| entry.attr.size)
        });
        c.world.run_for(25 * SEC);
        for ost in [OST, OST + 1] {
            let node = c.servers[ost];
            c.world.start(node);
        }
        let seen: Result<u64, Failure> = wait(&mut c, job);
        assert_eq!(seen, Ok(BYTES as u64), "seed {seed}");
        let synced = run(&mut c, first, async move |client| client.fsync(fid, Some(handle)).await);
        assert_eq!(synced, Ok(()), "seed {seed}: nothing was lost");
    }
}

/// A mount that is stopped for longer than its lease loses what it keeps: its handle reports that once, and what others
/// have written meanwhile stays.
#[test]
fn bytes_of_an_evicted_mount_are_reported_once_and_overwrite_nothing() {
    for seed in 1..=12 {
        let (mut c, fid, handle) = with_dirty(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        c.world.pause(first, true);
        let wrote = run(&mut c, second, async move |client| {
            let (_, other) = client.open(fid, 2, caller()).await?;
            write(&client, other, 0, vec![9; 100]).await?;
            client.release(other, None).await
        });
        assert_eq!(wrote, Ok(()), "seed {seed}");
        c.world.run_for(SEC);
        c.world.pause(first, false);
        let reported = run(&mut c, first, async move |client| {
            let first = client.fsync(fid, Some(handle)).await;
            (first, client.fsync(fid, Some(handle)).await)
        });
        assert_eq!(reported, (Err(Failure::EIO), Ok(())), "seed {seed}\n{}", c.world.trace(60));
        c.world.run_for(3 * SEC);
        for mount in [first, second] {
            assert_eq!(read(&mut c, mount, fid), Ok(vec![9; 100]), "seed {seed}");
        }
    }
}

/// What was synced survives the loss of the mount, and of both servers after it.
#[test]
fn synced_bytes_survive_the_mount_and_the_servers() {
    for seed in 1..=12 {
        let (mut c, fid, handle) = with_dirty(seed);
        let first = c.mounts[0];
        let synced = run(&mut c, first, async move |client| {
            client.fsync(fid, Some(handle)).await?;
            write(&client, handle, BYTES as u64, vec![2; 10]).await
        });
        assert_eq!(synced, Ok(10), "seed {seed}");
        c.world.kill(first);
        for server in [MDT, OST, OST + 1] {
            c.power_loss(server);
            let node = c.servers[server];
            c.world.start(node);
        }
        c.world.run_for(30 * SEC);
        let second = c.mounts[1];
        let seen = read(&mut c, second, fid).expect("read");
        assert_eq!(&seen[..BYTES], &vec![1; BYTES][..], "seed {seed}");
    }
}

/// A file is written under a temporary name and gets its own name from another mount: whoever finds that name finds all bytes,
/// also when the mount that has written them is lost.
#[test]
fn a_file_has_its_kept_bytes_before_another_mount_names_it() {
    for seed in 1..=12 {
        let (mut c, fid, _handle) = with_dirty(seed);
        if seed % 4 == 0 {
            restart_mdt(&mut c, seed % 8 == 0);
        }
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let named = run(&mut c, second, async move |client| {
            if seed % 2 == 0 {
                let name = b"name";
                return client.link(fid, Fid::ROOT, name, caller()).await.map(drop);
            }
            let (_, old) = create(&client, "name").await?;
            client.release(old, None).await?;
            client.rename((Fid::ROOT, b"kept"), (Fid::ROOT, b"name"), 0, caller()).await
        });
        assert_eq!(named, Ok(()), "seed {seed}");
        c.world.kill(first);
        c.world.run_for(30 * SEC);
        let found = run(&mut c, second, async |client| client.lookup(Fid::ROOT, b"name").await);
        assert_eq!(found.expect("named").attr.fid, fid, "seed {seed}");
        assert_eq!(read(&mut c, second, fid), Ok(vec![1; BYTES]), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// Sets a parameter of a mount.
fn set(c: &mut Cluster, mount: usize, name: &'static str, value: &'static str) {
    let mount = c.mounts[mount];
    let set = run(c, mount, async move |client: Rc<Client>| {
        client.set_param(&format!("llite.{}.{name}", client.mount_name()), value)
    });
    set.expect("a mount has it");
}
fn close(c: &mut Cluster, mount: usize, handle: OpenHandle) {
    let mount = c.mounts[mount];
    run(c, mount, async move |client| client.release(handle, None).await).expect("closed");
}
fn open(c: &mut Cluster, mount: usize, fid: Fid, flags: u32) -> OpenHandle {
    let mount = c.mounts[mount];
    run(c, mount, async move |client| client.open(fid, flags, caller()).await).expect("opened").1
}

/// Nothing revokes the lock of a mount that has closed the file when another one opens it: the next open decides anew.
#[test]
fn a_mount_that_opens_a_file_again_keeps_nothing_while_another_one_has_it_open() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_dirty(seed);
        close(&mut c, 0, handle);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let other = open(&mut c, 1, fid, 0);
        let again = open(&mut c, 0, fid, 2);
        let wrote = run(&mut c, first, async move |client| write(&client, again, 0, vec![7; 10]).await);
        assert_eq!(wrote, Ok(10), "seed {seed}");
        let seen = run(&mut c, second, async move |client| {
            client.read(other, 0, 10).await.map(|parts| parts.concat())
        });
        assert_eq!(seen, Ok(vec![7; 10]), "seed {seed}\n{}", c.world.trace(60));
        // When it is alone again, it may.
        close(&mut c, 1, other);
        close(&mut c, 0, again);
        c.world.run_for(SEC);
        let again = open(&mut c, 0, fid, 2);
        let wrote = run(&mut c, first, async move |client| write(&client, again, 0, vec![8; 10]).await);
        assert_eq!((wrote, dirty(&mut c)), (Ok(10), 10), "seed {seed}");
    }
}

/// Bytes that no OST takes fill the memory for all files, but do not stop writes to other OSTs.
#[test]
fn bytes_for_an_ost_that_is_away_do_not_stop_writes_to_others() {
    for seed in 1..=8 {
        let mut c = cluster(seed, 2, 1);
        write_back(&mut c);
        set(&mut c, 0, "max_dirty_mb", "1");
        c.world.run_for(2 * SEC);
        let first = c.mounts[0];
        let made = run(&mut c, first, async |client| {
            let mut handles = Vec::new();
            for (name, first_ost) in [("away", 0), ("there", 1)] {
                let layout = LayoutTemplate {
                    stripe_count: 1,
                    stripe_bytes: 0,
                    first_ost,
                    ..LayoutTemplate::default()
                };
                let args = CreateArgs { layout: Some(layout), ..new(Fid::ROOT, name, FILE) };
                handles.push(client.create(args, 2).await?.1);
            }
            Ok::<_, Failure>(handles)
        });
        let handles = made.expect("created");
        let (away, there) = (handles[0], handles[1]);
        let ost = c.servers[OST];
        c.world.kill(ost);
        let waits = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            for nth in 0..3 {
                write(&client, away, nth << 20, vec![5; 1 << 20]).await?;
            }
            Ok::<_, Failure>(())
        });
        c.world.run_for(2 * SEC);
        let goes_on = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            for nth in 0..3 {
                write(&client, there, nth << 20, vec![6; 1 << 20]).await?;
            }
            Ok::<_, Failure>(())
        });
        let done: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, goes_on, 20 * SEC);
        assert_eq!(done, Some(Ok(())), "seed {seed}");
        c.world.start(ost);
        assert_eq!(wait::<Result<(), Failure>>(&mut c, waits), Ok(()), "seed {seed}");
    }
}

/// An OST evicts a mount that it does not hear: bytes under way are sent again, and those behind them are still there.
#[test]
fn an_eviction_by_the_osts_costs_no_kept_byte() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_dirty(seed);
        let first = c.mounts[0];
        let wrote = run(&mut c, first, async move |client| {
            client.fsync(fid, Some(handle)).await?; // so that the OST knows the mount
            write(&client, handle, 0, vec![2; 10]).await
        });
        assert_eq!(wrote, Ok(10), "seed {seed}");
        for ost in [OST, OST + 1] {
            let node = c.servers[ost];
            c.world.block_for(first, node, 30 * SEC);
            c.world.block_for(node, first, 30 * SEC);
        }
        c.world.run_for(SEC);
        let seen = run(&mut c, first, async move |client| {
            write(&client, handle, 20_000, vec![4; 1]).await?;
            append(&client, handle, vec![5; 3]).await?;
            let seen = client.read(handle, 20_000, 100).await?.concat();
            let size = client.getattr(fid).await?.attr.size;
            let synced = client.fsync(fid, Some(handle)).await;
            Ok::<_, Failure>((seen, size, synced, client.fsync(fid, Some(handle)).await))
        });
        let (bytes, size, synced, again) = seen.expect("written");
        assert_eq!((bytes, size), (vec![4, 5, 5, 5], 20_004), "seed {seed}\n{}", c.world.trace(60));
        assert_eq!((synced, again), (Ok(()), Ok(())), "seed {seed}");
    }
}

/// Each piece of a file costs memory and a request: many small ones count for more than their bytes.
#[test]
fn many_small_pieces_wait_for_room() {
    for seed in 1..=2 {
        let (mut c, _, handle) = with_dirty(seed);
        set(&mut c, 0, "max_dirty_mb", "1");
        c.world.run_for(SEC);
        for ost in [OST, OST + 1] {
            let node = c.servers[ost];
            c.world.kill(node);
        }
        let first = c.mounts[0];
        let job = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            for nth in 0..600 {
                write(&client, handle, 2 * nth, vec![5; 1]).await?;
            }
            Ok::<_, Failure>(())
        });
        c.world.run_for(5 * SEC);
        let kept = dirty(&mut c);
        assert!(kept < 500, "seed {seed}: {kept} pieces of one byte in the room of 1 MiB");
        for ost in [OST, OST + 1] {
            let node = c.servers[ost];
            c.world.start(node);
        }
        assert_eq!(wait::<Result<(), Failure>>(&mut c, job), Ok(()), "seed {seed}");
    }
}

/// Two mounts fill the same OSTs at the same time: what a write has taken is stored, and the writes that follow fail.
#[test]
fn a_full_ost_refuses_writes_and_loses_none_that_it_has_granted_space_for() {
    const PIECE: usize = 1 << 20;
    for seed in 1..=4 {
        let mut c = cluster(seed, 1, 2);
        c.world.run_for(2 * SEC);
        write_back(&mut c);
        let fill = |name: &'static str, seed: u64| {
            async move |client: Rc<Client>| {
                let (fid, handle) = create(&client, name).await?;
                let mut written = 0;
                // Small pieces in between: each needs more space than it has bytes.
                let end = loop {
                    let (offset, len) =
                        (written as u64, if seed.is_multiple_of(2) { PIECE } else { 700_001 });
                    match write(&client, handle, offset, vec![1; len]).await {
                        Ok(_) => written += len,
                        Err(error) => break error,
                    }
                };
                let synced = client.fsync(fid, Some(handle)).await;
                client.release(handle, None).await?;
                Ok::<_, Failure>((fid, written, end, synced))
            }
        };
        let jobs = [(0, "one"), (1, "two")].map(|(mount, name)| {
            let mount = c.mounts[mount];
            c.jobs.start(&mut c.world, mount, fill(name, seed))
        });
        for job in jobs {
            let filled: Result<(Fid, usize, Failure, Result<(), Failure>), Failure> = wait(&mut c, job);
            let (fid, written, end, synced) = filled.expect("filled");
            assert_eq!((end, synced), (Failure::ENOSPC, Ok(())), "seed {seed}");
            assert!(written > 0, "seed {seed}");
            assert_eq!(size(&mut c, 0, fid), Ok(written as u64), "seed {seed}");
        }
    }
}

/// The link to the OSTs is cut for longer than a lease while kept bytes are under way: the OSTs evict the mount, which the
/// MDT does not, and the bytes are sent again.
#[test]
fn kept_bytes_survive_an_eviction_by_their_ost() {
    for seed in 1..=12 {
        let (mut c, fid, handle) = with_dirty(seed);
        let first = c.mounts[0];
        let osts = [c.servers[OST], c.servers[OST + 1]];
        // Some of the writes reach the OST, and their replies are lost.
        c.world.run_for(490 * MS + (seed % 4) * 10 * MS);
        osts.iter().for_each(|ost| c.world.block(*ost, first));
        c.world.run_for(25 * SEC);
        osts.iter().for_each(|ost| c.world.heal(*ost, first));
        let synced = run(&mut c, first, async move |client| client.fsync(fid, Some(handle)).await);
        assert_eq!(synced, Ok(()), "seed {seed}\n{}", c.world.trace(60));
        let second = c.mounts[1];
        assert_eq!(read(&mut c, second, fid), Ok(vec![1; BYTES]), "seed {seed}");
    }
}
