//! Small files whose bytes are at the MDT: every mount sees them, nothing acknowledged is lost with a process or a machine, and
//! they move to objects when the file grows or a second mount writes.

mod support;

use nacre_client::{AllocateArgs, AllocateMode, Client};
use nacre_sim::cluster::Cluster;
use nacre_sim::mount::JobId;
use nacre_types::{Failure, Fid, OpenHandle, SetAttr, Timestamp};
use std::rc::Rc;
use support::{
    DIR, MDT, MS, OST, SEC, append, caller, cluster, create, make, read, run, sent_to, wait, write,
    write_back,
};

const DOM_BYTES: u32 = 1000;

/// Mounts that keep bytes, and an MDT that keeps the bytes of small files.
fn started(seed: u64, mounts: u32) -> Cluster {
    let mut c = cluster(seed, 2, mounts);
    write_back(&mut c);
    c.keep_data_at_mdt(DOM_BYTES).expect("the root has a layout");
    c
}
/// The first mount writes a new file; it is open.
fn written(c: &mut Cluster, name: &'static str, data: Vec<u8>) -> (Fid, OpenHandle) {
    let first = c.mounts[0];
    let made = run(c, first, async move |client| {
        let (fid, handle) = create(&client, name).await?;
        write(&client, handle, 0, data).await?;
        Ok::<_, Failure>((fid, handle))
    });
    made.expect("written")
}
fn close(c: &mut Cluster, handle: OpenHandle) {
    let first = c.mounts[0];
    let closed = run(c, first, async move |client| client.release(handle, None).await);
    assert_eq!(closed, Ok(()));
}
fn fsync(c: &mut Cluster, fid: Fid, handle: OpenHandle) {
    let first = c.mounts[0];
    let synced = run(c, first, async move |client| client.fsync(fid, Some(handle)).await);
    assert_eq!(synced, Ok(()));
}
/// The first mount has written 500 bytes to a new file and synced them; it is open.
fn synced(seed: u64) -> (Cluster, Fid, OpenHandle) {
    let mut c = started(seed, 2);
    let (fid, handle) = written(&mut c, "file", vec![1; 500]);
    fsync(&mut c, fid, handle);
    (c, fid, handle)
}
fn size(c: &mut Cluster, mount: usize, fid: Fid) -> Result<u64, Failure> {
    let mount = c.mounts[mount];
    run(c, mount, async move |client| client.getattr(fid).await.map(|entry| entry.attr.size))
}
/// The bytes that the layout of a file lets the MDT have.
fn dom_bytes(c: &mut Cluster, fid: Fid) -> u32 {
    let first = c.mounts[0];
    run(c, first, async move |client| client.layout(fid).await)
        .expect("told")
        .layout
        .expect("a file")
        .dom_bytes
}
/// What both mounts see.
#[track_caller]
fn assert_seen(c: &mut Cluster, fid: Fid, expected: &[u8]) {
    for mount in 0..2 {
        let node = c.mounts[mount];
        let seen = read(c, node, fid);
        assert!(seen.as_deref() == Ok(expected), "mount {mount}: {seen:?}\n{}", c.world.trace(60));
        assert_eq!(size(c, mount, fid), Ok(expected.len() as u64), "mount {mount}");
    }
}

/// The append of 800 bytes to a synced file succeeds in the end, and both mounts see all of its bytes.
#[track_caller]
fn assert_grown(c: &mut Cluster, seed: u64, fid: Fid, grown: JobId) {
    assert_eq!(wait::<Result<u32, Failure>>(c, grown), Ok(800), "seed {seed}\n{}", c.world.trace(60));
    let mut expected = vec![1; 500];
    expected.extend([2; 800]);
    assert_seen(c, fid, &expected);
}

