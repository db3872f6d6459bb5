//! OSTs that are away: what new files, and files on them, make of it.

mod support;

use nacre_client::{Client, CreateArgs, WriteArgs};
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, LayoutTemplate, OstIndex};
use std::rc::Rc;
use support::{FILE, MDT, SEC, caller, new, open_files};

const OST1: usize = 3;

fn cluster(seed: u64) -> Cluster {
    let mut c = support::cluster(seed, 2, 1);
    c.world.run_for(2 * SEC); // the MDT knows them, too
    c
}
/// `None`: the job does not end in time.
fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
    c: &mut Cluster,
    limit_ns: u64,
    job: impl FnOnce(Rc<Client>) -> F + Send + 'static,
) -> Option<T> {
    let mount = c.mounts[0];
    let id = c.jobs.start(&mut c.world, mount, job);
    c.jobs.wait(&mut c.world, id, limit_ns)
}
fn args(name: &str, stripe_count: i32, first_ost: i32) -> CreateArgs<'_> {
    let layout = LayoutTemplate { stripe_count, stripe_bytes: 0, first_ost, ..LayoutTemplate::default() };
    CreateArgs { layout: Some(layout), ..new(Fid::ROOT, name, FILE) }
}
/// Makes a file; the OSTs of its stripes.
async fn make(
    client: &Client,
    name: &str,
    stripe_count: i32,
    first_ost: i32,
) -> Result<Vec<OstIndex>, Failure> {
    let fid = client.make(args(name, stripe_count, first_ost)).await?.attr.fid;
    let layout = client.layout(fid).await?.layout.ok_or(Failure::EIO)?;
    Ok(layout.components.into_iter().flat_map(|c| c.stripes).collect())
}

#[test]
fn a_new_file_waits_for_the_osts_that_it_is_to_be_on() {
    for seed in 1..=20 {
        let mut c = cluster(seed);
        let (mdt, ost1) = (c.servers[MDT], c.servers[OST1]);
        // The MDT has not met its OSTs yet.
        c.world.kill(mdt);
        c.world.start(mdt);
        let stripes = run(&mut c, 30 * SEC, async |client| make(&client, "fixed", 1, 1).await);
        assert_eq!(stripes, Some(Ok(vec![OstIndex(1)])), "seed {seed}");
        c.world.kill(mdt);
        c.world.start(mdt);
        let stripes = run(&mut c, 30 * SEC, async |client| make(&client, "wide", -1, -1).await);
        assert_eq!(stripes.map(|s| s.map(|s| s.len())), Some(Ok(2)), "seed {seed}");
        // An outage of one, long after the start, for which others do not wait.
        c.world.run_for(4 * SEC);
        c.world.kill(ost1);
        c.world.run_for(SEC);
        let stripes = run(&mut c, SEC, async |client| make(&client, "other", -1, -1).await);
        assert_eq!(stripes, Some(Ok(vec![OstIndex(0)])), "seed {seed}");
        c.world.start_later(ost1, 5 * SEC);
        let stripes = run(&mut c, 30 * SEC, async |client| make(&client, "later", 1, 1).await);
        assert_eq!(stripes, Some(Ok(vec![OstIndex(1)])), "seed {seed}");
        // And one that lasts.
        c.world.kill(ost1);
        c.world.run_for(20 * SEC);
        let refused = run(&mut c, SEC, async |client| make(&client, "never", 1, 1).await);
        assert_eq!(refused, Some(Err(Failure::ENXIO)), "seed {seed}");
    }
}

async fn write(client: &Client, name: &str, first_ost: i32) -> Result<Fid, Failure> {
    let (entry, handle) = client.create(args(name, 1, first_ost), 2).await?;
    let data = bytes::Bytes::from_static(b"kept");
    let write =
        WriteArgs { handle, offset: 0, append: false, call_bytes: 0, data, kill_suidgid: None, sync: true };
    client.write(write).await?;
    client.release(handle, None).await.map(|()| entry.attr.fid)
}
async fn read(client: &Client, fid: Fid) -> Result<Vec<u8>, Failure> {
    let (_, handle) = client.open(fid, 0, caller()).await?;
    let bytes = client.read(handle, 0, 100).await;
    client.release(handle, None).await?;
    Ok(bytes?.concat())
}
fn set_active(c: &mut Cluster, active: &'static str) {
    run(c, SEC, async move |client| {
        let name = client.params().into_iter().map(|p| p.name);
        let name = name.into_iter().find(|n| n.contains("OST0001") && n.ends_with(".active"));
        client.set_param(&name.expect("there is one"), active).expect("it is set")
    })
    .expect("at once");
}

#[test]
fn a_stopped_ost_is_waited_for_unless_it_was_deactivated() {
    for seed in 1..=20 {
        let mut c = cluster(seed);
        let ost1 = c.servers[OST1];
        let [zero, one] = [0, 1].map(|ost| {
            let made =
                run(&mut c, 30 * SEC, async move |client| write(&client, &format!("on{ost}"), ost).await);
            made.expect("in time").expect("written")
        });
        c.world.kill(ost1);
        let mount = c.mounts[0];
        let waits = c.jobs.start(&mut c.world, mount, async move |client| read(&client, one).await);
        c.world.run_for(30 * SEC);
        assert!(!c.jobs.is_done(waits), "seed {seed}");
        set_active(&mut c, "0");
        let failed: Option<Result<Vec<u8>, Failure>> = c.jobs.wait(&mut c.world, waits, 3 * SEC);
        assert_eq!(failed, Some(Err(Failure::EIO)), "seed {seed}");
        let failed = run(&mut c, SEC / 2, async move |client| read(&client, one).await);
        assert_eq!(failed, Some(Err(Failure::EIO)), "seed {seed}");
        let other = run(&mut c, SEC / 2, async move |client| read(&client, zero).await);
        assert_eq!(other, Some(Ok(b"kept".to_vec())), "seed {seed}");
        set_active(&mut c, "1");
        c.world.start_later(ost1, SEC);
        let again = run(&mut c, 30 * SEC, async move |client| read(&client, one).await);
        assert_eq!(again, Some(Ok(b"kept".to_vec())), "seed {seed}");
    }
}

