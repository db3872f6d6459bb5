//! Opens without a request: an inode that a mount has open stays until the mount closes it, whoever removes its names, and
//! whatever happens to connections, to the MDT and to its machine.

mod support;

use nacre_client::{Client, MetadataChange};
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, OpenHandle};
use std::rc::Rc;
use support::{DIR, MDT, MS, SEC, caller, cluster, create, make, open_files, run, sent_to, wait, write};

const BYTES: usize = 5000;

/// Requests of a kind that a mount has sent to the MDT.
fn sent(c: &mut Cluster, mount: NodeId, kind: &'static str) -> u64 {
    sent_to(c, mount, "mdc.", kind)
}
/// Reads and questions for sizes that a mount has sent to OSTs.
fn osts_asked(c: &mut Cluster, mount: NodeId) -> u64 {
    sent_to(c, mount, "osc.", "ost_read") + sent_to(c, mount, "osc.", "ldlm_glimpse")
}
fn all_opens(c: &mut Cluster, mount: NodeId) -> u64 {
    sent(c, mount, "mds_reint_open") + sent(c, mount, "mds_report_opens")
}
async fn open(client: &Client, fid: Fid) -> Result<OpenHandle, Failure> {
    client.open(fid, 0, caller()).await.map(|(_, handle)| handle)
}
async fn unlink(client: &Client, name: &[u8], directory: bool) -> Result<(), Failure> {
    client.unlink(Fid::ROOT, name, directory, caller()).await
}

/// Two mounts; the first has a file and a directory open of which the MDT does not know that.
struct Scene {
    c: Cluster,
    first: NodeId,
    second: NodeId,
    file: (Fid, OpenHandle),
    dir: (Fid, OpenHandle),
}

fn scene(seed: u64) -> Scene {
    scene_of(seed, 2)
}
fn scene_of(seed: u64, mounts: u32) -> Scene {
    let mut c = cluster(seed, 1, mounts);
    let [first, second] = [c.mounts[0], c.mounts[1]];
    let made = run(&mut c, first, async |client| {
        let (fid, handle) = create(&client, "f").await?;
        write(&client, handle, 0, vec![7; BYTES]).await?;
        client.release(handle, None).await?;
        Ok::<_, Failure>((fid, make(&client, Fid::ROOT, "d", DIR).await?))
    });
    let (file, dir) = made.expect("made");
    // What was written is durable, and its close has come.
    c.world.run_for(3 * SEC);
    run(&mut c, first, async move |client| client.getattr(file).await.map(drop)).expect("it is there");
    let opened = run(&mut c, first, async move |client| {
        Ok::<_, Failure>((open(&client, file).await?, open(&client, dir).await?))
    });
    let (in_file, in_dir) = opened.expect("opened");
    assert_eq!(all_opens(&mut c, first), 0, "seed {seed}: they need no request");
    assert_eq!(open_files(&mut c), "0", "seed {seed}");
    Scene { c, first, second, file: (file, in_file), dir: (dir, in_dir) }
}

impl Scene {
    /// The first mount still reads both, without names, and nothing stays when it has closed them.
    fn check(&mut self, what: &str) {
        let Self { c, first, second, file, dir } = self;
        let ((file, in_file), (dir, in_dir)) = (*file, *dir);
        let seen = run(c, *first, async move |client| {
            let bytes = client.read(in_file, 0, 2 * BYTES as u32).await?.concat();
            let links = (client.getattr(file).await?.attr.nlink, client.getattr(dir).await?.attr.nlink);
            let names = client.readdir(dir, 0, 10, false).await?.entries.len();
            Ok::<_, Failure>((bytes == vec![7; BYTES], links, names))
        });
        assert_eq!(seen, Ok((true, (0, 0), 2)), "{what}\n{}", c.world.trace(60));
        let closed = run(c, *first, async move |client| {
            client.release(in_dir, None).await?;
            client.release(in_file, None).await
        });
        assert_eq!(closed, Ok(()), "{what}");
        c.world.run_for(2 * SEC);
        assert_eq!(open_files(c), "0", "{what}\n{}", c.world.trace(60));
        let left = run(c, *second, async move |client| {
            (client.getattr(file).await.err(), client.getattr(dir).await.err())
        });
        assert_eq!(
            left,
            (Some(Failure::ESTALE), Some(Failure::ESTALE)),
            "{what}: orphans end with the last close"
        );
    }
}

/// A mount removes both names, of the file by the way of that number.
async fn remove(client: Rc<Client>, way: u64) -> Result<(), Failure> {
    let lone = |change| async { client.batch(&[change], &caller(), false).await?.remove(0).map(drop) };
    match way % 3 {
        0 => unlink(&client, b"f", false).await?,
        1 => {
            let (_, handle) = create(&client, "g").await?;
            client.release(handle, None).await?;
            client.rename((Fid::ROOT, b"g"), (Fid::ROOT, b"f"), 0, caller()).await?;
        }
        _ => lone(MetadataChange::Unlink { parent: Fid::ROOT, name: b"f", directory: false }).await?,
    }
    unlink(&client, b"d", true).await
}