#[test]
fn a_small_file_needs_no_ost() {
    for seed in 1..=4 {
        let mut c = started(seed, 2);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        // Both mounts know the OSTs then.
        let (large, _) = written(&mut c, "large", vec![1; 5000]);
        assert_seen(&mut c, large, &[1; 5000]);
        let before =
            (sent_to(&mut c, first, "osc.", "ost_write"), sent_to(&mut c, second, "osc.", "ost_read"));
        let (fid, handle) = written(&mut c, "file", vec![7; 900]);
        assert_eq!(size(&mut c, 0, fid), Ok(900));
        close(&mut c, handle);
        assert_seen(&mut c, fid, &[7; 900]);
        let after =
            (sent_to(&mut c, first, "osc.", "ost_write"), sent_to(&mut c, second, "osc.", "ost_read"));
        assert_eq!(before, after, "seed {seed}");
        assert_eq!(dom_bytes(&mut c, fid), DOM_BYTES);
        let removed =
            run(&mut c, second, async |client| client.unlink(Fid::ROOT, b"file", false, caller()).await);
        assert_eq!(removed, Ok(()));
    }
}

/// A mount that has closed a file with its bytes reads them without a request, until anybody changes them.
#[test]
fn bytes_that_a_mount_has_closed_a_file_with_are_read_without_a_request() {
    for seed in 1..=12u64 {
        let mut c = started(seed, 2);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let reads = |c: &mut Cluster| sent_to(c, first, "mdc.", "mds_read_data");
        let (fid, handle) = written(&mut c, "file", vec![1; 500]);
        close(&mut c, handle);
        let before = reads(&mut c);
        assert_eq!(read(&mut c, first, fid), Ok(vec![1; 500]), "seed {seed}");
        assert_eq!(reads(&mut c), before, "seed {seed}: a request for known bytes");
        let mut expected = vec![1; 500];
        let changer = if seed % 2 == 0 { first } else { second };
        let changed = match seed / 2 % 4 {
            0 => run(&mut c, changer, async move |client| {
                let (_, handle) = client.open(fid, 2, caller()).await?;
                write(&client, handle, 100, vec![2; 10]).await?;
                client.release(handle, None).await
            }),
            1 => run(&mut c, changer, async move |client| {
                let size = SetAttr { size: Some(120), ..SetAttr::default() };
                client.setattr(fid, size, caller()).await.map(drop)
            }),
            2 => run(&mut c, changer, async move |client| {
                let (_, handle) = client.open(fid, 2, caller()).await?;
                append(&client, handle, vec![3; 10]).await?;
                client.release(handle, None).await
            }),
            _ => run(&mut c, changer, async move |client| {
                let (_, handle) = client.open(fid, 2, caller()).await?;
                let mode = AllocateMode::Zeros { keep_size: true };
                client
                    .allocate(handle, AllocateArgs { offset: 0, len: 50, mode, kill_suidgid: None })
                    .await?;
                client.release(handle, None).await
            }),
        };
        assert_eq!(changed, Ok(()), "seed {seed}");
        match seed / 2 % 4 {
            0 => expected[100..110].fill(2),
            1 => expected.truncate(120),
            2 => expected.extend([3; 10]),
            _ => expected[..50].fill(0),
        }
        assert_seen(&mut c, fid, &expected);
    }
}

/// Every way to change a file through the mount that made it, beside a model.
#[test]
fn random_changes_through_one_mount_are_seen_by_both() {
    for seed in 1..=24u64 {
        let mut c = started(seed, 2);
        let first = c.mounts[0];
        let (fid, mut handle) = written(&mut c, "file", Vec::new());
        let mut bytes: Vec<u8> = Vec::new();
        for number in 1..=40u8 {
            let rng = c.world.rng();
            let (offset, len) = (rng.below(700), [1, 30, 400][rng.below(3) as usize]);
            let data = vec![number; len];
            let what = rng.below(12);
            let done: Result<(), Failure> = match what {
                0..=3 => {
                    let end = offset as usize + len;
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[offset as usize..end].fill(number);
                    run(&mut c, first, async move |client| {
                        write(&client, handle, offset, data).await.map(drop)
                    })
                }
                4 | 5 => {
                    bytes.extend(&data);
                    run(&mut c, first, async move |client| append(&client, handle, data).await.map(drop))
                }
                6 | 7 => {
                    bytes.resize(offset as usize, 0);
                    run(&mut c, first, async move |client| {
                        let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                        client.setattr_through(handle, fid, set, caller()).await.map(drop)
                    })
                }
                8 => run(&mut c, first, async move |client| client.fsync(fid, Some(handle)).await),
                9 => {
                    close(&mut c, handle);
                    let opened = run(&mut c, first, async move |client| client.open(fid, 2, caller()).await);
                    handle = opened.expect("opened").1;
                    Ok(())
                }
                10 => {
                    let pause = c.world.rng().below(700 * MS);
                    c.world.run_for(pause);
                    Ok(())
                }
                _ => {
                    assert_seen(&mut c, fid, &bytes);
                    Ok(())
                }
            };
            assert_eq!(done, Ok(()), "seed {seed}, change {number} of kind {what}\n{}", c.world.trace(60));
            if bytes.len() > 3 * DOM_BYTES as usize {
                bytes.clear();
                let cut = run(&mut c, first, async move |client| {
                    let set = SetAttr { size: Some(0), ..SetAttr::default() };
                    client.setattr(fid, set, caller()).await.map(drop)
                });
                assert_eq!(cut, Ok(()));
            }
        }
        assert_seen(&mut c, fid, &bytes);
        close(&mut c, handle);
        assert_seen(&mut c, fid, &bytes);
    }
}

