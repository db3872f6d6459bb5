//! Listings in the kernel of one mount, while another one changes the directory: a listing that begins after a change has
//! ended shows it, whatever happens to the processes and connections in between.

mod support;

use nacre_client::{Client, CreateArgs};
use nacre_node::{Event, FileKind, StoreDone, StoreOp};
use nacre_sim::cluster::Cluster;
use nacre_sim::kernel::Kernel;
use nacre_sim::offline;
use nacre_types::{Failure, Fid, OpenHandle, mode};
use std::rc::Rc;
use support::{MDT, SEC, caller, on_devices, run, wait, without_cache};

/// A whole directory in one request.
const WHOLE: (u32, bool) = (100, true);

async fn mkdir(client: &Client, parent: Fid, name: &str) -> Result<Fid, Failure> {
    Kernel::of(client).changes_names(parent);
    let args = CreateArgs::new(parent, name.as_bytes(), mode::DIR | 0o755, caller());
    let made = client.make(args).await;
    Kernel::of(client).changes_names(parent);
    Ok(made?.attr.fid)
}
fn make(c: &mut Cluster, mount: usize, dir: Fid, name: &str) {
    let (mount, name) = (c.mounts[mount], name.to_owned());
    run(c, mount, async move |client| mkdir(&client, dir, &name).await).expect("made");
}
fn remove(c: &mut Cluster, mount: usize, dir: Fid, name: &str) {
    let (mount, name) = (c.mounts[mount], name.to_owned());
    let removed = run(c, mount, async move |client| {
        Kernel::of(&client).changes_names(dir);
        let removed = client.unlink(dir, name.as_bytes(), true, caller()).await;
        Kernel::of(&client).changes_names(dir);
        removed
    });
    removed.expect("removed");
}
/// A program of the first mount lists the directory.
fn list(c: &mut Cluster, dir: Fid) -> Result<Vec<String>, Failure> {
    let first = c.mounts[0];
    run(c, first, async move |client| {
        let kernel = Kernel::of(&client);
        let opened = kernel.opendir(&client, dir).await?;
        let names = kernel.list_through(&client, opened, dir, WHOLE).await;
        client.release(opened.0, None).await?;
        names
    })
}
fn open(c: &mut Cluster, dir: Fid) -> (OpenHandle, bool) {
    let first = c.mounts[0];
    run(c, first, async move |client| Kernel::of(&client).opendir(&client, dir).await).expect("opened")
}
fn list_through(c: &mut Cluster, opened: (OpenHandle, bool), dir: Fid) -> Vec<String> {
    let first = c.mounts[0];
    let listed = run(c, first, async move |client| {
        Kernel::of(&client).list_through(&client, opened, dir, WHOLE).await
    });
    listed.expect("listed")
}
fn hits(c: &mut Cluster) -> u64 {
    let first = c.mounts[0];
    run(c, first, async |client| Kernel::of(&client).hits())
}
/// Two mounts, and a directory with the name `a` that the kernel of the first one keeps. The clock of the first mount is
/// ahead: changes by the second one leave the time of modification as it is, so that the kernel does not see them by that.
fn with_listing(seed: u64) -> (Cluster, Fid) {
    let mut c = on_devices(seed, 2);
    let first = c.mounts[0];
    c.world.set_wall(first, 10_000 * SEC as i64);
    let dir = run(&mut c, first, async |client| mkdir(&client, Fid::ROOT, "dir").await).expect("made");
    make(&mut c, 0, dir, "a");
    // The first listings change the access time, and are granted the lock.
    for _ in 0..4 {
        assert_eq!(list(&mut c, dir), Ok(vec!["a".to_owned()]));
        c.world.run_for(SEC);
    }
    let before = hits(&mut c);
    assert_eq!(list(&mut c, dir), Ok(vec!["a".to_owned()]));
    assert_eq!(hits(&mut c), before + 1, "seed {seed}: the kernel has it\n{}", c.world.trace(40));
    (c, dir)
}

