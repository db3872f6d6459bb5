//! Names whose files other mounts replace: a name that is only ever replaced exists at every instant, so that each lookup finds
//! it, each listing shows it, and neither fails because a file that it had found is gone before its size is known.

mod support;

use nacre_client::Client;
use nacre_sim::cluster::Cluster;
use nacre_types::{Attr, Failure, Fid};
use std::rc::Rc;
use support::{SEC, caller, cluster, create, run, wait, write, write_back};

const NAME: &str = "file";
const REPLACEMENTS: u64 = 200;

/// Mounts that keep bytes, and an MDT that keeps those of small files: the size of a file that another mount has just written
/// is known to that mount only.
fn started(seed: u64) -> Cluster {
    let mut c = cluster(seed, 2, 2);
    write_back(&mut c);
    c.keep_data_at_mdt(1000).expect("the root has a layout");
    c
}

/// Writes a file and gives it the name, as programs replace a file in one step.
async fn replace(client: &Client, nth: u64) -> Result<(), Failure> {
    let (_, handle) = create(client, "new").await?;
    if nth.is_multiple_of(2) {
        write(client, handle, 0, vec![7; 1 + 100 * (nth % 20) as usize]).await?;
    }
    client.release(handle, None).await?;
    client.rename((Fid::ROOT, b"new"), (Fid::ROOT, NAME.as_bytes()), 0, caller()).await
}

/// What the first mount sees, time and again, while the second one replaces the file.
fn seen<T: Send + 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    look: impl Fn(Rc<Client>) -> F + Send + 'static,
) -> Vec<T> {
    let mut c = started(seed);
    let (first, second) = (c.mounts[0], c.mounts[1]);
    run(&mut c, second, async |client| replace(&client, 0).await).expect("made");
    let writer = c.jobs.start(&mut c.world, second, async |client: Rc<Client>| {
        for nth in 1..=REPLACEMENTS {
            replace(&client, nth).await?;
        }
        Ok::<_, Failure>(())
    });
    let looker = c.jobs.start(&mut c.world, first, async move |client: Rc<Client>| {
        let mut all = Vec::new();
        for _ in 0..REPLACEMENTS {
            all.push(look(client.clone()).await);
        }
        all
    });
    wait::<Result<(), Failure>>(&mut c, writer).expect("replaced");
    wait(&mut c, looker)
}

#[test]
fn a_listing_does_not_fail_because_one_of_its_files_has_gone() {
    for seed in 1..=16 {
        let listings = seen(seed, async |client| {
            let page = client.readdir(Fid::ROOT, 0, 100, true).await?;
            Ok::<_, Failure>(page.entries.iter().any(|entry| entry.name == NAME))
        });
        let wrong: Vec<_> = listings.iter().filter(|listed| **listed != Ok(true)).collect();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?} of {}", listings.len());
    }
}

#[test]
fn a_name_is_found_although_its_file_is_replaced_meanwhile() {
    for seed in 1..=16 {
        let lookups = seen(seed, async |client| client.lookup(Fid::ROOT, NAME.as_bytes()).await.map(drop));
        let wrong: Vec<_> = lookups.iter().filter(|found| found.is_err()).collect();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?} of {}", lookups.len());
    }
}

#[test]
fn the_attributes_of_a_file_are_known_to_the_mount_that_has_replaced_it() {
    for seed in 1..=4 {
        let mut c = cluster(seed, 2, 2);
        c.keep_data_at_mdt(1000).expect("the root has a layout");
        let (first, second) = (c.mounts[0], c.mounts[1]);
        run(&mut c, first, async |client| replace(&client, 2).await).expect("made");
        // Locks are granted once what is read is durable.
        c.world.run_for(2 * SEC);
        let look = async |client: Rc<Client>| {
            client.lookup(Fid::ROOT, NAME.as_bytes()).await.expect("it exists").attr
        };
        let before = run(&mut c, first, look);
        assert_eq!((before.nlink, before.size), (1, 201), "seed {seed}");
        assert_eq!(run(&mut c, second, look).fid, before.fid);
        run(&mut c, first, async |client| replace(&client, 3).await).expect("replaced");
        let after = run(&mut c, first, async move |client| client.getattr(before.fid).await);
        let after = after.expect("as on a local file system").attr;
        let wanted = Attr { nlink: 0, size_state: after.size_state, ..before };
        assert_eq!(after, wanted, "seed {seed}");
        // What the other mount knew may be older than a change between the loss of its lock and the removal.
        let elsewhere = run(&mut c, second, async move |client| client.getattr(before.fid).await);
        assert_eq!(elsewhere.map(|entry| entry.attr), Err(Failure::ESTALE), "seed {seed}");
    }
}
