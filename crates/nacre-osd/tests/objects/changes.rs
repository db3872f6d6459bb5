//! Single changes: abandoned writes, bounds of sizes, accounting, errors of the device, large objects.

use crate::support::*;
use bytes::Bytes;
use nacre_node::WriteTo;
use nacre_node::{FileKind, StoreError};
use nacre_osd::{BLOCK_BYTES, EARLY_BYTES, OBJECT_BYTES_MAX, ObjectRow, OsdConfig, OsdError, Stamp, table};
use nacre_testkit::{CrashDevice, Fault, FaultOp};

#[test]
fn a_write_that_is_given_up_leaves_sums_that_fit() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(1), 0, vec![1; 10_000]).expect("writes");
    for id in [object(1), object(2)] {
        t.run(move |o| async move {
            let (mut prepared, ()) = o
                .prepare_write(id, 5000, vec![Bytes::from(vec![2; 9000])], WriteTo::Cache, &at_any_time)
                .await
                .expect("prepares");
            drop(prepared.take_pins());
            drop(prepared);
        });
    }
    t.settle();
    let (row, bytes) = t.read(object(1), 0, 100_000).expect("reads");
    assert_eq!((row.size, row.blocks), (10_000, 24), "it never was");
    assert!(bytes[..5000].iter().all(|&b| b == 1));
    assert!(t.blob_len(object(1)).expect("is there") <= 12_288, "new blocks are given back");
    t.truncate(object(1), 14_000).expect("truncates");
    assert_eq!(
        t.read(object(1), 10_000, 4000).expect("reads").1,
        [0; 4000],
        "its bytes do not come to light"
    );
    assert_eq!(t.check_rows(object(1)).1, []);
    // Nobody knew whose the other one was: it does not exist, and neither do its bytes.
    assert_eq!(t.read(object(2), 0, 100).expect("reads").0, ObjectRow::default());
    assert_eq!(t.blob_len(object(2)), None);
}

#[test]
fn a_truncate_or_destroy_touches_the_blob_only_when_it_is_durable() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in 0..2 {
        t.write(object(n), 0, vec![5; 50_000]).expect("writes");
        t.sync(object(n)).expect("syncs");
    }
    // Whatever is in the log from now on is lost.
    t.device.barrier();
    t.truncate(object(0), 100).expect("truncates");
    t.destroy(object(1)).expect("destroys");
    assert_eq!(t.usage(1), (0, 0));
    assert_eq!((t.blob_len(object(0)), t.blob_len(object(1))), (Some(53_248), Some(53_248)));
    let mut lost = t.kill();
    assert_eq!(lost.read(object(0), 0, 100_000).expect("reads").1, vec![5; 50_000]);
    assert_eq!(lost.read(object(1), 0, 100_000).expect("reads").1, vec![5; 50_000]);
    lost.truncate(object(0), 100).expect("truncates");
    lost.destroy(object(1)).expect("destroys");
    lost.settle();
    assert_eq!(lost.blob_len(object(1)), None);
    assert!(lost.blob_len(object(0)).expect("is there") <= BLOCK_BYTES);
    // A late write makes it anew.
    lost.write(object(1), 10, vec![9; 5]).expect("writes");
    assert_eq!(lost.read(object(1), 0, 100).expect("reads").1, [[0; 10].as_slice(), &[9; 5]].concat());
}

/// The second truncate releases nothing, but the blob is cut to its size when the first one is reclaimed.
#[test]
fn a_blob_is_cut_neither_under_a_write_nor_early_after_a_second_truncate_into_a_hole() {
    let id = object(1);
    let cut_twice = |t: &mut Target| {
        t.write(id, 0, vec![5; 100]).expect("writes");
        t.write(id, 300_000, vec![5; 8000]).expect("writes");
        t.truncate(id, 170_000).expect("truncates");
        t.sync(id).expect("syncs");
    };
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    cut_twice(&mut t);
    t.truncate(id, 60_000).expect("truncates");
    let row = t.run(move |o| async move {
        let data = vec![Bytes::from(vec![7; 20_000])];
        let (prepared, ()) = o.prepare_write(id, 60_000, data, WriteTo::Cache, &at_any_time).await?;
        // Time enough for the reclaim.
        o.osd().ctx().sleep(std::time::Duration::from_secs(2)).await;
        commit(&o, prepared, stamp(1)).await
    });
    assert_eq!(row.expect("writes").size, 80_000);
    t.settle();
    let expected = [vec![5; 100], vec![0; 59_900], vec![7; 20_000]].concat();
    assert_eq!(t.read(id, 0, 200_000).expect("reads").1, expected);
    // It is cut when the second truncate is durable.
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    cut_twice(&mut t);
    t.truncate(id, 60_000).expect("truncates");
    let (last, rows) = t.run(async |o| {
        let osd = o.osd();
        (osd.last_transno(), osd.scan(table::RECLAIM, &[], &[0xff; 17], 10).await.expect("rows"))
    });
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].1[..8], last.0.to_le_bytes(), "its transaction");
}

