//! pjdfstest (crate 0.2.2): about 400 POSIX cases on a real mount.

use crate::shell::{root, run as sh};
use crate::system::System;
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

/// `elsewhere` is on another file system, for EXDEV.
fn run_on(dir: &Path, elsewhere: &Path) -> Result<()> {
    let out = Command::new(program()?)
        .arg("-c")
        .arg(root().join("crates/nacre-e2e/pjdfstest.toml"))
        .arg("-p")
        .arg(dir)
        .arg("-s")
        .arg(elsewhere)
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
    run_on(&dir, &system.below("elsewhere")?)?;
    std::fs::remove_dir_all(&dir)?;
    system.down()
}
