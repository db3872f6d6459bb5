//! `cargo xtask sweep`: how far the changes of one mount scale with its slots when the servers are a round trip away.
//!
//! Sets everything up: servers in a process of their own (stores in memory), a proxy that delays every frame, a
//! mount, `nacre bench md --sweep` on it, and compares the ratios at 7 slots with the published ones (docs/measurements.md).

use crate::shell::{output, run as sh};
use crate::system::binary;
use anyhow::{Context as _, Result, ensure};
use nacre_testkit::proxy::{self, ProxyFaults};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The published effect of seven to eight slots against one.
const BARS: [(&str, f64); 6] = [
    ("file-create", 4.0),
    ("file-setattr", 2.5),
    ("file-remove", 3.0),
    ("dir-create", 5.0),
    ("dir-setattr", 3.0),
    ("dir-remove", 4.0),
];
/// Where the bars are read.
const BAR_SLOTS: [u64; 2] = [7, 8];

/// Options of the measurement.
#[derive(clap::Args, Debug)]
pub struct Sweep {
    /// Round trip, microseconds
    #[arg(long, default_value_t = 1000)]
    rtt_us: u64,
    /// Processes on the mount, a directory each
    #[arg(short, long, default_value_t = 16)]
    processes: u32,
    /// Files and directories of each
    #[arg(short = 'n', long, default_value_t = 100)]
    items: u32,
    #[arg(short, long, default_value_t = 3)]
    rounds: u32,
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,7,16,64")]
    limits: Vec<u16>,
    /// The client library alone, without the kernel's look-ups
    #[arg(long)]
    library: bool,
    /// Draws here (SVG)
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// Measures, prints a table and fails if a ratio is below its bar.
pub fn run(sweep: &Sweep) -> Result<()> {
    let far = Far::start(sweep.rtt_us, sweep.limits.iter().copied().max().unwrap_or(1))?;
    let limits = sweep.limits.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let place = if sweep.library { far.source() } else { far.mount()?.display().to_string() };
    let mut bench = far.nacre();
    bench.args(["bench", "md", &place, &format!("--sweep={limits}"), "--json"]);
    bench.args(["-p", &sweep.processes.to_string(), "-n", &sweep.items.to_string()]);
    bench.args(["-r", &sweep.rounds.to_string()]);
    if sweep.library {
        bench.args(["--batch", "1"]);
    }
    if let Some(file) = &sweep.picture {
        bench.arg("--picture").arg(std::path::absolute(file)?);
    }
    let report: Value = serde_json::from_str(&output(&mut bench)?)?;
    print(&report)?;
    far.stop()
}

/// Table and verdict.
fn print(report: &Value) -> Result<()> {
    let list = |value: &Value| -> Vec<f64> {
        value.as_array().map(|a| a.iter().filter_map(Value::as_f64).collect()).unwrap_or_default()
    };
    let limits = list(&report["limits"]);
    println!(
        "round trip {:.2} ms, {} at a time, {} items each, {} rounds: op/s × the first (mean in flight)",
        report["round_trip_us"].as_f64().unwrap_or(0.0) / 1000.0,
        report["processes"],
        report["items_per_process"],
        report["rounds"],
    );
    print!("{:<14}", "slots");
    limits.iter().for_each(|limit| print!("{limit:>20}"));
    println!("{:>10}  {:>14}", "RPCs/op", "bar at 7-8");
    let at = limits.iter().position(|l| BAR_SLOTS.iter().any(|bar| *bar as f64 == *l));
    for row in report["rows"].as_array().context("a report has rows")? {
        let phase = row["phase"].as_str().unwrap_or_default();
        print!("{phase:<14}");
        let (rates, ratios) = (list(&row["ops_per_second"]), list(&row["ratio"]));
        for ((rate, ratio), mean) in rates.iter().zip(&ratios).zip(list(&row["in_flight_mean"])) {
            print!("{:>20}", format!("{rate:.0} ×{ratio:.2} ({mean:.1})"));
        }
        print!("{:>10.2}", row["rpcs_per_operation"].as_f64().unwrap_or(0.0));
        let bar = BARS.iter().find(|(name, _)| *name == phase);
        if let (Some((_, bar)), Some(ratio)) = (bar, at.and_then(|at| ratios.get(at))) {
            print!("  {:>14}", format!("×{bar} {}", if ratio >= bar { "reached" } else { "NOT reached" }));
        }
        println!();
    }
    Ok(())
}

/// Servers behind a proxy, and a mount of them.
struct Far {
    binary: PathBuf,
    base: tempfile::TempDir,
    address: String,
    servers: Child,
}

impl Far {
    fn start(rtt_us: u64, slots: u16) -> Result<Self> {
        let base = tempfile::Builder::new().prefix("nacre-far-").tempdir()?;
        // The system chooses both ports; the server's is free again when the server asks for it.
        let front = TcpListener::bind("127.0.0.1:0")?;
        let back = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let address = front.local_addr()?.to_string();
        let to = back.clone();
        let faults = ProxyFaults { delay: Duration::from_micros(rtt_us / 2), ..ProxyFaults::default() };
        std::thread::Builder::new().name("proxy".into()).spawn(move || proxy::run(&front, &to, faults))?;
        let binary = binary()?;
        let mut command = nacre(&binary, base.path());
        command.args(["serve", "mem:MGS"]);
        for target in ["far-MDT0000", "far-OST0000", "far-OST0001"] {
            command.arg(format!("mem:{target},{back}"));
        }
        command.args(["--listen", &back, "--advertise", &address]).stdout(Stdio::piped());
        let servers = command.spawn().context("the servers do not start")?;
        let mut far = Self { binary, base, address, servers };
        let out = BufReader::new(far.servers.stdout.take().context("stdout is a pipe")?);
        let is_up = |line: std::io::Result<String>| line.is_ok_and(|l| l.starts_with("mount with:"));
        ensure!(out.lines().any(is_up), "the servers ended: their message is above");
        // It holds for those who connect from now on.
        let limit = format!("mdt.*.max_mod_rpcs_in_flight={}", slots.clamp(8, 511));
        output(far.nacre().args(["lctl", "set_param", &limit]))?;
        Ok(far)
    }

    fn nacre(&self) -> Command {
        nacre(&self.binary, self.base.path())
    }

    fn source(&self) -> String {
        format!("{}:/far", self.address)
    }

    fn mount(&self) -> Result<PathBuf> {
        let dir = self.base.path().join("mnt");
        std::fs::create_dir(&dir)?;
        sh(self.nacre().arg("mount").arg("--detach").arg(self.source()).arg(&dir))?;
        Ok(dir)
    }

    fn stop(mut self) -> Result<()> {
        self.unmount()?;
        sh(Command::new("kill").arg(self.servers.id().to_string()))?;
        let status = self.servers.wait()?;
        ensure!(status.success(), "the servers ended with {status}");
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        let dir = self.base.path().join("mnt");
        if !dir.exists() {
            return Ok(());
        }
        sh(self.nacre().arg("umount").arg(&dir))?;
        Ok(std::fs::remove_dir(&dir)?)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // Only after a failure does anything run still.
        drop(self.unmount());
        drop(self.servers.kill());
        drop(self.servers.wait());
    }
}

fn nacre(binary: &Path, base: &Path) -> Command {
    let mut command = Command::new(binary);
    command.env("NACRE_RUN_DIR", base.join("run"));
    command
}
