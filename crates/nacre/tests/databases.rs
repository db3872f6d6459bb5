//! SQLite on two mounts, one of which stands still for longer than its lease in the middle of a transaction. Needs root,
//! /dev/fuse and python3; without them the test says so and passes.
#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::disallowed_methods, reason = "tests")]

mod machine;

use machine::cluster::Cluster;
use machine::{Machine, eventually};
use rustix::process::Signal;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Executes lines of SQL, or of Python after a `!`, and replies to each with a line.
const SHELL: &str = r#"
import os, sqlite3, sys, threading
path = sys.argv[1]
def errno_of(f):
    try: f()
    except OSError as e: return e.errno
    return 0
def in_child(f):
    pid = os.fork()
    if pid == 0: os._exit(errno_of(f))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def in_thread(f):
    got = []
    t = threading.Thread(target=lambda: got.append(errno_of(f)))
    t.start(); t.join()
    return got[0]
c = sqlite3.connect(path, timeout=60, isolation_level=None)
c.execute("PRAGMA cache_size=" + sys.argv[2])
for line in sys.stdin:
    try:
        if line.startswith("!"): print(eval(line[1:]), flush=True)
        else: print("ok", c.execute(line).fetchall(), flush=True)
    except sqlite3.Error as e:
        print("error", e, flush=True)
"#;

struct Shell {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}
impl Shell {
    /// Beyond so many cached pages a transaction writes into the database before its COMMIT.
    fn open(database: &Path, pages_cached: &str) -> Self {
        let mut command = Command::new("python3");
        command
            .args(["-c", SHELL])
            .arg(database)
            .arg(pages_cached)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { input: child.stdin.take(), output, child }
    }
    fn run(&mut self, line: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
        let mut reply = String::new();
        self.output.read_line(&mut reply).unwrap();
        reply.trim().to_owned()
    }
    fn good(&mut self, line: &str) -> String {
        let reply = self.run(line);
        assert!(reply.starts_with("ok"), "{line}: {reply:?}");
        reply
    }
    fn leave(mut self) {
        drop(self.input.take());
        self.child.wait().unwrap();
    }
}
impl Drop for Shell {
    fn drop(&mut self) {
        let _ended = self.child.kill(); // it may have ended
        drop(self.child.wait());
    }
}

/// A transaction of the mount that stood still is hot (or has written its journal only) when the other takes over, and begins its own; then the first is
/// back and gives up, and the second dies before its COMMIT.
#[test]
fn a_database_stays_whole_when_a_mount_is_back_after_another_has_taken_its_locks() {
    if Command::new("python3").args(["-c", "import sqlite3"]).status().map_or(true, |s| !s.success()) {
        eprintln!("skipped: needs python3 with sqlite3");
        return;
    }
    let Some(m) = Machine::new() else { return };
    let c = Cluster::format(&m);
    let _servers = c.all();
    let (sleeper, _other) = (c.mount("a"), c.mount("b"));
    let (a, b) = (c.mnt("a"), c.mnt("b"));
    for (mode, cached) in [("delete", "2"), ("delete", "1000"), ("truncate", "1000"), ("persist", "1000")] {
        let name = format!("{mode}-{cached}.db");
        let set_mode = format!("PRAGMA journal_mode={mode}");
        let mut first = Shell::open(&a.join(&name), cached);
        first.good(&set_mode);
        first.good("CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT, pad BLOB)");
        first.good(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<200) \
             INSERT INTO t SELECT i, 'start', randomblob(1000) FROM n",
        );
        first.good("BEGIN IMMEDIATE");
        first.good("UPDATE t SET v='by a', pad=randomblob(1000)");
        sleeper.signal(Signal::STOP);
        let mut second = Shell::open(&b.join(&name), "2");
        second.good(&set_mode);
        second.good("BEGIN IMMEDIATE"); // when the lease of the other has ended: rolls it back
        second.good("UPDATE t SET v='by b', pad=randomblob(1000)");
        sleeper.signal(Signal::CONT);

        let given_up = first.run("COMMIT");
        assert!(given_up.starts_with("error"), "{mode}: {given_up}");
        first.run("ROLLBACK");
        let journal = b.join(format!("{name}-journal"));
        assert!(journal.exists(), "{mode}: the journal is that of the other by now");
        let eio = "5";
        let calls = [
            "lambda: os.unlink(path + '-journal')",
            "lambda: os.truncate(path + '-journal', 0)",
            "lambda: os.rename(path + '-journal', path + '-x')",
            "lambda: os.mkdir(path + '-dir')",
            "lambda: os.symlink('x', path + '-symlink')",
            "lambda: os.link(path + '-journal', path + '-link')",
            "lambda: open(path + '-new', 'x')",
        ];
        for call in calls {
            for from in ["errno_of", "in_thread", "in_child"] {
                assert_eq!(first.run(&format!("!{from}({call})")), eio, "{mode}: {from}({call})");
            }
        }
        assert_eq!(first.run("!errno_of(lambda: os.stat(path))"), "0", "looking goes on");
        std::fs::write(a.join("of another process"), "x").unwrap();
        first.leave();
        // The handle is closed: whoever comes now is not kept from anything.
        std::fs::write(a.join("later"), "x").unwrap();
        second.child.kill().unwrap();
        second.child.wait().unwrap();

        for mount in [&b, &a] {
            let mut third = Shell::open(&mount.join(&name), "2");
            let rows = third.good("SELECT v, count(*) FROM t GROUP BY v");
            assert_eq!(rows, "ok [('start', 200)]", "{mode}: neither transaction was committed");
            assert_eq!(third.good("PRAGMA integrity_check"), "ok [('ok',)]", "{mode}");
            third.leave();
        }
        eventually("the mount is well", || a.join(&name).exists());
    }
    sleeper.says(&["all its changes fail with EIO", "process="]);
}
