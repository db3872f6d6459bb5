//! Appends over several objects: each is there once, whole, whatever becomes of the OSTs meanwhile.

mod support;

use nacre_client::{Client, CreateArgs, WriteArgs};
use nacre_sim::cluster::Cluster;
use nacre_sim::{DieAt, JobId};
use nacre_types::{Failure, Fid, LayoutTemplate, OpenHandle};
use std::rc::Rc;
use support::{FILE, SEC, append, caller, cluster, new, read, run, wait};

const DEATHS: [DieAt; 3] = [DieAt::BeforeLog, DieAt::InLog, DieAt::AfterLog];

/// Two mounts that have a file over both OSTs open.
fn scene(seed: u64) -> (Cluster, Fid, [OpenHandle; 2]) {
    let mut c = cluster(seed, 2, 2);
    let (first, second) = (c.mounts[0], c.mounts[1]);
    c.world.run_for(3 * SEC); // the MDT knows both
    let made = run(&mut c, first, async |client| {
        let layout = LayoutTemplate {
            stripe_count: 2,
            stripe_bytes: 64 << 10,
            first_ost: 0,
            ..LayoutTemplate::default()
        };
        let args = CreateArgs { layout: Some(layout), ..new(Fid::ROOT, "f", FILE) };
        client.create(args, 2).await
    });
    let (entry, one) = made.expect("made");
    let fid = entry.attr.fid;
    let opened = run(&mut c, second, async move |client| client.open(fid, 2, caller()).await);
    c.world.run_for(SEC);
    (c, fid, [one, opened.expect("opened").1])
}
fn record(of: u8, bytes: u32) -> Vec<u8> {
    (0..bytes).map(|i| (i / 7 % 100) as u8 * 2 + 1 + of).collect() // no zeros: those are holes
}

/// What the second mount sees.
fn seen(c: &mut Cluster, fid: Fid) -> Vec<u8> {
    let second = c.mounts[1];
    read(c, second, fid).expect("readable")
}

/// Both OSTs die under an append; one has its part in the log, the other has not.
#[test]
fn an_append_of_which_one_object_has_its_part_is_ended_not_made_twice() {
    for seed in 1..=12 {
        for (a, b) in DEATHS.iter().flat_map(|a| DEATHS.iter().map(move |b| (*a, *b))) {
            let (mut c, fid, [handle, _]) = scene(seed);
            let first = c.mounts[0];
            let data = record(0, 160_000);
            c.world.kill_in_visit(c.servers[2], a, SEC);
            c.world.kill_in_visit(c.servers[3], b, SEC);
            let bytes = data.clone();
            let appended = run(&mut c, first, async move |client| append(&client, handle, bytes).await);
            assert_eq!(appended, Ok(160_000), "seed {seed}");
            let found = seen(&mut c, fid);
            assert!(found == data, "seed {seed}, {a:?} {b:?}: {} bytes\n{}", found.len(), c.world.trace(60));
        }
    }
}

/// The same of two mounts at once: when the OSTs are back each may be the first to have the locks.
#[test]
fn an_append_that_was_begun_is_ended_although_another_one_came_in_between() {
    for seed in 7..=12 {
        for (a, b) in DEATHS.iter().flat_map(|a| DEATHS.iter().map(move |b| (*a, *b))) {
            for bytes in [100, 70_000, 160_000] {
                let (mut c, fid, handles) = scene(seed);
                let records = [record(0, 160_000), record(1, bytes)];
                let mounts = [c.mounts[0], c.mounts[1]];
                c.world.kill_in_visit(c.servers[2], a, SEC);
                c.world.kill_in_visit(c.servers[3], b, SEC);
                let jobs = [0, 1].map(|i| {
                    let (handle, data) = (handles[i], records[i].clone());
                    c.jobs.start(&mut c.world, mounts[i], async move |client| {
                        append(&client, handle, data).await
                    })
                });
                for (job, record) in jobs.into_iter().zip(&records) {
                    assert_eq!(
                        wait::<Result<u32, Failure>>(&mut c, job),
                        Ok(record.len() as u32),
                        "seed {seed}"
                    );
                }
                let found = seen(&mut c, fid);
                let [one, two] = &records;
                let whole = [[&one[..], two].concat(), [&two[..], one].concat()].contains(&found);
                assert!(whole, "seed {seed}, {a:?} {b:?}: {} bytes\n{}", found.len(), c.world.trace(60));
            }
        }
    }
}

