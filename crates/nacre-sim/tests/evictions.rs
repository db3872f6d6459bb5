//! A mount that stood still beyond its lease: what programs called before it knew of its eviction is not done any more.
//! They called it under locks that others have by now.

mod support;

use nacre_client::{AllocateArgs, AllocateMode, Client};
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, OpenHandle, SetAttr};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use std::pin::Pin;
use std::rc::Rc;
use support::{FILE, MDT, OST, SEC, caller, create, make, on_devices, read, run, write};

const ALLOCATION: AllocateArgs = AllocateArgs {
    offset: 4096,
    len: 4096,
    mode: AllocateMode::Space { keep_size: false },
    kill_suidgid: None,
};

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
        client.flock(handle, lock(FlockType::Write, 1), false).await?;
        Ok::<_, Failure>((fid, handle))
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
            let got = client.flock(handle, lock(FlockType::Write, 1), false).await;
            let flushed = client.flush(handle, 1).await;
            (got, flushed, client.release(handle, None).await)
        });
        c.world.pause(first, false);
        type Got = (Result<FlockOutcome, Failure>, Result<(), Failure>, Result<(), Failure>);
        let got: Option<Got> = c.jobs.wait(&mut c.world, asked, 10 * SEC);
        assert_eq!(got, Some((Err(Failure::EIO), Err(Failure::EIO), Ok(()))), "seed {seed}");
        let theirs = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            client.flock(handle, lock(FlockType::Write, 2), false).await
        });
        assert_eq!(theirs, Ok(FlockOutcome::Granted), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A lock is its process's, whatever handle it was taken through; who has given his back, or never had one, goes on.
#[test]
fn every_handle_of_a_file_that_was_locked_is_lost_and_no_other() {
    for seed in 1..=8 {
        let (mut c, fid, _) = with_a_lock(seed);
        let first = c.mounts[0];
        let opened = run(&mut c, first, async move |client| {
            let (_, same) = client.open(fid, 2, caller()).await?;
            let free = make(&client, Fid::ROOT, "free", FILE).await?;
            let (_, unlocked) = client.open(free, 2, caller()).await?;
            client.flock(unlocked, lock(FlockType::Write, 1), false).await?;
            client.flock(unlocked, lock(FlockType::Unlock, 1), false).await?;
            Ok::<_, Failure>((same, unlocked))
        });
        let (same, unlocked) = opened.expect("opened");
        c.world.pause(first, true);
        c.world.run_for(15 * SEC);
        c.world.pause(first, false);
        c.world.run_for(2 * SEC);
        let lost = run(&mut c, first, async move |client| write(&client, same, 0, vec![1]).await);
        assert_eq!(lost, Err(Failure::EIO), "seed {seed}");
        run(&mut c, first, async move |client| write(&client, unlocked, 0, vec![1]).await).expect("goes on");
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
            let got = client.flock(handle, lock(FlockType::Write, 2), false).await?;
            make(&client, Fid::ROOT, "journal", FILE).await?;
            Ok::<_, Failure>(got)
        });
        assert_eq!(theirs, Ok(FlockOutcome::Granted), "seed {seed}");
        let unlink = c.jobs.start(&mut c.world, first, async move |client| {
            client.unlink(Fid::ROOT, b"journal", false, caller()).await.map(drop)
        });
        c.world.pause(first, false);
        let unlinked: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, unlink, 10 * SEC);
        let there = run(&mut c, second, async |client| client.lookup(Fid::ROOT, b"journal").await.map(drop));
        assert_eq!(
            (unlinked, there),
            (Some(Err(Failure::EIO)), Ok(())),
            "seed {seed}\n{}",
            c.world.trace(60)
        );
    }
}

