//! Each fault point, by its name: every operation happens exactly once, and nothing that was synced is lost.

mod support;

use nacre_client::{Client, MetadataChange};
use nacre_sim::cluster::Cluster;
use nacre_sim::{JobId, NodeId};
use nacre_target::Fault;
use nacre_types::{Failure, Fid};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use support::{DIR, FILE, MDT, OST, SEC, append, caller, cluster, create, make, new, read, run, wait, write};

fn set(c: &mut Cluster, server: usize, fault: Fault, times: u32) {
    c.set_param(server, "*.*.fail_val", &times.to_string());
    c.set_param(server, "*.*.fail_loc", fault.name());
}
fn fail_loc(c: &mut Cluster, server: usize) -> String {
    let name = c.world.name(c.servers[server]).to_string();
    let found = c.params(|p| p.ends_with(".fail_loc")).into_iter().find(|(of, ..)| *of == name);
    found.expect("every target has it").2
}
/// What is in the root directory, and how many links it has.
fn tree(c: &mut Cluster, mount: NodeId) -> BTreeMap<String, u32> {
    run(c, mount, async |client| {
        let mut found = BTreeMap::new();
        for entry in client.readdir(Fid::ROOT, 2, 1000, false).await?.entries {
            let nlink = client.getattr(entry.fid).await?.attr.nlink;
            found.insert(String::from_utf8_lossy(&entry.name).into_owned(), nlink);
        }
        Ok::<_, Failure>(found)
    })
    .expect("the root is readable")
}

/// None of these gives the same result when it is done twice.
async fn changes(client: Rc<Client>) -> Result<(), Failure> {
    for i in 0..6 {
        let name = |what: &str| format!("{what}{i}");
        let fid = make(&client, Fid::ROOT, &name("file"), FILE).await?;
        client.link(fid, Fid::ROOT, name("link").as_bytes(), caller()).await?;
        make(&client, Fid::ROOT, &name("dir"), DIR).await?;
        let (from, to) = (name("dir"), name("moved"));
        client.rename((Fid::ROOT, from.as_bytes()), (Fid::ROOT, to.as_bytes()), 0, caller()).await?;
        make(&client, Fid::ROOT, &name("gone"), FILE).await?;
        client.unlink(Fid::ROOT, name("gone").as_bytes(), false, caller()).await?;
        let (_, handle) = create(&client, &name("open")).await?;
        client.release(handle, None).await?;
        let batch: Vec<String> = (0..3).map(|n| format!("batch{i}.{n}")).collect();
        let batch: Vec<MetadataChange<'_>> =
            batch.iter().map(|name| MetadataChange::Make(new(Fid::ROOT, name, FILE))).collect();
        for made in client.batch(&batch, &caller(), false).await? {
            made?;
        }
    }
    Ok(())
}
fn changed() -> BTreeMap<String, u32> {
    let per_round = |i: u32| {
        let names = [("file", 2), ("link", 2), ("moved", 2), ("open", 1)];
        let single = names.map(|(name, links)| (format!("{name}{i}"), links));
        single.into_iter().chain((0..3).map(move |n| (format!("batch{i}.{n}"), 1)))
    };
    (0..6).flat_map(per_round).collect()
}

/// Waits until a server ends at its fault point, and starts it again.
fn crash(c: &mut Cluster, server: usize) {
    let until = c.world.now_ns() + 60 * SEC;
    assert!(c.world.run_until(until, |world| !world.fatal.is_empty()), "no crash\n{}", c.world.trace(60));
    let why = std::mem::take(&mut c.world.fatal);
    assert!(why.len() == 1 && why[0].contains("fault point crash_after_commit"), "{why:?}");
    let node = c.servers[server];
    c.world.kill(node);
    c.world.start_later(node, 200_000_000);
}

/// Does a job on the first mount while each fault strikes at a server, `times(seed)` times; then `check` looks from the
/// second one.
fn at_each_fault_point<T: Copy + Send + 'static, F: Future<Output = Result<(), Failure>> + 'static>(
    server: usize,
    times: fn(u32) -> u32,
    set_up: impl Fn(&mut Cluster) -> T,
    job: fn(Rc<Client>, T) -> F,
    check: impl Fn(&mut Cluster, NodeId, T) -> bool,
) {
    let faults =
        [Fault::RequestLostBefore, Fault::RequestLostAfter, Fault::ReplyLost, Fault::CrashAfterCommit];
    for seed in 1..=8 {
        for fault in faults {
            let mut c = cluster(seed, 1, 2);
            let (mount, other) = (c.mounts[0], c.mounts[1]);
            let scene = set_up(&mut c);
            let done = c.jobs.start(&mut c.world, mount, move |client| job(client, scene));
            let pause = c.world.rng().below(4_000_000);
            c.world.run_for(pause);
            // A crash ends the process, and with it what was set.
            let crashes = fault == Fault::CrashAfterCommit;
            set(&mut c, server, fault, if crashes { 1 } else { times(seed as u32) });
            if crashes {
                crash(&mut c, server);
            }
            let done: Result<(), Failure> = wait(&mut c, done);
            assert_eq!(done, Ok(()), "{fault:?}, seed {seed}\n{}", c.world.trace(80));
            assert!(check(&mut c, other, scene), "{fault:?}, seed {seed}\n{}", c.world.trace(80));
            assert_eq!(fail_loc(&mut c, server), "0", "{fault:?} has not struck, seed {seed}");
        }
    }
}

#[test]
fn changes_of_names_happen_once_at_every_fault_point() {
    let job = |client, ()| changes(client);
    at_each_fault_point(MDT, |seed| 1 + seed * 3, |_| (), job, |c, other, ()| tree(c, other) == changed());
}

