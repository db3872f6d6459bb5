//! The registry of the nacre processes on this machine: one small file each in the run directory.
//!
//! `/run/nacre/PID.json` (root) or `$XDG_RUNTIME_DIR/nacre/PID.json`; `NACRE_RUN_DIR` overrides. An entry is valid
//! while a process with this pid and start time lives; stale ones are removed when they are met. The entry is only
//! a pointer (socket, islands, mount points); tools request the state over the socket with public messages.

use anyhow::{Context as _, Result};
use nacre_types::TargetName;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The command that the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ProcessKind {
    Up,
    Serve,
    Mount,
}

/// A process that runs: a plain record, the content of its file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ProcessEntry {
    pub(crate) pid: i32,
    /// Field 22 of /proc/PID/stat: tells a reused pid.
    pub(crate) start_time: u64,
    pub(crate) kind: ProcessKind,
    pub(crate) socket: PathBuf,
    /// Names of the islands that reply on the socket.
    pub(crate) islands: Vec<String>,
    pub(crate) mounts: Vec<PathBuf>,
    pub(crate) fs: Option<String>,
    /// Directories of the targets that are served, in the order of their names.
    pub(crate) targets: Vec<PathBuf>,
    /// Targets that are not served, and why: others have their names, or they have gone back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) refused: BTreeMap<String, String>,
    /// Addresses of the MGS, as far as the process knows them: they tell file systems of one name apart.
    #[serde(default)]
    pub(crate) mgs: Vec<String>,
    /// The failure with which the process ended, or is about to. Of one that was killed nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
}

impl ProcessEntry {
    /// Waits for the end of the process; `false`: it runs on after `limit`.
    pub(crate) fn ends_within(&self, limit: Duration) -> Result<bool> {
        let process = Pid::from_raw(self.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // Checked after the descriptor was opened: it may be that of a later process.
        let Some(process) = process.filter(|_| start_time(self.pid) == Some(self.start_time)) else {
            return Ok(true);
        };
        let mut poll = [PollFd::new(&process, PollFlags::IN)];
        let limit =
            Timespec { tv_sec: i64::try_from(limit.as_secs())?, tv_nsec: limit.subsec_nanos().into() };
        Ok(rustix::event::poll(&mut poll, Some(&limit))? > 0)
    }

    /// Takes out targets, and the names of their islands as far as it is known which those are.
    fn retain_targets(&mut self, keep: impl Fn(&PathBuf) -> bool) {
        let mut names: Vec<&String> =
            self.islands.iter().filter(|n| TargetName::parse(n).is_some()).collect();
        names.sort();
        // A target in memory, or one that is refused, has an island or a directory alone.
        let are_pairs = names.len() == self.targets.len();
        let pairs = names.iter().zip(&self.targets).filter(|_| are_pairs);
        let gone: Vec<String> =
            pairs.filter(|(_, dir)| !keep(dir)).map(|(name, _)| String::clone(name)).collect();
        self.islands.retain(|name| !gone.contains(name));
        self.targets.retain(keep);
    }
    fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }
}

const SYSTEM_DIR: &str = "/run/nacre";

/// The directories in which processes are searched: every user sees the processes that root has started.
fn search_dirs() -> Vec<PathBuf> {
    let own = own_dir();
    let system = PathBuf::from(SYSTEM_DIR);
    match std::env::var_os("NACRE_RUN_DIR") {
        None if own != system => vec![own, system],
        _ => vec![own],
    }
}
fn own_dir() -> PathBuf {
    match std::env::var_os("NACRE_RUN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None if rustix::process::geteuid().is_root() => PathBuf::from(SYSTEM_DIR),
        None => match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(dir) => Path::new(&dir).join("nacre"),
            None => std::env::temp_dir().join(format!("nacre-{}", rustix::process::geteuid().as_raw())),
        },
    }
}

