//! The faults, one at a time: each is chosen, injected, and over when all workers continue.

use super::cluster::{Cluster, MDT, MOUNTS, SERVERS, START_TIMEOUT};
use super::report::{Happened, Report};
use super::shared::Shared;
use super::worker::{Io, Rng};
use super::{Options, show_output};
use crate::shell::run as sh;
use anyhow::{Context as _, Result, bail};
use nacre_testkit::wait::pause;
use rustix::fs::{FlockOperation, fcntl_lock};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// The lease: a silent client keeps its locks for so long.
const LEASE: Duration = Duration::from_secs(10);
/// Until a client is evicted that was just stopped or killed.
const EVICTED_AFTER: Duration = Duration::from_secs(13);
/// After a fault, before the next one: calls that waited for it have ended.
const SETTLE_MS: u64 = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Fault {
    KillMgs,
    KillMdt,
    KillOst,
    /// All servers at once
    KillServers,
    /// Killed, and served again without waiting for the end of the process
    KillAgain,
    /// SIGSTOP of a server, and another takes over
    Takeover,
    KillMount,
    StopServer,
    StopMount,
    /// SIGSTOP of a mount for longer than its lease
    EvictMount,
    CutServer,
    CutMount,
}
impl Fault {
    /// How often each is chosen.
    const ALL: [(Self, u64); 12] = [
        (Self::KillMgs, 1),
        (Self::KillMdt, 6),
        (Self::KillOst, 4),
        (Self::KillServers, 1),
        (Self::KillAgain, 2),
        (Self::Takeover, 1),
        (Self::KillMount, 2),
        (Self::StopServer, 2),
        (Self::StopMount, 1),
        (Self::EvictMount, 1),
        (Self::CutServer, 2),
        (Self::CutMount, 1),
    ];
}

pub(super) struct Faults<'a> {
    options: &'a Options,
    // Open: the run stops the mounts through it when it is stuck.
    pub(super) cluster: &'a mut Cluster,
    shared: &'a Shared,
    rng: Rng,
    began: Instant,
    round: u64,
    happened: Vec<Happened>,
    kills: u64,
    /// When a mount was killed last: its export may still be there.
    mount_killed: Option<Instant>,
    /// A file that a killed mount had locked, as the other mount has it.
    held: Option<(File, Instant)>,
}

impl<'a> Faults<'a> {
    pub(super) fn new(options: &'a Options, cluster: &'a mut Cluster, shared: &'a Shared) -> Result<Self> {
        for (at, ost) in ["0", "1"].iter().enumerate() {
            let dir = cluster.mount(0).join(format!("probe{at}"));
            fs::create_dir(&dir)?;
            sh(cluster.nacre().args(["lfs", "setstripe", "-i", ost]).arg(&dir))?;
        }
        let (began, happened) = (Instant::now(), Vec::new());
        let rng = Rng::new(options.seed);
        Ok(Self {
            options,
            cluster,
            shared,
            rng,
            began,
            round: 0,
            happened,
            kills: 0,
            mount_killed: None,
            held: None,
        })
    }
    pub(super) fn report(self) -> Report {
        let slow = self.shared.slow();
        Report::new(self.happened, &slow, self.kills)
    }

