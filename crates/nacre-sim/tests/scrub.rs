//! A scrub of an OST beside clients that write, truncate and remove files, and beside kills and losses of its machine:
//! nothing that they do is taken for damage, and damage is named by the FID of its file.

mod support;

use nacre_node::{FileId, FileKind, StoreDone, StoreOp};
use nacre_sim::NodeId;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, ObjectId, SetAttr};
use std::collections::BTreeMap;
use support::{MS, OST, SEC, caller, cluster, create, run, wait, write};

const SCRUB: &str = "obdfilter.demo-OST0000.scrub";

fn start(c: &mut Cluster) {
    c.set_param(OST, SCRUB, "start");
}
/// The lines of the parameter, and its lines of damage.
fn status(c: &mut Cluster) -> (BTreeMap<String, String>, Vec<String>) {
    let (mut keys, mut damage) = (BTreeMap::new(), Vec::new());
    for (_, _, value) in c.params(|name| name == SCRUB) {
        for line in value.lines() {
            let (key, value) = line.split_once(": ").expect("key and value");
            match key {
                "damage" => damage.push(value.to_owned()),
                _ => drop(keys.insert(key.to_owned(), value.to_owned())),
            }
        }
    }
    (keys, damage)
}
/// A pass from its begin to its end, without damage.
fn whole(c: &mut Cluster, seed: u64) -> BTreeMap<String, String> {
    c.world.run_for(SEC); // it may have been started again just before
    c.set_param(OST, SCRUB, "stop");
    start(c);
    for _ in 0..600 {
        c.world.run_for(100 * MS);
        let (keys, damage) = status(c);
        assert_eq!(damage, Vec::<String>::new(), "seed {seed}\n{}", c.world.trace(40));
        if keys["state"] == "finished" {
            return keys;
        }
    }
    panic!("seed {seed}: it does not end");
}

/// Files of random sizes are written, overwritten, cut and removed.
async fn use_files(client: &nacre_client::Client, first: u64) -> Result<(), Failure> {
    let mut rng = nacre_node::Rng::new(first);
    let mut files = Vec::new();
    for n in 0..25 {
        let (fid, handle) = create(client, &format!("f{first}-{n}")).await?;
        write(client, handle, rng.below(300_000), vec![n as u8; 1 + rng.below(200_000) as usize]).await?;
        files.push((n, fid, handle));
        let at = rng.below(files.len() as u64) as usize;
        let (name, fid, handle) = files[at];
        match rng.below(4) {
            0 => {
                client.unlink(Fid::ROOT, format!("f{first}-{name}").as_bytes(), false, caller()).await?;
                files.remove(at);
            }
            1 => {
                let cut = SetAttr { size: Some(rng.below(200_000)), ..SetAttr::default() };
                client.setattr(fid, cut, caller()).await.map(drop)?;
            }
            _ => {
                write(client, handle, rng.below(300_000), vec![99; 1 + rng.below(90_000) as usize])
                    .await
                    .map(drop)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_scrub_beside_work_and_losses_of_its_machine_finds_no_damage() {
    let mut verified = 0;
    for seed in 1..=6 {
        let mut c = cluster(seed, 1, 2);
        let (one, two, ost) = (c.mounts[0], c.mounts[1], c.servers[OST]);
        for round in 0..3u64 {
            let jobs: Vec<_> =
                [one, two]
                    .into_iter()
                    .zip([round * 10, round * 10 + 1])
                    .map(|(mount, first)| {
                        c.jobs.start(&mut c.world, mount, move |client| async move {
                            use_files(&client, first).await
                        })
                    })
                    .collect();
            for _ in 0..10 {
                start(&mut c);
                let pause = c.world.rng().below(60 * MS);
                c.world.run_for(pause);
                assert_eq!(status(&mut c).1, Vec::<String>::new(), "seed {seed}\n{}", c.world.trace(40));
            }
            match (seed + round) % 3 {
                0 => {}
                1 => {
                    c.world.kill(ost);
                    c.world.start_later(ost, 100 * MS);
                }
                _ => {
                    c.power_loss(OST);
                    c.world.start_later(ost, 100 * MS);
                }
            }
            for job in jobs {
                assert_eq!(wait::<Result<(), Failure>>(&mut c, job), Ok(()), "seed {seed}");
            }
            let keys = whole(&mut c, seed);
            verified += keys["verified_bytes"].parse::<u64>().expect("a number");
        }
    }
    assert!(verified > 30 << 20, "{verified}");
}

/// All objects of the OST.
fn objects(c: &Cluster) -> Vec<ObjectId> {
    let list = StoreOp::List { kind: FileKind::Blob, after: None, limit: 1000 };
    let Ok(StoreDone::List(files)) = c.stores[OST].execute(list) else { panic!("no list") };
    files.into_iter().filter_map(|f| if let FileId::Blob(object) = f { Some(object) } else { None }).collect()
}

#[test]
fn damage_is_named_by_the_fid_of_its_file_and_is_gone_when_the_file_is_written_again() {
    let mut c = cluster(3, 1, 1);
    let mount: NodeId = c.mounts[0];
    let made = run(&mut c, mount, async |client| {
        let mut all = Vec::new();
        for n in 0..5u8 {
            let (fid, handle) = create(&client, &format!("f{n}")).await?;
            write(&client, handle, 0, vec![n + 1; 500_000]).await?;
            all.push((fid, handle));
        }
        Ok::<_, Failure>(all)
    });
    let made = made.expect("written");
    c.world.run_for(3 * SEC);
    let (fid, handle) = made[2];
    let object = objects(&c).into_iter().find(|object| object.fid == fid).expect("it has an object");
    c.devices[OST].flip(FileId::Blob(object), 300_000);
    start(&mut c);
    c.world.run_for(5 * SEC);
    let (keys, damage) = status(&mut c);
    assert_eq!(damage, [format!("{fid} stripe 0 bytes 299008 303104 checksum")]);
    assert_eq!((&*keys["state"], &*keys["damaged_places"], &*keys["objects"]), ("finished", "1", "5 of 5"));
    run(&mut c, mount, async move |client| write(&client, handle, 0, vec![7; 500_000]).await)
        .expect("overwritten");
    assert_eq!(whole(&mut c, 3)["damaged_bytes"], "0");
}
