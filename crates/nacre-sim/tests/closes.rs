//! Closes that go together: each happens once and gets its own result, whatever happens to connections, to the MDT and to
//! its machine; what they say of sizes is what other mounts see.

mod support;

use nacre_client::Client;
use nacre_node::join_all;
use nacre_sim::cluster::Cluster;
use nacre_sim::{JobId, NodeId};
use nacre_target::Fault;
use nacre_types::{Failure, Fid, OpenHandle, SetAttr};
use std::rc::Rc;
use support::{MDT, SEC, caller, cluster, create, open_files, run, sent_to, wait as wait_for, write};

const FILES: usize = 40;
type Opened = Vec<(Fid, OpenHandle)>;
type Closed = Vec<Result<(), Failure>>;

/// What was written to the file of that number.
fn size(number: usize) -> u64 {
    100 + number as u64
}
/// Two mounts; the first has files open and has written them. Every other seed gives them one slot.
fn scene(seed: u64) -> (Cluster, [NodeId; 2], Opened) {
    let mut c = cluster(seed, 1, 2);
    let mounts = [c.mounts[0], c.mounts[1]];
    if seed.is_multiple_of(2) {
        c.limit_slots(1);
    }
    let opened = run(&mut c, mounts[0], async move |client| {
        let files = (0..FILES).map(async |number| {
            let (fid, handle) = create(&client, &format!("f{number}")).await?;
            write(&client, handle, 0, vec![1; size(number) as usize]).await.map(|_| (fid, handle))
        });
        join_all(files).await.into_iter().collect::<Result<Opened, Failure>>()
    });
    (c, mounts, opened.expect("written"))
}
async fn close_all(client: Rc<Client>, opened: Opened) -> Closed {
    join_all(opened.iter().map(|(_, handle)| client.release(*handle, None))).await
}
fn closing(c: &mut Cluster, mount: NodeId, opened: &Opened) -> JobId {
    let opened = opened.clone();
    c.jobs.start(&mut c.world, mount, move |client| close_all(client, opened))
}
fn wait(c: &mut Cluster, job: JobId, what: &str) -> Closed {
    let closed = c.jobs.wait(&mut c.world, job, 120 * SEC);
    closed.unwrap_or_else(|| panic!("{what}: never closed; {:?}\n{}", c.world.fatal, c.world.trace(80)))
}
/// Requests of a kind that a mount has sent to the MDT.
fn sent(c: &mut Cluster, mount: NodeId, kind: &'static str) -> u64 {
    sent_to(c, mount, "mdc.", kind)
}
/// Every close was made, once; another mount sees every size, and the MDT has nothing open any more.
fn check(c: &mut Cluster, [first, second]: [NodeId; 2], opened: &Opened, closed: &Closed, what: &str) {
    assert_eq!(closed, &vec![Ok(()); opened.len()], "{what}\n{}", c.world.trace(80));
    assert!(sent(c, first, "mds_batch") > 0, "{what}: no two closes went together");
    // A close that is executed twice finds nothing open, and opens the file again.
    assert_eq!(sent(c, first, "mds_reint_open"), 0, "{what}: a close was made twice\n{}", c.world.trace(80));
    let fids: Vec<Fid> = opened.iter().map(|(fid, _)| *fid).collect();
    let sizes = run(c, second, async move |client| {
        let attrs = join_all(fids.iter().map(|fid| client.getattr(*fid))).await;
        attrs
            .into_iter()
            .map(|entry| entry.map(|entry| entry.attr.size))
            .collect::<Result<Vec<u64>, Failure>>()
    });
    let written = (0..opened.len()).map(size).collect();
    assert_eq!(sizes, Ok(written), "{what}\n{}", c.world.trace(80));
    assert_eq!(open_files(c), "0", "{what}\n{}", c.world.trace(80));
}
#[test]
fn another_mount_sees_what_each_close_says() {
    for seed in 1..=8 {
        let (mut c, mounts, opened) = scene(seed);
        let job = closing(&mut c, mounts[0], &opened);
        let closed = wait(&mut c, job, "closes");
        check(&mut c, mounts, &opened, &closed, &format!("seed {seed}"));
        let requests = sent(&mut c, mounts[0], "mds_batch") + sent(&mut c, mounts[0], "mds_close");
        assert!(requests < FILES as u64 / 4, "seed {seed}: {requests} requests");
        // The MDT believes them: no OST is asked.
        c.world.run_for(SEC);
        let unsettled = c.params(|p| p.ends_with(".unsettled_files")).pop().expect("the MDT has it").2;
        assert_eq!(unsettled, "0", "seed {seed}");
    }
}

