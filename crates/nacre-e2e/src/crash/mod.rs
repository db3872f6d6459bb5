//! Faults of real processes while programs work on two mounts: nothing acknowledged is lost, nothing happens twice.
//!
//! MGS, MDT and two OSTs are processes on hosts of their own, some behind a proxy that delays, drops, doubles and
//! reorders frames. Servers and mounts get one fault at a time: kill -9 and restart, SIGSTOP, a cut link. While a *server*
//! is away, calls must wait: an error is a violation. When a *mount* is killed or evicted, only the calls that were under
//! way may fail; mounts write through, so that nothing else is lost with them. At the end all files are compared through the other mount, then all processes are stopped and the
//! stores verified.

pub(crate) mod cluster;
mod common;
mod faults;
mod loads;
mod report;
mod shared;
mod worker;

use crate::system::binary;
use anyhow::{Result, bail};
use cluster::{Cluster, MOUNTS, Proxies, SERVERS, START_TIMEOUT};
use common::Common;
use faults::{Fault, Faults};
use loads::{Bank, Places};
use nacre_testkit::wait::pause;
use report::Report;
use shared::Shared;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
pub(crate) use worker::Rng;
use worker::Worker;

/// Workers per mount.
const WORKERS: u64 = 3;
/// Of the measurement of pauses: on one mount, a directory each, at this round trip.
const PAUSE_WORKERS: u64 = 16;
const PAUSE_ONE_WAY_US: u64 = 500;

/// How long, and which faults and loads.
#[derive(clap::Args, Debug)]
pub struct Options {
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these faults
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<Fault>,
    /// Only these loads
    #[arg(long, value_enum, value_delimiter = ',')]
    loads: Vec<Load>,
    /// Measure: kill the MDT so often while 16 workers use one mount at 1 ms round trip, and show each pause
    #[arg(long, value_name = "N")]
    mdt_kills: Option<u64>,
    /// Mounts keep what they write for a moment; then none of them is killed or evicted, which would lose that
    #[arg(long)]
    write_back: bool,
    /// The result as JSON on stdout; everything else goes to stderr
    #[arg(long)]
    json: bool,
    /// Leave stores and logs where they are
    #[arg(long)]
    keep: bool,
}

impl Options {
    /// A run of CI.
    pub fn short(write_back: bool) -> Self {
        const MINUTES: f64 = 0.5;
        let (faults, loads) = (Vec::new(), Vec::new());
        let (json, keep) = (false, false);
        Self { minutes: MINUTES, seed: 8, faults, loads, mdt_kills: None, write_back, json, keep }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Load {
    /// Names, appends, links of many workers, each outcome known
    Meta,
    Untar,
    Git,
    Sqlite,
}

/// The proxies between clients and servers.
fn proxies(options: &Options) -> Proxies {
    let words = |text: &str| Some(text.split(' ').map(str::to_owned).collect::<Vec<_>>());
    match options.mdt_kills {
        Some(_) => {
            let delay = words(&format!("--delay-us {PAUSE_ONE_WAY_US}"));
            [None, delay.clone(), delay.clone(), delay]
        }
        None => {
            let seed = options.seed;
            let bad = words(&format!(
                "--delay-us 100 --drop-one-in 3000 --double-one-in 200 --swap-one-in 200 --seed {seed}"
            ));
            [None, bad.clone(), bad, None]
        }
    }
}

/// Runs the loads under the faults; an error if a promise was broken.
pub fn run(options: &Options) -> Result<()> {
    let (shared, common, bank) = (Shared::new(), Common::default(), Bank::default());
    let loads = match (&options.loads[..], options.mdt_kills) {
        (_, Some(_)) => vec![Load::Meta],
        ([], None) => vec![Load::Meta, Load::Untar, Load::Git, Load::Sqlite],
        (some, None) => some.to_vec(),
    };
    let mut cluster = Cluster::start(binary()?, &proxies(options), options.write_back)?;
    eprintln!("stores and logs: {}", cluster.base.path().display());
    let places = Places { mounts: [cluster.mount(0), cluster.mount(1)], scratch: cluster.path("scratch") };
    std::fs::create_dir(&places.scratch)?;
    let mut workers = workers(options, &loads, &places, &shared, &common)?;
    if loads.contains(&Load::Sqlite) {
        Bank::make(&places)?;
    }
    let mut faults = Faults::new(options, &mut cluster, &shared)?;
    let outcome = std::thread::scope(|scope| {
        let mut running = Vec::new();
        let tell = |what: &str, done: Result<()>| {
            if let Err(error) = done {
                shared.violation(format!("{what}: {error:#}"));
            }
        };
        for worker in &mut workers {
            running.push(("worker", scope.spawn(|| worker.work())));
        }
        let (shared, places, bank) = (&shared, &places, &bank);
        for load in loads.iter().copied() {
            match load {
                Load::Meta => {}
                Load::Untar => {
                    running.push(("untar", scope.spawn(move || tell("untar", loads::untar(shared, places)))));
                }
                Load::Git => {
                    running.push(("git", scope.spawn(move || tell("git", loads::git(shared, places)))));
                }
                Load::Sqlite => {
                    for mount in 0..MOUNTS {
                        let write = move || tell("sqlite", bank.write(shared, places, mount));
                        running.push(("sqlite", scope.spawn(write)));
                    }
                }
            }
        }
        let outcome = faults.run();
        shared.stop();
        tell("end", places.tell_over());
        let until = Instant::now() + START_TIMEOUT + START_TIMEOUT / 2;
        while running.iter().any(|(_, r)| !r.is_finished()) && Instant::now() < until {
            pause(Duration::from_millis(20));
        }
        let hang: Vec<&str> =
            running.iter().filter(|(_, r)| !r.is_finished()).map(|(name, _)| *name).collect();
        if !hang.is_empty() {
            shared.violation(format!("{} hang; their mounts are killed", hang.join(", ")));
            for mount in 0..MOUNTS {
                shared.mount_fault(mount);
                drop(faults.cluster.kill_mount(mount));
            }
        }
        outcome.map(|()| hang.is_empty())
    });
    let report = faults.report();
    match outcome {
        Ok(true) => compare(&places, &shared, &common, (&bank, &workers), &loads),
        Ok(false) => {}
        Err(error) => shared.violation(format!("{error:#}")),
    }
    finish(options, cluster, &shared, &report)
}

fn workers<'a>(
    options: &Options,
    loads: &[Load],
    places: &Places,
    shared: &'a Shared,
    common: &'a Common,
) -> Result<Vec<Worker<'a>>> {
    let mut workers = Vec::new();
    if !loads.contains(&Load::Meta) {
        return Ok(workers);
    }
    common.make(&places.mounts[0])?;
    let (mounts, each) = if options.mdt_kills.is_some() { (1, PAUSE_WORKERS) } else { (MOUNTS, WORKERS) };
    for (at, mount) in places.mounts.iter().enumerate().take(mounts) {
        for number in 0..each {
            let id = at as u64 * 100 + number;
            workers.push(Worker::new(shared, common, (id, options.seed), at, mount.clone())?);
        }
    }
    Ok(workers)
}

