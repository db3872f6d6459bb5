//! A machine of its own for one test: a run directory, directories, background processes that end with it.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "each test file uses a part")]

pub mod cluster;
pub mod daemon;

pub use nacre_testkit::wait::eventually;
use nacre_testkit::wait::{WAIT_TIMEOUT, holds_within};
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub struct Machine {
    dir: tempfile::TempDir,
}

/// What a command did.
pub struct Said {
    pub ok: bool,
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Machine {
    /// `None`, with a word on stderr, where nothing can be mounted.
    pub fn new() -> Option<Self> {
        if !rustix::process::getuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: needs root and /dev/fuse");
            return None;
        }
        Some(Self::without_mounts())
    }
    /// For tests that mount nothing: any user may run them.
    pub fn without_mounts() -> Self {
        Self { dir: tempfile::Builder::new().prefix("nacre-cli-").tempdir().unwrap() }
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    /// A directory, made.
    pub fn made(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nacre"));
        command.env("NACRE_RUN_DIR", self.path("run")).env_remove("NACRE_LOG").stdin(Stdio::null());
        command
    }
    /// Runs it to its end.
    pub fn nacre<S: AsRef<OsStr>>(&self, args: &[S]) -> Said {
        said(self.command().args(args).output().unwrap())
    }
    /// The same as an ordinary user of some groups. Everybody may reach what the machine has mounted from then on.
    pub fn nacre_as(&self, uid: u32, groups: &str, args: &[&str]) -> Said {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(self.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (uid, nacre) = (uid.to_string(), self.command());
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid, "--regid", &uid]);
        match groups {
            "" => command.arg("--clear-groups"),
            groups => command.args(["--groups", groups]),
        };
        command
            .arg(nacre.get_program())
            .args(args)
            .env("NACRE_RUN_DIR", self.path("run"))
            .stdin(Stdio::null());
        said(command.output().unwrap())
    }
    /// Runs it; it must succeed.
    pub fn good<S: AsRef<OsStr>>(&self, args: &[S]) -> String {
        let said = self.nacre(args);
        assert!(said.ok, "failed: {}\n{}", said.out, said.err);
        said.out
    }
    /// Runs it; it must fail, and say every one of `words`.
    pub fn refused<S: AsRef<OsStr>>(&self, args: &[S], words: &[&str]) -> String {
        let said = self.nacre(args);
        assert_eq!(said.code, Some(1), "{} {}", said.out, said.err);
        for word in words {
            assert!(said.err.contains(word), "{word:?} is not in: {}", said.err);
        }
        said.err
    }
    /// Starts it in the background and waits until a line of its stdout begins with `until`.
    pub fn start<S: AsRef<OsStr>>(&self, args: &[S], until: &str) -> Running {
        let mut command = self.command();
        command.args(args);
        self.start_command(command, until)
    }
    /// The same with a command that has been made otherwise.
    pub fn start_command(&self, mut command: Command, until: &str) -> Running {
        command.env("NACRE_RUN_DIR", self.path("run")).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut running = Running { child, said: String::new(), stdout };
        let mut line = String::new();
        while running.stdout.read_line(&mut line).unwrap() > 0 {
            let found = line.trim_start().starts_with(until);
            running.said.push_str(&line);
            line.clear();
            if found {
                return running;
            }
        }
        let mut why = String::new();
        running.child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        panic!("ended before it said {until:?}: {}{why}", running.said);
    }
    /// `nacre up MNT --dir DIR`, in the foreground of a process of its own.
    pub fn up(&self) -> Running {
        self.up_with(&[])
    }
    pub fn up_with(&self, more: &[&str]) -> Running {
        let (mount, data) = (self.mount(), self.path("data"));
        let mut args = vec!["up", mount.to_str().unwrap(), "--dir", data.to_str().unwrap()];
        args.extend(more);
        self.start(&args, "next: ")
    }
    pub fn mount(&self) -> PathBuf {
        self.path("mnt")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What a failed test left mounted must not keep the directory.
        let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return };
        let mut points: Vec<&str> = table.lines().filter_map(|l| l.split(' ').nth(4)).collect();
        points.reverse();
        for point in points.iter().filter(|p| Path::new(p).starts_with(self.dir.path())) {
            let _ = rustix::mount::unmount(*point, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

pub fn said(output: Output) -> Said {
    Said {
        ok: output.status.success(),
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Sends a signal to a child. Returns from SIGSTOP when all of its threads have stopped: those that wait for a processor
/// would otherwise still serve what the test does next.
pub fn signal_child(child: &Child, signal: rustix::process::Signal) {
    use rustix::process::{Signal, WaitId, WaitIdOptions, kill_process, waitid};
    let pid = rustix::process::Pid::from_child(child);
    kill_process(pid, signal).unwrap();
    if signal == Signal::STOP {
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    }
}

/// A process in the background; killed when dropped.
pub struct Running {
    child: Child,
    /// What it said until it was up.
    pub said: String,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
    pub fn signal(&self, signal: rustix::process::Signal) {
        signal_child(&self.child, signal);
    }
    /// The address in the line `mount another: nacre mount ADDRESS DIR`.
    pub fn address(&self) -> String {
        let line = self.said.lines().find(|l| l.contains("mount another:")).unwrap();
        line.split_whitespace().rev().nth(1).unwrap().to_owned()
    }
    /// The next line on stderr that holds `word`.
    pub fn complains(&mut self, word: &str) -> String {
        let mut stderr = BufReader::new(self.child.stderr.take().unwrap());
        let mut line = String::new();
        while stderr.read_line(&mut line).unwrap() > 0 {
            if line.contains(word) {
                self.child.stderr = Some(stderr.into_inner());
                return line;
            }
            line.clear();
        }
        panic!("{word:?} was not said");
    }
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
    /// Waits for its end.
    pub fn ended(mut self) -> Said {
        let in_time = holds_within(WAIT_TIMEOUT, || self.child.try_wait().unwrap().is_some());
        if !in_time {
            self.child.kill().unwrap();
        }
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(in_time, "not within {WAIT_TIMEOUT:?}: it ends; it said: {out}{err}");
        let status = self.child.wait().unwrap();
        Said { ok: status.success(), code: status.code(), out, err }
    }
    /// SIGINT, and a clean end.
    pub fn stop(self) -> Said {
        self.signal(rustix::process::Signal::INT);
        let said = self.ended();
        assert!(said.ok, "{} {}", said.out, said.err);
        said
    }
    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// SIGSTOP returns before every thread stands still: one in a write ends it first.
pub fn stands_still(pid: u32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}
