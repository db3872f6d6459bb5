//! OSTs that are away: what new files, and files on them, make of it.

use nacre_client::{Client, CreateArgs};
use nacre_sim::cluster::Cluster;
use nacre_types::{Caller, Errno, Fid, LayoutTemplate, OstIndex};
use std::rc::Rc;

const SEC: u64 = 1_000_000_000;
const MDT: usize = 1;
const OST1: usize = 3;

fn cluster(seed: u64) -> Cluster {
    let mut c = Cluster::on_devices(seed, 2, 1);
    c.world.run_for(3 * SEC);
    run(&mut c, 60 * SEC, async |client| client.ready().await).expect("it starts").expect("it starts");
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
/// Makes a file; the OSTs of its stripes.
async fn make(
    client: &Client,
    name: &str,
    stripe_count: i32,
    first_ost: i32,
) -> Result<Vec<OstIndex>, Errno> {
    let args = CreateArgs {
        parent: Fid::ROOT,
        name: name.as_bytes(),
        mode: 0o100644,
        rdev: 0,
        target: b"",
        layout: Some(LayoutTemplate { stripe_count, stripe_bytes: 0, first_ost }),
        exclusive: true,
        caller: Caller { uid: 0, gid: 0, pid: 1, umask: 0o22, groups: vec![] },
    };
    let fid = client.make(args).await?.attr.fid;
    let layout = client.layout(fid).await?.layout.ok_or(Errno::EIO)?;
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
        assert_eq!(refused, Some(Err(Errno::ENXIO)), "seed {seed}");
    }
}
