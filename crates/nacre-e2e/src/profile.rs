//! `cargo xtask profile`: records the profile that optimized builds use (`profile/rustc`).
//!
//! A binary that counts its branches serves the loads of `nacre bench` on all three paths to the servers: in the process
//! of the mount, in another one, and without io_uring. Each process adds its counts to those of the others when it ends.
//! What the loads do not reach is optimized as without a profile.

use crate::compare::{Compare, Setup};
use crate::shell::{cargo, output, root, run as sh};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable of `profile/rustc`: the directory that the binary writes its counts to.
const RECORD: &str = "NACRE_RECORD_PROFILE";
/// The file that names the compiler with which the profile was recorded.
const RECORDED_WITH: &str = "profile/recorded-with";

/// Records a new profile (about ten minutes) in place of the old one.
pub fn run() -> Result<()> {
    let merge = profdata_tool()?;
    // The directory of the counts is in the binary. Cargo knows nothing of that, so the build has a directory of its own.
    let target = root().join("target/profile");
    let counts = target.join("counts");
    sh(cargo(&["build", "--release", "--package", "nacre", "--target-dir"])
        .arg(&target)
        .env(RECORD, &counts))?;
    if counts.exists() {
        std::fs::remove_dir_all(&counts)?;
    }
    let binary = target.join("release/nacre");
    for no_uring in [false, true] {
        load(&binary, no_uring)?;
    }
    let profile = root().join("profile/nacre.profdata");
    sh(Command::new(merge).args(["merge", "-sparse", "-o"]).arg(&profile).arg(&counts))?;
    std::fs::write(root().join(RECORDED_WITH), compiler()?)?;
    println!("{}: the next optimized build uses it", profile.display());
    Ok(())
}

/// Says on stderr if the profile has no effect, because symbols contain the version of the compiler.
pub fn warn_if_void() -> Result<()> {
    let (recorded, now) = (std::fs::read_to_string(root().join(RECORDED_WITH))?, compiler()?);
    if recorded != now {
        eprintln!(
            "optimized builds of {} do not use the profile, which is one of {}: cargo xtask profile",
            now.trim(),
            recorded.trim()
        );
    }
    Ok(())
}

fn compiler() -> Result<String> {
    output(Command::new("rustc").arg("--version").current_dir(root()))
}

/// LLVM's tool for profiles, of the compiler in use.
fn profdata_tool() -> Result<PathBuf> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]).current_dir(root()))?;
    let hosts = Path::new(sysroot.trim()).join("lib/rustlib");
    let tools = std::fs::read_dir(&hosts).with_context(|| hosts.display().to_string())?;
    let mut tools = tools.flatten().map(|host| host.path().join("bin/llvm-profdata"));
    tools.find(|tool| tool.exists()).context("no llvm-profdata beside rustc: rustup component add llvm-tools")
}

fn load(binary: &Path, no_uring: bool) -> Result<()> {
    let options = Compare::once(no_uring);
    let mut setup = Setup::new(binary.to_owned(), no_uring)?;
    setup.add("up")?;
    setup.add("nacre")?;
    setup.measure(&options)?;
    setup.measure_io(&options)?;
    setup.end()
}
