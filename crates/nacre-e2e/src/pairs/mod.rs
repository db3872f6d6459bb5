//! Random changes and checks by several workers on two mounts of one file system: two mounts must not be
//! distinguishable from two programs on one kernel.
//!
//! The names are divided into rooms, several of which lie in the same directories. A worker takes a room by a lock in this
//! process, which serves no cache of the kernel. So each change in a room has exactly one correct outcome, and the next
//! worker that takes the room, through either mount, must see exactly the last state: names, listings, types, inode
//! numbers, modes, sizes, links, times, contents, extended attributes, open files ([`room`]). Outside the rooms all workers
//! change a few names without any order ([`wild`]): only errors that a local file system gives are allowed there, and
//! whenever the workers pause, both mounts must show the same. In every second interval between two pauses, other file
//! systems are mounted on directories of the mounts; they must stay mounted, and names have no validity meanwhile. A call
//! that does not return is reported with all stacks ([`watch`]).
//!
//! `--apart` stops one mount, or cuts it off, while the other changes its files ([`apart`]).

mod apart;
mod room;
pub(crate) mod watch;
mod wild;

use crate::crash::Rng;
use crate::system::System;
use crate::with_uring;
use anyhow::{Context as _, Result, bail, ensure};
use nacre_testkit::wait::pause;
use room::{Change, Look, Names, Place};
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use watch::Watchdog;

/// Rooms; more than workers, so that hardly anybody waits.
const ROOMS: usize = 9;
/// Events of a worker that are kept for the report of a difference.
const EVENTS_MAX: usize = 600;
/// The part of the time line that is printed: the last calls, and earlier ones in the same room.
const TIME_LINE_MAX: usize = 100;
const SAME_ROOM_MAX: usize = 40;
/// Between two rests, at which everything is compared.
const REST_EVERY: Duration = Duration::from_secs(4);
/// The place of the file system that is mounted on a directory of the mounts.
const NEIGHBOUR: &str = "neighbour";

/// How long, and which part.
#[derive(clap::Args, Debug, Clone)]
pub struct Pairs {
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The mounts use io_uring
    #[arg(long)]
    uring: bool,
    /// Directories in which the workers meet
    #[arg(long, default_value_t = 2)]
    directories: usize,
    /// Workers on each mount
    #[arg(long, default_value_t = 3)]
    workers: usize,
    /// A worker without names of its own is left out: no changes of the same name without order
    #[arg(long)]
    no_wild: bool,
    /// No file system is mounted on a directory of the mounts
    #[arg(long)]
    no_neighbour: bool,
    /// Stop one mount or cut it off while the other changes its files (`minutes` and `workers` are not used)
    #[arg(long, value_enum, value_delimiter = ',')]
    apart: Vec<apart::How>,
    /// Seconds for which it is stopped or cut off, in turn
    #[arg(long, value_delimiter = ',', default_values_t = [30.0, 3.0, 8.0])]
    apart_seconds: Vec<f64>,
}

impl Pairs {
    /// The run of CI.
    pub fn for_ci() -> Self {
        const MINUTES: f64 = 0.25;
        let (apart, apart_seconds) = (Vec::new(), Vec::new());
        let (no_wild, no_neighbour) = (false, false);
        let (directories, workers) = (2, 3);
        Self {
            minutes: MINUTES,
            seed: 14,
            uring: false,
            directories,
            workers,
            no_wild,
            no_neighbour,
            apart,
            apart_seconds,
        }
    }
}

/// A call that a worker has made.
#[derive(Clone)]
struct Event {
    begun: Instant,
    took: Duration,
    worker: usize,
    text: String,
}

