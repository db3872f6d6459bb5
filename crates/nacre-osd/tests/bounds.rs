//! Full devices, full memory, damaged blocks, and the check that finds what is wrong.

#![allow(clippy::unwrap_used, reason = "a test")]

use nacre_node::{FileId, FileKind, Store, StoreDone, StoreError, StoreOp};
use nacre_osd::{Credits, Osd, OsdConfig, OsdError, Table, Usage, check};
use nacre_osd_mem::MemStore;
use nacre_testkit::{CrashDevice, OsdDrive};
use nacre_types::Owner;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const T: Table = Table(33);

fn config() -> OsdConfig {
    OsdConfig {
        dirty_bytes_max: 256 << 10,
        cache_bytes_max: 64 << 10,
        log_bytes_max: 1 << 20,
        ballast_bytes: 1 << 20,
        ..OsdConfig::default()
    }
}
async fn put(osd: &Osd, n: u32, len: usize) -> Result<(), OsdError> {
    let key = n.to_be_bytes();
    let pins = osd.fetch(&[(T, &key)]).await?;
    let room = osd.reserve(Credits { rows: 1, row_bytes: 100 + len as u32, ..Credits::default() }).await?;
    let owner = Owner { uid: n % 3, gid: 1, projid: 0 };
    let done = osd.transact(&pins, room, |tx| {
        tx.put(T, &key, vec![n as u8; len]);
        tx.account(owner, len as i64, 1);
        Ok::<_, OsdError>(())
    });
    done.map(drop)
}
async fn delete(osd: &Osd, n: u32) -> Result<(), OsdError> {
    let key = n.to_be_bytes();
    let pins = osd.fetch(&[(T, &key)]).await?;
    let credits = Credits { rows: 1, row_bytes: 100, frees: true, ..Credits::default() };
    let room = osd.reserve(credits).await?;
    osd.transact(&pins, room, |tx| {
        tx.delete(T, &key);
        Ok::<_, OsdError>(())
    })
    .map(drop)
}

#[test]
fn memory_stays_within_its_bounds_whatever_is_written() {
    let device = CrashDevice::new(1 << 30);
    OsdDrive::format(&device.store(), &config(), false).unwrap();
    let mut d = OsdDrive::open(&device.store(), &config()).unwrap();
    for round in 0..60u32 {
        d.run(move |osd| async move {
            for n in 0..100 {
                put(&osd, round * 100 + n, 400).await.unwrap();
            }
        })
        .unwrap();
        let s = d.osd().stats();
        assert!(s.dirty_bytes <= config().dirty_bytes_max + 1000, "{s:?}");
        assert!(
            s.clean_bytes + s.dirty_bytes <= config().cache_bytes_max + config().dirty_bytes_max,
            "{s:?}"
        );
        assert!(s.log_bytes <= 2 * config().log_bytes_max, "{s:?}");
    }
    let s = d.osd().stats();
    assert!(s.flushes > 10 && s.slowed_writers > 0 && s.runs <= 10, "{s:?}");
    let rows = d.run(|osd| async move { osd.scan(T, b"", b"", u32::MAX).await.unwrap().len() }).unwrap();
    assert_eq!(rows, 6000);
}

/// Small runs: hundreds of flushes.
fn small_runs() -> OsdConfig {
    OsdConfig { dirty_bytes_max: 16 << 10, cache_bytes_max: 16 << 10, log_bytes_max: 512 << 10, ..config() }
}

#[test]
fn merges_write_each_byte_a_logarithmic_number_of_times() {
    let store: Arc<dyn Store> = Arc::new(MemStore::new(1 << 30));
    OsdDrive::format(&store, &small_runs(), false).unwrap();
    let mut d = OsdDrive::open(&store, &small_runs()).unwrap();
    const ROWS: u32 = 24_000;
    d.run(|osd| async move {
        for n in 0..ROWS {
            // Keys in no order: every run holds some of everywhere.
            put(&osd, n.wrapping_mul(0x9e37_79b1), 100).await.unwrap();
        }
        osd.checkpoint().await.unwrap();
    })
    .unwrap();
    let s = d.osd().stats();
    assert!(s.flushes > 400 && s.merges > 50, "{s:?}");
    let doublings = u64::from(s.flushes.ilog2());
    assert!(s.merge_bytes_written <= s.flush_bytes_written * (doublings + 1), "{s:?}");
    assert!(s.runs <= 4 + doublings + 3, "{s:?}");
    let rows = d.run(|osd| async move { osd.scan(T, b"", b"", u32::MAX).await.unwrap().len() }).unwrap();
    assert_eq!(rows as u32, ROWS);
}

