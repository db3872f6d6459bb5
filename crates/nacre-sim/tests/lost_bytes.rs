//! Bytes that nobody can put back: their client does not return after the loss of an OST's machine. A reader sees what
//! was there before, what was written, or zeros; and the OST's rows agree with its bytes in the end.

mod support;

use nacre_node::Event;
use nacre_sim::cluster::Cluster;
use nacre_sim::offline::with_engine;
use nacre_types::Failure;
use support::{MS, OST, SEC, caller, cluster, create, read, run, write};

const LEN: u64 = 700_000;

/// What `nacre check --data` finds on the OST, once it has stopped as planned: problems, and blocks with other sums.
fn checked(c: &mut Cluster) -> (u64, u64, Vec<String>) {
    let ost = c.servers[OST];
    c.world.tell(ost, Event::Stop);
    let until = c.world.now_ns() + 60 * SEC;
    assert!(c.world.run_until(until, |world| world.take_stopped().contains(&ost)), "it stops");
    let found =
        with_engine(&*c.stores[OST], |ctx, osd| async move { nacre_ost::check(&ctx, &osd, true).await });
    let found = found.expect("it opens").expect("its rows can be read");
    (found.problems, found.sums_differ, found.descriptions)
}

/// `again`: the OST is killed, or its machine is lost once more, while it sums.
fn nothing_false_is_left(seed: u64, again: Option<bool>) {
    let mut c = cluster(seed, 1, 2);
    let (writer, reader, ost) = (c.mounts[0], c.mounts[1], c.servers[OST]);
    let old = run(&mut c, writer, async |client| {
        let (fid, handle) = create(&client, "old").await?;
        write(&client, handle, 0, vec![1; LEN as usize]).await.map(|_| (fid, handle))
    });
    let (old, handle) = old.expect("written");
    c.world.run_for(3 * SEC);
    let new = run(&mut c, writer, async move |client| {
        for i in 0..20u64 {
            write(&client, handle, i * 37_000 + i, vec![2; 1000 * i as usize + 1]).await?;
        }
        write(&client, handle, LEN + 100_000, vec![2; 50_000]).await?;
        let (fid, handle) = create(&client, "new").await?;
        write(&client, handle, 5000, vec![3; 300_000]).await.map(|_| fid)
    });
    let new = new.expect("written");
    // The rows are committed. (Without them nothing says which blocks were being overwritten.)
    let pause = 300 * MS + c.world.rng().below(600 * MS);
    c.world.run_for(pause);
    c.world.kill(writer);
    c.power_loss(OST);
    c.world.start_later(ost, 100 * MS);
    c.world.run_for(10 * SEC);
    for _ in 0..3 {
        let pause = c.world.rng().below(SEC / 2);
        c.world.run_for(pause);
        match again {
            None => {}
            Some(machine) => {
                if machine {
                    c.power_loss(OST)
                } else {
                    c.world.kill(ost)
                }
                c.world.start_later(ost, 100 * MS);
                c.world.run_for(SEC);
            }
        }
    }
    c.world.run_for(12 * SEC);
    let found = read(&mut c, reader, old).expect("readable");
    assert!(found.len() as u64 >= LEN, "seed {seed}");
    assert!(found[..LEN as usize].iter().all(|b| [1, 2].contains(b)), "seed {seed}: old or new");
    assert!(found[LEN as usize..].iter().all(|b| [0, 2].contains(b)), "seed {seed}: zeros or new");
    let found = read(&mut c, reader, new).expect("readable");
    assert!(found.iter().all(|b| [0, 3].contains(b)), "seed {seed}: zeros or new");
    let (problems, differ, sentences) = checked(&mut c);
    assert_eq!((problems, differ), (0, 0), "seed {seed}, {again:?}: {sentences:?}");
}

#[test]
fn after_the_recovery_sums_are_those_of_the_bytes_that_are_there() {
    for seed in 1..=40 {
        nothing_false_is_left(seed, None);
    }
}

#[test]
fn also_when_the_ost_is_killed_or_lost_again_meanwhile() {
    for seed in 1..=30 {
        nothing_false_is_left(seed, Some(seed % 2 == 0));
    }
}

