//! Handles that end later than their programs close them, several together: they share their requests, and no mount sees that
//! they are still open, or that their bytes are not at the OSTs yet.

mod support;

use nacre_client::Client;
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, OpenHandle, SetAttr, Timestamp};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use std::rc::Rc;
use support::{
    MDT, MS, OST, SEC, caller, cluster, create, of_mdt, open_files, read, run, sent_to, wait, write,
    write_back,
};

const BYTES: usize = 3901;

/// A new file, written and closed.
async fn store(client: &Client, name: &str) -> Result<Fid, Failure> {
    let (fid, handle) = create(client, name).await?;
    write(client, handle, 0, vec![1; BYTES]).await?;
    client.release(handle, None).await.map(|()| fid)
}
/// Two mounts that keep bytes; the first has written and closed the file `f`, and its handle has not ended.
fn scene(seed: u64) -> (Cluster, [NodeId; 2], Fid) {
    let mut c = cluster(seed, 1, 2);
    write_back(&mut c);
    let mounts = [c.mounts[0], c.mounts[1]];
    if seed.is_multiple_of(2) {
        c.limit_slots(1);
    }
    let fid = run(&mut c, mounts[0], async |client| store(&client, "f").await).expect("stored");
    assert_eq!(open_files(&mut c), "1", "seed {seed}: the handle ends later");
    (c, mounts, fid)
}
/// New files, stored by the first mount one after the other.
fn many(c: &mut Cluster, files: u64) -> Vec<Fid> {
    let first = c.mounts[0];
    let stored = run(c, first, async move |client| {
        let mut fids = Vec::new();
        for number in 0..files {
            fids.push(store(&client, &format!("f{number}")).await?);
        }
        Ok::<_, Failure>(fids)
    });
    stored.expect("stored")
}
/// Requests with bytes that a mount has sent.
fn writes_sent(c: &mut Cluster, mount: NodeId) -> u64 {
    sent_to(c, mount, "osc.", "ost_write") + sent_to(c, mount, "osc.", "ost_write_many")
}
/// Requests with closes that a mount has sent.
fn closes_sent(c: &mut Cluster, mount: NodeId) -> u64 {
    sent_to(c, mount, "mdc.", "mds_close") + sent_to(c, mount, "mdc.", "mds_batch")
}
fn size(c: &mut Cluster, mount: NodeId, fid: Fid) -> Result<u64, Failure> {
    run(c, mount, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size))
}

#[test]
fn files_that_are_written_one_after_the_other_share_requests() {
    const FILES: u64 = 200;
    for seed in 1..=4 {
        let mut c = cluster(seed, 1, 2);
        write_back(&mut c);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let fids = many(&mut c, FILES);
        // At once, without a pause for the timer.
        for fid in [fids[0], fids[FILES as usize / 2], fids[FILES as usize - 1]] {
            assert_eq!(read(&mut c, second, fid), Ok(vec![1; BYTES]), "seed {seed}");
        }
        c.world.run_for(200 * MS);
        let writes = writes_sent(&mut c, first);
        let closes = closes_sent(&mut c, first);
        assert!(writes > 0 && writes <= FILES / 10, "seed {seed}: {writes} requests with bytes");
        assert!(closes > 0 && closes <= FILES / 6, "seed {seed}: {closes} requests with closes");
        assert_eq!(open_files(&mut c), "3", "seed {seed}: those of the second mount");
        assert_eq!(of_mdt(&mut c, ".unsettled_files"), "0", "seed {seed}");
    }
}

#[test]
fn a_handle_ends_after_a_while_by_itself() {
    for seed in 1..=4 {
        let (mut c, [first, second], fid) = scene(seed);
        c.world.run_for(50 * MS);
        assert_eq!(open_files(&mut c), "1", "seed {seed}");
        c.world.run_for(100 * MS);
        assert_eq!(open_files(&mut c), "0", "seed {seed}");
        for mount in [first, second] {
            assert_eq!(size(&mut c, mount, fid), Ok(BYTES as u64), "seed {seed}");
        }
        assert_eq!(sent_to(&mut c, second, "osc.", "ldlm_glimpse"), 0, "seed {seed}: the MDT knows the size");
    }
}

