//! A mount of this process: its island, the kernel's descriptor, its mount point.

use crate::output;
use crate::process::guard;
use crate::process::islands::Process;
use crate::process::kept_log::LogFile;
use crate::process::mount_options::{Options, Uring};
use crate::process::signals::{self, Signals, Woken};
use crate::query::users::users;
use anyhow::{Context as _, Result, bail};
use nacre_client::{Attach, MountConfig};
use nacre_fuse::{
    FuseSink, FuseSource, Interrupts, MountIsland, MountOptions, SessionConfig, Transport, Unmount, WhyDevice,
};
use nacre_node::{Logic, Store};
use nacre_rt::{IslandRef, Node};
use nacre_types::FsName;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// A mount of this process.
pub(crate) struct Mounted {
    dir: PathBuf,
    /// Of the MGS, for another mount.
    address: String,
    source: Arc<FuseSource>,
}

impl Mounted {
    /// The mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
    /// The address of the MGS, for another mount.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
    pub(crate) fn new(dir: PathBuf, address: String, source: Arc<FuseSource>) -> Self {
        Self { dir, address, source }
    }
    /// Whether it was unmounted.
    pub(crate) fn is_gone(&self) -> bool {
        self.source.is_gone()
    }
    /// How io_uring could be used, or why it cannot, where it is not.
    pub(crate) fn hint(&self) -> Option<String> {
        match self.source.transport() {
            Transport::Device(WhyDevice::Disabled) => Some(format!(
                "requests are faster over io_uring, which is off: mount again with --io-uring (root), or after: echo Y > {}",
                nacre_fuse::ENABLE_PATH
            )),
            Transport::Device(WhyDevice::Refused(why)) => {
                Some(format!("requests are faster over io_uring, which cannot be used: {why}"))
            }
            Transport::Device(WhyDevice::NotWanted | WhyDevice::Unknown) | Transport::Rings { .. } => None,
        }
    }
    /// Unmounts; the island stays until the process stops it.
    fn unmount(&self, how: Unmount) -> Result<()> {
        if self.is_gone() {
            return Ok(());
        }
        match nacre_fuse::unmount_fuse(&self.dir, how) {
            Err(nacre_fuse::MountError::NotMounted(_)) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Serves until it is unmounted, a signal arrives (then unmounts it), or a target of the process is lost. The inner
    /// result says which target was lost; it is still mounted then, because programs would write into the directory below:
    /// their calls fail until the next mount on it.
    pub(crate) fn serve(&self, signals: &mut Signals, process: &Process) -> Result<Result<()>> {
        let mut told = false;
        while !self.is_gone() {
            if let Err(lost) = process.check_lost() {
                let lost = lost.context(format!(
                    "{0} has failed, and every call on it fails until it is mounted again\n\
                     hint: mend the cause and give the same command again, which mounts it anew; nacre umount --lazy {0} \
                     only clears the mount point",
                    self.dir.display()
                ));
                return Ok(Err(lost));
            }
            match signals.wait() {
                Woken::Inside => {}
                // Programs keep their open files; the mount ends when the last one is closed.
                Woken::HungUp => self.unmount(Unmount::Lazy)?,
                Woken::Asked => {
                    output::after_ctrl_c();
                    match self.unmount(if told { Unmount::Lazy } else { Unmount::Idle }) {
                        Ok(()) => break,
                        Err(e) if !told => {
                            tracing::info!("cannot unmount: {e:#}");
                            output::note(&format!(
                                "cannot unmount {}: in use by {}\nhint: close them and press Ctrl-C again; pressed while \
                                 they are open it detaches the mount lazily and stops, and they fail",
                                self.dir.display(),
                                users(&self.dir)
                            ));
                            told = true;
                        }
                        Err(e) => return Err(e),
                    }
                }
            }
        }
        Ok(Ok(()))
    }
}

/// A directory that was checked. If this command has made it, it is removed again unless it is kept.
#[must_use]
pub(crate) struct MountPoint {
    made: Option<PathBuf>,
}
impl MountPoint {
    /// It is mounted on.
    pub(crate) fn keep(mut self) {
        self.made = None;
    }
}
impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Some(dir) = &self.made
            && let Err(error) = std::fs::remove_dir(dir)
        {
            tracing::debug!(dir = %dir.display(), %error, "a mount point that was made is left");
        }
    }
}

/// Fails with one sentence when `dir` cannot be mounted on, or not with these options; a missing directory is made, and
/// io_uring is turned on if it is wanted. Before anything is started, or waited for.
pub(crate) fn prepare(dir: &Path, options: &Options) -> Result<MountPoint> {
    let mount_point = check_mount_point(dir)?;
    if options.uring == Uring::TurnedOn {
        nacre_fuse::enable_rings().context("--io-uring cannot be used")?;
    }
    Ok(mount_point)
}
/// The part of [`prepare`] that is about the directory.
pub(crate) fn check_mount_point(dir: &Path) -> Result<MountPoint> {
    nacre_fuse::check_device()?;
    let mut mount_point = MountPoint { made: None };
    if dir.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        std::fs::create_dir_all(dir).with_context(|| {
            format!("cannot make the mount point {}\nhint: name a directory of yours", dir.display())
        })?;
        mount_point.made = Some(dir.to_owned());
    }
    nacre_fuse::check_mount_point(dir)?;
    Ok(mount_point)
}