/// Two write in the same blocks, one returns after each loss of the machine: whatever was acknowledged to it is there.
#[test]
fn acknowledged_bytes_beside_lost_ones_survive_one_loss_after_another() {
    for seed in 1..=40 {
        let mut c = cluster(seed, 1, 3);
        let (leaves, stays, reader, ost) = (c.mounts[0], c.mounts[1], c.mounts[2], c.servers[OST]);
        let made = run(&mut c, leaves, async |client| {
            let (fid, handle) = create(&client, "f").await?;
            write(&client, handle, 0, vec![1; 200_000]).await.map(|_| (fid, handle))
        });
        let (fid, theirs) = made.expect("written");
        let mine = run(&mut c, stays, async move |client| client.open(fid, 2, caller()).await);
        let (_, mine) = mine.expect("open");
        c.world.run_for(3 * SEC);
        // Bytes of even thousands are of the one, those of odd ones of the other.
        run(&mut c, leaves, async move |client| {
            for i in 0..100u64 {
                write(&client, theirs, 2 * i * 1000, vec![2; 1000]).await?;
            }
            Ok::<_, Failure>(())
        })
        .expect("written");
        let mut expected = vec![1; 200_000];
        for loss in 0..3u8 {
            let first = u64::from(loss) * 30;
            let done = run(&mut c, stays, async move |client| {
                for i in first..first + 40 {
                    write(&client, mine, (2 * i + 1) * 1000, vec![3 + loss; 1000]).await?;
                }
                Ok::<_, Failure>(())
            });
            assert_eq!(done, Ok(()), "seed {seed}, loss {loss}");
            for i in first as usize..first as usize + 40 {
                expected[(2 * i + 1) * 1000..(2 * i + 2) * 1000].fill(3 + loss);
            }
            let pause = c.world.rng().below(1500 * MS);
            c.world.run_for(pause);
            if loss == 0 {
                c.world.kill(leaves);
            }
            c.power_loss(OST);
            c.world.start_later(ost, 100 * MS);
            let pause = if loss == 0 { 11 * SEC } else { SEC };
            let pause = pause + c.world.rng().below(SEC);
            c.world.run_for(pause);
        }
        let found = read(&mut c, reader, fid).expect("readable");
        assert_eq!(found.len(), expected.len(), "seed {seed}");
        let wrong = (0..found.len()).find(|at| {
            found[*at] != expected[*at] && (at / 1000 % 2 == 1 || ![0, 1, 2].contains(&found[*at]))
        });
        assert_eq!(
            wrong,
            None,
            "seed {seed}: {} {}",
            found[wrong.unwrap_or(0)],
            expected[wrong.unwrap_or(0)]
        );
    }
}

/// Everything loses power after the MDT has committed the size of a file, and before an OST has its object: nothing replays
/// the write. A read shows what was written or fails; it does not end early.
#[test]
fn a_file_whose_object_is_lost_is_not_shown_as_an_empty_one() {
    let mut lost = 0;
    for seed in 1..=20 {
        let mut c = cluster(seed, 1, 1);
        let first = c.mounts[0];
        let made = run(&mut c, first, async |client| {
            let (fid, handle) = create(&client, "f").await?;
            write(&client, handle, 0, vec![7; 3000]).await?;
            client.release(handle, None).await.map(|()| fid)
        });
        let fid = made.expect("written");
        // Only the MDT is given the time to commit.
        let ost = c.servers[OST];
        c.world.pause(ost, true);
        c.world.run_for(5 * SEC);
        c.world.pause(ost, false);
        c.lose_power().expect("it restarts");
        c.world.run_for(20 * SEC);
        let second = *c.mounts.last().expect("one more");
        let size =
            run(&mut c, second, async move |client| Ok::<_, Failure>(client.getattr(fid).await?.attr.size));
        let Ok(size) = size else { continue };
        match read(&mut c, second, fid) {
            Ok(bytes) => assert_eq!(bytes.len() as u64, size, "seed {seed}"),
            Err(error) => {
                assert_eq!((error, size), (Failure::EIO, 3000), "seed {seed}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0, "an object was lost in no seed");
}
