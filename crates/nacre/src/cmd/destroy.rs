//! `nacre destroy`: removes the data of an `up` that is not running.

use crate::output;
use crate::process::registry::{self, ProcessKind};
use crate::process::{data_dir, kept_log};
use anyhow::{Context as _, Result, bail, ensure};
use std::io::{BufRead as _, IsTerminal as _};
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
#[command(
    about = "Remove the data that `up` left in a directory",
    long_about = "Remove the data that `nacre up` keeps in a directory.\n\
        \n\
        The command is refused while a process serves one of the targets in the directory,\n\
        wherever it was started, and for directories that `nacre up` did not create.",
    after_help = "Examples:\n\
        \x20 nacre destroy                    the data of /mnt/nacre\n\
        \x20 nacre destroy --dir /data/a --yes"
)]
pub(crate) struct DestroyArgs {
    /// Mount point that was given to `up` (default: /mnt/nacre)
    #[arg(default_value = data_dir::DEFAULT_MOUNT)]
    mount: PathBuf,
    /// The data directory, if `up` was started with --dir
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn run(args: &DestroyArgs) -> Result<()> {
    let entries = registry::entries()?;
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => dir_of(&args.mount, &entries)?,
    };
    if !dir.exists() {
        let hint = match args.dir {
            Some(_) => "",
            None => "\nhint: if nacre up was given a --dir, give it here too: nacre destroy --dir DIR",
        };
        bail!("{} does not exist: nothing to destroy{hint}", dir.display());
    }
    let dir = dir.canonicalize()?;
    for entry in &entries {
        let used = entry.targets.iter().any(|t| t.starts_with(&dir));
        ensure!(!used, "{} is in use by pid {}\nhint: nacre down first", dir.display(), entry.pid);
    }
    if let Some(lost) = data_dir::lost_marker(&dir) {
        bail!("{lost}");
    }
    ensure!(
        data_dir::is_data_dir(&dir),
        "{} was not made by `nacre up`: it is left alone\nhint: remove it yourself if you are sure",
        dir.display()
    );
    // The entries above are those of one run directory; the locks tell of every process. They are held to the end, so that
    // nothing is served from a directory that is half removed.
    let _locks = data_dir::lock_all(&dir)?;
    let waiting = mounts_of(&dir, &entries);
    if !waiting.is_empty() {
        output::note(&format!(
            "mounts of this file system wait for it, and would wait for ever: {}\nhint: nacre umount DIR for each",
            nacre_fuse::shortened(&waiting)
        ));
    }
    if !args.yes {
        ensure!(std::io::stdin().is_terminal(), "not asked: no terminal\nhint: nacre destroy --yes");
        output::raw(&format!("Remove all data in {}? Type yes: ", dir.display()));
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        ensure!(answer.trim() == "yes", "nothing was removed");
    }
    kept_log::delete_memory_in(&dir)?;
    std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    output::line(&format!("removed {}", dir.display()));
    Ok(())
}

/// The mounts of this machine whose servers had this data directory, as far as they have connected to a socket in it.
fn mounts_of(dir: &Path, running: &[registry::ProcessEntry]) -> Vec<String> {
    let socket = format!("unix:{}/", dir.display());
    let waits = |e: &&registry::ProcessEntry| {
        e.kind == ProcessKind::Mount && e.mgs.iter().any(|address| address.starts_with(&socket))
    };
    running.iter().filter(waits).flat_map(|e| &e.mounts).map(|mount| mount.display().to_string()).collect()
}

/// The data directory that belongs to a mount point. One that is mounted may have its data elsewhere.
fn dir_of(mount: &Path, running: &[registry::ProcessEntry]) -> Result<PathBuf> {
    let mount = data_dir::absolute(mount)?;
    let Some(entry) = running.iter().find(|e| e.kind == ProcessKind::Up && e.mounts.contains(&mount)) else {
        return data_dir::default_dir(&mount);
    };
    let data = entry.targets.first().and_then(|target| target.parent());
    let then = data.map_or(String::new(), |dir| format!(", then nacre destroy --dir {}", dir.display()));
    bail!("{} is in use by pid {}\nhint: nacre down {0} first{then}", mount.display(), entry.pid);
}
