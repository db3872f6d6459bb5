//! OSTs without free space: what needs no new space succeeds all the same, and nothing that was acknowledged is lost.

mod support;

use nacre_client::{AllocateArgs, AllocateMode, Client, CreateArgs};
use nacre_node::{FileId, Store, StoreDone, StoreOp};
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, LayoutTemplate, OpenHandle};
use std::rc::Rc;
use std::sync::Arc;
use support::{FILE, MS, OST, SEC, caller, create, new, read, run, write, write_back};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Bytes of each file that is overwritten.
const BYTES: u64 = MIB;

async fn allocate(client: &Client, handle: OpenHandle, mode: AllocateMode) -> Result<(), Failure> {
    let args = AllocateArgs { offset: 0, len: BYTES, mode, kill_suidgid: None };
    client.allocate(handle, args).await
}
/// Writes to a file from an offset on until not even a block fits any more; returns how many bytes.
async fn fill(client: &Client, handle: OpenHandle, from: u64) -> Result<u64, Failure> {
    let mut at = from;
    for piece in [MIB, 64 << 10, BLOCK] {
        loop {
            match write(client, handle, at, vec![9; piece as usize]).await {
                Ok(_) => at += piece,
                Err(Failure::ENOSPC) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(at - from)
}

/// Files on a full OST: one in preallocated space, and one with bytes. Their names, handles and expected bytes.
struct Full {
    files: Vec<(Fid, OpenHandle, Vec<u8>)>,
    rest: OpenHandle,
}
fn full(c: &mut Cluster) -> Full {
    let made = run(c, c.mounts[0], async |client: Rc<Client>| {
        let mut files = Vec::new();
        for name in ["allocated", "written"] {
            let (fid, handle) = create(&client, name).await?;
            files.push((fid, handle));
        }
        allocate(&client, files[0].1, AllocateMode::Space { keep_size: false }).await?;
        write(&client, files[1].1, 0, vec![1; BYTES as usize]).await?;
        client.fsync(files[1].0, Some(files[1].1)).await?;
        let (_, rest) = create(&client, "rest").await?;
        let filled = fill(&client, rest, 0).await?;
        assert!(filled > 100 * MIB, "{filled}");
        Ok::<_, Failure>((files, rest))
    });
    let (files, rest) = made.expect("filled");
    let bytes = [vec![0; BYTES as usize], vec![1; BYTES as usize]];
    let files = files.into_iter().zip(bytes).map(|((fid, handle), bytes)| (fid, handle, bytes)).collect();
    Full { files, rest }
}
/// A random change within the space that a file has.
fn place(c: &mut Cluster, number: u64) -> (u64, Vec<u8>) {
    let rng = c.world.rng();
    let (offset, len) = match rng.below(3) {
        0 => (rng.below(BYTES - 40_000), 1 + rng.below(40_000)),
        1 => (rng.below(BYTES - BLOCK), 1 + rng.below(BLOCK)),
        _ => (rng.below(BYTES / BLOCK) * BLOCK, BLOCK),
    };
    (offset, vec![number as u8; len as usize])
}
/// Overwrites random parts of both files through one mount.
fn overwrite(c: &mut Cluster, full: &mut Full, mount: usize, writes: u64) {
    let node = c.mounts[mount];
    let fids: Vec<Fid> = full.files.iter().map(|(fid, ..)| *fid).collect();
    let handles = run(c, node, async move |client| {
        let mut handles = Vec::new();
        for fid in fids {
            handles.push(client.open(fid, 2, caller()).await?.1);
        }
        Ok::<_, Failure>(handles)
    });
    let handles = handles.expect("opened on a full OST");
    for number in 0..writes {
        let which = c.world.rng().below(2) as usize;
        let (offset, data) = place(c, number);
        let (fid, handle, bytes) = (full.files[which].0, handles[which], data.clone());
        let is_synced = c.world.rng().below(16) == 0;
        let written = run(c, node, async move |client| {
            write(&client, handle, offset, bytes).await?;
            if is_synced { client.fsync(fid, Some(handle)).await } else { Ok(()) }
        });
        assert_eq!(written, Ok(()), "write {number} of {} bytes at {offset} of file {which}", data.len());
        full.files[which].2[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
    }
    let closed = run(c, node, async move |client| {
        for handle in handles {
            client.release(handle, None).await?;
        }
        Ok::<_, Failure>(())
    });
    assert_eq!(closed, Ok(()));
}
fn check(c: &mut Cluster, full: &Full, when: &str) {
    for mount in c.mounts.clone() {
        for (which, (fid, _, bytes)) in full.files.iter().enumerate() {
            let seen = read(c, mount, *fid).expect("readable");
            assert_eq!(seen.len(), bytes.len());
            let differs = seen.iter().zip(bytes).position(|(a, b)| a != b);
            assert_eq!(differs, None, "{when}: file {which} as {} sees it", c.world.name(mount));
        }
    }
}
fn is_full(c: &mut Cluster, full: &Full) {
    let rest = full.rest;
    let refused = run(c, c.mounts[0], async move |client| {
        write(&client, rest, 200 << 30, vec![1; BLOCK as usize]).await
    });
    assert_eq!(refused, Err(Failure::ENOSPC), "the OST is full");
}

/// Space that was given back, and that another file has taken, is not there any more.
fn gives_space_back(c: &mut Cluster, full: &Full) {
    let (handle, rest, mount) = (full.files[0].1, full.rest, c.mounts[0]);
    let after = run(c, mount, async move |client: Rc<Client>| {
        allocate(&client, handle, AllocateMode::Hole).await?;
        fill(&client, rest, 100 << 30).await?;
        Ok::<_, Failure>(write(&client, handle, 0, vec![1; BLOCK as usize]).await)
    });
    assert_eq!(after, Ok(Err(Failure::ENOSPC)));
}

fn writes_into_space_of_files(mut c: Cluster, osts: u32, seed: u64) {
    support::ready(&mut c);
    let (first, second) = (c.mounts[0], c.mounts[1]);
    if seed.is_multiple_of(2) {
        write_back(&mut c);
    }
    let mut full = full(&mut c);
    for round in 0..6 {
        overwrite(&mut c, &mut full, round % 2, 200);
        is_full(&mut c, &full);
    }
    check(&mut c, &full, "in the end");
    let fallocated = run(&mut c, first, {
        let handle = full.files[1].1;
        async move |client| allocate(&client, handle, AllocateMode::Space { keep_size: false }).await
    });
    assert_eq!(fallocated, Ok(()), "space that a file has is set aside again");
    if osts == 1 {
        gives_space_back(&mut c, &full);
    }
    let rest = full.rest;
    run(&mut c, first, async move |client| client.release(rest, None).await).expect("closed");
    let removed = run(&mut c, second, async |client: Rc<Client>| {
        client.unlink(Fid::ROOT, b"rest", false, caller()).await?;
        let (_, handle) = create(&client, "new").await?;
        write(&client, handle, 0, vec![1; MIB as usize]).await
    });
    assert_eq!(removed, Ok(MIB as u32), "what is removed leaves its space");
}

#[test]
fn writes_that_need_no_new_space_succeed_on_a_full_ost() {
    for seed in 1..=4 {
        writes_into_space_of_files(Cluster::new(seed, 1, 2), 1, seed);
    }
}

#[test]
fn writes_that_need_no_new_space_succeed_on_a_full_device_that_others_share() {
    for seed in 1..=4 {
        writes_into_space_of_files(Cluster::on_one_device(seed, 2, 2), 2, seed);
    }
}

/// Log and tables use their space again and again.
#[test]
fn an_ost_stays_full_for_long_and_is_overwritten_all_the_time() {
    let mut c = support::cluster(5, 1, 1);
    let full = full(&mut c);
    let files: Vec<OpenHandle> = full.files.iter().map(|(_, handle, _)| *handle).collect();
    let places: Vec<(u64, OpenHandle)> =
        (0..30_000).map(|n| (c.world.rng().below(BYTES / BLOCK) * BLOCK, files[n % 2])).collect();
    let mount = c.mounts[0];
    let written = run(&mut c, mount, async move |client: Rc<Client>| {
        for (at, (offset, handle)) in places.into_iter().enumerate() {
            write(&client, handle, offset, vec![3; 100]).await.map_err(|error| (at, error))?;
        }
        Ok::<_, (usize, Failure)>(())
    });
    assert_eq!(written, Ok(()));
    is_full(&mut c, &full);
}

/// The OST is killed, or its machine dies, while its files are overwritten.
#[test]
fn no_acknowledged_overwrite_of_a_full_ost_is_lost_with_its_process_or_machine() {
    for seed in 1..=12 {
        let mut c = support::cluster(seed, 1, 2);
        let mut full = full(&mut c);
        for round in 0..4 {
            let mount = round % 2;
            overwrite(&mut c, &mut full, mount, 20);
            let (fid, handle, _) = full.files[round % 2];
            let (offset, data) = place(&mut c, 100 + round as u64);
            let bytes = data.clone();
            // The first mount has them open.
            let job = c.jobs.start(&mut c.world, c.mounts[0], async move |client: Rc<Client>| {
                write(&client, handle, offset, bytes).await?;
                client.fsync(fid, Some(handle)).await
            });
            let pause = c.world.rng().below(10_000_000);
            c.world.run_for(pause);
            let ost = c.servers[OST];
            match c.world.rng().below(2) {
                0 => c.world.kill(ost),
                _ => c.power_loss(OST),
            }
            c.world.start_later(ost, 100_000_000);
            let done: Option<Result<(), Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
            assert_eq!(done, Some(Ok(())), "seed {seed}, round {round}\n{}", c.world.trace(60));
            full.files[round % 2].2[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
            check(&mut c, &full, "after a loss");
            is_full(&mut c, &full);
        }
    }
}

/// Free space for objects that an OST has reported to the MDT.
fn avail(c: &mut Cluster, ost: &str) -> u64 {
    let value =
        c.params(|name| name.contains(ost) && name.ends_with(".kbytesavail")).pop().expect("it is there").2;
    value.parse::<u64>().expect("a number") << 10
}

/// OSTs of one process on one device: one reports no room as free that another has granted.
#[test]
fn osts_of_one_process_on_one_device_count_their_grants_together() {
    for (seed, together) in [(1, false), (2, true)] {
        let mut c = Cluster::on_one_device(seed, 2, 1);
        support::ready(&mut c);
        write_back(&mut c);
        c.world.run_for(3 * SEC);
        let before = avail(&mut c, "OST0001");
        let mount = c.mounts[0];
        let kept = run(&mut c, mount, async |client: Rc<Client>| {
            let layout = LayoutTemplate { stripe_count: 1, first_ost: 0, ..LayoutTemplate::default() };
            let args = CreateArgs { layout: Some(layout), ..new(Fid::ROOT, "f", FILE) };
            let (_, handle) = client.create(args, 2).await?;
            for n in 0..40 {
                write(&client, handle, n * BLOCK, vec![1; BLOCK as usize]).await?;
            }
            Ok::<_, Failure>(())
        });
        assert_eq!(kept, Ok(()));
        c.world.run_for(2 * SEC); // the MDT asks for the space
        let less = before.saturating_sub(avail(&mut c, "OST0001"));
        assert_eq!(less > 8 * MIB, together, "seed {seed}: {less} bytes");
    }
}

/// The space of a file that nobody knows of is freed on the device a moment after a write was refused.
#[test]
fn a_write_waits_a_moment_for_space_that_the_device_frees_with_delay() {
    for delay_ms in [150, 2000] {
        let mut c = support::cluster(3, 1, 1);
        let store: Arc<dyn Store> = c.stores[OST].clone();
        let foreign = FileId::Run(1 << 40);
        let data = vec![bytes::Bytes::from(vec![1; 16 << 20])];
        assert_eq!(store.execute(StoreOp::Write { file: foreign, offset: 0, data }), Ok(StoreDone::Unit));
        let full = full(&mut c);
        let rest = full.rest;
        c.world.run_for(SEC); // the writes that filled it have looked in vain
        let job = c.jobs.start(&mut c.world, c.mounts[0], async move |client: Rc<Client>| {
            write(&client, rest, 200 << 30, vec![1; BLOCK as usize]).await
        });
        c.world.run_for(delay_ms * MS);
        assert_eq!(store.execute(StoreOp::Delete { file: foreign }), Ok(StoreDone::Unit));
        let written: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
        let expected = if delay_ms < 400 { Ok(BLOCK as u32) } else { Err(Failure::ENOSPC) };
        assert_eq!(written, Some(expected), "after {delay_ms} ms");
    }
}

/// The MDT has been refused objects when it started; since then a foreign file has gone. It asks again before a create fails.
#[test]
fn a_create_finds_the_space_that_the_device_has_since_the_mdt_was_refused_objects() {
    let mut c = support::cluster(4, 1, 1);
    c.world.run_for(3 * SEC);
    let store: Arc<dyn Store> = c.stores[OST].clone();
    let foreign = FileId::Run(1 << 40);
    let piece = vec![bytes::Bytes::from(vec![1; MIB as usize])];
    let mut offset = 0;
    while store.execute(StoreOp::Write { file: foreign, offset, data: piece.clone() }) == Ok(StoreDone::Unit)
    {
        offset += MIB;
    }
    let (mdt, mount) = (c.servers[1], c.mounts[0]);
    c.world.kill(mdt);
    c.world.start_later(mdt, 100 * MS);
    c.world.run_for(5 * SEC);
    assert_eq!(avail(&mut c, "OST0000") / MIB, 0);
    assert_eq!(store.execute(StoreOp::Delete { file: foreign }), Ok(StoreDone::Unit));
    let made = run(&mut c, mount, async |client: Rc<Client>| create(&client, "new").await.map(drop));
    assert_eq!(made, Ok(()));
}
