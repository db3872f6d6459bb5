//! Random operations on one file through two mounts: every byte must be that of a model in memory.
//!
//! One operation at a time, on a random mount: writes, appends, mapped stores, truncates, holes, zeros, copies, new names and
//! new files, at offsets and with lengths that are odd on purpose, through handles of every kind. After each, looks through
//! the other mount must see exactly the model: what one mount has completed every other sees at once. A store through a
//! shared mapping is complete at msync or with the end of the mapping; a load is exact after fstat. The seed chooses all
//! operations ([`plan`]), so that a difference can be seen again.
//!
//! Two parts are not one operation at a time: [`records`] has a writer on each mount, [`files`] several with files of their
//! own. Two parts kill servers between operations ([`site`]): every acknowledged byte must be there afterwards.

mod act;
mod files;
mod mapping;
mod model;
mod plan;
mod records;
mod site;

use crate::with_uring;
use act::{Mounts, Seen};
use anyhow::{Context as _, Result, bail, ensure};
use model::{Kind, Model, NAMES, Via};
use nacre_testkit::wait::pause;
use plan::{Operation, Planner, Sort};
use site::Site;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Operations that a report shows.
const LOG_MAX: usize = 80;
/// One in so many operations is followed by a look at everything, and by a kill.
const LOOK_AT_ALL_ONE_IN: u64 = 50;
const KILL_ONE_IN: u64 = 120;
/// A call that takes longer hangs. A server is back within less.
const HANG: Duration = Duration::from_secs(100);
/// The directory of the file.
const DIR: &str = "fsx";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// One operation at a time
    Random,
    /// A writer on each mount: interleaved records, and appends
    Records,
    /// Several writers on each mount, each with files of its own
    Files,
    /// As `random`; servers are killed and started again between operations
    Servers,
    /// As `random`; the process of `nacre up`, servers and a mount, is killed and started again between operations
    Up,
}

/// How long, and which part.
#[derive(clap::Args, Debug, Clone)]
pub struct Fsx {
    /// Of each part
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Ends after so many operations, looks included
    #[arg(long)]
    count: Option<u32>,
    /// The mounts use io_uring
    #[arg(long)]
    uring: bool,
    /// The mounts keep what is written for a moment (`up`: only the mount that is not killed)
    #[arg(long)]
    write_back: bool,
    /// The file has a stripe on each OST (`servers`: there are two)
    #[arg(long, default_value_t = 3)]
    osts: u32,
    /// Handles that each mount keeps
    #[arg(long, default_value_t = 3)]
    handles: usize,
    /// The file becomes no longer
    #[arg(long, default_value_t = 400_001)]
    bytes: u64,
    /// Only these operations
    #[arg(long, value_enum, value_delimiter = ',')]
    operations: Vec<Sort>,
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Random, Part::Records, Part::Files])]
    parts: Vec<Part>,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = clap::ValueEnum::to_possible_value(self);
        f.write_str(name.as_ref().map_or("", |name| name.get_name()))
    }
}

impl Fsx {
    /// A run of CI.
    pub fn for_ci(uring: bool, write_back: bool) -> Self {
        const MINUTES: f64 = 0.08;
        let (seed, osts, handles, bytes) = (5, 3, 3, 400_001);
        let parts = match write_back {
            true => vec![Part::Random, Part::Records],
            false => vec![Part::Random, Part::Files, Part::Up],
        };
        let (count, operations) = (None, Vec::new());
        Self { minutes: MINUTES, seed, count, uring, write_back, osts, handles, bytes, operations, parts }
    }
    fn until(&self) -> Instant {
        Instant::now() + Duration::from_secs_f64(self.minutes * 60.0)
    }
}

/// Runs the parts; an error if a byte was wrong.
pub fn run(options: &Fsx) -> Result<()> {
    ensure!(
        options.bytes > 8192 && options.handles > 0 && options.osts > 0,
        "too few bytes, handles or OSTs"
    );
    with_uring(options.uring, || options.parts.iter().try_for_each(|part| run_part(options, *part)))
}