/// The size of the file is known to the OST only, because another mount has the file open for writing.
#[test]
fn an_ost_that_is_away_hides_no_name_and_a_failed_open_leaves_no_handle() {
    for seed in 1..=8 {
        let mut c = support::cluster(seed, 2, 2);
        c.world.run_for(2 * SEC);
        let (second, ost1) = (c.mounts[1], c.servers[OST1]);
        let made = support::run(&mut c, second, async |client| client.create(args("f", 1, 1), 2).await);
        made.expect("made");
        c.world.kill(ost1);
        set_active(&mut c, "0");
        let listed = run(&mut c, SEC, async |client| {
            let page = client.readdir(Fid::ROOT, 0, 100, true).await?;
            Ok::<_, Failure>(page.entries.iter().any(|entry| entry.name == "f"))
        });
        assert_eq!(listed, Some(Ok(true)), "seed {seed}");
        let before = open_files(&mut c);
        let existing = CreateArgs { exclusive: false, ..args("f", 1, 1) };
        let failed = run(&mut c, SEC, async move |client| client.create(existing, 2).await.map(drop));
        assert_eq!(failed, Some(Err(Failure::EIO)), "seed {seed}");
        c.world.run_for(SEC);
        assert_eq!(open_files(&mut c), before, "seed {seed}");
    }
}

/// A process is killed in a write that a stopped OST keeps waiting: its close says what that write leaves behind.
#[test]
fn a_close_waits_for_writes_whose_callers_were_killed() {
    for seed in 1..=20 {
        let mut c = cluster(seed);
        let (mount, ost1) = (c.mounts[0], c.servers[OST1]);
        let opened = run(&mut c, 30 * SEC, async |client| client.create(args("f", 1, 1), 2).await);
        let (entry, handle) = opened.expect("in time").expect("made");
        c.world.pause(ost1, true);
        let data = bytes::Bytes::from_static(b"kept");
        let write = WriteArgs {
            handle,
            offset: 0,
            append: false,
            call_bytes: 0,
            data,
            kill_suidgid: None,
            sync: false,
        };
        let _write = c.jobs.start(&mut c.world, mount, async |client| client.write(write).await);
        c.world.run_for(2 * SEC);
        let close = c.jobs.start(&mut c.world, mount, async move |client| client.release(handle, None).await);
        c.world.run_for(SEC);
        c.world.pause(ost1, false);
        let closed: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, close, 30 * SEC);
        assert_eq!(closed, Some(Ok(())), "seed {seed}");
        c.world.run_for(5 * SEC);
        let fid = entry.attr.fid;
        let size = run(&mut c, SEC, async move |client| client.getattr(fid).await.map(|e| e.attr.size));
        assert_eq!(size, Some(Ok(4)), "seed {seed}");
    }
}

/// All servers stand still for longer than an outage may last: that is none.
#[test]
fn time_in_which_the_servers_stood_still_is_no_outage() {
    for seed in 1..=10 {
        let mut c = cluster(seed);
        let servers = c.servers.clone();
        servers.iter().for_each(|server| c.world.pause(*server, true));
        let mount = c.mounts[0];
        let job =
            c.jobs.start(&mut c.world, mount, async |client| client.make(args("f", 1, -1)).await.map(drop));
        c.world.run_for(20 * SEC);
        servers.iter().for_each(|server| c.world.pause(*server, false));
        let made: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, job, 30 * SEC);
        assert_eq!(made, Some(Ok(())), "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A recovery waits for a mount that was killed; a server that is killed in the middle of it begins anew.
#[test]
fn a_create_waits_for_the_only_ost_as_long_as_that_is_in_recovery() {
    for seed in 1..=8 {
        let mut c = support::cluster(seed, 1, 2);
        c.world.run_for(2 * SEC);
        let (ost, [mount, victim]) = (c.servers[support::OST], [c.mounts[0], c.mounts[1]]);
        for (name, of) in [("a", mount), ("b", victim)] {
            let id = c.jobs.start(&mut c.world, of, async move |client| write(&client, name, -1).await);
            let written: Result<Fid, Failure> = c.jobs.wait(&mut c.world, id, 30 * SEC).expect("in time");
            written.expect("written");
        }
        c.world.kill(victim);
        c.world.kill(ost);
        c.world.start(ost);
        let created = c.jobs.start(&mut c.world, mount, async |client| make(&client, "c", 0, -1).await);
        // Longer in all than the MDT waits for OSTs that are stopped.
        for _ in 0..3 {
            c.world.run_for(8 * SEC);
            c.world.kill(ost);
            c.world.start(ost);
        }
        let stripes: Option<Result<Vec<OstIndex>, Failure>> = c.jobs.wait(&mut c.world, created, 60 * SEC);
        assert_eq!(stripes, Some(Ok(vec![OstIndex(0)])), "seed {seed}");
    }
}
