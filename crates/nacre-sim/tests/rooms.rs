//! Room that the MDT has reserved on the OSTs: one object for each stripe of a new file, however often its creation had to
//! begin anew.

mod support;

use nacre_client::Client;
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, LayoutTemplate};
use std::rc::Rc;
use support::{DIR, FILE, MDT, MS, SEC, caller, make, on_devices, run};

fn reserved(c: &mut Cluster) -> u64 {
    let room = c.params(|name| name.contains(".ost_room.")).into_iter().next().expect("there is an OST").2;
    let number = room.split(' ').find_map(|field| field.strip_prefix("reserved="));
    number.expect("it is shown").parse().expect("a number")
}
fn settled(seed: u64) -> (Cluster, u64) {
    let mut c = on_devices(seed, 2);
    c.world.run_for(3 * SEC);
    let room = reserved(&mut c);
    assert!(room > 0, "seed {seed}");
    (c, room)
}
async fn make_file(client: Rc<Client>, dir: Fid) -> Result<Fid, Failure> {
    make(&client, dir, "f", FILE).await
}

#[test]
fn a_create_that_meets_a_held_directory_takes_room_once() {
    for seed in 1..=4 {
        let (mut c, room) = settled(seed);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let dir = run(&mut c, first, async |client| make(&client, Fid::ROOT, "d", DIR).await).expect("made");
        run(&mut c, second, async move |client| client.getattr(dir).await).expect("held");
        run(&mut c, first, async move |client| make_file(client, dir).await).expect("made");
        assert_eq!(reserved(&mut c), room - 1, "seed {seed}");
    }
}

#[test]
fn a_create_that_builds_on_what_is_not_committed_takes_room_once() {
    for seed in 1..=4 {
        let (mut c, room) = settled(seed);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let mdt = c.servers[MDT];
        support::without_cache(&mut c);
        let room = room.max(reserved(&mut c));
        c.world.block(mdt, first);
        c.jobs.start(&mut c.world, first, async |client| make(&client, Fid::ROOT, "d", DIR).await);
        c.world.run_for(5 * MS);
        let made = run(&mut c, second, async |client| {
            let dir = client.lookup(Fid::ROOT, b"d").await?.attr.fid;
            make_file(client, dir).await
        });
        made.expect("made");
        c.world.heal(mdt, first);
        assert_eq!(reserved(&mut c), room - 1, "seed {seed}");
    }
}

#[test]
fn another_layout_gives_the_room_of_the_old_one_back() {
    let (mut c, room) = settled(1);
    let first = c.mounts[0];
    let changed = run(&mut c, first, async |client| {
        let fid = make(&client, Fid::ROOT, "f", FILE).await?;
        for _ in 0..3 {
            let template = LayoutTemplate {
                stripe_count: 1,
                stripe_bytes: 64 << 10,
                first_ost: -1,
                ..LayoutTemplate::default()
            };
            client.set_layout(fid, template, caller()).await?;
        }
        Ok::<_, Failure>(())
    });
    changed.expect("changed");
    assert_eq!(reserved(&mut c), room - 1);
    run(&mut c, first, async |client| client.unlink(Fid::ROOT, b"f", false, caller()).await)
        .expect("removed");
    assert_eq!(reserved(&mut c), room);
}
