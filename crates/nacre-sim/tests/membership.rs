//! Who counts as alive: pings, servers that stood still, planned stops.

mod support;

use nacre_client::Client;
use nacre_types::{Failure, Fid, OpenHandle};
use nacre_wire::mdt::{FileLock, FlockFamily, FlockOutcome, FlockType};
use std::rc::Rc;
use support::{MDT, SEC, caller, cluster, create, run, write};

/// Even seeds: all targets are one process.
const ONE_PROCESS: u64 = 2;

fn whole(owner: u64) -> FileLock {
    let (family, kind) = (FlockFamily::Posix, FlockType::Write);
    FileLock { family, kind, start: 0, end: u64::MAX, owner, pid: 1 }
}
/// A file that this mount has locked and written.
async fn locked_file(client: Rc<Client>) -> Result<OpenHandle, Failure> {
    let (_, handle) = create(&client, "locked").await?;
    client.flock(handle, whole(1), false).await?;
    hello(client, handle).await?;
    Ok(handle)
}
async fn hello(client: Rc<Client>, handle: OpenHandle) -> Result<u32, Failure> {
    write(&client, handle, 0, b"hello".to_vec()).await
}

/// Pings that a mount has sent in a minute in which nobody wanted anything.
fn pings_of_an_idle_minute(seed: u64) -> usize {
    let mut c = cluster(seed, 4, 1);
    c.world.run_for(15 * SEC);
    c.world.trace_max = 100_000;
    let before = c.world.now_ns();
    c.world.run_for(60 * SEC);
    let trace = c.world.trace(100_000);
    let since = (before - SEC) as f64 / 1e6;
    let mine = |line: &&str| {
        let at: f64 = line.split_whitespace().next().and_then(|w| w.parse().ok()).unwrap_or(0.0);
        at >= since && line.contains("mount0         -> ") && line.contains(": Ping ")
    };
    let pings = trace.lines().filter(mine).count();
    let mount = c.mounts[0];
    assert!(run(&mut c, mount, async |client| client.connections().iter().all(|t| t.connected)));
    pings
}

#[test]
fn an_idle_mount_sends_one_ping_to_each_server_process() {
    let one = pings_of_an_idle_minute(ONE_PROCESS);
    let six = pings_of_an_idle_minute(ONE_PROCESS + 1);
    // Every ten seconds the list of targets is asked for, which is a message to the MGS as good as a ping.
    assert!((14..=24).contains(&one), "{one} pings, {six} with six processes");
    assert!(six > 4 * one, "{one} pings, {six} with six processes");
}

/// The lease of an MDT that is never pinged itself is as good as any: nobody gets the lock meanwhile.
#[test]
fn what_a_neighbours_ping_renews_is_kept() {
    let mut c = cluster(ONE_PROCESS, 2, 2);
    let (holder, other) = (c.mounts[0], c.mounts[1]);
    let handle = run(&mut c, holder, locked_file).expect("locked");
    c.world.run_for(60 * SEC);
    assert_eq!(run(&mut c, holder, async move |client| hello(client, handle).await), Ok(5));
    // A holder that is gone is gone for all of them.
    c.world.kill(holder);
    let start = c.world.now_ns();
    let locked = run(&mut c, other, async |client| {
        let found = client.lookup(Fid::ROOT, b"locked").await?;
        let (_, handle) = client.open(found.attr.fid, 2, caller()).await?;
        client.flock(handle, whole(2), true).await
    });
    assert_eq!(locked, Ok(FlockOutcome::Granted));
    let waited = c.world.now_ns() - start;
    assert!((6 * SEC..20 * SEC).contains(&waited), "{waited}");
}

/// SIGSTOP of a server process: when it goes on nobody has lost anything.
#[test]
fn a_server_process_that_stood_still_evicts_nobody() {
    for step in 0..24 {
        let mut c = cluster(ONE_PROCESS + step, 1, 1);
        let mount = c.mounts[0];
        let handle = run(&mut c, mount, locked_file).expect("locked");
        let idle = c.world.rng().below(4 * SEC);
        c.world.run_for(idle);
        let stopped = match step % 2 {
            0 => c.servers.clone(),
            _ => vec![c.servers[MDT]],
        };
        for &server in &stopped {
            c.world.pause(server, true);
        }
        c.world.run_for(6 * SEC + step * SEC / 3);
        for &server in &stopped {
            c.world.pause(server, false);
        }
        c.world.run_for(15 * SEC);
        let wrote = run(&mut c, mount, async move |client| hello(client, handle).await);
        assert_eq!(wrote, Ok(5), "step {step}\n{}", c.world.trace(60));
    }
}