#[test]
fn opens_for_reading_under_a_lock_need_no_request() {
    let Scene { mut c, first, file: (file, handle), dir: (_, in_dir), .. } = scene(1);
    let closes = sent(&mut c, first, "mds_close") + sent(&mut c, first, "mds_batch");
    let read = run(&mut c, first, async move |client| {
        client.release(handle, None).await?;
        client.release(in_dir, None).await?;
        for _ in 0..10 {
            let handle = open(&client, file).await?;
            client.read(handle, 0, 10).await?;
            client.release(handle, None).await?;
        }
        Ok::<_, Failure>(())
    });
    assert_eq!(read, Ok(()));
    assert_eq!(all_opens(&mut c, first), 0);
    let closes_now = sent(&mut c, first, "mds_close") + sent(&mut c, first, "mds_batch");
    assert!(closes_now - closes <= 1, "only the access time is told: {}", closes_now - closes);
}

/// The end of a file is known while its size is, and not a moment longer.
#[test]
fn a_read_at_the_end_of_a_file_asks_the_osts_only_if_others_may_have_written() {
    for seed in 1..=4 {
        let Scene { mut c, first, second, file: (file, handle), .. } = scene(seed);
        let at_end = async move |client: Rc<Client>| client.read(handle, BYTES as u64, 10).await;
        let reads = osts_asked(&mut c, first);
        assert_eq!(run(&mut c, first, at_end).map(|read| read.concat()), Ok(vec![]), "seed {seed}");
        assert_eq!(osts_asked(&mut c, first), reads, "seed {seed}");
        let longer = run(&mut c, second, async move |client| {
            let (_, handle) = client.open(file, 2, caller()).await?;
            write(&client, handle, BYTES as u64, vec![8; 5]).await
        });
        assert_eq!(longer, Ok(5), "seed {seed}");
        assert_eq!(run(&mut c, first, at_end).map(|read| read.concat()), Ok(vec![8; 5]), "seed {seed}");
    }
}

/// The MDT says that only this mount has the file open for writing: nobody has to be asked for its size.
#[test]
fn the_size_of_an_own_open_file_is_known() {
    let mut c = cluster(3, 1, 2);
    let first = c.mounts[0];
    let (fid, handle) = run(&mut c, first, async |client| create(&client, "own").await).expect("made");
    let (glimpses, asked) = (osts_asked(&mut c, first), sent(&mut c, first, "mds_getattr"));
    let sizes = run(&mut c, first, async move |client| {
        let empty = client.getattr(fid).await?.attr.size;
        write(&client, handle, 0, vec![1; BYTES]).await?;
        Ok::<_, Failure>((empty, client.getattr(fid).await?.attr.size))
    });
    assert_eq!(sizes, Ok((0, BYTES as u64)));
    assert_eq!((osts_asked(&mut c, first), sent(&mut c, first, "mds_getattr")), (glimpses, asked));
}

