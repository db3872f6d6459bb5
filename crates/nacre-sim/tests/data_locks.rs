//! Data locks: the kernel of a mount that reads out of its page cache never shows what another mount's completed write has
//! replaced, whatever happens to connections, leases and OSTs.

mod support;

use nacre_client::Client;
use nacre_node::Event;
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_sim::kernel;
use nacre_types::{Errno, Fid, OpenHandle, SetAttr};
use std::rc::Rc;
use support::{MDT, MS, OST, SEC, caller, cluster, create, new, on_devices, run, write};

const LEN: usize = 20_000;
/// The lease, and what reading and evicting take beyond it.
const LEASE: u64 = 13 * SEC;
/// A mount that still reaches another server of the OST's process is renewed by that until its callback is overdue.
const TWO_LEASES: u64 = 10 * SEC + LEASE;
const WRITER: u32 = 2;

/// A file of one byte value, closed.
async fn make_file(client: &Client, name: &str, stripes: i32) -> Result<Fid, Errno> {
    let layout = nacre_types::LayoutTemplate { stripe_count: stripes, stripe_bytes: 64 << 10, first_ost: -1 };
    let args = nacre_client::CreateArgs { layout: Some(layout), ..new(Fid::ROOT, name, support::FILE) };
    let (entry, handle) = client.create(args, WRITER).await?;
    write(client, handle, 0, vec![1; LEN]).await?;
    client.release(handle, None).await?;
    Ok(entry.attr.fid)
}
async fn open(client: &Client, fid: Fid, flags: u32) -> Result<OpenHandle, Errno> {
    client.open(fid, flags, caller()).await.map(|(_, handle)| handle)
}
/// What a read(2) of the whole file gives: its length and the values in it.
async fn read(client: &Client, fid: Fid, handle: OpenHandle) -> Result<(usize, u8, u8), Errno> {
    let bytes = kernel::read(client, fid, handle, 0, 1 << 20).await?;
    let values = (bytes.iter().min().copied(), bytes.iter().max().copied());
    Ok((bytes.len(), values.0.unwrap_or(0), values.1.unwrap_or(0)))
}
async fn overwrite(client: &Client, fid: Fid, value: u8) -> Result<(), Errno> {
    let handle = open(client, fid, WRITER).await?;
    write(client, handle, 0, vec![value; LEN]).await?;
    client.release(handle, None).await
}
/// Reads that an OST has served to a mount.
fn reads(c: &mut Cluster, mount: NodeId) -> u64 {
    run(c, mount, async |client: Rc<Client>| {
        let stats =
            client.params().into_iter().filter(|p| p.name.starts_with("osc.") && p.name.ends_with(".stats"));
        let text: String = stats.map(|p| p.value).collect();
        let lines = text
            .lines()
            .filter_map(|line| line.strip_prefix("ost_read")?.split_whitespace().next()?.parse::<u64>().ok());
        lines.sum::<u64>()
    })
}

/// A file that the kernel of the first mount has cached, through the returned handle.
fn with_pages(c: &mut Cluster, first: NodeId, stripes: i32) -> (Fid, OpenHandle) {
    let cached = run(c, first, async move |client| {
        let fid = make_file(&client, "f", stripes).await?;
        let handle = open(&client, fid, 0).await?;
        assert!(client.is_cached(handle));
        assert_eq!(read(&client, fid, handle).await?, (LEN, 1, 1));
        Ok::<_, Errno>((fid, handle))
    });
    let (fid, handle) = cached.expect("made");
    let before = reads(c, first);
    let again = run(c, first, async move |client| read(&client, fid, handle).await);
    assert_eq!((again, reads(c, first)), (Ok((LEN, 1, 1)), before), "it is read from the cache");
    (fid, handle)
}

fn separate(c: &mut Cluster, mount: NodeId, servers: &[usize], apart: bool) {
    for server in servers {
        let server = c.servers[*server];
        for (from, to) in [(mount, server), (server, mount)] {
            if apart { c.world.block(from, to) } else { c.world.heal(from, to) }
        }
    }
}