#[test]
fn files_that_are_read_for_the_first_time_share_requests() {
    const FILES: u64 = 100;
    for seed in 1..=4 {
        let mut c = cluster(seed, 1, 2);
        write_back(&mut c);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let fids = many(&mut c, FILES);
        c.world.run_for(SEC);
        let before = closes_sent(&mut c, first);
        let of_reads = fids.clone();
        let read = run(&mut c, first, async move |client| {
            let mut times = Vec::new();
            for fid in of_reads {
                client.getattr(fid).await?;
                let (_, handle) = client.open(fid, 0, caller()).await?;
                client.read(handle, 0, 100).await?;
                client.release(handle, None).await?;
                times.push(client.getattr(fid).await?.attr.atime);
            }
            Ok::<_, Failure>(times)
        });
        let times = read.expect("read");
        // A time that another mount sets after the close stays, however late the close is.
        let (last, set) = (fids[FILES as usize - 1], Timestamp { sec: 5, nsec: 6 });
        let touched = run(&mut c, second, async move |client| {
            let set = SetAttr { atime: Some(set), ..SetAttr::default() };
            client.setattr(last, set, caller()).await.map(drop)
        });
        assert_eq!(touched, Ok(()), "seed {seed}");
        c.world.run_for(200 * MS);
        let closes = closes_sent(&mut c, first) - before;
        assert!(closes <= FILES / 6, "seed {seed}: {closes} requests with closes");
        assert_eq!(open_files(&mut c), "0", "seed {seed}");
        for mount in [first, second] {
            let of_all = fids.clone();
            let seen = run(&mut c, mount, async move |client| {
                let mut seen = Vec::new();
                for fid in of_all {
                    seen.push(client.getattr(fid).await?.attr.atime);
                }
                Ok::<_, Failure>(seen)
            });
            let seen = seen.expect("seen");
            assert_eq!(seen[..seen.len() - 1], times[..times.len() - 1], "seed {seed}: those of the reads");
            assert_eq!(seen.last(), Some(&set), "seed {seed}\n{}", c.world.trace(60));
        }
    }
}

/// What a mount does with the file, by its number; returns the size that the file has then, if it still has a name.
async fn use_file(client: Rc<Client>, fid: Fid, way: u64) -> Result<Option<u64>, Failure> {
    let root = Fid::ROOT;
    match way % 6 {
        0 => client.unlink(root, b"f", false, caller()).await.map(|()| None),
        1 => {
            store(&client, "new").await?;
            client.rename((root, b"new"), (root, b"f"), 0, caller()).await.map(|()| None)
        }
        2 => {
            let set = SetAttr { size: Some(7), ..SetAttr::default() };
            client.setattr(fid, set, caller()).await.map(|_| Some(7))
        }
        3 => {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            write(&client, handle, BYTES as u64, vec![2; 10]).await?;
            client.release(handle, None).await.map(|()| Some(BYTES as u64 + 10))
        }
        4 => {
            let (_, handle) = client.open(fid, 0, caller()).await?;
            let bytes = client.read(handle, 0, 1 << 20).await?.concat();
            assert_eq!(bytes, vec![1; BYTES]);
            client.release(handle, None).await.map(|()| Some(BYTES as u64))
        }
        _ => client.link(fid, root, b"second", caller()).await.map(|_| Some(BYTES as u64)),
    }
}

