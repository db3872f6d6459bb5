//! Bytes of small syncs: they are in the log, and for a moment nowhere else.

use crate::support::*;
use nacre_node::WriteTo;
use nacre_node::{FileKind, Rng, StoreError};
use nacre_osd::table;
use nacre_testkit::{CrashDevice, Fault, FaultOp};
use nacre_types::Extent;

fn commit_rows(t: &mut Target) {
    t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
}
fn logged_blocks(t: &mut Target) -> usize {
    t.run(|o| async move { o.osd().scan(table::LOGGED, &[], &[], u32::MAX).await.expect("rows").len() })
}
/// Each byte is one of these.
fn assert_among(bytes: &[u8], allowed: &[u8], what: &str) {
    let other = bytes.iter().find(|byte| !allowed.contains(byte));
    assert_eq!(other, None, "{what}: only {allowed:?}");
}

#[test]
fn a_small_sync_survives_the_machine_and_syncs_no_file() {
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let error = StoreError::Device("EIO".into());
        t.device.fail(Fault { op: FaultOp::Sync, on: Some(FileKind::Blob), nth: 1, error });
        t.write(object(1), 0, vec![1; 5000]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.write(object(1), 4000, vec![2; 100]).expect("writes");
        t.sync(object(1)).expect("syncs");
        assert_eq!((t.device.faults_left(), logged_blocks(&mut t)), (1, 2));
        let copy = t.device.copy_unsynced(&mut Rng::new(seed));
        let mut t = Target::start(&copy, &config(), true);
        let bytes = t.read(object(1), 0, 1 << 20).expect("reads").1;
        assert_eq!(bytes, [&[1; 4000][..], &[2; 100], &[1; 900]].concat(), "seed {seed}");
        t.settle();
        t.start_rechecksum();
        assert_eq!(logged_blocks(&mut t), 0, "the file has them");
        let mut t = t.power_loss(&mut Rng::new(seed));
        assert_eq!(t.read(object(1), 0, 1 << 20).expect("reads").1, bytes, "seed {seed}");
    }
}

#[test]
fn rows_go_when_the_file_is_written_back() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in 0..3 {
        t.write(object(n), 0, vec![1; 10_000 * n as usize + 1]).expect("writes");
        t.sync(object(n)).expect("syncs");
    }
    assert_eq!(logged_blocks(&mut t), 1 + 3 + 5);
    t.settle();
    assert_eq!(logged_blocks(&mut t), 0);
    t.write(object(1), 0, vec![2; 10]).expect("writes");
    t.sync(object(1)).expect("syncs");
    t.run(|o| async move {
        o.stop().await;
        o.osd().stop().await.expect("stops");
    });
    let mut t = t.power_loss(&mut Rng::new(4));
    assert_eq!(logged_blocks(&mut t), 0);
    assert_eq!(t.read(object(1), 0, 20).expect("reads").1, [[2; 10], [1; 10]].concat());
}

/// The file has newer bytes than the row, and they were reported durable.
#[test]
fn bytes_that_a_later_sync_of_the_file_made_durable_are_not_undone() {
    for seed in 0..40 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 8192]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.write(object(1), 0, vec![2; 200_000]).expect("writes");
        t.sync(object(1)).expect("syncs the file");
        t.write(object(1), 0, vec![3; 4096]).expect("writes");
        commit_rows(&mut t);
        let mut t = t.power_loss(&mut Rng::new(seed));
        t.start_rechecksum();
        let bytes = t.read(object(1), 0, 1 << 20).expect("reads").1;
        assert_among(&bytes[..4096], &[2, 3], &format!("seed {seed}"));
        assert_among(&bytes[4096..], &[2], &format!("seed {seed}"));
    }
}

/// The rows of a later write are durable, and its bytes are not.
#[test]
fn an_overwrite_that_was_not_synced_leaves_what_was() {
    for seed in 0..40 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 8192]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.write(object(1), 100, vec![2; 5000]).expect("writes");
        commit_rows(&mut t);
        let mut t = t.power_loss(&mut Rng::new(seed));
        t.start_rechecksum();
        let bytes = t.read(object(1), 0, 1 << 20).expect("reads").1;
        assert_among(&bytes[..100], &[1], &format!("seed {seed}"));
        assert_among(&bytes[100..5100], &[1, 2], &format!("seed {seed}"));
        assert_among(&bytes[5100..], &[1], &format!("seed {seed}"));
    }
}

#[test]
fn a_killed_process_loses_no_write_that_came_after_a_sync() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(1), 0, vec![1; 8192]).expect("writes");
    t.sync(object(1)).expect("syncs");
    t.write(object(1), 100, vec![2; 5000]).expect("writes");
    let mut t = t.kill();
    let bytes = t.read(object(1), 0, 1 << 20).expect("reads").1;
    assert_eq!(bytes, [&[1; 100][..], &[2; 5000], &[1; 3092]].concat());
}

