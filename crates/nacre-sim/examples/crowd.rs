//! The load of `cargo xtask crowd`: many mounts, or many locks, and one metadata target.
//!
//! `crowd creates MOUNTS ROUNDS`: in each round every mount asks for the attributes of one directory, and then all create
//! a file in it at the same time. What the metadata target does is within `counted_visit` of the simulator, so that a
//! profiler can count it alone.
//!
//! `crowd return MOUNTS LOCKS`: every mount has locks on so many files when the metadata target is killed. Prints how long
//! the target needs until all mounts have returned, and how long a change of another mount takes then.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

#[path = "../tests/support/mod.rs"]
mod support;

use nacre_client::{Client, CreateArgs, MetadataChange};
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid};
use std::rc::Rc;
use std::time::Instant;
use support::{DIR, FILE, MDT, MS, SEC, caller, make, new, run, wait};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| args[at].parse::<u32>().unwrap();
    match (args.first().map(String::as_str), args.len()) {
        (Some("creates"), 3) => creates(number(1), number(2)),
        (Some("return"), 3) => returns(number(1), number(2)),
        _ => panic!("crowd creates MOUNTS ROUNDS, or crowd return MOUNTS LOCKS"),
    }
}

/// A cluster without faults whose mounts are ready.
fn cluster(mounts: u32) -> Cluster {
    let mut c = Cluster::new(1, 1, mounts);
    c.world.tracing = false;
    c.world.run_for(SEC);
    on_all(&mut c, |client, _| async move { client.ready().await.map_err(|_| Failure::EIO) });
    c
}

/// Runs a job on every mount at the same time and waits for all.
fn on_all<F: Future<Output = Result<(), Failure>> + 'static>(
    c: &mut Cluster,
    job: impl Fn(Rc<Client>, usize) -> F + Copy + Send + 'static,
) {
    let mounts: Vec<NodeId> = c.mounts.clone();
    let started: Vec<_> = mounts
        .into_iter()
        .enumerate()
        .map(|(at, mount)| c.jobs.start(&mut c.world, mount, move |client| job(client, at)))
        .collect();
    for id in started {
        wait::<Result<(), Failure>>(c, id).unwrap();
    }
}

fn creates(mounts: u32, rounds: u32) {
    let mut c = cluster(mounts);
    let first = c.mounts[0];
    let dir = run(&mut c, first, async |client| make(&client, Fid::ROOT, "d", DIR).await).unwrap();
    c.world.count_work(c.servers[MDT]);
    for round in 0..rounds {
        on_all(&mut c, move |client, _| async move { client.getattr(dir).await.map(drop) });
        on_all(&mut c, move |client, at| async move {
            let (_, handle) = client.create(new(dir, &format!("f{at}.{round}"), FILE), 2).await?;
            client.release(handle, None).await
        });
    }
}

/// Files made in one request.
const BATCH: u32 = 64;

fn returns(mounts: u32, locks: u32) {
    let mut c = cluster(mounts + 1);
    let changer = c.mounts.pop().unwrap();
    let dir = run(&mut c, changer, async |client| make(&client, Fid::ROOT, "d", DIR).await).unwrap();
    let made: Result<(), Failure> = run(&mut c, changer, async move |client| {
        for first in (0..locks).step_by(BATCH as usize) {
            let names: Vec<String> = (first..locks.min(first + BATCH)).map(|n| format!("f{n}")).collect();
            let changes: Vec<_> = names
                .iter()
                .map(|name| MetadataChange::Make(CreateArgs::new(dir, name.as_bytes(), FILE, caller())))
                .collect();
            client.batch(&changes, &caller(), true).await?.into_iter().try_for_each(|made| made.map(drop))?;
        }
        Ok(())
    });
    made.unwrap();
    on_all(&mut c, move |client, _| async move {
        let mut cookie = 0;
        loop {
            let page = client.readdir(dir, cookie, 1024, true).await?;
            match page.entries.last() {
                Some(last) if !page.eof => cookie = last.cookie,
                _ => return Ok(()),
            }
        }
    });
    let first = c.mounts[0];
    let held = run(&mut c, first, async |client: Rc<Client>| {
        let is_count = |name: &str| name.starts_with("ldlm.namespaces.") && name.ends_with(".lock_count");
        client.params().into_iter().find(|p| is_count(&p.name)).expect("a mount has it").value
    });
    println!("locks of a mount: {held}");
    let (killed, began) = (c.world.now_ns(), Instant::now());
    c.world.kill(c.servers[MDT]);
    c.world.run_for(100 * MS);
    c.world.start(c.servers[MDT]);
    // Every mount has returned when a request of it has a reply.
    on_all(&mut c, move |client, at| async move {
        client.lookup(dir, format!("none{at}").as_bytes()).await.map_or(Ok(()), |_| Ok(()))
    });
    println!(
        "all mounts have returned: {} ms simulated, {} ms of CPU for everything",
        (c.world.now_ns() - killed) / MS,
        began.elapsed().as_millis()
    );
    let (asked, began) = (c.world.now_ns(), Instant::now());
    run(&mut c, changer, async move |client| make(&client, dir, "after", FILE).await).unwrap();
    println!(
        "first change: {} ms simulated, {} ms of CPU for everything",
        (c.world.now_ns() - asked) / MS,
        began.elapsed().as_millis()
    );
}
