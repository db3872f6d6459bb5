//! Programs that people run, in a loop, each checked: tar, git, SQLite.
//!
//! A program on a mount that was killed may fail, but changes acknowledged before stay. Any other failure is a violation.

use super::cluster::START_TIMEOUT;
use super::shared::Shared;
use crate::shell::{output, root, run as sh};
use anyhow::Result;
use nacre_testkit::wait::pause;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The two mounts, and a directory beside them: a plain record.
pub(super) struct Places {
    pub(super) mounts: [PathBuf; 2],
    pub(super) scratch: PathBuf,
}

impl Places {
    /// A file that is there once the run is over.
    fn over(&self) -> PathBuf {
        self.scratch.join("over")
    }
    pub(super) fn tell_over(&self) -> Result<()> {
        Ok(fs::write(self.over(), "")?)
    }
}

/// How a program ended.
enum Ended {
    Well(String),
    Badly(String),
    /// It was killed because the run is over.
    Given,
}

/// Runs a program to its end; a run that is over waits for it only so long.
fn program(shared: &Shared, command: &mut Command) -> Result<Ended> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut over: Option<Instant> = None;
    loop {
        if child.try_wait()?.is_some() {
            let out = child.wait_with_output()?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
            return Ok(match out.status.success() {
                true => Ended::Well(text(&out.stdout)),
                false => Ended::Badly(format!("{}: {} {}", out.status, text(&out.stdout), text(&out.stderr))),
            });
        }
        if shared.is_over() {
            let since = *over.get_or_insert_with(Instant::now);
            if since.elapsed() > START_TIMEOUT {
                child.kill()?;
                child.wait()?;
                return Ok(Ended::Given);
            }
        }
        pause(Duration::from_millis(10));
    }
}

/// One step of a load, made of programs that use the given mounts. `None`: one of them was killed meanwhile.
struct Step<'a> {
    shared: &'a Shared,
    name: &'static str,
    mounts: &'static [usize],
    began: Vec<Option<u64>>,
}
impl<'a> Step<'a> {
    /// Waits until the mounts are there.
    fn new(shared: &'a Shared, name: &'static str, mounts: &'static [usize]) -> Self {
        let look = || mounts.iter().map(|m| shared.mount_stands(*m)).collect::<Vec<_>>();
        while look().contains(&None) && !shared.is_over() {
            pause(Duration::from_millis(20));
        }
        Self { shared, name, mounts, began: look() }
    }
    fn stands(&self) -> bool {
        let same =
            |(m, began): (&usize, &Option<u64>)| began.is_some() && self.shared.mount_stands(*m) == *began;
        self.mounts.iter().zip(&self.began).all(same)
    }
    /// The output, if the program ended well.
    fn run(&self, command: &mut Command) -> Option<String> {
        let ended = program(self.shared, command);
        if !self.stands() {
            return None;
        }
        match ended {
            Ok(Ended::Well(text)) => {
                self.shared.add_operations(1);
                Some(text)
            }
            Ok(Ended::Badly(text)) => {
                self.wrong(&format!("{:?}: {text}", command.get_program()));
                None
            }
            Ok(Ended::Given) => {
                self.wrong(&format!("{:?} did not end", command.get_program()));
                None
            }
            Err(error) => {
                self.wrong(&format!("{error:#}"));
                None
            }
        }
    }
    fn wrong(&self, text: &str) {
        self.shared.violation(format!("{}: {text}", self.name));
    }
}

// ---- an archive

/// Unpacks an archive through one mount and compares it through the other.
pub(super) fn untar(shared: &Shared, places: &Places) -> Result<()> {
    let archive = places.scratch.join("archive.tar");
    let mut tar = Command::new("tar");
    tar.arg("cf").arg(&archive).arg("--exclude=target").arg("-C").arg(root());
    sh(tar.args(["crates", "docs", "xtask"]))?;
    let files = output(Command::new("tar").arg("tf").arg(&archive))?.lines().count();
    for round in 0_u64.. {
        if shared.is_over() {
            break;
        }
        let (from, to) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        let name = format!("tree{round}");
        let (here, there) = (places.mounts[from].join(&name), places.mounts[to].join(&name));
        let step = Step::new(shared, "untar", &[0, 1]);
        if let Err(error) = fs::create_dir(&here)
            && step.stands()
        {
            step.wrong(&format!("mkdir {name}: {error}"));
        }
        let unpacked = step.run(Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(&here)).is_some();
        if unpacked && step.run(Command::new("tar").arg("df").arg(&archive).arg("-C").arg(&there)).is_some() {
            shared.add_operations(2 * files as u64);
        }
        // Files that a killed mount has left half written must be removable like all others.
        let step = Step::new(shared, "untar", &[0, 1]);
        step.run(Command::new("rm").arg("-rf").arg(&there));
    }
    Ok(())
}

