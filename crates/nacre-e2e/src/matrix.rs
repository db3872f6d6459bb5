//! The two-mount matrix: a change that has completed on one mount is visible at once on the other.
//!
//! For every pair (change, observation): the observer looks on mount B (so that anything it might keep is warm), the
//! change is made on mount A, the observer looks again on B. The same script runs on the file system below; every
//! observation must be equal to the one there.

use crate::system::System;
use anyhow::{Result, ensure};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

type Change = (&'static str, fn(&Path) -> std::io::Result<()>);
type Observation = (&'static str, fn(&Path) -> String);

/// Changes inside a directory prepared by [`prepare`].
const CHANGES: &[Change] = &[
    ("create", |d| File::create_new(d.join("new")).map(drop)),
    ("mkdir", |d| fs::create_dir(d.join("new"))),
    ("link", |d| fs::hard_link(d.join("file"), d.join("new"))),
    ("unlink", |d| fs::remove_file(d.join("file"))),
    ("rmdir", |d| fs::remove_dir(d.join("sub"))),
    ("rename", |d| fs::rename(d.join("file"), d.join("new"))),
    ("chmod", |d| fs::set_permissions(d.join("file"), fs::Permissions::from_mode(0o640))),
    ("truncate", |d| OpenOptions::new().write(true).open(d.join("file"))?.set_len(2)),
    ("write", |d| OpenOptions::new().write(true).open(d.join("file"))?.write_all_at(b"WRITTEN OVER", 1)),
    ("append", |d| OpenOptions::new().append(true).open(d.join("file"))?.write_all(b" and more")),
    ("setxattr", |d| {
        Ok(rustix::fs::setxattr(d.join("file"), "user.key", b"value", rustix::fs::XattrFlags::empty())?)
    }),
];

const NAMES: [&str; 3] = ["file", "new", "sub"];

fn each(d: &Path, show: impl Fn(&Path) -> std::io::Result<String>) -> String {
    NAMES
        .map(|n| format!("{n}: {}", show(&d.join(n)).unwrap_or_else(|e| format!("{:?}", e.kind()))))
        .join("; ")
}

const OBSERVATIONS: &[Observation] = &[
    ("lookup", |d| each(d, |p| fs::symlink_metadata(p).map(|_| "there".into()))),
    ("stat", |d| {
        each(d, |p| {
            let m = fs::symlink_metadata(p)?;
            let size = if m.is_dir() { 0 } else { m.len() };
            let mut key = [0; 16];
            let xattr = rustix::fs::getxattr(p, "user.key", &mut key).unwrap_or(0);
            Ok(format!("{:o} {} {size} {xattr}", m.mode(), m.nlink()))
        })
    }),
    ("readdir", |d| {
        let mut names: Vec<_> =
            fs::read_dir(d).into_iter().flatten().flatten().map(|e| e.file_name().into_string()).collect();
        names.sort();
        format!("{names:?}")
    }),
    ("read", |d| each(d, |p| Ok(format!("{:?}", fs::read_to_string(p)?)))),
    ("open", |d| each(d, |p| File::open(p).map(|f| f.metadata().map_or(0, |m| m.nlink()).to_string()))),
];

fn prepare(d: &Path) -> std::io::Result<()> {
    fs::create_dir(d)?;
    fs::create_dir(d.join("sub"))?;
    File::create_new(d.join("file"))?.write_all(b"what it was")
}

/// Checks that what one mount has completed the other sees: every change × every observation, `rounds` times.
pub fn run(rounds: u32) -> Result<()> {
    let mut system = System::up()?;
    let b = system.second_mount()?;
    let a = system.mount().to_path_buf();
    let below = system.below("oracle")?;
    let (mut checks, mut differences) = (0, Vec::new());
    for round in 0..rounds {
        // Every other round the mounts change their parts.
        let (a, b) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        for (change_name, change) in CHANGES {
            for (look_name, look) in OBSERVATIONS {
                let name = format!("{change_name}-{look_name}-{round}");
                let (at_a, at_b, oracle) = (a.join(&name), b.join(&name), below.join(&name));
                prepare(&at_a)?;
                prepare(&oracle)?;
                for when in ["before", "after"] {
                    if when == "after" {
                        change(&at_a)?;
                        change(&oracle)?;
                    }
                    let (seen, expected) = (look(&at_b), look(&oracle));
                    checks += 1;
                    if seen != expected {
                        differences.push(format!("{name} {when}: seen {seen}, expected {expected}"));
                    }
                }
                fs::remove_dir_all(&at_a)?;
                fs::remove_dir_all(&oracle)?;
            }
        }
    }
    system.down()?;
    println!(
        "{} pairs, {rounds} rounds, {checks} observations, {} differences",
        CHANGES.len() * OBSERVATIONS.len(),
        differences.len()
    );
    differences.truncate(20);
    ensure!(differences.is_empty(), "differences:\n  {}", differences.join("\n  "));
    Ok(())
}
