//! Truncates through a handle that is open for writing, of which the MDT is not told: every mount sees the size and the
//! times at once, and whoever dies, the size is the one that the objects have.

mod support;

use nacre_client::{Client, CreateArgs};
use nacre_sim::cluster::Cluster;
use nacre_types::{Attr, Failure, Fid, LayoutTemplate, OpenHandle, SetAttr, Timestamp};
use std::rc::Rc;
use support::{FILE, MDT, MS, OST, SEC, caller, cluster, create, new, read, run, wait, write, write_back};

const STRIPE: u32 = 64 << 10;
const LEN: usize = 3 * STRIPE as usize;

async fn truncate(client: &Client, (fid, handle): (Fid, OpenHandle), size: u64) -> Result<Attr, Failure> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    client.setattr_through(handle, fid, set, caller()).await.map(|entry| entry.attr)
}
async fn stat(client: Rc<Client>, fid: Fid) -> Result<Attr, Failure> {
    client.getattr(fid).await.map(|entry| entry.attr)
}
/// Two mounts; the first has a new file open, with [`LEN`] bytes in it.
fn scene(seed: u64, stripe_count: i32) -> (Cluster, Fid, OpenHandle) {
    let mut c = cluster(seed, 2, 2);
    c.world.run_for(5 * SEC); // the MDT has reached both OSTs
    let first = c.mounts[0];
    let made = run(&mut c, first, async move |client| {
        let layout =
            LayoutTemplate { stripe_count, stripe_bytes: STRIPE, first_ost: 0, ..LayoutTemplate::default() };
        let args = CreateArgs { layout: Some(layout), ..new(Fid::ROOT, "f", FILE) };
        let (entry, handle) = client.create(args, 2).await?;
        write(&client, handle, 0, vec![1; LEN]).await?;
        Ok::<_, Failure>((entry.attr.fid, handle))
    });
    let (fid, handle) = made.expect("made");
    (c, fid, handle)
}
fn content(sizes: &[usize]) -> Vec<u8> {
    let least = sizes.iter().copied().min().unwrap_or(LEN).min(LEN);
    let mut content = vec![1; least];
    content.resize(sizes.last().copied().unwrap_or(LEN), 0);
    content
}

#[test]
fn another_mount_sees_each_size_at_once_and_after_the_close() {
    for seed in 1..=16 {
        let (mut c, fid, handle) = scene(seed, 1 + (seed % 2) as i32);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let mut sizes = Vec::new();
        for size in [LEN - 7, STRIPE as usize + 100, LEN + 4000, 10, LEN] {
            sizes.push(size);
            let cut =
                run(&mut c, first, async move |client| truncate(&client, (fid, handle), size as u64).await);
            let seen = run(&mut c, second, async move |client| stat(client, fid).await);
            let (cut, seen) = (cut.expect("truncated"), seen.expect("seen"));
            assert_eq!((cut.size, seen.size), (size as u64, size as u64), "seed {seed}");
            assert_eq!((cut.mtime, cut.ctime), (seen.mtime, seen.ctime), "seed {seed}");
            assert!(cut.ctime >= cut.mtime);
            assert_eq!(read(&mut c, second, fid), Ok(content(&sizes)), "seed {seed}");
        }
        let before = run(&mut c, second, async move |client| stat(client, fid).await);
        let closed = run(&mut c, first, async move |client| client.release(handle, None).await);
        assert_eq!(closed, Ok(()));
        for mount in [first, second] {
            let after = run(&mut c, mount, async move |client| stat(client, fid).await).expect("seen");
            let before = before.as_ref().expect("seen");
            let shown = |attr: &Attr| (attr.size, attr.mtime, attr.ctime);
            assert_eq!(shown(&after), shown(before), "seed {seed}");
            assert_eq!(read(&mut c, mount, fid), Ok(content(&sizes)), "seed {seed}");
        }
    }
}

/// Its objects do not exist, so the time of the truncate is not theirs.
#[test]
fn another_mount_sees_the_time_at_which_an_empty_file_was_truncated() {
    for seed in 1..=8 {
        let (mut c, ..) = scene(seed, 1);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let made = run(&mut c, first, async |client| create(&client, "empty").await);
        let (fid, handle) = made.expect("made");
        let set = SetAttr { mtime: Some(Timestamp { sec: 1000, nsec: 0 }), ..SetAttr::default() };
        let old = run(&mut c, second, async move |client| client.setattr(fid, set, caller()).await);
        assert_eq!(old.expect("set").attr.mtime.sec, 1000);
        let cut = run(&mut c, first, async move |client| truncate(&client, (fid, handle), 0).await);
        let seen = run(&mut c, second, async move |client| stat(client, fid).await);
        let (cut, seen) = (cut.expect("truncated"), seen.expect("seen"));
        assert!(cut.mtime.sec > 1000, "seed {seed}");
        assert_eq!((cut.mtime, cut.ctime), (seen.mtime, seen.ctime), "seed {seed}");
    }
}