#[test]
fn what_another_mount_removes_stays_as_long_as_it_is_open() {
    for seed in 1..=9 {
        let mut s = scene(seed);
        let removed = run(&mut s.c, s.second, async move |client| remove(client, seed).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        assert_eq!(sent(&mut s.c, s.first, "mds_reint_open"), 0, "seed {seed}: they are reported");
        s.check(&format!("seed {seed}"));
    }
}

#[test]
fn what_the_mount_itself_removes_stays_as_long_as_it_is_open() {
    for seed in 1..=9 {
        let mut s = scene(seed);
        let removed = run(&mut s.c, s.first, async move |client| remove(client, seed).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        s.check(&format!("seed {seed}"));
    }
}

/// All slots of the mount are taken by changes that wait for its own report.
#[test]
fn reports_need_no_slot() {
    for seed in 1..=6 {
        let mut s = scene(seed);
        s.c.limit_slots(1);
        let by = if seed % 2 == 0 { s.first } else { s.second };
        let removed = run(&mut s.c, by, async move |client| remove(client, 2).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        s.check(&format!("seed {seed}"));
    }
}

#[test]
fn opens_survive_what_happens_between_the_revoke_and_the_removal() {
    for seed in 1..=60 {
        let what = format!("seed {seed}");
        let mut s = scene(seed);
        let by = if seed % 4 == 0 { s.first } else { s.second };
        let job = s.c.jobs.start(&mut s.c.world, by, move |client| remove(client, seed / 4));
        let mdt = s.c.servers[MDT];
        for _ in 0..1 + seed % 3 {
            let pause = s.c.world.rng().below(3 * MS);
            s.c.world.run_for(pause);
            match s.c.world.rng().below(4) {
                0 => {
                    s.c.world.kill(mdt);
                    s.c.world.start_later(mdt, MS);
                }
                1 => {
                    s.c.power_loss(MDT);
                    s.c.world.start_later(mdt, 10 * MS);
                }
                _ => s.c.world.cut_some_link(mdt),
            }
        }
        let removed: Result<(), Failure> = wait(&mut s.c, job);
        assert_eq!(removed, Ok(()), "{what}\n{}", s.c.world.trace(80));
        s.check(&what);
    }
}

/// The removal was acknowledged, and is not durable.
#[test]
fn a_replayed_removal_finds_the_reported_opens() {
    for seed in 1..=8 {
        let mut s = scene(seed);
        let removed = run(&mut s.c, s.second, async move |client| remove(client, seed).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        s.c.power_loss(MDT);
        let mdt = s.c.servers[MDT];
        s.c.world.start_later(mdt, 100 * MS);
        s.c.world.run_for(SEC);
        s.check(&format!("seed {seed}"));
    }
}

/// A restarted MDT knows of no lock: a removal waits until it knows of the opens.
#[test]
fn opens_are_reported_to_a_restarted_mdt_before_anything_is_removed() {
    for seed in 1..=12 {
        let mut s = scene(seed);
        let mdt = s.c.servers[MDT];
        if seed % 2 == 0 {
            s.c.world.kill(mdt);
        } else {
            s.c.power_loss(MDT);
        }
        s.c.world.start_later(mdt, 10 * MS);
        let by = if seed % 3 == 0 { s.first } else { s.second };
        // The first mount comes back later.
        s.c.world.block_for(s.first, mdt, if seed % 3 == 0 { MS } else { 2 * SEC });
        let removed = run(&mut s.c, by, async move |client| remove(client, seed).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        s.check(&format!("seed {seed}"));
    }
}

/// Nor does it know which writers keep bytes. A report of opens of a file that is open for writing must not wait for the end of
/// former locks, because that end waits for the report: every change of all mounts would stand still for a lease.
#[test]
fn reports_after_a_restart_do_not_wait_for_themselves() {
    for seed in 1..=8 {
        let mut s = scene(seed);
        let file = s.file.0;
        let writer = run(&mut s.c, s.first, async move |client| {
            client.open(file, 2, caller()).await.map(|(_, handle)| handle)
        });
        let writer = writer.expect("opened");
        assert_eq!(open_files(&mut s.c), "1", "seed {seed}: only the writer is known");
        let mdt = s.c.servers[MDT];
        if seed % 2 == 0 {
            s.c.world.kill(mdt);
        } else {
            s.c.power_loss(MDT);
        }
        s.c.world.start_later(mdt, 10 * MS);
        let before = s.c.world.now_ns();
        let by = if seed % 3 == 0 { s.first } else { s.second };
        let removed = run(&mut s.c, by, async move |client| remove(client, seed).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        let after = s.c.world.now_ns() - before;
        assert!(after < 3 * SEC, "seed {seed}: it took {} ms\n{}", after / MS, s.c.world.trace(60));
        let closed = run(&mut s.c, s.first, async move |client| client.release(writer, None).await);
        assert_eq!(closed, Ok(()), "seed {seed}");
        s.check(&format!("seed {seed}"));
    }
}

/// The recovery takes a whole lease because a third mount is gone. The first one can report only when it is over.
#[test]
fn opens_are_reported_after_a_recovery_of_any_length() {
    for seed in 1..=6 {
        let mut s = scene_of(seed, 3);
        let (mdt, third) = (s.c.servers[MDT], s.c.mounts[2]);
        s.c.world.kill(third);
        s.c.power_loss(MDT);
        s.c.world.start_later(mdt, 10 * MS);
        let removed = s.c.jobs.start(&mut s.c.world, s.second, move |client| remove(client, seed));
        s.c.world.run_for(5 * SEC);
        // It hears of the end of the recovery a little later than the second.
        s.c.world.block_for(s.first, mdt, 5 * SEC + seed * 500 * MS);
        let removed: Result<(), Failure> = wait(&mut s.c, removed);
        assert_eq!(removed, Ok(()), "seed {seed}");
        s.check(&format!("seed {seed}"));
    }
}

/// An evicted mount opens its handles again; what nobody has removed meanwhile is there.
#[test]
fn an_evicted_mount_opens_its_handles_again() {
    for seed in 1..=4 {
        let mut s = scene(seed);
        s.c.world.pause(s.first, true);
        s.c.world.run_for(25 * SEC);
        s.c.world.pause(s.first, false);
        let until = s.c.world.now_ns() + 30 * SEC;
        while open_files(&mut s.c) != "2" {
            assert!(s.c.world.now_ns() < until, "seed {seed}\n{}", s.c.world.trace(60));
            s.c.world.run_for(SEC / 2);
        }
        let removed = run(&mut s.c, s.second, async move |client| remove(client, seed).await);
        assert_eq!(removed, Ok(()), "seed {seed}");
        s.check(&format!("seed {seed}"));
    }
}
