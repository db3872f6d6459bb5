//! Syncs whose bytes are in the log, beside other changes and syncs of the same blocks, stopped after each store operation.

use crate::support::*;
use bytes::Bytes;
use nacre_node::Rng;
use nacre_node::WriteTo;
use nacre_osd::{OsdError, table};
use nacre_testkit::CrashDevice;
use nacre_types::{ObjectId, Transno};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const TASKS: u64 = 4;
const CHANGES_PER_TASK: u64 = 6;
const STRIDE: u64 = 5;
const SEEDS: u64 = 8;

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

/// What the tasks of a run have done so far.
#[derive(Default)]
struct Done {
    /// In the order in which they were applied.
    changes: RefCell<Vec<(Transno, Change)>>,
    /// Changes that have begun, each with whether it was applied.
    begun: RefCell<Vec<(Change, bool)>>,
    /// A sync has reported changes up to this one as durable: as of now, and as of the last visit that was logged.
    synced: Cell<Transno>,
    synced_logged: Cell<Transno>,
    /// The number of changes that were applied in visits that were logged.
    acknowledged: Cell<usize>,
    changes_left: Cell<u64>,
}

impl Done {
    /// The bytes after each change, the first before all of them.
    fn versions(&self) -> Vec<(Transno, Vec<u8>)> {
        let mut changes = self.changes.borrow().clone();
        changes.sort_by_key(|(transno, _)| *transno);
        let mut versions = vec![(Transno(0), Vec::new())];
        for (transno, change) in changes {
            let mut model =
                Model { bytes: versions.last().expect("one is there").1.clone(), ..Model::default() };
            match change {
                Change::Write(offset, data) => model.write(offset, &data),
                Change::Truncate(size) => model.truncate(size),
            }
            versions.push((transno, model.bytes));
        }
        versions
    }
    /// Whether a write that was not applied may have left this byte there.
    fn may_be_under_way(&self, at: usize, byte: u8) -> bool {
        self.begun.borrow().iter().any(|(change, is_applied)| match change {
            Change::Write(offset, data) if !is_applied => {
                at.checked_sub(*offset as usize).and_then(|at| data.get(at)) == Some(&byte)
            }
            _ => false,
        })
    }
}

async fn change(
    t: &Rc<nacre_osd::Objects>,
    done: &Done,
    id: ObjectId,
    change: Change,
) -> Result<(), OsdError> {
    let nth = done.begun.borrow().len();
    done.begun.borrow_mut().push((change.clone(), false));
    let mut prepared = match &change {
        Change::Write(offset, data) => {
            let data = vec![Bytes::from(data.clone())];
            t.prepare_write::<(), OsdError>(id, *offset, data, WriteTo::Cache, &at_any_time).await?.0
        }
        Change::Truncate(size) => t.prepare_truncate(id, *size).await?,
    };
    let pins = prepared.take_pins();
    let room = t.osd().reserve(prepared.credits()).await?;
    let (transno, _) = t.osd().transact(&pins, room, |tx| prepared.apply(tx, &stamp(1)))?;
    done.begun.borrow_mut()[nth].1 = true;
    done.changes.borrow_mut().push((transno, change));
    Ok(())
}

/// Starts tasks that change and sync one object. `cuts`: some of them truncate it.
fn start_tasks(t: &mut Target, seed: u64, cuts: bool) -> Rc<Done> {
    let done = Rc::new(Done { changes_left: Cell::new(TASKS * CHANGES_PER_TASK), ..Done::default() });
    for task in 0..TASKS {
        let (o, done) = (t.objects.clone(), done.clone());
        let mut rng = Rng::new(seed * 100 + task);
        t.drive.start(move |osd| async move {
            for nth in 0..CHANGES_PER_TASK {
                let last = osd.last_transno();
                let result = match rng.below(10) {
                    0..=4 => {
                        let offset = rng.below(4) * 4096 + [0, rng.below(4096)][rng.below(2) as usize];
                        let len = [4096, 1 + rng.below(300), 1 + rng.below(6000)][rng.below(3) as usize];
                        let data = vec![(1 + task * CHANGES_PER_TASK + nth) as u8; len as usize];
                        change(&o, &done, object(1), Change::Write(offset, data)).await
                    }
                    5 if cuts => change(&o, &done, object(1), Change::Truncate(rng.below(18_000))).await,
                    6 => o.sync_all().await,
                    _ => {
                        let synced = o.sync(object(1)).await;
                        if synced.is_ok() {
                            done.synced.set(done.synced.get().max(last));
                        }
                        synced
                    }
                };
                if result.is_err() {
                    return;
                }
                done.changes_left.set(done.changes_left.get() - 1);
            }
        });
    }
    done
}
fn is_over(t: &Target, done: &Done) -> bool {
    done.changes_left.get() == 0 || t.drive.drive.ended().is_some()
}
fn logged_rows(t: &mut Target) -> usize {
    t.run(|o| async move { o.osd().scan(table::LOGGED, &[], &[], u32::MAX).await.expect("rows").len() })
}
/// Runs the tasks of a seed until the device has stopped after so many changes; returns whether they have ended before.
fn run_until(seed: u64, stop_after: u64, cuts: bool) -> (Target, Rc<Done>, bool) {
    let device = CrashDevice::new(u64::MAX);
    let mut t = Target::format(&device);
    t.drive.drive.shuffle = Some(Rng::new(seed + 7));
    device.stop_after(stop_after);
    let done = start_tasks(&mut t, seed, cuts);
    while !is_over(&t, &done) && t.drive.drive.step() {
        // What was done in a visit whose log bytes were not written was reported to nobody.
        if t.drive.drive.ended().is_none() {
            done.acknowledged.set(done.changes.borrow().len());
            done.synced_logged.set(done.synced.get());
        }
    }
    let is_whole = !device.is_stopped();
    (t, done, is_whole)
}

