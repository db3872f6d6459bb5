//! The temporary directories of a load, and the parameters that it varies. The directories are removed and the parameters are
//! restored when the load ends, also when a signal ends it.
//!
//! A thread waits for the signals that end a program. It ends the worker processes, removes every directory that is left,
//! restores the parameters, and lets the signal end the process as it would have without it; a second signal does so at
//! once. Not here: the directories that the client library makes without a mount (`tasks.rs`), which a signal leaves
//! behind, and the limits of `bench md --sweep`.

use crate::cmd::lctl;
use crate::process::{pause, signals};
use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a signal must not leave behind.
#[derive(Default)]
struct Held {
    watched: bool,
    dirs: Vec<PathBuf>,
    workers: Vec<Pid>,
    settings: Vec<String>,
}
impl Held {
    /// A signal ends the load in an orderly way from now on.
    fn watch(&mut self) -> Result<()> {
        if !self.watched {
            watch().context("signals cannot be watched")?;
            self.watched = true;
        }
        Ok(())
    }
}

static HELD: Mutex<Held> =
    Mutex::new(Held { watched: false, dirs: Vec::new(), workers: Vec::new(), settings: Vec::new() });

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A temporary directory; removed with its contents when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Makes the directory, which must not exist yet.
    pub(super) fn make(path: PathBuf) -> Result<Self> {
        let mut held = held();
        held.watch()?;
        // Both under one lock: no signal comes between them.
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        held.dirs.push(path.clone());
        Ok(Self(path))
    }
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Waits for ever while a signal ends the process.
        let mut held = held();
        drop(fs::remove_dir_all(&self.0));
        held.dirs.retain(|dir| *dir != self.0);
    }
}

/// A signal ends this process, too, from now on.
pub(super) fn begin_worker(child: &Child) {
    held().workers.push(Pid::from_child(child));
}
/// The worker is about to be waited for: its number may be that of another process afterwards.
pub(super) fn end_worker(child: &Child) {
    held().workers.retain(|pid| *pid != Pid::from_child(child));
}

/// Parameters that the load varies, as they were found: NAME=VALUE. Restored when dropped.
pub(super) struct SavedSettings(());

impl SavedSettings {
    /// At most one at a time.
    pub(super) fn save(settings: Vec<String>) -> Result<Self> {
        let mut held = held();
        held.watch()?;
        held.settings = settings;
        Ok(Self(()))
    }
}
impl Drop for SavedSettings {
    fn drop(&mut self) {
        restore(&mut held().settings);
    }
}

fn restore(settings: &mut Vec<String>) {
    for setting in settings.drain(..) {
        if let Err(error) = lctl::apply(&setting) {
            tracing::warn!("{setting} cannot be restored: {error:#}");
        }
    }
}

fn watch() -> std::io::Result<()> {
    let ending = Arc::new(AtomicBool::new(false));
    let all = signals::that_end();
    for signal in &all {
        signal_hook::flag::register_conditional_default(*signal, ending.clone())?;
    }
    let mut signals = signal_hook::iterator::Signals::new(&all)?;
    let clean_up = move || {
        if let Some(signal) = signals.forever().next() {
            ending.store(true, Ordering::SeqCst);
            // Kept: no thread makes another directory, or tells that its own is gone.
            let mut held = held();
            remove(&held);
            restore(&mut held.settings);
            drop(signal_hook::low_level::emulate_default_handler(signal));
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(clean_up).map(drop)
}

fn remove(held: &Held) {
    /// Programs of the load may still write into what is being removed; they fail soon, without their directory.
    const TRIES: u32 = 500;
    for worker in &held.workers {
        // It may have ended itself: Ctrl-C is for all programs of a terminal.
        let _ = kill_process(*worker, Signal::KILL);
    }
    for dir in &held.dirs {
        for _ in 0..TRIES {
            match fs::remove_dir_all(dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    pause(Duration::from_millis(10))
                }
                _ => break,
            }
        }
    }
}
