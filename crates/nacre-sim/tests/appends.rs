//! Appends over several objects: each is there once, whole, whatever becomes of the OSTs meanwhile.

mod support;

use nacre_client::WriteArgs;
use nacre_sim::DieAt;
use nacre_types::{Errno, LayoutTemplate};
use support::{FILE, SEC, caller, cluster, new, run};

/// Both OSTs die under an append; one has its part in the log, the other has not. The locks are gone with them, so the
/// part cannot be cut off again.
#[test]
fn an_append_of_which_one_object_has_its_part_is_ended_not_made_twice() {
    let deaths = [DieAt::BeforeLog, DieAt::InLog, DieAt::AfterLog];
    for seed in 1..=12 {
        for (a, b) in deaths.iter().flat_map(|a| deaths.iter().map(move |b| (*a, *b))) {
            let mut c = cluster(seed, 2, 2);
            let (first, second) = (c.mounts[0], c.mounts[1]);
            let data: Vec<u8> = (0..160_000u32).map(|i| (i / 7) as u8).collect();
            let made = run(&mut c, first, async |client| {
                let layout = LayoutTemplate { stripe_count: 2, stripe_bytes: 64 << 10, first_ost: -1 };
                let args = nacre_client::CreateArgs {
                    layout: Some(layout),
                    ..new(nacre_types::Fid::ROOT, "f", FILE)
                };
                client.create(args, 2).await
            });
            let (entry, handle) = made.expect("made");
            c.world.run_for(3 * SEC);
            c.world.kill_in_visit(c.servers[2], a, SEC);
            c.world.kill_in_visit(c.servers[3], b, SEC);
            let bytes = bytes::Bytes::from(data.clone());
            let appended = run(&mut c, first, async move |client| {
                let args = WriteArgs {
                    handle,
                    offset: 0,
                    append: true,
                    data: bytes,
                    kill_suidgid: false,
                    sync: false,
                };
                client.write(args).await
            });
            assert_eq!(appended, Ok(160_000), "seed {seed}");
            let found = run(&mut c, second, async move |client| {
                let (_, handle) = client.open(entry.attr.fid, 0, caller()).await?;
                Ok::<_, Errno>(client.read(handle, 0, 1 << 20).await?.concat())
            });
            let found = found.expect("readable");
            assert!(found == data, "seed {seed}, {a:?} {b:?}: {} bytes\n{}", found.len(), c.world.trace(60));
        }
    }
}