#[test]
fn a_file_that_grows_moves_to_objects_with_what_it_had() {
    for seed in 1..=12 {
        let mut c = started(seed, 2);
        let (fid, handle) = written(&mut c, "file", vec![1; 600]);
        if seed % 3 > 0 {
            close(&mut c, handle);
        }
        if seed % 3 == 1 {
            c.world.run_for(SEC);
        }
        let first = c.mounts[0];
        let grown = run(&mut c, first, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            append(&client, handle, vec![2; 600]).await?;
            client.release(handle, None).await
        });
        assert_eq!(grown, Ok(()), "seed {seed}");
        let mut expected = vec![1; 600];
        expected.extend([2; 600]);
        assert_seen(&mut c, fid, &expected);
        assert_eq!(dom_bytes(&mut c, fid), 0, "seed {seed}");
    }
}

#[test]
fn two_mounts_write_one_small_file_through_its_objects() {
    for seed in 1..=12 {
        let mut c = started(seed, 2);
        let (fid, handle) = written(&mut c, "file", vec![1; 500]);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
        let other = opened.expect("opened").1;
        let mut expected = vec![1; 500];
        for round in 0..6u8 {
            let (mount, handle) = if round % 2 == 0 { (second, other) } else { (first, handle) };
            let wrote = run(&mut c, mount, async move |client| append(&client, handle, vec![round; 3]).await);
            assert_eq!(wrote, Ok(3), "seed {seed}");
            expected.extend([round; 3]);
        }
        assert_seen(&mut c, fid, &expected);
        assert_eq!(dom_bytes(&mut c, fid), 0);
    }
}

/// It has no name any more: its mount still has locks of it, under which it keeps bytes while their way is open.
#[test]
fn a_removed_file_that_is_open_grows() {
    for seed in 1..=24 {
        let mut c = started(seed, 2);
        let (fid, handle) = written(&mut c, "file", vec![1; 500]);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        if seed % 2 == 0 {
            fsync(&mut c, fid, handle);
        }
        let is_shared = seed % 4 > 1;
        let opened = run(&mut c, second, async move |client| match is_shared {
            true => client.open(fid, 2, caller()).await.map(drop),
            false => Ok(()),
        });
        assert_eq!(opened, Ok(()));
        let remover = c.mounts[usize::from(seed % 3 == 0)];
        let removed =
            run(&mut c, remover, async |client| client.unlink(Fid::ROOT, b"file", false, caller()).await);
        assert_eq!(removed, Ok(()));
        let seen = run(&mut c, first, async move |client| {
            for (offset, len) in [(500, 100), (990, 300)] {
                write(&client, handle, offset, vec![2; len]).await?;
            }
            Ok::<_, Failure>(client.read(handle, 0, 5000).await?.concat())
        });
        let mut expected = vec![1; 500];
        expected.extend([2; 100]);
        expected.resize(990, 0);
        expected.extend([2; 300]);
        assert!(seen == Ok(expected), "seed {seed}: {seen:?}\n{}", c.world.trace(60));
    }
}

