//! Missing bytes and damaged rows: errors for their objects, and no effect on the others.

use crate::support::*;
use bytes::Bytes;
use nacre_node::{FileId, FileKind, Rng, StoreDone, StoreOp};
use nacre_osd::{BLOCK_BYTES, OsdError, UNVERIFIED_KEY, table};
use nacre_testkit::CrashDevice;

/// Rows say that bytes were written, and their file was deleted or cut: those are never zeros, and nothing else suffers.
#[test]
fn a_deleted_or_cut_blob_is_an_error_and_never_zeros() {
    for (held, kill) in [(0, false), (0, true), (5000, false), (300_000, true)] {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let bytes: Vec<u8> = (0..400_000u32).map(|i| (i % 251) as u8 + 1).collect();
        for n in 1..3 {
            t.write(object(n), 0, bytes.clone()).expect("writes");
        }
        make_durable(&mut t);
        let file = FileId::Blob(object(1));
        t.damage(if held == 0 { StoreOp::Delete { file } } else { StoreOp::Truncate { file, len: held } });
        if kill {
            t = t.kill();
            t.settle();
        }
        let lost = |from: u64, to: u64| OsdError::Lost { object: object(1), from, to };
        // The blocks before the cut are there.
        let whole = held / BLOCK_BYTES * BLOCK_BYTES;
        assert_eq!(t.read(object(1), 0, whole as u32).expect("reads").1, bytes[..whole as usize]);
        let stop = ((held / (256 << 10)) + 1) * (256 << 10);
        assert_eq!(t.read(object(1), 0, 400_000), Err(lost(held, stop.min(400_000))));
        assert_eq!(t.read(object(1), 390_000, 10), Err(lost(389_120, 393_216)));
        assert_eq!(t.sync(object(1)), Err(lost(held, 400_000)), "a sync of bytes that are not there");
        // What needs the old bytes fails, and changes nothing.
        assert!(matches!(t.write(object(1), 350_000, vec![9; 10]), Err(OsdError::Lost { .. })));
        assert!(matches!(t.truncate(object(1), 350_000), Err(OsdError::Lost { .. })));
        assert!(matches!(t.truncate(object(1), 500_000), Err(OsdError::Lost { .. })), "the block of the end");
        // The others are well.
        assert_eq!(t.read(object(2), 0, 400_000).expect("reads").1, bytes);
        assert_eq!(t.sync(object(2)), Ok(()));
        // A write that makes the file longer again lays no hole over what is gone, in this life or the next.
        t.write(object(1), 97 * BLOCK_BYTES, vec![7; 8192]).expect("appends");
        let mut t = t.kill();
        assert_eq!(t.read(object(1), 97 * BLOCK_BYTES, 8192).expect("reads").1, vec![7; 8192]);
        assert!(matches!(t.read(object(1), held, 1), Err(OsdError::Lost { .. })));
        assert!(matches!(t.read(object(1), 96 * BLOCK_BYTES, 4097), Err(OsdError::Lost { .. })));
        // Whole blocks heal it, and so does a cut.
        t.write(object(1), whole, vec![8; (96 * BLOCK_BYTES - whole) as usize]).expect("overwrites");
        assert_eq!(t.read(object(1), whole, 10).expect("reads").1, [8; 10]);
        assert!(matches!(t.read(object(1), 0, 500_000), Err(OsdError::Lost { .. })), "one block is left");
        t.truncate(object(1), 96 * BLOCK_BYTES).expect("cuts");
        let (row, all) = t.read(object(1), 0, 500_000).expect("reads");
        assert_eq!((row.size, all.len() as u64), (96 * BLOCK_BYTES, 96 * BLOCK_BYTES));
        assert_eq!(t.sync(object(1)), Ok(()));
        assert_eq!(t.check_rows(object(1)), (96, vec![]));
    }
}

/// After the loss of a machine: what was not stable may be gone and becomes zeros once nobody puts it back; what was
/// stable cannot be gone, and a file that lacks it is damaged.
#[test]
fn a_lost_machine_explains_missing_bytes_that_were_not_stable_and_no_others() {
    let mut zeros = 0;
    for seed in 0..20 {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.write(object(1), 0, vec![1; 300_000]).expect("writes");
        t.write(object(2), 0, vec![1; 1000]).expect("writes");
        make_durable(&mut t);
        t.write(object(1), 600_000, vec![2; 9000]).expect("writes");
        t.write(object(3), 0, vec![3; 9000]).expect("writes");
        t.run(|o| async move { o.osd().commit(o.osd().last_transno()).await.expect("commits") });
        let device = t.device.clone();
        device.power_loss(&mut Rng::new(seed));
        // What fsck may do.
        for n in 1..3 {
            device.store().execute(StoreOp::Delete { file: FileId::Blob(object(n)) }).expect("deletes");
        }
        let mut t = Target::start(&device, &config(), true);
        if seed % 2 == 0 {
            t.run(|o| async move {
                o.restore(object(1), 600_000, &[Bytes::from(vec![2; 9000])]).await.expect("puts back");
            });
        }
        t.start_rechecksum();
        assert!(matches!(t.read(object(1), 0, 10), Err(OsdError::Lost { .. })), "seed {seed}: it was stable");
        assert!(
            matches!(t.read(object(2), 0, 10), Err(OsdError::Lost { .. })),
            "seed {seed}: not changed since"
        );
        let got = t.read(object(1), 600_000, 9000).expect("reads").1;
        assert!(got.iter().all(|b| *b == if seed % 2 == 0 { 2 } else { 0 }), "seed {seed}");
        let got = t.read(object(3), 0, 9000).expect("reads").1;
        assert!(got.iter().all(|b| [0, 3].contains(b)), "seed {seed}");
        zeros += u32::from(got.contains(&0));
        assert_eq!((t.sync(object(1)), t.sync(object(3))), (Ok(()), Ok(())), "seed {seed}");
        assert!(matches!(t.sync(object(2)), Err(OsdError::Lost { .. })), "seed {seed}");
    }
    assert!(zeros > 3, "{zeros}");
}

