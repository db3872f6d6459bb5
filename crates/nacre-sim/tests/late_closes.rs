//! Closes that are sent later: they cost hardly a request, and no client sees an open that its process has ended, whatever
//! happens to connections, to the mount, to the MDT and to its machine.

mod support;

use nacre_client::{Client, MetadataChange};
use nacre_node::join_all;
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, LayoutTemplate, SetAttr};
use std::rc::Rc;
use support::{MDT, MS, SEC, caller, cluster, create, make, of_mdt, open_files, run, sent_to, wait, write};

/// Requests with closes that a mount has sent: single ones, and batches.
fn closes_sent(c: &mut Cluster, mount: NodeId) -> (u64, u64) {
    (sent_to(c, mount, "mdc.", "mds_close"), sent_to(c, mount, "mdc.", "mds_batch"))
}
/// Questions for the size of a file, to the MDT and to the OST.
fn asked(c: &mut Cluster, mount: NodeId) -> (u64, u64) {
    (sent_to(c, mount, "mdc.", "mds_getattr"), sent_to(c, mount, "osc.", "ldlm_glimpse"))
}
/// Creates a file and closes it without a write.
async fn touch(client: &Client, name: &str) -> Result<Fid, Failure> {
    let (fid, handle) = create(client, name).await?;
    client.release(handle, None).await.map(|()| fid)
}