fn run_part(options: &Fsx, part: Part) -> Result<()> {
    let site = match part {
        Part::Servers => Site::hosts(options.write_back)?,
        Part::Up => Site::one(options.osts, site::writes(options.write_back, true))?,
        Part::Random | Part::Records | Part::Files => {
            Site::one(options.osts, site::writes(options.write_back, false))?
        }
    };
    let dirs = site.prepare(DIR)?;
    if part == Part::Files {
        let one = dirs[0].join(files::ONE_STRIPE_DIR);
        std::fs::create_dir(&one)?;
        site.set_stripe(&one, &["-c", "1"])?;
    }
    let site = Mutex::new(site);
    let watch = Watch::default();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| watch.run(&site));
        let outcome = match part {
            Part::Records => records::run(options.seed, options.until(), &dirs),
            Part::Files => files::run(options.seed, options.until(), &dirs),
            _ => Run::new(options, dirs, &watch)
                .and_then(|mut run| run.go(options, (part != Part::Random).then_some(&site))),
        };
        watch.is_over.store(true, Ordering::Relaxed);
        outcome
    });
    let site = site.into_inner().unwrap_or_else(PoisonError::into_inner);
    let text = outcome.with_context(|| format!("part {part}, seed {}", options.seed))?;
    println!("{part}, seed {}: {text}", options.seed);
    site.down()
}

/// Tells of an operation that does not return, and ends the connections of the mounts.
#[derive(Default)]
struct Watch {
    is_over: AtomicBool,
    now: Mutex<Option<(Instant, String)>>,
}
impl Watch {
    fn begins(&self, what: &str) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), what.to_owned()));
    }
    fn ends(&self) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
    fn run(&self, site: &Mutex<Site>) {
        while !self.is_over.load(Ordering::Relaxed) {
            pause(Duration::from_millis(50));
            let now = self.now.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some((since, what)) = now
                && since.elapsed() > HANG
            {
                eprintln!("an operation hangs: {what}");
                site.lock().unwrap_or_else(PoisonError::into_inner).abort();
                return;
            }
        }
    }
}

struct Run<'a> {
    model: Model,
    planner: Planner,
    mounts: Mounts,
    dirs: Vec<PathBuf>,
    log: VecDeque<String>,
    watch: &'a Watch,
    operations: u64,
    looks: u64,
    /// Loads through mappings that were wrong and may be.
    stale: u64,
    longest: (Duration, String),
}

impl<'a> Run<'a> {
    fn new(options: &Fsx, dirs: Vec<PathBuf>, watch: &'a Watch) -> Result<Self> {
        File::create_new(dirs[0].join(NAMES[0]))?;
        Ok(Self {
            model: Model::new(dirs.len(), options.handles),
            planner: Planner::new(options.seed, options.bytes, &options.operations),
            mounts: Mounts::new(dirs.clone(), options.handles),
            dirs,
            log: VecDeque::new(),
            watch,
            operations: 0,
            looks: 0,
            stale: 0,
            longest: Default::default(),
        })
    }

    /// `kills`: the processes to be killed. Returns what was done.
    fn go(&mut self, options: &Fsx, kills: Option<&Mutex<Site>>) -> Result<String> {
        let (begin, until, mut killed) = (Instant::now(), options.until(), 0);
        while Instant::now() < until && options.count.is_none_or(|count| self.planner.count() < count) {
            let stale = self.planner.stale(&self.model).filter(|_| self.planner.chance(2));
            let operation = match stale {
                Some(at) => self.planner.close(at),
                None => self.planner.operation(&self.model),
            };
            let (file, touched) = self.step(&operation)?;
            self.operations += 1;
            if let Some(site) = kills
                && self.planner.chance(KILL_ONE_IN)
            {
                self.kill(site)?;
                killed += 1;
            }
            for _ in 0..1 + self.planner.below(2) {
                let mounts = self.dirs.len();
                let mount = match self.planner.chance(4) {
                    true => operation.mount(),
                    false => (operation.mount() + 1) % mounts,
                };
                if let Some(look) = self.planner.look(&self.model, (file, &touched), mount) {
                    self.step(&look)?;
                    self.looks += 1;
                }
            }
            if self.planner.chance(LOOK_AT_ALL_ONE_IN) {
                self.look_at_all()?;
            }
        }
        self.look_at_all()?;
        let seconds = begin.elapsed().as_secs_f64();
        let (operations, looks, stale) = (self.operations, self.looks, self.stale);
        let kills = if kills.is_some() { format!(", {killed} kills") } else { String::new() };
        Ok(format!(
            "{operations} operations, {looks} looks in {seconds:.0} s{kills}, {stale} permitted stale loads; the longest took \
             {:.3} s: {}",
            self.longest.0.as_secs_f64(),
            self.longest.1
        ))
    }
    fn look_at_all(&mut self) -> Result<()> {
        for look in self.planner.look_at_all(&self.model) {
            self.step(&look)?;
            self.looks += 1;
        }
        if let Err(wrong) = self.mounts.agree(&self.model) {
            let number = self.planner.count();
            bail!("after operation {number}: {wrong}\n{}", self.log_text());
        }
        Ok(())
    }
    fn log_text(&self) -> String {
        self.log.iter().map(|line| format!("  {line}\n")).collect()
    }
    fn kill(&mut self, site: &Mutex<Site>) -> Result<()> {
        let which = self.planner.below(site::SERVERS);
        self.watch.begins("kill");
        let mut site = site.lock().unwrap_or_else(PoisonError::into_inner);
        // The handles of a mount that dies with the servers are closed before: a dead mount has nothing to compare.
        if let Some(mount) = site.mount_that_dies() {
            self.mounts.forget(mount);
            (0..self.model.slots()[mount].len()).for_each(|at| self.model.close(mount, at));
        }
        let name = site.kill(which)?;
        self.watch.ends();
        self.note(format!("kill of {name}"));
        Ok(())
    }
    fn note(&mut self, text: String) {
        if self.log.len() == LOG_MAX {
            self.log.pop_front();
        }
        self.log.push_back(text);
    }

