//! Programs that people run: a source tree, git, SQLite, fio, on a real mount.

use crate::shell::{output, root, run as sh};
use crate::system::System;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

type App = (&'static str, fn(&Path, &Path) -> Result<()>);

const APPS: &[App] = &[("tree", tree), ("git", git), ("sqlite", sqlite), ("fio", fio)];

/// Runs every app, or those named. PostgreSQL, which needs servers that can be killed, only if it is named.
pub fn run(names: &[String]) -> Result<()> {
    if names.iter().any(|name| name == "postgres") {
        let start = Instant::now();
        crate::postgres::run()?;
        println!("postgres: ok, {:.1} s", start.elapsed().as_secs_f64());
        if names.len() == 1 {
            return Ok(());
        }
    }
    let system = System::up()?;
    let scratch = system.below("scratch")?;
    for (name, app) in APPS.iter().filter(|(n, _)| names.is_empty() || names.iter().any(|w| w == n)) {
        let dir = system.mount().join(name);
        std::fs::create_dir(&dir)?;
        let start = Instant::now();
        app(&dir, &scratch)?;
        println!("{name}: ok, {:.1} s", start.elapsed().as_secs_f64());
    }
    let second = output(system.nacre().arg("lfs").arg("df").arg("-h").arg(system.mount()))?;
    println!("{second}");
    system.down()
}

/// Unpacks the kernel's source (or, where the package is missing, /usr/share) on the mount and beside it, and compares.
fn tree(dir: &Path, scratch: &Path) -> Result<()> {
    let archive = PathBuf::from("/usr/src/linux-source-6.1.tar.xz");
    if !archive.exists() {
        sh(Command::new("apt-get").args([
            "install",
            "-y",
            "-qq",
            "--no-install-recommends",
            "linux-source-6.1",
        ]))?;
    }
    let beside = scratch.join("tree");
    std::fs::create_dir(&beside)?;
    for to in [dir, beside.as_path()] {
        sh(Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(to))?;
    }
    sh(Command::new("diff").args(["-r", "--no-dereference"]).arg(dir).arg(&beside))?;
    sh(Command::new("rm").arg("-rf").arg(dir).arg(&beside))
}

fn git(dir: &Path, _: &Path) -> Result<()> {
    let clone = dir.join("clone");
    sh(Command::new("git").args(["clone", "--quiet", "--no-local"]).arg(root()).arg(&clone))?;
    let git = |args: &[&str]| sh(Command::new("git").arg("-C").arg(&clone).args(args));
    git(&["fsck", "--full", "--strict"])?;
    git(&["gc", "--quiet"])?;
    git(&["fsck", "--full"])?;
    let status = output(Command::new("git").arg("-C").arg(&clone).args(["status", "--porcelain"]))?;
    ensure!(status.is_empty(), "a fresh clone is not clean:\n{status}");
    Ok(())
}

/// Three processes move money between accounts; the sum must never change.
const SQLITE: &str = r#"
import sqlite3, sys, random, multiprocessing, os
path, mode = sys.argv[1], sys.argv[2]
def connect():
    c = sqlite3.connect(path, timeout=120, isolation_level=None)
    return c
def writer(seed):
    c = connect(); r = random.Random(seed)
    for _ in range(60):
        a, b, n = r.randrange(100), r.randrange(100), r.randrange(10)
        c.execute("BEGIN IMMEDIATE")
        c.execute("UPDATE account SET money = money - ? WHERE id = ?", (n, a))
        c.execute("UPDATE account SET money = money + ? WHERE id = ?", (n, b))
        c.execute("INSERT INTO history VALUES (?, ?, ?)", (a, b, n))
        c.execute("COMMIT")
        assert c.execute("SELECT sum(money) FROM account").fetchone()[0] == 100000
c = connect()
assert c.execute(f"PRAGMA journal_mode={mode}").fetchone()[0] == mode
c.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, money INTEGER)")
c.execute("CREATE TABLE history (a, b, n)")
c.executemany("INSERT INTO account VALUES (?, 1000)", [(i,) for i in range(100)])
c.close()
ps = [multiprocessing.Process(target=writer, args=(i,)) for i in range(3)]
[p.start() for p in ps]; [p.join() for p in ps]
assert all(p.exitcode == 0 for p in ps), [p.exitcode for p in ps]
c = connect()
assert c.execute("SELECT sum(money) FROM account").fetchone()[0] == 100000
assert c.execute("SELECT count(*) FROM history").fetchone()[0] == 180
assert c.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
"#;

fn sqlite(dir: &Path, _: &Path) -> Result<()> {
    for mode in ["delete", "wal"] {
        sh(Command::new("python3").args(["-c", SQLITE]).arg(dir.join(mode)).arg(mode))?;
    }
    Ok(())
}

fn fio(dir: &Path, scratch: &Path) -> Result<()> {
    sh(Command::new("fio")
        // It leaves its state files where it stands.
        .current_dir(scratch)
        .args([
            "--name=verify",
            "--rw=randrw",
            "--bs=4k-64k",
            "--size=64m",
            "--numjobs=2",
            "--ioengine=psync",
        ])
        .args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--fsync=64", "--group_reporting"])
        .args(["--output-format=terse", "--directory"])
        .arg(dir)
        .stdout(std::process::Stdio::null()))
}
