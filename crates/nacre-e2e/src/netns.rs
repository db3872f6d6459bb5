//! Three server processes and two client mounts in network namespaces of their own, over TCP.
//!
//! For several orders of start: the same files are seen from both mounts, `lfs getstripe` is right, and after `kill -9`
//! and restart of each server nothing is lost and the clients continue. Then the links of a client and of a server are cut
//! without notice, for less and for more than a lease: after that, no half-open connection delays a client further.

use crate::network::Network;
use crate::shell::{output, run as sh};
use crate::system::binary;
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Three servers, two clients.
const HOSTS: [(&str, &str); 5] = [
    ("mds", "10.77.0.1"),
    ("oss0", "10.77.0.2"),
    ("oss1", "10.77.0.3"),
    ("cl0", "10.77.0.4"),
    ("cl1", "10.77.0.5"),
];
/// Seconds, of the servers under half-open connections.
const LEASE: u64 = 3;
/// Starting orders of the three servers and the two clients (3 and 4).
const ORDERS: [[usize; 5]; 3] = [[0, 1, 2, 3, 4], [3, 2, 1, 4, 0], [1, 3, 0, 4, 2]];

struct Cluster<'a> {
    network: &'a Network,
    nacre: PathBuf,
    base: tempfile::TempDir,
    running: Vec<Option<Child>>,
    /// Seconds, of servers that are started from now on.
    lease: u64,
}

impl<'a> Cluster<'a> {
    fn format(network: &'a Network, nacre: &Path) -> Result<Self> {
        let base = tempfile::Builder::new().prefix("nacre-netns-").tempdir()?;
        let me =
            Self { network, nacre: nacre.into(), base, running: (0..5).map(|_| None).collect(), lease: 10 };
        let mkfs = |args: &str, dir: &str| {
            sh(Command::new(&me.nacre)
                .arg("mkfs")
                .args(args.split_whitespace())
                .arg(me.base.path().join(dir)))
        };
        let mgs = format!("--fsname demo --mgsnode {}:9988", HOSTS[0].1);
        mkfs("--mgs", "mgs")?;
        mkfs(&format!("--mdt --index 0 {mgs}"), "mdt0")?;
        mkfs(&format!("--ost --index 0 {mgs}"), "ost0")?;
        mkfs(&format!("--ost --index 1 {mgs}"), "ost1")?;
        for i in 0..2 {
            fs::create_dir(me.mount(i))?;
        }
        Ok(me)
    }
    fn mount(&self, client: usize) -> PathBuf {
        self.base.path().join(format!("mnt{client}"))
    }

    /// Starts server 0..3 or client 3..5.
    fn start(&mut self, who: usize) -> Result<()> {
        let (host, address) = *HOSTS.get(who).context("no such host")?;
        let mut command = self.network.on(host, &self.nacre);
        command.env("NACRE_RUN_DIR", self.base.path().join(format!("run{who}")));
        let dir = |name: &str| self.base.path().join(name);
        match who {
            0 => command.arg("serve").args([dir("mgs"), dir("mdt0")]),
            1 => command.arg("serve").arg(dir("ost0")),
            2 => command.arg("serve").arg(dir("ost1")),
            client => {
                command.arg("mount").arg(format!("{}:9988:/demo", HOSTS[0].1)).arg(self.mount(client - 3))
            }
        };
        if who < 3 {
            command.args(["--listen", &format!("{address}:9988"), "--lease", &self.lease.to_string()]);
        }
        let log = fs::File::options().create(true).append(true).open(dir(&format!("log{who}")))?;
        self.running[who] = Some(command.stdout(Stdio::null()).stderr(log).spawn()?);
        Ok(())
    }

