//! `--takeover`: ends the process that serves a store, on this host, before the store is opened.
//!
//! Rules: only the process that the lock file names is ended (pid and start time, by pidfd, so that no other process with
//! a reused pid is ended). A process of another host or of another pid namespace is not ended, because its end could not be
//! observed. The store is opened only after the process has ended, so that all its writes are visible and no further one
//! can follow. The new log epoch is a new file. A `nacre up` is not ended: its mount and its other targets would go with it.

use crate::output;
use crate::process::pause;
use crate::process::registry::{self, ProcessEntry, ProcessKind};
use anyhow::{Context as _, Result, bail};
use nacre_osd_fs::{FsStore, Holder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::path::Path;
use std::time::{Duration, Instant};

/// A killed process that has not ended by then hangs in the kernel.
const EXIT_LIMIT: Duration = Duration::from_secs(30);

/// Ends the process that serves the store; returns when no process does.
pub(crate) fn take_over(dir: &Path) -> Result<()> {
    let until = Instant::now() + EXIT_LIMIT;
    let mut killed: Option<Holder> = None;
    while let Some(holder) = FsStore::holder(dir)? {
        if Instant::now() > until {
            bail!("{} is still locked by {holder}", dir.display());
        }
        if killed.as_ref() == Some(&holder) {
            pause(Duration::from_millis(10)); // gone, and the kernel closes its files
            continue;
        }
        if is_up(&holder)? {
            bail!("{} is in use by {holder}\n{HINT_FOR_UP}", dir.display());
        }
        end(dir, &holder)?;
        output::note(&format!("took {} over from {holder}", dir.display()));
        killed = Some(holder);
    }
    Ok(())
}

/// What to do if the process is a `nacre up`.
const HINT_FOR_UP: &str =
    "hint: it is a `nacre up`, which serves other targets and a mount, too; stop it with nacre down";

/// What may be done about a process that serves a store.
pub(crate) fn hint(holder: &Holder) -> Result<&'static str> {
    let of_a_server = "hint: nacre serve --takeover ends that process and serves its target";
    Ok(if is_up(holder)? { HINT_FOR_UP } else { of_a_server })
}
fn is_up(holder: &Holder) -> Result<bool> {
    let is_it = |entry: &ProcessEntry| {
        entry.kind == ProcessKind::Up && u32::try_from(entry.pid).is_ok_and(|pid| pid == holder.pid)
    };
    Ok(holder.is_running_here() && registry::entries()?.iter().any(is_it))
}

fn end(dir: &Path, holder: &Holder) -> Result<()> {
    let here = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if holder.host != here {
        bail!(
            "{} is served by {holder}, on another host: its end cannot be seen from here\nhint: stop it there",
            dir.display()
        );
    }
    let pid = i32::try_from(holder.pid).ok().and_then(Pid::from_raw);
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // Checked after the descriptor was opened, so the descriptor is that process and not a later one with its pid.
    let Some(process) = process.filter(|_| holder.is_running_here()) else {
        bail!(
            "{} is locked by {holder}, which is not visible here: it runs in another pid namespace\nhint: stop it there",
            dir.display()
        );
    };
    pidfd_send_signal(&process, Signal::KILL).with_context(|| format!("cannot end {holder}"))?;
    let limit = Timespec { tv_sec: EXIT_LIMIT.as_secs().cast_signed(), tv_nsec: 0 };
    let mut waits = [PollFd::new(&process, PollFlags::IN)];
    if poll(&mut waits, Some(&limit))? == 0 {
        bail!("{holder} was killed and does not end: it waits in the kernel for a device");
    }
    Ok(())
}