#[test]
fn a_kept_listing_shows_every_change_of_both_mounts() {
    for seed in 1..=8 {
        let (mut c, dir) = with_listing(seed);
        for (nth, mount) in [1, 0, 1, 1, 0].into_iter().enumerate() {
            let name = format!("b{nth}");
            make(&mut c, mount, dir, &name);
            assert_eq!(list(&mut c, dir), Ok(vec!["a".to_owned(), name.clone()]), "seed {seed}");
            assert_eq!(list(&mut c, dir), Ok(vec!["a".to_owned(), name.clone()]), "seed {seed}");
            remove(&mut c, 1 - mount, dir, &name);
            assert_eq!(list(&mut c, dir), Ok(vec!["a".to_owned()]), "seed {seed}");
        }
        // Beyond the validity of everything.
        c.world.run_for(20 * SEC);
        let before = hits(&mut c);
        (0..3).for_each(|_| assert_eq!(list(&mut c, dir), Ok(vec!["a".to_owned()])));
        assert!(hits(&mut c) > before, "seed {seed}: it is kept again");
    }
}

/// A handle from before a change lists the directory from its start again (rewinddir(3)).
#[test]
fn a_handle_from_before_a_change_shows_it() {
    for seed in 1..=8 {
        let (mut c, dir) = with_listing(seed);
        let opened = open(&mut c, dir);
        assert!(opened.1, "seed {seed}: it is cached");
        for nth in 0..4 {
            let name = format!("b{nth}");
            make(&mut c, 1, dir, &name);
            assert_eq!(list_through(&mut c, opened, dir), ["a", &name], "seed {seed}");
            assert_eq!(list(&mut c, dir), Ok(vec!["a".to_owned(), name.clone()]), "seed {seed}");
            remove(&mut c, 1, dir, &name);
            assert_eq!(list_through(&mut c, opened, dir), ["a"], "seed {seed}");
        }
        let (first, handle) = (c.mounts[0], opened.0);
        run(&mut c, first, async move |client| client.release(handle, None).await).expect("closed");
        for _ in 0..4 {
            c.world.run_for(2 * SEC);
            assert_eq!(list(&mut c, dir), Ok(vec!["a".to_owned()]));
        }
        assert!(open(&mut c, dir).1, "seed {seed}: cached again");
    }
}

/// The names of a listing reach the kernel after the notification that was to drop them.
#[test]
fn a_listing_that_a_change_overtakes_is_not_shown_later() {
    for seed in 1..=60 {
        let (mut c, dir) = with_listing(seed);
        for nth in 0..3 {
            make(&mut c, 1, dir, &format!("b{nth}"));
            let (first, second) = (c.mounts[0], c.mounts[1]);
            let jobs: Vec<_> = (0..2)
                .map(|_| {
                    c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
                        let kernel = Kernel::of(&client);
                        let opened = kernel.opendir(&client, dir).await?;
                        let names = kernel.list_through(&client, opened, dir, (1, false)).await;
                        client.release(opened.0, None).await?;
                        names
                    })
                })
                .collect();
            let change = c.jobs.start(&mut c.world, second, async move |client: Rc<Client>| {
                mkdir(&client, dir, &format!("c{nth}")).await
            });
            wait::<Result<Fid, Failure>>(&mut c, change).expect("made");
            for job in jobs {
                let names: Result<Vec<String>, Failure> = wait(&mut c, job);
                assert!(names.expect("listed").len() >= 2 * nth + 2);
            }
            assert_eq!(list(&mut c, dir).map(|names| names.len()), Ok(2 * nth + 3), "seed {seed}");
            assert_eq!(list(&mut c, dir).map(|names| names.len()), Ok(2 * nth + 3), "seed {seed}");
        }
    }
}

/// The mount that lists stands still, or is cut off, while its lease runs out and another mount changes the directory.
#[test]
fn a_listing_is_not_used_beyond_the_lease() {
    for seed in 1..=12 {
        let (mut c, dir) = with_listing(seed);
        let first = c.mounts[0];
        let stopped = seed.is_multiple_of(3);
        if stopped {
            c.world.pause(first, true);
        } else {
            for server in c.servers.clone() {
                c.world.block_for(first, server, 60 * SEC);
                c.world.block_for(server, first, 60 * SEC);
            }
        }
        make(&mut c, 1, dir, "b");
        let listing = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
            let kernel = Kernel::of(&client);
            let opened = kernel.opendir(&client, dir).await?;
            kernel.list_through(&client, opened, dir, WHOLE).await
        });
        c.world.run_for(10 * SEC);
        c.world.pause(first, false);
        let names: Result<Vec<String>, Failure> = wait(&mut c, listing);
        // An open that was under way when the mount was evicted fails.
        let is_right = names.as_ref().map_or_else(|e| *e == Failure::EIO, |names| names.len() == 2);
        assert!(is_right, "seed {seed}: {names:?}\n{}", c.world.trace(60));
        assert_eq!(list(&mut c, dir).map(|names| names.len()), Ok(2), "seed {seed}");
    }
}

