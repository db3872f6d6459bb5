//! The file system of a run: one process with a mount and another mount, or processes on hosts of their own.

use crate::crash::cluster::{Cluster, MOUNTS};
use crate::pairs::watch::{abort, stacks};
use crate::shell::run as sh;
use crate::system::{System, binary};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Servers that can be killed.
pub(super) const SERVERS: usize = crate::crash::cluster::SERVERS.len();

pub(super) enum Site {
    One { system: System, mounts: Vec<PathBuf> },
    Hosts(Box<Cluster>),
}

/// The options of mounts that keep what is written, or do not. `is_killed`: the mount of `up` is killed, and keeps nothing, as
/// is the default.
pub(super) fn writes(write_back: bool, is_killed: bool) -> &'static [&'static str] {
    match (write_back, is_killed) {
        (true, true) => &[],
        (true, false) => &["-o", "write_back"],
        (false, _) => &["-o", "write_through"],
    }
}

impl Site {
    pub(super) fn one(osts: u32, options: &'static [&'static str]) -> Result<Self> {
        let mut system = System::up_with_osts(options, osts)?;
        let mounts = vec![system.mount().to_owned(), system.second_mount()?];
        Ok(Self::One { system, mounts })
    }
    pub(super) fn hosts(write_back: bool) -> Result<Self> {
        let no_proxies = [None, None, None, None];
        Ok(Self::Hosts(Box::new(Cluster::start(binary()?, &no_proxies, write_back)?)))
    }
    fn mounts(&self) -> Vec<PathBuf> {
        match self {
            Self::One { mounts, .. } => mounts.clone(),
            Self::Hosts(cluster) => (0..MOUNTS).map(|at| cluster.mount(at)).collect(),
        }
    }
    fn nacre(&self) -> Command {
        match self {
            Self::One { system, .. } => system.nacre(),
            Self::Hosts(cluster) => cluster.nacre(),
        }
    }

    /// A directory through each mount, whose files have a stripe on each OST.
    pub(super) fn prepare(&self, name: &str) -> Result<Vec<PathBuf>> {
        let dirs = super::prepare(&self.mounts(), name)?;
        self.set_stripe(&dirs[0], &["-c", "-1", "-S", "64K"])?;
        Ok(dirs)
    }
    /// The layout of new files in a directory.
    pub(super) fn set_stripe(&self, dir: &Path, layout: &[&str]) -> Result<()> {
        sh(self.nacre().args(["lfs", "setstripe"]).args(layout).arg(dir))
    }

    /// The mount that is killed with the servers.
    pub(super) fn mount_that_dies(&self) -> Option<usize> {
        matches!(self, Self::One { .. }).then_some(0)
    }
    /// kill -9 of a server, or of all of them and a mount; started again. Returns its name.
    pub(super) fn kill(&mut self, which: usize) -> Result<&'static str> {
        match self {
            Self::One { system, .. } => {
                system.kill()?;
                system.up_again()?;
                Ok("up")
            }
            Self::Hosts(cluster) => {
                cluster.kill_and_serve(which)?;
                Ok(crate::crash::cluster::SERVERS[which])
            }
        }
    }

    /// Shows the stacks of all processes, and ends the connections of the mounts.
    pub(super) fn abort(&self) {
        eprintln!("{}", stacks(std::process::id()));
        if let Self::One { system, .. } = self {
            system.pids().into_iter().for_each(|pid| eprintln!("{}", stacks(pid)));
        }
        abort(&self.mounts());
    }

    /// Stops everything; an error if something did not stop cleanly.
    pub(super) fn down(self) -> Result<()> {
        match self {
            Self::One { system, .. } => system.down(),
            Self::Hosts(mut cluster) => {
                let wrong = cluster.stop()?;
                anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("; "));
                Ok(())
            }
        }
    }
}
