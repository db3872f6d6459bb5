//! kill -9 of every kind of process while programs work on two mounts: nothing answered is lost, nothing happens twice.
//!
//! MGS, MDT and two OSTs are processes of their own. Workers change files and directories of their own through two
//! mounts and know what there must be; the killer ends one process at a time and starts it again. An error that a
//! killed *server* causes is a violation: its callers wait. When a *mount* is killed, only the call that was under
//! way may fail or be half done. At the end every worker's tree is compared through the other mount.

use super::system::binary;
use crate::shell::run as sh;
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const SERVERS: [&str; 4] = ["mgs", "mdt", "ost0", "ost1"];
/// Workers per mount.
const WORKERS: u64 = 3;
/// Names a worker uses.
const NAMES: u64 = 24;
/// A file is not appended to beyond this.
const FILE_BYTES_MAX: usize = 64 << 10;
/// A restarted process serves again by then, or the run has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Violations that are told in full.
const TOLD_MAX: usize = 20;

struct Rng(u64);
impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
}

fn wait(time: Duration) {
    let moment =
        rustix::event::Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    let _nothing = rustix::event::poll(&mut [], Some(&moment));
}

/// Servers and mounts as processes.
struct Cluster {
    nacre: PathBuf,
    base: tempfile::TempDir,
    servers: Vec<Option<Child>>,
    mounts: Vec<Option<Child>>,
}

