//! Reports a call that does not return, with everything that shows the cause, and ends the run all the same.

use super::{Shared, lock};
use crate::system::System;
use nacre_testkit::wait::pause;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than a lease: nobody is evicted here, so no call waits for one.
const HANG: Duration = Duration::from_secs(25);
/// Calls that took longer are reported while they run, with what their mounts do.
const SLOW: Duration = Duration::from_secs(4);

pub(super) struct Watchdog<'a> {
    system: &'a System,
    shared: &'a Shared,
}

impl<'a> Watchdog<'a> {
    pub(super) fn new(system: &'a System, shared: &'a Shared) -> Self {
        Self { system, shared }
    }
    /// Until the run is over and no call hangs.
    pub(super) fn run(&self) {
        let mut told: Option<Instant> = None;
        loop {
            pause(Duration::from_millis(100));
            let calls: Vec<(usize, Instant, String)> = (self.shared.calls.iter().enumerate())
                .filter_map(|(worker, call)| lock(call).clone().map(|(at, text)| (worker, at, text)))
                .collect();
            let slow = calls.iter().any(|(_, at, _)| at.elapsed() > SLOW);
            if slow && told.is_none_or(|at| at.elapsed() > HANG) {
                told = Some(Instant::now());
                eprintln!("a call takes long:\n{}", self.state(&calls));
            }
            if calls.iter().any(|(_, at, _)| at.elapsed() > HANG) {
                self.shared.violation(format!(
                    "a call hangs:\n{}{}",
                    self.state(&calls),
                    self.shared.time_line("wild")
                ));
                abort(&self.shared.mounts);
                return;
            }
            if self.shared.is_over() && calls.is_empty() {
                return;
            }
        }
    }
    fn state(&self, calls: &[(usize, Instant, String)]) -> String {
        let mut out = String::new();
        for (worker, at, text) in calls {
            let mount = self.shared.mount_of(*worker);
            out.push_str(&format!(
                "  worker {worker} on mount {mount}, for {:.3} s: {text}\n",
                at.elapsed().as_secs_f64()
            ));
        }
        out.push_str(&stacks(std::process::id()));
        for pid in self.system.pids() {
            out.push_str(&stacks(pid));
        }
        out.push_str(&self.parameters());
        out
    }
    /// Parameters that show the state of mounts and targets, if they reply.
    fn parameters(&self) -> String {
        let patterns =
            ["llite.*.kernel_cache", "ldlm.namespaces.*", "mdt.*.inode_locks", "*.*.import", "*.*.state"];
        let mut get = Command::new("timeout");
        let nacre = self.system.nacre();
        get.arg("5").arg(nacre.get_program()).args(["lctl", "get_param"]).args(patterns);
        for (name, value) in nacre.get_envs() {
            value.map(|value| get.env(name, value));
        }
        match get.output() {
            Ok(out) => String::from_utf8_lossy(&out.stdout).into_owned(),
            Err(error) => format!("lctl: {error}\n"),
        }
    }
}

/// The kernel stacks of all threads of a process.
pub(crate) fn stacks(pid: u32) -> String {
    let mut out = format!("  process {pid}:\n");
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let frames: Vec<String> = read("stack")
            .lines()
            .filter_map(|line| Some(line.split_once("] ")?.1.split('+').next()?.to_owned()))
            .take(8)
            .collect();
        let state =
            read("stat").rsplit(')').next().unwrap_or_default().trim().chars().take(1).collect::<String>();
        out.push_str(&format!("    {} {state}: {}\n", read("comm").trim(), frames.join(" < ")));
    }
    out
}

/// Ends the connections of the mounts: their calls return.
pub(crate) fn abort(mounts: &[std::path::PathBuf]) {
    const CONNECTIONS: &str = "/sys/fs/fuse/connections";
    if !Path::new(CONNECTIONS).join("1").exists() {
        drop(Command::new("mount").args(["-t", "fusectl", "fusectl", CONNECTIONS]).status());
    }
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in table.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (Some(device), Some(place)) = (words.get(2), words.get(4)) else { continue };
        if mounts.iter().any(|mount| mount.as_path() == Path::new(place))
            && let Some((_, minor)) = device.split_once(':')
        {
            drop(fs::write(format!("{CONNECTIONS}/{minor}/abort"), "1"));
        }
    }
}
