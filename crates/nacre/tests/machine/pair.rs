//! Two mounts of one file system.

use super::{Machine, Running};
use rustix::fs::getxattr;
use std::path::PathBuf;

/// A file system with two mounts: `a` in the process of the servers, `b` in one of its own.
pub struct Pair {
    // Fields open to the tests: they stop and continue the processes.
    pub m: Machine,
    _up: Running,
    pub second: Running,
}
impl Pair {
    pub fn new() -> Option<Self> {
        Self::with(&[], &[])
    }
    /// With more options of `up` and of `mount`.
    pub fn with(up: &[&str], mount: &[&str]) -> Option<Self> {
        let m = Machine::new()?;
        let up = m.up_with(up);
        let (address, dir) = (up.address(), m.path("b"));
        let args: Vec<&str> =
            ["mount"].iter().chain(mount).copied().chain([&*address, dir.to_str().unwrap()]).collect();
        let second = m.start(&args, "next: ");
        Some(Self { m, _up: up, second })
    }
    pub fn a(&self, name: &str) -> PathBuf {
        self.m.mount().join(name)
    }
    pub fn b(&self, name: &str) -> PathBuf {
        self.m.path("b").join(name)
    }
    /// A parameter of mount `b`.
    pub fn of_b(&self, param: &str) -> String {
        let mut text = [0; 200];
        let len = getxattr(self.m.path("b"), "nacre.mount", &mut text).unwrap();
        let name = format!("llite.{}.{param}", std::str::from_utf8(&text[..len]).unwrap());
        self.m.good(&["lctl", "get_param", "-n", &name])
    }
    /// Requests of the kernel of `b` that ask for names or attributes.
    pub fn questions(&self) -> u64 {
        self.requests(&["lookup", "getattr", "statx", "readdir", "readdirplus"])
    }
    /// Requests of the kernel of `b` of these kinds.
    pub fn requests(&self, of: &[&str]) -> u64 {
        let text = self.of_b("fuse_requests");
        let count = |line: &str| {
            let mut words = line.split_whitespace();
            of.contains(&words.next()?).then(|| words.next()?.parse::<u64>().ok())?
        };
        text.lines().filter_map(count).sum()
    }
}