/// Another mount cuts the file to nothing in between: the append is made as a whole, at its end.
#[test]
fn an_append_that_was_begun_and_cut_away_begins_anew() {
    for seed in 1..=12 {
        for (a, b) in DEATHS.iter().flat_map(|a| DEATHS.iter().map(move |b| (*a, *b))) {
            let (mut c, fid, [handle, _]) = scene(seed);
            let (first, second) = (c.mounts[0], c.mounts[1]);
            let data = record(0, 160_000);
            c.world.kill_in_visit(c.servers[2], a, SEC);
            c.world.kill_in_visit(c.servers[3], b, SEC);
            let bytes = data.clone();
            let job =
                c.jobs.start(&mut c.world, first, async move |client| append(&client, handle, bytes).await);
            let set = nacre_types::SetAttr { size: Some(0), ..Default::default() };
            let cut = run(&mut c, second, async move |client| client.setattr(fid, set, caller()).await);
            cut.expect("cut");
            assert_eq!(wait::<Result<u32, Failure>>(&mut c, job), Ok(160_000), "seed {seed}");
            let found = seen(&mut c, fid);
            assert!(found.is_empty() || found == data, "seed {seed}, {a:?} {b:?}: {} bytes", found.len());
        }
    }
}

/// The first mount's append has the lock of one object and waits for the OST of the other one, which is down; that of the
/// second waits for the lock.
fn one_waits_for_the_other(seed: u64) -> (Cluster, Fid, [JobId; 2]) {
    let (mut c, fid, handles) = scene(seed);
    let down = c.servers[3];
    c.world.kill(down);
    let jobs = [0, 1].map(|i| {
        let (mount, handle) = (c.mounts[i], handles[i]);
        let job = c.jobs.start(&mut c.world, mount, async move |client| {
            append(&client, handle, record(i as u8, 100)).await
        });
        c.world.run_for(SEC / 2);
        job
    });
    let awaiting = awaited(&mut c);
    assert_eq!(awaiting, 1, "seed {seed}\n{}", c.world.trace(60));
    (c, fid, jobs)
}
/// Locks for which somebody waits, on all OSTs that are up.
fn awaited(c: &mut Cluster) -> u64 {
    let waiting = c.params(|name| name.ends_with(".lock_waiting"));
    waiting.iter().map(|(_, _, n)| n.parse::<u64>().expect("a number")).sum()
}

/// A killed OST knows nobody who waits. Whoever does asks as soon as it is back.
#[test]
fn who_waits_for_a_lock_asks_a_restarted_ost_at_once() {
    for seed in 1..=10 {
        let (mut c, fid, [first, second]) = one_waits_for_the_other(seed);
        let (ost0, ost1) = (c.servers[2], c.servers[3]);
        c.world.kill(ost0);
        c.world.start(ost0);
        c.world.run_for(SEC / 2);
        assert_eq!(awaited(&mut c), 1, "seed {seed}\n{}", c.world.trace(60));
        c.world.start(ost1);
        assert_eq!(wait::<Result<u32, Failure>>(&mut c, first), Ok(100), "seed {seed}");
        assert_eq!(wait::<Result<u32, Failure>>(&mut c, second), Ok(100), "seed {seed}");
        assert_eq!(seen(&mut c, fid), [record(0, 100), record(1, 100)].concat(), "seed {seed}");
    }
}

/// The caller of the one that waits is killed: its wait ends at the OST too, and nothing of it is written.
#[test]
fn who_is_not_waited_for_any_more_leaves_the_queue() {
    for seed in 1..=10 {
        let (mut c, fid, [first, second]) = one_waits_for_the_other(seed);
        let (ost1, mount) = (c.servers[3], c.mounts[1]);
        c.jobs.give_up(&mut c.world, mount, second);
        c.world.run_for(SEC / 2);
        assert_eq!(awaited(&mut c), 0, "seed {seed}\n{}", c.world.trace(60));
        assert_eq!(wait::<Result<u32, Failure>>(&mut c, second), Err(Failure::EINTR), "seed {seed}");
        c.world.start(ost1);
        assert_eq!(wait::<Result<u32, Failure>>(&mut c, first), Ok(100), "seed {seed}");
        assert_eq!(seen(&mut c, fid), record(0, 100), "seed {seed}");
    }
}

