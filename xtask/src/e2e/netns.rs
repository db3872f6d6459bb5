//! Three server processes and two client mounts in network namespaces of their own, over TCP.
//!
//! For several orders of start: the same files are seen from both mounts, `lfs getstripe` is right, and after
//! `kill -9` and restart of each server nothing is lost and the clients went on.

use super::network::Network;
use super::system::binary;
use crate::shell::{output, run as sh};
use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
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
/// Starting orders of the three servers and the two clients (3 and 4).
const ORDERS: [[usize; 5]; 3] = [[0, 1, 2, 3, 4], [3, 2, 1, 4, 0], [1, 3, 0, 4, 2]];

struct Cluster<'a> {
    network: &'a Network,
    nacre: PathBuf,
    base: tempfile::TempDir,
    running: Vec<Option<Child>>,
}

impl<'a> Cluster<'a> {
    fn format(network: &'a Network, nacre: &Path) -> Result<Self> {
        let base = tempfile::Builder::new().prefix("nacre-netns-").tempdir()?;
        let me = Self { network, nacre: nacre.into(), base, running: (0..5).map(|_| None).collect() };
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
            command.args(["--listen", &format!("{address}:9988")]);
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
        let start = Instant::now();
        loop {
            let table = fs::read_to_string("/proc/mounts")?;
            if (0..2).all(|c| table.contains(&format!(" {} ", self.mount(c).display()))) {
                return Ok(());
            }
            ensure!(start.elapsed() < Duration::from_secs(60), "not mounted after 60 s: see {}", self.logs());
            super::pause();
        }
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

fn one_order(network: &Network, nacre: &Path, order: &[usize; 5]) -> Result<()> {
    let mut cluster = Cluster::format(network, nacre)?;
    for &who in order {
        cluster.start(who)?;
        super::pause();
    }
    cluster.wait_mounted()?;
    let (a, b) = (cluster.mount(0), cluster.mount(1));
    let striped = a.join("striped");
    fs::create_dir(&striped)?;
    sh(Command::new(nacre).args(["lfs", "setstripe", "-c", "2", "-S", "64K"]).arg(&striped))?;
    // The MDT learns of an OST that came last within a second or two; before, a file gets what there is.
    let start = Instant::now();
    loop {
        let probe = striped.join("probe");
        fs::write(&probe, "x")?;
        let stripes = output(Command::new(nacre).args(["lfs", "getstripe", "-c"]).arg(&probe))?;
        fs::remove_file(&probe)?;
        if stripes.trim() == "2" {
            break;
        }
        ensure!(start.elapsed() < Duration::from_secs(30), "the MDT uses {} OSTs after 30 s", stripes.trim());
        super::pause();
    }
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

pub(crate) fn run() -> Result<()> {
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
    Ok(())
}
