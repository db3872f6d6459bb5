//! Bytes that the device returns and nobody has written: found wherever they are used, and never where a crash explains
//! them.

use crate::support::*;
use bytes::Bytes;
use nacre_node::{FileId, Rng, StoreOp, WriteTo};
use nacre_osd::{BLOCK_BYTES, OsdError};
use nacre_testkit::CrashDevice;
use nacre_types::Extent;

const REGION: u64 = 256 << 10;

fn flip(t: &Target, n: u32, offset: u64) {
    t.device.flip(FileId::Blob(object(n)), offset);
}
fn damaged(n: u32, block: u64) -> OsdError {
    let from = block * BLOCK_BYTES;
    OsdError::Damaged { object: object(n), from, to: from + BLOCK_BYTES }
}

#[test]
fn a_damaged_block_is_an_error_for_its_own_bytes_only_and_never_gets_a_sum_that_fits() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    let old: Vec<u8> = (0..300_123u32).map(|i| (i / 11) as u8).collect();
    t.write(object(1), 0, old.clone()).expect("writes");
    make_durable(&mut t);
    for (block, restarted) in [(5u64, false), (70, true)] {
        flip(&t, 1, block * BLOCK_BYTES + 17);
        if restarted {
            t = t.kill();
        }
        let at = block * BLOCK_BYTES;
        for (offset, len) in [(at, 4096), (at + 4000, 1), (0, 1 << 20), (at - 1, 2)] {
            assert_eq!(t.read(object(1), offset, len), Err(damaged(1, block)), "{offset} {len}");
        }
        // Changes that need its other bytes.
        assert_eq!(t.write(object(1), at + 100, vec![9; 50]), Err(damaged(1, block)));
        assert_eq!(t.write(object(1), at - 4000, vec![9; 4100]), Err(damaged(1, block)));
        assert_eq!(t.truncate(object(1), at + 100), Err(damaged(1, block)));
        assert_eq!(t.read(object(1), at, 4096), Err(damaged(1, block)), "it is found again");
        assert!(t.read(object(1), at - 4096, 4096).expect("reads").1 == old[at as usize - 4096..at as usize]);
        assert!(t.read(object(1), at + 4096, 1 << 20).expect("reads").1 == old[at as usize + 4096..]);
        assert_eq!(t.sync(object(1)), Ok(()));
        // Overwritten as a whole it is as good as new.
        t.write(object(1), at - 100, old[at as usize - 100..at as usize + 5000].to_vec()).expect("writes");
        assert!(t.read(object(1), 0, 1 << 20).expect("reads").1 == old);
        make_durable(&mut t);
    }
    // The last block, which is short: appending to it keeps its bytes.
    flip(&t, 1, 300_100);
    assert_eq!(t.write(object(1), 300_123, vec![1; 10]), Err(damaged(1, 73)));
    assert_eq!(t.write(object(1), 400_000, vec![1; 10]), Err(damaged(1, 73)));
    assert_eq!(t.truncate(object(1), 500_000).map(|row| row.size), Err(damaged(1, 73)));
    t.truncate(object(1), 73 * BLOCK_BYTES).expect("is cut off");
    t.write(object(1), 400_000, vec![1; 10]).expect("writes");
    assert!(t.read(object(1), 0, 73 * 4096).expect("reads").1 == old[..73 * 4096]);
}

/// The loss of a machine explains what was being written, and nothing else.
#[test]
fn rot_of_stable_bytes_is_found_although_a_machine_was_lost_after_the_object_had_been_changed() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(1), 0, vec![1; REGION as usize]).expect("writes");
    t.settle();
    t.write(object(1), 3 * REGION, vec![2; 5000]).expect("writes");
    t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
    flip(&t, 1, 9 * BLOCK_BYTES);
    let mut t = t.power_loss(&mut Rng::new(3));
    t.start_rechecksum();
    assert_eq!(t.read(object(1), 0, REGION as u32), Err(damaged(1, 9)));
    assert!(t.read(object(1), 3 * REGION, 5000).expect("reads").1.iter().all(|b| [0, 2].contains(b)));
}

