//! Servers and mounts as processes on hosts of their own, some of them behind a proxy of frames.

use crate::network::Network;
use crate::shell::run as sh;
use anyhow::{Context as _, Result, ensure};
use nacre_testkit::wait::pause;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Servers, then mounts.
const HOSTS: [(&str, &str); 6] = [
    ("mgs", "10.78.0.1"),
    ("mdt", "10.78.0.2"),
    ("ost0", "10.78.0.3"),
    ("ost1", "10.78.0.4"),
    ("mnt0", "10.78.0.5"),
    ("mnt1", "10.78.0.6"),
];
pub(crate) const SERVERS: [&str; 4] = ["mgs", "mdt", "ost0", "ost1"];
pub(crate) const MDT: usize = 1;
pub(crate) const MOUNTS: usize = 2;
/// A server or mount that was started serves within this time, or the run has failed.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of the proxy before each server; `None`: no proxy.
pub(crate) type Proxies = [Option<Vec<String>>; SERVERS.len()];

pub(crate) struct Cluster {
    nacre: PathBuf,
    network: Network,
    // Open: the run says where it is, and keeps it after an error.
    pub(crate) base: tempfile::TempDir,
    servers: Vec<Option<Child>>,
    mounts: Vec<Option<Child>>,
    proxies: Vec<Child>,
    has_proxy: [bool; SERVERS.len()],
    write_back: bool,
}

impl Cluster {
    pub(crate) fn start(nacre: PathBuf, proxies: &Proxies, write_back: bool) -> Result<Self> {
        let base = tempfile::Builder::new().prefix("nacre-crash-").tempdir()?;
        let prefix = format!("c{}-", std::process::id());
        let network = Network::new(&prefix, &HOSTS)?;
        let mut cluster = Self {
            nacre,
            network,
            base,
            servers: SERVERS.map(|_| None).into(),
            mounts: (0..MOUNTS).map(|_| None).collect(),
            proxies: Vec::new(),
            has_proxy: [0, 1, 2, 3].map(|at: usize| proxies[at].is_some()),
            write_back,
        };
        for (at, name) in SERVERS.iter().enumerate() {
            cluster.format(at)?;
            if let Some(faults) = &proxies[at] {
                let mut proxy = cluster.network.on(name, &std::env::current_exe()?);
                proxy.arg("proxy").args(["--listen", &format!("{}:9988", HOSTS[at].1)]);
                proxy.args(["--to", "127.0.0.1:9989"]).args(faults).process_group(0);
                cluster
                    .proxies
                    .push(proxy.stdin(Stdio::null()).stderr(cluster.log(&format!("{name}.proxy"))?).spawn()?);
            }
            cluster.serve(at, &[])?;
        }
        for at in 0..MOUNTS {
            fs::create_dir(cluster.mount(at))?;
            cluster.start_mount(at)?;
        }
        Ok(cluster)
    }
    fn format(&self, at: usize) -> Result<()> {
        let mut mkfs = self.command(&self.nacre);
        mkfs.arg("mkfs").stdout(Stdio::null());
        match SERVERS[at] {
            "mgs" => mkfs.arg("--mgs"),
            "mdt" => mkfs.args(["--mdt", "--index", "0"]),
            ost => mkfs.args(["--ost", "--index", if ost == "ost0" { "0" } else { "1" }]),
        };
        if at > 0 {
            mkfs.args(["--fsname", "demo", "--mgsnode", &format!("{}:9988", HOSTS[0].1)]);
        }
        sh(mkfs.arg(self.path(SERVERS[at])))
    }

