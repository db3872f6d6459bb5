//! A store that comes back is not trusted: whatever it has lost, clients that live find every acknowledged change right,
//! and what they find then is on the device.

mod support;

use nacre_sim::NodeId;
use nacre_sim::cluster::{Cluster, StoreLoss};
use nacre_types::{Failure, Fid, SetAttr};
use std::collections::BTreeSet;
use support::{DIR, MDT, MS, OST, SEC, caller, cluster, create, make, read, run, without_cache, write};

const FILES: u8 = 12;
const LEN: usize = 20_000;

/// Files with a byte each, written in pieces, the last ones a moment ago.
fn write_files(c: &mut Cluster, mount: NodeId) -> Vec<Fid> {
    let mut fids = Vec::new();
    for n in 0..FILES {
        let fid = run(c, mount, async move |client| {
            let (fid, handle) = create(&client, &format!("f{n}")).await?;
            for at in (0..LEN).step_by(5000) {
                write(&client, handle, at as u64, vec![n + 1; 5000]).await?;
            }
            Ok::<_, Failure>(fid)
        });
        fids.push(fid.expect("written"));
        let pause = c.world.rng().below(150 * MS);
        c.world.run_for(pause);
    }
    fids
}
fn all_right(c: &mut Cluster, mount: NodeId, fids: &[Fid], when: &str) {
    for (fid, n) in fids.iter().zip(1..) {
        let found = read(c, mount, *fid).expect("readable");
        let wrong = found.iter().filter(|byte| **byte != n).count();
        assert_eq!((found.len(), wrong), (LEN, 0), "file {n} {when}\n{}", c.world.trace(60));
    }
}
fn come_back(c: &mut Cluster, server: usize) {
    let id = c.servers[server];
    c.world.start_later(id, 100 * MS);
}

/// The OST loses what was not synced, in one of several ways, comes back, says in the end that all is stable, and is
/// mounted again.
#[test]
fn acknowledged_bytes_are_there_whatever_the_store_of_an_ost_has_lost() {
    for seed in 1..=40 {
        let loss = StoreLoss::ALL[seed as usize % 4];
        let mut c = cluster(seed, 1, 2);
        let (writer, reader) = (c.mounts[0], c.mounts[1]);
        let fids = write_files(&mut c, writer);
        c.lose_store(OST, loss);
        come_back(&mut c, OST);
        all_right(&mut c, reader, &fids, &format!("after the loss, seed {seed}, {loss:?}"));
        c.world.run_for(5 * SEC);
        c.devices[OST].refuse_writeback(); // whatever is not stable by now
        c.world.kill(writer);
        c.lose_store(OST, StoreLoss::Remounted);
        come_back(&mut c, OST);
        all_right(&mut c, reader, &fids, &format!("mounted again, seed {seed}, {loss:?}"));
    }
}

#[test]
fn acknowledged_names_are_there_whatever_the_store_of_the_mdt_has_lost() {
    for seed in 1..=40 {
        let loss = StoreLoss::ALL[seed as usize % 4];
        let mut c = cluster(seed, 1, 2);
        let (writer, reader) = (c.mounts[0], c.mounts[1]);
        without_cache(&mut c);
        let mut expected = BTreeSet::new();
        for n in 0..60 {
            let name = format!("d{n}");
            let made = name.clone();
            run(&mut c, writer, async move |client| make(&client, Fid::ROOT, &made, DIR).await)
                .expect("made");
            expected.insert(name);
            let pause = c.world.rng().below(40 * MS);
            c.world.run_for(pause);
        }
        let found = |c: &mut Cluster| -> BTreeSet<String> {
            let page = run(c, reader, async |client| client.readdir(Fid::ROOT, 2, 1000, false).await);
            let entries = page.expect("the root is readable").entries;
            let names = entries.into_iter().map(|e| String::from_utf8_lossy(&e.name).into_owned());
            names.filter(|name| name.starts_with('d')).collect()
        };
        c.lose_store(MDT, loss);
        come_back(&mut c, MDT);
        assert_eq!(found(&mut c), expected, "after the loss, seed {seed}, {loss:?}");
        c.world.run_for(5 * SEC);
        c.world.kill(writer);
        c.lose_store(MDT, StoreLoss::Remounted);
        come_back(&mut c, MDT);
        assert_eq!(found(&mut c), expected, "mounted again, seed {seed}, {loss:?}");
    }
}

