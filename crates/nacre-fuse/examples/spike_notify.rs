//! Spike: notifications while requests are held back. Nothing may hang by the rules of the notifier pool.
//!
//! A file system in memory, read by one thread alone, with long validity (so that the kernel has something to be
//! told to forget). Each case holds requests back, sends a notification from the pool and looks whether it returns,
//! whether other requests of the mount are served meanwhile, and whether everything ends after the release. Then a
//! storm: changes behind the kernel's back, each followed by an invalidation by the rules, while other threads make,
//! look up, read and store through a mapping; after each invalidation the kernel must show the change.
//!
//! Run as root: `cargo run --release -p nacre-fuse --example spike_notify`. Exit code 1 when a rule failed.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    let_underscore_drop,
    reason = "a measuring program"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::memfs::MemFs;
use common::solo::Solo;
use nacre_client::Validity;
use nacre_fuse::{MountOptions, Notification, Notifier, SessionConfig, mount_fuse, unmount_fuse};
use nacre_types::Fid;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than this is a hang.
const HANG: Duration = Duration::from_secs(3);
/// The rule: a notification that has not returned by then is replaced.
const LATE: Duration = Duration::from_millis(1);

struct Spike {
    path: PathBuf,
    solo: Solo<MemFs>,
    notifier: Notifier,
    failures: AtomicU64,
}

/// Something under way on another thread.
struct Pending<T> {
    rx: Receiver<(T, Duration)>,
}
impl<T: Send + 'static> Pending<T> {
    fn run(work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (tx, rx) = sync_channel(1);
        std::thread::spawn(move || {
            let start = Instant::now();
            let value = work();
            let _ = tx.send((value, start.elapsed()));
        });
        Self { rx }
    }
    fn wait(&self, limit: Duration) -> Option<(T, Duration)> {
        self.rx.recv_timeout(limit).ok()
    }
}

