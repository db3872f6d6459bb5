//! `nacre down`, `nacre umount`, `nacre sync`: ending and flushing what runs.

use crate::registry::{self, Entry, ProcessKind};
use crate::{say, up};
use anyhow::{Context as _, Result, bail};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
#[command(
    about = "Unmount and stop what `up` started, without loss",
    long_about = "Unmount and stop what `nacre up` started, without loss.\n\
        \n\
        Refused while files are open; the message names the processes. The data is kept;\n\
        `nacre destroy` removes it.",
    after_help = "Examples:\n\
        \x20 nacre down               the only one that runs\n\
        \x20 nacre down /mnt/a        the one mounted there"
)]
pub(crate) struct DownArgs {
    /// Mount point of the `up` to stop (default: the only one that runs)
    mount: Option<PathBuf>,
    /// Seconds to wait for it to stop
    #[arg(long, default_value_t = 60)]
    timeout: u64,
}

#[derive(clap::Args, Debug)]
#[command(
    about = "Unmount",
    long_about = "Unmount a nacre file system.\n\
        \n\
        The process of `nacre mount` ends with its mount; the process of `nacre up` stops\n\
        its servers, too. Anything else that is mounted is left alone.",
    after_help = "Examples:\n\
        \x20 nacre umount /mnt/demo\n\
        \x20 nacre umount --lazy /mnt/demo    now, although files are open"
)]
pub(crate) struct UmountArgs {
    mount: PathBuf,
    /// Detach now, finish when the last file is closed
    #[arg(short, long)]
    lazy: bool,
}

#[derive(clap::Args, Debug)]
#[command(
    about = "Make everything that this mount has completed durable (sync(2) does not reach a FUSE daemon)",
    long_about = "Make everything durable that this mount has completed.\n\
        \n\
        sync(2) and syncfs(2) do not reach a FUSE file system; this does. Files that need\n\
        it one by one use fsync(2) as everywhere.",
    after_help = "Examples:\n\
        \x20 nacre sync /mnt/nacre"
)]
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
    let end = match entry.targets.first().and_then(|t| t.parent()) {
        Some(dir) => format!("the data is kept in {}", dir.display()),
        None => "it was in memory only and is gone".into(),
    };
    say::line(&format!("stopped (pid {}); {end}", entry.pid));
    Ok(())
}

fn of(mount: Option<&Path>) -> String {
    mount.map(|m| format!(" on {}", m.display())).unwrap_or_default()
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
    // Only ours: what it answers is known, and a wrong path unmounts nothing else.
    let place = up::absolute(&args.mount)?;
    if nacre_fuse::mounted_type(&place).is_some_and(|what| what != nacre_fuse::FS_TYPE) {
        bail!("{} is not a nacre mount\nhint: nacre status lists the mounts", args.mount.display());
    }
    let flags = if args.lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(&args.mount, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => bail!(
            "{} is in use by {}\nhint: close them, or nacre umount --lazy {}",
            args.mount.display(),
            held_by(&up::absolute(&args.mount)?),
            args.mount.display()
        ),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {
            bail!("{} is not a mount point\nhint: nacre status lists the mounts", args.mount.display())
        }
        Err(e) => Err(e).with_context(|| format!("cannot unmount {}", args.mount.display())),
    }
}

pub(crate) fn sync(args: &SyncArgs) -> Result<()> {
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

/// Processes that have something open on, or stand in, a mount point: `pid (name)`.
pub(crate) fn holders_of(mount: &Path) -> Vec<String> {
    nacre_fuse::holders(mount).into_iter().map(|h| format!("{} ({})", h.pid, h.command)).collect()
}

/// The same in words.
pub(crate) fn held_by(mount: &Path) -> String {
    let holders = holders_of(mount);
    if holders.is_empty() { "somebody (not seen in /proc)".into() } else { holders.join(", ") }
}
