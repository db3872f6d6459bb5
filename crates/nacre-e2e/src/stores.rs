//! Stores on loop devices that fail while programs work: each comes back on the same boot of the machine, and every file
//! that was acknowledged must be right afterwards, or refuse to be read.
//!
//! The image of the store is a sparse file in a small tmpfs. When that runs full, the device returns EIO to what the
//! kernel writes back, and the kernel marks those pages clean: the log cannot be synced, and the target ends itself.

use crate::shell::{output, run as sh};
use crate::system::binary;
use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const IMAGE_BYTES: u64 = 256 << 20;
const BACKING: &str = "size=160m";
/// A server or mount that was started serves within this time, or the run has failed.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const TARGETS: [&str; 2] = ["ost", "mdt"];
const SERVERS: [&str; 3] = ["mgs", "mdt", "ost"];

/// Which cases run.
#[derive(clap::Args, Debug, Default)]
pub struct Options {
    /// Only this target's store is on the loop device (ost, mdt)
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(TARGETS))]
    target: Option<String>,
    /// Only this loss
    #[arg(long)]
    loss: Option<Loss>,
    /// How often each case runs (once, unless given)
    #[arg(long)]
    rounds: Option<u32>,
    /// Where logs and the device of a case that failed are copied to
    #[arg(long)]
    keep: Option<PathBuf>,
}

/// The fault of the store.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The backing runs full; the store is served again as the kernel's cache shows it, if it is writable.
    Full,
    /// The backing runs full; the store is checked and mounted again.
    FullMounted,
    /// Its server is killed, and the store is mounted again.
    Mounted,
    /// Its server is killed, and a copy of the image takes its place, without what was not written back.
    Copied,
}

/// Files that were acknowledged: number and length; the bytes follow from the number.
type Acknowledged = Arc<Mutex<Vec<(u32, usize)>>>;

struct Writer {
    stop: Arc<AtomicBool>,
    done: Acknowledged,
    thread: JoinHandle<Result<()>>,
}

