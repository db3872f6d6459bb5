//! The islands of a process: the node, the targets and mounts that it serves, its entry in the registry, their planned stop.

use crate::output;
use crate::process::lease_table::LeaseTable;
use crate::process::registry::{self, ProcessEntry, ProcessKind, Registration};
use crate::process::signals::{Signals, wake};
use crate::process::store;
use crate::process::target_dir::Served;
use crate::process::{detach, pause};
use crate::query::tool;
use anyhow::{Context as _, Result, bail};
use nacre_mdt::Mdt;
use nacre_mgs::Mgs;
use nacre_net::Address;
use nacre_node::Logic;
use nacre_ost::Ost;
use nacre_rt::{Config, EndReason, IslandRef, Node, SharedMemory};
use nacre_target::{KeptWrites, TargetConfig, TargetIsland};
use nacre_types::{TargetKind, TargetName};
use nacre_wire::params::TargetParam;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Event loops of a process.
pub(crate) const LOOPS: usize = 1;
/// Planned stop of one island.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// A stop that takes longer is reported.
const STOP_QUIET: Duration = Duration::from_secs(1);
/// How often an island may be reopened after a bug before the process gives up.
const REOPEN_MAX: u32 = 3;

pub(crate) struct Process {
    node: Node,
    socket: PathBuf,
    targets: Arc<Targets>,
    registration: Option<Registration>,
}

/// A target that is being served.
struct Serving {
    served: Served,
    addresses: Vec<String>,
    /// Writes that a killed process had acknowledged.
    kept_writes: Vec<KeptWrites>,
    /// How often it was opened again after a bug.
    reopened: u32,
}

/// Starts the island of a mount again.
type Revive = Arc<dyn Fn(&Node) -> Result<()> + Send + Sync>;

/// The targets and mounts of the process, with all that is needed to open them again.
struct Targets {
    /// Mounts by the names of their islands, and how often each was made again.
    mounts: Mutex<BTreeMap<String, (Revive, u32)>>,
    served: Mutex<BTreeMap<String, Serving>>,
    /// A target of this process was lost for good: why.
    lost: Mutex<Option<String>>,
    /// Targets that are refused while others of the process are served: name and why.
    refused: Mutex<BTreeMap<String, String>>,
    lease_table: Arc<LeaseTable>,
    /// Of targets that are opened from now on.
    lease_ms: AtomicU32,
    /// After a panic an island is opened again (`up`) or ends the process (`serve`).
    reopen: bool,
}

impl Process {
    pub(crate) fn node(&self) -> &Node {
        &self.node
    }
    /// The socket for tools.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
    /// Starts the node and listens on the control socket.
    pub(crate) fn start(kind: ProcessKind) -> Result<Self> {
        Self::start_with(kind, Config::default())
    }
    /// The same with limits of its own.
    pub(crate) fn start_with(kind: ProcessKind, config: Config) -> Result<Self> {
        let targets = Arc::new(Targets {
            mounts: Mutex::default(),
            served: Mutex::default(),
            lost: Mutex::default(),
            refused: Mutex::default(),
            lease_table: LeaseTable::new(),
            lease_ms: AtomicU32::new(TargetParam::LeaseMs.row().default_u32()),
            reopen: kind == ProcessKind::Up,
        });
        let on_end = targets.clone();
        let idle_poll = std::env::var_os("NACRE_IDLE_POLL").is_none_or(|word| word != "no");
        // The mount of an `up` has its servers in the same process.
        let shared_memory = (kind == ProcessKind::Mount).then(shared_memory).flatten();
        // The sockets of other processes are those of clients, which must not wait for threads that have requests to execute.
        let servers_lead = kind == ProcessKind::Mount;
        let node = Node::start(
            Config { loops: LOOPS, idle_poll, shared_memory, servers_lead, ..config },
            move |node, island, reason| on_end.ended(node, island, reason),
        )?;
        let socket = registry::own_socket()?;
        node.listen(&format!("unix:{}", socket.display()).parse::<Address>()?)?;
        Ok(Self { node, socket, targets, registration: None })
    }

    /// Serves a target; it registers with its MGS under `addresses`.
    pub(crate) fn serve(&self, served: &Served, addresses: &[String]) -> Result<()> {
        self.serve_after(Vec::new(), served, addresses)
    }
    /// Serves an OST, once it has executed writes that a killed process had acknowledged.
    pub(crate) fn serve_after(
        &self,
        kept_writes: Vec<KeptWrites>,
        served: &Served,
        addresses: &[String],
    ) -> Result<()> {
        let (kept, addresses) = (kept_writes.clone(), addresses.to_vec());
        let serving =
            Serving { served: served.clone(), addresses: addresses.clone(), kept_writes, reopened: 0 };
        self.targets.lock().insert(served.name.to_string(), serving);
        add_target(&self.node, &self.targets, served, &addresses, kept)
    }

    /// The lease that targets give their clients, if it is not the usual one; before they are served.
    pub(crate) fn set_lease(&self, lease: Duration) {
        let ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        self.targets.lease_ms.store(ms, Ordering::Relaxed);
    }