// ---- git

/// Commits through one mount, looks through the other.
pub(super) fn git(shared: &Shared, places: &Places) -> Result<()> {
    let (here, there) = (places.mounts[1].join("repository"), places.mounts[0].join("repository"));
    let home = &places.scratch;
    let git = |dir: &Path, args: &[&str]| {
        let mut command = Command::new("git");
        command.env("HOME", home).env("GIT_CONFIG_NOSYSTEM", "1").arg("-C").arg(dir);
        command.args(["-c", "user.name=crash", "-c", "user.email=crash@localhost", "-c", "gc.auto=0"]);
        command.args(["-c", "safe.directory=*"]).args(args);
        command
    };
    sh(Command::new("git").args(["init", "--quiet"]).arg(&here).env("HOME", home))?;
    let mut committed: Option<u64> = None;
    for number in 1_u64.. {
        if shared.is_over() {
            break;
        }
        let step = Step::new(shared, "git", &[1]);
        let commit = || -> Option<()> {
            if let Err(error) = fs::write(here.join(format!("file{}", number % 10)), format!("{number}\n")) {
                if step.stands() {
                    step.wrong(&format!("write: {error}"));
                }
                return None;
            }
            step.run(&mut git(&here, &["add", "-A"]))?;
            step.run(&mut git(&here, &["commit", "--quiet", "-m", &number.to_string()])).map(drop)
        };
        let before = committed;
        if commit().is_some() {
            committed = Some(number);
        }
        if committed == before {
            clear_locks(shared, &here, &git);
        }
        let step = Step::new(shared, "git", &[0, 1]);
        if let Some(before) = before
            && let Some(last) = step.run(&mut git(&there, &["log", "-1", "--format=%s"]))
        {
            match last.parse() {
                Ok(last) if Some(last) == committed || last == number => committed = Some(last),
                _ => {
                    step.wrong(&format!("HEAD is {last:?}, committed was {before}, then {number} was tried"))
                }
            }
        }
        if number % 5 == 0 && committed.is_some() {
            step.run(&mut git(&there, &["fsck", "--full", "--strict"]));
        }
    }
    Ok(())
}

/// A git that was killed with its mount leaves locks behind; that is not what is tested. The mount may be killed in the
/// middle of this, too.
fn clear_locks(shared: &Shared, here: &Path, git: &impl Fn(&Path, &[&str]) -> Command) {
    const LOCKS: [&str; 4] = ["index.lock", "HEAD.lock", "refs/heads/master.lock", "refs/heads/main.lock"];
    while !shared.is_over() {
        let step = Step::new(shared, "git", &[1]);
        for lock in LOCKS {
            match fs::remove_file(here.join(".git").join(lock)) {
                Err(error) if error.kind() != ErrorKind::NotFound && step.stands() => {
                    step.wrong(&format!("removal of {lock}: {error}"));
                }
                _ => {}
            }
        }
        if step.run(&mut git(here, &["rev-parse", "-q", "--verify", "HEAD"])).is_some() {
            step.run(&mut git(here, &["reset", "--quiet", "--hard"]));
        }
        if step.stands() {
            return;
        }
    }
}

// ---- SQLite

