//! The log under measurement and under fire: CPU per create-like transaction, sync latency beside appends, and
//! kill -9 at random instants over real files.
//!
//! `log_spike cpu [ROWS]`   µs of CPU per transaction of 3 rows (about 300 B), in memory and with real log writes
//! `log_spike bounded [ROWS] [MIB]`  the same within the default or other bounds, flushes and merges paid
//! `log_spike sync [DIR]`   fdatasync of the log with appends going on
//! `log_spike kill [ROUNDS] [DIR]`  a child writes, is killed, and everything it was told is looked for

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "an example")]

use nacre_node::{Ctx, Effect, Event, IoTicket, Logic, Rng, Store, StoreDone, StoreError, StoreOp, visit};
use nacre_osd::{Credits, Osd, OsdConfig, Pins, Table};
use nacre_osd_fs::{FsConfig, FsStore};
use nacre_testkit::{OsdDrive, OsdLogic};
use nacre_types::{Instant, Owner, Timestamp, Transno};
use std::cell::{Cell, RefCell};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant as Clock};

const INODE: Table = Table(32);
const ENTRY: Table = Table(33);
const REPLY: Table = Table(10);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default: u64| args.get(n).and_then(|a| a.parse().ok()).unwrap_or(default);
    let dir =
        |n: usize| args.get(n).map_or_else(|| std::env::temp_dir().join("nacre-log-spike"), PathBuf::from);
    match args.first().map(String::as_str) {
        Some("cpu") => cpu(
            number(1, 300_000),
            OsdConfig { dirty_bytes_max: 4 << 30, log_bytes_max: 4 << 30, ..OsdConfig::default() },
        ),
        Some("bounded") => {
            let bytes = number(2, 256) << 20;
            let (dirty_bytes_max, cache_bytes_max, log_bytes_max) = (bytes, bytes, bytes);
            let bounds =
                OsdConfig { dirty_bytes_max, cache_bytes_max, log_bytes_max, ..OsdConfig::default() };
            cpu(number(1, 1_000_000), bounds);
        }
        Some("sync") => sync(&dir(1)),
        Some("kill") => kill(number(1, 50), &dir(2)),
        Some("child") => child(&dir(1), number(2, 0)),
        _ => println!("log_spike cpu [ROWS] | bounded [ROWS] [MIB] | sync [DIR] | kill [ROUNDS] [DIR]"),
    }
}

fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
fn fresh_store(dir: &Path) -> Arc<dyn Store> {
    std::fs::remove_dir_all(dir).ok();
    Arc::new(FsStore::format(dir, &FsConfig::default(), true).unwrap())
}

/// A create: look at parent, name and inode; write all three and the reply record.
async fn create(osd: &Osd, n: u64, seed: u64) -> Transno {
    let parent = [7u8; 12];
    let mut fid = [0u8; 12];
    fid[4..].copy_from_slice(&n.to_be_bytes());
    let mut name = [7u8; 20];
    let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    name[12..].copy_from_slice(&(hash & !15).to_be_bytes());
    let reply = [1u8, (n % 8) as u8];
    let mut pins: Pins = osd.fetch(&[(INODE, &parent), (INODE, &fid), (REPLY, &reply)]).await.unwrap();
    let mut last = name;
    last[19] |= 15;
    osd.fetch_range(ENTRY, &name, &last, 17, &mut pins).await.unwrap();
    let credits = Credits { rows: 4, row_bytes: 600, ..Credits::default() };
    let room = osd.reserve(credits).await.unwrap();
    let done = osd.transact(&pins, room, |tx| {
        assert!(tx.get(INODE, &fid).is_none() && tx.range(ENTRY, &name, &last).next().is_none());
        std::hint::black_box(tx.get(INODE, &parent));
        tx.put(INODE, &fid, vec![n as u8; 150]);
        tx.put(ENTRY, &name, vec![n as u8; 40]);
        tx.put(REPLY, &reply, vec![n as u8; 48]);
        tx.account(Owner { uid: 1000, gid: 1000, projid: 0 }, 0, 1);
        Ok::<_, ()>(())
    });
    done.unwrap().0
}

