//! Writes over several objects are one for everybody, although their OSTs are killed half way: their locks come back with
//! the OST.

mod support;

use bytes::Bytes;
use nacre_client::{Client, CreateArgs, WriteArgs};
use nacre_sim::JobId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, LayoutTemplate, OpenHandle};
use std::rc::Rc;
use support::{FILE, SEC, caller, cluster, new, run};

const STRIPE: u32 = 64 << 10;
const LEN: usize = 2 * STRIPE as usize;
const US: u64 = 1000;
/// Longer than the write takes, with its locks.
const WRITE: u64 = 2000 * US;
/// Delay of the messages of the first mount after it was cut off. A mount that waits for the end of a recovery asks more
/// often than that takes there and back.
const FAR_US: u64 = 150_000;
/// Places of the OSTs among the servers.
const OSTS: [usize; 2] = [2, 3];

/// Two mounts that have a file open, of one stripe on each OST, with [`LEN`] bytes of 1.
fn scene(seed: u64) -> (Cluster, Fid, [OpenHandle; 2]) {
    let mut c = cluster(seed, 2, 2);
    let (first, second) = (c.mounts[0], c.mounts[1]);
    let made = run(&mut c, first, async |client| {
        let layout = LayoutTemplate {
            stripe_count: 2,
            stripe_bytes: STRIPE,
            first_ost: 0,
            ..LayoutTemplate::default()
        };
        let args = CreateArgs { layout: Some(layout), ..new(Fid::ROOT, "f", FILE) };
        let (entry, handle) = client.create(args, 2).await?;
        write(client, handle, 1, false).await?;
        Ok::<_, Failure>((entry.attr.fid, handle))
    });
    let (fid, one) = made.expect("made");
    let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
    (c, fid, [one, opened.expect("opened").1])
}
async fn write(client: Rc<Client>, handle: OpenHandle, of: u8, append: bool) -> Result<u32, Failure> {
    let data = Bytes::from(vec![of; LEN]);
    client
        .write(WriteArgs { handle, offset: 0, append, call_bytes: 0, data, kill_suidgid: None, sync: false })
        .await
}
async fn read(client: Rc<Client>, handle: OpenHandle) -> Result<Vec<u8>, Failure> {
    Ok(client.read(handle, 0, 8 * LEN as u32).await?.concat())
}
fn wait<T: 'static>(c: &mut Cluster, job: JobId) -> T {
    let done = c.jobs.wait(&mut c.world, job, 120 * SEC);
    done.unwrap_or_else(|| panic!("the job never ends; {:?}\n{}", c.world.fatal, c.world.trace(60)))
}

/// The first mount is not heard any more by `deaf`, which hears it again after `other` has had time. All of `killed` die
/// and start again in between.
fn cut_off<T: Send + 'static, F: Future<Output = T> + 'static>(
    c: &mut Cluster,
    deaf: usize,
    killed: &[usize],
    other: impl FnOnce(Rc<Client>) -> F + Send + 'static,
) -> JobId {
    let [first, second] = [c.mounts[0], c.mounts[1]];
    let servers = c.servers.clone();
    c.world.block(first, servers[deaf]);
    c.world.run_for(WRITE);
    for &server in killed {
        c.world.kill(servers[server]);
        // Nor does it tell them all at once what they have lost.
        c.world.block(first, servers[server]);
        c.world.start(servers[server]);
    }
    let job = c.jobs.start(&mut c.world, second, other);
    c.world.run_for(SEC);
    // After the recovery the other mount is the first one to be served: if the OST had lost a lock, the other mount would
    // get it before the first mount learned of the loss.
    (c.world.faults.far, c.world.faults.far_us) = (Some(first), FAR_US);
    for server in OSTS {
        c.world.heal(first, servers[server]);
    }
    job
}

#[test]
fn nobody_reads_half_of_a_write_whose_ost_was_killed() {
    for seed in 1..=2 {
        for at in (seed * 50 * US..WRITE).step_by(100 * US as usize) {
            let (mut c, _, [one, two]) = scene(seed);
            let first = c.mounts[0];
            let writing =
                c.jobs.start(&mut c.world, first, async move |client| write(client, one, 2, false).await);
            c.world.run_for(at);
            let reading = cut_off(&mut c, OSTS[0], &OSTS[..1], async move |client| read(client, two).await);
            let found: Result<Vec<u8>, Failure> = wait(&mut c, reading);
            let found = found.expect("read");
            assert_eq!(found.len(), LEN, "seed {seed}, cut off after {at} ns");
            assert!(
                found.iter().all(|byte| *byte == found[0]),
                "seed {seed}, cut off after {at} ns: {} and {}\n{}",
                found[0],
                found[LEN - 1],
                c.world.trace(60)
            );
            assert_eq!(wait::<Result<u32, Failure>>(&mut c, writing), Ok(LEN as u32), "seed {seed}");
        }
    }
}

#[test]
fn no_append_begins_within_another_whose_osts_were_killed() {
    for seed in 1..=2 {
        for at in (seed * 50 * US..WRITE).step_by(100 * US as usize) {
            let (mut c, _, [one, two]) = scene(seed);
            let first = c.mounts[0];
            let appending =
                c.jobs.start(&mut c.world, first, async move |client| write(client, one, 2, true).await);
            c.world.run_for(at);
            let other =
                cut_off(&mut c, OSTS[1], &OSTS, async move |client| write(client, two, 3, true).await);
            for job in [appending, other] {
                assert_eq!(wait::<Result<u32, Failure>>(&mut c, job), Ok(LEN as u32), "seed {seed}");
            }
            let found = run(&mut c, first, async move |client| read(client, one).await).expect("read");
            let pieces: Vec<u8> = found.chunks(LEN).map(|piece| piece[0]).collect();
            assert!(
                found.chunks(LEN).all(|piece| piece.iter().all(|byte| *byte == piece[0])),
                "seed {seed}, cut off after {at} ns: torn, {pieces:?}\n{}",
                c.world.trace(60)
            );
            assert!(
                matches!(pieces[..], [1, 2, 3] | [1, 3, 2]),
                "seed {seed}, cut off after {at} ns: {pieces:?}"
            );
        }
    }
}

/// A lock that others wait for is kept by an operation that waits for an OST which is away: it shows that it goes on, and is
/// not evicted for it.
#[test]
fn an_ost_that_is_away_for_long_costs_nobody_his_locks_on_another_one() {
    let (mut c, _, [one, two]) = scene(7);
    let (first, second, away) = (c.mounts[0], c.mounts[1], c.servers[OSTS[1]]);
    c.world.kill(away);
    let appending = c.jobs.start(&mut c.world, first, async move |client| write(client, one, 2, true).await);
    c.world.run_for(SEC);
    let other = c.jobs.start(&mut c.world, second, async move |client| write(client, two, 3, true).await);
    c.world.run_for(100 * SEC);
    c.world.start(away);
    for job in [appending, other] {
        assert_eq!(wait::<Result<u32, Failure>>(&mut c, job), Ok(LEN as u32));
    }
    for mount in [first, second] {
        let evictions = run(&mut c, mount, async |client| {
            let imports = client.params().into_iter().filter(|p| p.name.ends_with(".import"));
            imports.filter(|p| p.value.contains("evictions: ") && !p.value.contains("evictions: 0")).count()
        });
        assert_eq!(evictions, 0);
    }
}
