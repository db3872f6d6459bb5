//! Files that are created without a name (O_TMPFILE): they get one, or go with their last handle, whatever is lost.

mod support;

use nacre_client::{Client, CreateArgs};
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, OpenHandle};
use std::rc::Rc;
use support::{FILE, MDT, MS, SEC, caller, create, on_devices, read, run, write};

const BYTES: [u8; 5000] = [7; 5000];

async fn unnamed(client: &Rc<Client>) -> Result<(Fid, OpenHandle), Failure> {
    let args = CreateArgs::new(Fid::ROOT, b"", FILE, caller());
    let (entry, handle) = client.create_unnamed(args, 2).await?;
    assert_eq!(entry.attr.nlink, 0);
    write(client, handle, 0, BYTES.to_vec()).await?;
    Ok((entry.attr.fid, handle))
}

/// Whether another mount finds the inode by its FID.
fn is_there(c: &mut Cluster, fid: Fid) -> bool {
    let second = c.mounts[1];
    let found = run(c, second, async move |client| client.getattr(fid).await.map(drop));
    assert!(matches!(found, Ok(()) | Err(Failure::ESTALE)), "{found:?}");
    found.is_ok()
}

#[test]
fn an_unnamed_file_gets_a_name_or_goes_with_its_last_handle() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        // The MDT, or its machine, is lost at some time: before, between or after the two changes.
        let job = c.jobs.start(&mut c.world, first, async |client| {
            let (named, handle) = unnamed(&client).await?;
            let (other, unused) = unnamed(&client).await?;
            let entry = client.link(named, Fid::ROOT, b"name", caller()).await?;
            assert_eq!(entry.attr.nlink, 1);
            client.release(handle, None).await?;
            client.release(unused, None).await?;
            Ok::<_, Failure>((named, other))
        });
        let pause = c.world.rng().below(12 * MS);
        c.world.run_for(pause);
        let mdt = c.servers[MDT];
        if seed % 2 == 0 {
            c.power_loss(MDT);
        } else {
            c.world.kill(mdt);
        }
        c.world.start_later(mdt, 100 * MS);
        let done: Option<Result<(Fid, Fid), Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
        let (named, other) = done.expect("ends").expect("succeeds");
        c.world.run_for(3 * SEC);
        assert_eq!(read(&mut c, second, named).as_deref(), Ok(&BYTES[..]), "seed {seed}");
        let found = run(&mut c, second, async |client| client.lookup(Fid::ROOT, b"name").await);
        assert_eq!(found.map(|entry| (entry.attr.fid, entry.attr.nlink)), Ok((named, 1)), "seed {seed}");
        assert!(!is_there(&mut c, other), "seed {seed}");
    }
}

#[test]
fn an_unnamed_file_goes_with_its_mount() {
    let mut c = on_devices(3, 2);
    let first = c.mounts[0];
    let made = run(&mut c, first, async |client| unnamed(&client).await);
    let (fid, _) = made.expect("made");
    assert!(is_there(&mut c, fid));
    c.world.kill(first);
    c.world.run_for(15 * SEC);
    assert!(!is_there(&mut c, fid));
}

/// Not even the first name comes back once it is removed.
#[test]
fn a_file_that_had_a_name_gets_none_again() {
    let mut c = on_devices(4, 1);
    let first = c.mounts[0];
    let links = run(&mut c, first, async |client| {
        let (removed, _) = create(&client, "f").await?;
        client.unlink(Fid::ROOT, b"f", false, caller()).await?;
        let (unnamed, _) = unnamed(&client).await?;
        client.link(unnamed, Fid::ROOT, b"g", caller()).await?;
        client.unlink(Fid::ROOT, b"g", false, caller()).await?;
        let mut links = Vec::new();
        for fid in [removed, unnamed] {
            links.push(client.link(fid, Fid::ROOT, b"h", caller()).await.map(drop));
        }
        Ok::<_, Failure>(links)
    });
    assert_eq!(links, Ok(vec![Err(Failure::ENOENT); 2]));
}
