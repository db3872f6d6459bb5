//! Pages in the kernel of one mount, while another one changes the file: a read that begins after a change has ended
//! returns it, whatever happens to the processes and connections in between.

mod support;

use nacre_client::Client;
use nacre_sim::cluster::Cluster;
use nacre_sim::kernel::Kernel;
use nacre_sim::mount::JobId;
use nacre_types::{Failure, Fid, OpenHandle, SetAttr};
use std::rc::Rc;
use support::{MDT, OST, SEC, caller, create, on_devices, run, wait, write};

const BYTES: usize = 8192;

/// Two mounts; the first has a file open through a cached handle and its pages in the kernel.
fn with_pages(seed: u64) -> (Cluster, Fid, OpenHandle) {
    let mut c = on_devices(seed, 2);
    let (first, second) = (c.mounts[0], c.mounts[1]);
    let made = run(&mut c, second, async |client| {
        let (fid, handle) = create(&client, "read").await?;
        write(&client, handle, 0, vec![1; BYTES]).await?;
        client.release(handle, None).await?;
        Ok::<_, Failure>(fid)
    });
    let fid = made.expect("written");
    c.world.run_for(SEC);
    let opened = run(&mut c, first, async move |client| {
        // The first open asks the MDT, and is granted the lock with the attributes.
        client.getattr(fid).await?;
        let opened = Kernel::of(&client).open(&client, fid).await?;
        through(&client, opened.0, fid).await?;
        Ok::<_, Failure>(opened)
    });
    let (handle, is_cached) = opened.expect("read");
    assert!(is_cached, "seed {seed}: nobody writes");
    (c, fid, handle)
}
async fn through(client: &Client, handle: OpenHandle, fid: Fid) -> Result<Vec<u8>, Failure> {
    Kernel::of(client).read(client, handle, fid, 0, 2 * BYTES).await
}
/// The first byte and the length of what is read through the handle of the first mount.
fn begin_read(c: &mut Cluster, handle: OpenHandle, fid: Fid) -> JobId {
    let first = c.mounts[0];
    c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
        through(&client, handle, fid).await.map(|bytes| (bytes[0], bytes.len()))
    })
}
fn read(c: &mut Cluster, handle: OpenHandle, fid: Fid) -> Result<(u8, usize), Failure> {
    let job = begin_read(c, handle, fid);
    wait(c, job)
}
fn hits(c: &mut Cluster) -> u64 {
    let first = c.mounts[0];
    run(c, first, async |client| Kernel::of(&client).hits())
}
/// A mount opens the file, writes a byte everywhere, and closes it.
fn overwrite(c: &mut Cluster, mount: usize, fid: Fid, byte: u8) {
    let mount = c.mounts[mount];
    let written = run(c, mount, async move |client| {
        let (_, handle) = client.open(fid, 2, caller()).await?;
        Kernel::of(&client).writes(fid);
        write(&client, handle, 0, vec![byte; BYTES]).await?;
        Kernel::of(&client).wrote(fid);
        client.release(handle, None).await
    });
    assert_eq!(written, Ok(()));
}

#[test]
fn pages_are_used_while_nobody_writes_and_again_afterwards() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_pages(seed);
        let before = hits(&mut c);
        assert_eq!(read(&mut c, handle, fid), Ok((1, BYTES)));
        // Beyond the validity of the attributes.
        c.world.run_for(20 * SEC);
        assert_eq!(read(&mut c, handle, fid), Ok((1, BYTES)));
        assert_eq!(hits(&mut c), before + 2, "seed {seed}");
        for (writer, byte) in [(1, 2), (0, 3), (1, 4)] {
            overwrite(&mut c, writer, fid, byte);
            assert_eq!(read(&mut c, handle, fid), Ok((byte, BYTES)), "seed {seed}\n{}", c.world.trace(60));
            let before = hits(&mut c);
            assert_eq!(read(&mut c, handle, fid), Ok((byte, BYTES)), "seed {seed}");
            assert_eq!(hits(&mut c), before, "seed {seed}: the handle is from before");
        }
        c.world.run_for(10 * SEC);
        let first = c.mounts[0];
        let again = run(&mut c, first, async move |client| {
            client.release(handle, None).await?;
            client.getattr(fid).await?;
            let opened = Kernel::of(&client).open(&client, fid).await?;
            through(&client, opened.0, fid).await?;
            Ok::<_, Failure>(opened)
        });
        let (handle, is_cached) = again.expect("opened");
        assert!(is_cached, "seed {seed}");
        let before = hits(&mut c);
        assert_eq!(read(&mut c, handle, fid), Ok((4, BYTES)), "seed {seed}");
        assert_eq!(hits(&mut c), before + 1, "seed {seed}");
    }
}

