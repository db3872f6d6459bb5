//! The guard of a mount: a small process that aborts the mount's connection with the kernel when the serving process is
//! killed.
//!
//! Without it, callers may hang for ever: see [`nacre_fuse::open_abort_file`]. The guard is a child of the serving
//! process and ends with it. Its only open file, as standard output, is the one that aborts the connection; after an
//! orderly end it has no effect.

use anyhow::Result;
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

#[derive(clap::Args, Debug)]
#[command(about = "Abort the connection of a mount when its process has ended (started by nacre itself)")]
pub(crate) struct GuardArgs {
    /// Process that serves the mount
    parent: i32,
}

/// Starts the guard of the mount on `dir`. To be called by the main thread: the guard hears of the end of its thread.
pub(crate) fn start(dir: &Path) {
    if let Err(error) = try_start(dir) {
        // The mount works without it.
        tracing::warn!(dir = %dir.display(), %error, "the mount has no guard: if its process is killed, callers may hang until `nacre umount --force`");
    }
}

fn try_start(dir: &Path) -> std::io::Result<()> {
    let abort = nacre_fuse::open_abort_file(dir)?;
    Command::new("/proc/self/exe")
        .arg0("nacre")
        .arg("fuse-guard")
        .arg(std::process::id().to_string())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(abort)
        .stderr(Stdio::null())
        // Not that of the terminal, whose Ctrl-C is for the serving process.
        .process_group(0)
        .spawn()
        .map(drop)
}

/// The guard itself.
pub(crate) fn run(args: &GuardArgs) -> Result<()> {
    // Those that end the serving process are caught: it may take its time to unmount, and may be killed meanwhile.
    let mut signals = signal_hook::iterator::Signals::new([SIGUSR1, SIGTERM, SIGINT, SIGHUP])?;
    // A name that `pkill nacre` does not match.
    rustix::thread::set_name(c"fuse-guard")?;
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
    let parent = Pid::from_raw(args.parent);
    // The parent's number does not change as long as one of its threads is left, so the signal itself counts.
    let mut is_over = rustix::process::getppid() != parent;
    let mut events = signals.forever();
    while !is_over {
        is_over = events.next() == Some(SIGUSR1);
    }
    // Fails if the connection is gone, as it should be.
    let _ = rustix::io::write(rustix::stdio::stdout(), b"1");
    Ok(())
}