#[test]
fn what_was_overwritten_or_deleted_leaves_the_runs() {
    let store: Arc<dyn Store> = Arc::new(MemStore::new(1 << 30));
    OsdDrive::format(&store, &small_runs(), false).unwrap();
    let mut d = OsdDrive::open(&store, &small_runs()).unwrap();
    const KEYS: u32 = 2000;
    d.run(|osd| async move {
        for n in 0..KEYS * 8 {
            put(&osd, n.wrapping_mul(0x9e37_79b1) % KEYS, 100).await.unwrap();
        }
        osd.checkpoint().await.unwrap();
    })
    .unwrap();
    let live = u64::from(KEYS) * 120;
    let s = d.osd().stats();
    assert!(s.run_bytes <= 3 * live, "{live} bytes are live: {s:?}");
    d.run(|osd| async move {
        for n in 0..KEYS {
            delete(&osd, n).await.unwrap();
        }
        osd.checkpoint().await.unwrap();
        // The merge that is under way ends.
        osd.ctx().sleep(std::time::Duration::from_secs(60)).await;
    })
    .unwrap();
    let s = d.osd().stats();
    assert!(s.run_bytes <= live / 4, "{live} bytes were live: {s:?}");
}

#[test]
fn memory_stays_within_its_bounds_whatever_is_read() {
    const ROWS: u32 = 6000;
    let device = CrashDevice::new(1 << 30);
    OsdDrive::format(&device.store(), &config(), false).unwrap();
    let mut d = OsdDrive::open(&device.store(), &config()).unwrap();
    d.run(|osd| async move {
        for n in 0..ROWS {
            put(&osd, n, 400).await.unwrap();
        }
        osd.checkpoint().await.unwrap();
        // By single keys, in pinned ranges, and both again while the rows are still in use.
        for round in 0..3u32 {
            for n in 0..ROWS / 50 {
                let (from, to) = ((n * 50).to_be_bytes(), (n * 50 + 50).to_be_bytes());
                let mut pins = nacre_osd::Pins::default();
                osd.fetch_range(T, &from, &to, 100, &mut pins).await.unwrap();
                let keys: Vec<[u8; 4]> =
                    (0..40).map(|k| (n * 97 + k * 61 + round) % ROWS).map(u32::to_be_bytes).collect();
                let keys: Vec<_> = keys.iter().map(|k| (T, &k[..])).collect();
                osd.fetch_into(&keys, &mut pins).await.unwrap();
                for (_, key) in &keys {
                    assert!(osd.get(T, key).await.unwrap().is_some());
                }
                // One fetch pins 90 rows at most; the rest is within the bound and an eighth.
                let s = osd.stats();
                let pinned = 90 * 600;
                assert!(s.clean_bytes <= config().cache_bytes_max * 9 / 8 + pinned, "{s:?}");
            }
        }
    })
    .unwrap();
    assert!(d.osd().stats().cold_reads > 1000, "{:?}", d.osd().stats());
}