    fn kill(&mut self, who: usize) -> Result<()> {
        let mut child = self.running[who].take().context("not running")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    fn wait_mounted(&self) -> Result<()> {
        let mounted = || {
            let table = fs::read_to_string("/proc/mounts")?;
            Ok((0..2).all(|c| table.contains(&format!(" {} ", self.mount(c).display()))))
        };
        eventually("mounted", mounted).map(drop).with_context(|| self.logs())
    }
    /// Waits until the MDT stripes over both OSTs; the directory whose files are striped so.
    ///
    /// It learns of an OST that came last within a second or two; before, a file gets what there is.
    fn wait_both_osts(&self) -> Result<PathBuf> {
        let striped = self.mount(0).join("striped");
        fs::create_dir(&striped)?;
        sh(Command::new(&self.nacre).args(["lfs", "setstripe", "-c", "2", "-S", "64K"]).arg(&striped))?;
        let both = || {
            let probe = striped.join("probe");
            fs::write(&probe, "x")?;
            let stripes = output(Command::new(&self.nacre).args(["lfs", "getstripe", "-c"]).arg(&probe))?;
            fs::remove_file(&probe)?;
            Ok(stripes.trim() == "2")
        };
        eventually("the MDT uses both OSTs", both)?;
        Ok(striped)
    }
    fn logs(&self) -> String {
        (0..5)
            .map(|i| fs::read_to_string(self.base.path().join(format!("log{i}"))).unwrap_or_default())
            .collect::<Vec<_>>()
            .join("\n")
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        for i in 0..2 {
            drop(Command::new("umount").arg("-l").arg(self.mount(i)).stderr(Stdio::null()).status());
        }
        for child in self.running.iter_mut().flatten() {
            drop(Command::new("kill").arg(child.id().to_string()).status());
        }
        for child in self.running.iter_mut().flatten() {
            drop(child.wait());
        }
    }
}

fn content(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + i * 7) as u8).collect()
}

fn write(file: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
    let mut handle = fs::File::create(file)?;
    handle.write_all(bytes)?;
    if sync { handle.sync_all() } else { Ok(()) }
}

fn one_order(network: &Network, nacre: &Path, order: &[usize; 5]) -> Result<()> {
    let mut cluster = Cluster::format(network, nacre)?;
    for &who in order {
        cluster.start(who)?;
        super::pause();
    }
    cluster.wait_mounted()?;
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    let striped = cluster.wait_both_osts()?;
    for i in 0..20 {
        fs::write(striped.join(format!("f{i}")), content(i, 300_000 + i))?;
    }
    let text = output(Command::new(nacre).args(["lfs", "getstripe", "-c"]).arg(b.join("striped/f3")))?;
    ensure!(text.trim() == "2", "getstripe -c says {text:?}");
    let verify = |mount: &Path, files: usize| -> Result<()> {
        for i in 0..files {
            let got = fs::read(mount.join(format!("striped/f{i}")))?;
            if got != content(i, 300_000 + i) {
                bail!("f{i} differs on {} ({} bytes)", mount.display(), got.len());
            }
        }
        Ok(())
    };
    verify(&b, 20)?;
    // Each server dies while a client writes; the writer must not notice more than a pause.
    for who in 0..3 {
        let dir = b.join("striped");
        let first = 20 + who * 20;
        let writer = std::thread::Builder::new().spawn(move || -> Result<()> {
            for i in first..first + 20 {
                fs::write(dir.join(format!("f{i}")), content(i, 300_000 + i))?;
            }
            Ok(())
        })?;
        super::pause();
        cluster.kill(who)?;
        super::pause();
        cluster.start(who)?;
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
        verify(&a, first + 20)?;
    }
    let names = |m: &Path| -> Result<Vec<_>> {
        let mut list: Vec<_> = fs::read_dir(m.join("striped"))?.flatten().map(|e| e.file_name()).collect();
        list.sort();
        Ok(list)
    };
    ensure!(names(&a)?.len() == 80 && names(&a)? == names(&b)?, "the two mounts list different names");
    for m in [&a, &b] {
        sh(Command::new("umount").arg(m))?;
    }
    Ok(())
}