#[test]
fn each_close_happens_once_at_every_fault_point() {
    let faults =
        [Fault::RequestLostBefore, Fault::RequestLostAfter, Fault::ReplyLost, Fault::CrashAfterCommit];
    let mut crashes = 0;
    for seed in 1..=8 {
        for fault in faults {
            let what = format!("{fault:?}, seed {seed}");
            let (mut c, mounts, opened) = scene(seed);
            // A crash ends the process, and with it what was set.
            let times = if fault == Fault::CrashAfterCommit { 1 } else { 1 + seed as u32 % 4 };
            c.set_param(MDT, "*.*.fail_val", &times.to_string());
            let early = seed % 3 == 0;
            if early {
                c.set_param(MDT, "*.*.fail_loc", fault.name());
            }
            let job = closing(&mut c, mounts[0], &opened);
            if !early {
                // The first ones are through, those that have collected are not; or all are.
                let pause = c.world.rng().below(400_000);
                c.world.run_for(pause);
                c.set_param(MDT, "*.*.fail_loc", fault.name());
            }
            if fault == Fault::CrashAfterCommit {
                crashes += u32::from(crash(&mut c));
            }
            let closed = wait(&mut c, job, &what);
            check(&mut c, mounts, &opened, &closed, &what);
        }
    }
    assert!(crashes > 4, "it crashes hardly ever: {crashes}");
}
/// Waits until the MDT ends at its fault point, and starts it again. False: nothing is asked of it any more.
fn crash(c: &mut Cluster) -> bool {
    let until = c.world.now_ns() + SEC;
    if !c.world.run_until(until, |world| !world.fatal.is_empty()) {
        return false;
    }
    c.world.fatal.clear();
    let mdt = c.servers[MDT];
    c.world.kill(mdt);
    c.world.start_later(mdt, 200_000_000);
    true
}

/// A close waits for a lock of another mount, which is slow to reach. Until then the MDT does not know what was written, and
/// the mount that opens the file for writing again must not take that for the end of its own changes.
#[test]
fn who_opens_a_file_again_while_its_close_is_under_way_sees_what_was_written() {
    const ROUNDS: u64 = 6;
    for seed in 1..=16 {
        let mut c = cluster(seed, 1, 2);
        let [first, second] = [c.mounts[0], c.mounts[1]];
        let (fid, mut handle) =
            run(&mut c, first, async |client| create(&client, "f").await).expect("created");
        for round in 1..=ROUNDS {
            let what = format!("seed {seed}, round {round}");
            run(&mut c, second, async move |client| {
                let (_, reading) = client.open(fid, seed as u32 % 3, caller()).await?;
                client.getattr(fid).await?;
                client.release(reading, None).await
            })
            .expect("looks");
            (c.world.faults.far, c.world.faults.far_us) = (Some(second), 20_000);
            let written = run(&mut c, first, async move |client| {
                write(&client, handle, (round - 1) * 100, vec![1; 100]).await
            });
            assert_eq!(written, Ok(100), "{what}");
            let close = async move |client: Rc<Client>| client.release(handle, None).await;
            let closing = c.jobs.start(&mut c.world, first, close);
            let seen = run(&mut c, first, async move |client| {
                let (_, next) = client.open(fid, 2, caller()).await?;
                let sizes = [client.getattr(fid).await?.attr.size, client.getattr(fid).await?.attr.size];
                Ok::<_, Failure>((next, sizes))
            });
            c.world.faults.far = None;
            assert_eq!(wait_for::<Result<(), Failure>>(&mut c, closing), Ok(()), "{what}");
            let (next, sizes) = seen.expect("opened");
            assert_eq!(sizes, [round * 100; 2], "{what}\n{}", c.world.trace(60));
            handle = next;
        }
    }
}

#[test]
fn closes_that_the_machine_takes_with_it_are_made_again() {
    for seed in 1..=24 {
        let what = format!("seed {seed}");
        let (mut c, mounts, opened) = scene(seed);
        if seed % 3 == 0 {
            c.world.run_for(2 * SEC); // the opens are durable, the closes are not
        }
        let job = closing(&mut c, mounts[0], &opened);
        // In the middle, or when all have their replies.
        let pause = c.world.rng().below(if seed % 2 == 0 { 2_000_000 } else { 20_000_000 });
        c.world.run_for(pause);
        c.power_loss(MDT);
        let mdt = c.servers[MDT];
        c.world.start_later(mdt, 100_000_000);
        let closed = wait(&mut c, job, &what);
        check(&mut c, mounts, &opened, &closed, &what);
    }
}