#[test]
fn a_full_disk_says_so_and_can_be_emptied() {
    let store: Arc<dyn Store> = Arc::new(MemStore::new(24 << 20));
    OsdDrive::format(&store, &config(), false).unwrap();
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    let written = d
        .run(|osd| async move {
            for n in 0.. {
                match put(&osd, n, 4000).await {
                    Ok(()) => {}
                    Err(OsdError::NoSpace { .. }) => return n,
                    Err(e) => panic!("{e}"),
                }
            }
            0
        })
        .unwrap();
    // 24 MiB, less the ballast and the log, and all rows are there twice.
    assert!(written > 1200, "{written}");
    // Objects take the rest of the device: not even the log has room now.
    let file = fill(&store);
    // (The space that the device reports is believed for a second.)
    let full = d
        .run(move |osd| async move {
            osd.ctx().sleep(std::time::Duration::from_secs(2)).await;
            put(&osd, u32::MAX, 100).await
        })
        .unwrap();
    assert!(matches!(full, Err(OsdError::NoSpace { .. })));
    let left = d.run(move |osd| async move {
        for n in 0..written {
            delete(&osd, n).await.unwrap();
        }
        osd.checkpoint().await.unwrap();
        osd.scan(T, b"", b"", u32::MAX).await.unwrap().len()
    });
    assert_eq!(left, Some(0), "{:?} {:?}", d.drive.ended(), d.osd().stats());
    // Room comes back with what the objects give.
    store.execute(StoreOp::Delete { file }).unwrap();
    let again = d
        .run(move |osd| async move {
            osd.ctx().sleep(std::time::Duration::from_secs(5)).await;
            put(&osd, 1, 4000).await
        })
        .unwrap();
    assert_eq!(again, Ok(()));
}

/// A small device with so many rows of `len` bytes, and its engine.
fn store_with_rows(config: &OsdConfig, rows: u32, len: usize) -> (Arc<dyn Store>, OsdDrive) {
    let store: Arc<dyn Store> = Arc::new(MemStore::new(24 << 20));
    OsdDrive::format(&store, config, false).unwrap();
    let mut d = OsdDrive::open(&store, config).unwrap();
    d.run(move |osd| async move {
        for n in 0..rows {
            put(&osd, n, len).await.unwrap();
        }
    })
    .unwrap();
    (store, d)
}

#[test]
fn a_full_disk_can_be_opened_and_emptied() {
    let (store, _) = store_with_rows(&config(), 100, 4000);
    fill(&store);
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    let left = d.run(|osd| async move {
        for n in 0..100 {
            delete(&osd, n).await.unwrap();
        }
        osd.scan(T, b"", b"", u32::MAX).await.unwrap().len()
    });
    assert_eq!(left, Some(0), "{:?}", d.drive.ended());
}

/// Bytes of all log segments.
fn log_bytes(store: &Arc<dyn Store>) -> u64 {
    files(&**store).iter().filter(|(f, _)| matches!(f, FileId::Log(_))).map(|(_, len)| len).sum()
}
/// Takes all that is free.
fn fill(store: &Arc<dyn Store>) -> FileId {
    let file = FileId::Blob(nacre_types::ObjectId { fid: nacre_types::Fid::ROOT, stripe: 0 });
    let StoreDone::Len(len) = store.execute(StoreOp::Len { file }).unwrap() else { panic!() };
    let mut at = len.unwrap_or(0);
    while store.execute(StoreOp::Write { file, offset: at, data: vec![vec![1; 4096].into()] }).is_ok() {
        at += 4096;
    }
    file
}
/// Segments as large as the device lets them be: a start that keeps one needs a 24th of the device.
fn large_log() -> OsdConfig {
    OsdConfig { log_bytes_max: 64 << 20, dirty_bytes_max: 64 << 20, ..config() }
}
async fn count(osd: Rc<Osd>) -> usize {
    osd.scan(T, b"", b"", u32::MAX).await.unwrap().len()
}

