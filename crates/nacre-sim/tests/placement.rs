//! Where new files go when the OSTs are not equally full.

mod support;

use nacre_client::{Client, CreateArgs, WriteArgs};
use nacre_node::{FileId, Store, StoreDone, StoreError, StoreOp};
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, LayoutTemplate, OstIndex, SetAttr};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use support::{FILE, SEC, new, run};

const MIB: usize = 1 << 20;

/// Makes a file and writes to it until it has that many bytes, or there is no room: the OST of the file, and the bytes.
async fn fill(
    client: &Rc<Client>,
    name: &str,
    first_ost: i32,
    bytes: usize,
) -> Result<(OstIndex, usize), Failure> {
    let layout = LayoutTemplate { stripe_count: 1, stripe_bytes: 0, first_ost, ..LayoutTemplate::default() };
    let args = CreateArgs { layout: Some(layout), ..new(Fid::ROOT, name, FILE) };
    let (entry, handle) = client.create(args, 2).await?;
    let data = bytes::Bytes::from(vec![7; MIB]);
    let mut written = 0;
    let outcome = loop {
        if written >= bytes {
            break Ok(());
        }
        let (offset, data) = (written as u64, data.clone());
        let write =
            WriteArgs { handle, offset, append: false, call_bytes: 0, data, kill_suidgid: None, sync: false };
        match client.write(write).await {
            Ok(_) => written += MIB,
            Err(Failure::ENOSPC) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    client.release(handle, None).await?;
    let layout = client.layout(entry.attr.fid).await?.layout.ok_or(Failure::EIO)?;
    let ost = layout.components.iter().flat_map(|c| &c.stripes).next().copied().ok_or(Failure::EIO)?;
    outcome.map(|()| (ost, written))
}
/// Free space of an OST, as `df` shows it.
async fn avail(client: &Rc<Client>, ost: u32) -> u64 {
    let targets = client.statfs_targets().await.expect("statfs");
    let name = format!("-OST{ost:04x}");
    let (_, space) = targets.into_iter().find(|(target, _)| target.ends_with(&name)).expect("the OST");
    space.expect("it replies").bytes_avail
}
async fn remove(client: &Rc<Client>, name: &str) -> Result<(), Failure> {
    client.unlink(Fid::ROOT, name.as_bytes(), false, support::caller()).await
}
fn cluster(seed: u64) -> Cluster {
    let mut c = support::cluster(seed, 2, 1);
    c.world.run_for(2 * SEC); // the MDT knows its OSTs
    c
}

#[test]
fn large_files_leave_a_full_ost_out_until_it_has_room_again() {
    for seed in 1..=3 {
        let mut c = cluster(seed);
        let mount = c.mounts[0];
        let (full, left) = run(&mut c, mount, async |client| {
            let (_, written) = fill(&client, "full", 0, usize::MAX).await.expect("until there is no room");
            (written, avail(&client, 0).await)
        });
        assert!(full > 100 * MIB && left < 2 * MIB as u64, "seed {seed}: {left} bytes are free after ENOSPC");
        // Whoever met ENOSPC has told the MDT.
        let (placed, refused) = run(&mut c, mount, async |client| {
            let mut placed = Vec::new();
            for n in 0..8 {
                placed.push(fill(&client, &format!("f{n}"), -1, 8 * MIB).await);
            }
            (placed, fill(&client, "first", 0, MIB).await)
        });
        assert_eq!(placed, vec![Ok((OstIndex(1), 8 * MIB)); 8], "seed {seed}");
        assert_eq!(refused, Err(Failure::ENOSPC), "seed {seed}: the full OST was asked for by name");
        run(&mut c, mount, async |client| remove(&client, "full").await).expect("unlinked");
        c.world.run_for(SEC / 5);
        let again = run(&mut c, mount, async |client| fill(&client, "again", 0, 8 * MIB).await);
        assert_eq!(again, Ok((OstIndex(0), 8 * MIB)), "seed {seed}");
    }
}

#[test]
fn the_emptier_ost_gets_more_files() {
    let mut c = cluster(1);
    let mount = c.mounts[0];
    run(&mut c, mount, async |client| fill(&client, "half", 0, 100 * MIB).await).expect("written");
    c.world.run_for(2 * SEC); // the MDT asks again
    let placed = run(&mut c, mount, async |client| {
        let mut first = 0;
        for n in 0..40 {
            let (ost, _) = fill(&client, &format!("f{n}"), -1, 0).await.expect("made");
            first += usize::from(ost == OstIndex(0));
        }
        first
    });
    assert!((1..20).contains(&placed), "{placed} of 40 files are on the OST that has less free space");
}

/// A file grows on a full OST once another file has freed its space, without a pause between: what the freeing waits for
/// is hurried by the first write that needs it.
fn grows_into_freed_space(free: impl AsyncFn(Rc<Client>) -> Result<(), Failure> + Copy + Send + 'static) {
    for seed in 1..=3 {
        let mut c = cluster(seed);
        let mount = c.mounts[0];
        let written = run(&mut c, mount, async move |client| {
            let layout = LayoutTemplate {
                stripe_count: 1,
                stripe_bytes: 0,
                first_ost: 0,
                ..LayoutTemplate::default()
            };
            let args = CreateArgs { layout: Some(layout), ..new(Fid::ROOT, "grows", FILE) };
            let (_, handle) = client.create(args, 2).await?;
            let data = bytes::Bytes::from(vec![7; 4 * MIB]);
            let write = |offset| {
                let (client, data) = (client.clone(), data.clone());
                async move {
                    let args = WriteArgs {
                        handle,
                        offset,
                        append: false,
                        data,
                        kill_suidgid: None,
                        sync: false,
                        call_bytes: 0,
                    };
                    client.write(args).await.map(drop)
                }
            };
            write(0).await?;
            let (_, full) = fill(&client, "full", 0, usize::MAX).await?;
            let before = write(4 * MIB as u64).await;
            free(client.clone()).await?;
            let mut after = Vec::new();
            for n in 1..8 {
                after.push(write(n * 4 * MIB as u64).await);
            }
            Ok::<_, Failure>((full > 100 * MIB, before, after))
        });
        assert_eq!(written, Ok((true, Err(Failure::ENOSPC), vec![Ok(()); 7])), "seed {seed}");
    }
}

#[test]
fn a_write_finds_the_space_of_a_file_that_was_removed_just_before() {
    grows_into_freed_space(async |client| remove(&client, "full").await);
}

#[test]
fn a_write_finds_the_space_of_a_file_that_was_cut_just_before() {
    grows_into_freed_space(async |client| {
        let fid = client.lookup(Fid::ROOT, b"full").await?.attr.fid;
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        client.setattr(fid, set, support::caller()).await.map(drop)
    });
}

/// A new file finds the space of a removed one when every OST is full.
#[test]
fn a_new_file_finds_the_space_of_a_file_that_was_removed_just_before() {
    let mut c = cluster(1);
    let mount = c.mounts[0];
    let outcome = run(&mut c, mount, async |client| {
        fill(&client, "full0", 0, usize::MAX).await?;
        fill(&client, "full1", 1, usize::MAX).await?;
        let before = fill(&client, "refused", -1, MIB).await;
        remove(&client, "full1").await?;
        Ok::<_, Failure>((before, fill(&client, "taken", -1, 8 * MIB).await))
    });
    assert_eq!(outcome, Ok((Err(Failure::ENOSPC), Ok((OstIndex(1), 8 * MIB)))));
}

/// A file that has to lie on the full OST finds it, too, although another one has room.
#[test]
fn a_new_file_with_a_fixed_ost_finds_the_space_of_a_file_that_was_removed_just_before() {
    for seed in 1..=4 {
        let mut c = cluster(seed);
        let mount = c.mounts[0];
        let outcome = run(&mut c, mount, async |client| {
            fill(&client, "full", 0, usize::MAX).await?;
            let before = fill(&client, "refused", 0, MIB).await;
            remove(&client, "full").await?;
            Ok::<_, Failure>((before, fill(&client, "taken", 0, 8 * MIB).await))
        });
        assert_eq!(outcome, Ok((Err(Failure::ENOSPC), Ok((OstIndex(0), 8 * MIB)))), "seed {seed}");
    }
}

/// OSTs on one device share its space. A write and a create on one find what was removed from, or truncated on, the other
/// just before.
#[test]
fn space_that_is_freed_on_one_ost_is_there_for_the_others_on_its_device() {
    for seed in 1..=4 {
        let mut c = Cluster::on_one_device(seed, 2, 1);
        support::ready(&mut c);
        c.world.run_for(2 * SEC); // the MDT knows its OSTs
        let mount = c.mounts[0];
        let outcome = run(&mut c, mount, async |client| {
            let (_, half) = fill(&client, "half", 0, 60 * MIB).await?;
            fill(&client, "rest", 0, usize::MAX).await?;
            fill(&client, "other", 1, usize::MAX).await?;
            let full = fill(&client, "refused", 1, MIB).await;
            remove(&client, "half").await?;
            let made = fill(&client, "made", 1, usize::MAX).await?;
            let fid = client.lookup(Fid::ROOT, b"rest").await?.attr.fid;
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            client.setattr(fid, set, support::caller()).await?;
            let (_, again) = fill(&client, "again", 1, 60 * MIB).await?;
            Ok::<_, Failure>((half, full, made.0, made.1 > 30 * MIB, again))
        });
        let expected = (60 * MIB, Err(Failure::ENOSPC), OstIndex(1), true, 60 * MIB);
        assert_eq!(outcome, Ok(expected), "seed {seed}");
    }
}

/// The room that a mount has been granted for its next kept writes is there for every other write, and `df` shows it.
#[test]
fn a_write_finds_the_space_that_was_granted_for_kept_writes() {
    for (seed, keeper) in [(1, 0), (2, 1)] {
        let mut c = support::cluster(seed, 1, 2);
        support::write_back(&mut c);
        c.world.run_for(2 * SEC); // the MDT knows its OST
        let [writer, keeper] = [c.mounts[0], c.mounts[keeper]];
        let before = run(&mut c, writer, async |client| avail(&client, 0).await);
        run(&mut c, keeper, async |client| {
            for n in 0..8 {
                let (_, handle) = support::create(&client, &format!("small{n}")).await?;
                support::write(&client, handle, 0, vec![n; 20_000]).await?;
                client.release(handle, None).await?;
            }
            Ok::<_, Failure>(())
        })
        .expect("kept");
        let granted = c.params(|name| name.ends_with(".tot_granted"));
        let granted: Vec<u64> = granted.iter().map(|p| p.2.parse().expect("a number")).collect();
        assert!(granted[0] > 16 * MIB as u64, "seed {seed}: {granted:?} bytes are granted");
        let after = run(&mut c, writer, async |client| avail(&client, 0).await);
        assert!(after + 4 * MIB as u64 > before, "seed {seed}: {before} bytes are free, then {after}");
        // The same again, for a write.
        let kept = run(&mut c, keeper, async |client| {
            let (_, handle) = support::create(&client, "small").await?;
            support::write(&client, handle, 0, vec![9; 20_000]).await?;
            client.release(handle, None).await
        });
        kept.expect("kept");
        let (_, written) = run(&mut c, writer, async |client| fill(&client, "full", 0, usize::MAX).await)
            .expect("until there is no room");
        c.world.run_for(30 * SEC); // mounts have returned what they do not use
        let left = run(&mut c, writer, async |client| avail(&client, 0).await);
        assert!(
            left < 2 * MIB as u64,
            "seed {seed}: {left} bytes are free later, after {written} were written"
        );
    }
}

/// What `df` shows right after a removal holds the space that the removal frees.
#[test]
fn statfs_shows_the_space_of_a_file_that_was_removed_just_before() {
    for seed in 1..=4 {
        let mut c = cluster(seed);
        let mount = c.mounts[0];
        let (before, after, listed) = run(&mut c, mount, async |client| {
            fill(&client, "file", 0, 60 * MIB).await?;
            let before = client.statfs().await?.bytes_avail;
            remove(&client, "file").await?;
            let after = client.statfs().await?.bytes_avail;
            fill(&client, "file", 0, 60 * MIB).await?;
            remove(&client, "file").await?;
            Ok::<_, Failure>((before, after, avail(&client, 0).await))
        })
        .expect("written and removed");
        assert!(after >= before + 60 * MIB as u64, "seed {seed}: {before} bytes, then {after}");
        assert!(listed > 60 * MIB as u64, "seed {seed}: {listed} bytes on the OST");
    }
}

/// Writes down whose bytes are put on stable storage.
struct SyncWatch {
    below: Arc<dyn Store>,
    synced: Mutex<Vec<Fid>>,
}
impl Store for SyncWatch {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        if let StoreOp::Sync { file: FileId::Blob(object) }
        | StoreOp::SyncWritten { file: FileId::Blob(object), .. } = op
        {
            self.synced.lock().expect("not poisoned").push(object.fid);
        }
        self.below.execute(op)
    }
}

/// The destroys of a removed file are committed without the bytes of other files, so that `df` and `rm` do not wait for
/// what a neighbour writes.
#[test]
fn statfs_after_a_removal_does_not_wait_for_the_bytes_of_other_files() {
    for seed in 1..=4 {
        let mut c = cluster(seed);
        let (ost, mount) = (c.servers[2], c.mounts[0]);
        c.world.kill(ost);
        let watch = Arc::new(SyncWatch { below: c.stores[2].clone(), synced: Mutex::default() });
        c.world.set_store(ost, watch.clone());
        c.world.start(ost);
        run(&mut c, mount, async |client| fill(&client, "file", 0, MIB).await).expect("written");
        c.world.run_for(10 * SEC);
        let neighbour = run(&mut c, mount, async |client| {
            fill(&client, "neighbour", 0, 4 * MIB).await?;
            remove(&client, "file").await?;
            client.statfs().await?;
            client.lookup(Fid::ROOT, b"neighbour").await
        });
        let fid = neighbour.expect("removed").attr.fid;
        assert!(!watch.synced.lock().expect("not poisoned").contains(&fid), "seed {seed}");
    }
}

/// A sum of no OSTs is not reported as an empty file system: `df` waits for OSTs that return, and else fails.
#[test]
fn statfs_waits_for_one_of_the_osts() {
    for seed in 1..=4 {
        let mut c = cluster(seed);
        let mount = c.mounts[0];
        let before = run(&mut c, mount, async |client| client.statfs().await).expect("all reply");
        let osts = [c.servers[2], c.servers[3]];
        osts.iter().for_each(|&ost| c.world.kill(ost));
        c.world.run_for(SEC);
        let away = run(&mut c, mount, async |client| client.statfs().await);
        assert!(away.is_err(), "seed {seed}: {away:?}");
        osts.iter().for_each(|&ost| c.world.start_later(ost, SEC));
        let after = run(&mut c, mount, async |client| client.statfs().await).expect("they return");
        assert!(after.bytes_total > 0 && after.bytes_total <= before.bytes_total, "seed {seed}: {after:?}");
    }
}

/// Large files are spread over the OSTs also if each is followed by a small one, which the MDT keeps.
#[test]
fn small_files_between_large_ones_take_no_turn_of_an_ost() {
    let mut c = cluster(2);
    c.keep_data_at_mdt(8192).expect("set");
    support::write_back(&mut c);
    let mount = c.mounts[0];
    let placed = run(&mut c, mount, async |client| {
        let mut on_first = 0;
        for n in 0..20 {
            for (name, bytes) in [(format!("b{n}"), 100_000), (format!("s{n}"), 2)] {
                let (fid, handle) = support::create(&client, &name).await?;
                support::write(&client, handle, 0, vec![1; bytes]).await?;
                client.release(handle, None).await?;
                let layout = client.layout(fid).await?.layout.ok_or(Failure::EIO)?;
                assert_eq!(layout.dom_bytes > 0, bytes < 8192, "{name}");
                let first = layout.components.iter().flat_map(|c| &c.stripes).next() == Some(&OstIndex(0));
                on_first += u32::from(bytes > 8192 && first);
            }
        }
        Ok::<_, Failure>(on_first)
    });
    assert_eq!(placed, Ok(10), "of 20 large files on two OSTs");
}

/// The files of a writer that keeps nothing use their objects at once, whatever the directory says.
#[test]
fn files_of_a_writer_that_keeps_nothing_take_turns() {
    let mut c = cluster(1);
    c.keep_data_at_mdt(8192).expect("set");
    let mount = c.mounts[0];
    let placed = run(&mut c, mount, async |client| {
        let mut on_first = 0;
        for n in 0..20 {
            let (fid, handle) = support::create(&client, &format!("f{n}")).await?;
            support::write(&client, handle, 0, vec![1; 100]).await?;
            client.release(handle, None).await?;
            let layout = client.layout(fid).await?.layout.ok_or(Failure::EIO)?;
            let first = layout.components.iter().flat_map(|c| &c.stripes).next() == Some(&OstIndex(0));
            on_first += u32::from(first);
        }
        Ok::<_, Failure>(on_first)
    });
    assert_eq!(placed, Ok(10));
}
