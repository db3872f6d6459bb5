//! The scrub: it finds and names every damaged place, nothing that is well, whatever happens beside it.

use crate::damage::damage_both_copies;
use crate::support::*;
use bytes::Bytes;
use nacre_node::{FileId, FileKind, Rng, StoreDone, StoreError, StoreOp, WriteTo};
use nacre_osd::{BLOCK_BYTES, Damage, DamageKind, Objects, REGION_BYTES, ScrubState, ScrubStatus, Stamp};
use nacre_testkit::{CrashDevice, Fault, FaultOp};
use nacre_types::{Extent, ObjectId};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

const MIB: u64 = 1 << 20;

fn flip(t: &Target, n: u32, offset: u64) {
    t.device.flip(FileId::Blob(object(n)), offset);
}
fn found(n: u32, from: u64, to: u64, kind: DamageKind) -> Damage {
    Damage { object: object(n), from, to, kind }
}
fn start(t: &mut Target) {
    t.run(|o| async move { o.start_scrub() });
}
/// A pass from its begin to its end.
fn scrub(t: &mut Target) -> ScrubStatus {
    start(t);
    t.settle();
    let status = t.objects.scrub_status();
    assert_eq!(status.state, ScrubState::Finished);
    status
}

#[test]
fn every_kind_of_damage_is_found_and_named_exactly() {
    use DamageKind::{Checksum, Lost};
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in 1..6 {
        t.write(object(n), 0, vec![n as u8; 600_123]).expect("writes");
    }
    t.write(object(6), 10 * MIB, vec![6; 5000]).expect("writes");
    t.truncate(object(7), 1 << 40).expect("a hole");
    for region in 0..150 {
        t.write(object(8), region * REGION_BYTES, vec![8; 100]).expect("writes");
    }
    make_durable(&mut t);
    let whole = scrub(&mut t);
    assert_eq!((whole.objects, whole.damaged_places, whole.damage.len()), (8, 0, 0));
    assert_eq!(whole.verified_bytes, (5 * 147 + 2 + 150) * BLOCK_BYTES);
    let usage = t.drive.osd().usage_total();
    assert_eq!((whole.objects, whole.bytes), (usage.objects, usage.bytes), "the end of its progress");
    // Two blocks of a region that are not beside each other, two that are, across a border of regions; the last one,
    // which is short, and byte 0.
    for block in [3, 5, 63, 64] {
        flip(&t, 1, block * BLOCK_BYTES + 99);
    }
    flip(&t, 1, 600_122);
    flip(&t, 2, 0);
    t.damage(StoreOp::Truncate { file: FileId::Blob(object(3)), len: 300_000 });
    t.damage(StoreOp::Delete { file: FileId::Blob(object(4)) });
    let status = scrub(&mut t);
    let block = |n: u64| n * BLOCK_BYTES;
    assert_eq!(
        status.damage,
        [
            found(1, block(3), block(4), Checksum),
            found(1, block(5), block(6), Checksum),
            found(1, block(63), block(65), Checksum),
            found(1, block(146), 600_123, Checksum),
            found(2, 0, block(1), Checksum),
            found(3, block(73), 600_123, Lost),
            found(4, 0, 600_123, Lost),
        ]
    );
    assert_eq!(status.damaged_places, 7);
    // Overwritten as a whole, all are well, and the findings are those of the new pass.
    for n in 1..7 {
        let from = if n == 6 { 10 * MIB } else { 0 };
        t.write(object(n), from, vec![9; 600_123]).expect("overwrites");
    }
    assert_eq!(scrub(&mut t).damage, []);
}

/// A bad sector: the read of the region fails, and that of one of its blocks.
#[test]
fn a_block_that_the_device_cannot_read_is_damage_only_if_it_is_so_twice() {
    for (failing, damaged) in
        [(&[1, 2, 4, 5][..], true), (&[1, 2], false), (&[1], false), (&[1, 2, 4, 6], false)]
    {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 10 * MIB, vec![6; 5000]).expect("writes");
        make_durable(&mut t);
        for &nth in failing {
            let error = StoreError::Device("a bad sector".into());
            t.device.fail(Fault { op: FaultOp::Read, on: Some(FileKind::Blob), nth, error });
        }
        let expected = found(1, 10 * MIB, 10 * MIB + 4096, DamageKind::Unreadable);
        assert_eq!(scrub(&mut t).damage, if damaged { vec![expected] } else { vec![] }, "{failing:?}");
        assert_eq!((t.device.faults_left(), scrub(&mut t).damaged_places), (0, 0));
    }
}

