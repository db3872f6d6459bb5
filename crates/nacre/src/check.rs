//! `nacre check`: verifies a stopped target, read-only.

use anyhow::{Result, bail};
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
pub(crate) struct CheckArgs {
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
    /// Directory of a target, or the data directory of an `up`
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<()> {
    bail!("check of {:?} (json {}) is not built yet", args.dirs, args.json)
}
