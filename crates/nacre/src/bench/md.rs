//! `nacre bench md`: the phases of mdtest on any directory of any file system.
//!
//! With `--vs DIR` the same phases run on a second directory, interleaved phase by phase and round by round, so
//! that a noisy machine disturbs both alike; the ratio is the figure to quote. A rate is operations of all
//! processes over the time from the first start to the last end.

use super::worker::Phase;
use crate::say;
use anyhow::{Context as _, Result, bail, ensure};
use indicatif::ProgressBar;
use serde::Serialize;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct MdArgs {
    /// Directory to work in; a subdirectory is made and removed.
    dir: PathBuf,
    /// A second directory, measured in turn with the first; a ratio column is added.
    #[arg(long, value_name = "DIR")]
    vs: Option<PathBuf>,
    /// Files and directories per process.
    #[arg(short = 'n', long, default_value_t = 1000)]
    pub(super) items: u32,
    /// Processes.
    #[arg(short, long, default_value_t = 1)]
    pub(super) processes: u32,
    /// All processes in one directory (default: a directory each).
    #[arg(long)]
    shared: bool,
    /// Bytes written to each file, and read in the read phase.
    #[arg(long, default_value_t = 0, value_name = "BYTES")]
    data: usize,
    /// Rounds; the median is shown.
    #[arg(short, long, default_value_t = 3)]
    pub(super) rounds: u32,
    /// Phases to run, in order (default: all).
    #[arg(long, value_delimiter = ',', value_name = "PHASE,…")]
    phases: Vec<String>,
    /// Measure at several values of mdc.*.max_mod_rpcs_in_flight of this machine's mounts, and compare with the first
    #[arg(long, value_delimiter = ',', value_name = "LIMIT,…", num_args = 0..=1, require_equals = true,
          default_missing_value = "1,2,4,7,16,64", conflicts_with = "vs")]
    pub(super) sweep: Option<Vec<u16>>,
    /// With --sweep: draw the result into this file (SVG)
    #[arg(long, value_name = "FILE", requires = "sweep")]
    pub(super) picture: Option<PathBuf>,
    /// Print JSON with stable keys instead of a table.
    #[arg(long)]
    pub(super) json: bool,
}

impl MdArgs {
    /// The same load, once.
    pub(super) fn one_round(&self) -> Self {
        Self { rounds: 1, ..self.clone() }
    }
}

#[derive(Serialize)]
struct Row {
    phase: &'static str,
    ops_per_second: Vec<f64>,
    median: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    vs_median: Option<f64>,
    /// Median of the ratios round by round.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct Report<'a> {
    directory: &'a Path,
    vs: Option<&'a Path>,
    processes: u32,
    items_per_process: u32,
    shared_directory: bool,
    data_bytes: usize,
    rounds: u32,
    rows: Vec<Row>,
}