    /// Carries out an operation on file and model, and compares what it sees.
    fn step(&mut self, operation: &Operation) -> Result<(u64, std::ops::Range<usize>)> {
        let text = format!("{:?}", Short(operation, &self.model));
        self.note(text.clone());
        self.watch.begins(&text);
        let begin = Instant::now();
        let seen = self.mounts.perform(operation, &self.model);
        self.watch.ends();
        if begin.elapsed() > self.longest.0 {
            self.longest = (begin.elapsed(), text);
        }
        let outcome = match seen {
            Ok(Seen::Nothing) => Ok(()),
            Ok(seen) => {
                let file = self.model.file_of(operation.mount(), operation.via());
                match act::check(&self.model, file, &seen) {
                    Err(wrong)
                        if operation.may_be_stale() && seen.has_size_of(self.model.contents(file).len()) =>
                    {
                        self.stale += 1;
                        self.note(format!("permitted: {wrong}"));
                        if file == self.model.current() {
                            self.step(&operation.through_new_handle())?;
                        }
                        Ok(())
                    }
                    checked => checked,
                }
            }
            Err(error) => Err(error.to_string()),
        };
        match outcome {
            Ok(()) => Ok(operation.apply(&mut self.model)),
            Err(wrong) => self.fail(operation, &wrong),
        }
    }

    /// The report of a difference, and what the file is now through new handles.
    fn fail<T>(&mut self, operation: &Operation, wrong: &str) -> Result<T> {
        let mut text = format!("operation {} on mount {}: {wrong}\n", operation.number(), operation.mount());
        text.push_str(&self.log_text());
        let file = self.model.file_of(operation.mount(), operation.via());
        if operation.is_look() && file == self.model.current() {
            for mount in 0..self.dirs.len() {
                for kind in [Kind::ReadOnly, Kind::Direct] {
                    let look = Operation::read_all(mount, kind, self.model.contents(file).len());
                    let seen = self.mounts.perform(&look, &self.model).map_err(|error| error.to_string());
                    let now = seen.and_then(|seen| act::check(&self.model, file, &seen));
                    let now = now.map_or_else(|wrong| wrong, |()| "right".to_owned());
                    text.push_str(&format!("now on mount {mount} through {kind:?}: {now}\n"));
                }
            }
        }
        bail!("{text}")
    }
}

/// An operation in a line, with the kind of its handle.
struct Short<'a>(&'a Operation, &'a Model);
impl std::fmt::Debug for Short<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(operation, model) = self;
        let (number, mount, via, action) =
            (operation.number(), operation.mount(), operation.via(), operation.action());
        write!(f, "{number} mount {mount} ")?;
        match via {
            Via::Kept(at) => write!(f, "handle {at} {:?}", model.slots()[mount][at].map(|slot| slot.kind()))?,
            Via::New(kind) => write!(f, "new {kind:?}")?,
        }
        let file = model.file_of(mount, via);
        write!(f, ", file {file} of {} bytes: {action:?}", model.contents(file).len())
    }
}

/// The directory of the file through each of these mounts; the first makes it.
fn prepare(mounts: &[PathBuf], dir: &str) -> Result<Vec<PathBuf>> {
    let dirs: Vec<PathBuf> = mounts.iter().map(|mount| mount.join(dir)).collect();
    fs::create_dir(&dirs[0])?;
    Ok(dirs)
}