    /// Until the time is over.
    pub(super) fn run(&mut self) -> Result<()> {
        let until = self.began + Duration::from_secs_f64(self.options.minutes * 60.0);
        match self.options.mdt_kills {
            Some(times) => {
                pause(Duration::from_secs(2));
                let (mdt, records) = (self.cluster.path(SERVERS[MDT]), ["lr_reader", "-c", "-r"]);
                show_output(self.cluster.nacre().args(records).arg(&mdt), "before", &mdt);
                for _ in 0..times {
                    self.one(Fault::KillMdt)?;
                    pause(Duration::from_millis(2000 + self.rng.below(2000)));
                }
                show_output(self.cluster.nacre().args(records).arg(&mdt), "after", &mdt);
            }
            None => {
                while Instant::now() < until {
                    pause(Duration::from_millis(SETTLE_MS + self.rng.below(1500)));
                    let fault = self.choose();
                    self.one(fault)?;
                }
            }
        }
        pause(Duration::from_millis(SETTLE_MS));
        // Until nothing of a killed mount is left.
        let evicted = self.mount_killed.map(|at| at + EVICTED_AFTER);
        if let Some(left) = evicted.and_then(|at| at.checked_duration_since(Instant::now())) {
            pause(left);
        }
        Ok(())
    }
    fn choose(&mut self) -> Fault {
        let wanted = &self.options.faults;
        let is_possible =
            |fault| !self.options.write_back || !matches!(fault, Fault::KillMount | Fault::EvictMount);
        let is_wanted = |fault| is_possible(fault) && (wanted.is_empty() || wanted.contains(&fault));
        let of: Vec<_> = Fault::ALL.iter().filter(|(fault, _)| is_wanted(*fault)).copied().collect();
        let mut at = self.rng.below(of.iter().map(|(_, weight)| weight).sum());
        for (fault, weight) in of {
            match at.checked_sub(weight) {
                None => return fault,
                Some(rest) => at = rest,
            }
        }
        Fault::KillMdt
    }
    fn one(&mut self, fault: Fault) -> Result<()> {
        self.round += 1;
        let began = Instant::now();
        let (who, over) = self.inject(fault).with_context(|| format!("{fault:?}"))?;
        self.probe().with_context(|| format!("after {fault:?} of {who}"))?;
        let recovery = over.elapsed();
        let text = format!("{fault:?}").to_lowercase();
        eprintln!(
            "[{:6.1} s] {text} {who}: {:.2} s, and {:.2} s until it served again; {} operations",
            began.duration_since(self.began).as_secs_f64(),
            over.duration_since(began).as_secs_f64(),
            recovery.as_secs_f64(),
            self.shared.operations(),
        );
        if let Some((theirs, killed)) = self.held.take().filter(|_| self.rng.below(2) == 0) {
            self.lock_goes(&theirs, killed);
        }
        self.happened.push(Happened { fault, began, lasted: over - began, recovery });
        Ok(())
    }