struct Cluster {
    nacre: PathBuf,
    base: tempfile::TempDir,
    /// The target whose store is on the loop device.
    on_loop: &'static str,
    device: String,
    servers: Vec<(&'static str, Child)>,
    mounts: Vec<Child>,
}

/// Every loss with the store of an OST and of the MDT.
pub fn run(options: &Options) -> Result<()> {
    let nacre = binary()?;
    let rounds = options.rounds.unwrap_or(1);
    for on_loop in TARGETS.into_iter().filter(|name| options.target.as_ref().is_none_or(|only| only == name))
    {
        for loss in
            Loss::value_variants().iter().filter(|loss| options.loss.is_none_or(|only| only == **loss))
        {
            for _ in 0..rounds {
                run_case(nacre.clone(), on_loop, *loss, options)?;
            }
        }
    }
    Ok(())
}
fn run_case(nacre: PathBuf, on_loop: &'static str, loss: Loss, options: &Options) -> Result<()> {
    let begin = Instant::now();
    let mut cluster = Cluster::start(nacre, on_loop)?;
    let summary = cluster.lose(loss).or_else(|error| {
        if let Some(keep) = &options.keep {
            sh(Command::new("cp").args(["-a", "--sparse=always"]).args(cluster.evidence()).arg(keep))?;
        }
        let logs = cluster.last_lines(12);
        Err(error).with_context(|| format!("store of the {on_loop}, {loss:?}; its logs:\n{logs}"))
    })?;
    println!("store of the {on_loop}, {loss:?}: {summary} ({:.0} s)", begin.elapsed().as_secs_f64());
    Ok(())
}

impl Cluster {
    fn start(nacre: PathBuf, on_loop: &'static str) -> Result<Self> {
        let base = tempfile::Builder::new().prefix("nacre-stores-").tempdir()?;
        let mut cluster =
            Self { nacre, base, on_loop, device: String::new(), servers: Vec::new(), mounts: Vec::new() };
        for dir in SERVERS.iter().chain(&["backing", "a", "b"]) {
            fs::create_dir(cluster.path(dir))?;
        }
        sh(Command::new("mount").args(["-t", "tmpfs", "-o", BACKING, "none"]).arg(cluster.path("backing")))?;
        File::create(cluster.image())?.set_len(IMAGE_BYTES)?;
        sh(Command::new("mkfs.ext4").args(["-q", "-F", "-E", "lazy_itable_init=0"]).arg(cluster.image()))?;
        cluster.attach(&cluster.image())?;
        let mgs = format!("unix:{}", cluster.path("mgs").join("nacre.sock").display());
        for name in SERVERS {
            let mut mkfs = cluster.command();
            mkfs.arg("mkfs").arg(format!("--{name}")).stdout(Stdio::null());
            if name != "mgs" {
                mkfs.args(["--index", "0", "--fsname", "demo", "--mgsnode", &mgs]);
            }
            sh(mkfs.arg(cluster.store(name)))?;
            cluster.serve(name)?;
        }
        cluster.mount("a")?;
        cluster.mount("b")?;
        Ok(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }
    fn image(&self) -> PathBuf {
        self.path("backing").join("disk.img")
    }
    fn store(&self, name: &str) -> PathBuf {
        // The mount point of the loop device has a lost+found, which a target tolerates.
        self.path(name)
    }
    fn command(&self) -> Command {
        let mut command = Command::new(&self.nacre);
        command.env("NACRE_RUN_DIR", self.path("run")).env("NACRE_LOG", "info").stdin(Stdio::null());
        command
    }
    fn log(&self, name: &str) -> Result<File> {
        Ok(OpenOptions::new().create(true).append(true).open(self.path(&format!("{name}.log")))?)
    }
    fn last_lines(&self, lines: usize) -> String {
        let mut out = String::new();
        for name in SERVERS.iter().chain(&["a", "b"]) {
            let log = fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default();
            let skip = log.lines().count().saturating_sub(lines);
            log.lines().skip(skip).for_each(|line| out.push_str(&format!("{name}: {line}\n")));
        }
        out
    }

    /// All logs, and the device as it is.
    fn evidence(&self) -> Vec<PathBuf> {
        let logs = SERVERS.iter().chain(&["a", "b"]).map(|name| self.path(&format!("{name}.log")));
        logs.chain([self.image()]).filter(|path| path.exists()).collect()
    }

    fn attach(&mut self, image: &Path) -> Result<()> {
        let device = output(Command::new("losetup").args(["--find", "--show"]).arg(image))?;
        self.device = device.trim().to_owned();
        sh(Command::new("mount").arg(&self.device).arg(self.path(self.on_loop)))
    }
    fn detach(&self) -> Result<()> {
        sh(Command::new("umount").arg(self.path(self.on_loop)))
    }
    /// As after any error of a device.
    fn fsck(&self) -> Result<()> {
        // 1: errors were corrected.
        let status =
            Command::new("e2fsck").args(["-f", "-y"]).arg(&self.device).stdout(Stdio::null()).status()?;
        ensure!(status.code().is_some_and(|code| code <= 1), "e2fsck ended with {status}");
        Ok(())
    }

    fn serve(&mut self, name: &'static str) -> Result<()> {
        let ready = fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default();
        let mut command = self.command();
        command.arg("serve").arg(self.store(name)).args(["--lease", "5"]);
        let mut child = command.stdout(Stdio::null()).stderr(self.log(name)?).spawn()?;
        let begin = Instant::now();
        loop {
            let log = fs::read_to_string(self.path(&format!("{name}.log")))?;
            if log.get(ready.len()..).unwrap_or_default().contains("target started") {
                break;
            }
            ensure!(child.try_wait()?.is_none(), "the server of {name} has ended at its start");
            ensure!(begin.elapsed() < START_TIMEOUT, "the server of {name} does not start");
            super::pause();
        }
        self.servers.push((name, child));
        Ok(())
    }
    fn mount(&mut self, name: &str) -> Result<()> {
        let address = format!("unix:{}:/demo", self.path("mgs").join("nacre.sock").display());
        let dir = self.path(name);
        let mut command = self.command();
        // What a mount keeps, and an OST refuses later, is reported by fsync(2) only.
        command.arg("mount").arg(address).arg(&dir).args(["-o", "write_through"]);
        self.mounts.push(command.stdout(Stdio::null()).stderr(self.log(name)?).spawn()?);
        let begin = Instant::now();
        while !fs::read_to_string("/proc/mounts")?.contains(&format!("{} ", dir.display())) {
            ensure!(begin.elapsed() < START_TIMEOUT, "mount {name} does not get ready");
            super::pause();
        }
        Ok(())
    }
    fn take_server(&mut self) -> Result<Child> {
        let at = self.servers.iter().position(|(name, _)| *name == self.on_loop).context("it is served")?;
        Ok(self.servers.remove(at).1)
    }
    fn kill_server(&mut self) -> Result<()> {
        let mut server = self.take_server()?;
        server.kill()?;
        server.wait()?;
        Ok(())
    }

    /// Leaves hardly any room under the device, until the server has ended itself.
    fn run_full(&mut self) -> Result<()> {
        let filler = self.path("backing").join("filler");
        let mut file = File::create(&filler)?;
        while file.write_all(&[1; 64 << 10]).is_ok() {}
        let mut server = self.take_server()?;
        let begin = Instant::now();
        while server.try_wait()?.is_none() {
            if begin.elapsed() > START_TIMEOUT {
                server.kill()?;
                server.wait()?;
                anyhow::bail!("the target does not end itself although its device refuses what it writes");
            }
            super::pause();
        }
        fs::remove_file(filler)?;
        Ok(())
    }

    /// Whether the file system of the store can still be written, and written back.
    fn is_writable(&self) -> bool {
        let probe = self.path(self.on_loop).join("lost+found/probe");
        let written = File::create(&probe).and_then(|file| file.sync_all());
        written.and_then(|()| fs::remove_file(probe)).is_ok()
    }

    fn lose(&mut self, loss: Loss) -> Result<String> {
        let writer = Writer::start(self.path("a"))?;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(1500) {
            super::pause();
        }
        let before = writer.count();
        let mut served_from_cache = false;
        match loss {
            Loss::Full | Loss::FullMounted => {
                self.run_full()?;
                served_from_cache = loss == Loss::Full && self.is_writable();
                if !served_from_cache {
                    self.detach()?;
                    self.fsck()?;
                    sh(Command::new("mount").arg(&self.device).arg(self.path(self.on_loop)))?;
                }
            }
            Loss::Mounted => {
                self.kill_server()?;
                self.detach()?;
                sh(Command::new("mount").arg(&self.device).arg(self.path(self.on_loop)))?;
            }
            Loss::Copied => {
                self.kill_server()?;
                let copy = self.path("copy.img");
                sh(Command::new("cp").arg("--sparse=always").arg(self.image()).arg(&copy))?;
                self.detach()?;
                sh(Command::new("losetup").arg("--detach").arg(&self.device))?;
                self.attach(&copy)?;
            }
        }
        self.serve(self.on_loop)?;
        let done = writer.stop()?;
        let (wrong, refused) = self.look(&done)?;
        ensure!(wrong.is_empty(), "{} of {} acknowledged files: {}", wrong.len(), done.len(), first(&wrong));
        // Correct bytes may have come from the cache only.
        self.wait_stable();
        self.kill_server()?;
        self.detach()?;
        sh(Command::new("mount").arg(&self.device).arg(self.path(self.on_loop)))?;
        self.serve(self.on_loop)?;
        let (later, refused_later) = self.look(&done)?;
        ensure!(later.is_empty(), "mounted again, {} of {}: {}", later.len(), done.len(), first(&later));
        Ok(format!(
            "{} files acknowledged, {before} of them before, 0 wrong, 0 missing, {} refused{}",
            done.len(),
            refused.max(refused_later),
            if served_from_cache { ", served out of the cache" } else { "" }
        ))
    }
    /// Longer than the intervals of commits and of write-back together.
    fn wait_stable(&self) {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(3) {
            super::pause();
        }
    }

    /// The check through the other mount: files that are wrong or missing, and the number that cannot be read.
    fn look(&self, done: &[(u32, usize)]) -> Result<(Vec<String>, usize)> {
        let (mut wrong, mut refused) = (Vec::new(), 0);
        for &(number, len) in done {
            match fs::read(self.path("b").join(name(number))) {
                Ok(found) if found == bytes(number, len) => {}
                Ok(found) => {
                    let right = bytes(number, len);
                    let first = found.iter().zip(&right).position(|(found, right)| found != right);
                    let zeros = found.iter().filter(|byte| **byte == 0).count();
                    let (len, first) = (found.len(), first.unwrap_or(found.len()));
                    wrong.push(format!(
                        "{} has {len} of {} bytes, wrong from {first}, {zeros} zeros",
                        name(number),
                        right.len()
                    ))
                }
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                    refused += 1
                }
                Err(error) => wrong.push(format!("{}: {error}", name(number))),
            }
        }
        Ok((wrong, refused))
    }
}

/// Some of them.
fn first(wrong: &[String]) -> String {
    wrong.get(..wrong.len().min(20)).unwrap_or_default().join(", ")
}

fn name(number: u32) -> String {
    format!("f{number}")
}
fn bytes(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number as usize).wrapping_mul(31).wrapping_add(at / 7) as u8).collect()
}

