//! Data between the kernel's cache and the device: an OST says that bytes are stable only when they are.

mod support;

use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, OpenHandle};
use support::{OST, SEC, caller, cluster, create, read, run, write};

/// A new file that both mounts have open; from here on the first one hears nothing.
fn a_deaf_writer(c: &mut Cluster, data: Vec<u8>) -> (Fid, [OpenHandle; 2]) {
    let (a, b) = (c.mounts[0], c.mounts[1]);
    let made = run(c, a, async |client| {
        let (fid, handle) = create(&client, "f").await?;
        write(&client, handle, 0, data).await.map(|_| (fid, handle))
    });
    let (fid, at_a) = made.expect("made");
    let at_b = run(c, b, async move |client| client.open(fid, 2, caller()).await.map(|(_, handle)| handle));
    c.world.run_for(3 * SEC);
    c.world.deafen(a, true);
    (fid, [at_a, at_b.expect("open")])
}
/// The machine of the OST is lost and comes back, and the first mount hears again.
fn lose_the_machine(c: &mut Cluster) {
    c.power_loss(OST);
    c.world.deafen(c.mounts[0], false);
    let ost = c.servers[OST];
    c.world.start_later(ost, 100_000_000);
}

/// The OST's process is killed and comes back, then its machine dies: the writer makes the lost bytes again.
#[test]
fn what_was_written_before_a_kill_survives_the_machine_too() {
    for seed in 1..=40 {
        let mut c = cluster(seed, 1, 2);
        let (writer, reader) = (c.mounts[0], c.mounts[1]);
        let fid = run(&mut c, writer, async |client| {
            let (fid, handle) = create(&client, "f").await?;
            for i in 0..40u64 {
                write(&client, handle, i * 5000, vec![i as u8; 5000]).await?;
            }
            Ok::<_, Failure>(fid)
        });
        let fid = fid.expect("written");
        let ost = c.servers[OST];
        let pause = c.world.rng().below(SEC);
        c.world.run_for(pause);
        c.world.kill(ost);
        let usual = c.world.faults.io_us;
        c.world.faults.io_us = (20_000, 60_000); // a sync takes ten times as long
        c.world.start(ost);
        // The mount has connected again, or not yet; it may have heard what is stable.
        let pause = c.world.rng().below(2 * SEC);
        c.world.run_for(pause);
        c.power_loss(OST);
        c.world.faults.io_us = usual;
        c.world.start_later(ost, 100_000_000);
        let expected: Vec<u8> = (0..40u8).flat_map(|i| vec![i; 5000]).collect();
        let found = read(&mut c, reader, fid).expect("readable");
        assert!(found == expected, "seed {seed}: {} bytes\n{}", found.len(), c.world.trace(60));
    }
}

/// A writes, B writes the same bytes; B hears that all is stable and forgets, A hears nothing. A's replay must not
/// bring its older bytes back.
#[test]
fn a_replayed_write_does_not_cover_a_later_one_that_is_stable() {
    for seed in 1..=30 {
        let mut c = cluster(seed, 1, 2);
        let b = c.mounts[1];
        let (fid, [_, at_b]) = a_deaf_writer(&mut c, vec![1; 9000]);
        run(&mut c, b, async move |client| write(&client, at_b, 0, vec![2; 9000]).await).expect("written");
        let pause = c.world.rng().below(5_000_000_000);
        c.world.run_for(pause);
        lose_the_machine(&mut c);
        let found = read(&mut c, b, fid).expect("readable");
        assert!(found == vec![2; 9000], "seed {seed}\n{}", c.world.trace(60));
    }
}

/// A writes and never hears of it, B sees the bytes, writes over them and gets its reply, the machine dies: whether B's
/// bytes are there in the end.
fn the_later_write_stays(seed: u64, rule: bool) -> bool {
    let mut c = Cluster::on_devices(seed, 1, 2);
    c.ack_or_commit.set(rule);
    c.world.run_for(SEC);
    let (a, b) = (c.mounts[0], c.mounts[1]);
    let (fid, [at_a, at_b]) = a_deaf_writer(&mut c, vec![0; 9000]);
    let first =
        c.jobs.start(&mut c.world, a, async move |client| write(&client, at_a, 0, vec![1; 9000]).await);
    let acknowledged = run(&mut c, b, async move |client| {
        while client.read(at_b, 0, 1).await?.concat() != [1] {}
        write(&client, at_b, 0, vec![2; 9000]).await
    });
    acknowledged.expect("B gets its reply");
    lose_the_machine(&mut c);
    let done: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, first, 60 * SEC);
    assert_eq!(done, Some(Ok(9000)), "seed {seed}");
    read(&mut c, b, fid).expect("readable") == vec![2; 9000]
}

#[test]
fn a_write_that_was_never_acknowledged_does_not_cover_a_later_one() {
    for seed in 1..=20 {
        assert!(the_later_write_stays(seed, true), "seed {seed}");
    }
}

#[test]
fn without_acknowledge_or_commit_it_does() {
    assert!((1..=20).any(|seed| !the_later_write_stays(seed, false)), "the rule is for nothing");
}

/// A's write is in the log, its reply and its bytes are lost; B writes beside it, in the same block, as soon as the OST
/// is back; then the machine is lost once more. A's bytes must be there, since A is told so in the end.
#[test]
fn a_write_in_the_log_whose_reply_was_lost_keeps_its_bytes() {
    for seed in 1..=40 {
        let mut c = cluster(seed, 1, 2);
        let (a, b) = (c.mounts[0], c.mounts[1]);
        let (fid, [at_a, at_b]) = a_deaf_writer(&mut c, vec![1; 48]);
        let first =
            c.jobs.start(&mut c.world, a, async move |client| write(&client, at_a, 48, vec![2; 48]).await);
        c.world.run_for(2_000_000);
        for loss in 0..2 {
            lose_the_machine(&mut c);
            if loss == 0 {
                let second = run(&mut c, b, async move |client| write(&client, at_b, 96, vec![3; 48]).await);
                assert_eq!(second, Ok(48), "seed {seed}");
                let done: Option<Result<u32, Failure>> = c.jobs.wait(&mut c.world, first, 60 * SEC);
                assert_eq!(done, Some(Ok(48)), "seed {seed}");
            }
        }
        let found = read(&mut c, b, fid).expect("readable");
        assert!(found == [[1; 48], [2; 48], [3; 48]].concat(), "seed {seed}\n{}", c.world.trace(60));
    }
}
