//! Random changes, restarts, losses of the machine and concurrent writers, compared with the model.

use crate::support::*;
use bytes::Bytes;
use nacre_node::{Rng, WriteTo};
use nacre_osd::object_rows::{BlockRow, block_key, region_of_key};
use nacre_osd::{BLOCK_BYTES, table};
use nacre_testkit::CrashDevice;
use nacre_types::ObjectId;
use std::collections::BTreeMap;
use std::rc::Rc;

#[test]
fn random_changes_and_restarts_match_a_model() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let mut models = BTreeMap::new();
        for step in 0..120 {
            let id = change(&mut t, &mut models, &mut rng, step);
            match rng.below(12) {
                0 => t = t.kill(),
                1 => t.settle(),
                2 => t.sync(id).expect("syncs"),
                _ => {}
            }
            let what = format!("seed {seed}, step {step}, {id}");
            if rng.below(3) == 0 {
                compare(&mut t, id, &models[&id], &what);
            }
            let model = &models[&id];
            let (from, n) = (place(&mut rng, model.bytes.len() as u64), rng.below(20_000));
            let (_, got) = t.read(id, from, n as u32).expect("reads");
            let expected = model.bytes.iter().skip(from as usize).take(n as usize);
            assert!(got.iter().eq(expected), "{what}: read of {n} at {from}");
        }
        for (id, model) in &models {
            compare(&mut t, *id, model, &format!("seed {seed}, end, {id}"));
        }
        for n in 0..3 {
            let model = models.get(&object(n));
            let bytes = model.map_or(0, |m| m.blocks.len() as u64 * BLOCK_BYTES);
            assert_eq!(t.usage(n).0, bytes, "seed {seed}: account of {n}");
        }
        t.settle();
        let reclaim = t.drive.run(|osd| async move { osd.scan(table::RECLAIM, &[], &[], 10).await.unwrap() });
        assert_eq!(reclaim.unwrap().len(), 0, "nothing is left to cut");
        for n in 0..3 {
            let end = models.get(&object(n)).and_then(|m| m.blocks.last().map(|b| (b + 1) * BLOCK_BYTES));
            let size = models.get(&object(n)).map_or(0, |m| (m.bytes.len() as u64).max(m.freed_to));
            assert!(
                t.blob_len(object(n)).unwrap_or(0) <= end.unwrap_or(0).max(size),
                "seed {seed}: {n} is cut"
            );
        }
    }
}

#[test]
fn what_was_synced_survives_the_machine_and_the_rest_is_some_version() {
    for seed in 0..30 {
        let mut rng = Rng::new(1000 + seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        let mut models: BTreeMap<ObjectId, Model> = BTreeMap::new();
        // Every version ever: where bytes of a write that is in the log were lost, older ones may show.
        let mut history: BTreeMap<ObjectId, Vec<Vec<u8>>> = BTreeMap::new();
        for round in 0..4 {
            // Every version since the last sync of each object, and which blocks were written since.
            let mut versions: BTreeMap<ObjectId, Vec<Vec<u8>>> = BTreeMap::new();
            for n in 0..3 {
                t.sync(object(n)).expect("syncs");
                let model = models.entry(object(n)).or_default();
                versions.insert(object(n), vec![model.bytes.clone()]);
            }
            for step in 0..rng.below(12) {
                let id = change(&mut t, &mut models, &mut rng, step + round * 50);
                let list = versions.get_mut(&id).expect("all are there");
                if rng.below(5) == 0 {
                    t.sync(id).expect("syncs");
                    // The log was synced for all, but the bytes of this object only.
                    list.clear();
                }
                list.push(models[&id].bytes.clone());
                history.entry(id).or_default().push(models[&id].bytes.clone());
                if rng.below(6) == 0 {
                    t.settle();
                }
            }
            t = t.power_loss(&mut rng);
            if round % 2 == 0 {
                t.start_rechecksum();
            }
            for n in 0..3 {
                let id = object(n);
                let (row, got) = t.read(id, 0, 2 << 20).expect("reads");
                let list = &versions[&id];
                let what = format!("seed {seed}, round {round}, {id}");
                assert!(list.iter().any(|v| v.len() as u64 == row.size), "{what}: size {}", row.size);
                let old = history.entry(id).or_default();
                for (i, byte) in got.iter().enumerate() {
                    let at = |v: &Vec<u8>| v.get(i).copied().unwrap_or(0);
                    if list.iter().any(|v| at(v) == *byte) {
                        continue;
                    }
                    let changed = list.iter().any(|v| v.get(i) != list[0].get(i));
                    let is_old = *byte == 0 || old.iter().any(|v| at(v) == *byte);
                    assert!(changed && is_old, "{what}: byte {i} is {byte}");
                }
                old.push(got.clone());
                // Go on from what there is.
                let model = models.entry(id).or_default();
                model.bytes = got;
                let rows = t.drive.run(move |osd| async move {
                    let (from, to) = (block_key(id, 0), block_key(id, u64::MAX));
                    osd.scan(table::BLOCK, &from, &to, u32::MAX).await.unwrap()
                });
                model.blocks.clear();
                model.written.clear();
                for (key, value) in rows.expect("lives") {
                    let region = region_of_key(&key).expect("a key");
                    let row = BlockRow::decode(&value).expect("a row");
                    let of = |mask: u64| {
                        (0..64).filter(move |i| mask & (1 << i) != 0).map(move |i| region * 64 + i)
                    };
                    model.blocks.extend(of(row.allocated));
                    model.written.extend(of(row.written));
                }
            }
        }
    }
}

#[test]
fn concurrent_writers_of_one_object_end_in_the_order_of_their_transnos() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut t = Target::format(&CrashDevice::new(u64::MAX));
        t.drive.drive.shuffle = Some(Rng::new(seed + 7));
        let id = object(1);
        let log = Rc::new(std::cell::RefCell::new(BTreeMap::new()));
        let mut model = Model::default();
        for round in 0..5 {
            for i in 0..8 {
                let (o, log) = (t.objects.clone(), log.clone());
                let size = model.bytes.len() as u64;
                let (offset, bytes, is_cut) =
                    (place(&mut rng, size), data(&mut rng, round * 8 + i), rng.below(5) == 0);
                let gives_up = rng.below(8) == 0;
                t.drive.start(move |osd| async move {
                    let mut prepared = if is_cut {
                        o.prepare_truncate(id, offset).await.expect("prepares")
                    } else {
                        o.prepare_write(
                            id,
                            offset,
                            vec![Bytes::from(bytes.clone())],
                            WriteTo::Cache,
                            &at_any_time,
                        )
                        .await
                        .expect("prepares")
                        .0
                    };
                    if gives_up && is_cut {
                        return;
                    }
                    let pins = prepared.take_pins();
                    let room = osd.reserve(prepared.credits()).await.expect("room");
                    let (transno, _) =
                        osd.transact(&pins, room, |tx| prepared.apply(tx, &stamp(1))).expect("applies");
                    log.borrow_mut().insert(transno, (offset, bytes, is_cut));
                });
            }
            t.settle();
            for (_, (offset, bytes, is_cut)) in log.take() {
                if is_cut {
                    model.truncate(offset);
                } else {
                    model.write(offset, &bytes);
                }
            }
            compare(&mut t, id, &model, &format!("seed {seed}, round {round}"));
        }
    }
}
