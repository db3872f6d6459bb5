//! Worker processes on one directory of any file system.

use super::md_args::MdArgs;
use super::scratch::{self, Scratch};
use super::site::{self, Mdc, Site};
use super::worker::Phase;
use crate::cmd::lctl;
use anyhow::{Context as _, Result, bail};
use nacre_wire::target::Param;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The programs of one round, and the directory made for them.
pub(super) struct Crew {
    base: Scratch,
    workers: Vec<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Crew {
    pub(super) fn start(dir: &Path, round: u32, args: &MdArgs) -> Result<Self> {
        let base = Scratch::make(dir.join(format!("nacre-bench-{}-{round}", std::process::id())))?;
        let mut crew = Crew { base, workers: Vec::new() };
        for rank in 0..args.processes {
            let base = crew.base.path();
            let own = if args.shared { base.to_owned() } else { base.join(format!("p{rank}")) };
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
            scratch::begin_worker(&child);
            let stdin = child.stdin.take().context("worker without stdin")?;
            let stdout = BufReader::new(child.stdout.take().context("worker without stdout")?);
            crew.workers.push((child, stdin, stdout));
        }
        Ok(crew)
    }

    /// Runs one phase in all workers; operations per second.
    pub(super) fn run(&mut self, phase: Phase) -> Result<f64> {
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
            scratch::end_worker(&child);
            drop(stdin);
            let mut child = child;
            drop(child.wait());
        }
    }
}

/// A directory of a nacre mount of this machine: programs do the load, its counters are asked as `lctl` asks.
pub(super) struct OnMount<'a> {
    args: &'a MdArgs,
    dir: PathBuf,
    crew: Option<Crew>,
}

impl<'a> OnMount<'a> {
    pub(super) fn new(args: &'a MdArgs) -> Result<Self> {
        let dir = Path::new(&args.dir).canonicalize().with_context(|| args.dir.clone())?;
        if nacre_fuse::mount_of(&dir).is_none() {
            bail!("{} is not on a nacre file system\nhint: nacre status lists the mounts", dir.display());
        }
        Ok(Self { args, dir, crew: None })
    }
}

impl Site for OnMount<'_> {
    fn begin(&mut self, round: u32) -> Result<()> {
        self.crew = Some(Crew::start(&self.dir, round, self.args)?);
        Ok(())
    }
    fn run(&mut self, phase: Phase) -> Result<f64> {
        self.crew.as_mut().context("a round has begun")?.run(phase)
    }
    fn end(&mut self) -> Result<()> {
        self.crew = None;
        Ok(())
    }
    fn mdc(&mut self) -> Result<Mdc> {
        Ok(Mdc(lctl::matching(&format!("mdc.*-{}.*", site::instance(&self.dir)?))?))
    }
    fn set(&mut self, param: &Param, value: &str) -> Result<()> {
        lctl::apply(&format!("{}={value}", param.name))
    }
}