#[test]
fn a_write_that_is_given_up_far_behind_the_end_cuts_no_other() {
    let id = object(1);
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(id, 0, vec![5; 4096]).expect("writes");
    let row = t.run(move |o| async move {
        let write = async |offset: u64| {
            let data = vec![Bytes::from(vec![7; 20_000])];
            o.prepare_write::<_, OsdError>(id, offset, data, WriteTo::Cache, &at_any_time).await
        };
        drop(write(1_000_000).await?);
        let (prepared, ()) = write(60_000).await?;
        let ctx = o.osd().ctx().clone();
        ctx.sleep(std::time::Duration::from_millis(10)).await;
        assert!(o.free_pending(ctx.now() + std::time::Duration::from_secs(2)).await?, "it was released");
        commit(&o, prepared, stamp(1)).await
    });
    assert_eq!(row.expect("writes").size, 80_000);
    t.settle();
    let expected = [vec![5; 4096], vec![0; 55_904], vec![7; 20_000]].concat();
    assert_eq!(t.read(id, 0, 200_000).expect("reads").1, expected);
}

#[test]
fn sizes_up_to_the_last_byte_of_an_offset_work() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    let id = object(1);
    let row = t.write(id, OBJECT_BYTES_MAX - 3, vec![7; 3]).expect("writes");
    assert_eq!((row.size, row.blocks), (OBJECT_BYTES_MAX, 8));
    assert_eq!(t.read(id, OBJECT_BYTES_MAX - 5, 100).expect("reads").1, [0, 0, 7, 7, 7]);
    assert_eq!(t.read(id, u64::MAX - 1, 100).expect("reads").1, []);
    assert_eq!(t.write(id, OBJECT_BYTES_MAX - 3, vec![7; 4]), Err(OsdError::TooLarge(id)));
    assert_eq!(t.write(id, u64::MAX - 1, vec![7; 4]), Err(OsdError::TooLarge(id)));
    assert_eq!(t.truncate(id, OBJECT_BYTES_MAX + 1), Err(OsdError::TooLarge(id)));
    t.write(id, 16 << 40, vec![1; 5000]).expect("writes");
    assert_eq!(t.truncate(id, (16 << 40) + 10).expect("truncates").blocks, 8);
    assert_eq!(t.truncate(id, OBJECT_BYTES_MAX).expect("truncates").size, OBJECT_BYTES_MAX);
    assert_eq!(t.read(id, (16 << 40) + 8, 4).expect("reads").1, [1, 1, 0, 0]);
    assert_eq!(t.check_rows(id).1, []);
}

#[test]
fn a_long_allocation_takes_several_transactions_and_one_account() {
    let big_log = OsdConfig { log_bytes_max: 64 << 20, ..config() };
    let mut t = Target::format_with(&CrashDevice::new(u64::MAX), &big_log);
    let row = t.allocate(object(1), 100, 9 << 30, false).expect("allocates");
    assert_eq!((row.size, row.blocks), ((9 << 30) + 100, (9 << 21) + 8));
    assert_eq!(t.usage(1), ((9 << 30) + 4096, 1));
    let row = t.truncate(object(1), 5000).expect("truncates");
    assert_eq!(row.blocks, 16);
    assert_eq!(t.usage(1), (8192, 1));
}

#[test]
fn usage_follows_the_owner() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(1), 0, vec![1; 5000]).expect("writes");
    t.run(move |o| async move {
        let prepared = o.prepare_set_owner(object(1), owner(2)).await.expect("prepares");
        commit(&o, prepared, Stamp::default()).await.expect("applies");
        let prepared = o.prepare_set_owner(object(3), owner(2)).await.expect("prepares");
        commit(&o, prepared, Stamp::default()).await.expect("applies");
    });
    t.write(object(1), 8192, vec![1; 1]).expect("writes");
    assert_eq!((t.usage(1), t.usage(2)), ((0, 0), (3 * 4096, 1)));
    let mtime = t.read(object(1), 0, 1).expect("reads").0.mtime;
    assert_eq!(mtime, stamp(1).mtime, "a change of owner is no write");
}