fn cpu(rows: u64, mut config: OsdConfig) {
    config.bloom_prefixes.push((ENTRY, 19));
    for (what, per_visit) in [("64 to a visit", 64u64), ("1 to a visit", 1)] {
        let dir = std::env::temp_dir().join("nacre-log-spike");
        let store = fresh_store(&dir);
        OsdDrive::format(&store, &config, true).unwrap();
        let mut d = OsdDrive::open(&store, &config).unwrap();
        let mut spent = Duration::ZERO;
        let mut n = 0;
        let mut report = 0;
        let made = Rc::new(Cell::new(0));
        while n < rows {
            let before = cpu_time();
            for _ in 0..1000 / per_visit {
                let (from, done) = (n, made.clone());
                d.start(move |osd| async move {
                    for k in 0..per_visit {
                        create(&osd, from + k, 1).await;
                    }
                    done.set(done.get() + per_visit);
                });
                n += per_visit;
            }
            spent += cpu_time() - before;
            // Flush and merge, if they run, are paid here.
            let before = cpu_time();
            while d.drive.io() || (made.get() < n && d.drive.step()) {}
            if d.osd().stats().flushes + d.osd().stats().merges > 0 {
                spent += cpu_time() - before;
            }
            if n >= report {
                println!(
                    "{what}: {n:>8} creates, {:.2} µs CPU each so far (log pwrite included)",
                    spent.as_nanos() as f64 / 1000.0 / n as f64
                );
                report += rows / 4;
            }
        }
        println!("{:?}", d.osd().stats());
        drop(d);
        drop(store);
        let store: Arc<dyn Store> = Arc::new(FsStore::open(&dir, &FsConfig::default()).unwrap());
        let before = Clock::now();
        drop(OsdDrive::open(&store, &config).unwrap());
        println!("opened again, log of {n} creates replayed, in {:?}", before.elapsed());
        std::fs::remove_dir_all(&dir).ok();
    }
}

// ---- a driver with a sync thread

type Done = (IoTicket, Result<StoreDone, StoreError>);

struct Threaded {
    logic: OsdLogic,
    store: Arc<dyn Store>,
    start: Clock,
    to_syncer: SyncSender<(IoTicket, StoreOp)>,
    from_syncer: Receiver<Done>,
}

fn threaded(
    store: Arc<dyn Store>,
    place: Rc<RefCell<Option<Rc<Osd>>>>,
    times: Arc<std::sync::Mutex<Vec<Duration>>>,
) -> Threaded {
    let (to_syncer, work) = sync_channel::<(IoTicket, StoreOp)>(1024);
    let (done, from_syncer) = sync_channel::<Done>(1024);
    let s = store.clone();
    let syncer = std::thread::Builder::new().name("syncer".into());
    syncer
        .spawn(move || {
            for (ticket, op) in work {
                let before = Clock::now();
                let is_log_sync = matches!(op, StoreOp::Sync { .. });
                let result = s.execute(op);
                if is_log_sync {
                    times.lock().unwrap().push(before.elapsed());
                }
                if done.send((ticket, result)).is_err() {
                    return;
                }
            }
        })
        .unwrap();
    let logic = OsdLogic::new(Ctx::new(1), place);
    Threaded { logic, store, start: Clock::now(), to_syncer, from_syncer }
}

