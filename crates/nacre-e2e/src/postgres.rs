//! PostgreSQL on a mount whose servers are killed again and again, and stay away for 1 to 10 seconds. Its log must hold no error,
//! pgbench must end well, and the tables must agree. Takes about two minutes, so it is not part of CI.

use super::pause;
use crate::shell::{output, run as sh};
use crate::system::binary;
use anyhow::{Context as _, Result, ensure};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TARGETS: [&str; 4] = ["mgs", "mdt", "ost0", "ost1"];
/// The servers that are killed, and the seconds until they are started again.
const KILLS: [(&[usize], u64); 10] = [
    (&[1], 1),
    (&[2], 3),
    (&[3], 5),
    (&[0, 1, 2, 3], 2),
    (&[1], 10),
    (&[2], 10),
    (&[3], 1),
    (&[1, 2], 4),
    (&[0], 5),
    (&[0, 1, 2, 3], 10),
];
const SERVED_BETWEEN: Duration = Duration::from_secs(3);
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Servers in processes of their own, and a mount in another one.
struct Servers {
    nacre: PathBuf,
    base: tempfile::TempDir,
    running: Vec<Option<Child>>,
}

impl Servers {
    fn start() -> Result<Self> {
        let base = tempfile::Builder::new()
            .prefix("nacre-postgres-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir()?;
        let mut servers = Self { nacre: binary()?, base, running: TARGETS.map(|_| None).into() };
        for (at, name) in TARGETS.iter().enumerate() {
            let mut mkfs = servers.nacre();
            mkfs.arg("mkfs").stdout(Stdio::null());
            match *name {
                "mgs" => mkfs.arg("--mgs"),
                "mdt" => mkfs.args(["--mdt", "--index", "0"]),
                "ost0" => mkfs.args(["--ost", "--index", "0"]),
                _ => mkfs.args(["--ost", "--index", "1"]),
            };
            if at > 0 {
                mkfs.args(["--fsname", "demo", "--mgsnode", &servers.address()]);
            }
            sh(mkfs.arg(servers.path(name)))?;
            servers.serve(at)?;
        }
        std::fs::create_dir(servers.mount())?;
        let source = format!("{}:/demo", servers.address());
        sh(servers.nacre().args(["mount", "--detach", &source]).arg(servers.mount()))?;
        Ok(servers)
    }
    fn path(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }
    fn mount(&self) -> PathBuf {
        self.path("mnt")
    }
    fn address(&self) -> String {
        format!("unix:{}", self.path("mgs/nacre.sock").display())
    }
    fn nacre(&self) -> Command {
        let mut command = Command::new(&self.nacre);
        command.env("NACRE_RUN_DIR", self.path("run")).stdin(Stdio::null());
        command
    }
    fn serve(&mut self, at: usize) -> Result<()> {
        let log = std::fs::File::options().create(true).append(true).open(self.path("servers.log"))?;
        let mut serve = self.nacre();
        serve.arg("serve").arg(self.path(TARGETS[at])).stdout(Stdio::null()).stderr(log);
        self.running[at] = Some(serve.spawn()?);
        Ok(())
    }
    fn kill(&mut self, at: usize) -> Result<()> {
        if let Some(mut child) = self.running[at].take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }
    fn end(mut self) -> Result<()> {
        sh(self.nacre().arg("umount").arg(self.mount()))?;
        (0..TARGETS.len()).try_for_each(|at| self.kill(at))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // Only after a failure something is left.
        if std::fs::read_to_string("/proc/mounts").is_ok_and(|t| t.contains(&*self.mount().to_string_lossy()))
        {
            drop(self.nacre().args(["umount", "--force"]).arg(self.mount()).status());
        }
        for at in 0..TARGETS.len() {
            drop(self.kill(at));
        }
    }
}

/// The programs of the newest PostgreSQL; Debian's is installed if there is none.
fn programs() -> Result<PathBuf> {
    let find = || {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
        versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("pgbench").exists()).max()
    };
    if find().is_none() {
        sh(Command::new("apt-get").args(["install", "-y", "-qq", "--no-install-recommends", "postgresql"]))?;
    }
    find().context("no pgbench below /usr/lib/postgresql")
}