    /// Does it and undoes it; says to whom, and when it was undone.
    fn inject(&mut self, fault: Fault) -> Result<(String, Instant)> {
        let (ost, server) = (2 + self.below(2), self.below(SERVERS.len()));
        let mount = self.below(MOUNTS);
        match fault {
            Fault::KillMgs => self.kill(&[0]),
            Fault::KillMdt => self.kill(&[MDT]),
            Fault::KillOst => self.kill(&[ost]),
            Fault::KillServers => self.kill(&[0, 1, 2, 3]),
            Fault::KillAgain => {
                self.kills += 1;
                self.cluster.kill_and_serve(server)?;
                Ok((SERVERS[server].to_owned(), Instant::now()))
            }
            Fault::Takeover => {
                self.kills += 1;
                self.cluster.take_over(server)?;
                Ok((SERVERS[server].to_owned(), Instant::now()))
            }
            Fault::KillMount => self.kill_mount(mount),
            Fault::StopServer => {
                let time = self.span();
                self.freeze(server, time)
            }
            Fault::StopMount => {
                let time = Duration::from_millis(200 + self.rng.below(4000));
                self.freeze(SERVERS.len() + mount, time)
            }
            Fault::EvictMount => {
                self.shared.mount_fault(mount);
                let done = self.freeze(SERVERS.len() + mount, EVICTED_AFTER);
                let back = self.after_eviction();
                self.shared.mount_fault(mount);
                back.and(done)
            }
            Fault::CutServer => {
                let time = self.span();
                if time < LEASE {
                    return self.cut(server, time);
                }
                // No message arrived for a lease: every client is evicted, and calls under way fail.
                (0..MOUNTS).for_each(|mount| self.shared.mount_fault(mount));
                let done = self.cut(server, time);
                let back = self.after_eviction();
                (0..MOUNTS).for_each(|mount| self.shared.mount_fault(mount));
                back.and(done)
            }
            Fault::CutMount => {
                let time = Duration::from_millis(200 + self.rng.below(4000));
                self.cut(SERVERS.len() + mount, time)
            }
        }
    }
    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n as u64) as usize
    }
    /// Mostly short; sometimes longer than a lease.
    fn span(&mut self) -> Duration {
        match self.rng.below(6) {
            0 if !self.options.write_back => LEASE + Duration::from_millis(self.rng.below(2000)),
            _ => Duration::from_millis(200 + self.rng.below(3000)),
        }
    }

    fn kill(&mut self, servers: &[usize]) -> Result<(String, Instant)> {
        for at in servers {
            self.kills += 1;
            self.cluster.kill_server(*at)?;
        }
        if self.options.mdt_kills.is_none() {
            pause(Duration::from_millis(self.rng.below(400)));
        }
        let over = Instant::now();
        for at in servers {
            self.cluster.serve(*at, &[])?;
        }
        Ok((servers.iter().map(|at| SERVERS[*at]).collect::<Vec<_>>().join(","), over))
    }
    fn freeze(&mut self, host: usize, time: Duration) -> Result<(String, Instant)> {
        self.cluster.freeze(host, true)?;
        pause(time);
        self.cluster.freeze(host, false)?;
        Ok((Cluster::host_name(host).to_owned(), Instant::now()))
    }
    fn cut(&mut self, host: usize, time: Duration) -> Result<(String, Instant)> {
        self.cluster.link(host, false)?;
        pause(time);
        self.cluster.link(host, true)?;
        Ok((Cluster::host_name(host).to_owned(), Instant::now()))
    }

    /// A mount dies with a lock, and with an open file that has no name: both go with its lease.
    fn kill_mount(&mut self, mount: usize) -> Result<(String, Instant)> {
        let (mine, other) = (self.cluster.mount(mount), self.cluster.mount(1 - mount));
        let name = format!("held{}", self.round);
        let mut held = File::create(mine.join(&name))?;
        held.write_all(b"held")?;
        fcntl_lock(&held, FlockOperation::NonBlockingLockExclusive)?;
        let mut orphan = File::create(mine.join(format!("orphan{}", self.round)))?;
        orphan.write_all(&[7; 100_000])?;
        fs::remove_file(other.join(format!("orphan{}", self.round)))?;
        let theirs = OpenOptions::new().write(true).open(other.join(&name))?;
        if fcntl_lock(&theirs, FlockOperation::NonBlockingLockExclusive).is_ok() {
            bail!("a lock was given twice");
        }

        self.shared.mount_fault(mount);
        let killed = Instant::now();
        self.cluster.kill_mount(mount)?;
        self.kills += 1;
        self.cluster.start_mount(mount)?;
        self.shared.mount_fault(mount);
        self.mount_killed = Some(killed);
        self.held = Some((theirs, killed));
        fs::remove_file(other.join(&name))?;
        Ok((Cluster::host_name(SERVERS.len() + mount).to_owned(), Instant::now()))
    }
    /// The lock of a killed mount goes with its lease.
    fn lock_goes(&mut self, theirs: &File, killed: Instant) {
        while fcntl_lock(theirs, FlockOperation::NonBlockingLockExclusive).is_err() {
            if killed.elapsed() > 2 * LEASE {
                let text = format!("a lock of a killed mount is still there after {} s", 2 * LEASE.as_secs());
                return self.shared.violation(text);
            }
            pause(Duration::from_millis(50));
        }
        eprintln!("           its lock was free after {:.2} s", killed.elapsed().as_secs_f64());
    }

    /// Calls that were under way at an eviction fail; later ones do not.
    fn after_eviction(&mut self) -> Result<()> {
        const TRIES: u32 = 10;
        pause(Duration::from_millis(500));
        for _ in 1..TRIES {
            if self.probe().is_ok() {
                return Ok(());
            }
            pause(Duration::from_millis(500));
        }
        self.probe()
    }

    /// Calls that need everybody have come back, through both mounts.
    fn probe(&mut self) -> Result<()> {
        let (sender, receiver) = sync_channel(1);
        let mounts: Vec<PathBuf> = (0..MOUNTS).map(|m| self.cluster.mount(m)).collect();
        let round = self.round;
        std::thread::Builder::new().name("probe".into()).spawn(move || {
            let done = mounts.iter().try_for_each(|mount| probe(mount, round));
            drop(sender.send(done));
        })?;
        match receiver.recv_timeout(START_TIMEOUT) {
            Ok(done) => Ok(done?),
            Err(_) => bail!("a call does not come back within {} s", START_TIMEOUT.as_secs()),
        }
    }
}

fn probe(mount: &Path, round: u64) -> Io<()> {
    for dir in ["probe0", "probe1"] {
        let path = mount.join(dir).join(format!("probe{round}"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        file.write_all(b"probe")?;
        file.sync_all()?;
        drop(file);
        fs::remove_file(&path)?;
    }
    Ok(())
}
