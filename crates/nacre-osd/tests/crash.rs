//! Every change of the device is a crash point: of the process, and of the machine.
//!
//! Promise: after a kill everything whose log bytes were written is there; after a power loss a prefix of the
//! transactions is there, and nothing that was synced is missing. Also when the recovery crashes again.

#![allow(clippy::unwrap_used, reason = "a test")]

use nacre_node::{FileId, FileKind, Rng, StoreDone, StoreError, StoreOp};
use nacre_osd::{Credits, Osd, OsdConfig, OsdError, Table};
use nacre_testkit::{CrashDevice, Fault, FaultOp, OsdDrive};
use nacre_types::{Owner, Transno};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

const T: Table = Table(33);
const TRANSACTIONS: u64 = 190;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

enum Op {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// What transaction `n` does: a function of its number.
fn ops(n: u64) -> Vec<Op> {
    let mut rng = Rng::new(n);
    let key = |rng: &mut Rng| vec![1, rng.below(40) as u8];
    let mut ops = vec![Op::Put(vec![0], n.to_le_bytes().to_vec())];
    for _ in 0..rng.below(4) {
        ops.push(match rng.below(8) {
            0 => Op::Delete(key(&mut rng)),
            1 => Op::DeleteRange(key(&mut rng), key(&mut rng)),
            _ => Op::Put(key(&mut rng), vec![n as u8; rng.below(500) as usize]),
        });
    }
    ops
}
fn rows_after(n: u64) -> Rows {
    let mut rows = Rows::new();
    for op in (1..=n).flat_map(ops) {
        match op {
            Op::Put(k, v) => drop(rows.insert(k, v)),
            Op::Delete(k) => drop(rows.remove(&k)),
            Op::DeleteRange(a, b) => rows.retain(|k, _| *k < a || *k >= b),
        }
    }
    rows
}
fn config() -> OsdConfig {
    OsdConfig {
        dirty_bytes_max: 9 << 10,
        cache_bytes_max: 4 << 10,
        log_bytes_max: 512 << 10,
        ballast_bytes: 1 << 20,
        ..OsdConfig::default()
    }
}

/// How far a life came: transactions acknowledged (their visit has ended), and known to be durable.
#[derive(Default)]
struct Progress {
    acknowledged: Cell<u64>,
    durable: Cell<u64>,
}

async fn work(osd: Rc<Osd>, from: u64, to: u64, progress: Rc<Progress>) {
    for n in from..=to {
        let ops = ops(n);
        let keys = ops.iter().filter_map(|op| match op {
            Op::Put(k, _) | Op::Delete(k) => Some((T, &k[..])),
            Op::DeleteRange(..) => None,
        });
        let keys = keys.collect::<Vec<_>>();
        let Ok(pins) = osd.fetch(&keys).await else { return };
        let credits = Credits { rows: 5, row_bytes: 2500, ..Credits::default() };
        let Ok(room) = osd.reserve(credits).await else { return };
        let done = osd.transact(&pins, room, |tx| {
            for op in &ops {
                match op {
                    Op::Put(k, v) => tx.put(T, k, v.clone()),
                    Op::Delete(k) => tx.delete(T, k),
                    Op::DeleteRange(a, b) => tx.delete_range(T, a, b),
                }
            }
            tx.account(Owner { uid: 1, gid: 1, projid: 1 }, 1, 0);
            Ok::<_, ()>(())
        });
        let (transno, ()) = done.unwrap();
        // The visit ends here: the rest runs only if the log bytes were written.
        osd.ctx().sleep(std::time::Duration::from_nanos(1)).await;
        progress.acknowledged.set(n);
        if n % 13 == 0 && osd.commit(transno).await.is_ok() {
            progress.durable.set(n);
        }
    }
    osd.commit(osd.last_transno()).await.ok();
}

/// Opens, and checks that the rows are those after some number of transactions; that number.
fn check(device: &CrashDevice, what: &str) -> u64 {
    let store = device.store();
    let mut d = OsdDrive::open(&store, &config()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let (rows, usage) =
        d.run(|osd| async move {
            (osd.scan(T, b"", b"", u32::MAX).await.unwrap(), osd.usage(0, 1).await.unwrap())
        })
        .unwrap();
    let rows: Rows = rows.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
    let n = rows.get(&vec![0]).map_or(0, |v| u64::from_le_bytes(v[..].try_into().unwrap()));
    assert!(rows == rows_after(n), "{what}: the rows are not those after {n} transactions");
    assert_eq!(usage.0, n, "{what}: accounting");
    assert_eq!(d.osd().last_transno(), Transno(n), "{what}");
    n
}

/// One life that stops after `changes` changes of the device; `None` if it came to its end before.
fn life(device: &CrashDevice, from: u64, changes: u64) -> Option<Rc<Progress>> {
    let progress = Rc::new(Progress::default());
    progress.acknowledged.set(from - 1);
    progress.durable.set(from - 1);
    let store = device.store();
    device.stop_after(changes);
    if let Ok(mut d) = OsdDrive::open(&store, &config()) {
        d.drive.shuffle = Some(Rng::new(changes));
        let p = progress.clone();
        if d.run(move |osd| work(osd, from, TRANSACTIONS, p)).is_some() && !device.is_stopped() {
            let stats = d.osd().stats();
            assert!(from > 1 || stats.merges > 0 && stats.flushes > 9, "{stats:?}");
            return None;
        }
    }
    Some(progress)
}

fn fresh() -> CrashDevice {
    let device = CrashDevice::new(1 << 30);
    OsdDrive::format(&device.store(), &config(), false).unwrap();
    device
}

/// `stride`: every which point.
fn crash_everywhere(
    first: u64,
    stride: usize,
    seed: u64,
    lose: impl Fn(&CrashDevice, &mut Rng),
) -> (u64, u64) {
    let (mut points, mut rolled_back) = (0, 0);
    for changes in (first..).step_by(stride) {
        let device = fresh();
        let Some(progress) = life(&device, 1, changes) else { return (points, rolled_back) };
        points += 1;
        let mut rng = Rng::new(seed + changes);
        lose(&device, &mut rng);
        // Recovery may crash, too.
        for again in 0..rng.below(3) {
            let store = device.store();
            device.stop_after(rng.below(12));
            drop(OsdDrive::open(&store, &config()));
            let _ = again;
            lose(&device, &mut rng);
        }
        let n = check(&device, &format!("after {changes} changes"));
        let (acknowledged, durable) = (progress.acknowledged.get(), progress.durable.get());
        assert!(n >= durable, "after {changes} changes: {n} of {durable} durable transactions are there");
        assert!(
            n <= acknowledged + 1,
            "after {changes} changes: {n} are there, {acknowledged} were acknowledged"
        );
        rolled_back += u64::from(n < acknowledged);
        // Life goes on, and one more crash hurts nobody.
        if let Some(progress) = life(&device, n + 1, 40) {
            lose(&device, &mut rng);
            let n2 = check(&device, &format!("after {changes} changes and a second life"));
            assert!(n2 >= progress.durable.get());
        }
    }
    unreachable!("the work ends");
}

#[test]
fn a_killed_process_finds_everything_acknowledged() {
    for changes in (1u64..).step_by(3) {
        let device = fresh();
        let Some(progress) = life(&device, 1, changes) else {
            assert!(changes > 200);
            return;
        };
        device.kill_process();
        let n = check(&device, &format!("after {changes} changes"));
        let acknowledged = progress.acknowledged.get();
        assert!(
            n == acknowledged || n == acknowledged + 1,
            "after {changes} changes: {n}, {acknowledged} were acknowledged"
        );
    }
}

#[test]
fn after_a_power_loss_a_prefix_is_there_and_nothing_synced_is_missing() {
    let (points, rolled_back) = crash_everywhere(1, 1, 0, |device, rng| device.power_loss(rng));
    assert!(points > 150 && rolled_back > 20, "{points} points, {rolled_back} rolled back");
    // Segments of ended epochs that were deleted and came back broke the chain of the others.
    for seed in [100_000, 600_000, 800_000] {
        crash_everywhere(205, 1, seed, |device, rng| device.power_loss(rng));
    }
}

/// Found out in any way, by a task that would go on trying or by a request: the island ends with that visit.
#[test]
fn a_store_whose_files_were_removed_ends_the_island_at_once() {
    for (op, on) in
        [(FaultOp::Create, FileKind::Log), (FaultOp::Sync, FileKind::Log), (FaultOp::Write, FileKind::Run)]
    {
        let device = fresh();
        let mut d = OsdDrive::open(&device.store(), &config()).unwrap();
        device.fail(Fault { op, on: Some(on), nth: 1, error: StoreError::Gone("log/2".into()) });
        let progress = Rc::new(Progress::default());
        let p = progress.clone();
        d.run(move |osd| work(osd, 1, 400, p));
        let why = d.drive.ended().unwrap_or_else(|| panic!("{op:?} of {on:?} ended nothing"));
        assert!(why.contains("files were removed from the store") && why.contains("log/2"), "{why}");
    }
}

#[test]
fn a_failed_log_sync_or_write_stops_the_engine_and_is_not_tried_again() {
    for op in [FaultOp::Sync, FaultOp::Write] {
        let device = fresh();
        let store = device.store();
        let mut d = OsdDrive::open(&store, &config()).unwrap();
        let error = StoreError::Device("broken".into());
        device.fail(Fault { op, on: Some(FileKind::Log), nth: 1, error });
        let progress = Rc::new(Progress::default());
        let p = progress.clone();
        d.run(move |osd| work(osd, 1, 20, p));
        assert!(d.drive.ended().is_some());
        let (osd, ctx) = (d.osd(), d.osd().ctx().clone());
        assert!(progress.durable.get() == 0 && osd.last_committed() == Transno(0));
        // Whoever asks now hears it.
        let refused = Rc::new(Cell::new(false));
        let r = refused.clone();
        ctx.spawn(async move {
            let text = match osd.reserve(Credits::default()).await {
                Err(OsdError::Stopped(text)) => text,
                _ => String::new(),
            };
            r.set(text.contains("broken"));
        });
        ctx.run();
        assert!(refused.get());
    }
}

/// The newest log segment that holds records, and the distance of its two copies.
fn newest_segment(device: &CrashDevice) -> (FileId, u64) {
    let store = device.store();
    let newest = (1..20).rev().map(FileId::Log).find(|&file| {
        let read = store.execute(StoreOp::Read { file, offset: 0, len: 4096 });
        matches!(read, Ok(StoreDone::Bytes(b)) if b.len() > 200 && b[72..80] != [0; 8] && b[1000..1100] != [0; 100])
    });
    let file = newest.unwrap();
    match store.execute(StoreOp::Len { file }) {
        Ok(StoreDone::Len(Some(len))) => (file, len / 2),
        other => panic!("{other:?}"),
    }
}

#[test]
fn damage_of_one_copy_of_the_log_costs_nothing_and_a_start_repairs_it() {
    let device = fresh();
    assert!(life(&device, 1, 120).is_some());
    device.kill_process();
    let n = check(&device.copy(), "before");
    assert!(n > 30);
    let (file, half) = newest_segment(&device);
    // Header of the segment, a record's header and its rows.
    for at in [10, 70, 90, 300, 700].into_iter().flat_map(|at| [at, at + half]) {
        let damaged = device.copy();
        damaged.flip(file, at);
        let problems = nacre_osd::check::check(&*damaged.store(), |_, _, _| {}).sentences;
        assert!(problems.iter().any(|s| s.contains("one of the two copies")), "at {at}: {problems:?}");
        assert_eq!(check(&damaged, &format!("damaged at {at}")), n);
        let problems = nacre_osd::check::check(&*damaged.store(), |_, _, _| {}).sentences;
        assert!(problems.is_empty(), "at {at}: {problems:?}");
    }
}

#[test]
fn damage_of_both_copies_of_a_record_is_told_and_not_taken_for_the_end() {
    let device = fresh();
    assert!(life(&device, 1, 120).is_some());
    device.kill_process();
    assert!(check(&device, "before") > 30);
    let (file, half) = newest_segment(&device);
    // The same bytes of the first record: one damaged copy is no help for the other.
    device.flip(file, 70);
    device.flip(file, half + 70);
    match OsdDrive::open(&device.store(), &config()) {
        Err(OsdError::Corrupt { what }) => assert!(what.contains("log"), "{what}"),
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("opened over damage"),
    }
}

/// Ways in which the newest segment that was written to is lost.
#[derive(Debug, Clone, Copy)]
enum Loss {
    Missing,
    Emptied,
    Cut,
    Zeroed,
}

#[test]
fn the_loss_of_the_newest_segment_of_a_crashed_store_is_told() {
    let words = [Loss::Missing, Loss::Emptied, Loss::Cut, Loss::Zeroed];
    for (loss, marked) in words.into_iter().flat_map(|l| [(l, true), (l, false)]) {
        let device = fresh();
        let store = device.store();
        let mut d = OsdDrive::open(&store, &OsdConfig { dirty_bytes_max: 1 << 20, ..config() }).unwrap();
        let progress = Rc::new(Progress::default());
        let p = progress.clone();
        d.run(move |osd| work(osd, 1, 26, p)).unwrap();
        assert_eq!(progress.durable.get(), 26);
        // The mark is not waited for.
        while d.drive.io() {}
        device.kill_process();
        let store = device.store();
        let newest = (1..20).rev().map(FileId::Log).find(|&file| {
            let read = store.execute(StoreOp::Read { file, offset: 0, len: 4096 });
            matches!(read, Ok(StoreDone::Bytes(b)) if b.get(..8) == Some(b"NACRELOG"))
        });
        let file = newest.unwrap();
        let op = match loss {
            Loss::Missing => StoreOp::Delete { file },
            Loss::Emptied => StoreOp::Truncate { file, len: 0 },
            Loss::Cut => StoreOp::Truncate { file, len: 1000 },
            Loss::Zeroed => StoreOp::Create { file, len: 64 << 10 },
        };
        store.execute(op).unwrap();
        if !marked {
            // That this is what the mark is for.
            device.flip(FileId::Mark, 17);
        }
        let problems = nacre_osd::check::check(&*store, |_, _, _| {}).sentences;
        assert_eq!(problems.iter().any(|s| s.contains("was durable up to record")), marked, "{problems:?}");
        match OsdDrive::open(&store, &config()).map(drop) {
            Err(OsdError::Corrupt { what }) => {
                assert!(marked && what.contains("was durable up to record"), "{loss:?}: {what}");
            }
            other => assert!(!marked && other.is_ok(), "{loss:?}: {other:?}"),
        }
    }
}

#[test]
fn a_mark_that_cannot_be_read_or_written_stops_nobody() {
    let device = fresh();
    assert!(life(&device, 1, 120).is_some());
    device.kill_process();
    // Of a store of before it was kept, and of another store.
    let store = device.store();
    store.execute(StoreOp::Delete { file: FileId::Mark }).unwrap();
    let n = check(&device, "without a mark");
    assert!(n > 30);
    let len = store.execute(StoreOp::Len { file: FileId::Mark });
    assert_eq!(len, Ok(StoreDone::Len(Some(44))), "made again");
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    store.execute(StoreOp::Delete { file: FileId::Mark }).unwrap();
    let progress = Rc::new(Progress::default());
    let p = progress.clone();
    d.run(move |osd| work(osd, n + 1, n + 30, p)).unwrap();
    assert!(progress.durable.get() > n);
    assert_eq!(d.drive.ended(), None);
}
