//! `nacre mount -o remount,...`: other options for a mount that exists.
//!
//! Two places know the options: the kernel, which refuses changes of a read-only mount and shows the table of mounts,
//! and the mount's process, which changes access times and refuses changes that reach it past the kernel. A mount
//! becomes read-only in the kernel first, and writable there last, so that the process never refuses what the kernel
//! allows.

use crate::cmd::lctl;
use crate::output;
use crate::process::mount_options::Options;
use crate::process::registry;
use anyhow::{Context as _, Result, bail};
use nacre_fuse::MountError;
use nacre_types::FsName;
use std::path::Path;

/// The options with which the session of a mount began.
const FIXED: &[&str] = &["intr", "nointr", "uring", "nouring", "write_back", "write_through"];

/// Gives the mount of `fs` on `dir` the options that it has, changed by `words`.
pub(crate) fn run(dir: &Path, fs: &FsName, words: &[String]) -> Result<()> {
    let present =
        nacre_fuse::options_of(dir).ok_or_else(|| MountError::NotMounted(dir.display().to_string()))?;
    if let Some(fixed) = words.iter().find(|word| FIXED.contains(&word.as_str())) {
        bail!(
            "a remount cannot change {fixed}\nhint: nacre umount {0}, then mount it with the new options",
            dir.display()
        );
    }
    let options = Options::parse_table(&present, words)?;
    let own = registry::entries()?.into_iter().find(|entry| entry.mounts.iter().any(|mount| mount == dir));
    let own = own.with_context(|| {
        format!("the process of the mount on {} is not known here\nhint: nacre status", dir.display())
    })?;
    // The address may be another one of its MGS.
    if let Some(other) = own.fs.as_ref().filter(|name| *name != fs.as_str()) {
        bail!("{} is a mount of the file system {other}, not of {fs}", dir.display());
    }
    if options.read_only {
        nacre_fuse::remount(dir, options.kernel())?;
    }
    let atime = options.atime();
    let settings = [
        format!("llite.*.read_only={}", u8::from(options.read_only)),
        format!("llite.*.atime={}", atime.files.word()),
        format!("llite.*.dir_atime={}", atime.directories.word()),
    ];
    for setting in settings {
        lctl::apply_to(own.clone(), &setting)?;
    }
    if !options.read_only {
        nacre_fuse::remount(dir, options.kernel())?;
    }
    let now = nacre_fuse::options_of(dir).unwrap_or_default();
    output::line(&format!("{} is remounted: {now}", dir.display()));
    Ok(())
}