/// What a truncate, a hole or a removal takes away does not come back from a row.
#[test]
fn bytes_that_were_cut_off_do_not_come_back_from_the_log() {
    for seed in 0..40 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let id = object(1);
        t.write(id, 0, vec![1; 20_000]).expect("writes");
        t.sync(id).expect("syncs");
        let kept = match seed % 4 {
            0 => {
                t.truncate(id, 5000).expect("cuts");
                5000
            }
            1 => {
                t.truncate(id, 0).expect("cuts");
                0
            }
            2 => {
                t.zero(id, Extent::new(8192, 20_000), true).expect("makes a hole");
                8192
            }
            _ => {
                t.destroy(id).expect("removes");
                0
            }
        };
        t.write(id, 19_000, vec![2; 100]).expect("writes");
        commit_rows(&mut t);
        let mut t = t.power_loss(&mut Rng::new(seed));
        t.start_rechecksum();
        let bytes = t.read(id, 0, 1 << 20).expect("reads").1;
        assert_among(&bytes[..kept], &[1], &format!("seed {seed}"));
        assert_among(&bytes[kept..19_000], &[0], &format!("seed {seed}"));
        assert_among(&bytes[19_000..19_100], &[0, 2], &format!("seed {seed}"));
    }
}

#[test]
fn more_objects_than_the_log_may_hold_are_synced_with_their_files() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in 0..1300 {
        t.write(object(n), 0, vec![n as u8; 100]).expect("writes");
        t.sync(object(n)).expect("syncs");
        assert!(logged_blocks(&mut t) <= 1024);
    }
    let mut t = t.power_loss(&mut Rng::new(3));
    for n in 0..1300 {
        assert_eq!(t.read(object(n), 0, 200).expect("reads").1, vec![n as u8; 100], "{n}");
    }
}

/// A sync that logs the few blocks of the latest write only would lose the others.
#[test]
fn a_sync_after_many_changes_makes_all_of_them_durable() {
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 200_000]).expect("writes");
        t.write(object(1), 4096, vec![2; 4096]).expect("writes");
        t.sync(object(1)).expect("syncs");
        let mut t = t.power_loss(&mut Rng::new(seed));
        let bytes = t.read(object(1), 0, 1 << 20).expect("reads").1;
        assert_eq!(bytes, [&[1; 4096][..], &[2; 4096], &[1; 191_808]].concat(), "seed {seed}");
    }
}

#[test]
fn blocks_that_become_zeros_have_no_row() {
    for (range, frees) in [(Extent::new(4096, 12_288), true), (Extent::new(0, 16_384), false)] {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 16_384]).expect("writes");
        t.sync(object(1)).expect("syncs");
        assert_eq!(logged_blocks(&mut t), 4);
        t.zero(object(1), range, frees).expect("makes zeros");
        assert_eq!(logged_blocks(&mut t), 0);
    }
}

/// The sync reads one block after the other: the lock keeps what it has read from changing.
#[test]
fn a_block_that_is_written_during_a_sync_is_not_taken_for_logged() {
    for seed in 0..40 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 4096]).expect("writes");
        t.write(object(1), 8192, vec![1; 4096]).expect("writes");
        let objects = t.objects.clone();
        t.drive.drive.shuffle = Some(Rng::new(seed));
        t.drive.start(|_| async move { objects.sync(object(1)).await.expect("syncs") });
        for _ in 0..seed % 4 {
            t.drive.drive.step();
        }
        t.write(object(1), 0, vec![2; 4096]).expect("writes");
        t.write(object(1), 20_480, vec![3; 4096]).expect("writes");
        t.sync(object(1)).expect("syncs");
        let mut t = t.power_loss(&mut Rng::new(seed));
        let bytes = t.read(object(1), 0, 1 << 20).expect("reads").1;
        let expected = [[2; 4096], [0; 4096], [1; 4096], [0; 4096], [0; 4096], [3; 4096]];
        assert!(bytes == expected.concat(), "seed {seed}: begins with {}", bytes[0]);
    }
}

/// The sync of the file ends when the older row is gone durably: a torn overwrite would bring it back.
#[test]
fn an_overwrite_that_was_under_way_undoes_no_sync_of_the_file() {
    for seed in 0..40 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 8192]).expect("writes");
        t.sync(object(1)).expect("syncs");
        t.write(object(1), 0, vec![2; 200_000]).expect("writes");
        // In some seeds the log is synced before the file.
        t.drive.drive.shuffle = Some(Rng::new(seed));
        t.sync(object(1)).expect("syncs the file");
        t.run(|o| async move {
            let under_way =
                o.prepare_write(object(1), 0, vec![vec![3; 4096].into()], WriteTo::Cache, &at_any_time).await;
            core::mem::forget(under_way.expect("prepares"));
        });
        let mut t = t.power_loss(&mut Rng::new(seed));
        let bytes = t.read(object(1), 0, 1 << 20).expect("reads").1;
        assert_among(&bytes[..4096], &[2, 3], &format!("seed {seed}"));
        assert_among(&bytes[4096..], &[2], &format!("seed {seed}"));
    }
}