/// A write overwrites bytes before its rows are logged. However much of both survives, the blocks can be read: they hold
/// old or new bytes. Regions are read, and overwritten again, while the stable point moves.
#[test]
fn no_loss_of_a_machine_during_an_overwrite_is_taken_for_damage() {
    let (mut old_sums, mut new_bytes) = (0, 0);
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let regions = 1 + rng.below(9);
        // Regions of which a part is written yet get rows without a mark, which the log may lose again.
        let (holes, written) = if seed % 2 == 1 { (true, REGION / 2) } else { (false, REGION) };
        for region in 0..regions {
            t.write(object(1), region * REGION, vec![1; written as usize]).expect("writes");
        }
        make_durable(&mut t);
        t.settle();
        t.drive.drive.shuffle = Some(Rng::new(seed + 9));
        for round in 0..1 + rng.below(4) {
            for i in 0..rng.below(6) {
                let o = t.objects.clone();
                let n = if rng.below(2) == 0 { 4096 } else { 1 + rng.below(40_000) };
                let place = rng.below(regions * REGION - n);
                let place = if rng.below(2) == 0 { place / 4096 * 4096 } else { place };
                let bytes = vec![(2 + round * 8 + i) as u8; n as usize];
                t.drive.start(move |osd| async move {
                    let write = o.prepare_write(
                        object(1),
                        place,
                        vec![Bytes::from(bytes)],
                        WriteTo::Cache,
                        &at_any_time,
                    );
                    let Ok((mut prepared, ())) = write.await else { return };
                    // Others come and go between the bytes and the rows.
                    for _ in 0..3 {
                        osd.ctx().yield_now().await;
                    }
                    let pins = prepared.take_pins();
                    let Ok(room) = osd.reserve(prepared.credits()).await else { return };
                    drop(osd.transact(&pins, room, |tx| prepared.apply(tx, &stamp(1))));
                });
            }
            // Another object moves the stable point meanwhile.
            let o = t.objects.clone();
            t.drive.start(move |osd| async move {
                let Ok((mut prepared, ())) = o
                    .prepare_write(
                        object(2),
                        0,
                        vec![Bytes::from(vec![7; 100])],
                        WriteTo::Cache,
                        &at_any_time,
                    )
                    .await
                else {
                    return;
                };
                let pins = prepared.take_pins();
                let Ok(room) = osd.reserve(prepared.credits()).await else { return };
                drop(osd.transact(&pins, room, |tx| prepared.apply(tx, &stamp(2))));
                drop(o.sync(object(2)).await);
            });
            for _ in 0..rng.below(60) {
                t.drive.drive.step();
            }
        }
        let mut t = t.power_loss(&mut rng);
        let before = t.read(object(1), 0, 4 << 20);
        assert!(before.is_ok(), "seed {seed}: {:?}", before.err());
        t.start_rechecksum();
        let (_, got) = t.read(object(1), 0, 4 << 20).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(holes || got.iter().all(|b| *b > 0), "seed {seed}");
        old_sums += u32::from(got.iter().all(|b| *b <= 1));
        new_bytes += u32::from(got.iter().any(|b| *b > 1));
        assert_eq!(t.check_rows(object(1)).1, [], "seed {seed}");
        // From here on a mismatch is damage again.
        make_durable(&mut t);
        t.settle();
        flip(&t, 1, 100);
        assert_eq!(t.read(object(1), 0, 4096), Err(damaged(1, 0)), "seed {seed}");
    }
    assert!(old_sums > 5 && new_bytes > 50, "{old_sums} {new_bytes}");
}