impl Writer {
    fn start(dir: PathBuf) -> Result<Self> {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Acknowledged::default());
        let (told, list) = (stop.clone(), done.clone());
        let work = move || {
            for number in 0.. {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let len = number as usize * 7919 % 60_000 + 1;
                let path = dir.join(name(number));
                // A reported error is permitted; the file is not acknowledged.
                if fs::write(&path, bytes(number, len)).is_ok() {
                    list.lock().unwrap_or_else(PoisonError::into_inner).push((number, len));
                }
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("writer".into()).spawn(work)?;
        Ok(Self { stop, done, thread })
    }
    fn count(&self) -> usize {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
    fn stop(self) -> Result<Vec<(u32, usize)>> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        Ok(self.done.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for mut child in self.mounts.drain(..).chain(self.servers.drain(..).map(|(_, child)| child)) {
            drop(child.kill());
            drop(child.wait());
        }
        let quietly = |command: &mut Command| drop(command.stderr(Stdio::null()).status());
        for dir in ["a", "b", self.on_loop] {
            quietly(Command::new("umount").arg("--lazy").arg(self.path(dir)));
        }
        if !self.device.is_empty() {
            quietly(Command::new("losetup").arg("--detach").arg(&self.device));
        }
        quietly(Command::new("umount").arg(self.path("backing")));
    }
}