impl Cluster {
    fn start(nacre: PathBuf) -> Result<Self> {
        let base = tempfile::Builder::new().prefix("nacre-crash-").tempdir()?;
        let mut cluster = Self { nacre, base, servers: Vec::new(), mounts: Vec::new() };
        let mgs = cluster.mgs();
        for (at, name) in SERVERS.iter().enumerate() {
            let mut mkfs = cluster.command();
            mkfs.arg("mkfs").stdout(Stdio::null());
            match *name {
                "mgs" => mkfs.arg("--mgs"),
                "mdt" => mkfs.args(["--mdt", "--index", "0"]),
                _ => mkfs.args(["--ost", "--index", if *name == "ost0" { "0" } else { "1" }]),
            };
            if at > 0 {
                mkfs.args(["--fsname", "demo", "--mgsnode", &mgs]);
            }
            sh(mkfs.arg(cluster.path(name)))?;
            cluster.servers.push(None);
            cluster.start_server(at)?;
        }
        for at in 0..2 {
            fs::create_dir(cluster.mount(at))?;
            cluster.mounts.push(None);
            cluster.start_mount(at)?;
        }
        Ok(cluster)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }
    fn mount(&self, at: usize) -> PathBuf {
        self.path(&format!("mnt{at}"))
    }
    fn mgs(&self) -> String {
        format!("unix:{}", self.path("mgs").join("nacre.sock").display())
    }
    fn command(&self) -> Command {
        let mut command = Command::new(&self.nacre);
        command.env("NACRE_RUN_DIR", self.path("run")).env("NACRE_LOG", "warn");
        command
    }
    fn log(&self, name: &str) -> Result<File> {
        Ok(OpenOptions::new().create(true).append(true).open(self.path(&format!("{name}.log")))?)
    }
    fn start_server(&mut self, at: usize) -> Result<()> {
        let name = SERVERS[at];
        let mut serve = self.command();
        serve.arg("serve").arg(self.path(name)).stdin(Stdio::null()).process_group(0);
        serve.stdout(Stdio::null()).stderr(self.log(name)?);
        self.servers[at] = Some(serve.spawn().with_context(|| format!("cannot serve {name}"))?);
        Ok(())
    }
    fn start_mount(&mut self, at: usize) -> Result<()> {
        let mount = self.mount(at);
        let mut command = self.command();
        command.arg("mount").arg(format!("{}:/demo", self.mgs())).arg(&mount).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(self.log(&format!("mnt{at}"))?);
        self.mounts[at] = Some(command.spawn()?);
        let until = Instant::now() + PATIENCE;
        while !is_mounted(&mount)? {
            ensure!(Instant::now() < until, "{} does not get mounted", mount.display());
            wait(Duration::from_millis(20));
        }
        Ok(())
    }
    fn kill(child: &mut Option<Child>) -> Result<()> {
        if let Some(mut child) = child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
    fn unmount_dead(&self, at: usize) {
        drop(Command::new("umount").arg("-l").arg(self.mount(at)).stderr(Stdio::null()).status());
    }
}
impl Drop for Cluster {
    fn drop(&mut self) {
        for at in 0..self.mounts.len() {
            self.unmount_dead(at);
        }
        for child in self.mounts.iter_mut().chain(&mut self.servers) {
            drop(Self::kill(child));
        }
    }
}

fn is_mounted(dir: &Path) -> Result<bool> {
    let dir = format!(" {} fuse", dir.display());
    Ok(fs::read_to_string("/proc/mounts")?.lines().any(|line| line.contains(&dir)))
}

/// What workers and killer share.
struct Shared {
    stop: AtomicBool,
    operations: AtomicU64,
    /// Per mount: kills so far; odd while it is away.
    mount_kills: [AtomicU64; 2],
    violations: Mutex<Vec<String>>,
}
impl Shared {
    fn violation(&self, text: String) {
        let mut all = self.violations.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < TOLD_MAX {
            eprintln!("violation: {text}");
        }
        all.push(text);
    }
    fn count(&self) -> usize {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Dir,
    /// Number of the content: names of one file have the same.
    File(u64),
}

/// One program with a directory of its own.
struct Worker<'a> {
    shared: &'a Shared,
    mount: usize,
    dir: PathBuf,
    rng: Rng,
    names: BTreeMap<String, Node>,
    contents: BTreeMap<u64, Vec<u8>>,
    next: u64,
    longest: Duration,
}

type Io<T> = std::io::Result<T>;

impl Worker<'_> {
    fn work(&mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let kills = self.kills();
            if kills % 2 == 1 {
                wait(Duration::from_millis(20));
                continue;
            }
            let began = Instant::now();
            let (a, b) = (self.name(), self.name());
            let done = self.step(&a, &b);
            if self.kills() != kills {
                self.wait_for_mount();
                self.relearn(&[&a, &b]);
                continue;
            }
            self.longest = self.longest.max(began.elapsed());
            if let Err(text) = done {
                self.shared.violation(format!("{}: {text}", self.dir.display()));
                self.relearn(&[&a, &b]);
            }
            self.shared.operations.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn kills(&self) -> u64 {
        self.shared.mount_kills[self.mount].load(Ordering::SeqCst)
    }
    fn wait_for_mount(&self) {
        while self.kills() % 2 == 1 {
            wait(Duration::from_millis(20));
        }
    }
    fn name(&mut self) -> String {
        format!("n{}", self.rng.below(NAMES))
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
    /// One operation; `Err` says how its outcome differs from what must be.
    fn step(&mut self, a: &str, b: &str) -> Result<(), String> {
        let node = self.names.get(a).cloned();
        let (path, other) = (self.path(a), self.path(b));
        match self.rng.below(9) {
            0 | 1 => {
                let content = self.line();
                let done = OpenOptions::new().write(true).create_new(true).open(&path);
                let done = done
                    .and_then(|mut f| f.write_all(&content).and_then(|()| f.sync_data_now(&mut self.rng)));
                expect("create", a, done, node.is_some().then_some("File exists"))?;
                if node.is_none() {
                    let id = self.new_content(content);
                    self.names.insert(a.into(), Node::File(id));
                }
            }
            2 | 3 => {
                let Some(Node::File(id)) = node else { return Ok(()) };
                if self.contents[&id].len() > FILE_BYTES_MAX {
                    return Ok(());
                }
                let line = self.line();
                let done = OpenOptions::new().append(true).open(&path);
                let done =
                    done.and_then(|mut f| f.write_all(&line).and_then(|()| f.sync_data_now(&mut self.rng)));
                expect("append", a, done, None)?;
                if let Some(content) = self.contents.get_mut(&id) {
                    content.extend_from_slice(&line);
                }
            }
            4 => {
                let (from, to) = (node, self.names.get(b).cloned());
                let done = fs::rename(&path, &other);
                let refused = match (&from, &to) {
                    (None, _) => Some("No such file"),
                    _ if a == b => None,
                    (Some(Node::Dir), Some(Node::File(_))) => Some("Not a directory"),
                    (Some(Node::File(_)), Some(Node::Dir)) => Some("Is a directory"),
                    _ => None,
                };
                expect("rename", a, done, refused)?;
                let same = matches!((&from, &to), (Some(Node::File(x)), Some(Node::File(y))) if x == y);
                if refused.is_none() && a != b && !same {
                    self.names.remove(a);
                    self.names.extend(from.map(|node| (b.to_owned(), node)));
                }
            }
            5 => {
                let done = fs::remove_file(&path);
                let refused = match node {
                    None => Some("No such file"),
                    Some(Node::Dir) => Some("Is a directory"),
                    Some(Node::File(_)) => None,
                };
                expect("unlink", a, done, refused)?;
                if refused.is_none() {
                    self.names.remove(a);
                }
            }
            6 => {
                let done = fs::hard_link(&path, &other);
                let refused = match (&node, self.names.contains_key(b)) {
                    (None, _) => Some("No such file"),
                    (_, true) => Some("File exists"),
                    (Some(Node::Dir), false) => Some("not permitted"),
                    (Some(Node::File(_)), false) => None,
                };
                expect("link", b, done, refused)?;
                if refused.is_none() {
                    self.names.extend(node.map(|node| (b.to_owned(), node)));
                }
            }
            7 => {
                if node == Some(Node::Dir) {
                    expect("rmdir", a, fs::remove_dir(&path), None)?;
                    self.names.remove(a);
                } else {
                    expect("mkdir", a, fs::create_dir(&path), node.is_some().then_some("File exists"))?;
                    self.names.entry(a.into()).or_insert(Node::Dir);
                }
            }
            _ => {
                let Some(Node::File(id)) = node else { return Ok(()) };
                let found = read(&path).map_err(|e| format!("read {a}: {e}"))?;
                if found != self.contents[&id] {
                    return Err(format!("read {a}: {}", difference(&found, &self.contents[&id])));
                }
            }
        }
        Ok(())
    }
    fn line(&mut self) -> Vec<u8> {
        self.next += 1;
        let mut line = format!("{}:{}", self.dir.display(), self.next).into_bytes();
        line.resize(line.len() + usize::try_from(self.rng.below(3000)).unwrap_or(0), b'.');
        line.push(b'\n');
        line
    }
    fn new_content(&mut self, content: Vec<u8>) -> u64 {
        self.next += 1;
        self.contents.insert(self.next, content);
        self.next
    }
    /// Takes what there is now for right, of the names of one call.
    fn relearn(&mut self, names: &[&str]) {
        for name in names {
            let path = self.path(name);
            match fs::symlink_metadata(&path) {
                Err(_) => drop(self.names.remove(*name)),
                Ok(meta) if meta.is_dir() => drop(self.names.insert((*name).into(), Node::Dir)),
                Ok(_) => {
                    let content = read(&path).unwrap_or_default();
                    // Other names of the file follow.
                    let id = match self.names.get(*name) {
                        Some(Node::File(id)) => *id,
                        _ => self.new_content(Vec::new()),
                    };
                    self.contents.insert(id, content);
                    self.names.insert((*name).into(), Node::File(id));
                }
            }
        }
    }
    /// Compares everything, seen from another mount.
    fn check(&self, from: &Path) -> Result<()> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let content = if entry.file_type()?.is_dir() { None } else { Some(read(&entry.path())?) };
            found.insert(name, content);
        }
        for (name, node) in &self.names {
            let expected = match node {
                Node::Dir => None,
                Node::File(id) => Some(&self.contents[id]),
            };
            match (found.remove(name), expected) {
                (None, _) => self.shared.violation(format!("{}/{name} is lost", from.display())),
                (Some(None), None) => {}
                (Some(Some(found)), Some(expected)) if found == *expected => {}
                (Some(Some(found)), Some(expected)) => {
                    let text = difference(&found, expected);
                    self.shared.violation(format!("{}/{name}: {text}", from.display()));
                }
                _ => self.shared.violation(format!("{}/{name} is of another type", from.display())),
            }
        }
        for name in found.keys() {
            self.shared.violation(format!("{}/{name} is there again", from.display()));
        }
        Ok(())
    }
}

