//! `nacre down`, `nacre umount`, `nacre sync`: ending and flushing running processes.

use crate::output;
use crate::process::data_dir;
use crate::process::registry::{self, ProcessEntry, ProcessKind};
use crate::query::tool::{self, Tool};
use crate::query::users::users;
use crate::query::watch;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nacre_fuse::{MountError, Unmount};
use nacre_types::{TargetKind, TargetName};
use nacre_wire::target::GetParams;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args, Debug)]
#[command(
    about = "Unmount and stop what `up` started, without loss",
    long_about = "Unmount and stop what `nacre up` started, without loss.\n\
        \n\
        The command is refused while files are open; the message names the processes. The\n\
        data is kept; `nacre destroy` removes it. A file system in memory (--ephemeral) is\n\
        lost. If it has other mounts, here or on other hosts, `down` names them and asks for\n\
        confirmation, or requires --force; their calls then fail with EIO instead of waiting\n\
        for ever. Other mounts of a file system on disk wait until it is up again.",
    after_help = "Examples:\n\
        \x20 nacre down               the only `up` that runs\n\
        \x20 nacre down /mnt/a        the `up` that is mounted there\n\
        \x20 nacre down --force       even if other mounts lose a file system in memory"
)]
pub(crate) struct DownArgs {
    /// Mount point of the `up` to stop (default: the only one that runs)
    mount: Option<PathBuf>,
    /// Do not ask for confirmation, even if other mounts lose their file system
    #[arg(short, long)]
    force: bool,
    /// Seconds to wait for its process to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

#[derive(clap::Args, Debug)]
#[command(
    about = "Unmount",
    long_about = "Unmount a nacre file system.\n\
        \n\
        The process of `nacre mount` ends with its mount; the process of `nacre up` stops\n\
        its servers, too, and the command waits for that. Other kinds of mounts are refused.",
    after_help = "Examples:\n\
        \x20 nacre umount /mnt/demo\n\
        \x20 nacre umount --lazy /mnt/demo    now, although files are open\n\
        \x20 nacre umount --force /mnt/demo   now, although servers are away and calls wait"
)]
pub(crate) struct UmountArgs {
    /// The mount point
    mount: PathBuf,
    /// Detach the mount now; its process ends when the last file is closed
    #[arg(short, long)]
    lazy: bool,
    /// Unmount now: calls that wait (for servers, for other mounts) and open files get errors
    #[arg(short, long)]
    force: bool,
}

#[derive(clap::Args, Debug)]
#[command(
    about = "Make all completed changes of this mount durable (sync(2) does not reach a FUSE daemon)",
    long_about = "Make all completed changes of this mount durable.\n\
        \n\
        sync(2) and syncfs(2) do not reach a FUSE file system; this command does. To sync\n\
        single files use fsync(2), as on any file system.",
    after_help = "Examples:\n\
        \x20 nacre sync /mnt/nacre"
)]
pub(crate) struct SyncArgs {
    /// The mount point, or any file of the mount
    mount: PathBuf,
    /// Seconds to wait (default: as long as it takes)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
}