#[test]
fn both_mounts_truncate_and_allocate() {
    for seed in 1..=12 {
        let mut c = started(seed, 2);
        let (fid, handle) = written(&mut c, "file", vec![1; 500]);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let truncate = |size| {
            async move |client: Rc<Client>| {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                client.setattr(fid, set, caller()).await.map(|entry| entry.attr.size)
            }
        };
        assert_eq!(run(&mut c, second, truncate(300)), Ok(300), "seed {seed}");
        assert_seen(&mut c, fid, &[1; 300]);
        assert_eq!(run(&mut c, first, truncate(400)), Ok(400), "seed {seed}");
        let mut expected = vec![1; 300];
        expected.resize(400, 0);
        assert_seen(&mut c, fid, &expected);
        assert_eq!(dom_bytes(&mut c, fid), DOM_BYTES);
        let large = if seed % 2 == 0 { first } else { second };
        assert_eq!(run(&mut c, large, truncate(5000)), Ok(5000), "seed {seed}");
        expected.resize(5000, 0);
        assert_seen(&mut c, fid, &expected);
        assert_eq!(dom_bytes(&mut c, fid), 0);
        close(&mut c, handle);

        let (fid, handle) = written(&mut c, "other", vec![2; 500]);
        let sought = run(&mut c, first, async move |client| {
            Ok::<_, Failure>((client.seek(handle, 10, true).await?, client.seek(handle, 10, false).await?))
        });
        assert_eq!(sought, Ok((10, 500)));
        let punched = run(&mut c, first, async move |client| {
            let args = AllocateArgs { offset: 100, len: 50, mode: AllocateMode::Hole, kill_suidgid: None };
            client.allocate(handle, args).await
        });
        assert_eq!(punched, Ok(()), "seed {seed}");
        let mut expected = vec![2; 500];
        expected[100..150].fill(0);
        assert_seen(&mut c, fid, &expected);
    }
}

/// Process and machine of the MDT, with the bytes in every state.
#[test]
fn acknowledged_bytes_survive_the_loss_of_a_server() {
    for seed in 1..=32 {
        let mut c = started(seed, 2);
        let (fid, handle) = written(&mut c, "file", vec![1; 500]);
        match seed % 4 {
            0 => {}
            1 => close(&mut c, handle),
            2 => c.world.run_for(600 * MS),
            _ => fsync(&mut c, fid, handle),
        }
        let lost = if seed % 8 < 6 { MDT } else { OST };
        if seed % 3 == 0 {
            c.world.kill(c.servers[lost]);
        } else {
            c.power_loss(lost);
        }
        let pause = c.world.rng().below(300 * MS);
        c.world.run_for(pause);
        c.world.start(c.servers[lost]);
        assert_seen(&mut c, fid, &[1; 500]);
    }
}

/// The bytes move while the MDT or the OST dies; the file had been synced before.
#[test]
fn synced_bytes_survive_a_move_to_objects_that_is_cut_off() {
    for seed in 1..=40 {
        let (mut c, fid, handle) = synced(seed);
        let first = c.mounts[0];
        let grown = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            append(&client, handle, vec![2; 800]).await
        });
        let pause = c.world.rng().below(6 * MS);
        c.world.run_for(pause);
        let lost = if seed % 2 == 0 { MDT } else { OST + (seed % 4 / 2) as usize };
        if seed % 5 == 0 {
            c.world.kill(c.servers[lost]);
        } else {
            c.power_loss(lost);
        }
        c.world.run_for(100 * MS);
        c.world.start(c.servers[lost]);
        assert_grown(&mut c, seed, fid, grown);
    }
}

/// The whole machine is lost some time after the bytes of a file that had been synced have moved.
#[test]
fn synced_bytes_that_have_moved_survive_a_loss_of_power() {
    for seed in 1..=24 {
        let (mut c, fid, handle) = synced(seed);
        let first = c.mounts[0];
        let grown = run(&mut c, first, async move |client| append(&client, handle, vec![2; 800]).await);
        assert_eq!(grown, Ok(800));
        let pause = c.world.rng().below(1500 * MS);
        c.world.run_for(pause);
        c.lose_power().expect("it comes back");
        c.world.run_for(15 * SEC); // the leases of the mounts that are gone
        let last = *c.mounts.last().expect("there is one more");
        let seen = read(&mut c, last, fid).expect("what was synced can be read");
        assert!(seen.len() >= 500 && seen[..500] == [1; 500], "seed {seed}: {} bytes", seen.len());
    }
}