/// Appends: each byte is there once, in its place.
#[test]
fn appends_happen_once_at_every_fault_point() {
    let set_up = |c: &mut Cluster| {
        let mount = c.mounts[0];
        run(c, mount, async |client| create(&client, "f").await).expect("made").0
    };
    let job = |client: Rc<Client>, fid: Fid| async move {
        let (_, handle) = client.open(fid, 2, caller()).await?;
        for i in 0..20u8 {
            append(&client, handle, vec![i; 700]).await?;
        }
        Ok(())
    };
    at_each_fault_point(
        OST,
        |_| 3,
        set_up,
        job,
        |c, other, fid| {
            read(c, other, fid).expect("readable") == (0..20u8).flat_map(|i| vec![i; 700]).collect::<Vec<_>>()
        },
    );
}

fn numbered(numbers: std::ops::Range<u32>) -> BTreeSet<String> {
    numbers.map(|i| format!("f{i:02}")).collect()
}
async fn make_numbered(client: Rc<Client>, numbers: std::ops::Range<u32>) -> Result<(), Failure> {
    for name in numbered(numbers) {
        make(&client, Fid::ROOT, &name, FILE).await?;
    }
    Ok(())
}
/// A sync that was asked for behind the barrier: it must not end.
fn sync_behind_the_barrier(c: &mut Cluster, mount: NodeId, seed: u64) -> JobId {
    let sync = c.jobs.start(&mut c.world, mount, async |client| client.sync_all().await);
    c.world.run_for(8 * SEC);
    c.jobs.collect(&mut c.world);
    assert!(!c.jobs.is_done(sync), "seed {seed}: something is called durable behind the barrier");
    sync
}

#[test]
fn behind_a_barrier_everybody_is_lost_but_a_prefix_with_all_that_was_synced() {
    let mut kept = BTreeSet::new();
    for seed in 1..=20 {
        let mut c = cluster(seed, 1, 1);
        let mount = c.mounts[0];
        run(&mut c, mount, async |client| {
            make_numbered(client.clone(), 0..20).await?;
            client.sync_all().await
        })
        .expect("synced");
        run(&mut c, mount, async |client| make_numbered(client, 20..30).await).expect("acknowledged");
        set(&mut c, MDT, Fault::Barrier, 1);
        run(&mut c, mount, async |client| make_numbered(client, 30..40).await).expect("acknowledged");
        sync_behind_the_barrier(&mut c, mount, seed);
        assert_eq!(fail_loc(&mut c, MDT), "barrier");
        c.lose_power().expect("starts");
        let fresh = c.mounts.len() - 1;
        c.ready(fresh).expect("ready");
        let fresh = c.mounts[fresh];
        let found: BTreeSet<String> = tree(&mut c, fresh).into_keys().collect();
        assert!(
            (20..=30).contains(&found.len()),
            "seed {seed}: {} files\n{}",
            found.len(),
            c.world.trace(60)
        );
        assert_eq!(found, numbered(0..found.len() as u32), "seed {seed}: not a prefix");
        kept.insert(found.len());
    }
    assert!(kept.contains(&30), "what was written before the barrier is never kept: {kept:?}");
}

#[test]
fn what_was_acknowledged_behind_a_barrier_is_made_again_by_its_clients() {
    for seed in 1..=10 {
        let mut c = cluster(seed, 1, 2);
        let (mount, other) = (c.mounts[0], c.mounts[1]);
        run(&mut c, mount, async |client| make_numbered(client, 0..10).await).expect("acknowledged");
        set(&mut c, MDT, Fault::Barrier, 1);
        run(&mut c, mount, async |client| make_numbered(client, 10..20).await).expect("acknowledged");
        let sync = sync_behind_the_barrier(&mut c, mount, seed);
        c.power_loss(MDT);
        let mdt = c.servers[MDT];
        c.world.start_later(mdt, 200_000_000);
        assert_eq!(wait::<Result<(), Failure>>(&mut c, sync), Ok(()), "seed {seed}");
        let found: BTreeSet<String> = tree(&mut c, other).into_keys().collect();
        assert_eq!(found, numbered(0..20), "seed {seed}\n{}", c.world.trace(80));
    }
}

/// On an OST a write of bytes waits behind the barrier, and is made once the target is back.
#[test]
fn bytes_behind_a_barrier_are_written_when_the_target_is_back() {
    for seed in 1..=10 {
        let mut c = cluster(seed, 1, 2);
        let (mount, other) = (c.mounts[0], c.mounts[1]);
        let (fid, handle) = run(&mut c, mount, async |client| {
            let (fid, handle) = create(&client, "f").await?;
            write(&client, handle, 0, vec![1; 9000]).await?;
            client.fsync(fid, Some(handle)).await?;
            Ok::<_, Failure>((fid, handle))
        })
        .expect("synced");
        set(&mut c, OST, Fault::Barrier, 1);
        let late = c.jobs.start(&mut c.world, mount, async move |client| {
            write(&client, handle, 5000, vec![2; 9000]).await?;
            client.fsync(fid, Some(handle)).await
        });
        c.world.run_for(5 * SEC);
        c.jobs.collect(&mut c.world);
        assert!(!c.jobs.is_done(late), "seed {seed}: something is called durable behind the barrier");
        c.power_loss(OST);
        let ost = c.servers[OST];
        c.world.start_later(ost, 200_000_000);
        assert_eq!(wait::<Result<(), Failure>>(&mut c, late), Ok(()), "seed {seed}");
        let found = read(&mut c, other, fid).expect("readable");
        let expected = [vec![1; 5000], vec![2; 9000]].concat();
        assert!(found == expected, "seed {seed}\n{}", c.world.trace(80));
    }
}
