//! `nacre destroy`: removes the data of an `up` that is not running.

use crate::{registry, say, up};
use anyhow::{Context as _, Result, bail, ensure};
use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(
    about = "Remove the data that `up` left in a directory",
    long_about = "Remove the data that `nacre up` keeps in a directory.\n\
        \n\
        Refused while it runs, and for directories that `nacre up` did not make.",
    after_help = "Examples:\n\
        \x20 nacre destroy                    the data of /mnt/nacre\n\
        \x20 nacre destroy --dir /data/a --yes"
)]
pub(crate) struct DestroyArgs {
    /// Mount point that was given to `up` (default: /mnt/nacre)
    #[arg(default_value = up::DEFAULT_MOUNT)]
    mount: PathBuf,
    /// The data directory, if `up` was started with --dir
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn run(args: &DestroyArgs) -> Result<()> {
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => up::default_dir(&args.mount)?,
    };
    if !dir.exists() {
        bail!("{} does not exist: nothing to destroy", dir.display());
    }
    let dir = dir.canonicalize()?;
    for entry in registry::entries()? {
        let used = entry.targets.iter().any(|t| t.starts_with(&dir));
        ensure!(!used, "{} is in use by pid {}\nhint: nacre down first", dir.display(), entry.pid);
    }
    ensure!(
        up::is_data_dir(&dir),
        "{} was not made by `nacre up`: it is left alone\nhint: remove it yourself if you are sure",
        dir.display()
    );
    if !args.yes {
        ensure!(std::io::stdin().is_terminal(), "not asked: no terminal\nhint: nacre destroy --yes");
        say::raw(&format!("Remove all data in {}? Type yes: ", dir.display()));
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        ensure!(answer.trim() == "yes", "nothing was removed");
    }
    std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    say::line(&format!("removed {}", dir.display()));
    Ok(())
}