/// The second mount writes; the first, which may be cut off, reads all the time. Gives how long the write took; a read that
/// began afterwards must see it.
fn written_by_the_second(
    c: &mut Cluster,
    [first, second]: [NodeId; 2],
    (fid, handle): (Fid, OpenHandle),
    seed: u64,
) -> u64 {
    let began = c.world.now_ns();
    let change = c.jobs.start(&mut c.world, second, async move |client| overwrite(&client, fid, 2).await);
    let mut ended = None;
    let mut asked = Vec::new();
    while c.world.now_ns() < began + TWO_LEASES + 2 * SEC {
        c.world.run_for(50 * MS);
        c.jobs.collect(&mut c.world);
        if ended.is_none() && c.jobs.is_done(change) {
            let made: Option<Result<(), Errno>> = c.jobs.take(change);
            made.expect("it is done").expect("written");
            ended = Some(c.world.now_ns());
        }
        let job = c.jobs.start(&mut c.world, first, async move |client| read(&client, fid, handle).await);
        asked.push((job, c.world.now_ns()));
    }
    let ended = ended.unwrap_or_else(|| panic!("seed {seed}: the write never ends\n{}", c.world.trace(60)));
    separate(c, first, &[0, MDT, OST], false);
    for (job, at) in asked {
        let got: Option<Result<(usize, u8, u8), Errno>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
        let got = got.unwrap_or_else(|| panic!("seed {seed}: a read never ends\n{}", c.world.trace(60)));
        let (_, least, most) = got.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(
            (least, most) == (2, 2) || at < ended,
            "seed {seed}: read at {at}, written at {ended}, got {least} to {most}"
        );
    }
    ended - began
}

#[test]
fn a_write_of_another_mount_is_seen_at_once() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let mounts = [c.mounts[0], c.mounts[1]];
        let file = with_pages(&mut c, mounts[0], 1);
        let took = written_by_the_second(&mut c, mounts, file, seed);
        assert!(took < SEC, "seed {seed}: nobody waits for a lease");
    }
}

#[test]
fn a_file_over_several_osts_is_cached_and_seen_at_once() {
    for seed in 1..=8 {
        let mut c = cluster(seed, 3, 2);
        let mounts = [c.mounts[0], c.mounts[1]];
        let file = with_pages(&mut c, mounts[0], 3);
        let took = written_by_the_second(&mut c, mounts, file, seed);
        assert!(took < SEC, "seed {seed}: nobody waits for a lease");
    }
}

/// It does not use what it has beyond its lease, and the write waits for no longer than that.
#[test]
fn a_mount_that_is_cut_off_reads_nothing_old_after_the_write() {
    for seed in 1..=6 {
        for servers in [&[OST][..], &[0, MDT, OST]] {
            let mut c = on_devices(seed, 2);
            let mounts = [c.mounts[0], c.mounts[1]];
            let file = with_pages(&mut c, mounts[0], 1);
            separate(&mut c, mounts[0], servers, true);
            let took = written_by_the_second(&mut c, mounts, file, seed);
            assert!(took < 2 * TWO_LEASES, "seed {seed}: {took} ns");
        }
    }
}

/// The OST forgets the locks that it has granted; writes wait until their holders have.
#[test]
fn a_restarted_ost_waits_for_those_whose_kernels_have_bytes() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let mounts = [c.mounts[0], c.mounts[1]];
        let file = with_pages(&mut c, mounts[0], 1);
        let ost = c.servers[OST];
        separate(&mut c, mounts[0], &[OST], true);
        if seed % 2 == 0 {
            c.world.tell(ost, Event::Stop);
            let until = c.world.now_ns() + 20 * SEC;
            assert!(c.world.run_until(until, |world| !world.take_stopped().is_empty()), "seed {seed}");
        }
        c.world.kill(ost);
        c.world.start(ost);
        let took = written_by_the_second(&mut c, mounts, file, seed);
        assert!(took < TWO_LEASES, "seed {seed}: {took} ns");
    }
}

