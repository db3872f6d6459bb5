//! Calls that ordinary programs rarely make, on two mounts: handles that outlive their mount, locks of open files,
//! huge sparse files, inherited ACLs (compared with the file system below).

use crate::shell::{root, run as sh};
use crate::system::{System, binary};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// Runs rare calls on two mounts.
pub fn run() -> Result<()> {
    let mut system = System::up()?;
    let below = system.below("scratch")?;
    let gone = system.second_mount()?;
    script("before", &gone, system.mount(), &below)?;
    sh(system.nacre().arg("umount").arg(&gone))?;
    sh(system.nacre().arg("mount").arg("--detach").arg(system.address()).arg(&gone))?;
    script("after", &gone, system.mount(), &below)?;
    system.down()
}

fn script(phase: &str, one: &Path, two: &Path, below: &Path) -> Result<()> {
    let mut python = Command::new("python3");
    python.arg(root().join("crates/nacre-e2e/src/edges.py")).arg(phase).args([one, two, below]);
    sh(python.env("NACRE", binary()?))
}