/// State that workers, watchdog and main thread share.
pub(super) struct Shared {
    mounts: Vec<PathBuf>,
    began: Instant,
    stop: AtomicBool,
    operations: AtomicU64,
    checks: AtomicU64,
    violations: Mutex<Vec<String>>,
    events: Vec<Mutex<VecDeque<Event>>>,
    /// The call that each worker is in.
    calls: Vec<Mutex<Option<(Instant, String)>>>,
    longest: Mutex<(Duration, String)>,
    /// Held shared during each step of a worker, and exclusively at a rest.
    steps: RwLock<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(mounts: Vec<PathBuf>, workers: usize) -> Self {
        Self {
            mounts,
            began: Instant::now(),
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            checks: AtomicU64::new(0),
            violations: Mutex::default(),
            events: (0..workers).map(|_| Mutex::default()).collect(),
            calls: (0..workers).map(|_| Mutex::default()).collect(),
            longest: Mutex::default(),
            steps: RwLock::new(()),
        }
    }
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
    /// Ends the run with a report.
    fn violation(&self, text: String) {
        self.stop.store(true, Ordering::Relaxed);
        lock(&self.violations).push(text);
    }
    /// Runs a call of a worker under the eyes of the watchdog, and notes it with its outcome.
    fn call<R>(&self, worker: usize, text: &str, call: impl FnOnce() -> (R, String)) -> R {
        let begun = Instant::now();
        *lock(&self.calls[worker]) = Some((begun, text.to_owned()));
        let (result, outcome) = call();
        let took = begun.elapsed();
        *lock(&self.calls[worker]) = None;
        let text = format!("{text}{outcome}");
        let mut longest = lock(&self.longest);
        if took > longest.0 {
            *longest = (took, text.clone());
        }
        drop(longest);
        let mut events = lock(&self.events[worker]);
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(Event { begun, took, worker, text });
        result
    }
    fn mount_of(&self, worker: usize) -> usize {
        worker % self.mounts.len()
    }
    /// The last calls of all workers in the order of their begin, and more of those whose text begins like this.
    fn time_line(&self, room: &str) -> String {
        let mut all: Vec<Event> = Vec::new();
        self.events.iter().for_each(|events| all.extend(lock(events).iter().cloned()));
        all.sort_by_key(|event| event.begun);
        let latest = all.split_off(all.len().saturating_sub(TIME_LINE_MAX));
        all.retain(|event| event.text.starts_with(room));
        all.drain(..all.len().saturating_sub(SAME_ROOM_MAX));
        let mut out = String::from("  seconds      took ms  worker mount\n");
        for event in all.iter().chain(&latest) {
            out.push_str(&format!(
                "  {:11.6} {:9.3}  {:6} {:5}  {}\n",
                (event.begun - self.began).as_secs_f64(),
                event.took.as_secs_f64() * 1000.0,
                event.worker,
                self.mount_of(event.worker),
                event.text
            ));
        }
        out
    }
}

/// Runs the workers, or stops mounts; an error if a difference or a hang was seen.
pub fn run(options: &Pairs) -> Result<()> {
    let step = || match &options.apart[..] {
        [] => random(options),
        all => all.iter().try_for_each(|how| apart::run(*how, &options.apart_seconds)),
    };
    if options.uring { with_uring(true, step) } else { with_uring(false, step) }
}

fn random(options: &Pairs) -> Result<()> {
    ensure!(options.directories > 0 && options.workers > 0, "at least one directory and one worker");
    let mut system = System::up()?;
    let mounts = vec![system.mount().to_path_buf(), system.second_mount()?];
    for at in 0..options.directories {
        fs::create_dir(mounts[0].join(format!("d{at}")))?;
    }
    wild::prepare(&mounts[0])?;
    fs::create_dir(mounts[0].join(NEIGHBOUR))?;
    let mut neighbours = if options.no_neighbour { Vec::new() } else { neighbours(&mounts)? };
    let workers = options.workers * mounts.len();
    let shared = Shared::new(mounts, workers);
    let new = |number| Mutex::new(Names::new(number, options.directories));
    let rooms: Vec<Mutex<Names>> = (0..ROOMS).map(new).collect();
    let until = shared.began + Duration::from_secs_f64(options.minutes * 60.0);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (shared, rooms, system) = (&shared, &rooms, &system);
            let rng = Rng::new((options.seed * 64 + worker as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 1);
            let watch = (worker == 0).then(|| Watchdog::new(system, shared));
            if let Some(watch) = watch {
                scope.spawn(move || watch.run());
            }
            scope.spawn(move || work(shared, rooms, worker, rng, !options.no_wild));
        }
        let mut rested = Instant::now();
        while !shared.is_over() && Instant::now() < until {
            pause(Duration::from_millis(20));
            if rested.elapsed() >= REST_EVERY {
                rest(&shared, &rooms, &neighbours);
                rested = Instant::now();
                if !neighbours.is_empty() {
                    neighbours.clear();
                } else if !options.no_neighbour {
                    match self::neighbours(&shared.mounts) {
                        Ok(mounted) => neighbours = mounted,
                        Err(error) => shared.violation(format!("{error:#}")),
                    }
                }
            }
        }
        if !shared.is_over() {
            rest(&shared, &rooms, &neighbours);
        }
        shared.stop.store(true, Ordering::Relaxed);
    });
    drop(rooms);
    let caches = system.kernel_caches()?;
    drop(neighbours);
    report(options, &shared, &caches)?;
    system.down()
}