trait SyncNow {
    /// Every fourth change waits until it is durable.
    fn sync_data_now(&self, rng: &mut Rng) -> Io<()>;
}
impl SyncNow for File {
    fn sync_data_now(&self, rng: &mut Rng) -> Io<()> {
        if rng.below(4) == 0 { self.sync_data() } else { Ok(()) }
    }
}

fn expect<T>(what: &str, name: &str, done: Io<T>, refused: Option<&str>) -> Result<(), String> {
    match (done, refused) {
        (Ok(_), None) => Ok(()),
        (Err(e), Some(why)) if e.to_string().contains(why) => Ok(()),
        (Ok(_), Some(why)) => Err(format!("{what} {name}: succeeded, must be refused ({why})")),
        (Err(e), None) => Err(format!("{what} {name}: {e}")),
        (Err(e), Some(why)) => Err(format!("{what} {name}: {e}, must be {why}")),
    }
}

fn read(path: &Path) -> Io<Vec<u8>> {
    let mut content = Vec::new();
    File::open(path)?.read_to_end(&mut content)?;
    Ok(content)
}

fn difference(found: &[u8], expected: &[u8]) -> String {
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    format!("{} bytes instead of {}, first difference at byte {at}", found.len(), expected.len())
}

/// A call that needs the killed process has come back.
fn probe(mount: &Path, round: u64) -> Io<()> {
    let path = mount.join(format!("probe{round}"));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    file.write_all(b"probe")?;
    file.sync_all()?;
    drop(file);
    fs::remove_file(&path)
}