/// The run directory for what this user starts, made if needed.
pub(crate) fn run_dir() -> Result<PathBuf> {
    let dir = own_dir();
    std::fs::create_dir_all(&dir).with_context(|| {
        format!("cannot make the run directory {}\nhint: set NACRE_RUN_DIR", dir.display())
    })?;
    Ok(dir)
}

/// Start time of a process in clock ticks since boot; `None` if it is gone (or a zombie).
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name is in parentheses and may hold anything.
    let rest = stat.rsplit_once(')')?.1;
    let mut fields = rest.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// The own entry; removed when dropped.
pub(crate) struct Registration {
    path: PathBuf,
    entry: ProcessEntry,
}

impl Registration {
    /// Another entry in the place of this one.
    pub(crate) fn update(&mut self, entry: ProcessEntry) -> Result<()> {
        std::mem::forget(std::mem::replace(self, Self::new(entry)?)); // its file is the new one's
        Ok(())
    }
    /// The process has stopped its targets as planned: crashes of processes that served them before are over. Their entries
    /// lose these targets.
    pub(crate) fn stopped(self) -> Result<()> {
        // Others may change the same entries.
        let lock = std::fs::File::open(run_dir()?)?;
        lock.lock()?;
        for path in files()?.into_iter().filter(|path| is_entry(path)) {
            let Some(mut old) = read_entry(&path).filter(|old| !old.is_alive()) else { continue };
            let before = old.targets.len();
            old.retain_targets(|dir| !self.entry.targets.contains(dir));
            // An entry of another user may be one that this user cannot change.
            if old.targets.is_empty() && old.mounts.is_empty() {
                drop(std::fs::remove_file(&path));
            } else if old.targets.len() < before {
                drop(write_entry(&path, &old));
            }
        }
        Ok(())
    }
    /// Leaves the entry behind, with the failure that ends this process, and the targets that nobody serves because of it.
    pub(crate) fn leave(mut self, failure: &str, targets: Vec<PathBuf>) -> Result<()> {
        let entry = ProcessEntry { failure: Some(failure.to_owned()), targets, ..self.entry.clone() };
        self.update(entry)?;
        std::mem::forget(self);
        Ok(())
    }
    pub(crate) fn new(mut entry: ProcessEntry) -> Result<Self> {
        entry.pid = i32::try_from(std::process::id())?;
        entry.start_time = start_time(entry.pid).unwrap_or(0);
        let path = run_dir()?.join(format!("{}.json", entry.pid));
        write_entry(&path, &entry)?;
        Ok(Self { path, entry })
    }
}
impl Drop for Registration {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

fn write_entry(path: &Path, entry: &ProcessEntry) -> Result<()> {
    let tmp = path.with_extension("tmp");
    std::fs::write(&tmp, serde_json::to_vec_pretty(entry)?)?;
    Ok(std::fs::rename(&tmp, path)?)
}
fn read_entry(path: &Path) -> Option<ProcessEntry> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Path of the control socket of this process.
pub(crate) fn own_socket() -> Result<PathBuf> {
    let dir = run_dir()?;
    clear_logs(&dir)?;
    Ok(dir.join(format!("{}.sock", std::process::id())))
}

/// The log of a process in the run directory; one that never got as far as to run leaves none.
pub(crate) struct RunLog {
    path: PathBuf,
    keeps: bool,
}
impl RunLog {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { path: run_dir()?.join(format!("{}.log", std::process::id())), keeps: false })
    }
    /// It runs: from now on the log may be wanted.
    pub(crate) fn keep(&mut self) {
        self.keeps = true;
    }
}
impl Drop for RunLog {
    fn drop(&mut self) {
        if !self.keeps {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Logs of dead processes, which may say why, but not of all that ever were.
const DEAD_LOGS_MAX: usize = 16;

fn clear_logs(dir: &Path) -> Result<()> {
    let mut dead = Vec::new();
    for file in std::fs::read_dir(dir)?.flatten() {
        let path = file.path();
        if path.extension().is_some_and(|e| e == "log")
            && pid_of(&path).is_some_and(|pid| start_time(pid).is_none())
        {
            dead.push((file.metadata().and_then(|m| m.modified()).ok(), path));
        }
    }
    dead.sort();
    dead.iter().rev().skip(DEAD_LOGS_MAX).for_each(|(_, path)| drop(std::fs::remove_file(path)));
    Ok(())
}

/// The process whose file this is.
pub(crate) fn pid_of(path: &Path) -> Option<i32> {
    path.file_stem()?.to_str()?.parse().ok()
}

/// ProcessEntry or socket of a process that is gone. Its log stays: it may say why.
fn is_left_over(path: &Path) -> bool {
    let ours = path.extension().is_some_and(|e| e == "json" || e == "sock" || e == "tmp");
    ours && pid_of(path).is_some_and(|pid| start_time(pid).is_none())
}

fn is_entry(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "json")
}

/// Every file in the run directories.
fn files() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for dir in search_dirs() {
        match std::fs::read_dir(&dir) {
            Ok(found) => files.extend(found.flatten().map(|file| file.path())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => {
                return Err(e).with_context(|| {
                    format!("what runs is listed in {}, which cannot be read", dir.display())
                });
            }
        }
    }
    Ok(files)
}

/// Every living process, by pid. Entries of dead processes are removed.
pub(crate) fn entries() -> Result<Vec<ProcessEntry>> {
    Ok(with_fallen()?.0)
}

/// Every living process, and those that ended without a planned stop and whose targets were not served since, or of
/// mounts that are still there: their entries stay, and what is still down is in them. By pid.
pub(crate) fn with_fallen() -> Result<(Vec<ProcessEntry>, Vec<ProcessEntry>)> {
    let (mut list, mut dead) = (Vec::new(), Vec::new());
    for path in files()? {
        let left_over = is_left_over(&path);
        if !is_entry(&path) {
            if left_over {
                drop(std::fs::remove_file(&path));
            }
            continue;
        }
        match read_entry(&path) {
            Some(entry) if entry.is_alive() => list.push(entry),
            // The socket may be that of another process with the same pid, which has not registered yet.
            Some(entry) => dead.push((path, entry)),
            None if left_over => drop(std::fs::remove_file(&path)),
            None => {}
        }
    }
    // The latest first: it has what it shares with those before it.
    dead.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.start_time));
    let mounted = nacre_fuse::mount_points();
    let mut fallen: Vec<ProcessEntry> = Vec::new();
    for (path, mut entry) in dead {
        let later = || list.iter().chain(&fallen);
        entry.retain_targets(|dir| !later().any(|e| e.targets.contains(dir)));
        entry.mounts.retain(|point| mounted.contains(point) && !later().any(|e| e.mounts.contains(point)));
        if !entry.mounts.is_empty() || entry.targets.iter().any(|dir| is_there(dir)) {
            fallen.push(entry);
        } else {
            drop(std::fs::remove_file(&path));
        }
    }
    list.sort_by_key(|e| e.pid);
    fallen.sort_by_key(|e| e.pid);
    Ok((list, fallen))
}

/// Whether a directory is there, or is on a disk that fails.
pub(crate) fn is_there(dir: &Path) -> bool {
    dir.try_exists().unwrap_or(true)
}

/// The failure with which a process has ended, if it said so.
pub(crate) fn failure_of(ended: &ProcessEntry) -> Option<String> {
    let file = format!("{}.json", ended.pid);
    let left = search_dirs().into_iter().find_map(|dir| std::fs::read(dir.join(&file)).ok())?;
    let left = serde_json::from_slice::<ProcessEntry>(&left).ok()?;
    left.failure.filter(|_| left.start_time == ended.start_time)
}

/// Every mount point on this machine.
pub(crate) fn mounts() -> Result<Vec<PathBuf>> {
    Ok(entries()?.into_iter().flat_map(|e| e.mounts).collect())
}