/// It relies on no lock: listings and reads go on, whenever the mount learns of its eviction, and whether the request was sent
/// before the link was lost or waits for a connection.
#[test]
fn a_file_is_opened_for_reading_by_who_was_evicted_before() {
    for (seed, later) in (1..=8).flat_map(|seed| [(seed, 0), (seed, 20 * SEC)]) {
        let mut c = on_devices(seed, 2);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let fid =
            run(&mut c, second, async |client| make(&client, Fid::ROOT, "f", FILE).await).expect("made");
        let known = run(&mut c, first, async move |client| client.getattr(fid).await.map(drop));
        assert_eq!(known, Ok(()), "seed {seed}");
        let mdt = c.servers[MDT];
        for (from, to) in [(first, mdt), (mdt, first)] {
            c.world.block(from, to);
        }
        c.world.run_for(later);
        let opened = c.jobs.start(&mut c.world, first, async move |client| {
            let (_, handle) = client.open(fid, 0, caller()).await?;
            client.release(handle, None).await
        });
        c.world.run_for(25 * SEC - later);
        for (from, to) in [(first, mdt), (mdt, first)] {
            c.world.heal(from, to);
        }
        let opened: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, opened, 30 * SEC);
        assert_eq!(opened, Some(Ok(())), "seed {seed}, {later} ns later\n{}", c.world.trace(60));
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
        let synced: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, synced, 10 * SEC);
        assert_eq!(synced, Some(Err(Failure::EIO)), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// Whether the mount knows of its eviction already or not: the file is the next holder's.
#[test]
fn a_truncate_through_a_handle_that_has_lost_its_locks_is_not_made() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_a_lock(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        c.world.pause(first, true);
        c.world.run_for(15 * SEC);
        let theirs = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            client.flock(handle, lock(FlockType::Write, 2), false).await?;
            write(&client, handle, 0, vec![2; 1000]).await
        });
        assert_eq!(theirs, Ok(1000), "seed {seed}");
        if seed % 2 == 0 {
            c.world.pause(first, false);
            c.world.run_for(3 * SEC);
        }
        let cut = c.jobs.start(&mut c.world, first, async move |client| {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            client.setattr_through(handle, fid, set, caller()).await.map(drop)
        });
        c.world.pause(first, false);
        let cut: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, cut, 10 * SEC);
        let size =
            run(&mut c, second, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
        assert_eq!((cut, size), (Some(Err(Failure::EIO)), Ok(1000)), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// What a mount knew of a file before its eviction, others have changed since.
#[test]
fn a_close_after_the_eviction_does_not_bring_an_old_size_back() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let made = run(&mut c, first, async |client| {
            let (fid, handle) = create(&client, "f").await?;
            write(&client, handle, 0, vec![1; 100]).await.map(|_| (fid, handle))
        });
        let (fid, handle) = made.expect("made");
        c.world.pause(first, true);
        c.world.run_for(15 * SEC);
        let theirs = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            write(&client, handle, 100, vec![2; 900]).await?;
            client.release(handle, None).await
        });
        assert_eq!(theirs, Ok(()), "seed {seed}");
        c.world.pause(first, false);
        c.world.run_for(SEC);
        let closed = run(&mut c, first, async move |client| client.release(handle, None).await);
        assert_eq!(closed, Ok(()), "seed {seed}");
        let size =
            run(&mut c, second, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
        assert_eq!(size, Ok(1000), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// The MDT has taken the size when it evicted; the OST still served this mount.
#[test]
fn what_was_written_after_the_eviction_counts_at_the_close() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let (first, second, mdt) = (c.mounts[0], c.mounts[1], c.servers[support::MDT]);
        let made = run(&mut c, first, async |client| {
            let (fid, handle) = create(&client, "f").await?;
            write(&client, handle, 0, vec![1; 100]).await.map(|_| (fid, handle))
        });
        let (fid, handle) = made.expect("made");
        c.world.block_for(first, mdt, 20 * SEC);
        c.world.run_for(18 * SEC);
        let wrote =
            run(&mut c, first, async move |client| write(&client, handle, 100, vec![2; 900]).await.map(drop));
        assert_eq!(wrote, Ok(()), "seed {seed}");
        let closing =
            c.jobs.start(&mut c.world, first, async move |client| client.release(handle, None).await);
        let closed: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, closing, 30 * SEC);
        assert_eq!(closed, Some(Ok(())), "seed {seed}");
        c.world.run_for(2 * SEC);
        let size =
            run(&mut c, second, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
        assert_eq!(size, Ok(1000), "seed {seed}\n{}", c.world.trace(60));
    }
}

type CallFuture<T> = Pin<Box<dyn Future<Output = Result<T, Failure>>>>;