pub(crate) fn down(args: &DownArgs) -> Result<()> {
    let mut running = registry::entries()?;
    if let Some(mount) = &args.mount {
        let wanted = data_dir::absolute(mount)?;
        running.retain(|e| e.mounts.contains(&wanted));
        if running.iter().any(|e| e.kind == ProcessKind::Mount) {
            let mount = mount.display();
            bail!("{mount} was not mounted by `nacre up` but by `nacre mount`\nhint: nacre umount {mount}");
        }
    }
    running.retain(|e| e.kind == ProcessKind::Up);
    let entry = match running.as_slice() {
        [one] => one,
        [] => bail!("no `nacre up` runs{}\nhint: nacre status", of(args.mount.as_deref())),
        many => {
            let mounts: Vec<_> =
                many.iter().flat_map(|e| &e.mounts).map(|m| m.display().to_string()).collect();
            bail!("several run: {}\nhint: nacre down MOUNT", mounts.join(", "))
        }
    };
    for mount in &entry.mounts {
        let users = nacre_fuse::users(mount);
        if !users.is_empty() {
            bail!(
                "{} is in use by {users}\nhint: close them, or nacre umount --lazy {0}: it stops when the last of them is closed",
                mount.display(),
            );
        }
    }
    let data = entry.targets.first().and_then(|t| t.parent());
    let name = entry.fs.as_deref().unwrap_or_default();
    let others = other_mounts(entry)?;
    match (others.as_slice(), data) {
        ([], _) => {}
        (others, Some(_)) => output::note(&format!(
            "other mounts of {name} wait until it is up again: {}",
            nacre_fuse::shortened(others)
        )),
        (others, None) => may_lose(name, others, args.force)?,
    }
    stop(entry, args.timeout)?;
    if let Some(failure) = registry::failure_of(entry) {
        bail!("{name} (pid {}) has ended, but not as planned: {failure}\nhint: see its log", entry.pid);
    }
    if let Some(dir) = data.filter(|dir| !registry::is_there(dir)) {
        bail!(
            "stopped {name} (pid {}); its data directory {} is not there any more",
            entry.pid,
            dir.display()
        );
    }
    let end = match data {
        Some(dir) => format!("the data is kept in {}", dir.display()),
        None => "it was in memory only and is gone".into(),
    };
    output::line(&format!("stopped {name} (pid {}); {end}", entry.pid));
    Ok(())
}