fn report(options: &Pairs, shared: &Shared, caches: &str) -> Result<()> {
    let seconds = shared.began.elapsed().as_secs_f64();
    let (operations, checks) =
        (shared.operations.load(Ordering::Relaxed), shared.checks.load(Ordering::Relaxed));
    let (longest, text) = lock(&shared.longest).clone();
    println!(
        "seed {}: {operations} changes, {checks} checks in {seconds:.0} s ({:.0} per s); the longest call took {:.3} s: {text}",
        options.seed,
        (operations + checks) as f64 / seconds,
        longest.as_secs_f64(),
    );
    println!("{caches}");
    let violations = lock(&shared.violations);
    if !violations.is_empty() {
        bail!("seed {}:\n{}", options.seed, violations.join("\n"));
    }
    Ok(())
}

// ---- the workers

fn work(shared: &Shared, rooms: &[Mutex<Names>], worker: usize, mut rng: Rng, is_wild: bool) {
    while !shared.is_over() {
        let step = shared.steps.read().unwrap_or_else(PoisonError::into_inner);
        if is_wild && rng.below(6) == 0 {
            wild::step(shared, worker, &mut rng);
        } else if let Ok(mut names) = rooms[rng.below(rooms.len() as u64) as usize].try_lock() {
            for _ in 0..=rng.below(5) {
                if let Err(text) = one(shared, &mut names, worker, &mut rng) {
                    shared.violation(text);
                    break;
                }
            }
        }
        drop(step);
    }
}

/// A change and perhaps a look.
fn one(shared: &Shared, names: &mut Names, worker: usize, rng: &mut Rng) -> Result<(), String> {
    let mount = shared.mount_of(worker);
    if let Some(change) = names.plan_change(rng) {
        let expected = names.expected(&change);
        let text = format!("room {} {}", names.number(), show(&change));
        let outcome = shared.call(worker, &text, || {
            let outcome = names.change(shared, mount, &change);
            (outcome, outcome.map_or_else(|e| format!(" = {e:?}"), |()| String::new()))
        });
        shared.operations.fetch_add(1, Ordering::Relaxed);
        if outcome != expected && !names.may_differ(&change, outcome) {
            let wrong = format!("{text}: {outcome:?}, must be {expected:?}");
            return Err(difference(shared, names, worker, &wrong, &places(&change)));
        }
        if outcome.is_ok() {
            names.apply(&change);
        }
    }
    if rng.below(3) > 0 {
        let look = names.plan_look(rng);
        let text = format!("room {} {look:?}", names.number());
        let seen = shared.call(worker, &text, || {
            let seen = names.look(shared, mount, &look);
            let outcome = if seen.is_ok() { "" } else { " differs" };
            (seen, outcome.to_owned())
        });
        match seen {
            Ok(checks) => drop(shared.checks.fetch_add(checks, Ordering::Relaxed)),
            Err(wrong) => {
                let concerned = match look {
                    Look::Stat(at) | Look::Read(at) | Look::Xattrs(at) => vec![at],
                    _ => Vec::new(),
                };
                return Err(difference(shared, names, worker, &wrong, &concerned));
            }
        }
    }
    Ok(())
}