/// A piece of a call that has `rest` more bytes, as the kernel sends it: it goes on where the one before ended.
async fn piece(
    client: &Client,
    handle: OpenHandle,
    at: &mut u64,
    data: Vec<u8>,
    rest: u64,
) -> Result<u32, Failure> {
    let len = data.len() as u64;
    let args = WriteArgs {
        handle,
        offset: *at,
        append: true,
        call_bytes: len + rest,
        data: data.into(),
        kill_suidgid: None,
        sync: false,
    };
    *at += len;
    client.write(args).await
}

const PIECE: usize = 3000;

/// Two mounts append, each in three pieces, while OSTs are killed and come back.
#[test]
fn pieces_of_one_call_stay_together() {
    for (seed, deaths) in (1..=12).flat_map(|seed| [(seed, 0), (seed, 1), (seed, 2)]) {
        let (mut c, fid, handles) = scene(seed);
        let jobs = [0, 1].map(|i| {
            let (mount, handle) = (c.mounts[i], handles[i]);
            c.jobs.start(&mut c.world, mount, async move |client| {
                for round in 0..5u8 {
                    // What the kernel believes of the end is of no account.
                    let mut at = u64::from(round) * 7;
                    for left in [2, 1, 0] {
                        let data = vec![16 * (i as u8 + 1) + round; PIECE];
                        piece(&client, handle, &mut at, data, left * PIECE as u64).await?;
                    }
                }
                client.release(handle, None).await
            })
        });
        for ost in [c.servers[2], c.servers[3]].into_iter().take(deaths) {
            c.world.run_for(SEC / 500);
            c.world.kill(ost);
            c.world.run_for(SEC / 10);
            c.world.start(ost);
        }
        for job in jobs {
            assert_eq!(wait::<Result<(), Failure>>(&mut c, job), Ok(()), "seed {seed}");
        }
        let found = seen(&mut c, fid);
        assert_eq!(found.len(), 2 * 5 * 3 * PIECE, "seed {seed}, {deaths} deaths");
        let mut calls = found.chunks(3 * PIECE);
        assert!(calls.all(|call| call.iter().all(|b| *b == call[0])), "seed {seed}, {deaths} deaths");
    }
}

/// The caller of a long append is killed after its first piece, or cannot read its own buffer for long.
#[test]
fn nobody_waits_long_for_a_piece_that_does_not_come() {
    for (seed, closes) in (1..=8).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (mut c, fid, [one, two]) = scene(seed);
        let (first, second) = (c.mounts[0], c.mounts[1]);
        let begun = run(&mut c, first, async move |client| {
            piece(&client, one, &mut 0, vec![1; PIECE], 2 * PIECE as u64).await
        });
        assert_eq!(begun, Ok(PIECE as u32), "seed {seed}");
        let other = c
            .jobs
            .start(&mut c.world, second, async move |client| append(&client, two, vec![2; PIECE]).await);
        c.world.run_for(SEC / 2);
        assert_eq!(awaited(&mut c), 1, "seed {seed}: it waits");
        let late = async move |client: Rc<Client>| match closes {
            true => client.release(one, None).await.map(|()| 0),
            false => Ok(0),
        };
        assert_eq!(run(&mut c, first, late), Ok::<u32, Failure>(0), "seed {seed}");
        c.world.run_for(if closes { SEC / 4 } else { SEC });
        assert_eq!(awaited(&mut c), 0, "seed {seed}, closed: {closes}");
        assert_eq!(wait::<Result<u32, Failure>>(&mut c, other), Ok(PIECE as u32), "seed {seed}");
        let mut whole = [vec![1; PIECE], vec![2; PIECE]].concat();
        if !closes {
            let rest = run(&mut c, first, async move |client| {
                piece(&client, one, &mut (PIECE as u64), vec![1; PIECE], PIECE as u64).await
            });
            assert_eq!(rest, Ok(PIECE as u32), "seed {seed}");
            whole.extend(vec![1; PIECE]);
        }
        assert!(seen(&mut c, fid) == whole, "seed {seed}");
    }
}