impl Threaded {
    fn enter(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let now = Instant(self.start.elapsed().as_nanos() as u64 + 1);
            visit(&mut self.logic, now, Timestamp::from_nanos(0), event);
            let mut writes = Vec::new();
            self.logic.log_writes(&mut writes);
            for op in writes {
                self.store.execute(op).unwrap();
            }
            for effect in self.logic.ctx().take_effects() {
                match effect {
                    Effect::Io { ticket, op }
                        if matches!(op, StoreOp::Sync { .. } | StoreOp::Create { .. }) =>
                    {
                        self.to_syncer.send((ticket, op)).unwrap();
                    }
                    Effect::Io { ticket, op } => {
                        let result = self.store.execute(op);
                        events.push(Event::IoDone { ticket, result });
                    }
                    Effect::Fatal(text) => panic!("{text}"),
                    _ => {}
                }
            }
            while let Ok((ticket, result)) = self.from_syncer.try_recv() {
                events.push(Event::IoDone { ticket, result });
            }
        }
    }
    fn wait(&mut self) {
        let now = Instant(self.start.elapsed().as_nanos() as u64 + 1);
        let until = self.logic.ctx().deadline().map_or(Duration::from_millis(5), |at| at - now);
        match self.from_syncer.recv_timeout(until.min(Duration::from_millis(5))) {
            Ok((ticket, result)) => self.enter(Event::IoDone { ticket, result }),
            Err(_) => self.enter(Event::Timer),
        }
    }
}

fn open_threaded(dir: &Path, times: &Arc<std::sync::Mutex<Vec<Duration>>>) -> (Threaded, Rc<Osd>) {
    let store: Arc<dyn Store> = Arc::new(FsStore::open(dir, &FsConfig::default()).unwrap());
    let place = Rc::new(RefCell::new(None));
    let mut t = threaded(store, place.clone(), times.clone());
    let (ctx, p) = (t.logic.ctx().clone(), place.clone());
    t.logic.ctx().spawn(async move {
        let osd = Osd::open(&ctx, small()).await.unwrap();
        *p.borrow_mut() = Some(osd);
    });
    t.enter(Event::Start);
    while place.borrow().is_none() {
        t.wait();
    }
    let osd = place.borrow().clone().unwrap();
    (t, osd)
}
/// Bounds that make flushes and merges happen within a second.
fn small() -> OsdConfig {
    OsdConfig {
        dirty_bytes_max: 8 << 20,
        cache_bytes_max: 4 << 20,
        log_bytes_max: 16 << 20,
        ballast_bytes: 1 << 20,
        commit_interval_ms: 100,
        ..OsdConfig::default()
    }
}

fn sync(dir: &Path) {
    let times = Arc::new(std::sync::Mutex::new(Vec::new()));
    let store = fresh_store(dir);
    OsdDrive::format(&store, &small(), true).unwrap();
    drop(store);
    let (mut t, osd) = open_threaded(dir, &times);
    let stop = Clock::now() + Duration::from_secs(5);
    // One task commits all the time; creates go on beside it, at most 20 000 a second.
    let o = osd.clone();
    t.logic.ctx().spawn(async move {
        loop {
            o.commit(o.last_transno()).await.unwrap();
            o.ctx().sleep(Duration::from_micros(50)).await;
        }
    });
    let mut n = 0;
    times.lock().unwrap().clear();
    while Clock::now() < stop {
        let o = osd.clone();
        t.logic.ctx().spawn(async move {
            create(&o, n, 3).await;
        });
        n += 1;
        t.enter(Event::Timer);
        let pace = Clock::now();
        while pace.elapsed() < Duration::from_micros(40) {}
    }
    let mut times = times.lock().unwrap().clone();
    times.sort_unstable();
    let at = |q: f64| times.get((times.len() as f64 * q) as usize).copied().unwrap_or_default();
    println!(
        "{n} creates beside {} syncs: p50 {:?} p90 {:?} p99 {:?}",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99)
    );
    println!("{:?}", osd.stats());
}

// ---- kill -9