/// Everything through the other mount.
fn compare(
    places: &Places,
    shared: &Shared,
    common: &Common,
    (bank, workers): (&Bank, &[Worker<'_>]),
    loads: &[Load],
) {
    let tell = |what: &str, done: Result<()>| {
        if let Err(error) = done {
            shared.violation(format!("{what}: {error:#}"));
        }
    };
    for worker in workers {
        tell(
            &worker.dir.display().to_string(),
            Ok(()).and(worker.check(&places.mounts[1 - worker.mount]).map_err(Into::into)),
        );
    }
    if loads.contains(&Load::Meta) {
        let interrupted = shared.interrupted();
        for mount in &places.mounts {
            tell("common directory", common.check(mount, shared, interrupted).map_err(Into::into));
        }
    }
    if loads.contains(&Load::Sqlite) {
        tell("sqlite", bank.check(shared, places));
    }
}

/// Stops and checks everything, and says what was found.
fn finish(options: &Options, mut cluster: Cluster, shared: &Shared, report: &Report) -> Result<()> {
    match cluster.stop() {
        Ok(wrong) => wrong.into_iter().for_each(|text| shared.violation(text)),
        Err(error) => shared.violation(format!("{error:#}")),
    }
    if let Err(error) = check(&cluster) {
        shared.violation(format!("{error:#}"));
    }
    let violations = shared.violations();
    if !violations.is_empty() {
        eprint!("{}", cluster.last_lines(8));
    }
    if options.keep || !violations.is_empty() {
        cluster.base.disable_cleanup(true);
        eprintln!("stores and logs are kept: {}", cluster.base.path().display());
    }
    drop(cluster);
    report.show(options.json, shared.operations(), &violations);
    if !violations.is_empty() {
        bail!("{} violations", violations.len());
    }
    Ok(())
}

/// `nacre check` of all targets and between them.
fn check(cluster: &Cluster) -> Result<()> {
    let mut check = cluster.nacre();
    check.args(["check", "--data"]).args(SERVERS.map(|name| cluster.path(name)));
    let out = check.output()?;
    if !out.status.success() {
        bail!(
            "nacre check: {}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(())
}

/// Runs a nacre command of the cluster for people to read.
fn show_output(command: &mut Command, what: &str, path: &Path) {
    match command.output() {
        Ok(out) => eprintln!("{what} ({}):\n{}", path.display(), String::from_utf8_lossy(&out.stdout)),
        Err(error) => eprintln!("{what}: {error}"),
    }
}