#[test]
fn closes_end_while_connections_break_and_the_mdt_is_killed() {
    for seed in 1..=12 {
        let what = format!("seed {seed}");
        let (mut c, mounts, opened) = scene(seed);
        let mdt = c.servers[MDT];
        let job = closing(&mut c, mounts[0], &opened);
        for _ in 0..6 {
            let pause = c.world.rng().below(1_000_000);
            c.world.run_for(pause);
            match c.world.rng().below(3) {
                0 => {
                    c.world.kill(mdt);
                    c.world.start_later(mdt, 1_000_000);
                }
                _ => c.world.cut_some_link(mdt),
            }
        }
        let closed = wait(&mut c, job, &what);
        check(&mut c, mounts, &opened, &closed, &what);
    }
}

/// Some closes are under way and some collect when the lease runs out; meanwhile another mount makes half of the files
/// longer.
#[test]
fn closes_that_an_eviction_meets_bring_no_old_size() {
    for seed in 1..=8 {
        let (mut c, [first, second], opened) = scene(seed);
        let mdt = c.servers[MDT];
        c.world.block_for(first, mdt, 20 * SEC);
        let job = closing(&mut c, first, &opened);
        c.world.run_for(16 * SEC);
        let theirs: Vec<Fid> = opened.iter().map(|(fid, _)| *fid).step_by(2).collect();
        let longer = run(&mut c, second, async move |client| {
            join_all(theirs.iter().map(async |fid| {
                let (_, handle) = client.open(*fid, 2, caller()).await?;
                write(&client, handle, 1000, vec![2; 1]).await?;
                client.release(handle, None).await
            }))
            .await
        });
        assert_eq!(longer, vec![Ok(()); FILES / 2], "seed {seed}\n{}", c.world.trace(80));
        let closed = wait(&mut c, job, &format!("seed {seed}"));
        // What had been sent is told that it was evicted.
        let failed = closed.iter().filter(|result| **result != Ok(())).count();
        assert!(
            closed.iter().all(|result| matches!(result, Ok(()) | Err(Failure::EIO))),
            "seed {seed}: {closed:?}"
        );
        assert!(failed < FILES, "seed {seed}: those that had collected go to the new export");
        let fids: Vec<Fid> = opened.iter().map(|(fid, _)| *fid).collect();
        let sizes = run(&mut c, second, async move |client| {
            let attrs = join_all(fids.iter().map(|fid| client.getattr(*fid))).await;
            attrs
                .into_iter()
                .map(|entry| entry.map(|entry| entry.attr.size))
                .collect::<Result<Vec<u64>, Failure>>()
        });
        let expected = (0..FILES).map(|n| if n % 2 == 0 { 1001 } else { size(n) }).collect();
        assert_eq!(sizes, Ok(expected), "seed {seed}\n{}", c.world.trace(80));
        assert_eq!(open_files(&mut c), "0", "seed {seed}\n{}", c.world.trace(80));
    }
}

/// What a mount has collected leaves before it does.
#[test]
fn an_unmount_waits_for_the_closes_that_collect() {
    for seed in 1..=4 {
        let (mut c, [first, _], opened) = scene(seed);
        let job = closing(&mut c, first, &opened);
        run(&mut c, first, async |client| client.unmount().await);
        let closed = wait(&mut c, job, &format!("seed {seed}"));
        assert_eq!(closed, vec![Ok(()); FILES], "seed {seed}\n{}", c.world.trace(80));
    }
}

/// The epoch of the writer has ended: the MDT grants the size to others, although one of them has the file open.
#[test]
fn another_mount_caches_the_size_of_a_file_that_it_has_open_once_the_writer_has_closed_it() {
    for seed in 1..=8 {
        let (mut c, [first, second], opened) = scene(seed);
        let (fid, handle) = opened[0];
        let read = run(&mut c, second, async move |client| client.open(fid, 0, caller()).await.map(|o| o.1));
        assert_eq!(read.map(drop), Ok(()), "seed {seed}");
        let closed = run(&mut c, first, async move |client| client.release(handle, None).await);
        assert_eq!(closed, Ok(()), "seed {seed}");
        c.world.run_for(SEC);
        let mut asked = Vec::new();
        for _ in 0..4 {
            let seen =
                run(&mut c, second, async move |client| client.getattr(fid).await.map(|e| e.attr.size));
            assert_eq!(seen, Ok(size(0)), "seed {seed}");
            asked.push(sent(&mut c, second, "mds_getattr"));
        }
        assert_eq!(asked[0], asked[3], "seed {seed}: {asked:?}");
        let set = SetAttr { size: Some(3), ..SetAttr::default() };
        let cut = run(&mut c, first, async move |client| client.setattr(fid, set, caller()).await.map(drop));
        assert_eq!(cut, Ok(()), "seed {seed}");
        let seen = run(&mut c, second, async move |client| client.getattr(fid).await.map(|e| e.attr.size));
        assert_eq!(seen, Ok(3), "seed {seed}");
    }
}
