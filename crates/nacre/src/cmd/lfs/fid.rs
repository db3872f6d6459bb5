//! `lfs path2fid` and `lfs fid2path`.

use super::{attribute, attribute_bytes};
use crate::output;
use crate::process::registry;
use crate::query::filesystems::FileSystems;
use crate::query::tool::TimeoutArgs;
use crate::query::watch;
use anyhow::{Context as _, Result, bail};
use nacre_types::Fid;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct Path2fidArgs {
    // `timeout` is open: the caller applies it to the command as a whole.
    /// Also show the FID of the parent of every link
    #[arg(long)]
    parents: bool,
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) timeout: TimeoutArgs,
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Fid2pathArgs {
    // `timeout` is open: the caller applies it to the command as a whole.
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) timeout: TimeoutArgs,
    /// Mount point, or name of a mounted file system (paths are then relative to its root)
    mount: String,
    /// `[0x200000401:0x3:0x0]`, brackets optional
    #[arg(required = true)]
    fids: Vec<String>,
}

pub(super) fn path2fid(args: &Path2fidArgs) -> Result<()> {
    let mut all = Vec::new();
    for path in &args.paths {
        let fid = attribute(path, "nacre.fid")?;
        let parents = if args.parents { names(path, "nacre.links")? } else { Vec::new() };
        if args.json {
            all.push(serde_json::json!({ "path": path, "fid": fid, "parents": lossy(&parents) }));
            continue;
        }
        let prefix = if args.paths.len() > 1 { format!("{}: ", output::name(path)) } else { String::new() };
        if args.parents {
            output::line(&format!(
                "{prefix}{}",
                parents.iter().map(output::name).collect::<Vec<_>>().join("\t")
            ));
        } else {
            output::line(&format!("{prefix}{fid}"));
        }
    }
    if args.json { output::json(&all) } else { Ok(()) }
}

/// The list in an attribute, with a NUL between names.
fn names(path: &Path, attribute: &str) -> Result<Vec<OsString>> {
    let bytes = attribute_bytes(path, attribute)?;
    let all = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(all.map(|name| OsStr::from_bytes(name).to_owned()).collect())
}
fn lossy(names: &[OsString]) -> Vec<String> {
    names.iter().map(|name| name.to_string_lossy().into_owned()).collect()
}

/// A mount point of the file system with that name, if one is mounted.
fn mount_of(name: &str) -> Result<Option<PathBuf>> {
    let all = FileSystems::new(registry::entries()?);
    let mounted: Vec<_> = all.named(name).into_iter().filter(|fs| !all.mounts(fs).is_empty()).collect();
    match mounted.as_slice() {
        [] => Ok(None),
        [one] => Ok(all.mounts(one).into_iter().next()),
        many => {
            let list: Vec<_> = many.iter().map(|fs| format!("\n  {}", all.describe(fs))).collect();
            bail!(
                "{} file systems on this machine are named {name:?}:{}\nhint: give a mount point",
                many.len(),
                list.concat()
            )
        }
    }
}

pub(super) fn fid2path(args: &Fid2pathArgs) -> Result<()> {
    // A name without a slash is that of a file system; if none has it, a directory.
    let mount = if args.mount.contains('/') { None } else { mount_of(&args.mount)? };
    let (root, prefix) = match mount {
        Some(mount) => (mount, String::new()),
        None => (PathBuf::from(&args.mount), format!("{}/", args.mount.trim_end_matches('/'))),
    };
    watch::asks(&root);
    if !root.exists() {
        bail!("no mount of {:?} on this machine\nhint: give the mount point", args.mount);
    }
    let mut all = Vec::new();
    for text in &args.fids {
        let Some(fid) = Fid::parse(text) else {
            bail!(
                "{text:?} is no FID\nhint: it looks like [0x101:0x3:0x0], and the last number is always 0; `nacre lfs path2fid FILE` shows one"
            )
        };
        let paths =
            names(&root, &format!("nacre.path.{fid}")).with_context(|| format!("no path of {fid}"))?;
        if args.json {
            all.push(serde_json::json!({ "fid": fid.to_string(), "paths": lossy(&paths) }));
        } else {
            for path in &paths {
                output::line(&format!(
                    "{}{}",
                    output::name(&prefix),
                    output::name(path).trim_start_matches('/')
                ));
            }
        }
    }
    if args.json { output::json(&all) } else { Ok(()) }
}
