//! `cargo xtask million`: the cost of a create in a file system that is full of files, compared with an empty one.
//!
//! Two `nacre up`: a large one, grown first, and small ones that are made anew for every round. In turn each makes some
//! files, so that a busy machine is as slow for one as for the other. The CPU time of the whole processes is compared,
//! with all their background work (flushes and merges of the large one; the rounds are long enough to see some). Then
//! the memory of the large process against its bounds, and its restart after kill -9.

use crate::shell::output;
use crate::system::System;
use anyhow::{Context as _, Result, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Files made in one turn.
const TURN: u64 = 500;
/// Files that a small file system gets.
const SMALL: u64 = 10_000;
const FILES_PER_DIR: u64 = 1000;
/// The bars of issue 3.
const RATIO_MAX: f64 = 1.2;
const RESTART_MAX: Duration = Duration::from_secs(5);
/// Memory of a process beside rows and names: code, buffers, indexes of runs, free memory of the allocator.
const BESIDE_ROWS_BYTES: u64 = 128 << 20;
/// A name that the mount has cached; it keeps up to two million.
const NAME_BYTES: u64 = 200;

/// Makes files one after the other, all in one directory or 1000 in each.
struct Tree {
    base: PathBuf,
    many: bool,
    made: u64,
}

impl Tree {
    fn new(system: &System, many: bool) -> Result<Self> {
        let base = system.mount().join(if many { "many" } else { "one" });
        fs::create_dir(&base)?;
        Ok(Self { base, many, made: 0 })
    }
    fn path(&self, n: u64) -> PathBuf {
        match self.many {
            true => self.base.join(format!("d{}/f{n}", n / FILES_PER_DIR)),
            false => self.base.join(format!("f{n}")),
        }
    }
    fn make(&mut self, files: u64) -> Result<()> {
        for n in self.made..self.made + files {
            if self.many && n % FILES_PER_DIR == 0 {
                fs::create_dir(self.base.join(format!("d{}", n / FILES_PER_DIR)))?;
            }
            File::create_new(self.path(n)).with_context(|| format!("file {n}"))?;
        }
        self.made += files;
        Ok(())
    }
}

/// CPU that a process has used, of all its threads.
fn cpu(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the command in brackets and may hold anything: count from behind it.
    let (_, rest) = stat.rsplit_once(')').context("no command in /proc/PID/stat")?;
    let ticks = |at: usize| rest.split_whitespace().nth(at).and_then(|t| t.parse::<u64>().ok());
    let ticks = ticks(11).zip(ticks(12)).context("no times in /proc/PID/stat")?;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_secs_f64((ticks.0 + ticks.1) as f64 / per_second as f64))
}

fn micros(time: Duration, files: u64) -> f64 {
    time.as_secs_f64() * 1e6 / files as f64
}

/// Measures a create in a file system of `files` files against an empty one; memory and restart.
pub fn run(files: u64, rounds: u32) -> Result<()> {
    let shapes = [false, true].map(|many| {
        println!("{files} files in {}", if many { "many directories" } else { "one directory" });
        let outcome = shape(many, files.next_multiple_of(TURN), rounds);
        outcome.inspect_err(|error| println!("  {error}"))
    });
    shapes.into_iter().collect()
}

fn shape(many: bool, files: u64, rounds: u32) -> Result<()> {
    let mut large = System::up()?;
    let pid = large.pid()?;
    let mut tree = Tree::new(&large, many)?;
    let (mut before, started) = (cpu(pid)?, Instant::now());
    let tenth = (files / 10).next_multiple_of(TURN);
    while tree.made < files {
        let count = tenth.min(files - tree.made);
        tree.make(count)?;
        let now = cpu(pid)?;
        println!("  up to {:>8}: {:6.1} µs of CPU each", tree.made, micros(now - before, count));
        before = now;
    }
    println!("  made in {:.0} s", started.elapsed().as_secs_f64());

    let (mut of_large, mut of_small, mut ratios) = (Duration::ZERO, Duration::ZERO, Vec::new());
    for _ in 0..rounds {
        let small = System::up()?;
        let mut small_tree = Tree::new(&small, many)?;
        let before = (cpu(pid)?, cpu(small.pid()?)?);
        while small_tree.made < SMALL {
            small_tree.make(TURN)?;
            tree.make(TURN)?;
        }
        let round = (cpu(pid)? - before.0, cpu(small.pid()?)? - before.1);
        small.down()?;
        of_large += round.0;
        of_small += round.1;
        ratios.push(round.0.as_secs_f64() / round.1.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    let made = SMALL * u64::from(rounds);
    let ratio = of_large.as_secs_f64() / of_small.as_secs_f64();
    println!(
        "  {made} more in {rounds} turns: {:.1} µs of CPU each, {:.1} in empty file systems: {ratio:.2}; of single turns {:.2} to {:.2}, median {:.2}",
        micros(of_large, made),
        micros(of_small, made),
        ratios.first().unwrap_or(&0.0),
        ratios.last().unwrap_or(&0.0),
        ratios.get(ratios.len() / 2).unwrap_or(&0.0),
    );
    let (used, bound) = memory(&large, pid)?;
    println!("  memory: at most {} MiB; rows and names may take {} MiB", used >> 20, bound >> 20);
    let restart = restart(&mut large, &tree.path(tree.made - 1))?;
    println!("  kill -9, until a file is seen again: {:.2} s", restart.as_secs_f64());
    large.down()?;
    ensure!(ratio <= RATIO_MAX, "a create costs {ratio:.2} times as much as in an empty file system");
    ensure!(used <= bound + BESIDE_ROWS_BYTES, "the process took {} MiB", used >> 20);
    ensure!(restart <= RESTART_MAX, "the restart took {restart:?}");
    Ok(())
}

/// The most that the process has taken, and what rows of its MDT and names of its mount may take.
fn memory(system: &System, pid: u32) -> Result<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let used = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM")?;
    let used: u64 = used.trim().trim_end_matches(" kB").parse()?;
    let storage = output(system.nacre().args(["lctl", "get_param", "-n", "mdt.*.storage"]))?;
    println!("  {}", storage.trim().replace('\n', ", "));
    let bounds = storage.lines().filter(|l| l.starts_with("clean_bytes") || l.starts_with("dirty_bytes"));
    let bounds = bounds.filter_map(|l| l.rsplit_once(" of ")).map(|(_, n)| n.parse::<u64>());
    let names = output(system.nacre().args(["lctl", "get_param", "-n", "ldlm.namespaces.*.names"]))?;
    Ok((used << 10, bounds.sum::<Result<u64, _>>()? + names.trim().parse::<u64>()? * NAME_BYTES))
}

fn restart(system: &mut System, file: &Path) -> Result<Duration> {
    system.kill()?;
    let started = Instant::now();
    system.up_again()?;
    fs::metadata(file).context("a file that had been made")?;
    Ok(started.elapsed())
}
