//! Access times: a mount that has the attributes of a file or directory in its cache learns that another one has read it.

mod support;

use nacre_client::Client;
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, OpenHandle, SetAttr, Timestamp};
use support::{DIR, MS, SEC, caller, cluster, create, make, run, sent_to, write};

const OLD: Timestamp = Timestamp { sec: 7, nsec: 8 };

/// Three mounts, a file and a directory with old access times.
fn scene(seed: u64) -> (Cluster, [NodeId; 3], [Fid; 2]) {
    let mut c = cluster(seed, 1, 3);
    let mounts = [c.mounts[0], c.mounts[1], c.mounts[2]];
    let made = run(&mut c, mounts[0], async |client| {
        let (file, handle) = create(&client, "f").await?;
        client.release(handle, None).await?;
        let dir = make(&client, Fid::ROOT, "d", DIR).await?;
        make(&client, dir, "sub", DIR).await?;
        for fid in [file, dir] {
            let set = SetAttr { atime: Some(OLD), ..SetAttr::default() };
            client.setattr(fid, set, caller()).await?;
        }
        Ok::<_, Failure>([file, dir])
    });
    c.world.run_for(SEC);
    (c, mounts, made.expect("made"))
}
/// A program of a mount opens and reads a file, or lists a directory.
fn begin(c: &mut Cluster, mount: NodeId, fid: Fid) -> OpenHandle {
    let read = run(c, mount, async move |client| {
        let is_dir = client.getattr(fid).await?.attr.is_dir();
        let (_, handle) = client.open(fid, 0, caller()).await?;
        if is_dir {
            client.listed_through(handle);
            client.readdir(fid, 0, 10, true).await?;
        } else {
            client.read(handle, 0, 100).await?;
        }
        Ok::<_, Failure>(handle)
    });
    read.expect("read")
}
/// It closes the file, and the MDT learns of the access.
fn end(c: &mut Cluster, mount: NodeId, handle: OpenHandle) {
    let closed = run(c, mount, async move |client| client.release(handle, None).await);
    assert_eq!(closed, Ok(()));
    c.world.run_for(300 * MS);
}
fn seen(c: &mut Cluster, mount: NodeId, fid: Fid) -> Timestamp {
    run(c, mount, async move |client: std::rc::Rc<Client>| client.getattr(fid).await)
        .expect("seen")
        .attr
        .atime
}
fn getattrs(c: &mut Cluster, mount: NodeId) -> u64 {
    sent_to(c, mount, "mdc.", "mds_getattr")
}

#[test]
fn another_mount_with_the_attributes_in_its_cache_sees_a_read() {
    for seed in 1..=6 {
        let (mut c, [first, second, _], fids) = scene(seed);
        for fid in fids {
            assert_eq!(seen(&mut c, second, fid), OLD, "seed {seed}");
            let before = getattrs(&mut c, second);
            assert_eq!(seen(&mut c, second, fid), OLD, "seed {seed}");
            assert_eq!(getattrs(&mut c, second), before, "seed {seed}: they are in the cache");
            let handle = begin(&mut c, first, fid);
            end(&mut c, first, handle);
            let now = seen(&mut c, first, fid);
            assert!(now > OLD, "seed {seed}: {now:?}");
            assert_eq!(seen(&mut c, second, fid), now, "seed {seed}\n{}", c.world.trace(60));
        }
    }
}

#[test]
fn readers_at_the_same_time_do_not_take_the_attributes_from_each_other() {
    for seed in 1..=6 {
        let (mut c, [first, second, third], [file, _]) = scene(seed);
        let into_second = c.world.now_ns() % SEC;
        c.world.run_for(SEC - into_second);
        // Both are to change the access time.
        let handles = [second, third].map(|mount| begin(&mut c, mount, file));
        end(&mut c, second, handles[0]);
        let shown = seen(&mut c, first, file);
        assert!(shown > OLD, "seed {seed}");
        let before = getattrs(&mut c, first);
        end(&mut c, third, handles[1]);
        assert!(seen(&mut c, third, file) >= shown, "seed {seed}");
        assert_eq!(seen(&mut c, first, file), shown, "seed {seed}: the difference is below a second");
        assert_eq!(getattrs(&mut c, first), before, "seed {seed}");
    }
}

#[test]
fn a_change_by_a_third_mount_does_not_wait_for_two_readers() {
    for seed in 1..=12 {
        let (mut c, [first, second, third], fids) = scene(seed);
        for fid in fids {
            let handles = [first, second].map(|mount| (mount, begin(&mut c, mount, fid)));
            for (mount, handle) in handles {
                let closed = run(&mut c, mount, async move |client| client.release(handle, None).await);
                assert_eq!(closed, Ok(()));
            }
            let began = c.world.now_ns();
            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            let changed =
                run(&mut c, third, async move |client| client.setattr(fid, set, caller()).await.map(drop));
            let took = c.world.now_ns() - began;
            assert!(changed.is_ok() && took < 100 * MS, "seed {seed}: {took} ns\n{}", c.world.trace(60));
        }
    }
}

#[test]
fn a_reader_does_not_wait_for_a_stopped_mount_that_knows_the_access_time() {
    const FILES: usize = 150;
    for seed in 1..=3 {
        let (mut c, [first, second, _], _) = scene(seed);
        let made = run(&mut c, first, async |client| {
            let mut files = Vec::new();
            for number in 0..FILES {
                let (fid, handle) = create(&client, &format!("f{number}")).await?;
                client.release(handle, None).await?;
                files.push(fid);
            }
            Ok::<_, Failure>(files)
        });
        let files = made.expect("made");
        c.world.run_for(SEC);
        for fid in &files {
            seen(&mut c, second, *fid);
        }
        c.world.pause(second, true);
        let mut slowest = 0;
        for fid in files {
            let began = c.world.now_ns();
            let handle = begin(&mut c, first, fid);
            let used = run(&mut c, first, async move |client| {
                client.release(handle, None).await?;
                let (own, handle) = create(&client, "own").await?;
                write(&client, handle, 0, vec![1; 10]).await?;
                client.release(handle, None).await?;
                let (_, again) = client.open(own, 1, caller()).await?;
                client.release(again, None).await?;
                client.unlink(Fid::ROOT, b"own", false, caller()).await
            });
            assert_eq!(used, Ok(()), "seed {seed}");
            slowest = slowest.max(c.world.now_ns() - began);
        }
        assert!(slowest < 100 * MS, "seed {seed}: {slowest} ns\n{}", c.world.trace(60));
    }
}