impl Spike {
    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
    fn fid(&self, name: &'static str) -> Fid {
        self.solo.ask(move |fs| fs.fid_of(name.as_bytes())).unwrap()
    }
    fn hold(&self, operation: &'static str, fid: Fid) {
        self.solo.ask(move |fs| fs.hold(operation, Some(fid)));
    }
    fn await_held(&self, operation: &'static str) {
        let start = Instant::now();
        while self.solo.ask(move |fs| fs.waiting(operation)) == 0 {
            assert!(start.elapsed() < HANG, "{operation} was never held back");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    fn release(&self) {
        self.solo.ask(MemFs::release_all);
    }
    fn notify(&self, notification: Notification) -> Pending<bool> {
        let (tx, rx) = sync_channel(1);
        let start = Instant::now();
        let sent = self.notifier.submit(
            notification,
            Box::new(move |result| {
                let _ = tx.send((result.unwrap_or(false), start.elapsed()));
            }),
        );
        assert!(sent.is_ok(), "the queue of the pool is full");
        Pending { rx }
    }
    fn check(&self, what: &str, ok: bool, detail: &str) {
        println!("  {} {what}: {detail}", if ok { "ok  " } else { "FAIL" });
        if !ok {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
    /// Whether the mount still serves: a name that the kernel does not know, in another directory.
    fn alive(&self) -> bool {
        static N: AtomicU64 = AtomicU64::new(0);
        let path = self.at(&format!("other/x{}", N.fetch_add(1, Ordering::Relaxed)));
        Pending::run(move || std::fs::metadata(path).is_err()).wait(HANG).is_some()
    }
    /// A notification that must return at once although requests are held back.
    fn returns(&self, what: &str, notification: Notification) {
        let done = self.notify(notification).wait(HANG);
        let text = done.map_or("hangs".to_owned(), |(known, took)| format!("{took:?}, known {known}"));
        let alive = self.alive();
        self.check(what, done.is_some() && alive, &format!("{text}, mount serves {alive}"));
    }
    /// One that is expected to wait until the release; meanwhile the mount must serve, and it must end then.
    fn waits(&self, what: &str, notification: Notification) -> Pending<bool> {
        let pending = self.notify(notification);
        let early = pending.wait(Duration::from_millis(100));
        let alive = self.alive();
        let text =
            early.map_or("still waits after 100 ms".to_owned(), |(_, took)| format!("returned in {took:?}"));
        self.check(what, alive, &format!("{text}, mount serves {alive}"));
        pending
    }
    fn ends<T: Send + 'static>(&self, what: &str, pending: &Pending<T>) {
        let done = pending.wait(HANG);
        self.check(
            what,
            done.is_some(),
            &done.map_or("hangs".to_owned(), |(_, took)| format!("after {took:?}")),
        );
    }
}

fn main() {
    let dir = tempfile::Builder::new().prefix("fuse-spike-").tempdir().unwrap();
    let options = MountOptions {
        source: "spike".to_owned(),
        kernel: nacre_fuse::KernelOptions::default(),
        shared_memory: None,
        session: SessionConfig { readdirplus: true, ..SessionConfig::default() },
    };
    let mut mounted = mount_fuse(dir.path(), &options).unwrap();
    println!("kernel interface 7.{}, INC_EPOCH {}", mounted.session.minor, mounted.session.has_epoch());
    let channel = mounted.channel.clone();
    let notifier = Notifier::new(move |bytes| channel.write_notification(bytes)).unwrap();
    let solo = Solo::serve(&mut mounted, MemFs::new);
    solo.ask(|fs| {
        let long = Duration::from_secs(3600);
        fs.validity.set(Validity { entry: long, attr: long });
        fs.fopen_flags.set(nacre_fuse::abi::fopen::KEEP_CACHE);
    });
    let spike = Spike { path: mounted.path.clone(), solo, notifier, failures: AtomicU64::new(0) };
    for name in ["dir", "other", "mountpoint"] {
        std::fs::create_dir(spike.at(name)).unwrap();
    }
    std::fs::write(spike.at("file"), vec![b'a'; 1 << 20]).unwrap();

    lookups(&spike);
    mkdirs(&spike);
    reads_cached(&spike);
    reads_direct(&spike);
    dirty_mapping(&spike);
    stuck_pool(&spike);
    mounted_below(&spike);
    storm(&spike, Duration::from_secs(6));

    println!("threads of the pool at the end: {}", spike.notifier.threads());
    let failures = spike.failures.load(Ordering::Relaxed);
    let Spike { path, solo, notifier, .. } = spike;
    unmount_fuse(&path, nacre_fuse::Unmount::Idle).unwrap();
    solo.stop();
    drop(notifier);
    println!("{}", if failures == 0 { "verdict: every rule holds" } else { "verdict: FAILED" });
    std::process::exit(i32::from(failures != 0));
}

/// A LOOKUP of the directory is pending.
fn lookups(s: &Spike) {
    println!("LOOKUP of a directory held back");
    let dir = s.fid("dir");
    std::fs::write(s.at("dir/known"), "x").unwrap();
    s.hold("lookup", dir);
    let path = s.at("dir/unknown");
    let lookup = Pending::run(move || std::fs::metadata(path).is_err());
    s.await_held("lookup");
    s.returns("INC_EPOCH returns", Notification::IncEpoch);
    s.returns(
        "INVAL_INODE of the directory's attributes returns",
        Notification::InvalInode { fid: dir, pages: None },
    );
    let entry = s.waits("INVAL_ENTRY", Notification::InvalEntry { parent: dir, name: b"known".to_vec() });
    let delete = s.waits(
        "DELETE",
        Notification::Delete { parent: dir, child: Fid::from_ino(1 << 30), name: b"none".to_vec() },
    );
    s.returns("INC_EPOCH after them returns", Notification::IncEpoch);
    s.release();
    s.ends("the LOOKUP ends", &lookup);
    s.ends("INVAL_ENTRY ends", &entry);
    s.ends("DELETE ends", &delete);
}

/// A MKDIR in the directory is pending: the kernel holds the directory's lock exclusively.
fn mkdirs(s: &Spike) {
    println!("MKDIR held back");
    let dir = s.fid("dir");
    s.hold("mkdir", dir);
    let path = s.at("dir/new");
    let mkdir = Pending::run(move || std::fs::create_dir(path).is_ok());
    s.await_held("mkdir");
    s.returns("INC_EPOCH returns", Notification::IncEpoch);
    let known = s.at("dir/known");
    let stat = Pending::run(move || std::fs::metadata(known).is_ok());
    let entry = s.waits("INVAL_ENTRY", Notification::InvalEntry { parent: dir, name: b"known".to_vec() });
    s.release();
    s.ends("the MKDIR ends", &mkdir);
    s.ends("a stat in the directory ends", &stat);
    s.ends("INVAL_ENTRY ends", &entry);
}

fn read_at(path: &Path, offset: u64) -> Pending<bool> {
    let path = path.to_owned();
    Pending::run(move || File::open(path).unwrap().read_exact_at(&mut [0; 4096], offset).is_ok())
}

/// A READ through the page cache is pending: its pages are locked.
fn reads_cached(s: &Spike) {
    println!("READ of a cached file held back");
    let file = s.fid("file");
    s.returns(
        "INVAL_INODE, all pages, nothing held",
        Notification::InvalInode { fid: file, pages: Some((0, 0)) },
    );
    s.hold("read", file);
    // Far into the file, so that read-ahead does not start at 0.
    let read = read_at(&s.at("file"), 512 << 10);
    s.await_held("read");
    s.returns("INVAL_INODE of attributes returns", Notification::InvalInode { fid: file, pages: None });
    let before = Notification::InvalInode { fid: file, pages: Some((0, 128 << 10)) };
    s.returns("INVAL_INODE that leaves the READ's range out returns", before);
    let all =
        s.waits("INVAL_INODE of all pages", Notification::InvalInode { fid: file, pages: Some((0, 0)) });
    s.release();
    s.ends("the READ ends", &read);
    s.ends("INVAL_INODE of all pages ends", &all);
}

/// A READ of a direct handle is pending: no page is locked.
fn reads_direct(s: &Spike) {
    println!("READ of a direct file held back");
    let file = s.fid("file");
    s.solo.ask(|fs| fs.fopen_flags.set(nacre_fuse::abi::fopen::DIRECT_IO));
    s.hold("read", file);
    let read = read_at(&s.at("file"), 0);
    s.await_held("read");
    s.returns(
        "INVAL_INODE of all pages returns",
        Notification::InvalInode { fid: file, pages: Some((0, 0)) },
    );
    s.release();
    s.ends("the READ ends", &read);
    s.solo.ask(|fs| fs.fopen_flags.set(nacre_fuse::abi::fopen::KEEP_CACHE));
}

/// A process with a shared mapping that dirties a page whenever it is told.
struct Mapper {
    child: std::process::Child,
    replies: std::io::BufReader<std::process::ChildStdout>,
}
impl Mapper {
    fn start(path: &Path) -> Self {
        let script = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
map = mmap.mmap(fd, 1 << 20, mmap.MAP_SHARED)
for line in sys.stdin:
    page, byte = (int(n) for n in line.split())
    if byte >= 0:
        map[page * 4096] = byte
    print(map[page * 4096], flush=True)
";
        let mut child = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(path)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("python3 is needed for the shared mapping");
        let replies = std::io::BufReader::new(child.stdout.take().unwrap());
        Self { child, replies }
    }
    /// Writes (or, with -1, reads) the first byte of a page through the mapping.
    fn touch(&mut self, page: u32, byte: i32) -> i32 {
        use std::io::{BufRead, Write};
        writeln!(self.child.stdin.as_mut().unwrap(), "{page} {byte}").unwrap();
        let mut line = String::new();
        self.replies.read_line(&mut line).unwrap();
        line.trim().parse().unwrap_or(-1)
    }
    fn stop(mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Pages dirtied through a mapping: the kernel sends WRITE inside the notification and waits for our reply.
fn dirty_mapping(s: &Spike) {
    for direct in [false, true] {
        let flags =
            if direct { nacre_fuse::abi::fopen::DIRECT_IO } else { nacre_fuse::abi::fopen::KEEP_CACHE };
        println!("dirty shared mapping, {} handle", if direct { "direct" } else { "cached" });
        s.solo.ask(move |fs| fs.fopen_flags.set(flags));
        let file = s.fid("file");
        let mut mapper = Mapper::start(&s.at("file"));
        mapper.touch(3, 7);
        s.returns(
            "INVAL_INODE of all pages returns",
            Notification::InvalInode { fid: file, pages: Some((0, 0)) },
        );
        mapper.touch(3, 8);
        s.hold("write", file);
        let write =
            s.waits("with the WRITE held back", Notification::InvalInode { fid: file, pages: Some((0, 0)) });
        s.returns("INVAL_INODE of attributes returns", Notification::InvalInode { fid: file, pages: None });
        s.release();
        s.ends("it ends with the reply to the WRITE", &write);
        // A READ held back elsewhere and a dirty page: the rule leaves the READ's range out.
        mapper.touch(5, 9);
        s.hold("read", file);
        let read = read_at(&s.at("file"), 900 << 10);
        s.await_held("read");
        let pages = Some((0, 512 << 10));
        s.returns("a READ held, its range left out, returns", Notification::InvalInode { fid: file, pages });
        s.release();
        s.ends("the READ ends", &read);
        mapper.stop();
    }
    s.solo.ask(|fs| fs.fopen_flags.set(nacre_fuse::abi::fopen::KEEP_CACHE));
}

/// More stuck notifications than the pool has threads at first.
fn stuck_pool(s: &Spike) {
    println!("ten INVAL_ENTRYs stuck behind one LOOKUP");
    let dir = s.fid("dir");
    s.hold("lookup", dir);
    let path = s.at("dir/unknown2");
    let lookup = Pending::run(move || std::fs::metadata(path).is_err());
    s.await_held("lookup");
    let stuck: Vec<_> = (0..10)
        .map(|_| s.notify(Notification::InvalEntry { parent: dir, name: b"known".to_vec() }))
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    s.returns("INC_EPOCH gets through", Notification::IncEpoch);
    println!("       threads now: {}", s.notifier.threads());
    s.release();
    s.ends("the LOOKUP ends", &lookup);
    for pending in &stuck {
        if pending.wait(HANG).is_none() {
            s.check("all of them end", false, "hangs");
        }
    }
}

/// What INC_EPOCH and INVAL_ENTRY do to a file system mounted on a directory of the mount.
fn mounted_below(s: &Spike) {
    println!("a file system mounted below");
    let tmpfs = || {
        use rustix::mount::{MountFlags, mount};
        mount("none", s.at("mountpoint"), "tmpfs", MountFlags::empty(), None).unwrap();
        std::fs::write(s.at("mountpoint/inside"), "x").unwrap();
    };
    let is_there = || std::fs::metadata(s.at("mountpoint/inside")).is_ok();
    for (what, notification) in [
        ("INC_EPOCH", Notification::IncEpoch),
        ("INVAL_ENTRY of it", Notification::InvalEntry { parent: Fid::ROOT, name: b"mountpoint".to_vec() }),
    ] {
        tmpfs();
        let done = s.notify(notification).wait(HANG);
        println!("       {what}: returned {}, still mounted {}", done.is_some(), is_there());
        if mounted(&s.at("mountpoint")) {
            rustix::mount::unmount(s.at("mountpoint"), rustix::mount::UnmountFlags::DETACH).unwrap();
        }
    }
}

fn mounted(path: &Path) -> bool {
    nacre_fuse::mounted_type(path).is_some_and(|kind| kind == "tmpfs")
}

/// The rule for a name: INVAL_ENTRY; if it has not returned after 1 ms, INC_EPOCH as well, which is enough.
fn invalidate_name(s: &Spike, parent: Fid, name: &[u8], epochs: &AtomicU64) -> bool {
    let entry = s.notify(Notification::InvalEntry { parent, name: name.to_vec() });
    if entry.wait(LATE).is_some() {
        return true;
    }
    epochs.fetch_add(1, Ordering::Relaxed);
    s.notify(Notification::IncEpoch).wait(HANG).is_some()
}

fn storm(s: &Spike, length: Duration) {
    println!("storm, {length:?}");
    let (dir, file) = (s.fid("dir"), s.fid("file"));
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    let mut worker = |mut work: Box<dyn FnMut(u64) + Send>| {
        let (stop, done) = (stop.clone(), done.clone());
        threads.push(std::thread::spawn(move || {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                work(n);
                done.fetch_add(1, Ordering::Relaxed);
            }
        }));
    };
    let path = s.path.clone();
    worker(Box::new(move |n| {
        let p = path.join(format!("dir/m{}", n % 50));
        let _ = std::fs::create_dir(&p);
        let _ = std::fs::remove_dir(&p);
    }));
    let path = s.path.clone();
    worker(Box::new(move |n| drop(std::fs::metadata(path.join(format!("dir/none{}", n % 1000))))));
    let path = s.path.clone();
    worker(Box::new(move |n| {
        let f = File::open(path.join("file")).unwrap();
        let _ = f.read_exact_at(&mut [0; 4096], (n * 7919 % 255) * 4096);
    }));
    let mapper = Arc::new(Mutex::new(Mapper::start(&s.at("file"))));
    let stores = mapper.clone();
    worker(Box::new(move |n| {
        stores.lock().unwrap().touch((n % 128) as u32, (n % 200) as i32);
    }));

    let epochs = AtomicU64::new(0);
    let (mut names, mut inodes, mut stale, mut hung) = (0u64, 0u64, 0u64, 0u64);
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < length && hung == 0 {
        // A name moves to another inode behind the kernel's back; after the invalidation stat must show it.
        let made = s.solo.ask(move |fs| fs.replace_behind(dir, b"victim"));
        let begun = Instant::now();
        if !invalidate_name(s, dir, b"victim", &epochs) {
            hung += 1;
        }
        times.push(begun.elapsed());
        names += 1;
        let path = s.at("dir/victim");
        match Pending::run(move || std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap()))
            .wait(HANG)
        {
            Some((ino, _)) => stale += u64::from(ino != made.ino()),
            None => hung += 1,
        }
        // Pages of the part that nobody has under READ here: the upper half belongs to the mapping's first half.
        if s.notify(Notification::InvalInode { fid: file, pages: Some((0, 0)) }).wait(HANG).is_none() {
            hung += 1;
        }
        inodes += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let ended =
        Pending::run(move || threads.into_iter().for_each(|t| drop(t.join()))).wait(HANG * 2).is_some();
    if let Ok(mapper) = Arc::try_unwrap(mapper) {
        mapper.into_inner().unwrap().stop();
    }
    times.sort();
    let at = |q: usize| times.get(times.len() * q / 100).copied().unwrap_or_default();
    println!(
        "       {names} names, {inodes} inodes invalidated, {} other operations, {} epochs needed",
        done.load(Ordering::Relaxed),
        epochs.load(Ordering::Relaxed)
    );
    println!(
        "       a name: p50 {:?}, p90 {:?}, p99 {:?}, longest {:?}",
        at(50),
        at(90),
        at(99),
        times.last()
    );
    s.check("nothing hung", hung == 0 && ended, &format!("{hung} hung, workers ended {ended}"));
    s.check("no stale name after an invalidation", stale == 0, &format!("{stale} stale"));
}