#[test]
fn no_operation_can_tell_that_a_handle_ends_later() {
    for seed in 1..=24 {
        for by in [0, 1] {
            let what = format!("seed {seed}, mount {by}");
            let (mut c, mounts, fid) = scene(seed);
            let used = run(&mut c, mounts[by], async move |client| use_file(client, fid, seed).await);
            let expected = used.unwrap_or_else(|error| panic!("{what}: {error}\n{}", c.world.trace(80)));
            match expected {
                Some(expected) => {
                    for mount in mounts {
                        assert_eq!(size(&mut c, mount, fid), Ok(expected), "{what}\n{}", c.world.trace(80));
                    }
                }
                // The inode has ended with its name: no handle makes an orphan of it.
                None => assert_eq!(size(&mut c, mounts[1 - by], fid), Err(Failure::ESTALE), "{what}"),
            }
            c.world.run_for(SEC);
            assert_eq!(open_files(&mut c), "0", "{what}\n{}", c.world.trace(80));
        }
    }
}

/// Also of a write after somebody has set a time in the future, which the write replaces.
#[test]
fn all_mounts_agree_on_the_time_of_a_write_before_and_after_the_handle_ends() {
    for seed in 1..=12 {
        let (mut c, mounts, fid) = scene(seed);
        let now = run(&mut c, mounts[0], async move |client| client.getattr(fid).await.map(|e| e.attr.mtime));
        let now = now.expect("seen");
        let set_by = mounts[(seed % 2) as usize];
        let set = run(&mut c, set_by, async move |client| {
            let mtime = Some(Timestamp { sec: now.sec + 100_000, nsec: 0 });
            client.setattr(fid, SetAttr { mtime, ..SetAttr::default() }, caller()).await.map(drop)
        });
        set.expect("set");
        let shown = run(&mut c, mounts[0], async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            client.getattr(fid).await?;
            write(&client, handle, 0, vec![2; 100]).await?;
            if seed % 3 == 0 {
                client.getattr(fid).await?;
            }
            client.release(handle, None).await?;
            client.getattr(fid).await.map(|entry| entry.attr)
        });
        let shown = shown.expect("written");
        assert!(shown.mtime > now && shown.mtime.sec < now.sec + 1000, "seed {seed}: {:?}", shown.mtime);
        for pause in [0, 200 * MS] {
            c.world.run_for(pause);
            for mount in [mounts[1], mounts[0]] {
                let seen = run(&mut c, mount, async move |client| client.getattr(fid).await);
                let seen = seen.expect("seen").attr;
                assert_eq!((seen.mtime, seen.ctime), (shown.mtime, shown.ctime), "seed {seed}, {pause}");
            }
        }
    }
}

#[test]
fn a_lock_of_a_handle_ends_with_its_close() {
    for seed in 1..=4 {
        let mut c = cluster(seed, 1, 2);
        write_back(&mut c);
        let first = c.mounts[0];
        // An OFD lock ends with its handle, and the kernel does not tell its owner.
        let is_ofd = seed % 2 == 0;
        let lock = async move |client: &Client, handle: OpenHandle, owner: u64| {
            let family = if is_ofd { FlockFamily::Posix } else { FlockFamily::Flock };
            let kind = FlockType::Write;
            let lock = FileLock { family, kind, start: 0, end: u64::MAX, owner, pid: 1 };
            client.flock(handle, lock, false).await
        };
        let locked = run(&mut c, first, async move |client| {
            let (fid, handle) = create(&client, "f").await?;
            let (_, other) = client.open(fid, 2, caller()).await?;
            lock(&client, handle, 1).await?;
            write(&client, handle, 0, vec![1; BYTES]).await?;
            client.release(handle, (!is_ofd).then_some(1)).await?;
            lock(&client, other, 2).await
        });
        assert_eq!(locked, Ok(FlockOutcome::Granted), "seed {seed}\n{}", c.world.trace(60));
    }
}

