//! A file system whose servers and mounts are processes of their own, that a test starts, stops and kills.

use super::daemon::Daemon;
use super::{Machine, eventually};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Of a client, in seconds.
pub fn lease() -> f64 {
    std::env::var("NACRE_TEST_LEASE").ok().and_then(|text| text.parse().ok()).unwrap_or(2.0)
}
/// Servers and mounts of one file system, each a process.
pub struct Cluster<'a> {
    pub m: &'a Machine,
    pub lease: f64,
}
impl<'a> Cluster<'a> {
    pub fn format(m: &'a Machine) -> Self {
        let this = Self { m, lease: lease() };
        m.good(&["mkfs", "--mgs", this.dir("mgs").to_str().unwrap()]);
        let mgs = this.mgs();
        for (kind, name) in [("--mdt", "mdt"), ("--ost", "ost")] {
            let dir = this.dir(name);
            let dir = dir.to_str().unwrap();
            m.good(&["mkfs", kind, "--index", "0", "--fsname", "demo", "--mgsnode", &mgs, dir]);
        }
        this
    }
    pub fn dir(&self, name: &str) -> PathBuf {
        self.m.path(name)
    }
    pub fn mgs(&self) -> String {
        format!("unix:{}", self.dir("mgs").join("nacre.sock").display())
    }
    pub fn serve_command(&self, target: &str, more: &[&str]) -> Command {
        let mut command = self.m.command();
        command.arg("serve").arg(self.dir(target)).args(["--lease", &self.lease.to_string()]).args(more);
        command
    }
    pub fn serve_with(&self, target: &str, more: &[&str]) -> Daemon {
        Daemon::spawn(&mut self.serve_command(target, more), &self.dir(&format!("{target}.log")))
    }
    pub fn serve(&self, target: &str) -> Daemon {
        self.serve_with(target, &[])
    }
    pub fn mnt(&self, name: &str) -> PathBuf {
        self.m.made(name)
    }
    pub fn mount_begins(&self, name: &str) -> Daemon {
        let dir = self.mnt(name);
        let mut command = self.m.command();
        command.arg("mount").arg(format!("{}:/demo", self.mgs())).arg(&dir);
        Daemon::spawn(&mut command, &self.dir(&format!("{name}.log")))
    }
    pub fn mount(&self, name: &str) -> Daemon {
        let daemon = self.mount_begins(name);
        self.wait_mounted(name);
        daemon
    }
    pub fn wait_mounted(&self, name: &str) {
        let line = format!(" {} fuse", self.mnt(name).display());
        eventually(&format!("{name} is mounted"), || {
            fs::read_to_string("/proc/mounts").unwrap().contains(&line)
        });
    }
    pub fn all(&self) -> [Daemon; 3] {
        ["mgs", "mdt", "ost"].map(|target| self.serve(target))
    }
}