pub(crate) fn run(minutes: f64, seed: u64) -> Result<()> {
    let mut cluster = Cluster::start(binary()?)?;
    let shared = Shared {
        stop: AtomicBool::new(false),
        operations: AtomicU64::new(0),
        mount_kills: [AtomicU64::new(0), AtomicU64::new(0)],
        violations: Mutex::default(),
    };
    let mut workers = Vec::new();
    for mount in 0..2 {
        for number in 0..WORKERS {
            let dir = cluster.mount(mount).join(format!("w{mount}.{number}"));
            fs::create_dir(&dir)?;
            let rng = Rng(seed.wrapping_add((mount as u64 * 100 + number) * 7919) | 1);
            let (names, contents) = (BTreeMap::new(), BTreeMap::new());
            let (next, longest) = (0, Duration::ZERO);
            workers.push(Worker { shared: &shared, mount, dir, rng, names, contents, next, longest });
        }
    }
    let until = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut recoveries: Vec<Duration> = Vec::new();
    let mut kills = 0u64;
    let outcome = std::thread::scope(|scope| {
        for worker in &mut workers {
            scope.spawn(|| worker.work());
        }
        let outcome = (|| -> Result<()> {
            let mut rng = Rng(seed | 1);
            while Instant::now() < until {
                wait(Duration::from_millis(300 + rng.below(1200)));
                let victim = usize::try_from(rng.below(11))?;
                kills += 1;
                let mount = match victim {
                    10 => 1,
                    at => {
                        // The MDT more often than the others.
                        let at = [0, 1, 1, 1, 1, 2, 2, 3, 3, 2][at];
                        Cluster::kill(&mut cluster.servers[at])?;
                        wait(Duration::from_millis(rng.below(400)));
                        let began = Instant::now();
                        cluster.start_server(at)?;
                        probe(&cluster.mount(0), kills).context("a call after a restart failed")?;
                        recoveries.push(began.elapsed());
                        continue;
                    }
                };
                shared.mount_kills[mount].fetch_add(1, Ordering::SeqCst);
                Cluster::kill(&mut cluster.mounts[mount])?;
                cluster.unmount_dead(mount);
                cluster.start_mount(mount)?;
                shared.mount_kills[mount].fetch_add(1, Ordering::SeqCst);
            }
            Ok(())
        })();
        shared.stop.store(true, Ordering::Relaxed);
        outcome
    });
    if let Err(error) = outcome {
        shared.violation(format!("{error:#}"));
    }
    for worker in &workers {
        let name = worker.dir.file_name().unwrap_or_default();
        worker.check(&cluster.mount(1 - worker.mount).join(name)).unwrap_or_else(|e: anyhow::Error| {
            shared.violation(format!("{}: {e:#}", worker.dir.display()));
        });
    }
    recoveries.sort();
    let at = |part: usize| recoveries.get(part).copied().unwrap_or_default().as_secs_f64();
    println!(
        "recovery of a server: median {:.2} s, worst {:.2} s; longest call of a worker {:.2} s",
        at(recoveries.len() / 2),
        at(recoveries.len().saturating_sub(1)),
        workers.iter().map(|w| w.longest).max().unwrap_or_default().as_secs_f64()
    );
    let (operations, violations) = (shared.operations.load(Ordering::Relaxed), shared.count());
    if violations > 0 {
        let kept = cluster.base.path().to_owned();
        eprintln!("logs of the processes: {}/*.log", kept.display());
        for name in SERVERS.iter().map(|s| (*s).to_owned()).chain(["mnt0".to_owned(), "mnt1".to_owned()]) {
            let log = fs::read_to_string(kept.join(format!("{name}.log"))).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(12).collect();
            last.iter().rev().for_each(|line| eprintln!("{name}: {line}"));
        }
    }
    println!("{kills} kills, {operations} operations, {violations} violations");
    if violations > 0 {
        bail!("{violations} violations");
    }
    Ok(())
}