/// Where a mount has the writes that it keeps for a moment.
#[derive(Clone)]
pub(crate) enum Keeping {
    /// Each write is sent to a server at once.
    Nothing,
    /// Its process may be killed alone, and they are lost with it; or the servers lose all with it, too.
    InMemory,
    /// In a log as well, which survives the process.
    Logged(Arc<LogFile>),
}
impl Keeping {
    fn log(&self) -> Option<&Arc<LogFile>> {
        match self {
            Self::Logged(log) => Some(log),
            Self::Nothing | Self::InMemory => None,
        }
    }
}

/// Makes the mount's island and mounts. A signal ends the wait for the servers, if `signals` are given.
pub(crate) fn attach(
    process: &Process,
    mgs: &[String],
    fs: &FsName,
    dir: &Path,
    options: &Options,
    keeping: Keeping,
    limits: WaitLimits<'_>,
) -> Result<Mounted> {
    let address = mgs.first().context("no address of the MGS")?.clone();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let instance = nacre_rt::random();
    let config = MountConfig {
        mgs_addresses: mgs.to_vec(),
        fs: fs.clone(),
        name: format!("{host}:{}", dir.display()),
        instance: Some(instance),
        read_only: options.read_only,
        atime: options.atime(),
        names_per_page: MountConfig::NAMES_PER_PAGE,
        write_back: options.write_back(true) && !matches!(keeping, Keeping::Nothing),
        kept_log: keeping.log().map(|log| log.config()).transpose()?,
        left_writes: Vec::new(),
    };
    let interrupts = options.interrupts;
    // Tools reach the island under the name that parameters and metrics have for the mount.
    let name = MountConfig::mount_name(fs, instance);
    tracing::info!(mount = name, dir = %dir.display(), mgs = address, "mount begins");
    let (island, news) = make_island(process.node(), &name, &config, &keeping, interrupts)?;
    wait_ready(&news, &address, limits)?;
    let kept_memory = keeping.log().and_then(|log| log.memory());
    kept_memory.iter().for_each(|memory| process.node().trim_when_idle(memory.clone()));
    let memory = process.node().shared_memory().or(kept_memory);
    let mut mounted = nacre_fuse::mount_fuse(
        dir,
        &MountOptions {
            source: format!("{address}:/{fs}"),
            kernel: options.kernel(),
            session: SessionConfig { rings: options.uring != Uring::Never, ..SessionConfig::default() },
            shared_memory: memory,
        },
    )?;
    let source = match FuseSource::start(process.node(), &mut mounted, island, signals::wake) {
        Ok(source) => source,
        Err(error) => {
            drop(nacre_fuse::unmount_fuse(dir, Unmount::Force));
            return Err(error.into());
        }
    };
    guard::start(&mounted.path);
    let (kept, path) = (source.clone(), mounted.path.clone());
    process.keep_mount(&name.clone(), move |node| {
        // It may have been remounted with others.
        let now = nacre_fuse::options_of(&path).and_then(|now| Options::parse_table(&now, &[]).ok());
        let now = now.map_or_else(
            || config.clone(),
            |now| MountConfig { read_only: now.kernel().read_only, atime: now.atime(), ..config.clone() },
        );
        let left_writes = keeping.log().map_or_else(|| Ok(Vec::new()), |log| log.left_writes())?;
        let now = MountConfig { left_writes, ..now };
        kept.replace_island(make_island(node, &name, &now, &keeping, interrupts)?.0);
        Ok(())
    });
    Ok(Mounted::new(mounted.path, address, source))
}

/// The island of a mount, and its messages while it connects to its servers.
fn make_island(
    node: &Node,
    name: &str,
    config: &MountConfig,
    keeping: &Keeping,
    interrupts: Interrupts,
) -> Result<(IslandRef, Receiver<Attach>)> {
    let (sink, news) = FuseSink::new(interrupts);
    let config = config.clone();
    let island = node.add_island(
        name,
        keeping.log().map(|log| log.clone() as Arc<dyn Store>),
        Some(sink),
        move |ctx| Box::new(MountIsland::new(ctx, config)) as Box<dyn Logic>,
    )?;
    Ok((island, news))
}

/// Ends the wait for the servers: a signal, or a time. The named parameters of a wait.
#[derive(Default)]
pub(crate) struct WaitLimits<'a> {
    pub(crate) signals: Option<&'a mut Signals>,
    pub(crate) limit: Option<Duration>,
}

/// Waits for the first connection; prints which server it waits for, and why.
pub(crate) fn wait_ready(news: &Receiver<Attach>, address: &str, mut limits: WaitLimits<'_>) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(200);
    let start = Instant::now();
    let mut waits: Option<String> = None;
    loop {
        match news.recv_timeout(LOOK) {
            Ok(Attach::Ready) => return Ok(()),
            Ok(Attach::Failed(why)) => bail!("{why}"),
            Ok(Attach::Waiting(what)) => {
                match waits {
                    None => output::note(&format!(
                        "waiting for the servers at {address} (Ctrl-C gives up): {what}"
                    )),
                    Some(_) => output::note(&format!("waiting for {what}")),
                }
                waits = Some(what);
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => bail!("the mount ended: see the log"),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
        }
        let within = match limits.limit {
            Some(limit) if start.elapsed() >= limit => Some(format!(" within {} s", limit.as_secs())),
            _ => None,
        };
        if within.is_some() || limits.signals.as_mut().is_some_and(|s| s.pending()) {
            let why = waits.map(|what| format!(": {what}")).unwrap_or_default();
            bail!(
                "given up: the servers at {address} did not reply{}{why}\nhint: are the MGS and the MDT served there?",
                within.unwrap_or_default()
            );
        }
    }
}