/// Whoever writes as well: only the OSTs know the size then.
#[test]
fn a_file_that_two_mounts_write_has_the_size_of_the_latest_change() {
    for seed in 1..=12 {
        let (mut c, fid, handle) = scene(seed, 1 + (seed % 2) as i32);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
        let (_, other) = opened.expect("opened");
        for round in 0..4u64 {
            let cut = run(&mut c, first, async move |client| truncate(&client, (fid, handle), round).await);
            assert_eq!(cut.map(|attr| attr.size), Ok(round), "seed {seed}");
            let end = 5000 + round;
            let wrote = run(&mut c, second, async move |client| write(&client, other, end, vec![2]).await);
            assert_eq!(wrote, Ok(1));
            let seen = run(&mut c, first, async move |client| stat(client, fid).await);
            assert_eq!(seen.map(|attr| attr.size), Ok(end + 1), "seed {seed}");
        }
        let theirs = run(&mut c, second, async move |client| truncate(&client, (fid, other), 77).await);
        assert_eq!(theirs.map(|attr| attr.size), Ok(77), "seed {seed}");
        let closed = run(&mut c, first, async move |client| client.release(handle, None).await);
        assert_eq!(closed, Ok(()));
        for mount in [first, second] {
            let seen = run(&mut c, mount, async move |client| stat(client, fid).await);
            assert_eq!(seen.map(|attr| attr.size), Ok(77), "seed {seed}");
        }
    }
}

/// The time of a truncate counts after one that was set explicitly, be that in the past or in the future.
#[test]
fn a_truncate_is_the_latest_change_of_the_times() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = scene(seed, 1);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let before = run(&mut c, first, async move |client| stat(client, fid).await).expect("seen");
        for sec in [1000, before.mtime.sec + 100_000] {
            let cut = run(&mut c, first, async move |client| {
                let mtime = Some(Timestamp { sec, nsec: 0 });
                client.setattr(fid, SetAttr { mtime, ..SetAttr::default() }, caller()).await?;
                truncate(&client, (fid, handle), 10).await
            });
            let cut = cut.expect("truncated");
            let seen = run(&mut c, second, async move |client| stat(client, fid).await).expect("seen");
            assert_eq!((cut.mtime, cut.ctime), (seen.mtime, seen.ctime), "seed {seed}");
            let is_now = |time: Timestamp| time > before.mtime && time.sec < before.mtime.sec + 1000;
            assert!(is_now(cut.ctime), "seed {seed}: {:?}", cut.ctime);
            assert!(is_now(cut.mtime), "seed {seed}: {:?}", cut.mtime);
            c.world.run_for(SEC);
        }
    }
}

/// As with open(2) and O_TRUNC: an object that does not exist stays as it is.
#[test]
fn a_truncate_of_an_empty_file_changes_its_times() {
    for seed in 1..=4 {
        let (mut c, _, _) = scene(seed, 1);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let times = run(&mut c, first, async move |client| {
            let (fid, handle) = create(&client, "empty").await?;
            client.release(handle, None).await?;
            let before = stat(client.clone(), fid).await?;
            let (_, handle) = client.open(fid, 2, caller()).await?;
            let cut = truncate(&client, (fid, handle), 0).await?;
            client.release(handle, None).await?;
            Ok::<_, Failure>((fid, before, cut, stat(client, fid).await?))
        });
        let (fid, before, cut, after) = times.expect("truncated");
        assert!(cut.mtime > before.mtime && cut.ctime > before.ctime, "seed {seed}: {before:?} {cut:?}");
        let seen = run(&mut c, second, async move |client| stat(client, fid).await).expect("seen");
        for attr in [after, seen] {
            assert_eq!((attr.mtime, attr.ctime), (cut.mtime, cut.ctime), "seed {seed}");
        }
    }
}