/// An outcome of the OST, which rejects the bytes as late, is the MDT's to handle.
#[test]
fn a_move_to_objects_waits_for_an_ost_that_stands_still() {
    for seed in 1..=12 {
        let (mut c, fid, handle) = synced(seed);
        let first = c.mounts[0];
        let grown = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            append(&client, handle, vec![2; 800]).await
        });
        let pause = c.world.rng().below(3 * MS);
        c.world.run_for(pause);
        for ost in [OST, OST + 1] {
            c.world.pause_for(c.servers[ost], (1 + seed % 4) * 2 * SEC);
        }
        assert_grown(&mut c, seed, fid, grown);
    }
}

/// Sets the size through a mount.
async fn set_size(client: Rc<Client>, fid: Fid, size: u64) -> Result<(), Failure> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    client.setattr(fid, set, caller()).await.map(drop)
}
/// The second mount extends the file: what was cut off before are zeros.
#[track_caller]
fn assert_zeros_after(c: &mut Cluster, fid: Fid, mut expected: Vec<u8>) {
    let second = c.mounts[1];
    let extended = run(c, second, async move |client| set_size(client, fid, 5000).await);
    assert_eq!(extended, Ok(()));
    expected.resize(5000, 0);
    let seen = read(c, second, fid).expect("read");
    assert!(
        seen == expected,
        "first difference at {:?}\n{}",
        seen.iter().zip(&expected).position(|(a, b)| a != b),
        c.world.trace(60)
    );
}

/// The object has bytes already, and the MDT cuts them off before they have moved.
#[test]
fn bytes_that_are_cut_off_during_a_move_to_objects_do_not_return() {
    for seed in 1..=120 {
        let (mut c, fid, handle) = synced(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let kept = [100, 0][(seed % 2) as usize];
        let grown = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            append(&client, handle, vec![2; 800]).await
        });
        c.world.run_for(seed / 2 * MS / 10);
        let cut = run(&mut c, second, async move |client| set_size(client, fid, kept).await);
        assert_eq!(cut, Ok(()), "seed {seed}");
        assert_eq!(wait::<Result<u32, Failure>>(&mut c, grown), Ok(800), "seed {seed}");
        let mut expected = vec![1; kept as usize];
        let seen = read(&mut c, second, fid).expect("read");
        if seen.len() > kept as usize {
            expected.extend([2; 800]);
        }
        assert!(seen == expected, "seed {seed}: {} bytes\n{}", seen.len(), c.world.trace(60));
        assert_zeros_after(&mut c, fid, expected);
    }
}

/// The same with a move that ended with the mount that wanted it, or with the MDT.
#[test]
fn bytes_that_are_cut_off_after_a_move_that_did_not_end_do_not_return() {
    for seed in 1..=40 {
        let (mut c, fid, handle) = synced(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let kept = [100, 0][(seed % 2) as usize];
        c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            append(&client, handle, vec![2; 800]).await
        });
        c.world.run_for(seed / 2 * MS * 3 / 10);
        c.world.kill(first);
        c.world.kill(c.servers[MDT]);
        c.world.run_for(100 * MS);
        c.world.start(c.servers[MDT]);
        c.world.run_for(15 * SEC); // the lease of the first mount
        let cut = run(&mut c, second, async move |client| set_size(client, fid, kept).await);
        assert_eq!(cut, Ok(()), "seed {seed}");
        assert_zeros_after(&mut c, fid, vec![1; kept as usize]);
    }
}