/// A file system in memory ends with its process, for all of its mounts.
fn may_lose(name: &str, others: &[String], force: bool) -> Result<()> {
    let list = nacre_fuse::shortened(others);
    output::note(&format!("{name} is in memory only; other mounts lose it and everything in it: {list}"));
    if force {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        bail!("not stopped: {name} has other mounts\nhint: unmount them first, or nacre down --force");
    }
    output::raw("Stop it? Type yes: ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    ensure!(answer.trim() == "yes", "not stopped");
    Ok(())
}

/// The clients of an `up` other than its own mounts, `HOST:MOUNT POINT` as its MDT knows them. An `up` that does not
/// reply now has an empty list: it can be stopped all the same.
fn other_mounts(entry: &ProcessEntry) -> Result<Vec<String>> {
    let is_mdt = |name: &&String| TargetName::parse(name).is_some_and(|t| t.kind() == TargetKind::Mdt);
    let Some(mdt) = entry.islands.iter().find(is_mdt) else { return Ok(Vec::new()) };
    let asked = GetParams { pattern: format!("mdt.{mdt}.exports.*.state") };
    let limit = tool::TimeoutArgs::default().limit();
    let reply = Tool::connect(&entry.socket, mdt, limit).and_then(|mut tool| tool.call(&asked));
    let params = match reply {
        Ok(list) => list.params,
        Err(error) => {
            output::note(&format!("whether there are other mounts is not known: {error:#}"));
            return Ok(Vec::new());
        }
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let own: Vec<String> = entry.mounts.iter().map(|m| format!("{host}:{}", m.display())).collect();
    let names = params.iter().filter_map(|p| p.value.lines().find_map(|line| line.strip_prefix("name: ")));
    Ok(names.map(str::to_owned).filter(|name| !own.contains(name)).collect())
}

fn of(mount: Option<&Path>) -> String {
    mount.map(|m| format!(" on {}", m.display())).unwrap_or_default()
}

/// SIGTERM, then waits for the process to be gone.
fn stop(entry: &ProcessEntry, timeout_s: u64) -> Result<()> {
    let pid = Pid::from_raw(entry.pid).context("bad pid in the registry")?;
    let fd = pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("pid {} is gone", entry.pid))?;
    pidfd_send_signal(&fd, Signal::TERM).map_err(|error| {
        let mounts: Vec<_> = entry.mounts.iter().map(|m| m.display().to_string()).collect();
        let hint = match error {
            Errno::PERM => "\nhint: stop it as the user who started it, or as root",
            _ => "",
        };
        anyhow!("process {} of {} cannot be stopped: {error}{hint}", entry.pid, mounts.join(", "))
    })?;
    if !entry.ends_within(Duration::from_secs(timeout_s))? {
        bail!(
            "pid {} has not stopped within {timeout_s} s\nhint: see its log; SIGKILL loses nothing acknowledged",
            entry.pid
        );
    }
    Ok(())
}

pub(crate) fn umount(args: &UmountArgs) -> Result<()> {
    // Mounts of other file systems are refused: a wrong path must unmount nothing else.
    let mut place = data_dir::absolute(&args.mount)?;
    if nacre_fuse::mounted_type(&place).is_none() {
        place = place.canonicalize().unwrap_or(place);
    }
    match nacre_fuse::mounted_type(&place) {
        Some(what) if what == nacre_fuse::FS_TYPE => {}
        Some(_) => {
            bail!("{} is not a nacre mount\nhint: nacre status lists the mounts", args.mount.display())
        }
        None => bail!("{} is not a mount point\nhint: nacre status lists the mounts", args.mount.display()),
    }
    let how = match (args.lazy, args.force) {
        (_, true) => Unmount::Force,
        (true, false) => Unmount::Lazy,
        (false, false) => Unmount::Idle,
    };
    let process = registry::entries()?.into_iter().find(|e| e.mounts.contains(&place));
    let elsewhere = nacre_fuse::elsewhere(&place);
    let still_open = if args.lazy { nacre_fuse::users(&place) } else { String::new() };
    nacre_fuse::unmount_fuse(&place, how).map_err(|e| match e {
        // Only the mount's process knows which calls wait for a server.
        MountError::Busy { path, .. } => MountError::Busy { path, by: format!(" by {}", users(&place)) },
        other => other,
    })?;
    if !elsewhere.is_empty() {
        let list: Vec<_> = elsewhere.iter().map(ToString::to_string).collect();
        output::note(&format!(
            "unmounted here; still mounted in the mount name space of {}, until that ends",
            list.join(", ")
        ));
    } else if !still_open.is_empty() {
        output::note(&format!(
            "detached; its process continues until the last file is closed, by {still_open}"
        ));
    } else if let Some(process) = process {
        wait_for_end(&process)?;
    }
    Ok(())
}

/// Waits until the process of a mount has disconnected from its servers, and that of an `up` has stopped them: a moment, or
/// longer when calls wait for servers or for other mounts.
fn wait_for_end(entry: &ProcessEntry) -> Result<()> {
    const QUIET: Duration = Duration::from_secs(1);
    let (what, limit) = match entry.kind {
        ProcessKind::Up => ("stops its targets", Duration::from_secs(60)),
        ProcessKind::Mount | ProcessKind::Serve => {
            ("ends calls that wait for servers or for other mounts, for about 10 s", Duration::from_secs(30))
        }
    };
    if entry.ends_within(QUIET)? {
        return Ok(());
    }
    output::note(&format!("unmounted; its process (pid {}) {what}", entry.pid));
    if !entry.ends_within(limit)? {
        bail!(
            "process {} has not ended within {limit:?}\nhint: see its log; SIGKILL loses nothing now",
            entry.pid
        );
    }
    Ok(())
}

pub(crate) fn sync(args: &SyncArgs) -> Result<()> {
    watch::within_or_wait(args.timeout, || sync_now(args))
}

fn sync_now(args: &SyncArgs) -> Result<()> {
    watch::asks(&args.mount);
    match rustix::fs::setxattr(&args.mount, "nacre.sync", b"1", rustix::fs::XattrFlags::empty()) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODATA | rustix::io::Errno::PERM) => {
            bail!(
                "{} is not on a nacre file system\nhint: nacre status lists the mounts",
                args.mount.display()
            )
        }
        Err(e) => Err(e).with_context(|| format!("cannot sync {}", args.mount.display())),
    }
}
