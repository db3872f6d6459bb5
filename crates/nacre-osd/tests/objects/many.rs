//! Many writes of many objects in one transaction.

use crate::support::*;
use bytes::Bytes;
use nacre_node::{FileKind, Rng, StoreError};
use nacre_osd::{Credits, ObjectRow, ObjectWrites, OsdError};
use nacre_testkit::{CrashDevice, Fault, FaultOp};
use nacre_types::ObjectId;
use std::collections::BTreeMap;

/// Random calls for three objects, several at a time, beside the model; with a loss of the machine at the end.
#[test]
fn many_writes_of_many_objects_match_a_model() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let mut models: BTreeMap<ObjectId, Model> = BTreeMap::new();
        for step in 0..20 {
            let mut all = Vec::new();
            // Calls that are under way together write other objects, or the same ones at other places.
            for call in 0..1 + rng.below(3) {
                let mut writes = Vec::new();
                for n in 0..3 {
                    let model = models.entry(object(n)).or_default();
                    let mut of_object = many_writes(&mut rng, model.bytes.len() as u64, step);
                    of_object.iter_mut().for_each(|(offset, _)| *offset += call << 20);
                    of_object.iter().for_each(|(offset, data)| model.write(*offset, data));
                    writes.push((object(n), of_object));
                }
                writes.sort_by_key(|(object, _)| *object);
                all.push(writes);
            }
            t.run(move |o| async move {
                let calls = all.into_iter().map(|writes| write_many(&o, writes));
                for rows in nacre_node::join_all(calls).await {
                    assert!(rows.expect("prepares").iter().all(Result::is_ok));
                }
            });
            for (id, model) in &models {
                let size = t.read(*id, 0, 1).expect("reads").0.size;
                assert_eq!(size, model.bytes.len() as u64, "seed {seed}, step {step}, {id}");
            }
        }
        for lost in [false, true] {
            for (id, model) in &models {
                let mut bytes = Vec::new();
                while bytes.len() < model.bytes.len() {
                    bytes.extend(t.read(*id, bytes.len() as u64, 1 << 20).expect("reads").1);
                }
                let differ = bytes.iter().zip(&model.bytes).position(|(a, b)| a != b);
                assert_eq!(differ, None, "seed {seed}, {id}, after a loss: {lost}");
                assert_eq!(t.check_rows(*id).1, [], "seed {seed}, {id}: sums");
            }
            make_durable(&mut t);
            t = t.power_loss(&mut rng);
        }
    }
}

#[test]
fn one_transaction_has_all_writes() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(0), 0, vec![1; 5000]).expect("writes");
    let transno = |t: &mut Target| t.drive.run(|osd| async move { osd.last_transno().0 }).expect("lives");
    let before = transno(&mut t);
    // Beyond the size, in the block of the size, twice in one block, in a hole.
    let writes = [(100, 10), (200, 10), (4990, 10), (6000, 100), (9000, 50), (20_000, 4096), (400_000, 1)];
    let parts = |n: u8| writes.map(|(offset, len)| (offset, vec![n; len])).to_vec();
    for row in t.write_many(vec![(object(0), parts(2)), (object(1), parts(4)), (object(2), parts(3))]) {
        assert_eq!(row.expect("writes").size, 400_001);
    }
    assert_eq!(transno(&mut t) - before, 1);
    for (id, first, n) in [(object(0), 1, 2), (object(2), 0, 3), (object(1), 0, 4)] {
        let mut expected = vec![0; 400_001];
        expected[..5000].fill(first);
        writes.iter().for_each(|(offset, len)| expected[*offset as usize..*offset as usize + len].fill(n));
        let (_, bytes) = t.read(id, 0, 500_000).expect("reads");
        assert!(bytes == expected, "{id}");
        assert_eq!(t.check_rows(id).1, []);
    }
}

/// A device without room for one object: that one is as before, the others are written.
#[test]
fn an_object_that_cannot_be_written_does_not_hold_the_others_up() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in [0, 2] {
        t.write(object(n), 0, vec![1; 20_000]).expect("writes");
    }
    make_durable(&mut t);
    // The fourth write is the second one of the second object.
    let error = StoreError::NoSpace;
    t.device.fail(Fault { op: FaultOp::Write, on: Some(FileKind::Blob), nth: 4, error });
    let parts = |n: u8| vec![(5000, vec![n; 10]), (6000, vec![n; 4000]), (19_000, vec![n; 5000])];
    let rows = t.write_many(vec![(object(0), parts(2)), (object(2), parts(2))]);
    assert!(matches!(rows[1], Err(OsdError::NoSpace { .. })), "{rows:?}");
    assert_eq!(rows[0].as_ref().map(|row| row.size), Ok(24_000));
    t.settle();
    let (row, bytes) = t.read(object(2), 0, 100_000).expect("reads");
    assert_eq!(row.size, 20_000, "it never was");
    assert!(bytes[..5000].iter().all(|&b| b == 1));
    assert_eq!(t.check_rows(object(2)).1, []);
    for (id, fill) in [(object(2), 3), (object(0), 4)] {
        t.write(id, 5000, vec![fill; 10]).expect("it can be written again");
    }
}

/// What is given up between its bytes and its transaction leaves sums that fit.
#[test]
fn many_writes_that_are_given_up_leave_sums_that_fit() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(0), 0, vec![1; 10_000]).expect("writes");
    t.run(|o| async move {
        let write = |offset, len| (offset, vec![Bytes::from(vec![2; len])]);
        let writes = [object(0), object(2)]
            .map(|object| ObjectWrites { object, writes: vec![write(10, 10), write(9000, 20_000)] });
        drop(o.prepare_many(writes.into(), Credits::default(), &at_any_time).await.expect("prepares"));
    });
    t.settle();
    assert_eq!(t.read(object(0), 0, 1).expect("reads").0.size, 10_000, "it never was");
    assert_eq!(t.check_rows(object(0)).1, []);
    assert_eq!(t.read(object(2), 0, 100).expect("reads").0, ObjectRow::default());
    assert_eq!(t.blob_len(object(2)), None);
}

/// Two calls that name the same objects, and a reader of one of them: no circle.
#[test]
fn calls_for_the_same_objects_do_not_wait_for_each_other_in_a_circle() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    let rows = t.run(|o| async move {
        let o = &o;
        let calls = (0..20u8).map(async |nth: u8| {
            // Other bytes of the same blocks.
            let parts = |at: u64| vec![(at, vec![nth; 100]), (at + 50_000, vec![nth; 100])];
            let at = u64::from(nth) * 150;
            write_many(o, vec![(object(0), parts(at)), (object(1), parts(at)), (object(2), parts(at))]).await
        });
        nacre_node::join_all(calls).await
    });
    assert!(rows.into_iter().all(|rows| rows.is_ok_and(|rows| rows.iter().all(Result::is_ok))));
    for n in 0..3 {
        let (row, bytes) = t.read(object(n), 0, 100_000).expect("reads");
        assert_eq!(row.size, 50_000 + 19 * 150 + 100);
        for nth in 0..20 {
            let at = nth * 150;
            assert!(bytes[at..at + 100].iter().all(|&b| b == nth as u8), "{n} {nth}");
        }
        assert_eq!(t.check_rows(object(n)).1, []);
    }
}
