//! A mount that stood still beyond its lease: what programs called before it knew of its eviction is not done any more.
//! They called it under locks that others have by now.

#[path = "support/mod.rs"]
mod support;

use nacre_sim::cluster::Cluster;
use nacre_types::{Errno, Fid, OpenHandle};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use support::{FILE, SEC, caller, make, on_devices, run};

fn lock(kind: FlockType, owner: u64) -> FileLock {
    FileLock { family: FlockFamily::Posix, kind, start: 0, end: u64::MAX, owner, pid: 1 }
}

/// Two mounts and a file that the first has open and locked.
fn with_a_lock(seed: u64) -> (Cluster, Fid, OpenHandle) {
    let mut c = on_devices(seed, 2);
    let first = c.mounts[0];
    let made = run(&mut c, first, async |client| {
        let fid = make(&client, Fid::ROOT, "locked", FILE).await?;
        let (_, handle) = client.open(fid, 2, caller()).await?;
        client.flock(handle, lock(FlockType::Write, 1), None).await?;
        Ok::<_, Errno>((fid, handle))
    });
    let (fid, handle) = made.expect("locked");
    (c, fid, handle)
}

/// A lock that came after all would belong to a handle that can do nothing any more, not even give it back.
#[test]
fn a_lock_that_was_called_for_before_the_eviction_is_not_taken_after_it() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_a_lock(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        c.world.pause(first, true);
        c.world.run_for(15 * SEC);
        let asked = c.jobs.start(&mut c.world, first, async move |client| {
            let got = client.flock(handle, lock(FlockType::Write, 1), None).await;
            let flushed = client.flush(handle, 1).await;
            (got, flushed, client.release(handle, None).await)
        });
        c.world.pause(first, false);
        type Got = (Result<FlockOutcome, Errno>, Result<(), Errno>, Result<(), Errno>);
        let got: Option<Got> = c.jobs.wait(&mut c.world, asked, 10 * SEC);
        assert_eq!(got, Some((Err(Errno::EIO), Err(Errno::EIO), Ok(()))), "seed {seed}");
        let theirs = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            client.flock(handle, lock(FlockType::Write, 2), None).await
        });
        assert_eq!(theirs, Ok(FlockOutcome::Granted), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// As SQLite does with its journal: the name is removed under a lock, and by now it is the next one's.
#[test]
fn a_name_is_not_removed_by_who_was_evicted_before() {
    for seed in 1..=8 {
        let (mut c, fid, _) = with_a_lock(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        c.world.pause(first, true);
        c.world.run_for(15 * SEC);
        let theirs = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            let got = client.flock(handle, lock(FlockType::Write, 2), None).await?;
            make(&client, Fid::ROOT, "journal", FILE).await?;
            Ok::<_, Errno>(got)
        });
        assert_eq!(theirs, Ok(FlockOutcome::Granted), "seed {seed}");
        let unlink = c.jobs.start(&mut c.world, first, async move |client| {
            client.unlink(Fid::ROOT, b"journal", false, caller()).await.map(drop)
        });
        c.world.pause(first, false);
        let unlinked: Option<Result<(), Errno>> = c.jobs.wait(&mut c.world, unlink, 10 * SEC);
        let there = run(&mut c, second, async |client| client.lookup(Fid::ROOT, b"journal").await.map(drop));
        assert_eq!((unlinked, there), (Some(Err(Errno::EIO)), Ok(())), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// As SQLite does before it removes its journal: a sync that says yes after the eviction would make it go on.
#[test]
fn a_sync_through_a_handle_that_has_lost_its_locks_fails() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_a_lock(seed);
        let first = c.mounts[0];
        c.world.pause(first, true);
        c.world.run_for(15 * SEC);
        let synced =
            c.jobs.start(&mut c.world, first, async move |client| client.fsync(fid, Some(handle)).await);
        c.world.pause(first, false);
        let synced: Option<Result<(), Errno>> = c.jobs.wait(&mut c.world, synced, 10 * SEC);
        assert_eq!(synced, Some(Err(Errno::EIO)), "seed {seed}\n{}", c.world.trace(60));
    }
}
