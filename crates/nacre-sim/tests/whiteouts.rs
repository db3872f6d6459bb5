//! Renames that leave a whiteout in the place of the old name, as overlayfs needs them, over the loss of the MDT.

mod support;

use nacre_client::Client;
use nacre_types::{Failure, Fid, mode};
use nacre_wire::mdt::rename_flags::WHITEOUT;
use std::rc::Rc;
use support::{DIR, FILE, MDT, MS, SEC, caller, make, on_devices, run};

/// The FID behind a name and its type.
async fn look(client: &Rc<Client>, dir: Fid, name: &[u8]) -> Result<(Fid, u32), Failure> {
    client.lookup(dir, name).await.map(|found| (found.attr.fid, found.attr.mode & mode::FMT))
}

#[test]
fn the_old_name_leads_to_a_whiteout_at_once_and_after_a_loss() {
    for seed in 1..=8 {
        let mut c = on_devices(seed, 2);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let made = run(&mut c, first, async |client| {
            let dir = make(&client, Fid::ROOT, "d", DIR).await?;
            let (a, b) = (make(&client, dir, "a", FILE).await?, make(&client, dir, "b", DIR).await?);
            make(&client, dir, "x", FILE).await?;
            Ok::<_, Failure>((dir, a, b))
        });
        let (dir, a, b) = made.expect("made");
        let job = c.jobs.start(&mut c.world, first, async move |client| {
            // To a new name; in the place of another file; into another directory.
            client.rename((dir, b"a"), (dir, b"n"), WHITEOUT, caller()).await?;
            client.rename((dir, b"n"), (dir, b"x"), WHITEOUT, caller()).await?;
            client.rename((dir, b"b"), (Fid::ROOT, b"b"), WHITEOUT, caller()).await?;
            Ok::<_, Failure>([look(&client, dir, b"a").await?.1, look(&client, dir, b"n").await?.1])
        });
        let pause = c.world.rng().below(5 * MS);
        c.world.run_for(pause);
        let mdt = c.servers[MDT];
        if seed % 2 == 0 {
            c.power_loss(MDT);
        } else {
            c.world.kill(mdt);
        }
        c.world.start_later(mdt, 100 * MS);
        let done: Option<Result<[u32; 2], Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
        assert_eq!(done, Some(Ok([mode::CHR; 2])), "seed {seed}\n{}", c.world.trace(60));
        let seen = run(&mut c, second, async move |client| {
            let mut types = Vec::new();
            for name in [b"a", b"n", b"b"] {
                types.push(look(&client, dir, name).await?.1);
            }
            let page = client.readdir(dir, 0, 100, true).await?;
            let moved = [look(&client, dir, b"x").await?.0, look(&client, Fid::ROOT, b"b").await?.0];
            Ok::<_, Failure>((types, moved, page.entries.len(), client.getattr(dir).await?.attr.nlink))
        });
        // Two dots, three whiteouts and a file; no directory is left in it.
        assert_eq!(seen, Ok((vec![mode::CHR; 3], [a, b], 6, 2)), "seed {seed}");
        let again = run(&mut c, second, async move |client| {
            for name in ["a", "n", "b", "x"] {
                client.unlink(dir, name.as_bytes(), false, caller()).await?;
            }
            client.unlink(Fid::ROOT, b"d", true, caller()).await
        });
        assert_eq!(again, Ok(()), "seed {seed}: the count of entries is right");
    }
}

#[test]
fn two_names_cannot_be_exchanged_and_left_at_once() {
    let mut c = on_devices(2, 1);
    let first = c.mounts[0];
    let refused = run(&mut c, first, async |client| {
        for name in ["a", "b"] {
            make(&client, Fid::ROOT, name, FILE).await?;
        }
        Ok::<_, Failure>(client.rename((Fid::ROOT, b"a"), (Fid::ROOT, b"b"), WHITEOUT | 2, caller()).await)
    });
    assert_eq!(refused, Ok(Err(Failure::EINVAL)));
}