#[test]
fn after_a_restart_nobody_waits_when_everybody_is_there() {
    for seed in 1..=4 {
        let mut c = on_devices(seed, 2);
        let mounts = [c.mounts[0], c.mounts[1]];
        let file = with_pages(&mut c, mounts[0], 1);
        let ost = c.servers[OST];
        c.world.kill(ost);
        c.world.start(ost);
        let took = written_by_the_second(&mut c, mounts, file, seed);
        assert!(took < 3 * SEC, "seed {seed}: {took} ns");
    }
}

/// It does not know yet that its lease is over and its connection gone.
#[test]
fn a_mount_that_stood_still_for_longer_than_its_lease_asks() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let (fid, handle) = with_pages(&mut c, first, 1);
        c.world.pause(first, true);
        assert_eq!(run(&mut c, second, async move |client| overwrite(&client, fid, 2).await), Ok(()));
        let asked = c.jobs.start(&mut c.world, first, async move |client| read(&client, fid, handle).await);
        c.world.pause(first, false);
        let got: Option<Result<(usize, u8, u8), Errno>> = c.jobs.wait(&mut c.world, asked, 60 * SEC);
        assert_eq!(got, Some(Ok((LEN, 2, 2))), "seed {seed}");
    }
}

/// Grants, revokes and replies on their way at the same time, on a network that doubles frames and swaps them.
#[test]
fn bytes_that_a_revoke_has_overtaken_do_not_stay() {
    for seed in 1..=120 {
        let mut c = on_devices(seed, 2);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let opened = run(&mut c, first, async move |client| {
            let fid = make_file(&client, "f", 1).await?;
            open(&client, fid, 0).await.map(|handle| (fid, handle))
        });
        let (fid, handle) = opened.expect("made");
        c.world.faults.noise.swap_one_in = 4;
        c.world.faults.noise.double_one_in = 8;
        let mut looks = Vec::new();
        let mut value = 1;
        for step in 0..4 {
            for _ in 0..2 {
                looks.push(
                    c.jobs.start(&mut c.world, first, async move |client| read(&client, fid, handle).await),
                );
                c.world.run_for(seed * 5_000 * (step + 1));
            }
            value += 1;
            let change =
                c.jobs.start(&mut c.world, second, async move |client| overwrite(&client, fid, value).await);
            let made: Option<Result<(), Errno>> = c.jobs.wait(&mut c.world, change, 60 * SEC);
            assert_eq!(made, Some(Ok(())), "seed {seed}");
            let got = run(&mut c, first, async move |client| read(&client, fid, handle).await);
            assert_eq!(got, Ok((LEN, value, value)), "seed {seed} step {step}\n{}", c.world.trace(60));
        }
        c.world.faults.noise = Default::default();
        for look in looks {
            let _: Option<Result<(usize, u8, u8), Errno>> = c.jobs.wait(&mut c.world, look, 60 * SEC);
        }
    }
}

/// The writer of one mount and a reader of the same mount that opened the file before: as two processes on one kernel.
#[test]
fn a_reader_sees_the_writes_and_truncates_of_its_own_mount_at_once() {
    for seed in 1..=20 {
        let mut c = on_devices(seed, 2);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let (fid, reader) = with_pages(&mut c, first, 1);
        let writer = run(&mut c, first, async move |client| open(&client, fid, WRITER).await).expect("open");
        for value in 2..6 {
            // A read beside the write may bring older bytes.
            let beside =
                c.jobs.start(&mut c.world, first, async move |client| read(&client, fid, reader).await);
            c.world.run_for(seed * 20_000);
            let seen = run(&mut c, first, async move |client| {
                write(&client, writer, 0, vec![value; LEN]).await?;
                kernel::changed(&client, fid);
                read(&client, fid, reader).await
            });
            assert_eq!(seen, Ok((LEN, value, value)), "seed {seed}");
            let _: Option<Result<(usize, u8, u8), Errno>> = c.jobs.wait(&mut c.world, beside, 60 * SEC);
        }
        let seen = run(&mut c, first, async move |client| {
            client.release(writer, None).await?;
            read(&client, fid, reader).await?;
            let set = SetAttr { size: Some(100), ..SetAttr::default() };
            client.setattr(fid, set, caller()).await?;
            kernel::truncated(&client, fid);
            read(&client, fid, reader).await
        });
        assert_eq!(seen, Ok((100, 5, 5)), "seed {seed}");
        assert_eq!(run(&mut c, second, async move |client| overwrite(&client, fid, 7).await), Ok(()));
        let seen = run(&mut c, first, async move |client| read(&client, fid, reader).await);
        assert_eq!(seen, Ok((LEN, 7, 7)), "seed {seed}");
    }
}