/// Opens, says how many creates it found, and goes on creating: a line for each that is acknowledged, another kind of
/// line for each that is durable.
fn child(dir: &Path, from: u64) {
    let times = Arc::default();
    let (mut t, osd) = open_threaded(dir, &times);
    let stdout = std::io::stdout();
    let found = Rc::new(Cell::new(None));
    let (f, o) = (found.clone(), osd.clone());
    t.logic.ctx().spawn(async move { f.set(Some(check(&o, from).await)) });
    t.enter(Event::Timer);
    while found.get().is_none() {
        t.wait();
    }
    let mut n = found.get().unwrap();
    writeln!(stdout.lock(), "found {n}").unwrap();
    let committed = Rc::new(Cell::new(0));
    let base = osd.last_transno().0;
    loop {
        let acknowledged = Rc::new(Cell::new(false));
        let (o, a) = (osd.clone(), acknowledged.clone());
        t.logic.ctx().spawn(async move {
            create(&o, n, 0).await;
            a.set(true);
        });
        if n % 50 == 0 {
            let (o, c) = (osd.clone(), committed.clone());
            t.logic.ctx().spawn(async move {
                let upto = o.last_transno();
                o.commit(upto).await.unwrap();
                c.set(upto.0);
            });
        }
        t.enter(Event::Timer);
        while !acknowledged.get() {
            t.wait();
        }
        // Only now, after the visit: the log bytes are written.
        n += 1;
        writeln!(stdout.lock(), "acknowledged {n} durable {}", committed.get().saturating_sub(base)).unwrap();
    }
}
/// Counts the creates that are whole; they must be 0..n and each must have both rows.
async fn check(osd: &Osd, at_least: u64) -> u64 {
    let (mut n, mut from) = (0u64, Vec::new());
    loop {
        let rows = osd.scan(INODE, &from, b"", 1000).await.unwrap();
        let Some((last, _)) = rows.last() else { break };
        from = [last, &[0][..]].concat();
        for (key, value) in &rows {
            assert_eq!(key[4..], n.to_be_bytes(), "inode {n} is missing");
            assert_eq!((value.len(), value[0]), (150, n as u8));
            n += 1;
        }
    }
    let (mut entries, mut from) = (0u64, Vec::new());
    loop {
        let rows = osd.scan(ENTRY, &from, b"", 1000).await.unwrap();
        let Some((last, _)) = rows.last() else { break };
        from = [last, &[0][..]].concat();
        entries += rows.len() as u64;
    }
    assert_eq!(entries, n, "names and inodes");
    assert_eq!(osd.usage(0, 1000).await.unwrap().1, n, "accounting");
    assert!(n >= at_least, "{n} creates found, {at_least} had been acknowledged");
    n
}

fn kill(rounds: u64, dir: &Path) {
    let store = fresh_store(dir);
    OsdDrive::format(&store, &small(), true).unwrap();
    drop(store);
    let mut rng = Rng::new(std::process::id().into());
    let mut acknowledged = 0u64;
    for round in 0..rounds {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["child", dir.to_str().unwrap(), &acknowledged.to_string()])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let killer = Duration::from_micros(20_000 + rng.below(400_000));
        let pid = rustix::process::Pid::from_child(&child);
        let k = std::thread::spawn(move || {
            std::thread::sleep(killer);
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        });
        let mut found = None;
        for line in std::io::BufReader::new(out).lines() {
            let line = line.unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["found", n] => found = n.parse().ok(),
                ["acknowledged", n, "durable", _] => acknowledged = n.parse().unwrap_or(acknowledged),
                _ => {}
            }
        }
        k.join().unwrap();
        let status = child.wait().unwrap();
        assert!(std::os::unix::process::ExitStatusExt::signal(&status) == Some(9), "round {round}: {status}");
        let found: Option<u64> = found;
        println!("round {round}: found {found:?}, acknowledged {acknowledged}, killed after {killer:?}");
    }
    println!("{rounds} kills: nothing acknowledged was missing");
    std::fs::remove_dir_all(dir).ok();
}