/// The move takes the time of the last change to the object, not the one that was set: that would stay there for ever.
#[test]
fn a_time_in_the_future_does_not_outlive_the_move_to_objects() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = synced(seed);
        let (first, other) = (c.mounts[0], c.mounts[(seed % 2) as usize]);
        let at = |sec| Timestamp { sec, nsec: 0 };
        let set_mtime = |sec| {
            async move |client: Rc<Client>| {
                let set = SetAttr { mtime: Some(at(sec)), ..SetAttr::default() };
                client.setattr(fid, set, caller()).await.map(|entry| entry.attr.mtime)
            }
        };
        let mtime = async move |client: Rc<Client>| client.getattr(fid).await.map(|entry| entry.attr.mtime);
        let future = 1 << 33;
        assert_eq!(run(&mut c, first, set_mtime(future)), Ok(at(future)));
        let grown = run(&mut c, first, async move |client| append(&client, handle, vec![2; 800]).await);
        assert_eq!(grown, Ok(800));
        let written = run(&mut c, other, mtime).expect("told");
        assert!(written < at(future), "seed {seed}: {written:?}");
        c.world.run_for(SEC); // the write is at the OST, and clocks agree so far
        assert_eq!(run(&mut c, other, set_mtime(1000)), Ok(at(1000)), "seed {seed}");
        for mount in c.mounts.clone() {
            assert_eq!(run(&mut c, mount, mtime), Ok(at(1000)), "seed {seed}");
        }
    }
}

/// More files than the mount has slots wait for an OST that is silent: other changes go on.
#[test]
fn moves_to_objects_that_wait_for_an_ost_do_not_keep_the_slots() {
    for seed in 1..=6 {
        let mut c = started(seed, 2);
        let first = c.mounts[0];
        let mut files = Vec::new();
        for name in ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"] {
            let (fid, handle) = written(&mut c, name, vec![1; 500]);
            fsync(&mut c, fid, handle);
            files.push((fid, handle));
        }
        for ost in [OST, OST + 1] {
            c.world.pause_for(c.servers[ost], 20 * SEC);
        }
        let mut grown = Vec::new();
        for (_, handle) in &files {
            let handle = *handle;
            grown.push(c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
                append(&client, handle, vec![2; 800]).await
            }));
        }
        c.world.run_for(SEC);
        for name in ["a", "b", "c", "d"] {
            let made = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
                make(&client, Fid::ROOT, name, DIR).await.map(drop)
            });
            let made = c.jobs.wait::<Result<(), Failure>>(&mut c.world, made, 2 * SEC);
            assert_eq!(made, Some(Ok(())), "seed {seed}\n{}", c.world.trace(60));
        }
        for ((fid, _), grown) in files.into_iter().zip(grown) {
            assert_grown(&mut c, seed, fid, grown);
        }
    }
}

fn set_active(c: &mut Cluster, mount: usize, value: &'static str) {
    let mount = c.mounts[mount];
    run(c, mount, async move |client| {
        let params = client.params().into_iter().map(|param| param.name);
        for name in params.filter(|name| name.starts_with("osc.") && name.ends_with(".active")) {
            client.set_param(&name, value).expect("a mount has it");
        }
    });
}

/// The administrator ends the waiting for OSTs that are down.
#[test]
fn a_move_to_objects_ends_when_its_ost_is_set_inactive() {
    for seed in 1..=6 {
        let (mut c, fid, handle) = synced(seed);
        let first = c.mounts[0];
        for ost in [OST, OST + 1] {
            c.world.kill(c.servers[ost]);
        }
        let grow = async move |client: Rc<Client>| append(&client, handle, vec![2; 800]).await;
        let grown = c.jobs.start(&mut c.world, first, grow);
        c.world.run_for(3 * SEC);
        set_active(&mut c, 0, "0");
        let ended = c.jobs.wait::<Result<u32, Failure>>(&mut c.world, grown, SEC);
        assert_eq!(ended, Some(Err(Failure::EIO)), "seed {seed}");
        let again = c.jobs.start(&mut c.world, first, grow);
        let ended = c.jobs.wait::<Result<u32, Failure>>(&mut c.world, again, SEC);
        assert_eq!(ended, Some(Err(Failure::EIO)), "seed {seed}");
        assert_seen(&mut c, fid, &[1; 500]);

        set_active(&mut c, 0, "1");
        for ost in [OST, OST + 1] {
            c.world.start(c.servers[ost]);
        }
        let grown = c.jobs.start(&mut c.world, first, grow);
        assert_grown(&mut c, seed, fid, grown);
    }
}