/// A handle that was opened when somebody wrote uses direct I/O: its bytes would be dropped after each read.
#[test]
fn a_file_that_is_being_written_is_not_cached_for_new_readers() {
    let mut c = on_devices(1, 2);
    let [first, second] = [c.mounts[0], c.mounts[1]];
    let made = run(&mut c, first, async |client| {
        let (fid, writer) = create(&client, "f").await?;
        write(&client, writer, 0, vec![1; LEN]).await?;
        let reader = open(&client, fid, 0).await?;
        Ok::<_, Errno>((fid, writer, client.is_cached(reader)))
    });
    let (fid, writer, is_cached) = made.expect("made");
    assert!(!is_cached);
    let other = async move |client: Rc<Client>| {
        let reader = open(&client, fid, 0).await?;
        let is_cached = client.is_cached(reader);
        client.release(reader, None).await.map(|()| is_cached)
    };
    assert_eq!(run(&mut c, second, other), Ok(false));
    run(&mut c, first, async move |client| client.release(writer, None).await).expect("closed");
    c.world.run_for(SEC);
    assert_eq!(run(&mut c, second, other), Ok(true));
}

/// What a lock tells of an object needs no question to the OST, also while somebody has the file open for writing.
#[test]
fn the_size_of_a_file_under_data_locks_needs_no_glimpse() {
    let mut c = on_devices(3, 2);
    let [first, second] = [c.mounts[0], c.mounts[1]];
    let (fid, _) = with_pages(&mut c, first, 1);
    let writer = run(&mut c, second, async move |client| open(&client, fid, WRITER).await).expect("open");
    let glimpses = |c: &mut Cluster| {
        run(c, first, async |client: Rc<Client>| {
            let stats = client
                .params()
                .into_iter()
                .filter(|p| p.name.starts_with("osc.") && p.name.ends_with(".stats"));
            stats.map(|p| p.value).collect::<String>().matches("ldlm_glimpse").count()
        })
    };
    let size = async move |client: Rc<Client>| client.getattr(fid).await.map(|entry| entry.attr.size);
    assert_eq!(run(&mut c, first, size), Ok(LEN as u64));
    assert_eq!(glimpses(&mut c), 0);
    let written =
        run(&mut c, second, async move |client| write(&client, writer, LEN as u64, vec![3; 10]).await);
    assert_eq!(written, Ok(10));
    assert_eq!(run(&mut c, first, size), Ok(LEN as u64 + 10));
    assert_eq!(glimpses(&mut c), 1);
}

/// Beyond the limits of the mount and of the OST, the oldest locks are returned, and nothing is read wrongly.
#[test]
fn locks_beyond_the_limits_are_returned() {
    let mut c = on_devices(5, 1);
    let first = c.mounts[0];
    run(&mut c, first, async |client| {
        for param in
            client.params().into_iter().filter(|p| p.name.contains("OST") && p.name.ends_with(".lru_size"))
        {
            client.set_param(&param.name, "8").expect("in range");
        }
    });
    let read_all = run(&mut c, first, async |client| {
        for number in 0..200 {
            let fid = make_file(&client, &format!("f{number}"), 1).await?;
            let handle = open(&client, fid, 0).await?;
            assert_eq!(read(&client, fid, handle).await?, (LEN, 1, 1));
            client.release(handle, None).await?;
        }
        Ok::<_, Errno>(())
    });
    assert_eq!(read_all, Ok(()));
    c.world.run_for(5 * SEC);
    let held = run(&mut c, first, async |client| {
        let is_count = |name: &str| name.contains("OST") && name.ends_with(".lock_count");
        client.params().into_iter().find(|p| is_count(&p.name)).expect("a mount has it").value
    });
    assert_eq!(held, "8");
}