/// Objects are made and removed while a pass is under way: those that are there all the time are all visited.
#[test]
fn a_pass_visits_every_object_that_stays() {
    for seed in 0..2 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let stays = |n: u32| n.is_multiple_of(3);
        for n in 0..1500 {
            if stays(n) || rng.below(2) == 0 {
                t.write(object(n), 0, vec![1; 100]).expect("writes");
            }
        }
        make_durable(&mut t);
        t.run(|o| async move { o.osd().checkpoint().await.expect("writes a run") });
        let kept: BTreeSet<ObjectId> = (0..1500).filter(|n| stays(*n)).map(object).collect();
        (0..1500).filter(|n| stays(*n)).for_each(|n| flip(&t, n, 50));
        t.objects.set_scrub_rate(100 * MIB);
        start(&mut t);
        while t.objects.scrub_status().state == ScrubState::Running {
            let n = rng.below(1500) as u32;
            match rng.below(2) {
                _ if stays(n) => {}
                0 => drop(t.write(object(n), 0, vec![2; 5000]).expect("writes")),
                _ => drop(t.destroy(object(n)).expect("destroys")),
            }
            for _ in 0..rng.below(30) {
                t.drive.drive.step();
            }
        }
        let status = t.objects.scrub_status();
        let damaged: BTreeSet<ObjectId> = status.damage.iter().map(|d| d.object).collect();
        assert_eq!((status.state, status.damage.len()), (ScrubState::Finished, kept.len()), "seed {seed}");
        assert_eq!(damaged, kept, "seed {seed}");
    }
}

/// A random change that waits a moment between its bytes and its rows.
async fn change_slowly(o: Rc<Objects>, mut rng: Rng) {
    let id = object(rng.below(3) as u32);
    let offset = rng.below(3 * REGION_BYTES);
    let offset = if rng.below(2) == 0 { offset / 4096 * 4096 } else { offset };
    let prepared = match rng.below(8) {
        0 => o.prepare_truncate(id, offset).await.ok(),
        1 if rng.below(3) == 0 => o.prepare_destroy(id).await.ok(),
        2 => return drop(o.zero_blocks(id, Extent::new(offset, offset + 50_000), rng.below(2) == 0).await),
        3 => return drop(o.sync(id).await),
        _ => {
            let data = Bytes::from(vec![rng.below(256) as u8; 1 + rng.below(60_000) as usize]);
            o.prepare_write(id, offset, vec![data], WriteTo::Cache, &at_any_time)
                .await
                .ok()
                .map(|(prepared, ())| prepared)
        }
    };
    let Some(prepared) = prepared else { return };
    o.osd().ctx().sleep(Duration::from_micros(rng.below(2000))).await;
    drop(commit(&o, prepared, Stamp::default()).await);
}

#[test]
fn changes_beside_it_are_never_taken_for_damage() {
    let mut passes = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        for n in 0..3 {
            t.write(object(n), 0, vec![1; 3 * REGION_BYTES as usize]).expect("writes");
        }
        make_durable(&mut t);
        t.drive.drive.shuffle = Some(Rng::new(seed + 9));
        let check = |t: &Target| {
            let status = t.objects.scrub_status();
            assert_eq!(status.damage, [], "seed {seed}");
            status
        };
        for round in 0..300 {
            if check(&t).state != ScrubState::Running {
                start(&mut t);
                passes += 1;
            }
            let (o, its) = (t.objects.clone(), Rng::new(seed * 1000 + round));
            t.drive.start(move |_| change_slowly(o, its));
            for _ in 0..rng.below(12) {
                t.drive.drive.step();
            }
        }
        t.settle();
        assert_eq!(check(&t).state, ScrubState::Finished);
        assert_eq!(scrub(&mut t).damage, [], "seed {seed}");
    }
    assert!(passes > 100, "{passes}");
}

/// Regions that a crash may have changed are left to the check after it, and are verified by the next pass.
#[test]
fn what_a_crash_explains_is_no_damage() {
    let mut left_out = 0;
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 4 * REGION_BYTES as usize]).expect("writes");
        make_durable(&mut t);
        t.settle();
        for n in 0..4 {
            t.write(object(1), n * REGION_BYTES + 5000, vec![2; 30_000]).expect("writes");
            t.write(object(2), n * 50_000, vec![3; 50_000]).expect("writes");
        }
        t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
        let mut t = t.power_loss(&mut rng);
        let before = scrub(&mut t);
        assert_eq!(before.damage, [], "seed {seed}");
        left_out += before.unverified_regions;
        t.start_rechecksum();
        let after = scrub(&mut t);
        assert_eq!((after.damage, after.unverified_regions), (vec![], 0), "seed {seed}");
        flip(&t, 1, 3);
        assert_eq!(scrub(&mut t).damage.len(), 1, "seed {seed}");
    }
    assert!(left_out > 20, "{left_out}");
}