/// Servers are killed right after the truncate, or while it is under way.
#[test]
fn a_truncate_survives_the_servers() {
    for seed in 1..=24u64 {
        let (mut c, fid, handle) = scene(seed, 1 + (seed % 2) as i32);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let size = (seed * 1000) % LEN as u64;
        let job = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            truncate(&client, (fid, handle), size).await.map(|attr| attr.size)
        });
        c.world.run_for((seed % 6) * MS / 4);
        let killed = [&[MDT][..], &[OST], &[MDT, OST, OST + 1]][seed as usize % 3];
        for &server in killed {
            let node = c.servers[server];
            c.world.kill(node);
        }
        c.world.run_for((seed % 4) * 100 * MS);
        for &server in killed {
            let node = c.servers[server];
            c.world.start(node);
        }
        let done: Result<u64, Failure> = wait(&mut c, job);
        assert_eq!(done, Ok(size), "seed {seed}\n{}", c.world.trace(60));
        let seen = run(&mut c, second, async move |client| stat(client, fid).await.map(|attr| attr.size));
        assert_eq!(seen, Ok(size), "seed {seed}\n{}", c.world.trace(60));
        let closed = run(&mut c, first, async move |client| client.release(handle, None).await);
        assert_eq!(closed, Ok(()), "seed {seed}");
        for mount in [first, second] {
            assert_eq!(read(&mut c, mount, fid), Ok(vec![1; size as usize]), "seed {seed}");
        }
    }
}

/// The mount dies with the handle open: the MDT asks the OSTs.
#[test]
fn a_truncate_of_a_mount_that_dies_counts() {
    for seed in 1..=12 {
        let (mut c, fid, handle) = scene(seed, 1 + (seed % 2) as i32);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let size = 100 * seed;
        let cut = run(&mut c, first, async move |client| truncate(&client, (fid, handle), size).await);
        assert_eq!(cut.map(|attr| attr.size), Ok(size), "seed {seed}");
        c.world.kill(first);
        c.world.run_for((seed % 3) * 10 * SEC);
        let seen = run(&mut c, second, async move |client| stat(client, fid).await.map(|attr| attr.size));
        assert_eq!(seen, Ok(size), "seed {seed}\n{}", c.world.trace(60));
        assert_eq!(read(&mut c, second, fid), Ok(vec![1; size as usize]), "seed {seed}");
    }
}

/// The MDT has evicted the mount, whose handle it opens again.
#[test]
fn a_truncate_after_an_eviction_counts() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = scene(seed, 1);
        let (first, second, mdt) = (c.mounts[0], c.mounts[1], c.servers[MDT]);
        for (from, to) in [(first, mdt), (mdt, first)] {
            c.world.block_for(from, to, 30 * SEC);
        }
        c.world.run_for(15 * SEC);
        let before = run(&mut c, second, async move |client| stat(client, fid).await.map(|attr| attr.size));
        assert_eq!(before, Ok(LEN as u64), "seed {seed}");
        let job = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            truncate(&client, (fid, handle), 10).await.map(|attr| attr.size)
        });
        c.world.run_for(5 * SEC);
        let cached = run(&mut c, second, async move |client| stat(client, fid).await.map(|attr| attr.size));
        assert_eq!(cached, Ok(LEN as u64), "seed {seed}: the MDT does not know the handle");
        let done: Result<u64, Failure> = wait(&mut c, job);
        assert_eq!(done, Ok(10), "seed {seed}\n{}", c.world.trace(60));
        let seen = run(&mut c, second, async move |client| stat(client, fid).await.map(|attr| attr.size));
        assert_eq!(seen, Ok(10), "seed {seed}\n{}", c.world.trace(60));
    }
}

#[test]
fn kept_bytes_are_not_sent_after_a_truncate() {
    for seed in 1..=12 {
        let mut c = cluster(seed, 2, 2);
        write_back(&mut c);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let size = [0, 5000, 10_000, 20_000][seed as usize % 4];
        let made = run(&mut c, first, async move |client| {
            let (fid, handle) = create(&client, "kept").await?;
            write(&client, handle, 0, vec![1; 10_000]).await?;
            write(&client, handle, 15_000, vec![2; 1000]).await?;
            let cut = truncate(&client, (fid, handle), size).await?;
            assert_eq!(cut.size, size, "seed {seed}");
            let own = client.read(handle, 0, 30_000).await?.concat();
            let grown = truncate(&client, (fid, handle), 30_000).await?;
            assert_eq!(grown.size, 30_000, "seed {seed}");
            Ok::<_, Failure>((fid, handle, own))
        });
        let (fid, handle, own) = made.expect("truncated");
        let mut expected = [vec![1; 10_000], vec![0; 5000], vec![2; 1000], vec![0; 4000]].concat();
        expected.truncate(size as usize);
        assert_eq!(own, expected, "seed {seed}");
        expected.resize(30_000, 0);
        if seed % 3 == 0 {
            c.world.run_for(2 * SEC);
        }
        assert_eq!(read(&mut c, second, fid), Ok(expected.clone()), "seed {seed}");
        let closed = run(&mut c, first, async move |client| {
            client.fsync(fid, Some(handle)).await?;
            client.release(handle, None).await
        });
        assert_eq!(closed, Ok(()), "seed {seed}");
        assert_eq!(read(&mut c, first, fid), Ok(expected), "seed {seed}");
    }
}
