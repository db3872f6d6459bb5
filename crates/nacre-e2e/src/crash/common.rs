//! A directory in which all workers of all mounts compete: to create a file first, and to append to one file.
//!
//! A request that is executed twice is seen here: a second O_EXCL create of a file fails although no worker has won it; an
//! append that is repeated is in the file twice.

use super::shared::Shared;
use super::worker::{Io, Rng, read};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

const DIR: &str = "common";
const LOG: &str = "log";
/// So many files are wanted at a time.
const WANTED: u64 = 4;

#[derive(Default)]
pub(super) struct Common {
    attempts: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// For each file that a worker got a reply about: the workers whose create succeeded.
    winners: BTreeMap<u64, Vec<u64>>,
    /// Lines that were acknowledged.
    lines: BTreeSet<String>,
}

impl Common {
    pub(super) fn make(&self, root: &Path) -> Io<()> {
        fs::create_dir(root.join(DIR))?;
        fs::write(root.join(DIR).join(LOG), "")
    }
    pub(super) fn next_claim(&self, rng: &mut Rng) -> u64 {
        // A few tries per file, by any worker.
        self.attempts.fetch_add(1, Ordering::Relaxed) / 4 + rng.below(WANTED)
    }
    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn claim(&self, root: &Path, who: u64, number: u64) -> Result<(), String> {
        let path = root.join(DIR).join(format!("claim{number}"));
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(_) => self.with(|s| s.winners.entry(number).or_default().push(who)),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                self.with(|s| {
                    s.winners.entry(number).or_default();
                });
            }
            Err(e) => return Err(format!("create of claim{number}: {e}")),
        }
        Ok(())
    }
    pub(super) fn log(&self, root: &Path, who: u64, number: u64) -> Result<(), String> {
        let line = format!("{who}:{number}");
        let done = OpenOptions::new()
            .append(true)
            .open(root.join(DIR).join(LOG))
            .and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        match done {
            Ok(()) => self.with(|s| {
                s.lines.insert(line);
            }),
            Err(e) => return Err(format!("append of line {line} to the common file: {e}")),
        }
        Ok(())
    }

    /// `interrupted`: calls without a reply, because their mount was killed.
    pub(super) fn check(&self, root: &Path, shared: &Shared, interrupted: u64) -> Io<()> {
        let there: BTreeSet<String> = fs::read_dir(root.join(DIR))?
            .map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()))
            .collect::<Io<_>>()?;
        let text = String::from_utf8_lossy(&read(&root.join(DIR).join(LOG))?).into_owned();
        self.with(|state| {
            let mut nobody = 0;
            for (number, winners) in &state.winners {
                nobody += u64::from(winners.is_empty());
                if winners.len() > 1 {
                    shared.violation(format!("claim{number} was made by each of {winners:?}"));
                }
                if !there.contains(&format!("claim{number}")) {
                    shared.violation(format!("claim{number} is lost"));
                }
            }
            if nobody > interrupted {
                shared.violation(format!("{nobody} files exist that nobody has made"));
            }
            let mut count: BTreeMap<&str, u64> = BTreeMap::new();
            text.lines().for_each(|line| *count.entry(line).or_default() += 1);
            for line in &state.lines {
                if !count.contains_key(line.as_str()) {
                    shared.violation(format!("line {line} of the common file is lost"));
                }
            }
            for (line, times) in count.iter().filter(|(_, times)| **times > 1) {
                shared.violation(format!("line {line} is {times} times in the common file"));
            }
            let unknown = count.keys().filter(|line| !state.lines.contains(**line)).count() as u64;
            if unknown > interrupted {
                shared.violation(format!(
                    "{unknown} lines in the common file whose append was never acknowledged"
                ));
            }
        });
        Ok(())
    }
}