/// While a writer has the file open, of the same mount or of another one, each read sees what was written before it.
#[test]
fn a_cached_handle_sees_each_write_of_a_file_that_is_open_for_writing() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_pages(seed);
        let writer = c.mounts[(seed % 2) as usize];
        let opened = run(&mut c, writer, async move |client| client.open(fid, 2, caller()).await);
        let (_, writing) = opened.expect("opened");
        for byte in 2..6 {
            let written = run(&mut c, writer, async move |client| {
                Kernel::of(&client).writes(fid);
                let written = write(&client, writing, 0, vec![byte; BYTES]).await;
                Kernel::of(&client).wrote(fid);
                written
            });
            assert!(written.is_ok(), "seed {seed}");
            for _ in 0..2 {
                assert_eq!(
                    read(&mut c, handle, fid),
                    Ok((byte, BYTES)),
                    "seed {seed}\n{}",
                    c.world.trace(60)
                );
            }
        }
    }
}

/// A page that was loaded while a writer had the file open is older than its last write. (The time of modification
/// would show that, unless the clock of the writer is behind.)
#[test]
fn attributes_that_a_program_reads_do_not_make_old_pages_good() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_pages(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
        let (_, writing) = opened.expect("opened");
        assert_eq!(read(&mut c, handle, fid), Ok((1, BYTES)), "seed {seed}");
        let written = run(&mut c, second, async move |client| {
            write(&client, writing, 0, vec![2; BYTES]).await?;
            client.release(writing, None).await
        });
        assert_eq!(written, Ok(()), "seed {seed}");
        // After the pause in which the MDT grants nothing that it has just revoked.
        c.world.run_for(10 * SEC);
        for _ in 0..2 {
            let known = run(&mut c, first, async move |client| Kernel::of(&client).size(&client, fid).await);
            assert_eq!(known, Ok(BYTES as u64), "seed {seed}");
        }
        assert_eq!(read(&mut c, handle, fid), Ok((2, BYTES)), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A reader loads a page again after the kernel has dropped it for a write of the same mount, and before that write.
#[test]
fn who_writes_on_the_same_mount_ends_the_use_of_pages() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_pages(seed);
        let first = c.mounts[0];
        let opened = run(&mut c, first, async move |client| {
            let (_, writing) = client.open(fid, 2, caller()).await?;
            Kernel::of(&client).writes(fid);
            Ok::<_, Failure>(writing)
        });
        let writing = opened.expect("opened");
        assert_eq!(read(&mut c, handle, fid), Ok((1, BYTES)), "seed {seed}");
        let written = run(&mut c, first, async move |client| {
            let written = write(&client, writing, 0, vec![2; BYTES]).await;
            Kernel::of(&client).wrote(fid);
            written
        });
        assert!(written.is_ok(), "seed {seed}");
        assert_eq!(read(&mut c, handle, fid), Ok((2, BYTES)), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A writer was evicted, and the MDT, which is slow to reach, lets a reader cache the file before it opens it again.
#[test]
fn a_write_after_the_eviction_waits_for_its_handle() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_pages(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
        let (_, writing) = opened.expect("opened");
        run(&mut c, first, async move |client| client.release(handle, None).await).expect("closed");
        c.world.pause(second, true);
        c.world.run_for(25 * SEC);
        let again = run(&mut c, first, async move |client| {
            client.getattr(fid).await?;
            Kernel::of(&client).open(&client, fid).await
        });
        let (handle, is_cached) = again.expect("opened");
        assert!(is_cached, "seed {seed}: the writer is evicted");
        (c.world.faults.far, c.world.faults.far_us) = (Some(c.servers[MDT]), 300_000);
        assert_eq!(read(&mut c, handle, fid), Ok((1, BYTES)), "seed {seed}");
        c.world.pause(second, false);
        let mut byte = 1;
        let written = (0..100).any(|_| {
            byte += 1;
            let done =
                run(&mut c, second, async move |client| write(&client, writing, 0, vec![byte; BYTES]).await);
            done.is_ok()
        });
        assert!(written, "seed {seed}\n{}", c.world.trace(60));
        assert_eq!(read(&mut c, handle, fid), Ok((byte, BYTES)), "seed {seed}\n{}", c.world.trace(60));
    }
}

#[test]
fn a_truncate_by_name_ends_the_use_of_pages() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_pages(seed);
        let other = c.mounts[(seed % 2) as usize];
        for (size, first) in [(100, 1), (0, 0), (BYTES as u64, 0)] {
            let cut = run(&mut c, other, async move |client| {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let cut = client.setattr(fid, set, caller()).await.map(drop);
                Kernel::of(&client).wrote(fid);
                cut
            });
            assert_eq!(cut, Ok(()));
            let mount = c.mounts[0];
            let seen = run(&mut c, mount, async move |client| through(&client, handle, fid).await);
            let seen = seen.expect("read");
            assert_eq!((seen.first().copied().unwrap_or(0), seen.len() as u64), (first, size), "seed {seed}");
        }
    }
}

