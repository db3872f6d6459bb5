//! Manual pages and shell completions, made from the definition of the command line.

use crate::cli::Cli;
use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(
    about = "Print the completion script of a shell",
    after_help = "Examples:\n\
        \x20 nacre completions bash > /etc/bash_completion.d/nacre\n\
        \x20 nacre completions zsh > ~/.zfunc/_nacre\n\
        \n\
        The package installs them for bash, zsh and fish."
)]
pub(crate) struct CompletionsArgs {
    shell: Shell,
}

#[derive(clap::Args, Debug)]
#[command(about = "Write the manual page of every command into a directory (for packages)")]
pub(crate) struct ManualArgs {
    dir: PathBuf,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "nacre", &mut script);
    crate::output::raw(&String::from_utf8(script)?);
    Ok(())
}

pub(crate) fn manual(args: &ManualArgs) -> Result<()> {
    std::fs::create_dir_all(&args.dir).with_context(|| format!("cannot make {}", args.dir.display()))?;
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .with_context(|| format!("cannot write manual pages into {}", args.dir.display()))
}