#[test]
fn an_ost_that_is_away_stops_no_removal_and_no_open() {
    for seed in 1..=6 {
        let (mut c, [first, _], fid) = scene(seed);
        let ost = c.servers[OST];
        c.world.kill(ost);
        let job = c.jobs.start(&mut c.world, first, async move |client| match seed % 2 {
            0 => client.unlink(Fid::ROOT, b"f", false, caller()).await.map(drop),
            _ => client.open(fid, 0, caller()).await.map(drop),
        });
        let done: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, job, 2 * SEC);
        assert_eq!(done, Some(Ok(())), "seed {seed}\n{}", c.world.trace(60));
        c.world.start(ost);
        c.world.run_for(5 * SEC);
        match seed % 2 {
            0 => assert_eq!(open_files(&mut c), "0", "seed {seed}"),
            _ => assert_eq!(read(&mut c, first, fid), Ok(vec![1; BYTES]), "seed {seed}"),
        }
    }
}

#[test]
fn handles_that_end_while_the_mdt_is_lost_end_at_the_next() {
    for seed in 1..=24 {
        let what = format!("seed {seed}");
        let (mut c, [first, second], fid) = scene(seed);
        let mdt = c.servers[MDT];
        let pause = c.world.rng().below(if seed % 2 == 0 { 120 * MS } else { 2 * MS });
        c.world.run_for(pause);
        if seed % 3 == 0 {
            c.world.kill(mdt);
        } else {
            c.power_loss(MDT);
        }
        c.world.start_later(mdt, 100 * MS);
        c.world.run_for(15 * SEC);
        for mount in [second, first] {
            assert_eq!(size(&mut c, mount, fid), Ok(BYTES as u64), "{what}\n{}", c.world.trace(80));
            assert_eq!(read(&mut c, mount, fid), Ok(vec![1; BYTES]), "{what}");
        }
    }
}

#[test]
fn sync_and_unmount_end_all_handles() {
    for seed in 1..=4 {
        let (mut c, [first, second], fid) = scene(seed);
        if seed % 2 == 0 {
            run(&mut c, first, async |client| client.sync_all().await).expect("synced");
        } else {
            run(&mut c, first, async |client| client.unmount().await);
        }
        assert_eq!(open_files(&mut c), "0", "seed {seed}");
        c.world.kill(first);
        assert_eq!(size(&mut c, second, fid), Ok(BYTES as u64), "seed {seed}");
        assert_eq!(read(&mut c, second, fid), Ok(vec![1; BYTES]), "seed {seed}");
    }
}

/// The bytes may be lost with their mount, and nothing else is.
#[test]
fn a_mount_that_is_gone_or_evicted_leaves_no_handle() {
    for seed in 1..=6 {
        let what = format!("seed {seed}");
        let (mut c, [first, second], fid) = scene(seed);
        match seed % 2 {
            0 => c.world.kill(first),
            _ => c.world.pause(first, true),
        }
        c.world.run_for(30 * SEC);
        let seen = size(&mut c, second, fid);
        assert!(seen == Ok(0) || seen == Ok(BYTES as u64), "{what}: {seen:?}");
        assert_eq!(open_files(&mut c), "0", "{what}");
        if seed % 2 == 1 {
            c.world.pause(first, false);
            c.world.run_for(5 * SEC);
            let again = run(&mut c, first, async |client| store(&client, "again").await);
            let again = again.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(read(&mut c, second, again), Ok(vec![1; BYTES]), "{what}");
            c.world.run_for(SEC);
        }
    }
}

#[test]
fn many_programs_write_and_close_at_the_same_time() {
    for seed in 1..=4 {
        let mut c = cluster(seed, 1, 2);
        write_back(&mut c);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let jobs: Vec<_> = (0..40)
            .map(|number| {
                c.jobs.start(&mut c.world, first, async move |client| {
                    let mut fids = Vec::new();
                    for round in 0..5 {
                        fids.push(store(&client, &format!("f{number}-{round}")).await?);
                    }
                    Ok::<_, Failure>(fids)
                })
            })
            .collect();
        for job in jobs {
            for fid in wait::<Result<Vec<Fid>, Failure>>(&mut c, job).expect("stored") {
                assert_eq!(size(&mut c, second, fid), Ok(BYTES as u64), "seed {seed}");
            }
        }
        c.world.run_for(SEC);
        assert_eq!(open_files(&mut c), "0", "seed {seed}");
    }
}