/// Bytes are written where a hole, zeros or a truncate has just removed older ones. However much of this survives, no
/// block has the checksum of the older bytes and the content of the new ones.
#[test]
fn no_loss_of_a_machine_after_bytes_were_removed_and_written_is_taken_for_damage() {
    let (mut removed, mut written) = (0, 0);
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 2 * REGION as usize]).expect("writes");
        make_durable(&mut t);
        t.settle();
        let (from, to) = (rng.below(REGION), REGION + rng.below(REGION));
        let o = t.objects.clone();
        t.drive.start(move |osd| async move {
            let done = match seed % 3 {
                0 => o.zero_blocks(object(1), Extent::new(from, to), true).await,
                1 => o.zero_blocks(object(1), Extent::new(from, to), false).await,
                _ => match o.prepare_truncate(object(1), from).await {
                    Ok(prepared) => commit(&o, prepared, stamp(1)).await.map(drop),
                    Err(error) => Err(error),
                },
            };
            let write = o.prepare_write(
                object(1),
                from + 5000,
                vec![Bytes::from(vec![2; 50_000])],
                WriteTo::Cache,
                &at_any_time,
            );
            if done.is_ok()
                && let Ok((prepared, ())) = write.await
            {
                drop(osd);
                drop(commit(&o, prepared, stamp(1)).await);
            }
        });
        for _ in 0..rng.below(60) {
            t.drive.drive.step();
        }
        let mut t = t.power_loss(&mut rng);
        let before = t.read(object(1), 0, 4 << 20);
        assert!(before.is_ok(), "seed {seed}: {:?}", before.err());
        t.start_rechecksum();
        let (_, got) = t.read(object(1), 0, 4 << 20).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        removed += u32::from(got.contains(&0));
        written += u32::from(got.contains(&2));
        assert_eq!(t.check_rows(object(1)).1, [], "seed {seed}");
    }
    assert!(removed > 10 && written > 10, "{removed} {written}");
}

/// Marks are commits that a writer waits for: their number grows with the logarithm of the regions.
#[test]
fn an_overwrite_of_many_stable_regions_waits_for_few_commits() {
    let mut t = Target::format_with(
        &CrashDevice::new(u64::MAX),
        &nacre_osd::OsdConfig { log_bytes_max: 64 << 20, ..config() },
    );
    for region in 0..256 {
        t.write(object(1), region * REGION, vec![1; REGION as usize]).expect("writes");
    }
    make_durable(&mut t);
    t.settle();
    for random in [false, true] {
        let before = t.drive.osd().stats().syncs;
        let mut rng = Rng::new(7);
        for i in 0..256 {
            let region = if random { rng.below(256) } else { i };
            t.write(object(1), region * REGION + 8192, vec![3; 4096]).expect("writes");
        }
        let syncs = t.drive.osd().stats().syncs - before;
        assert!(syncs < 20, "{syncs} commits, random: {random}");
        make_durable(&mut t);
        t.settle();
    }
    // One that is synced again and again, as a database does, needs few: the stable point moves in the background.
    t.write(object(1), 0, vec![4; 4096]).expect("writes");
    let before = t.drive.osd().stats().syncs;
    for i in 0..100 {
        t.write(object(1), i % 7 * 8192, vec![4; 4096]).expect("writes");
        t.sync(object(1)).expect("syncs");
    }
    let syncs = t.drive.osd().stats().syncs - before;
    assert!(syncs <= 110, "{syncs} commits for 100 syncs");
    // A file that grows needs none.
    let before = t.drive.osd().stats().syncs;
    for i in 0..500 {
        t.write(object(2), i * 1000, vec![3; 1000]).expect("writes");
    }
    assert_eq!(t.drive.osd().stats().syncs, before);
    t.damage(StoreOp::Punch { file: FileId::Blob(object(1)), offset: 0, len: 4096 });
    assert_eq!(t.read(object(1), 0, 10), Err(damaged(1, 0)), "a hole is not what was written");
}