/// A read is under way, of pages that are not there any more, when a writer comes and the lock is called back.
#[test]
fn a_lock_is_returned_while_a_read_waits_for_its_ost() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_pages(seed);
        let (first, second, ost) = (c.mounts[0], c.mounts[1], c.servers[OST]);
        run(&mut c, first, async move |client| Kernel::of(&client).writes(fid));
        c.world.block_for(first, ost, 4 * SEC);
        let waiting = begin_read(&mut c, handle, fid);
        c.world.run_for(SEC / 10);
        let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
        let (_, writing) = opened.expect("the open does not wait for the read");
        assert!(!c.jobs.is_done(waiting), "seed {seed}: it waits for the OST");
        let written =
            run(&mut c, second, async move |client| write(&client, writing, 0, vec![2; BYTES]).await);
        assert!(written.is_ok());
        let early: Result<(u8, usize), Failure> = wait(&mut c, waiting);
        assert!(matches!(early, Ok((1 | 2, BYTES))), "seed {seed}: {early:?}");
        assert_eq!(read(&mut c, handle, fid), Ok((2, BYTES)), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// The reader stands still, or is cut off from the MDT, while its lease runs out and another mount writes.
#[test]
fn pages_are_not_used_beyond_the_lease() {
    for seed in 1..=12 {
        let (mut c, fid, handle) = with_pages(seed);
        let first = c.mounts[0];
        let stopped = seed.is_multiple_of(3);
        if stopped {
            c.world.pause(first, true);
        } else {
            // All targets: those of one process renew the lease of each other.
            for server in c.servers.clone() {
                c.world.block_for(first, server, 60 * SEC);
                c.world.block_for(server, first, 60 * SEC);
            }
        }
        overwrite(&mut c, 1, fid, 2);
        let reading = begin_read(&mut c, handle, fid);
        c.world.run_for(10 * SEC);
        if stopped {
            c.world.pause(first, false);
        } else {
            assert!(!c.jobs.is_done(reading), "seed {seed}: it cannot know");
        }
        let seen: Result<(u8, usize), Failure> = wait(&mut c, reading);
        assert_eq!(seen, Ok((2, BYTES)), "seed {seed}\n{}", c.world.trace(80));
    }
}

/// A restarted MDT does not know which locks it has granted, nor a restarted OST who reads.
#[test]
fn pages_survive_no_restart_of_the_mdt_that_somebody_uses_to_write() {
    for seed in 1..=12 {
        let (mut c, fid, handle) = with_pages(seed);
        let server = c.servers[if seed.is_multiple_of(3) { OST } else { MDT }];
        c.world.kill(server);
        c.world.start_later(server, SEC / 5);
        if seed % 2 == 0 {
            c.world.run_for(SEC / 2);
        }
        overwrite(&mut c, 1, fid, 2);
        assert_eq!(read(&mut c, handle, fid), Ok((2, BYTES)), "seed {seed}\n{}", c.world.trace(80));
        overwrite(&mut c, 1, fid, 3);
        assert_eq!(read(&mut c, handle, fid), Ok((3, BYTES)), "seed {seed}\n{}", c.world.trace(80));
    }
}

/// Two mounts cache; a third of them writes, and is evicted with the file open. What it wrote last is what all see.
#[test]
fn a_writer_that_is_evicted_leaves_no_old_pages() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = with_pages(seed);
        let second = c.mounts[1];
        let opened = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            write(&client, handle, 0, vec![2; BYTES]).await?;
            Ok::<_, Failure>(handle)
        });
        let writing = opened.expect("written");
        assert_eq!(read(&mut c, handle, fid), Ok((2, BYTES)), "seed {seed}");
        c.world.pause(second, true);
        c.world.run_for(25 * SEC);
        for _ in 0..2 {
            assert_eq!(read(&mut c, handle, fid), Ok((2, BYTES)), "seed {seed}");
        }
        let later = c.jobs.start(&mut c.world, second, async move |client: Rc<Client>| {
            write(&client, writing, 0, vec![3; BYTES]).await
        });
        c.world.pause(second, false);
        let written: Result<u32, Failure> = wait(&mut c, later);
        if written == Err(Failure::EIO) {
            // It was asked for before the mount learned of the eviction.
            assert_eq!(read(&mut c, handle, fid), Ok((2, BYTES)), "seed {seed}\n{}", c.world.trace(80));
            let again =
                run(&mut c, second, async move |client| write(&client, writing, 0, vec![3; BYTES]).await);
            assert_eq!(again, Ok(BYTES as u32), "seed {seed}");
        }
        assert_eq!(read(&mut c, handle, fid), Ok((3, BYTES)), "seed {seed}\n{}", c.world.trace(80));
    }
}