/// From some moment on no sync succeeds, or none of an object because the device is full underneath: the target ends
/// itself, nothing of what it could not write is lost, and no object is taken out of use for what its whole device did.
#[test]
fn a_target_whose_device_refuses_everything_ends_itself_and_clients_make_good_what_it_has_lost() {
    for seed in 1..=40 {
        let server = [MDT, OST][seed as usize % 2];
        let mounted_again = seed % 4 < 2;
        let mut c = cluster(seed, 1, 2);
        let (writer, reader) = (c.mounts[0], c.mounts[1]);
        let mut fids = write_files(&mut c, writer);
        let full = server == OST && seed % 8 < 4;
        match full {
            true => c.devices[server].run_full_underneath(),
            false => c.devices[server].refuse_syncs(),
        }
        let more = c.jobs.start(&mut c.world, writer, async move |client| {
            let (fid, handle) = create(&client, "last").await?;
            for at in (0..LEN).step_by(5000) {
                write(&client, handle, at as u64, vec![FILES + 1; 5000]).await?;
            }
            Ok::<_, Failure>(fid)
        });
        let until = c.world.now_ns() + 30 * SEC;
        while c.world.fatal.is_empty() && c.world.now_ns() < until {
            c.world.run_for(MS);
        }
        let fatal = core::mem::take(&mut c.world.fatal);
        let why = if full { "full, although" } else { "could not be made durable" };
        assert!(fatal.iter().any(|text| text.contains(why)), "seed {seed}: {fatal:?}");
        let id = c.servers[server];
        c.world.kill(id);
        if mounted_again {
            c.devices[server].remount();
        } else {
            c.devices[server].kill_process();
        }
        c.stores[server] = c.devices[server].store();
        c.world.set_store(id, c.stores[server].clone());
        come_back(&mut c, server);
        let last: Option<Result<Fid, Failure>> = c.jobs.wait(&mut c.world, more, 60 * SEC);
        fids.push(
            last.expect("it ends").unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", c.world.trace(60))),
        );
        all_right(&mut c, reader, &fids, &format!("after the end, seed {seed}"));
        c.world.run_for(5 * SEC);
        c.world.kill(writer);
        c.lose_store(server, StoreLoss::Remounted);
        come_back(&mut c, server);
        all_right(&mut c, reader, &fids, &format!("mounted again, seed {seed}"));
    }
}

/// A write waits in the OST for the truncate before it to be durable; its mount dies meanwhile. Nobody may see the write
/// afterwards: by then the mount may have been evicted, and its file locks be others'.
#[test]
fn a_write_whose_mount_dies_while_it_waits_in_the_ost_is_not_begun() {
    for seed in 1..=10 {
        let mut c = cluster(seed, 1, 2);
        let (writer, reader) = (c.mounts[0], c.mounts[1]);
        let made = run(&mut c, writer, async |client| {
            let (fid, handle) = create(&client, "f").await?;
            write(&client, handle, 0, vec![1; 8000]).await.map(|_| (fid, handle))
        });
        let (fid, handle) = made.expect("written");
        c.world.run_for(3 * SEC);
        c.world.faults.io_us = (50_000, 60_000); // a sync takes ten times as long
        let job = c.jobs.start(&mut c.world, writer, async move |client| {
            let set = SetAttr { size: Some(100), ..SetAttr::default() };
            client.setattr_through(handle, fid, set, caller()).await?;
            write(&client, handle, 2000, vec![2; 100]).await
        });
        c.world.run_for(450 * MS);
        let ended: Option<Result<u32, Failure>> = c.jobs.take(job);
        assert_eq!(ended, None, "seed {seed}: it waits");
        c.world.kill(writer);
        c.world.faults.io_us = (5, 300);
        c.world.run_for(20 * SEC);
        let found = read(&mut c, reader, fid).expect("readable");
        assert_eq!(found, vec![1; 100], "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A mount keeps a bounded amount of data until it is stable. It must not forget the oldest for the newest: writers wait.
#[test]
fn more_data_than_a_mount_keeps_is_right_after_the_store_has_lost_it() {
    const CHUNK: usize = 1 << 20;
    const CHUNKS: u8 = 80;
    for (seed, loss) in (1..).zip(StoreLoss::ALL) {
        let mut c = cluster(seed, 1, 2);
        let (writer, reader) = (c.mounts[0], c.mounts[1]);
        let written = run(&mut c, writer, async move |client| {
            let (fid, handle) = create(&client, "long").await?;
            for n in 0..CHUNKS {
                write(&client, handle, u64::from(n) * CHUNK as u64, vec![n + 1; CHUNK]).await?;
            }
            Ok::<_, Failure>(fid)
        });
        let fid = written.expect("written");
        c.lose_store(OST, loss);
        come_back(&mut c, OST);
        for n in 0..CHUNKS {
            let found = run(&mut c, reader, async move |client| {
                let (_, handle) = client.open(fid, 0, caller()).await?;
                Ok::<_, Failure>(
                    client.read(handle, u64::from(n) * CHUNK as u64, CHUNK as u32).await?.concat(),
                )
            });
            let found = found.expect("readable");
            let wrong = found.iter().filter(|byte| **byte != n + 1).count();
            assert_eq!((found.len(), wrong), (CHUNK, 0), "piece {n}, seed {seed}, {loss:?}");
        }
    }
}