/// Worker processes on one directory.
struct Crew {
    base: PathBuf,
    workers: Vec<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Crew {
    fn start(dir: &Path, round: u32, args: &MdArgs) -> Result<Self> {
        let base = dir.join(format!("nacre-bench-{}-{round}", std::process::id()));
        std::fs::create_dir(&base).with_context(|| format!("cannot make {}", base.display()))?;
        let mut crew = Crew { base, workers: Vec::new() };
        for rank in 0..args.processes {
            let own = if args.shared { crew.base.clone() } else { crew.base.join(format!("p{rank}")) };
            if !args.shared {
                std::fs::create_dir(&own)?;
            }
            let mut child = Command::new(std::env::current_exe()?)
                .args(["bench", "md-worker", "--rank", &rank.to_string(), "--items", &args.items.to_string()])
                .args(["--data-bytes", &args.data.to_string(), "--dir"])
                .arg(&own)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let stdin = child.stdin.take().context("worker without stdin")?;
            let stdout = BufReader::new(child.stdout.take().context("worker without stdout")?);
            crew.workers.push((child, stdin, stdout));
        }
        Ok(crew)
    }

    /// Runs one phase in all workers; operations per second.
    fn run(&mut self, phase: Phase) -> Result<f64> {
        for (_, stdin, _) in &mut self.workers {
            writeln!(stdin, "{}", phase.name())?;
        }
        let (mut first, mut last, mut operations) = (u64::MAX, 0, 0);
        for (child, _, stdout) in &mut self.workers {
            let mut line = String::new();
            stdout.read_line(&mut line)?;
            let numbers: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
            let [start, end, n] = numbers[..] else {
                bail!("worker {} stopped in phase {} (its message is above)", child.id(), phase.name())
            };
            first = first.min(start);
            last = last.max(end);
            operations += n;
        }
        Ok(operations as f64 * 1e9 / (last.saturating_sub(first).max(1)) as f64)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for (child, stdin, _) in self.workers.drain(..) {
            drop(stdin);
            let mut child = child;
            drop(child.wait());
        }
        drop(std::fs::remove_dir_all(&self.base));
    }
}

/// Per phase, per round.
type Rates = Vec<Vec<f64>>;

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// The phases that were asked for.
pub(super) fn phases(args: &MdArgs, default: &[Phase]) -> Result<Vec<Phase>> {
    ensure!(
        args.processes >= 1 && args.items >= 1 && args.rounds >= 1,
        "processes, items and rounds start at 1"
    );
    if args.phases.is_empty() {
        return Ok(default.to_vec());
    }
    args.phases
        .iter()
        .map(|name| {
            Phase::parse(name).with_context(|| {
                format!("unknown phase {name:?}\nhint: one of {}", Phase::ALL.map(Phase::name).join(", "))
            })
        })
        .collect()
}

/// Rates per phase and round, of the directory and of the one to compare with.
pub(super) fn measure(args: &MdArgs, phases: &[Phase], bar: &ProgressBar) -> Result<(Rates, Rates)> {
    let mut ours = vec![Vec::new(); phases.len()];
    let mut theirs = vec![Vec::new(); phases.len()];
    for round in 0..args.rounds {
        let mut crew = Crew::start(&args.dir, round, args)?;
        let mut other = args.vs.as_deref().map(|dir| Crew::start(dir, round, args)).transpose()?;
        for (at, &phase) in phases.iter().enumerate() {
            ours[at].push(crew.run(phase)?);
            if let Some(other) = &mut other {
                theirs[at].push(other.run(phase)?);
            }
            bar.inc(1);
        }
    }
    Ok((ours, theirs))
}

pub(crate) fn run(args: &MdArgs) -> Result<()> {
    if let Some(limits) = &args.sweep {
        return super::sweep::run(args, limits);
    }
    let phases = phases(args, &Phase::ALL)?;
    let bar = say::progress(u64::from(args.rounds) * phases.len() as u64, "phases");
    let (ours, theirs) = measure(args, &phases, &bar)?;
    bar.finish_and_clear();
    let rows = phases
        .iter()
        .enumerate()
        .map(|(at, phase)| Row {
            phase: phase.name(),
            median: median(&ours[at]),
            ops_per_second: ours[at].clone(),
            vs_median: args.vs.as_ref().map(|_| median(&theirs[at])),
            ratio: args.vs.as_ref().map(|_| {
                median(&ours[at].iter().zip(&theirs[at]).map(|(a, b)| a / b.max(1e-9)).collect::<Vec<_>>())
            }),
        })
        .collect();
    let report = Report {
        directory: &args.dir,
        vs: args.vs.as_deref(),
        processes: args.processes,
        items_per_process: args.items,
        shared_directory: args.shared,
        data_bytes: args.data,
        rounds: args.rounds,
        rows,
    };
    if args.json {
        return say::json(&report);
    }
    let mut table = say::Table::new(&["phase", "op/s (median)", "lowest", "highest"]);
    if args.vs.is_some() {
        table.head.extend(["vs op/s".into(), "ratio".into()]);
    }
    for row in &report.rows {
        let low = row.ops_per_second.iter().copied().fold(f64::INFINITY, f64::min);
        let high = row.ops_per_second.iter().copied().fold(0.0, f64::max);
        let mut cells =
            vec![row.phase.into(), format!("{:.0}", row.median), format!("{low:.0}"), format!("{high:.0}")];
        if let (Some(vs), Some(ratio)) = (row.vs_median, row.ratio) {
            cells.extend([format!("{vs:.0}"), format!("{ratio:.4}")]);
        }
        table.row(cells);
    }
    say::line(&format!(
        "{} process(es), {} items each, {} directory, {} bytes per file, {} round(s)",
        args.processes,
        args.items,
        if args.shared { "one shared" } else { "own" },
        args.data,
        args.rounds
    ));
    table.print();
    Ok(())
}
