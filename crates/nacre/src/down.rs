//! `nacre down`, `nacre umount`, `nacre sync`: ending and flushing what runs.

use crate::registry::{self, Entry, ProcessKind};
use crate::{say, up};
use anyhow::{Context as _, Result, bail};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct DownArgs {
    /// Mount point of the `up` to stop (default: the only one that runs)
    mount: Option<PathBuf>,
    /// Seconds to wait for it to stop
    #[arg(long, default_value_t = 60)]
    timeout: u64,
}

#[derive(clap::Args, Debug)]
pub(crate) struct UmountArgs {
    mount: PathBuf,
    /// Detach now, finish when the last file is closed
    #[arg(short, long)]
    lazy: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SyncArgs {
    mount: PathBuf,
}

pub(crate) fn down(args: &DownArgs) -> Result<()> {
    let mut running: Vec<Entry> =
        registry::entries()?.into_iter().filter(|e| e.kind == ProcessKind::Up).collect();
    if let Some(mount) = &args.mount {
        let wanted = up::absolute(mount)?;
        running.retain(|e| e.mounts.contains(&wanted));
    }
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
        let holders = holders_of(mount);
        if !holders.is_empty() {
            bail!(
                "{} is in use by {}\nhint: close them, or `nacre umount --lazy {}` and then `nacre down`",
                mount.display(),
                holders.join(", "),
                mount.display()
            );
        }
    }
    stop(entry, args.timeout)?;
    say::line(&format!("stopped (pid {}); data is kept in {}", entry.pid, show(&entry.targets)));
    Ok(())
}

fn of(mount: Option<&Path>) -> String {
    mount.map(|m| format!(" on {}", m.display())).unwrap_or_default()
}
fn show(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "memory only: gone".into();
    }
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// SIGTERM, then waits for the process to be gone.
fn stop(entry: &Entry, timeout_s: u64) -> Result<()> {
    let pid = Pid::from_raw(entry.pid).context("bad pid in the registry")?;
    let fd = pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("pid {} is gone", entry.pid))?;
    pidfd_send_signal(&fd, Signal::TERM)?;
    let mut poll = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: i64::try_from(timeout_s)?, tv_nsec: 0 };
    if rustix::event::poll(&mut poll, Some(&patience))? == 0 {
        bail!(
            "pid {} has not stopped within {timeout_s} s\nhint: see its log; SIGKILL loses nothing acknowledged",
            entry.pid
        );
    }
    Ok(())
}

pub(crate) fn umount(args: &UmountArgs) -> Result<()> {
    let flags = if args.lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(&args.mount, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => bail!(
            "{} is in use by {}\nhint: close them, or nacre umount --lazy {}",
            args.mount.display(),
            holders_of(&args.mount).join(", "),
            args.mount.display()
        ),
        Err(rustix::io::Errno::INVAL) => {
            bail!("{} is not a mount point\nhint: nacre status lists the mounts", args.mount.display())
        }
        Err(e) => Err(e).with_context(|| format!("cannot unmount {}", args.mount.display())),
    }
}

pub(crate) fn sync(args: &SyncArgs) -> Result<()> {
    match rustix::fs::setxattr(&args.mount, "nacre.sync", b"1", rustix::fs::XattrFlags::empty()) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODATA) => {
            bail!("{} is not a nacre mount\nhint: nacre status lists the mounts", args.mount.display())
        }
        Err(e) => Err(e).with_context(|| format!("cannot sync {}", args.mount.display())),
    }
}

/// Processes that have something open on, or stand in, a mount point: `pid (name)`.
pub(crate) fn holders_of(mount: &Path) -> Vec<String> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut holders = Vec::new();
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let links = ["cwd", "root", "exe"].map(|l| process.path().join(l)).into_iter().chain(
            std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten().map(|e| e.path()),
        );
        // readlink only: a stat would ask the file system that is being stopped.
        if links.filter_map(|l| std::fs::read_link(l).ok()).any(|target| target.starts_with(mount)) {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            holders.push(format!("{pid} ({})", name.trim()));
        }
    }
    holders
}