/// `call` waits for an OST that stands still, and its mount loses its file lock at the MDT meanwhile: what the call says.
fn acknowledged_after_the_eviction<T: Send + 'static>(
    seed: u64,
    call: fn(Rc<Client>, Fid, OpenHandle) -> CallFuture<T>,
) -> (Cluster, Option<Result<T, Failure>>, Fid) {
    let (mut c, fid, handle) = with_a_lock(seed);
    let (first, second, ost) = (c.mounts[0], c.mounts[1], c.servers[2]);
    let written = run(&mut c, first, async move |client| {
        client.fsync(fid, Some(handle)).await?;
        write(&client, handle, 0, vec![2; 4096]).await
    });
    assert_eq!(written, Ok(4096));
    let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
    let other = opened.expect("opened").1;
    c.world.pause(ost, true);
    let asked = c.jobs.start(&mut c.world, first, async move |client| call(client, fid, handle).await);
    c.world.run_for(SEC / 10);
    c.world.pause(first, true);
    c.world.run_for(15 * SEC);
    let theirs =
        run(&mut c, second, async move |client| client.flock(other, lock(FlockType::Write, 2), false).await);
    assert_eq!(theirs, Ok(FlockOutcome::Granted), "seed {seed}");
    c.world.pause(ost, false);
    c.world.run_for(SEC);
    c.world.pause(first, false);
    let got = c.jobs.wait(&mut c.world, asked, 30 * SEC);
    (c, got, fid)
}