/// Sockets of servers and clients, in the order of the hosts.
fn sockets(cluster: &Cluster<'_>) -> Result<Vec<usize>> {
    let of = |child: &Option<Child>| {
        let pid = child.as_ref().context("not running")?.id();
        let fds = fs::read_dir(format!("/proc/{pid}/fd"))?;
        let targets = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        Ok(targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count())
    };
    cluster.running.iter().map(of).collect()
}
fn eventually(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<f64> {
    let start = Instant::now();
    while !condition().with_context(|| what.to_owned())? {
        ensure!(start.elapsed() < Duration::from_secs(60), "not within 60 s: {what}");
        super::pause();
    }
    Ok(start.elapsed().as_secs_f64())
}

/// The link of `host` is down for so many leases while both clients work: 60 files each, made and read again; synced
/// if the cut is long enough for an eviction.
fn link_down(cluster: &Cluster<'_>, who: usize, leases: f64, round: &str) -> Result<()> {
    let (network, host) = (cluster.network, HOSTS.get(who).context("no such host")?.0);
    let before = sockets(cluster)?;
    let work = |client: usize| {
        let dir = cluster.mount(client).join(format!("{round}.{client}"));
        std::thread::Builder::new().spawn(move || -> Result<u32> {
            let mut failed = 0;
            fs::create_dir(&dir)?;
            for i in 0..60 {
                let file = dir.join(format!("f{i}"));
                // Only calls in flight at the eviction of the mount fail. It loses what was not synced.
                while let Err(error) = write(&file, &content(i, 5000), leases > 1.0) {
                    ensure!(error.raw_os_error() == Some(5), "{}: {error}", file.display());
                    failed += 1;
                    ensure!(failed <= 20, "{}: fails for ever", file.display());
                }
                super::pause();
            }
            Ok(failed)
        })
    };
    let workers = [work(0)?, work(1)?];
    super::pause();
    network.link(host, false)?;
    let down = Instant::now();
    let lasts = Duration::from_secs_f64(LEASE as f64 * leases);
    if who >= 3 && leases > 1.0 {
        // The servers give up a client that they do not hear, and everything that it had with them.
        let lower = || Ok(sockets(cluster)?.iter().zip(&before).take(3).all(|(now, then)| now < then));
        let took = eventually("the servers close what the client had", lower)?;
        println!("  {host} is cut off: its connections are closed at all servers after {took:.1} s");
    }
    eventually("time passes", || Ok(down.elapsed() >= lasts))?;
    network.link(host, true)?;
    let mut failed = Vec::new();
    for (client, worker) in workers.into_iter().enumerate() {
        let result = worker.join().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
        failed.push(result.with_context(|| format!("client {client}; {}", cluster.logs()))?);
    }
    let after = eventually("as many sockets as before", || Ok(sockets(cluster)? == before));
    let after = after.with_context(|| format!("{before:?} before, {:?} now", sockets(cluster)))?;
    println!(
        "  {host} down for {leases} leases: calls that failed {failed:?}, sockets {before:?} again, {after:.1} s later"
    );
    ensure!(leases > 1.0 || failed == [0, 0], "a cut that is shorter than the lease costs nothing");
    for (reader, writer) in [(0, 1), (1, 0)] {
        for i in 0..60 {
            let file = cluster.mount(reader).join(format!("{round}.{writer}/f{i}"));
            ensure!(fs::read(&file)? == content(i, 5000), "{} differs", file.display());
        }
    }
    Ok(())
}

fn half_open(network: &Network, nacre: &Path) -> Result<()> {
    let mut cluster = Cluster::format(network, nacre)?;
    cluster.lease = LEASE;
    (0..5).try_for_each(|who| cluster.start(who))?;
    cluster.wait_mounted()?;
    // From here on everybody is connected to everybody, and the number of sockets says who has lost one.
    let striped = cluster.wait_both_osts()?;
    for c in 0..2 {
        fs::write(
            cluster.mount(c).join(striped.file_name().context("a name")?).join(format!("from{c}")),
            content(c, 1 << 17),
        )?;
    }
    for (who, name) in [(3, "client"), (1, "oss"), (0, "mds")] {
        for (leases, length) in [(0.5, "short"), (2.5, "long")] {
            link_down(&cluster, who, leases, &format!("{name}.{length}"))?;
        }
    }
    (0..2).try_for_each(|c| sh(Command::new("umount").arg(cluster.mount(c))))
}

/// Runs servers and mounts in network namespaces, in several orders, with kill -9 of each server and cut links.
pub fn run() -> Result<()> {
    let nacre = binary()?;
    let network = Network::new("nc-", &HOSTS)?;
    for order in &ORDERS {
        let start = Instant::now();
        one_order(&network, &nacre, order).with_context(|| format!("starting order {order:?}"))?;
        println!(
            "order {order:?}: ok, 3 servers killed and restarted, {:.1} s",
            start.elapsed().as_secs_f64()
        );
    }
    let start = Instant::now();
    half_open(&network, &nacre).context("half-open connections")?;
    println!("half-open connections: ok, {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
