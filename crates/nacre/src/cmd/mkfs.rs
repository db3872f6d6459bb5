//! `nacre mkfs`: formats a target.

use crate::output;
use crate::process::{addresses, store};
use anyhow::{Context as _, Result, bail};
use nacre_types::{FsName, TargetKind, TargetName};
use std::path::PathBuf;

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackFs {
    /// A directory on any file system
    Dir,
    /// Memory: exists as long as its server (`serve mem:NAME`)
    Mem,
}

#[derive(clap::Args, Debug)]
#[command(
    about = "Format a target",
    long_about = "Format a target: the directory that holds the data of one server.\n\n\
        A file system has one management target (MGS), one metadata target (MDT, index 0)\n\
        and any number of object targets (OST, index 0, 1, ...). All but the MGS need the\n\
        address of the MGS and the name of the file system.",
    after_help = "Examples:\n\
        \x20 nacre mkfs --mgs /data/mgs\n\
        \x20 nacre mkfs --mdt --fsname demo --index 0 --mgsnode 10.0.0.1:9988 /data/mdt0\n\
        \x20 nacre mkfs --ost --fsname demo --index 0 --mgsnode 10.0.0.1:9988 /data/ost0"
)]
#[command(group(clap::ArgGroup::new("kind").required(true).args(["mgs", "mdt", "ost"])))]
pub(crate) struct MkfsArgs {
    /// A management target
    #[arg(long)]
    mgs: bool,
    /// A metadata target
    #[arg(long)]
    mdt: bool,
    /// An object target
    #[arg(long)]
    ost: bool,
    /// Name of the file system, at most 8 of A-Z a-z 0-9 _ -
    #[arg(long, value_parser = parse_fsname)]
    fsname: Option<FsName>,
    /// Index of the target among its kind
    #[arg(long)]
    index: Option<u32>,
    /// Address of the MGS: HOST[:PORT] or unix:PATH (several: repeat)
    #[arg(long, value_name = "ADDRESS")]
    mgsnode: Vec<String>,
    /// Backing store of the target
    #[arg(long, value_enum, default_value = "dir")]
    backfstype: BackFs,
    /// Erase an existing target in this directory (a directory of other files is refused)
    #[arg(long)]
    reformat: bool,
    /// Directory of the target; created if it does not exist
    target: PathBuf,
}

fn parse_fsname(text: &str) -> Result<FsName, String> {
    FsName::parse(text).ok_or_else(|| format!("{text:?}: a name has 1 to 8 of A-Z a-z 0-9 _ -"))
}

impl MkfsArgs {
    fn name(&self) -> Result<TargetName> {
        if self.mgs {
            if !self.mgsnode.is_empty() {
                bail!("--mgsnode is for MDTs and OSTs: the MGS is what they look for");
            }
            if self.fsname.is_some() || self.index.is_some() {
                bail!(
                    "--fsname and --index are for MDTs and OSTs: an MGS is alone and serves any file system"
                );
            }
            return Ok(TargetName::Mgs);
        }
        let fs = self.fsname.clone().context("--fsname is missing\nhint: --fsname demo")?;
        let kind = if self.mdt { TargetKind::Mdt } else { TargetKind::Ost };
        let index = self.index.context("--index is missing\nhint: the first of a kind has --index 0")?;
        if index > 0xffff {
            bail!("--index {index} is over 65535");
        }
        if kind == TargetKind::Mdt && index > 0 {
            bail!("--index {index}: this version serves one MDT per file system, index 0");
        }
        if self.mgsnode.is_empty() {
            bail!(
                "--mgsnode is missing\nhint: --mgsnode HOST:9988 or --mgsnode unix:PATH, where the MGS is served"
            );
        }
        Ok(TargetName::Of { fs, kind, index })
    }
}

pub(crate) fn run(args: &MkfsArgs) -> Result<()> {
    let name = args.name()?;
    // The label is read by servers in other working directories, so the address is absolute.
    let mgs_nodes =
        args.mgsnode.iter().map(|node| addresses::shared_address(node)).collect::<Result<Vec<_>>>()?;
    if args.backfstype == BackFs::Mem {
        bail!(
            "a memory target has nothing to format\nhint: nacre serve mem:{name} makes and serves one (add ,ADDRESS of the \
             MGS)"
        );
    }
    let dir = &args.target;
    let store = store::format_dir(dir, args.reformat)?;
    store::format(&store, &name, &mgs_nodes, args.reformat)?;
    output::line(&format!("formatted {name} in {}", dir.display()));
    output::line(&format!("next: nacre serve {}", dir.display()));
    Ok(())
}