/// The same for a mount that cuts or extends the file by its name and does not use it otherwise.
#[test]
fn a_truncate_by_name_ends_when_the_ost_of_the_bytes_is_set_inactive() {
    let (mut c, fid, _) = synced(1);
    let second = c.mounts[1];
    for ost in [OST, OST + 1] {
        c.world.kill(c.servers[ost]);
    }
    let grown = c.jobs.start(&mut c.world, second, move |client: Rc<Client>| set_size(client, fid, 5000));
    c.world.run_for(3 * SEC);
    set_active(&mut c, 1, "0");
    let ended = c.jobs.wait::<Result<(), Failure>>(&mut c.world, grown, SEC);
    assert_eq!(ended, Some(Err(Failure::EIO)), "{}", c.world.trace(60));
}

/// A mount changes and syncs the file all the time, and another one wants its bytes in objects.
#[test]
fn a_move_to_objects_ends_while_a_mount_syncs_the_file_all_the_time() {
    for seed in 1..=40 {
        let (mut c, fid, handle) = synced(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        for _ in 0..4 {
            c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
                for round in 0..20_000 {
                    write(&client, handle, 0, vec![3; 1 + round % 7]).await?;
                    client.fsync(fid, Some(handle)).await?;
                }
                Ok::<_, Failure>(())
            });
        }
        c.world.run_for(10 * MS);
        let extended = c
            .jobs
            .start(&mut c.world, second, async move |client: Rc<Client>| set_size(client, fid, 5000).await);
        let ended = c.jobs.wait::<Result<(), Failure>>(&mut c.world, extended, 5 * SEC);
        assert_eq!(ended, Some(Ok(())), "seed {seed}\n{}", c.world.trace(60));
        let is_round = |line: &&str| line.contains("MDT0000   -> demo-OST") && line.contains(": Write Write");
        let rounds = c.world.trace(usize::MAX).lines().filter(is_round).count();
        assert!(rounds <= 3, "seed {seed}: {rounds} rounds");
        assert_eq!(size(&mut c, 1, fid), Ok(5000));
    }
}

/// The writer is gone: what it had stored stays, and the size is that of the bytes.
#[test]
fn a_dead_writer_leaves_what_it_had_stored() {
    for seed in 1..=8 {
        let (mut c, fid, handle) = synced(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let wrote = run(&mut c, first, async move |client| append(&client, handle, vec![2; 10]).await);
        assert_eq!(wrote, Ok(10));
        c.world.kill(first);
        c.world.run_for(15 * SEC);
        let seen = read(&mut c, second, fid).expect("read");
        assert!(seen[..500] == [1; 500] && [500, 510].contains(&seen.len()), "seed {seed}: {}", seen.len());
        assert_eq!(size(&mut c, 1, fid), Ok(seen.len() as u64));
    }
}

/// The first mount has the bytes moved, and the second learns of it by a read, writes and syncs. The whole machine is lost before
/// the move is durable by itself.
#[test]
fn what_a_mount_syncs_survives_although_another_had_the_bytes_moved() {
    for seed in 1..=8 {
        let mut c = started(seed, 2);
        let (fid, handle) = written(&mut c, "file", Vec::new());
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let other = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(fid, 2, caller()).await?;
            client.fsync(fid, Some(handle)).await?;
            Ok::<_, Failure>(handle)
        });
        let other = other.expect("opened and synced");
        let moved = run(&mut c, first, async move |client| write(&client, handle, 0, vec![1; 100]).await);
        assert_eq!(moved, Ok(100));
        let synced = run(&mut c, second, async move |client| {
            client.read(other, 0, 1000).await?;
            write(&client, other, 200, vec![2; 50]).await?;
            client.fsync(fid, Some(other)).await
        });
        assert_eq!(synced, Ok(()));
        c.lose_power().expect("it comes back");
        c.world.run_for(15 * SEC); // the leases of the mounts that are gone
        let last = *c.mounts.last().expect("there is one more");
        let seen = read(&mut c, last, fid).expect("what was synced can be read");
        assert!(seen.len() == 250 && seen[200..] == [2; 50], "seed {seed}: {} bytes", seen.len());
    }
}
