//! Many objects that are synced in one step.

use crate::support::*;
use nacre_node::{FileKind, Rng, StoreError, WriteTo};
use nacre_osd::OsdError;
use nacre_testkit::{CrashDevice, Fault, FaultOp};

const OBJECTS: u32 = 200;

fn with_small_objects() -> Target {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    for n in 0..OBJECTS {
        t.write(object(n), 0, vec![n as u8; 3901]).expect("writes");
    }
    t
}
fn assert_intact(t: &mut Target, n: u32) {
    assert_eq!(t.read(object(n), 0, 5000).expect("reads").1, vec![n as u8; 3901], "{n}");
}

#[test]
fn small_objects_take_one_step_and_survive_the_machine() {
    let mut t = with_small_objects();
    let before = t.device.changes();
    make_durable(&mut t);
    assert!(t.device.changes() - before < 20, "{} operations", t.device.changes() - before);
    let mut t = t.power_loss(&mut Rng::new(1));
    (0..OBJECTS).for_each(|n| assert_intact(&mut t, n));
}

/// The error of the step says nothing of the objects; their own syncs find the one whose bytes are lost.
#[test]
fn an_error_of_the_step_costs_only_the_object_that_it_belongs_to() {
    let mut t = with_small_objects();
    let error = StoreError::Device("EIO".into());
    t.device.fail(Fault { op: FaultOp::Sync, on: Some(FileKind::Blob), nth: 50, error });
    make_durable(&mut t);
    assert_eq!(t.device.faults_left(), 0);
    let mut t = t.power_loss(&mut Rng::new(2));
    let lost: Vec<u32> = (0..OBJECTS)
        .filter(|n| t.read(object(*n), 0, 10) == Err(OsdError::Quarantined(object(*n))))
        .collect();
    assert_eq!(lost.len(), 1, "{lost:?}");
    (0..OBJECTS).filter(|n| !lost.contains(n)).for_each(|n| assert_intact(&mut t, n));
}

#[test]
fn an_object_without_its_bytes_is_found_by_the_step() {
    let mut t = with_small_objects();
    make_durable(&mut t);
    for n in 0..OBJECTS {
        t.write(object(n), 4096, vec![9; 10]).expect("writes");
    }
    let short = nacre_node::FileId::Blob(object(7));
    t.damage(nacre_node::StoreOp::Truncate { file: short, len: 100 });
    make_durable(&mut t);
    assert!(matches!(t.sync(object(7)), Ok(()) | Err(OsdError::Lost { .. })));
    let read = t.read(object(7), 0, 5000);
    assert!(matches!(read, Err(OsdError::Lost { .. } | OsdError::Damaged { .. })), "{read:?}");
    for n in (0..OBJECTS).filter(|n| *n != 7) {
        assert_eq!(t.read(object(n), 4096, 10).expect("reads").1, [9; 10]);
    }
}

/// How far bytes are stable is recorded by a row. A further sync comes before that row is committed: it commits the row itself,
/// because its caller, a client without room for more bytes, would stand still until the timer of commits.
#[test]
fn a_sync_that_follows_another_one_does_not_wait_for_the_timer_of_commits() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    let times = t.run(|o| async move {
        let mut times = Vec::new();
        for n in 0..3 {
            let data = vec![bytes::Bytes::from(vec![1; 100_000])];
            let write = o.prepare_write(object(n), 0, data, WriteTo::Cache, &at_any_time);
            let (prepared, ()) = write.await.expect("prepares");
            commit(&o, prepared, stamp(n)).await.expect("writes");
            let began = o.osd().ctx().now();
            o.sync_all().await.expect("syncs");
            times.push(o.osd().ctx().now().saturating_since(began).as_millis());
        }
        times
    });
    assert!(times.iter().all(|ms| *ms < 100), "{times:?} ms");
}
