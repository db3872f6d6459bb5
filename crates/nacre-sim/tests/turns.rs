//! Changes that wait for commits are served in the order in which they came: who works in a loop starves nobody.

mod support;

use nacre_client::Client;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, SetAttr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{FILE, MS, SEC, caller, make, on_devices, run, wait};

async fn chmod(client: &Client, fid: Fid, mode: u32) -> Result<(), Failure> {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    client.setattr(fid, set, caller()).await.map(drop)
}
/// Commits of the MDT so far.
fn commits(c: &mut Cluster) -> u64 {
    let found = c.params(|name| name.starts_with("mdt.") || name.contains("MDT0000") && name.contains("osd"));
    let text = found.iter().find_map(|(_, _, value)| value.lines().find_map(|l| l.strip_prefix("syncs: ")));
    text.expect("it is shown").parse().expect("a number")
}
/// Changes an inode again and again, `ways` times at once, until it is told to stop.
async fn loop_on(client: Rc<Client>, fid: Fid, stop: Arc<AtomicBool>) -> Result<u32, Failure> {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        chmod(&client, fid, 0o600 + count % 8).await?;
        count += 1;
    }
    Ok(count)
}

#[test]
fn a_change_beside_a_mount_that_loops_on_the_same_inode_is_made_within_five_commits() {
    for seed in 1..=10 {
        let mut c = on_devices(seed, 2);
        // A commit takes longer than a round of the loop.
        c.world.faults.io_us = (0, 20_000);
        let [loops, other] = [c.mounts[0], c.mounts[1]];
        let fid = run(&mut c, loops, async |client| make(&client, Fid::ROOT, "f", FILE).await).expect("made");
        let stop = Arc::new(AtomicBool::new(false));
        let jobs: Vec<_> = (0..4)
            .map(|_| {
                let stop = stop.clone();
                c.jobs.start(&mut c.world, loops, move |client| loop_on(client, fid, stop))
            })
            .collect();
        c.world.run_for(200 * MS);
        for _ in 0..5 {
            let before = commits(&mut c);
            let done = run(&mut c, other, async move |client| chmod(&client, fid, 0o644).await);
            let took = commits(&mut c) - before;
            assert_eq!(done, Ok(()), "seed {seed}");
            assert!(took <= 5, "seed {seed}: {took} commits");
        }
        stop.store(true, Ordering::Relaxed);
        for job in jobs {
            let count: Result<u32, Failure> = wait(&mut c, job);
            assert!(count.expect("no change fails") > 0, "seed {seed}: the loop goes on as well");
        }
        c.world.run_for(SEC);
    }
}