/// A store that writes down what is done to the log.
struct LogWatch {
    below: MemStore,
    ops: Mutex<Vec<(&'static str, u64)>>,
}
impl Store for LogWatch {
    fn execute(&self, op: StoreOp) -> Result<StoreDone, StoreError> {
        let seen = match &op {
            StoreOp::Create { file: FileId::Log(n), .. } => Some(("make", *n)),
            StoreOp::SyncAside { file: FileId::Log(n) } => Some(("sync aside", *n)),
            StoreOp::Write { file: FileId::Log(n), .. } => Some(("write", *n)),
            _ => None,
        };
        self.ops.lock().unwrap().extend(seen);
        self.below.execute(op)
    }
}

#[test]
fn a_log_segment_is_synced_when_it_is_made_and_not_by_the_first_commit_in_it() {
    let watch = Arc::new(LogWatch { below: MemStore::new(64 << 20), ops: Mutex::default() });
    let store: Arc<dyn Store> = watch.clone();
    OsdDrive::format(&store, &config(), false).unwrap();
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    d.run(|osd| async move {
        for n in 0..900 {
            put(&osd, n, 4000).await.unwrap();
            osd.ctx().sleep(std::time::Duration::from_millis(1)).await;
        }
    })
    .unwrap();
    let ops = watch.ops.lock().unwrap();
    let first = |what, n| ops.iter().position(|op| *op == (what, n));
    let written: Vec<u64> = (0..1000).filter(|n| first("write", *n).is_some()).collect();
    assert!(written.len() > 10, "{written:?}");
    for n in written {
        let (made, synced, written) = (first("make", n), first("sync aside", n), first("write", n));
        assert!(
            made.is_some() && made < synced && synced < written,
            "segment {n}: {made:?} {synced:?} {written:?}"
        );
    }
}

#[test]
fn starts_without_a_planned_stop_do_not_fill_the_device_with_logs() {
    let store: Arc<dyn Store> = Arc::new(MemStore::new(24 << 20));
    OsdDrive::format(&store, &large_log(), false).unwrap();
    for n in 0..100 {
        let mut d = OsdDrive::open(&store, &large_log()).unwrap();
        let rows = d.run(move |osd| async move {
            put(&osd, n, 3000).await.unwrap();
            // What a start has asked for in the background is done.
            osd.ctx().sleep(std::time::Duration::from_secs(1)).await;
            count(osd).await
        });
        assert_eq!(rows, Some(n as usize + 1));
        assert!(log_bytes(&store) <= (3 << 20) + 100_000, "start {n}: {} bytes", log_bytes(&store));
    }
}

#[test]
fn a_full_disk_can_be_opened_again_and_again() {
    let (store, _) = store_with_rows(&large_log(), 100, 4000);
    for n in 0..100 {
        // Somebody else takes what the first start has made free.
        if n < 2 {
            fill(&store);
        }
        let mut d = OsdDrive::open(&store, &large_log()).unwrap_or_else(|e| panic!("start {n}: {e}"));
        let left = d.run(move |osd| async move {
            delete(&osd, n).await.unwrap();
            count(osd).await
        });
        assert_eq!(left, Some(99 - n as usize), "{:?}", d.drive.ended());
    }
}

#[test]
fn a_disk_that_is_full_to_the_last_byte_refuses_and_forgets_nothing() {
    let (store, mut d) = store_with_rows(&config(), 1000, 400);
    // Changes that free go on until the room of the ballast, too, was taken by others; then they are refused, and the
    // target lives.
    let (mut at, mut refused) = (0, false);
    let mut blob = fill(&store);
    for _ in 0..10_000 {
        blob = fill(&store);
        let n = at % 1000;
        // A row that is not there may be deleted again: that takes room in the log, too.
        match d.run(move |osd| async move { delete(&osd, n).await }).unwrap() {
            Ok(()) => at += 1,
            Err(OsdError::NoSpace { .. }) => refused = true,
            Err(e) => panic!("{e}"),
        }
        if refused {
            break;
        }
    }
    assert!(refused && at > 100, "{at}");
    let deleted = (at as usize).min(1000);
    assert_eq!(d.run(count), Some(1000 - deleted), "{:?}", d.drive.ended());
    drop(d);
    // A start takes what the segments of the one before had left; when that is used up, it says so.
    let mut starts = 0;
    let error = loop {
        fill(&store);
        match OsdDrive::open(&store, &config()) {
            Ok(d) => drop(d),
            Err(e) => break e,
        }
        starts += 1;
        if starts > 200 {
            // It needs nothing more than it gives back.
            break OsdError::NoRoomToStart;
        }
    };
    assert_eq!(error, OsdError::NoRoomToStart);
    assert!(error.to_string().contains("free a few MiB"), "{error}");
    store.execute(StoreOp::Delete { file: blob }).unwrap();
    let mut d = OsdDrive::open(&store, &config()).unwrap();
    assert_eq!(d.run(count), Some(1000 - deleted));
    // Room is there again: it is written to, and the ballast comes back.
    let ballast = d.run(|osd| async move {
        for n in 0..2000 {
            put(&osd, n, 400).await.unwrap();
        }
        osd.ctx().sleep(std::time::Duration::from_secs(5)).await;
        put(&osd, 1, 400).await.unwrap();
        osd.ctx().sleep(std::time::Duration::from_secs(5)).await;
        osd.ctx().io(StoreOp::Len { file: FileId::Ballast }).await
    });
    assert_eq!(ballast, Some(Ok(StoreDone::Len(Some(1 << 20)))));
}

/// A store with some runs, stopped as planned.
fn filled() -> CrashDevice {
    let device = CrashDevice::new(1 << 30);
    OsdDrive::format(&device.store(), &config(), false).unwrap();
    let mut d = OsdDrive::open(&device.store(), &config()).unwrap();
    d.run(|osd| async move {
        for n in 0..3000 {
            put(&osd, n, 300).await.unwrap();
        }
        osd.stop().await.unwrap();
    })
    .unwrap();
    drop(d);
    device
}
fn files(store: &dyn Store) -> Vec<(FileId, u64)> {
    let mut all = Vec::new();
    for kind in [FileKind::Log, FileKind::Run, FileKind::Blob] {
        if let StoreDone::List(l) = store.execute(StoreOp::List { kind, after: None, limit: 1000 }).unwrap() {
            all.extend(l.into_iter().map(|file| match store.execute(StoreOp::Len { file }) {
                Ok(StoreDone::Len(Some(len))) => (file, len),
                other => panic!("{other:?}"),
            }));
        }
    }
    all
}

#[test]
fn a_check_of_a_good_store_finds_nothing_and_changes_nothing() {
    let device = filled();
    let store = device.store();
    let (before, changes) = (files(&*store), device.changes());
    let found = Rc::new(RefCell::new(BTreeMap::<(u8, u32), Usage>::new()));
    let f = found.clone();
    let mut report = check::check(&*store, move |table, key, value| {
        if table == T {
            let n = u32::from_be_bytes(key.try_into().unwrap());
            for id in [(0, n % 3), (1, 1), (2, 0)] {
                let mut f = f.borrow_mut();
                let usage = f.entry(id).or_default();
                usage.bytes += value.len() as u64;
                usage.objects += 1;
            }
        }
    });
    report.compare_usage(&found.borrow());
    assert_eq!((report.problems, &report.sentences[..]), (0, &[][..]));
    assert_eq!(report.rows.get(&T.0), Some(&3000));
    assert!(report.was_clean && report.runs > 0 && report.instance == 1);
    found.borrow_mut().remove(&(0, 2));
    report.compare_usage(&found.borrow());
    assert!(report.sentences[0].contains("user 2"), "{:?}", report.sentences);
    assert_eq!((files(&*store), device.changes()), (before, changes));
}

/// Damages both copies of a block of a run.
fn flip_both(device: &CrashDevice, (run, len): (FileId, u64), at: u64) {
    device.flip(run, at);
    device.flip(run, len / 2 + at);
}

#[test]
fn damage_of_one_copy_of_a_block_costs_nothing_is_named_and_is_repaired_when_it_is_read() {
    let device = filled();
    let (run, len) = files(&*device.store()).into_iter().find(|(f, _)| matches!(f, FileId::Run(_))).unwrap();
    let problems = |device: &CrashDevice| check::check(&*device.store(), |_, _, _| {}).sentences;
    for (at, name) in [(9000, "the first of two copies"), (len / 2 + 9000, "the second of two copies")] {
        let damaged = device.copy();
        damaged.flip(run, at);
        assert!(problems(&damaged).iter().any(|s| s.contains(name)), "{:?}", problems(&damaged));
        let mut d = OsdDrive::open(&damaged.store(), &config()).unwrap();
        d.run(|osd| async move {
            for n in 0..3000u32 {
                let row = osd.get(T, &n.to_be_bytes()).await;
                assert!(matches!(&row, Ok(Some(value)) if value[..] == [n as u8; 300]), "{n}: {row:?}");
            }
            osd.stop().await.unwrap();
        })
        .unwrap();
        assert_eq!(d.osd().stats().corrupt_blocks, 0);
        // No read looks at the second copy as long as the first one is whole.
        assert_eq!(problems(&damaged).is_empty(), at < len / 2, "{:?}", problems(&damaged));
    }
}

#[test]
fn damage_of_one_copy_of_a_run_is_repaired_in_the_background() {
    let device = filled();
    let (run, len) = files(&*device.store()).into_iter().find(|(f, _)| matches!(f, FileId::Run(_))).unwrap();
    let problems = |device: &CrashDevice| check::check(&*device.store(), |_, _, _| {}).sentences;
    let half = len / 2;
    // Blocks, index, filter and footer, of either copy and of both at different places.
    let places = (half - 20_000..half).step_by(2777).chain([9000, half - 30]);
    let places = places.flat_map(|at| [vec![at], vec![half + at]]);
    let mut found = 0;
    for places in places.chain([vec![9000, half + 40_000, half + 9100]]) {
        let damaged = device.copy();
        places.iter().for_each(|at| damaged.flip(run, *at));
        found += u32::from(!problems(&damaged).is_empty());
        let mut d = OsdDrive::open(&damaged.store(), &config()).unwrap();
        d.run(|osd| async move {
            osd.compare_copies_from_now_on();
            osd.ctx().sleep(Duration::from_secs(700)).await;
            osd.stop().await.unwrap();
        })
        .unwrap();
        assert_eq!(problems(&damaged), Vec::<String>::new(), "{places:?}");
    }
    assert!(found > 15, "{found}: the damage is real");
}

#[test]
fn a_block_damaged_in_both_copies_costs_its_keys_only_and_is_named() {
    let device = filled();
    let runs = files(&*device.store());
    let run = runs.iter().find(|(f, _)| matches!(f, FileId::Run(_))).unwrap();
    flip_both(&device, *run, 9000);
    let report = check::check(&*device.store(), |_, _, _| {});
    assert!(report.problems > 0 && report.sentences.iter().any(|s| s.contains("run")), "{report:?}");
    let mut d = OsdDrive::open(&device.store(), &config()).unwrap();
    let (good, bad) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (g, b) = (good.clone(), bad.clone());
    d.run(move |osd| async move {
        for n in 0..3000u32 {
            match osd.get(T, &n.to_be_bytes()).await {
                Ok(Some(value)) => g.set(g.get() + u32::from(value[..] == [n as u8; 300])),
                Err(OsdError::Corrupt { .. }) => b.set(b.get() + 1),
                other => panic!("{n}: {other:?}"),
            }
        }
        // The keys can be written again.
        for n in 0..3000 {
            delete(&osd, n).await.ok();
        }
    })
    .unwrap();
    assert!(
        bad.get() > 5 && bad.get() < 30 && good.get() + bad.get() == 3000,
        "{} {}",
        good.get(),
        bad.get()
    );
    assert_eq!(d.osd().stats().corrupt_blocks, 1);
}

/// Superblock and runs are there twice.
#[test]
fn damage_of_one_copy_of_a_superblock_or_run_costs_nothing() {
    let device = filled();
    let (run, len) = files(&*device.store()).into_iter().find(|(f, _)| matches!(f, FileId::Run(_))).unwrap();
    // The last bytes of each copy: blocks, index, filter, footer.
    let ends = [len / 2, len];
    let places = ends.into_iter().flat_map(|end| (end - 20_000..end).step_by(777).chain([end - 1, end - 30]));
    let Ok(StoreDone::Len(Some(super_len))) = device.store().execute(StoreOp::Len { file: FileId::Super })
    else {
        panic!("no superblock")
    };
    let places = places.map(|at| (run, at)).chain((0..super_len).step_by(511).map(|at| (FileId::Super, at)));
    for (file, at) in places {
        let damaged = device.copy();
        damaged.flip(file, at);
        let mut d =
            OsdDrive::open(&damaged.store(), &config()).unwrap_or_else(|e| panic!("{file:?} at {at}: {e}"));
        let read = d.run(|osd| async move {
            let mut good = 0;
            for n in 0..3000u32 {
                good += u32::from(matches!(osd.get(T, &n.to_be_bytes()).await, Ok(Some(_))));
            }
            good
        });
        assert_eq!(read, Some(3000), "{file:?} at {at}");
    }
}

#[test]
fn a_damaged_run_is_left_as_it_is_and_newer_ones_are_merged() {
    let device = filled();
    let runs = files(&*device.store());
    let (damaged, len) = *runs.iter().find(|(f, _)| matches!(f, FileId::Run(_))).unwrap();
    flip_both(&device, (damaged, len), 9000);
    let mut d = OsdDrive::open(&device.store(), &config()).unwrap();
    d.run(|osd| async move {
        for n in 10_000..20_000 {
            put(&osd, n, 300).await.unwrap();
        }
        osd.checkpoint().await.unwrap();
    })
    .unwrap();
    let s = d.osd().stats();
    assert!(s.flushes > 20 && s.runs < 16, "{s:?}");
    assert_eq!(s.corrupt_blocks, 1);
    assert!(files(&*device.store()).contains(&(damaged, len)), "it can still be looked at");
    // What the run holds beside the damage is there, and so is everything newer.
    let read = d.run(|osd| async move {
        let mut good = 0;
        for n in (0..3000u32).chain(10_000..20_000) {
            good += u32::from(matches!(osd.get(T, &n.to_be_bytes()).await, Ok(Some(_))));
        }
        good
    });
    assert!(read > Some(12_900), "{read:?}");
}

#[test]
fn a_check_says_in_words_what_is_wrong() {
    let empty: Arc<dyn Store> = CrashDevice::new(1 << 20).store();
    let report = check::check(&*empty, |_, _, _| {});
    assert!(report.sentences[0].contains("mkfs"), "{:?}", report.sentences);
    let device = filled();
    for copy in [0, 4096] {
        device.flip(FileId::Super, copy + 60);
    }
    let report = check::check(&*device.store(), |_, _, _| {});
    assert!(report.sentences[0].contains("superblock"), "{:?}", report.sentences);
    let device = filled();
    let run = files(&*device.store()).into_iter().find(|(f, _)| matches!(f, FileId::Run(_))).unwrap().0;
    device.store().execute(StoreOp::Delete { file: run }).unwrap();
    let report = check::check(&*device.store(), |_, _, _| {});
    assert!(report.sentences[0].contains("run"), "{:?}", report.sentences);
}

#[test]
fn a_stop_in_the_middle_of_a_flush_or_merge_loses_nothing() {
    let mut flushes = 0;
    for steps in (0..400).step_by(9) {
        let device = CrashDevice::new(1 << 30);
        let config = OsdConfig { dirty_bytes_max: 24 << 10, log_bytes_max: 512 << 10, ..config() };
        OsdDrive::format(&device.store(), &config, false).unwrap();
        let mut d = OsdDrive::open(&device.store(), &config).unwrap();
        let done = Rc::new(Cell::new(0));
        let made = done.clone();
        d.start(move |osd| async move {
            for n in 0.. {
                if put(&osd, n, 400).await.is_err() {
                    return;
                }
                made.set(n + 1);
            }
        });
        for _ in 0..steps {
            d.drive.step();
        }
        d.run(|osd| async move { osd.stop().await.unwrap() }).unwrap();
        // The island lives on for a while: nothing of it may reach the store any more.
        for _ in 0..2000 {
            d.drive.step();
        }
        flushes += d.osd().stats().flushes;
        drop(d);
        let mut d = OsdDrive::open(&device.store(), &config).unwrap();
        assert!(d.osd().was_clean());
        let rows = d.run(|osd| async move { osd.scan(T, b"", b"", u32::MAX).await.unwrap().len() }).unwrap();
        assert_eq!(rows as u32, done.get(), "stopped after {steps} steps");
    }
    assert!(flushes > 50, "{flushes}");
}
