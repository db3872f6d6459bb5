//! A writer on each mount, both on one file: records of odd lengths that lie between those of the other, and appends.
//!
//! A record belongs to one writer, which alone knows its newest version. The other one may read it at any time and must
//! find, at each byte, a version that was not yet replaced when the read began. Records share pages and blocks with their
//! neighbours, so a write that carries bytes of its surroundings would show. Between rounds both mounts must show the
//! newest version of everything.

use super::model::pattern;
use crate::crash::Rng;
use anyhow::{Context as _, Result, ensure};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Lengths of records, none a multiple of a page but one.
const LENGTHS: [usize; 9] = [333, 1000, 4095, 4097, 4096, 5000, 12_289, 65_537, 131_071];
/// Bytes of all records of a round, about.
const FILE_BYTES: usize = 700_000;
const RECORDS_MAX: usize = 160;
/// Operations of a writer in a round.
const OPERATIONS: usize = 250;
/// Records that a writer appends in a round.
const APPENDS: u32 = 60;

/// A record: the version that is being written, and the newest that is complete.
#[derive(Default)]
struct Record {
    begun: AtomicU32,
    done: AtomicU32,
}

/// One after another, rounds of records and rounds of appends; returns what was done.
pub(super) fn run(seed: u64, until: Instant, dirs: &[PathBuf]) -> Result<String> {
    let (begin, mut rounds, mut operations) = (Instant::now(), 0_u64, 0);
    while Instant::now() < until {
        let mut rng = Rng::new((seed * 1000 + rounds).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 1);
        let name = format!("records{rounds}");
        File::create_new(dirs[0].join(&name))?;
        let paths: Vec<PathBuf> = dirs.iter().map(|dir| dir.join(&name)).collect();
        let len = LENGTHS[rng.below(LENGTHS.len() as u64) as usize];
        let round = match rng.below(4) {
            0 => append_round(&paths, len),
            _ => record_round(&paths, len, &mut rng),
        };
        operations += round.with_context(|| format!("round {rounds}, records of {len} bytes"))?;
        std::fs::remove_file(&paths[rounds as usize % 2])?;
        rounds += 1;
    }
    Ok(format!("{rounds} rounds, {operations} operations in {:.0} s", begin.elapsed().as_secs_f64()))
}

/// Runs a writer on each mount; the number of operations of both.
fn both(writer: impl Fn(usize) -> Result<usize> + Sync) -> Result<usize> {
    std::thread::scope(|scope| {
        let writer = &writer;
        let other = scope.spawn(move || writer(1));
        let own = writer(0);
        let other = other.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?;
        Ok(own? + other?)
    })
}

fn record_round(paths: &[PathBuf], len: usize, rng: &mut Rng) -> Result<usize> {
    let records: Vec<Record> = (0..(FILE_BYTES / len).min(RECORDS_MAX)).map(|_| Record::default()).collect();
    let seeds = [rng.below(u64::MAX), rng.below(u64::MAX)];
    let operations = both(|who| {
        Writer { path: &paths[who], who, len, records: &records, rng: Rng::new(seeds[who]) }.work()
    })?;
    for path in paths {
        for options in [read_only(), direct()] {
            let file = options.open(path)?;
            for (nth, record) in records.iter().enumerate() {
                let newest = record.done.load(Ordering::Relaxed);
                check(&file, nth, len, newest..=newest)
                    .with_context(|| format!("in the end, {}", path.display()))?;
            }
        }
    }
    Ok(operations)
}

fn read_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    options
}
fn direct() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
    options
}
fn contents(nth: usize, version: u32, len: usize) -> Vec<u8> {
    match version {
        0 => vec![0; len],
        _ => pattern(version * 1009 + nth as u32, 0, len),
    }
}

struct Writer<'a> {
    path: &'a Path,
    who: usize,
    len: usize,
    records: &'a [Record],
    rng: Rng,
}

