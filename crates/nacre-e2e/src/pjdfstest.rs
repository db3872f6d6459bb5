//! pjdfstest (crate 0.2.2): about 400 POSIX cases on a real mount.

use crate::shell::{root, run as sh};
use crate::system::{System, binary};
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = "0.2.2";

/// The installed program; installed once per machine.
fn program() -> Result<PathBuf> {
    let base = PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache/nacre-xtask");
    let program = base.join("bin/pjdfstest");
    if !program.exists() {
        sh(Command::new("cargo")
            .args(["install", "pjdfstest", "--version", VERSION, "--locked", "--quiet", "--root"])
            .arg(&base)
            .env("CARGO_TARGET_DIR", base.join("target")))?;
    }
    Ok(program)
}

/// The helper that `mount -o remount` calls, as a package installs it. mount(8) looks for it only here.
const HELPER: &str = "/usr/sbin/mount.fuse.nacre";

/// A link to the binary in the place of the helper, as long as it lives; nothing if there is a helper.
struct Helper(bool);
impl Helper {
    fn link() -> Result<Self> {
        let is_missing = std::fs::symlink_metadata(HELPER).is_err();
        if is_missing {
            std::os::unix::fs::symlink(std::fs::canonicalize(binary()?)?, HELPER)?;
        }
        Ok(Self(is_missing))
    }
}
impl Drop for Helper {
    fn drop(&mut self) {
        if self.0 {
            let _gone = std::fs::remove_file(HELPER);
        }
    }
}

/// Runs all cases, or those with `pattern` in their name. `elsewhere` is on another file system, for EXDEV.
fn run_on(system: &System, dir: &Path, elsewhere: &Path, config: &str, pattern: Option<&str>) -> Result<()> {
    let out = Command::new(program()?)
        .envs(system.nacre().get_envs().filter_map(|(name, value)| Some((name, value?))))
        .arg("-c")
        .arg(root().join("crates/nacre-e2e").join(config))
        .arg("-p")
        .arg(dir)
        .arg("-s")
        .arg(elsewhere)
        .args(pattern)
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    for line in text.lines().filter(|l| l.contains("FAILED") || l.starts_with("Summary")) {
        eprintln!("{line}");
    }
    let summary = text.lines().find(|l| l.starts_with("Summary")).context("pjdfstest printed no summary")?;
    ensure!(out.status.success() && summary.contains(" 0 failed"), "pjdfstest: {summary}\n{text}");
    Ok(())
}

/// Runs pjdfstest on a real mount.
pub fn run() -> Result<()> {
    let system = System::up()?;
    let dir = system.mount().join("pjdfstest");
    std::fs::create_dir(&dir)?;
    std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let elsewhere = system.below("elsewhere")?;
    run_on(&system, &dir, &elsewhere, "pjdfstest.toml", None)?;
    // In a process of their own: others of its cases leave files open for writing, which keep any file system writable.
    let _helper = Helper::link()?;
    run_on(&system, &dir, &elsewhere, "pjdfstest-remount.toml", Some("erofs"))?;
    std::fs::remove_dir_all(&dir)?;
    system.down()
}