/// Moves money between accounts in one database on both mounts; says which transactions were committed.
const BANK: &str = r#"
import os, sqlite3, sys, random
path, writer, first, over = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
r = random.Random(first * 2 + writer)
c = sqlite3.connect(path, timeout=120, isolation_level=None)
for n in range(first, first + 40):
    if os.path.exists(over): break
    a, b, m = r.randrange(100), r.randrange(100), r.randrange(10)
    c.execute("BEGIN IMMEDIATE")
    c.execute("UPDATE account SET money = money - ? WHERE id = ?", (m, a))
    c.execute("UPDATE account SET money = money + ? WHERE id = ?", (m, b))
    c.execute("INSERT INTO history VALUES (?, ?)", (writer, n))
    s = c.execute("SELECT sum(money) FROM account").fetchone()[0]
    c.execute("COMMIT")
    print(n, flush=True)
    assert s == 100000, f"the sum is {s}"
"#;
const BANK_MAKE: &str = r#"
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], isolation_level=None)
c.execute("PRAGMA journal_mode=delete")
c.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, money INTEGER)")
c.execute("CREATE TABLE history (writer INTEGER, n INTEGER)")
c.executemany("INSERT INTO account VALUES (?, 1000)", [(i,) for i in range(100)])
"#;
const BANK_CHECK: &str = r#"
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], timeout=60)
print("integrity", c.execute("PRAGMA integrity_check").fetchone()[0])
print("sum", c.execute("SELECT sum(money) FROM account").fetchone()[0])
for writer, n in c.execute("SELECT writer, n FROM history"): print("row", writer, n)
"#;

#[derive(Default)]
pub(super) struct Bank {
    acknowledged: Mutex<BTreeSet<(usize, u64)>>,
}
impl Bank {
    fn python(script: &str, file: &Path, args: &[u64]) -> Command {
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(file).args(args.iter().map(u64::to_string));
        command
    }
    pub(super) fn make(places: &Places) -> Result<()> {
        output(&mut Self::python(BANK_MAKE, &places.mounts[0].join("bank.db"), &[])).map(drop)
    }
    /// The writer of one mount.
    pub(super) fn write(&self, shared: &Shared, places: &Places, mount: usize) -> Result<()> {
        let mounts: &'static [usize] = if mount == 0 { &[0] } else { &[1] };
        let file = places.mounts[mount].join("bank.db");
        let mut next = 0;
        while !shared.is_over() {
            let step = Step::new(shared, "sqlite", mounts);
            // Nothing that the other mount suffers may fail here: a writer that was evicted does not remove our journal.
            let mut command = Self::python(BANK, &file, &[mount as u64, next]);
            command.arg(places.over());
            let errors = places.scratch.join(format!("bank{mount}.err"));
            let mut child = command.stdout(Stdio::piped()).stderr(fs::File::create(&errors)?).spawn()?;
            // Each line is a committed transaction. (The end of the run waits for the last of them.)
            for line in BufReader::new(child.stdout.take().into_iter().next().ok_or_else(no_output)?).lines()
            {
                if let Ok(n) = line?.parse() {
                    self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).insert((mount, n));
                    shared.add_operations(5);
                }
            }
            let status = child.wait()?;
            next += 40;
            if !status.success() && step.stands() {
                let text = fs::read_to_string(&errors).unwrap_or_default();
                step.wrong(&format!("{status}: {}", text.trim()));
            }
        }
        Ok(())
    }
    pub(super) fn check(&self, shared: &Shared, places: &Places) -> Result<()> {
        let acknowledged = self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        for mount in &places.mounts {
            let text = output(&mut Self::python(BANK_CHECK, &mount.join("bank.db"), &[]))?;
            let mut rows = BTreeSet::new();
            for line in text.lines() {
                let words: Vec<&str> = line.split(' ').collect();
                match words[..] {
                    ["integrity", "ok"] | ["sum", "100000"] => {}
                    ["row", writer, n] => {
                        if !rows.insert((writer.parse()?, n.parse()?)) {
                            shared.violation(format!("sqlite: transaction {n} of {writer} is there twice"));
                        }
                    }
                    _ => shared.violation(format!("sqlite: {line}")),
                }
            }
            for (writer, n) in acknowledged.iter().filter(|of| !rows.contains(*of)) {
                shared.violation(format!("sqlite: transaction {n} of {writer} is lost"));
            }
        }
        Ok(())
    }
}
fn no_output() -> anyhow::Error {
    anyhow::anyhow!("no output of python3")
}
