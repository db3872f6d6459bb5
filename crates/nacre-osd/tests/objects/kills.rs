//! A script of changes that is stopped at each change of the device.

use crate::support::*;
use bytes::Bytes;
use nacre_node::WriteTo;
use nacre_osd::BLOCK_BYTES;
use nacre_testkit::CrashDevice;
use nacre_types::ObjectId;
use std::collections::BTreeMap;

type Models = BTreeMap<ObjectId, Model>;

/// Runs a script of changes until the device stops; returns the states after each acknowledged change, the first
/// being the empty one, and the one that was under way.
fn run_script(t: &mut Target) -> (Vec<Models>, Option<Models>) {
    let mut states: Vec<Models> = vec![BTreeMap::new()];
    for step in 0..14u32 {
        let id = object(step % 2);
        let mut next = states.last().expect("one is there").clone();
        let model = next.entry(id).or_default();
        let byte = step as u8 + 1;
        let objects = t.objects.clone();
        let done = match step {
            4 | 9 => {
                model.truncate(5000);
                t.drive.run(|_| async move {
                    commit(&objects, objects.prepare_truncate(id, 5000).await?, stamp(0)).await.map(drop)
                })
            }
            6 => {
                model.allocate(300_000, 10_000, true);
                t.drive.run(|_| async move {
                    let (prepared, ()) =
                        objects.prepare_allocate(id, 300_000, 10_000, true, &stamp(0), &at_any_time).await?;
                    commit(&objects, prepared, stamp(0)).await.map(drop)
                })
            }
            8 | 11 => t.drive.run(|_| async move { objects.sync(id).await }),
            12 => {
                next.remove(&id);
                t.drive.run(|_| async move {
                    commit(&objects, objects.prepare_destroy(id).await?, stamp(0)).await.map(drop)
                })
            }
            _ => {
                let offset = u64::from(step) * 3000;
                let data = vec![byte; 9000];
                model.write(offset, &data);
                t.drive.run(|_| async move {
                    let (prepared, ()) = objects
                        .prepare_write(id, offset, vec![Bytes::from(data)], WriteTo::Cache, &at_any_time)
                        .await?;
                    commit(&objects, prepared, stamp(0)).await.map(drop)
                })
            }
        };
        // A reply leaves only after the log bytes of its visit were written.
        let is_alive = t.drive.drive.ended().is_none();
        match done {
            Some(Ok(())) if is_alive => states.push(next),
            _ => return (states, Some(next)),
        }
    }
    (states, None)
}

fn is_same(t: &mut Target, state: &BTreeMap<ObjectId, Model>) -> bool {
    (0..2).all(|n| {
        let model = state.get(&object(n)).cloned().unwrap_or_default();
        let (row, bytes) = t.read(object(n), 0, 1 << 20).expect("reads");
        bytes == model.bytes && row.blocks == model.blocks.len() as u64 * 8
    })
}

/// Like `is_same`, but bytes may be of either state.
fn is_between(t: &mut Target, a: &BTreeMap<ObjectId, Model>, b: &BTreeMap<ObjectId, Model>) -> bool {
    (0..2).all(|n| {
        let (a, b) = (a.get(&object(n)), b.get(&object(n)));
        let bytes = t.read(object(n), 0, 1 << 20).expect("reads").1;
        let size = |m: Option<&Model>| m.map_or(0, |m| m.bytes.len());
        let at = |m: Option<&Model>, i: usize| m.and_then(|m| m.bytes.get(i)).copied().unwrap_or(0);
        (bytes.len() == size(a) || bytes.len() == size(b))
            && bytes.iter().enumerate().all(|(i, byte)| *byte == at(a, i) || *byte == at(b, i))
    })
}

#[test]
fn a_kill_at_any_change_of_the_device_loses_nothing_acknowledged_and_leaves_no_blob_behind() {
    let mut points = 0;
    loop {
        let device = CrashDevice::new(u64::MAX);
        let mut t = Target::format(&device);
        device.stop_after(points);
        let (states, under_way) = run_script(&mut t);
        let was_stopped = device.is_stopped();
        t = t.kill();
        t.settle();
        let acknowledged = states.last().expect("one is there");
        let what = format!("stopped after {points} changes, {} acknowledged", states.len() - 1);
        match &under_way {
            None => assert!(is_same(&mut t, acknowledged), "{what}"),
            Some(next) => assert!(is_between(&mut t, acknowledged, next), "{what}"),
        }
        let mut used = 0;
        for n in 0..2 {
            let (allocated, _) = t.check_rows(object(n));
            let row = t.read(object(n), 0, 0).expect("reads").0;
            assert_eq!(row.blocks, allocated * 8, "{what}");
            used += allocated * BLOCK_BYTES;
            let has_row = row.version != 0;
            assert!(has_row || t.blob_len(object(n)).is_none(), "{what}: blob {n} without a row");
        }
        assert_eq!(t.usage(0).0, used, "{what}: account");
        // Whatever was cut off, the target goes on.
        t.write(object(0), 123, vec![9; 100]).expect("writes");
        t.truncate(object(1), 1 << 20).expect("truncates");
        let (_, bytes) = t.read(object(1), 0, 2 << 20).expect("reads");
        let old = acknowledged.get(&object(1)).map_or(0, |m| m.bytes.len());
        let new = under_way.as_ref().and_then(|s| s.get(&object(1))).map_or(0, |m| m.bytes.len());
        assert!(bytes[old.max(new)..].iter().all(|&b| b == 0), "{what}: bytes beyond the size came to light");
        if !was_stopped {
            break;
        }
        points += 1;
    }
    assert!(points >= 30, "{points}");
}