#[test]
fn no_listing_is_old_after_a_restart_of_the_mdt() {
    for seed in 1..=12 {
        let (mut c, dir) = with_listing(seed);
        let server = c.servers[MDT];
        c.world.kill(server);
        c.world.start_later(server, SEC / 5);
        if seed % 2 == 0 {
            c.world.run_for(SEC / 2);
        }
        for nth in 0..3 {
            make(&mut c, 1, dir, &format!("b{nth}"));
            assert_eq!(list(&mut c, dir).map(|names| names.len()), Ok(nth + 2), "seed {seed}");
        }
    }
}

/// The mount requests four names at a time. The place of a new name may come with the first page or with a later one.
#[test]
fn a_listing_of_several_pages_contains_every_name_that_was_made_before_it() {
    const NAMES: usize = 40;
    let mut c = on_devices(11, 1);
    c.names_per_page.set(4);
    c.replace_mount(0).expect("a mount with small pages");
    let first = c.mounts[0];
    let counts = run(&mut c, first, async |client| {
        let dir = mkdir(&client, Fid::ROOT, "dir").await?;
        for n in 0..NAMES {
            mkdir(&client, dir, &format!("d{n}")).await?;
        }
        let mut counts = Vec::new();
        for n in 0..24 {
            let kernel = Kernel::of(&client);
            let opened = kernel.opendir(&client, dir).await?;
            counts.push(kernel.list_through(&client, opened, dir, WHOLE).await?.len());
            client.release(opened.0, None).await?;
            mkdir(&client, dir, &format!("new{n}")).await?;
        }
        Ok::<_, Failure>(counts)
    });
    assert_eq!(counts.expect("listed"), (NAMES..NAMES + 24).collect::<Vec<_>>());
}

/// What has lost both copies of a block of rows fails; names beside it do not.
#[test]
fn an_inode_that_cannot_be_read_hides_no_name_of_its_directory() {
    let names: Vec<String> = (0..60).map(|n| format!("{n:02}{}", "x".repeat(100))).collect();
    let (mut lists_all, mut at) = (0, 500);
    loop {
        let mut c = on_devices(1, 1);
        without_cache(&mut c);
        let first = c.mounts[0];
        let dir = run(&mut c, first, async |client| mkdir(&client, Fid::ROOT, "dir").await).expect("made");
        names.iter().for_each(|name| make(&mut c, 0, dir, name));
        let node = c.servers[MDT];
        c.world.tell(node, Event::Stop);
        let until = c.world.now_ns() + 60 * SEC;
        assert!(c.world.run_until(until, |world| world.take_stopped().contains(&node)), "it does not stop");
        c.world.kill(node);
        let flushed = offline::with_engine(&*c.stores[MDT], |_, osd| async move {
            osd.checkpoint().await.expect("flushed");
            osd.stop().await
        });
        flushed.expect("opened").expect("stopped");
        let list_runs = StoreOp::List { kind: FileKind::Run, after: None, limit: 10 };
        let Ok(StoreDone::List(runs)) = c.stores[MDT].execute(list_runs) else { panic!("no list") };
        let file = *runs.first().expect("the rows are in a run");
        let Ok(StoreDone::Len(Some(len))) = c.stores[MDT].execute(StoreOp::Len { file }) else {
            panic!("no length")
        };
        if at >= len / 2 {
            break;
        }
        c.devices[MDT].flip(file, at);
        c.devices[MDT].flip(file, len / 2 + at);
        at += 1500;
        c.world.start(node);
        c.world.run_for(4 * SEC);
        if !c.world.fatal.is_empty() {
            continue; // a row that the start needs, or the index
        }
        let Ok(listed) = list(&mut c, dir) else { continue };
        let (looked_for, first) = (names.clone(), c.mounts[0]);
        let lost = run(&mut c, first, async move |client| {
            let mut lost = 0;
            for name in looked_for {
                lost += u32::from(client.lookup(dir, name.as_bytes()).await.is_err());
            }
            lost
        });
        if lost > 0 {
            assert_eq!(listed, names, "{lost} inodes are lost by damage at {at}");
            lists_all += 1;
        }
    }
    assert!(lists_all > 0, "no damage has met an inode");
}