    /// A mount outlives a bug of its island: `revive` makes it again.
    pub(crate) fn keep_mount(
        &self,
        island: &str,
        revive: impl Fn(&Node) -> Result<()> + Send + Sync + 'static,
    ) {
        let mut mounts = self.targets.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        mounts.insert(island.to_owned(), (Arc::new(revive), 0));
    }

    /// Waits until an island replies.
    pub(crate) fn wait_ready(&self, island: &str, limit: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            match tool::ping(&self.socket, island, tool::REPLY_TIMEOUT) {
                Ok(()) => return Ok(()),
                Err(e) if start.elapsed() > limit => return Err(e),
                Err(_) => {}
            }
            self.check_lost()?;
            pause(Duration::from_millis(2));
        }
    }

    /// Whether this target is refused, while others of the process are served.
    pub(crate) fn is_refused(&self, name: &str) -> bool {
        self.targets.refused.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// Fails when a target of this process was lost.
    pub(crate) fn check_lost(&self) -> Result<()> {
        match &*self.targets.lost.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(why) => bail!("{why}"),
            None => Ok(()),
        }
    }

    /// Writes the process's entry in the registry.
    pub(crate) fn register(
        &mut self,
        kind: ProcessKind,
        fs: Option<&str>,
        mounts: &[PathBuf],
        mgs: &[String],
    ) -> Result<()> {
        let mut mgs = mgs.to_vec();
        for serving in self.targets.lock().values() {
            match serving.served.name {
                TargetName::Mgs => {
                    mgs.extend(serving.addresses.iter().cloned());
                    mgs.push(format!("unix:{}", self.socket.display()));
                }
                TargetName::Of { .. } => mgs.extend(serving.served.mgs_nodes.iter().cloned()),
            }
        }
        mgs.sort();
        mgs.dedup();
        let islands = self.node.islands().iter().map(|i| i.name().to_owned()).collect();
        let targets = self.targets.lock().values().filter_map(|s| s.served.place.clone()).collect();
        let refused = self.targets.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let entry = ProcessEntry {
            pid: 0,
            start_time: 0,
            kind,
            socket: self.socket.clone(),
            islands,
            mounts: mounts.to_vec(),
            fs: fs.map(str::to_owned),
            targets,
            mgs,
            refused,
            failure: None,
        };
        match &mut self.registration {
            Some(registration) => registration.update(entry)?,
            None => self.registration = Some(Registration::new(entry)?),
        }
        Ok(())
    }

    /// Ends the process as a kill would, because something that it serves has failed: nothing is stopped or unmounted, and
    /// what is left shows it. A mount point without its mount would take what programs write for other files. Returns the
    /// error for the operator.
    pub(crate) fn fail(mut self, failure: anyhow::Error) -> anyhow::Error {
        let said = output::sentence(&failure);
        if detach::in_background() {
            // Nobody reads its error.
            tracing::error!("the process ends: {said}");
        }
        self.leave_entry(failure.root_cause().to_string().lines().next().unwrap_or_default());
        failure
    }
    /// The entry stays, so that `nacre status` has the reason when the process is gone.
    fn leave_entry(&mut self, failure: &str) {
        let Some(registration) = self.registration.take() else { return };
        // Those that were refused are not among them.
        let targets = self.targets.lock().values().filter_map(|s| s.served.place.clone()).collect();
        let left = registration.leave(failure, targets);
        if let Err(error) = left {
            tracing::warn!("nacre status will not know why the process ended: {error:#}");
        }
    }

    /// Stops everything without loss: mounts first, then MDT, OSTs, MGS. A signal meanwhile ends it as a crash would.
    pub(crate) fn stop(mut self, signals: &mut Signals) -> Result<()> {
        let rank = |name: &str| match TargetName::parse(name).map(|t| t.kind()) {
            None => 0,
            Some(TargetKind::Mdt) => 1,
            Some(TargetKind::Ost) => 2,
            Some(TargetKind::Mgs) => 3,
        };
        let mut islands = self.node.islands();
        islands.sort_by_key(|i| rank(i.name()));
        let mut failed = Vec::new();
        for island in islands {
            if let Err(e) = stop_island(&island, signals) {
                failed.push(e.to_string());
            }
        }
        self.node.shutdown();
        if failed.is_empty() {
            if let Some(Err(error)) = self.registration.take().map(Registration::stopped) {
                tracing::warn!("nacre status may show a crash that is over: {error:#}");
            }
            return Ok(());
        }
        let failure = format!("not everything stopped cleanly: {}", failed.join("; "));
        self.leave_entry(&failure);
        bail!("{failure}\nhint: see the log; what was acknowledged is safe, if the disks of the targets are")
    }
}

impl Drop for Process {
    /// Also runs when starting has failed.
    fn drop(&mut self) {
        drop(self.registration.take());
        drop(std::fs::remove_file(&self.socket));
    }
}

/// The memory for the bulk of a mount. Without it the mount works, but more slowly.
fn shared_memory() -> Option<SharedMemory> {
    SharedMemory::create()
        .inspect_err(|error| tracing::warn!(%error, "written data will be copied through the sockets of servers on this machine"))
        .ok()
}