impl Writer<'_> {
    fn work(mut self) -> Result<usize> {
        let mut file = OpenOptions::new().read(true).write(true).open(self.path)?;
        for _ in 0..OPERATIONS {
            let nth = self.rng.below(self.records.len() as u64) as usize;
            let record = &self.records[nth];
            let is_own = nth % 2 == self.who;
            match self.rng.below(12) {
                0 => {
                    let options = match self.rng.below(3) {
                        0 => direct(),
                        _ => read_only().write(true).clone(),
                    };
                    file = options.open(self.path)?;
                }
                1 => file.sync_data()?,
                2 => {
                    let new = read_only().open(self.path)?;
                    self.look(&new, nth)?;
                }
                3..=8 if is_own => {
                    let version = record.done.load(Ordering::Relaxed) + 1;
                    record.begun.store(version, Ordering::SeqCst);
                    let data = contents(nth, version, self.len);
                    file.write_all_at(&data, (nth * self.len) as u64)?;
                    record.done.store(version, Ordering::SeqCst);
                }
                _ => self.look(&file, nth)?,
            }
        }
        Ok(OPERATIONS)
    }
    /// Any version since that which was complete before the read, up to that which was begun after it.
    fn look(&self, file: &File, nth: usize) -> Result<()> {
        let record = &self.records[nth];
        let oldest = record.done.load(Ordering::SeqCst);
        let found = read(file, nth, self.len)?;
        let newest = record.begun.load(Ordering::SeqCst);
        compare(&found, nth, self.len, oldest..=newest)
            .with_context(|| format!("writer {} reads record {nth}", self.who))
    }
}

/// A part beyond the end is zeros.
fn read(file: &File, nth: usize, len: usize) -> Result<Vec<u8>> {
    let (mut found, mut at) = (vec![0; len], 0);
    while at < len {
        match file.read_at(&mut found[at..], (nth * len + at) as u64)? {
            0 => break,
            n => at += n,
        }
    }
    Ok(found)
}
fn check(file: &File, nth: usize, len: usize, versions: std::ops::RangeInclusive<u32>) -> Result<()> {
    compare(&read(file, nth, len)?, nth, len, versions)
}
fn compare(found: &[u8], nth: usize, len: usize, versions: std::ops::RangeInclusive<u32>) -> Result<()> {
    let all: Vec<Vec<u8>> = versions.clone().map(|version| contents(nth, version, len)).collect();
    if all.iter().any(|contents| contents == found) {
        return Ok(());
    }
    let wrong = (0..len).find(|at| all.iter().all(|contents| contents[*at] != found[*at]));
    let Some(at) = wrong else { return Ok(()) };
    let older =
        (0..*versions.start()).rev().find(|version| contents(nth, *version, len)[at..] == found[at..]);
    ensure!(
        false,
        "record {nth}, byte {at} (offset {}) is {}, must be of version {versions:?}; the rest is of version {older:?}",
        nth * len + at,
        found[at]
    );
    Ok(())
}

/// Both writers append records, each of which must be in one piece, and those of a writer in order.
fn append_round(paths: &[PathBuf], len: usize) -> Result<usize> {
    let record = |who: usize, nth: u32| {
        let mut data = pattern(nth * 2 + who as u32, 0, len);
        data[..8].copy_from_slice(&(u64::from(nth) << 1 | who as u64).to_le_bytes());
        data
    };
    let operations = both(|who| {
        let mut file = OpenOptions::new().append(true).open(&paths[who])?;
        for nth in 0..APPENDS {
            file.write_all(&record(who, nth))?;
        }
        Ok(APPENDS as usize)
    })?;
    for path in paths {
        let found = std::fs::read(path)?;
        ensure!(
            found.len() == operations * len,
            "{} bytes of {} are appended",
            found.len(),
            operations * len
        );
        let mut next = [0, 0];
        for (at, piece) in found.chunks(len).enumerate() {
            let head = piece.iter().take(8).rev().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
            let who = (head & 1) as usize;
            ensure!(
                piece == record(who, next[who]),
                "piece {at} is not record {} of writer {who}",
                next[who]
            );
            next[who] += 1;
        }
    }
    Ok(operations)
}