/// The report of a difference: the time line, and what each mount shows now and after all validities have ended.
fn difference(shared: &Shared, names: &Names, worker: usize, wrong: &str, concerned: &[Place]) -> String {
    /// Longer than any validity of the kernel.
    const VALIDITIES: Duration = Duration::from_secs(8);
    shared.stop.store(true, Ordering::Relaxed);
    let time_line = shared.time_line(&format!("room {} ", names.number()));
    let now = names.views(shared, concerned);
    pause(VALIDITIES);
    let later = names.views(shared, concerned);
    format!(
        "worker {worker} on mount {}, after {:.6} s: {wrong}\n{time_line}  now:\n{now}  after 8 s:\n{later}",
        shared.mount_of(worker),
        shared.began.elapsed().as_secs_f64(),
    )
}

fn places(change: &Change) -> Vec<Place> {
    match change {
        Change::Create(at, _)
        | Change::Open(at, _)
        | Change::Write(at, ..)
        | Change::Append(at, _)
        | Change::Truncate(at, _)
        | Change::Empty(at)
        | Change::Unlink(at)
        | Change::Mkdir(at, _)
        | Change::Rmdir(at)
        | Change::Symlink(at, _)
        | Change::Chmod(at, _)
        | Change::Mtime(at, _)
        | Change::SetXattr(at, ..)
        | Change::RemoveXattr(at, _) => vec![at.clone()],
        Change::Rename(from, to, _) | Change::Link(from, to) => vec![from.clone(), to.clone()],
        Change::HandleWrite(..) | Change::HandleTruncate(..) | Change::HandleChmod(..) | Change::Close(_) => {
            Vec::new()
        }
    }
}

/// Without the bytes.
fn show(change: &Change) -> String {
    match change {
        Change::Create(at, data) => format!("create {at:?} with {} bytes", data.len()),
        Change::Write(at, offset, data) => format!("write {at:?} at {offset}, {} bytes", data.len()),
        Change::Append(at, data) => format!("append {at:?} {} bytes", data.len()),
        Change::SetXattr(at, name, value) => format!("setxattr {at:?} {name} {} bytes", value.len()),
        Change::HandleWrite(at, offset, data) => {
            format!("write handle {at} at {offset}, {} bytes", data.len())
        }
        other => format!("{other:?}"),
    }
}

// ---- at a rest

/// While no worker works: everything through every mount.
fn rest(shared: &Shared, rooms: &[Mutex<Names>], neighbours: &[Neighbour]) {
    let _rest = shared.steps.write().unwrap_or_else(PoisonError::into_inner);
    if shared.is_over() {
        return;
    }
    for root in &shared.mounts {
        for names in rooms {
            let mut names = lock(names);
            match names.look_at_all(root) {
                Ok(checks) => drop(shared.checks.fetch_add(checks, Ordering::Relaxed)),
                Err(wrong) => return shared.violation(difference(shared, &names, 0, &wrong, &[])),
            }
        }
    }
    match wild::compare(&shared.mounts) {
        Ok(checks) => drop(shared.checks.fetch_add(checks, Ordering::Relaxed)),
        Err(error) => {
            let time_line = shared.time_line("wild");
            shared.violation(format!("names without order: {error:#}\n{time_line}"));
        }
    }
    for neighbour in neighbours {
        if let Err(error) = neighbour.check() {
            shared.violation(format!("{error:#}"));
        }
    }
}

/// A file system that is mounted on a directory of a mount; unmounted when dropped.
struct Neighbour(PathBuf);

fn neighbours(mounts: &[PathBuf]) -> Result<Vec<Neighbour>> {
    mounts.iter().map(|mount| Neighbour::new(&mount.join(NEIGHBOUR))).collect()
}

impl Neighbour {
    fn new(dir: &Path) -> Result<Self> {
        crate::shell::run(Command::new("mount").args(["-t", "tmpfs", NEIGHBOUR]).arg(dir))?;
        let neighbour = Self(dir.to_owned());
        fs::write(dir.join("file"), NEIGHBOUR)?;
        Ok(neighbour)
    }
    fn check(&self) -> Result<()> {
        let file = self.0.join("file");
        let what = || format!("the file system that is mounted on {} is lost", self.0.display());
        ensure!(fs::read_to_string(file).with_context(what)? == NEIGHBOUR, "{}", what());
        Ok(())
    }
}
impl Drop for Neighbour {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}