/// It waited at the OST for longer than its client's locks were certain: the next holder must not meet it.
#[test]
fn a_write_that_reaches_its_ost_after_the_eviction_is_not_made() {
    for seed in 1..=8 {
        let (mut c, got, fid) = acknowledged_after_the_eviction(seed, |client, _, handle| {
            Box::pin(async move { write(&client, handle, 0, vec![1; 4096]).await })
        });
        assert_eq!(got, Some(Err(Failure::EIO)), "seed {seed}\n{}", c.world.trace(60));
        let second = c.mounts[1];
        assert_eq!(read(&mut c, second, fid), Ok(vec![2; 4096]), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// Its OST was away; its mount, which sends it again, cannot reach the MDT and does not know that it was evicted.
#[test]
fn a_write_that_is_sent_again_after_the_eviction_is_not_made() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_a_lock(seed);
        let (first, second, mdt, ost) = (c.mounts[0], c.mounts[1], c.servers[MDT], c.servers[OST]);
        let written = run(&mut c, first, async move |client| write(&client, handle, 0, vec![2; 4096]).await);
        assert_eq!(written, Ok(4096));
        let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
        let other = opened.expect("opened").1;
        c.world.kill(ost);
        let again = c
            .jobs
            .start(&mut c.world, first, async move |client| write(&client, handle, 0, vec![1; 4096]).await);
        c.world.run_for(SEC / 10);
        // The MGS may be in the MDT's process: what it hears counts for both.
        for server in [c.servers[0], mdt] {
            c.world.block_for(first, server, 30 * SEC);
        }
        c.world.run_for(15 * SEC);
        let theirs = run(&mut c, second, async move |client| {
            client.flock(other, lock(FlockType::Write, 2), false).await
        });
        assert_eq!(theirs, Ok(FlockOutcome::Granted), "seed {seed}");
        c.world.start_later(ost, 1);
        c.world.run_for(5 * SEC);
        assert_eq!(read(&mut c, second, fid), Ok(vec![2; 4096]), "seed {seed}\n{}", c.world.trace(60));
        let got: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, again, 60 * SEC);
        assert_eq!(got, Some(Err(Failure::EIO)), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// Its mount cannot reach the MDT and does not know that it was evicted: what it would read is the next holder's.
#[test]
fn a_read_beyond_the_lease_waits_for_the_word_of_the_mdt() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_a_lock(seed);
        let (first, second, ost) = (c.mounts[0], c.mounts[1], c.servers[OST]);
        let written = run(&mut c, first, async move |client| write(&client, handle, 0, vec![2; 4096]).await);
        assert_eq!(written, Ok(4096));
        // The OST may be in the MDT's process: what it hears counts for both.
        for server in c.servers.clone() {
            c.world.block_for(first, server, 30 * SEC);
        }
        c.world.run_for(15 * SEC);
        let theirs = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            client.flock(handle, lock(FlockType::Write, 2), false).await
        });
        assert_eq!(theirs, Ok(FlockOutcome::Granted), "seed {seed}");
        c.world.heal(first, ost);
        let read = c.jobs.start(&mut c.world, first, async move |client| {
            client.read(handle, 0, 4096).await.map(|bytes| bytes.concat())
        });
        let got: Option<Result<Vec<u8>, Failure>> = c.jobs.wait(&mut c.world, read, 60 * SEC);
        assert_eq!(got, Some(Err(Failure::EIO)), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A mount dies with a write in the socket of an OST that stands still. The MDT learns the size of the file when the dead
/// is evicted: nothing may make it longer after that.
#[test]
fn what_a_dead_mount_has_sent_is_not_made_after_its_eviction() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let (first, second, ost) = (c.mounts[0], c.mounts[1], c.servers[OST]);
        let made = run(&mut c, first, async |client| {
            let (fid, handle) = create(&client, "longer").await?;
            write(&client, handle, 0, vec![2; 4096]).await?;
            Ok::<_, Failure>((fid, handle))
        });
        let (fid, handle) = made.expect("written");
        c.world.pause(ost, true);
        let _never_acknowledged = c.jobs.start(&mut c.world, first, async move |client| match seed % 2 {
            0 => write(&client, handle, 4096, vec![1; 4096]).await.map(drop),
            _ => client.allocate(handle, ALLOCATION).await,
        });
        c.world.run_for(SEC / 10);
        c.world.kill(first);
        c.world.run_for(20 * SEC);
        c.world.pause(ost, false);
        c.world.run_for(5 * SEC);
        let size =
            run(&mut c, second, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
        assert_eq!(size, Ok(4096), "seed {seed}\n{}", c.world.trace(60));
        assert_eq!(read(&mut c, second, fid), Ok(vec![2; 4096]), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A writer is cut off from the MDT alone. Once that has evicted it, other mounts rely on the bytes: the OST, which the
/// writer reaches, must not take any more from it before the MDT knows its handle again, or hears of the truncate again.
#[test]
fn who_is_cut_off_from_the_mdt_alone_changes_nothing_after_its_eviction() {
    // Those of file systems whose targets are processes of their own.
    for seed in (1..=23).step_by(2) {
        let what = seed / 2 % 3;
        let mut c = on_devices(seed, 2);
        let (first, second, mdt, ost) = (c.mounts[0], c.mounts[1], c.servers[MDT], c.servers[OST]);
        let made = run(&mut c, first, async |client| {
            let (fid, handle) = create(&client, "shared").await?;
            write(&client, handle, 0, vec![2; 4096]).await?;
            Ok::<_, Failure>((fid, handle))
        });
        let (fid, handle) = made.expect("written");
        if what == 2 {
            // A truncate that the MDT has heard of, and whose cut waits.
            c.world.pause(ost, true);
        }
        let change = async move |client: Rc<Client>| match what {
            0 => write(&client, handle, 0, vec![1; 8192]).await.map(drop),
            1 => client.allocate(handle, ALLOCATION).await,
            _ => {
                let set = SetAttr { size: Some(8192), ..SetAttr::default() };
                client.setattr(fid, set, caller()).await.map(drop)
            }
        };
        let early = if what == 2 { Some(c.jobs.start(&mut c.world, first, change)) } else { None };
        c.world.run_for(SEC / 5);
        c.world.block_for(first, mdt, 40 * SEC);
        c.world.block_for(mdt, first, 40 * SEC);
        c.world.run_for(15 * SEC);
        c.world.pause(ost, false);
        let job = early.unwrap_or_else(|| c.jobs.start(&mut c.world, first, change));
        c.world.run_for(10 * SEC);
        let seen =
            run(&mut c, second, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
        assert_eq!(seen, Ok(4096), "seed {seed}\n{}", c.world.trace(60));
        if what != 2 {
            // A read waits for the lock under which the object is cut.
            let there = read(&mut c, second, fid).expect("read");
            assert!(there == [2; 4096], "seed {seed}\n{}", c.world.trace(60));
        }
        let done: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
        assert_eq!(done, Some(Ok(())), "seed {seed}\n{}", c.world.trace(60));
        let size =
            run(&mut c, second, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
        assert_eq!(size, Ok(8192), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// The MDT evicts a mount that cuts a file, and asks its OST for the size before the cut is made there.
#[test]
fn a_truncate_that_is_made_after_the_eviction_counts() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let (first, second, ost) = (c.mounts[0], c.mounts[1], c.servers[OST]);
        let made = run(&mut c, first, async |client| {
            let (fid, handle) = create(&client, "cut").await?;
            write(&client, handle, 0, vec![1; 8192]).await?;
            client.release(handle, None).await?;
            Ok::<_, Failure>(fid)
        });
        let fid = made.expect("written");
        c.world.run_for(SEC);
        c.world.pause(ost, true);
        let cut = c.jobs.start(&mut c.world, first, async move |client| {
            let set = SetAttr { size: Some(1000), ..SetAttr::default() };
            client.setattr(fid, set, caller()).await.map(drop)
        });
        c.world.run_for(SEC);
        c.world.pause(first, true);
        c.world.run_for(14 * SEC);
        c.world.pause(ost, false);
        c.world.run_for((seed % 4) * SEC);
        c.world.pause(first, false);
        let got: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, cut, 30 * SEC);
        assert!(
            matches!(got, Some(Ok(()) | Err(Failure::EIO))),
            "seed {seed}: {got:?}\n{}",
            c.world.trace(60)
        );
        c.world.run_for(5 * SEC);
        let size =
            run(&mut c, second, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size));
        let there = read(&mut c, second, fid).map(|bytes| bytes.len() as u64);
        assert_eq!(size, there, "seed {seed}: {got:?}\n{}", c.world.trace(60));
    }
}

/// An OST behind a network so slow that a change is on its way for longer than a quarter of the lease. A change that is
/// sent when half of the lease of the MDT is left comes too late, and is given more time than that quarter.
#[test]
fn a_change_without_file_locks_gets_through_a_slow_network() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 1);
        let first = c.mounts[0];
        let made = run(&mut c, first, async |client| create(&client, "slow").await);
        let (_, handle) = made.expect("created");
        (c.world.faults.far, c.world.faults.far_us) = (Some(c.servers[OST]), 2_650_000);
        // The lease of the MDT is renewed every three seconds.
        for pause in (0..3 * SEC).step_by(500_000_000) {
            let slow = c.jobs.start(&mut c.world, first, async move |client| {
                write(&client, handle, 0, vec![1; 4096]).await?;
                client.allocate(handle, ALLOCATION).await
            });
            let got: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, slow, 60 * SEC);
            assert_eq!(got, Some(Ok(())), "seed {seed}, {pause} ns\n{}", c.world.trace(60));
            c.world.run_for(pause);
        }
    }
}

/// A machine was suspended while an OST was killed. The file was opened after that, so its write does not depend on
/// anything that the OST has forgotten: it waits for the OST and succeeds.
#[test]
fn a_write_that_waits_for_an_ost_succeeds_although_the_ost_has_evicted_the_mount() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let (first, second, ost) = (c.mounts[0], c.mounts[1], c.servers[OST]);
        let made = run(&mut c, first, async |client| make(&client, Fid::ROOT, "file", FILE).await);
        let fid = made.expect("made");
        c.world.pause(first, true);
        c.world.run_for(15 * SEC);
        c.world.kill(ost);
        c.world.pause(first, false);
        c.world.run_for(2 * SEC);
        let opened = run(&mut c, first, async move |client| client.open(fid, 2, caller()).await);
        let (_, handle) = opened.expect("opened");
        let slow = c.jobs.start(&mut c.world, first, async move |client| {
            write(&client, handle, 0, vec![7; 4096]).await?;
            client.allocate(handle, ALLOCATION).await
        });
        c.world.run_for(SEC);
        c.world.start(ost);
        let got: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, slow, 60 * SEC);
        assert_eq!(got, Some(Ok(())), "seed {seed}\n{}", c.world.trace(60));
        let seen = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(fid, 0, caller()).await?;
            client.read(handle, 0, 8192).await.map(|parts| parts.concat())
        });
        assert_eq!(seen, Ok([[7; 4096], [0; 4096]].concat()), "seed {seed}");
    }
}

/// The bytes are durable, but what its caller does next would be done without the lock.
#[test]
fn a_sync_that_an_ost_acknowledges_after_the_eviction_is_no_success() {
    for seed in 1..=8 {
        let (c, got, _) = acknowledged_after_the_eviction(seed, |client, fid, handle| {
            Box::pin(async move { client.fsync(fid, Some(handle)).await })
        });
        assert_eq!(got, Some(Err(Failure::EIO)), "seed {seed}\n{}", c.world.trace(60));
    }
}