/// Each byte is that of one of the versions from the number `first` on, or of a write that was not applied. `cuts`: where
/// the object was truncated since, a byte may be zero, or older.
fn check_bytes(
    t: &mut Target,
    done: &Done,
    versions: &[(Transno, Vec<u8>)],
    first: usize,
    cuts: bool,
    what: &str,
) {
    let (row, bytes) = t.read(object(1), 0, 1 << 20).expect("reads");
    let later = &versions[first..];
    assert!(later.iter().any(|(_, v)| v.len() as u64 == row.size), "{what}: size {}", row.size);
    for (at, &byte) in bytes.iter().enumerate() {
        let is_of = |versions: &[(Transno, Vec<u8>)]| {
            versions.iter().rev().any(|(_, v)| v.get(at).copied().unwrap_or(0) == byte)
        };
        if is_of(later) || done.may_be_under_way(at, byte) {
            continue;
        }
        let is_changed = later.iter().any(|(_, v)| v.get(at) != later[0].1.get(at));
        assert!(cuts && is_changed && (byte == 0 || is_of(versions)), "{what}: byte {at} is {byte}");
    }
}

/// A sync beside the write-back of the same object must not leave a row that nobody deletes.
#[test]
fn no_row_stays_behind_when_everything_has_been_written_back() {
    for seed in 0..100 {
        let (mut t, _, is_over) = run_until(seed, u64::MAX / 2, seed % 2 == 0);
        assert!(is_over);
        t.settle();
        assert_eq!(logged_rows(&mut t), 0, "seed {seed}");
    }
}

#[test]
fn a_machine_that_is_lost_after_any_store_operation_keeps_what_a_sync_has_reported() {
    for seed in 0..SEEDS {
        let cuts = seed % 4 == 3;
        for changes in (seed % STRIDE..).step_by(STRIDE as usize) {
            let (t, done, is_over) = run_until(seed, changes, cuts);
            let what = format!("seed {seed}, stopped after {changes} changes");
            let mut t = t.power_loss(&mut Rng::new(seed ^ changes));
            let versions = done.versions();
            let first = versions.iter().rposition(|(at, _)| *at <= done.synced_logged.get()).unwrap_or(0);
            check_bytes(&mut t, &done, &versions, first, cuts, &what);
            t.start_rechecksum();
            assert_eq!(logged_rows(&mut t), 0, "{what}");
            let mut t = t.power_loss(&mut Rng::new(seed));
            check_bytes(&mut t, &done, &versions, first, cuts, &what);
            if is_over {
                break;
            }
        }
    }
}

#[test]
fn a_process_that_is_killed_after_any_store_operation_keeps_what_was_acknowledged() {
    for seed in 0..SEEDS {
        for changes in (seed % STRIDE..).step_by(STRIDE as usize) {
            let (t, done, is_over) = run_until(seed, changes, false);
            let what = format!("seed {seed}, stopped after {changes} changes");
            let mut t = t.kill();
            let (versions, first) = (done.versions(), done.acknowledged.get());
            check_bytes(&mut t, &done, &versions, first, false, &what);
            if is_over {
                break;
            }
        }
    }
}

/// An older row must not take a write away of which only the next one was under way.
#[test]
fn a_write_that_was_under_way_when_the_process_was_killed_takes_no_other_away() {
    let mut t = Target::format(&CrashDevice::new(u64::MAX));
    t.write(object(1), 0, vec![1; 1000]).expect("writes");
    t.sync(object(1)).expect("syncs");
    t.write(object(1), 0, vec![2; 1000]).expect("writes");
    t.run(|o| async move {
        let under_way = o
            .prepare_write(object(1), 100, vec![Bytes::from(vec![3; 100])], WriteTo::Cache, &at_any_time)
            .await;
        core::mem::forget(under_way.expect("prepares"));
    });
    let mut t = t.kill();
    let bytes = t.read(object(1), 0, 1 << 20).expect("reads").1;
    assert!(bytes[..100] == [2; 100] && bytes[200..] == [2; 800], "{bytes:?}");
}