    // ---- where things are

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }
    pub(crate) fn mount(&self, at: usize) -> PathBuf {
        self.path(HOSTS[SERVERS.len() + at].0)
    }
    /// A nacre command that talks to the processes of this run.
    pub(crate) fn nacre(&self) -> Command {
        self.command(&self.nacre)
    }
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.environment(&mut command);
        command
    }
    fn environment(&self, command: &mut Command) {
        command.env("NACRE_RUN_DIR", self.path("run")).env("NACRE_LOG", "info").stdin(Stdio::null());
    }
    fn log(&self, name: &str) -> Result<File> {
        Ok(OpenOptions::new().create(true).append(true).open(self.path(&format!("{name}.log")))?)
    }
    /// The last lines of every log.
    pub(crate) fn last_lines(&self, lines: usize) -> String {
        let mut out = String::new();
        for (name, _) in HOSTS {
            let log = fs::read_to_string(self.path(&format!("{name}.log"))).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(lines).collect();
            last.iter().rev().for_each(|line| out.push_str(&format!("{name}: {line}\n")));
        }
        out
    }

    // ---- servers

    /// Starts a server; `Ok` says nothing of whether it serves already.
    pub(crate) fn serve(&mut self, at: usize, options: &[&str]) -> Result<()> {
        let (name, address) = HOSTS[at];
        let mut serve = self.network.on(name, &self.nacre);
        self.environment(&mut serve);
        serve.arg("serve").arg(self.path(name)).args(options).process_group(0);
        let public = format!("{address}:9988");
        match self.has_proxy[at] {
            true => serve.args(["--listen", "127.0.0.1:9989", "--advertise", &public]),
            false => serve.args(["--listen", &public]),
        };
        serve.stdout(Stdio::null()).stderr(self.log(name)?);
        self.servers[at] = Some(serve.spawn().with_context(|| format!("cannot serve {name}"))?);
        Ok(())
    }
    pub(crate) fn kill_server(&mut self, at: usize) -> Result<()> {
        kill(&mut self.servers[at])
    }
    /// Kills a server and starts it again without waiting for its end.
    pub(crate) fn kill_and_serve(&mut self, at: usize) -> Result<()> {
        let mut old = self.servers[at].take();
        if let Some(child) = &mut old {
            child.kill()?;
        }
        self.serve(at, &[])?;
        kill(&mut old)
    }
    /// Stops a server by signal and starts another that takes over.
    pub(crate) fn take_over(&mut self, at: usize) -> Result<()> {
        let mut old = self.servers[at].take();
        if let Some(child) = &old {
            signal(child, Signal::STOP)?;
        }
        let next = self.serve(at, &["--takeover"]);
        let until = Instant::now() + START_TIMEOUT;
        while let Some(child) = &mut old {
            if child.try_wait()?.is_some() {
                break;
            }
            ensure!(Instant::now() < until, "the stopped server was not ended by --takeover");
            pause(Duration::from_millis(5));
        }
        next
    }
    /// SIGSTOP or SIGCONT of server or mount (mounts count on after the servers).
    pub(crate) fn freeze(&self, host: usize, stop: bool) -> Result<()> {
        let child = self.servers.iter().chain(&self.mounts).nth(host).and_then(Option::as_ref);
        signal(child.context("not running")?, if stop { Signal::STOP } else { Signal::CONT })
    }
    pub(crate) fn link(&self, host: usize, up: bool) -> Result<()> {
        self.network.link(HOSTS[host].0, up)
    }
    pub(crate) fn host_name(host: usize) -> &'static str {
        HOSTS[host].0
    }

    // ---- mounts

    pub(crate) fn start_mount(&mut self, at: usize) -> Result<()> {
        let (name, _) = HOSTS[SERVERS.len() + at];
        let dir = self.mount(at);
        // Programs made files where nothing was mounted.
        if !is_mounted(&dir)? {
            fs::remove_dir_all(&dir)?;
            fs::create_dir(&dir)?;
        }
        let mut mount = self.network.on(name, &self.nacre);
        self.environment(&mut mount);
        mount.arg("mount").arg(format!("{}:9988:/demo", HOSTS[0].1)).arg(&dir).process_group(0);
        if !self.write_back {
            mount.args(["-o", "write_through"]);
        }
        self.mounts[at] = Some(mount.stdout(Stdio::null()).stderr(self.log(name)?).spawn()?);
        let until = Instant::now() + START_TIMEOUT;
        while !is_mounted(&dir)? {
            ensure!(Instant::now() < until, "{} does not get mounted", dir.display());
            pause(Duration::from_millis(20));
        }
        Ok(())
    }
    /// Kills a mount's process and takes its mount point away.
    pub(crate) fn kill_mount(&mut self, at: usize) -> Result<()> {
        let killed = kill(&mut self.mounts[at]);
        drop(Command::new("umount").arg("-l").arg(self.mount(at)).stderr(Stdio::null()).status());
        killed
    }

    // ---- the end

    /// Stops everything as planned; returns the processes that did not stop and the mounts that were left.
    pub(crate) fn stop(&mut self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        for at in 0..MOUNTS {
            let dir = self.mount(at);
            let done = Command::new("umount").arg(&dir).output()?;
            if !done.status.success() {
                wrong.push(format!("umount: {}", String::from_utf8_lossy(&done.stderr).trim()));
            }
        }
        let mut all: Vec<(&str, Child)> = Vec::new();
        // The MDT before the OSTs, and the MGS last.
        for at in [1, 2, 3, 0] {
            if let Some(child) = self.servers[at].take() {
                drop(signal(&child, Signal::TERM));
                all.push((SERVERS[at], child));
                let (name, child) = all.last_mut().context("just pushed")?;
                wrong.extend(ended(name, child)?);
            }
        }
        for (at, mount) in self.mounts.iter_mut().enumerate() {
            if let Some(mut child) = mount.take() {
                wrong.extend(ended(HOSTS[SERVERS.len() + at].0, &mut child)?);
            }
        }
        if fs::read_to_string("/proc/mounts")?.contains(&self.base.path().display().to_string()) {
            wrong.push("a mount is left".to_owned());
        }
        wrong.extend(self.strangers().map(|pid| format!("process {pid} is left")));
        Ok(wrong)
    }
    /// Processes with the run directory of this run.
    fn strangers(&self) -> impl Iterator<Item = String> + use<> {
        let mark = format!("NACRE_RUN_DIR={}\0", self.path("run").display()).into_bytes();
        fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(move |entry| {
            let environment = fs::read(entry.path().join("environ")).ok()?;
            let found = environment.windows(mark.len()).any(|part| part == mark);
            found.then(|| entry.file_name().to_string_lossy().into_owned())
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for at in 0..self.mounts.len() {
            drop(self.kill_mount(at));
        }
        for child in &mut self.servers {
            drop(kill(child));
        }
        for child in self.proxies.drain(..) {
            drop(kill(&mut Some(child)));
        }
    }
}

fn kill(child: &mut Option<Child>) -> Result<()> {
    if let Some(mut child) = child.take() {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no such process")?;
    Ok(kill_process(pid, signal)?)
}

/// Waits for a planned end.
fn ended(name: &str, child: &mut Child) -> Result<Option<String>> {
    let until = Instant::now() + START_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| format!("{name} ended with {status}")));
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Ok(Some(format!("{name} did not stop")));
        }
        pause(Duration::from_millis(10));
    }
}

fn is_mounted(dir: &Path) -> Result<bool> {
    let dir = format!(" {} fuse", dir.display());
    Ok(fs::read_to_string("/proc/mounts")?.lines().any(|line| line.contains(&dir)))
}