/// Two mounts; the first keeps the close of the file `f`.
fn scene(seed: u64) -> (Cluster, [NodeId; 2], Fid) {
    let mut c = cluster(seed, 1, 2);
    let mounts = [c.mounts[0], c.mounts[1]];
    if seed.is_multiple_of(2) {
        c.limit_slots(1);
    }
    // The second mount knows the directory, and the first one its FIDs.
    run(&mut c, mounts[1], async |client| client.lookup(Fid::ROOT, b"f").await.map(drop))
        .expect_err("not yet");
    run(&mut c, mounts[0], async |client| make(&client, Fid::ROOT, "other", support::FILE).await)
        .expect("made");
    c.world.run_for(3 * SEC);
    let fid = run(&mut c, mounts[0], async |client| touch(&client, "f").await).expect("created");
    assert_eq!(open_files(&mut c), "1", "seed {seed}: its close is kept");
    assert_eq!(closes_sent(&mut c, mounts[0]), (0, 0), "seed {seed}");
    (c, mounts, fid)
}
/// Nothing is open at the MDT, no size is unknown, and this mount sees a size.
fn check(c: &mut Cluster, mount: NodeId, file: Option<(Fid, u64)>, what: &str) {
    assert_eq!(open_files(c), "0", "{what}\n{}", c.world.trace(80));
    assert_eq!(of_mdt(c, ".unsettled_files"), "0", "{what}\n{}", c.world.trace(80));
    let Some((fid, size)) = file else { return };
    let seen = run(c, mount, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
    assert_eq!(seen, Ok(size), "{what}\n{}", c.world.trace(80));
}

#[test]
fn a_create_and_a_close_are_hardly_more_than_one_request() {
    const FILES: u64 = 200;
    let mut c = cluster(1, 1, 2);
    let [first, second] = [c.mounts[0], c.mounts[1]];
    let fids = run(&mut c, first, async |client| {
        let mut fids = Vec::new();
        for number in 0..FILES {
            fids.push(touch(&client, &format!("f{number}")).await?);
        }
        Ok::<_, Failure>(fids)
    });
    let fids = fids.expect("created");
    c.world.run_for(150 * MS);
    let (single, batches) = closes_sent(&mut c, first);
    assert!(single + batches <= FILES / 25, "{single} closes and {batches} batches");
    check(&mut c, first, None, "after the timer");
    // The MDT knows each size.
    let sizes = run(&mut c, second, async move |client| {
        let entries = join_all(fids.iter().map(|fid| client.getattr(*fid))).await;
        entries.into_iter().map(|entry| entry.map(|entry| entry.attr.size)).sum::<Result<u64, Failure>>()
    });
    assert_eq!(sizes, Ok(0));
    assert_eq!(asked(&mut c, second).1, 0);
}

#[test]
fn a_kept_close_is_sent_after_a_while() {
    for seed in 1..=4 {
        let (mut c, [first, _], fid) = scene(seed);
        c.world.run_for(50 * MS);
        assert_eq!(open_files(&mut c), "1", "seed {seed}");
        c.world.run_for(60 * MS);
        check(&mut c, first, Some((fid, 0)), &format!("seed {seed}"));
        assert_eq!(closes_sent(&mut c, first), (1, 0), "seed {seed}");
    }
}

/// Of a file that no process has open, the mount that created it knows the attributes.
#[test]
fn the_size_is_known_before_the_close_is_sent() {
    let (mut c, [first, second], fid) = scene(1);
    let before = asked(&mut c, first);
    for _ in 0..2 {
        let size =
            run(&mut c, first, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
        assert_eq!(size, Ok(0));
    }
    assert_eq!(asked(&mut c, first), before);
    // The other mount may not rely on a size that the first one may change.
    let seen =
        run(&mut c, second, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
    assert_eq!(seen, Ok(0));
    c.world.run_for(150 * MS);
    check(&mut c, first, Some((fid, 0)), "after the timer");
}

/// The close of a file that was written through is not kept, and that of one that was read not for long.
#[test]
fn closes_with_a_report_are_sent_soon() {
    let mut c = cluster(1, 1, 2);
    let [first, second] = [c.mounts[0], c.mounts[1]];
    let fid = run(&mut c, first, async |client| {
        let (fid, handle) = create(&client, "f").await?;
        write(&client, handle, 0, vec![1; 5000]).await?;
        client.release(handle, None).await.map(|()| fid)
    });
    let fid = fid.expect("written");
    check(&mut c, second, Some((fid, 5000)), "written");
    let read = run(&mut c, second, async move |client| {
        let (_, handle) = client.open(fid, 0, caller()).await?;
        client.read(handle, 0, 10).await?;
        client.release(handle, None).await
    });
    assert_eq!(read, Ok(()));
    c.world.run_for(110 * MS);
    check(&mut c, second, Some((fid, 5000)), "read");
}

/// A mount removes the name by the way of that number.
async fn remove(client: Rc<Client>, way: u64) -> Result<(), Failure> {
    match way % 3 {
        0 => client.unlink(Fid::ROOT, b"f", false, caller()).await,
        1 => client.rename((Fid::ROOT, b"other"), (Fid::ROOT, b"f"), 0, caller()).await,
        _ => {
            let unlink = MetadataChange::Unlink { parent: Fid::ROOT, name: b"f", directory: false };
            client.batch(&[unlink], &caller(), false).await?.remove(0).map(drop)
        }
    }
}

#[test]
fn an_inode_that_no_process_has_open_ends_with_its_last_name() {
    for seed in 1..=24 {
        let (mut c, mounts, fid) = scene(seed);
        let by = mounts[seed as usize % 4 / 2];
        let removed = run(&mut c, by, async move |client| remove(client, seed).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        // No orphan was waiting for the timer.
        check(&mut c, by, None, &format!("seed {seed}"));
        let left = run(&mut c, mounts[1], async move |client| client.getattr(fid).await.err());
        assert_eq!(left, Some(Failure::ESTALE), "seed {seed}");
    }
}

/// The objects of a file that is removed while the close of a writer is kept are destroyed, and so is its inode.
#[test]
fn the_space_of_a_removed_file_comes_back() {
    for seed in 1..=6 {
        let mut c = cluster(seed, 1, 2);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let used = |c: &mut Cluster| {
            c.world.run_for(5 * SEC);
            let space = run(c, second, async |client| client.statfs().await).expect("it replies");
            let objects = c.params(|p| p.ends_with(".filesfree") || p.ends_with(".objects"));
            (space.files_used, objects)
        };
        run(&mut c, first, async |client| make(&client, Fid::ROOT, "other", support::FILE).await)
            .expect("made");
        let before = used(&mut c);
        let written = run(&mut c, first, async |client| {
            let (fid, handle) = create(&client, "f").await?;
            write(&client, handle, 0, vec![1; 100_000]).await?;
            client.release(handle, None).await.map(|()| fid)
        });
        let fid = written.expect("written");
        let opened = run(&mut c, first, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            client.release(handle, None).await
        });
        assert_eq!(opened, Ok(()));
        assert_eq!(open_files(&mut c), "1", "seed {seed}: its close is kept");
        let by = if seed % 2 == 0 { first } else { second };
        let removed = run(&mut c, by, async |client| client.unlink(Fid::ROOT, b"f", false, caller()).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        assert_eq!(used(&mut c), before, "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A mount changes the file by the way of that number; its size then.
async fn change(client: Rc<Client>, fid: Fid, way: u64) -> Result<u64, Failure> {
    match way % 4 {
        0 => {
            let set = SetAttr { size: Some(77), ..SetAttr::default() };
            client.setattr(fid, set, caller()).await.map(|_| 77)
        }
        1 => {
            let (_, handle) = client.open(fid, 1, caller()).await?;
            write(&client, handle, 0, vec![1; 99]).await?;
            client.release(handle, None).await.map(|()| 99)
        }
        2 => {
            let args = support::new(Fid::ROOT, "f", support::FILE);
            let args = nacre_client::CreateArgs { exclusive: false, ..args };
            let (_, handle) = client.create(args, 2).await?;
            write(&client, handle, 0, vec![1; 55]).await?;
            client.release(handle, None).await.map(|()| 55)
        }
        _ => {
            let template = LayoutTemplate { stripe_bytes: 1 << 20, ..LayoutTemplate::default() };
            client.set_layout(fid, template, caller()).await.map(|()| 0)
        }
    }
}

#[test]
fn a_file_that_no_process_has_open_is_changed_as_such() {
    for seed in 1..=32 {
        let (mut c, mounts, fid) = scene(seed);
        let (by, other) = (mounts[seed as usize / 4 % 2], mounts[1 - seed as usize / 4 % 2]);
        let size = run(&mut c, by, async move |client| change(client, fid, seed).await);
        let size = size.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", c.world.trace(80)));
        check(&mut c, by, Some((fid, size)), &format!("seed {seed}"));
        check(&mut c, other, Some((fid, size)), &format!("seed {seed}, another mount"));
        assert_eq!(asked(&mut c, other).1, 0, "seed {seed}: the MDT knows the size");
        // The objects that a write has made are known: they go with the file.
        let removed = run(&mut c, by, async |client| client.unlink(Fid::ROOT, b"f", false, caller()).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
    }
}

#[test]
fn sync_and_unmount_send_what_is_kept() {
    let (mut c, [first, _], fid) = scene(1);
    run(&mut c, first, async |client| client.sync_all().await).expect("synced");
    check(&mut c, first, Some((fid, 0)), "after a sync");
    let (mut c, [first, second], fid) = scene(3);
    run(&mut c, first, async |client| client.unmount().await);
    check(&mut c, second, Some((fid, 0)), "after the unmount");
}

#[test]
fn a_mount_that_is_gone_or_evicted_keeps_no_close() {
    for seed in 1..=6 {
        let what = format!("seed {seed}");
        let (mut c, [first, second], fid) = scene(seed);
        if seed % 3 == 0 {
            c.world.kill(first);
        } else {
            c.world.pause(first, true);
        }
        c.world.run_for(25 * SEC);
        c.world.run_for(5 * SEC);
        check(&mut c, second, Some((fid, 0)), &what);
        if seed % 3 != 0 {
            let written = run(&mut c, second, async move |client| change(client, fid, 1).await);
            c.world.pause(first, false);
            c.world.run_for(5 * SEC);
            check(&mut c, first, Some((fid, written.expect("written"))), &what);
            let again = run(&mut c, first, async |client| touch(&client, "again").await);
            assert!(again.is_ok(), "{what}");
            c.world.run_for(200 * MS);
            check(&mut c, first, None, &what);
        }
    }
}

/// The creates may have to be replayed, and the closes are sent after them.
#[test]
fn closes_that_are_kept_while_the_mdt_is_lost_are_sent_to_the_next() {
    for seed in 1..=24 {
        let what = format!("seed {seed}");
        let (mut c, mounts, fid) = scene(seed);
        let mdt = c.servers[MDT];
        let pause = c.world.rng().below(if seed % 2 == 0 { 120 * MS } else { 2 * MS });
        c.world.run_for(pause);
        if seed % 3 == 0 {
            c.world.kill(mdt);
        } else {
            c.power_loss(MDT);
        }
        c.world.start_later(mdt, 100 * MS);
        let by = mounts[seed as usize % 2];
        if seed % 4 == 0 {
            c.world.run_for(10 * SEC);
            check(&mut c, by, Some((fid, 0)), &what);
        } else {
            // The first mount comes back a little later.
            c.world.block_for(mounts[0], mdt, seed * 50 * MS);
            let removed = run(&mut c, by, async move |client| remove(client, seed).await);
            assert_eq!(removed, Ok(()), "{what}");
            c.world.run_for(500 * MS);
            assert_eq!(open_files(&mut c), "0", "{what}\n{}", c.world.trace(80));
            // A restarted MDT asks the OSTs for the sizes of files that were open for writing.
            c.world.run_for(6 * SEC);
            check(&mut c, by, None, &what);
        }
    }
}

/// Both mounts create, close, write and remove in one directory, with one slot each, while connections break and the MDT is
/// killed. Each waits for locks of the other, and sends its closes before it returns some.
#[test]
fn mounts_that_wait_for_each_other_send_their_closes() {
    async fn work(client: Rc<Client>, own: u64) -> Result<(), Failure> {
        for round in 0..30_u64 {
            let name = format!("{}", round % 5);
            let args = nacre_client::CreateArgs {
                exclusive: false,
                ..support::new(Fid::ROOT, &name, support::FILE)
            };
            let (_, handle) = match client.create(args, 2).await {
                Err(Failure::ESTALE) => continue,
                created => created?,
            };
            if (round + own).is_multiple_of(3) {
                write(&client, handle, round, vec![1; 10]).await?;
            }
            client.release(handle, None).await?;
            if (round + own).is_multiple_of(4) {
                match client.unlink(Fid::ROOT, name.as_bytes(), false, caller()).await {
                    Ok(()) | Err(Failure::ENOENT) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
    for seed in 1..=16 {
        let mut c = cluster(seed, 1, 2);
        c.limit_slots(1 + seed as u16 % 2);
        let mdt = c.servers[MDT];
        let begin = c.world.now_ns();
        let jobs: Vec<_> = (0..4)
            .map(|n| {
                let mount = c.mounts[n as usize % 2];
                c.jobs.start(&mut c.world, mount, move |client| work(client, n))
            })
            .collect();
        if seed % 2 == 0 {
            for _ in 0..3 {
                let pause = c.world.rng().below(20 * MS);
                c.world.run_for(pause);
                c.world.cut_some_link(mdt);
            }
        }
        for job in jobs {
            let done: Result<(), Failure> = wait(&mut c, job);
            assert_eq!(done, Ok(()), "seed {seed}\n{}", c.world.trace(80));
        }
        let took = (c.world.now_ns() - begin) / MS;
        assert!(took < 5000, "seed {seed}: {took} ms\n{}", c.world.trace(80));
        c.world.run_for(SEC);
        assert_eq!(open_files(&mut c), "0", "seed {seed}\n{}", c.world.trace(80));
        // Both may have written a file at one time: the OSTs are asked, and again after a pause.
        c.world.run_for(10 * SEC);
        let first = c.mounts[0];
        check(&mut c, first, None, &format!("seed {seed}"));
    }
}