#[test]
fn a_failed_sync_takes_the_object_out_of_use_and_nothing_else() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in 0..2 {
        t.write(object(n), 0, vec![1; 100_000]).expect("writes");
    }
    let error = StoreError::Device("EIO".into());
    t.device.fail(Fault { op: FaultOp::Sync, on: Some(FileKind::Blob), nth: 1, error });
    assert_eq!(t.sync(object(0)), Err(OsdError::Quarantined(object(0))));
    assert_eq!(t.sync(object(1)), Ok(()));
    let mut t = t.kill();
    assert_eq!(t.read(object(0), 0, 10), Err(OsdError::Quarantined(object(0))));
    assert_eq!(t.write(object(0), 0, vec![1]), Err(OsdError::Quarantined(object(0))));
    assert_eq!(t.read(object(1), 0, 3).expect("reads").1, [1; 3]);
    t.destroy(object(0)).expect("destroys");
    assert_eq!(t.read(object(0), 0, 10).expect("reads").0, ObjectRow::default());
}

/// While an object is written the device begins with its bytes. What fails then is no secret: the next sync reports it,
/// also to the caller whose own sync was not the one that the device told.
#[test]
fn an_early_write_back_that_fails_is_reported_by_every_later_sync() {
    for others in [false, true] {
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let error = StoreError::Device("EIO".into());
        t.device.fail(Fault { op: FaultOp::Writeback, on: Some(FileKind::Blob), nth: 1, error });
        let mib = 1 << 20;
        for at in 0..EARLY_BYTES / mib {
            assert_eq!(t.device.faults_left(), 1, "there is little to write yet");
            t.write(object(0), at * mib, vec![1; mib as usize]).expect("writes");
        }
        t.write(object(1), 0, vec![1; 5000]).expect("writes");
        let synced = t.run(move |o| async move {
            if others {
                // This one gets the error; the object is taken out of use only after a commit of the log.
                let all = o.clone();
                o.osd().ctx().spawn(async move { drop(all.sync_all().await) });
                o.osd().ctx().yield_now().await;
            }
            o.sync(object(0)).await
        });
        assert_eq!(t.device.faults_left(), 0);
        assert_eq!(synced, Err(OsdError::Quarantined(object(0))), "others: {others}");
        assert_eq!(t.sync(object(1)), Ok(()));
    }
}

#[test]
fn a_full_device_refuses_the_write_and_keeps_what_was_there() {
    let device = CrashDevice::new(u64::MAX);
    let mut t = Target::format(&device);
    t.write(object(1), 0, vec![1; 5000]).expect("writes");
    t.settle();
    device.fail(Fault { op: FaultOp::Write, on: Some(FileKind::Blob), nth: 1, error: StoreError::NoSpace });
    assert_eq!(t.write(object(1), 4000, vec![2; 90_000]), Err(OsdError::NoSpace { needed_bytes: 90_000 }));
    let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
    assert_eq!((row.size, bytes), (5000, vec![1; 5000]));
    assert_eq!(t.check_rows(object(1)).1, []);
    t.write(object(1), 4000, vec![2; 90_000]).expect("there is room again");
    assert_eq!(t.check_rows(object(1)), (23, vec![]));
}

/// An object with many regions is destroyed or cut: the visit that does it does not walk all of them.
#[test]
fn a_large_object_goes_without_a_long_visit() {
    let device = CrashDevice::new(u64::MAX);
    let mut t = Target::format_with(&device, &OsdConfig { log_bytes_max: 64 << 20, ..config() });
    for n in 0..2 {
        for region in 0..6000u64 {
            t.write(object(n), region * (256 << 10), vec![1; 4096]).expect("writes");
        }
    }
    assert!(t.drive.osd().stats().rows_in_memory > 12_000, "they are in memory");
    let row = t.truncate(object(0), 5 * (256 << 10)).expect("cuts");
    assert_eq!(row.blocks, 5 * 8);
    t.destroy(object(1)).expect("destroys");
    let met = t.drive.osd().stats().range_rows_max;
    assert!(met <= 4096, "{met} rows in one visit");
    assert_eq!((t.check_rows(object(0)), t.check_rows(object(1))), ((5, vec![]), (0, vec![])));
    assert_eq!((t.usage(0), t.usage(1)), ((5 * 4096, 1), (0, 0)));
}
