//! Several writers at a time, each with files of its own: writes, truncates, allocations, holes, syncs,
//! removals. What one file waits for (a reclaim of truncated blocks, a sync, a commit) meets the operations of the others,
//! which one operation at a time never does.
//!
//! Each worker knows the bytes of its files, and compares them at times with what its own mount or another one shows.

use crate::crash::Rng;
use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

const WORKERS: usize = 6;
/// Four of them have files of one stripe, whose object is as sparse as the file. The directory is below that of the others.
pub(super) const ONE_STRIPE_DIR: &str = "one";
const FILES_PER_WORKER: u64 = 12;
const FILE_BYTES: u64 = 600_000;
/// Operations on a file that a report shows.
const LOG_MAX: usize = 40;
const LENGTHS: [u64; 7] = [1, 100, 4096, 5000, 8192, 8193, 70_000];

/// Runs the workers; returns what was done.
pub(super) fn run(seed: u64, until: Instant, dirs: &[PathBuf]) -> Result<String> {
    let begin = Instant::now();
    let work = |worker: usize| {
        let below = if worker % 4 < 2 { ONE_STRIPE_DIR } else { "" };
        let [own, other] = [0, 1].map(|next| dirs[(worker + next) % dirs.len()].join(below));
        let rng = Rng::new((seed * 100 + worker as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 1);
        let mut worker = Worker { own: &own, other: &other, worker, rng, files: BTreeMap::new(), version: 0 };
        worker.run(until).with_context(|| format!("worker {}", worker.worker))
    };
    let work = &work;
    let uses = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        let ended = workers.into_iter().map(|w| w.join().map_err(|_| anyhow!("a worker panicked"))?);
        ended.collect::<Vec<Result<u64>>>()
    });
    let uses = uses.into_iter().sum::<Result<u64>>()?;
    Ok(format!("{WORKERS} workers, {uses} uses of files in {:.0} s", begin.elapsed().as_secs_f64()))
}

/// A file as it has to be, and what was done to it lately.
#[derive(Default)]
struct Known {
    bytes: Vec<u8>,
    log: VecDeque<String>,
}
impl Known {
    fn note(&mut self, what: String) {
        if self.log.len() == LOG_MAX {
            self.log.pop_front();
        }
        self.log.push_back(what);
    }
    fn resize(&mut self, size: u64) {
        self.bytes.resize(size as usize, 0);
    }
    fn write(&mut self, at: u64, data: &[u8]) {
        let end = at as usize + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[at as usize..end].copy_from_slice(data);
    }
}

struct Worker<'a> {
    own: &'a Path,
    other: &'a Path,
    worker: usize,
    rng: Rng,
    files: BTreeMap<String, Known>,
    version: u32,
}

impl Worker<'_> {
    fn run(&mut self, until: Instant) -> Result<u64> {
        let mut uses = 0;
        while Instant::now() < until {
            let name = format!("w{}-{}", self.worker, self.rng.below(FILES_PER_WORKER));
            let mut known = self.files.remove(&name).unwrap_or_default();
            let used = self.use_file(&name, &mut known);
            used.with_context(|| format!("{name} of {} bytes after {:?}", known.bytes.len(), known.log))?;
            if self.rng.below(10) == 0 {
                fs::remove_file(self.own.join(&name))?;
            } else {
                self.files.insert(name, known);
            }
            uses += 1;
        }
        for (name, known) in &self.files {
            for dir in [self.own, self.other] {
                compare(&dir.join(name), known).with_context(|| format!("{:?}", known.log))?;
            }
        }
        Ok(uses)
    }

    fn use_file(&mut self, name: &str, known: &mut Known) -> Result<()> {
        let path = self.own.join(name);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
        known.note("open".to_owned());
        for _ in 0..=self.rng.below(4) {
            self.change(&file, known)?;
        }
        drop(file);
        match self.rng.below(20) {
            0 => compare(&self.other.join(name), known),
            1 | 2 => compare(&path, known),
            _ => Ok(()),
        }
    }

    fn change(&mut self, file: &File, known: &mut Known) -> Result<()> {
        let size = known.bytes.len() as u64;
        let len = LENGTHS[self.rng.below(LENGTHS.len() as u64) as usize];
        let any = self.rng.below(FILE_BYTES);
        let at = [0, self.rng.below(20_000), size, any][self.rng.below(4) as usize];
        self.version += 1;
        match self.rng.below(16) {
            0..=8 => {
                known.note(format!("write {at} +{len}"));
                let data = vec![(self.version % 255) as u8 + 1; len as usize];
                file.write_all_at(&data, at)?;
                known.write(at, &data);
            }
            9..=11 => {
                let to = self.rng.below(size + 5000);
                known.note(format!("truncate {to}"));
                file.set_len(to)?;
                known.resize(to);
            }
            12 => {
                known.note(format!("hole {at} +{len}"));
                fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)?;
                let end = (at + len).min(size);
                known.bytes[at.min(end) as usize..end as usize].fill(0);
            }
            13 => {
                known.note(format!("allocate {at} +{len}"));
                fallocate(file, FallocateFlags::empty(), at, len)?;
                known.resize(size.max(at + len));
            }
            _ => {}
        }
        if self.rng.below(5) < 2 {
            known.note("fsync".to_owned());
            file.sync_all()?;
        }
        Ok(())
    }
}

fn compare(path: &Path, known: &Known) -> Result<()> {
    let found = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let wrong = found.iter().zip(&known.bytes).position(|(a, b)| a != b);
    ensure!(wrong.is_none(), "{}: byte {} is wrong", path.display(), wrong.unwrap_or_default());
    ensure!(found.len() == known.bytes.len(), "{}: {} bytes", path.display(), found.len());
    Ok(())
}