/// A database server on `dir`, run by the user postgres.
struct Postgres {
    bin: PathBuf,
    data: PathBuf,
    /// Beside the mount: socket and log.
    beside: PathBuf,
}

impl Postgres {
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(self.bin.join(name));
        command.env("PGHOST", &self.beside).env("PGDATA", &self.data).env("PGDATABASE", "postgres");
        command.current_dir(&self.beside).stdin(Stdio::null());
        command
    }
    fn log(&self) -> PathBuf {
        self.beside.join("log")
    }
    fn start(&self) -> Result<()> {
        sh(self.program("initdb").args(["--no-sync", "--data-checksums"]).stdout(Stdio::null()))?;
        let options = format!("-k {} -c listen_addresses= -c checkpoint_timeout=30s", self.beside.display());
        sh(self
            .program("pg_ctl")
            .args(["-w", "-o", &options, "-l"])
            .arg(self.log())
            .arg("start")
            .stdout(Stdio::null()))
    }
    fn ask(&self, query: &str) -> Result<String> {
        Ok(output(self.program("psql").args(["-qAtc", query]))?.trim().to_owned())
    }
    /// The first error in its log.
    fn error(&self) -> Result<Option<String>> {
        let log = std::fs::read_to_string(self.log())?;
        let bad = ["ERROR:", "FATAL:", "PANIC:", "could not", "crash"];
        Ok(log.lines().find(|line| bad.iter().any(|word| line.contains(word))).map(str::to_owned))
    }
}

fn let_pass(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        pause();
    }
}

pub(crate) fn run() -> Result<()> {
    let mut servers = Servers::start()?;
    let postgres =
        Postgres { bin: programs()?, data: servers.mount().join("data"), beside: servers.path("beside") };
    for dir in [&postgres.data, &postgres.beside] {
        std::fs::create_dir(dir)?;
        sh(Command::new("chown").arg("postgres:").arg(dir))?;
    }
    postgres.start()?;
    let tested = under_kills(&mut servers, &postgres);
    let stopped = sh(postgres.program("pg_ctl").args(["-m", "fast", "stop"]).stdout(Stdio::null()));
    tested?;
    stopped?;
    servers.end()
}

fn under_kills(servers: &mut Servers, postgres: &Postgres) -> Result<()> {
    sh(postgres.program("pgbench").args(["-i", "-q", "-s", "2"]).stderr(Stdio::null()))?;
    let seconds: u64 = KILLS.iter().map(|(_, away)| away + SERVED_BETWEEN.as_secs()).sum();
    let mut bench = postgres.program("pgbench");
    bench.args(["-c", "4", "-n", "-T", &seconds.to_string()]).stdout(Stdio::piped());
    let bench = bench.spawn()?;
    let start = Instant::now();
    for (victims, away) in KILLS {
        let_pass(SERVED_BETWEEN);
        for at in victims {
            servers.kill(*at)?;
        }
        let_pass(Duration::from_secs(away));
        for at in victims {
            servers.serve(*at)?;
        }
        let names: Vec<&str> = victims.iter().map(|at| TARGETS[*at]).collect();
        println!("  {} away for {away} s", names.join(", "));
    }
    ensure!(start.elapsed() < Duration::from_secs(seconds) + START_TIMEOUT, "the kills took too long");
    let ended = bench.wait_with_output()?;
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    ensure!(ended.status.success(), "pgbench failed:\n{said}\n{:?}", postgres.error()?);
    if let Some(line) = postgres.error()? {
        anyhow::bail!("the log of PostgreSQL has an error: {line}");
    }
    sh(postgres.program("pg_amcheck").args(["--install-missing", "--heapallindexed", "postgres"]))?;
    let sums = postgres.ask(
        "select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers), \
         (select sum(bbalance) from pgbench_branches), (select sum(delta) from pgbench_history)",
    )?;
    let sums: Vec<&str> = sums.split('|').collect();
    ensure!(sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]), "the tables disagree: {sums:?}");
    let transactions = postgres.ask("select count(*) from pgbench_history")?;
    println!("  {transactions} transactions, {} kills, no error in the log", KILLS.len());
    Ok(())
}