/// Damages both copies of a block of a run.
pub(crate) fn damage_both_copies(device: &CrashDevice, run: FileId, at: u64) {
    let len = device.store().execute(StoreOp::Len { file: run });
    let Ok(StoreDone::Len(Some(len))) = len else { panic!("{len:?}") };
    device.flip(run, at);
    device.flip(run, len / 2 + at);
}

/// A block of object rows is damaged: its objects return an error, are counted and synced by their files, and nobody
/// waits for ever; not after a kill, not after the loss of a machine.
#[test]
fn a_damaged_block_of_object_rows_costs_its_objects_and_holds_up_nothing() {
    for machine_was_lost in [false, true] {
        let device = CrashDevice::new(u64::MAX);
        let mut t = Target::format(&device);
        for n in 0..300 {
            t.write(object(n), 0, vec![1; 100]).expect("writes");
        }
        t.truncate(object(299), 50).expect("cuts");
        t.run(|o| async move { o.osd().checkpoint().await.expect("writes a run") });
        let StoreDone::List(runs) =
            t.store.execute(StoreOp::List { kind: FileKind::Run, after: None, limit: 10 }).expect("lists")
        else {
            panic!("no list")
        };
        device.kill_process();
        damage_both_copies(&device, runs[0], 4 * 4096 + 2000);
        let mut t = Target::start(&device, &config(), machine_was_lost);
        if machine_was_lost {
            t.objects.start_rechecksum();
        }
        // Ends, and what is well goes on.
        make_durable(&mut t);
        t.settle();
        let damaged = (0..300).filter(|n| t.read(object(*n), 0, 100).is_err()).collect::<Vec<_>>();
        assert!((10..80).contains(&damaged.len()), "{damaged:?}");
        for n in 0..300 {
            let got = t.sync(object(n));
            assert_eq!(got.is_err(), damaged.contains(&n), "{n}: {got:?}");
        }
        assert_eq!(t.objects.oldest_unstable(), None);
        t.write(object(400), 0, vec![4; 100]).expect("writes");
        make_durable(&mut t);
        let unverified =
            t.drive.run(|osd| async move { osd.get(table::TARGET, UNVERIFIED_KEY).await.expect("reads") });
        assert_eq!(unverified, Some(None), "what cannot be read is not looked at again and again");
        // The files of all are on the device: those that cannot be read may be wanted by whoever repairs it.
        device.power_loss(&mut Rng::new(1));
        for n in 0..300 {
            let op = StoreOp::Len { file: FileId::Blob(object(n)) };
            assert!(matches!(device.store().execute(op), Ok(StoreDone::Len(Some(1..)))), "{n}");
        }
    }
}

/// Space that one object let go of cannot be freed because its rows are damaged; that of the others is.
#[test]
fn damaged_rows_of_one_object_hold_up_the_space_of_no_other() {
    let device = CrashDevice::new(u64::MAX);
    let mut t = Target::format(&device);
    for n in 0..300 {
        t.write(object(n), 0, vec![1; 10_000]).expect("writes");
    }
    t.run(|o| async move { o.osd().checkpoint().await.expect("writes a run") });
    let StoreDone::List(runs) =
        t.store.execute(StoreOp::List { kind: FileKind::Run, after: None, limit: 10 }).expect("lists")
    else {
        panic!("no list")
    };
    for n in 0..300 {
        t.truncate(object(n), 100).expect("cuts");
    }
    // The cuts are in the log, the rows of blocks before them in the run.
    device.kill_process();
    damage_both_copies(&device, runs[0], 12 * 4096);
    let mut t = Target::open(&device);
    make_durable(&mut t);
    t.run(|o| async move { o.osd().ctx().sleep(std::time::Duration::from_secs(60)).await });
    let damaged = (0..300).filter(|n| t.read(object(*n), 0, 100).is_err()).count();
    let cut = (0..300).filter(|n| t.blob_len(object(*n)) == Some(BLOCK_BYTES)).count();
    assert!((10..100).contains(&damaged) && cut >= 300 - damaged, "{cut} cut, {damaged} damaged");
}
