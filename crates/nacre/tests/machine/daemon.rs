//! A process of its own with its log in a file, so that much of it may be said.

use super::{eventually, signal_child};
use rustix::process::Signal;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server or mount with its log in a file.
pub struct Daemon {
    pub child: Child,
    log: PathBuf,
}
impl Daemon {
    pub fn spawn(command: &mut Command, log: &Path) -> Self {
        let file = OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.stdout(Stdio::null()).stderr(file);
        Self { child: command.spawn().unwrap(), log: log.into() }
    }
    pub fn signal(&self, signal: Signal) {
        signal_child(&self.child, signal);
    }
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
    /// Waits for a line with all of these words.
    pub fn says(&self, words: &[&str]) -> String {
        let find = || {
            let log = self.log();
            log.lines().find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        };
        let until = Instant::now() + Duration::from_secs(40);
        eventually("the log says it", || find().is_some() || Instant::now() > until);
        find().unwrap_or_else(|| panic!("{words:?} is not in {}:\n{}", self.log.display(), self.log()))
    }
}
impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
