//! Batches over whole clusters: order, results, one transaction, exactly once.

mod support;

use nacre_client::MetadataChange;
use nacre_sim::cluster::Cluster;
use nacre_types::{Caller, Failure, Fid, FileType};
use support::{DIR, FILE, SEC, caller, new, run};

fn make(parent: Fid, name: &[u8], mode: u32) -> MetadataChange<'_> {
    MetadataChange::Make(new(parent, name, mode))
}

#[test]
fn sub_operations_see_each_other_and_failures_stay_alone() {
    let mut c = Cluster::new(1, 2, 1);
    c.world.run_for(SEC);
    let mount = c.mounts[0];
    let outcome = run(&mut c, mount, async |client| {
        let dir = client.batch(&[make(Fid::ROOT, b"d", DIR)], &caller(), false).await?;
        let dir = dir[0].as_ref().map_err(|e| *e)?.as_ref().expect("made").attr.fid;
        let changes = [
            make(dir, b"a", FILE),
            make(dir, b"a", FILE),
            MetadataChange::Rename { from: (dir, b"a"), to: (dir, b"b"), flags: 0 },
            MetadataChange::Unlink { parent: dir, name: b"a", directory: false },
            make(dir, b"sub", DIR),
            MetadataChange::Unlink { parent: Fid::ROOT, name: b"d", directory: true },
            MetadataChange::Unlink { parent: dir, name: b"sub", directory: true },
        ];
        let results = client.batch(&changes, &caller(), false).await?;
        let failed: Vec<_> = results.iter().map(|r| r.as_ref().err().copied()).collect();
        let stopped = client.batch(&[make(dir, b"b", FILE), make(dir, b"c", FILE)], &caller(), true).await?;
        let stopped: Vec<_> = stopped.into_iter().map(|r| r.map(|_| ())).collect();
        let page = client.readdir(dir, 2, 100, false).await?;
        let names: Vec<_> = page.entries.iter().map(|e| (e.name.to_vec(), e.file_type)).collect();
        Ok::<_, Failure>((failed, stopped, names))
    });
    let (failed, stopped, names) = outcome.expect("the batches have their replies");
    assert_eq!(
        failed,
        [None, Some(Failure::EEXIST), None, Some(Failure::ENOENT), None, Some(Failure::ENOTEMPTY), None]
    );
    assert_eq!(stopped, [Err(Failure::EEXIST), Err(Failure::ECANCELED)]);
    assert_eq!(names, [(b"b".to_vec(), FileType::Regular)]);
}

#[test]
fn what_a_batch_makes_belongs_to_who_asked_for_the_batch() {
    let mut c = Cluster::new(1, 1, 1);
    c.world.run_for(SEC);
    let mount = c.mounts[0];
    let owners = run(&mut c, mount, async |client| {
        let dir = client.make(new(Fid::ROOT, b"d", DIR | 0o777)).await?.attr.fid;
        let user = Caller { uid: 1000, gid: 1000, umask: 0, ..caller() };
        let together = client.batch(&[make(dir, b"a", FILE)], &user, false).await?.remove(0)?;
        let alone = client.apply(&make(dir, b"b", FILE), &user).await?;
        Ok::<_, Failure>([together, alone].map(|made| made.map(|entry| entry.attr.uid)))
    });
    assert_eq!(owners, Ok([Some(1000); 2]));
}

#[test]
fn every_change_of_a_batch_happens_once_while_connections_break_and_the_target_is_killed() {
    for seed in 1..=8 {
        let mut c = Cluster::new(seed, 1, 1);
        c.world.run_for(SEC);
        let (mount, mdt) = (c.mounts[0], c.servers[1]);
        run(&mut c, mount, async |client| client.ready().await).expect("it starts");
        let mut jobs = Vec::new();
        for round in 0..20u32 {
            jobs.push(c.jobs.start(&mut c.world, mount, async move |client| {
                let names: Vec<Vec<u8>> = (0..16).map(|i| format!("f{round}.{i}").into_bytes()).collect();
                let changes: Vec<MetadataChange<'_>> =
                    names.iter().map(|n| make(Fid::ROOT, n, DIR)).collect();
                client
                    .batch(&changes, &caller(), false)
                    .await
                    .map(|r| r.iter().filter(|r| r.is_err()).count())
            }));
            let pause = c.world.rng().below(8_000_000);
            c.world.run_for(pause);
            match c.world.rng().below(10) {
                0..=2 => c.world.cut_some_link(mdt),
                3 => {
                    c.world.kill(mdt);
                    c.world.start_later(mdt, 200_000_000);
                }
                _ => {}
            }
        }
        for job in jobs {
            let failed: Option<Result<usize, Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
            assert_eq!(
                failed,
                Some(Ok(0)),
                "seed {seed}: executed twice, or never acknowledged\n{}",
                c.world.trace(40)
            );
        }
        let nlink = run(&mut c, mount, async |client| client.getattr(Fid::ROOT).await.map(|e| e.attr.nlink));
        assert_eq!(nlink, Ok(2 + 20 * 16), "seed {seed}");
    }
}