#[test]
fn it_keeps_to_its_rate_and_ends_when_it_is_stopped() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(1), 0, vec![1; 8 << 20]).expect("writes");
    make_durable(&mut t);
    let seconds = |t: &mut Target| {
        let status = scrub(t);
        status.ended.as_nanos() / 1_000_000_000 - status.started.as_nanos() / 1_000_000_000
    };
    t.objects.set_scrub_rate(MIB);
    assert!((8..10).contains(&seconds(&mut t)));
    t.objects.set_scrub_rate(0);
    assert!(seconds(&mut t) < 1);
    // Another rate holds at once, and so does a stop.
    t.objects.set_scrub_rate(1);
    start(&mut t);
    t.run(|o| async move { o.osd().ctx().sleep(Duration::from_secs(1000)).await });
    let status = t.objects.scrub_status();
    assert_eq!((status.state, status.verified_bytes), (ScrubState::Running, 256 << 10));
    t.objects.set_scrub_rate(MIB);
    t.run(|o| async move { o.osd().ctx().sleep(Duration::from_secs(4)).await });
    assert!(t.objects.scrub_status().verified_bytes >= 3 * MIB);
    t.objects.stop_scrub();
    let stopped = t.objects.scrub_status();
    t.settle();
    assert_eq!(
        (stopped.state, stopped.verified_bytes),
        (ScrubState::Stopped, t.objects.scrub_status().verified_bytes)
    );
    assert_eq!(scrub(&mut t).verified_bytes, 8 * MIB, "the next one begins anew");
    // The target stops although the next piece is due in years.
    t.objects.set_scrub_rate(1);
    start(&mut t);
    t.run(|o| async move { o.osd().ctx().sleep(Duration::from_secs(1)).await });
    assert_eq!(t.objects.scrub_status().verified_bytes, 256 << 10, "it waits");
    let before = t.drive.drive.now();
    t.run(|o| async move { o.stop().await });
    assert!(t.drive.drive.now().0 - before.0 < 10_000_000_000);
    assert_eq!(t.objects.scrub_status().state, ScrubState::Stopped);
}

/// A pass goes on behind rows that cannot be read, and names their objects.
#[test]
fn objects_whose_rows_cannot_be_read_are_named_and_the_others_are_verified() {
    for at in [4 * 4096 + 2000, 12 * 4096] {
        let device = CrashDevice::new(u64::MAX);
        let mut t = Target::format(&device);
        for n in 0..300 {
            t.write(object(n), 0, vec![1; 10_000]).expect("writes");
        }
        make_durable(&mut t);
        t.run(|o| async move { o.osd().checkpoint().await.expect("writes a run") });
        let list = StoreOp::List { kind: FileKind::Run, after: None, limit: 10 };
        let Ok(StoreDone::List(runs)) = t.store.execute(list) else { panic!("no list") };
        t.run(|o| async move {
            o.stop().await;
            o.osd().stop().await.expect("stops");
        });
        device.kill_process();
        damage_both_copies(&device, runs[0], at);
        let mut t = Target::open(&device);
        let unreadable: Vec<u32> = (0..300).filter(|n| t.read(object(*n), 0, 100).is_err()).collect();
        let status = scrub(&mut t);
        let named: BTreeSet<ObjectId> = status.damage.iter().map(|d| d.object).collect();
        assert!(status.damage.iter().all(|d| d.kind == DamageKind::Rows));
        assert_eq!(named, unreadable.iter().copied().map(object).collect(), "{at}");
        assert!((10..100).contains(&unreadable.len()) && status.objects == 300, "{at}: {unreadable:?}");
        assert_eq!(status.verified_bytes, (300 - unreadable.len() as u64) * 3 * BLOCK_BYTES);
    }
}

#[test]
fn an_object_whose_bytes_cannot_be_trusted_is_named_and_the_others_are_verified() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in 1..4 {
        t.write(object(n), 0, vec![1; 10_000]).expect("writes");
    }
    make_durable(&mut t);
    t.write(object(2), 0, vec![2; 10_000]).expect("writes");
    let error = StoreError::Device("refuses".into());
    t.device.fail(Fault { op: FaultOp::Sync, on: Some(FileKind::Blob), nth: 1, error });
    t.run(|o| async move { o.sync_all().await.expect("syncs the others") });
    let status = scrub(&mut t);
    assert_eq!(status.damage, [found(2, 0, 10_000, DamageKind::Quarantined)]);
    assert_eq!((status.objects, status.verified_bytes), (3, 6 * BLOCK_BYTES));
}