fn stop_island(island: &IslandRef, signals: &mut Signals) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(50);
    let name = island.name();
    let start = Instant::now();
    let mut told = false;
    island.deliver(nacre_node::Event::Stop);
    loop {
        match island.wait_end(LOOK) {
            Some(EndReason::Stopped) => return Ok(()),
            Some(reason) => bail!("{name}: {reason}"),
            None => {}
        }
        if signals.hurry() {
            bail!("{name} was not stopped as planned, because a second signal came");
        }
        if start.elapsed() > STOP_LIMIT {
            bail!("{name} has not stopped within {STOP_LIMIT:?}");
        }
        if start.elapsed() > STOP_QUIET && !std::mem::replace(&mut told, true) {
            let what = match TargetName::parse(name) {
                Some(_) => format!("{name} is being stopped"),
                None => "the mount is disconnecting from its servers".to_owned(),
            };
            output::note(&format!("{what}, {} s at most; Ctrl-C ends at once", STOP_LIMIT.as_secs()));
        }
    }
}

impl Targets {
    /// Ends one target that must not be used. The others are still served, unless the process is an `up`, which needs all.
    /// The reason is printed once: here if the process continues, otherwise as the error with which the command ends.
    fn refused(&self, name: &str, why: &str) {
        let left = {
            let mut served = self.lock();
            served.remove(name);
            served.len()
        };
        if left > 0 && !self.reopen {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            refused.insert(name.to_owned(), why.to_owned());
            tracing::error!(
                island = name,
                "the target is not served any more, the other targets of this process are: {why}"
            );
        } else {
            // A process in the background has no terminal for its error.
            if detach::in_background() {
                tracing::error!(island = name, "the target is not served: {why}");
            }
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.get_or_insert(why.to_owned());
        }
        wake();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Serving>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mount_to_revive(&self, island: &str, reason: &EndReason) -> Option<Revive> {
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        let (revive, times) = mounts.get_mut(island).filter(|_| matches!(reason, EndReason::Panicked(_)))?;
        *times += 1;
        (*times <= REOPEN_MAX).then(|| revive.clone())
    }

    fn ended(&self, node: &Node, island: &IslandRef, reason: &EndReason) {
        if *reason == EndReason::Stopped {
            return;
        }
        if let EndReason::Refused(why) = reason {
            return self.refused(island.name(), why);
        }
        tracing::error!(island = island.name(), %reason, "island ended");
        let again = match self.lock().get_mut(island.name()) {
            Some(s) if self.reopen && matches!(reason, EndReason::Panicked(_)) => {
                s.reopened += 1;
                (s.reopened <= REOPEN_MAX)
                    .then(|| (s.served.clone(), s.addresses.clone(), s.kept_writes.clone()))
            }
            _ => None,
        };
        if let Some(revive) = self.mount_to_revive(island.name(), reason) {
            match revive(node) {
                Ok(()) => {
                    tracing::warn!(
                        island = island.name(),
                        "the mount was restarted after a bug; files that were open are lost"
                    );
                    return;
                }
                Err(e) => tracing::error!(island = island.name(), "the mount cannot be restarted: {e:#}"),
            }
        }
        if let Some((served, addresses, kept_writes)) = again {
            match add_target(node, self, &served, &addresses, kept_writes) {
                Ok(()) => {
                    tracing::warn!(
                        island = island.name(),
                        "the target was reopened from its store after a bug"
                    );
                    return;
                }
                Err(e) => tracing::error!(
                    island = island.name(),
                    "the target cannot be reopened from its store: {e:#}"
                ),
            }
        }
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert(format!("{} ended: {reason}", island.name()));
        wake();
    }
}

fn add_target(
    node: &Node,
    targets: &Targets,
    served: &Served,
    addresses: &[String],
    kept_writes: Vec<KeptWrites>,
) -> Result<()> {
    let config = TargetConfig {
        addresses: addresses.to_vec(),
        mgs_nodes: served.mgs_nodes.clone(),
        lease_ms: targets.lease_ms.load(Ordering::Relaxed),
        max_mod_rpcs: TargetParam::MaxModRpcs.row().default_u16(),
        ack_or_commit: true,
        reply_records: true,
        fault_points: cfg!(debug_assertions),
        in_memory: served.place.is_none(),
        kept_writes,
        root_owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
    };
    let kind = served.name.kind();
    let lease_table = targets.lease_table.clone();
    node.add_island(&served.name.to_string(), Some(served.store.clone()), None, move |ctx| {
        let osd = store::osd_config();
        match kind {
            TargetKind::Mgs => {
                Box::new(TargetIsland::<Mgs>::new(ctx, config, osd).with_neighbours(lease_table))
                    as Box<dyn Logic>
            }
            TargetKind::Mdt => {
                Box::new(TargetIsland::<Mdt>::new(ctx, config, osd).with_neighbours(lease_table))
            }
            TargetKind::Ost => {
                Box::new(TargetIsland::<Ost>::new(ctx, config, osd).with_neighbours(lease_table))
            }
        }
    })
    .with_context(|| format!("cannot serve {}", served.name))?;
    Ok(())
}
