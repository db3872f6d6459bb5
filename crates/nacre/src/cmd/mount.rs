//! `nacre mount`, and the mount of `nacre up`: the mount's island, the kernel's descriptor, the mount point.

use crate::cmd::{down, up};
use crate::output::{self, log};
use crate::process::detach::{self, Talk};
use crate::process::metrics::MetricsArgs;
use crate::process::mount_options::{self, Options};
use crate::process::registry::{ProcessKind, RunLog};
use crate::process::{self, Process, Signals, Woken};
use anyhow::{Context as _, Result, bail};
use nacre_client::{Attach, MountConfig};
use nacre_fuse::{
    FuseSink, FuseSource, Interrupts, MountIsland, MountOptions, SessionConfig, Transport, Unmount, WhyDevice,
};
use nacre_node::Logic;
use nacre_rt::{IslandRef, Node};
use nacre_types::FsName;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

#[derive(clap::Args, Debug)]
#[command(
    about = "Mount a file system",
    long_about = "Mount a file system.\n\
        \n\
        ADDRESS is that of the management target (MGS): HOST[:PORT], or unix:PATH on the\n\
        same machine. The process serves the mount until it is unmounted, or Ctrl-C.\n\
        The command waits for servers until --timeout, or Ctrl-C. Once the file system is\n\
        mounted, calls wait for servers without a limit.",
    after_help = "Examples:\n\
        \x20 nacre mount 10.0.0.1:9988:/demo /mnt/demo\n\
        \x20 nacre mount unix:/var/lib/nacre/mnt-nacre/nacre.sock:/nacre /mnt/b -o ro --detach"
)]
pub(crate) struct MountArgs {
    /// File system to mount: HOST[:PORT]:/FS or unix:PATH:/FS
    #[arg(value_name = "ADDRESS:/FS")]
    source: String,
    /// Where
    dir: PathBuf,
    #[command(flatten)]
    options: OptionArgs,
    /// Return once the file system is mounted, and continue in the background
    #[arg(long)]
    detach: bool,
    /// Seconds to wait for the servers (default: 60 with --detach, otherwise until Ctrl-C)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    child: detach::ChildArgs,
}

/// The options of a mount, for every command that mounts.
#[derive(clap::Args, Debug)]
pub(crate) struct OptionArgs {
    /// Mount options, separated by commas
    #[arg(short, long = "option", value_delimiter = ',', value_name = "OPTION", long_help = option_help())]
    options: Vec<String>,
}
impl OptionArgs {
    pub(crate) fn parse(&self) -> Result<Options> {
        Options::parse(&self.options)
    }
}
fn option_help() -> String {
    format!(
        "Mount options, separated by commas: {}.\n\
         Access times: relatime is the default. intr: INT, QUIT, ALRM and TERM with a handler end calls that change nothing \
         and wait for a server for two seconds; without it only a signal that ends the process does. nouring: requests through \
         /dev/fuse only.",
        mount_options::WORDS
    )
}

/// A mount of this process.
pub(crate) struct Mounted {
    pub(crate) dir: PathBuf,
    /// Of the MGS, for another mount.
    pub(crate) address: String,
    source: Arc<FuseSource>,
}

impl Mounted {
    /// Whether the kernel has let go of it.
    pub(crate) fn is_gone(&self) -> bool {
        self.source.is_gone()
    }
    /// What would make it faster, if there is something.
    pub(crate) fn hint(&self) -> Option<String> {
        let off = *self.source.transport() == Transport::Device(WhyDevice::Disabled);
        off.then(|| {
            format!(
                "a single busy process is faster after: echo Y > {}; mount again",
                nacre_fuse::ENABLE_PATH
            )
        })
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

    /// Until somebody unmounts, a signal comes (then it unmounts) or a target of the process is lost. The inner result
    /// says what was lost.
    pub(crate) fn serve(&self, signals: &mut Signals, process: &Process) -> Result<Result<()>> {
        let mut told = false;
        while !self.is_gone() {
            if let Err(lost) = process.check_lost() {
                self.unmount(Unmount::Lazy)?;
                return Ok(Err(lost));
            }
            match signals.wait() {
                Woken::Inside => {}
                // Whoever has files open keeps them; the end comes with the last of them.
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
                                down::users(&self.dir)
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

/// Fails with one sentence when `dir` cannot be mounted on; a missing directory is made.
pub(crate) fn check_mount_point(dir: &Path) -> Result<()> {
    nacre_fuse::check_device()?;
    if !rustix::process::geteuid().is_root() {
        // The kernel would say so, but only after everything else was made.
        return Err(nacre_fuse::MountError::Forbidden.into());
    }
    if dir.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("cannot make the mount point {}", dir.display()))?;
    }
    nacre_fuse::check_mount_point(dir)?;
    Ok(())
}

/// `ADDRESS:/FS`.
pub(crate) fn parse_source(text: &str) -> Result<(String, FsName)> {
    let Some((address, fs)) = text.rsplit_once(":/") else {
        bail!("{text:?} is not ADDRESS:/FS\nhint: 10.0.0.1:9988:/demo, or unix:/path/nacre.sock:/demo")
    };
    // What the kernel's table of mounts shows is read elsewhere.
    let address = process::shared_address(address)?;
    let fs = FsName::parse(fs)
        .with_context(|| format!("{fs:?} is no file system name (1 to 8 of A-Z a-z 0-9 _ -)"))?;
    Ok((address, fs))
}

pub(crate) fn run(args: &MountArgs) -> Result<()> {
    let (address, fs) = parse_source(&args.source)?;
    let dir = up::absolute(&args.dir)?;
    let options = args.options.parse()?;
    if args.detach && !args.child.is_child() {
        return detach::spawn();
    }
    check_mount_point(&dir)?;
    args.child.detach()?;
    let mut run_log = RunLog::new()?;
    log::init(args.child.is_child().then_some(run_log.path.as_path()))?;
    let talk = Talk::new(&args.child);
    let mut signals = Signals::catch()?;
    let mut process = Process::start(ProcessKind::Mount)?;
    let metrics = args.metrics.serve(&process.node, &process.socket)?;
    const DETACHED: u64 = 60;
    let limit = args.timeout.or(args.detach.then_some(DETACHED)).map(Duration::from_secs);
    talk.service(&args.source, "connecting");
    let mounted =
        attach(&process, &[address], &fs, &dir, &options, Patience { signals: Some(&mut signals), limit })?;
    let mgs = [mounted.address.clone()];
    process.register(ProcessKind::Mount, Some(fs.as_str()), std::slice::from_ref(&mounted.dir), &mgs)?;
    run_log.keep();
    talk.line(&format!("\nfile system {fs} is mounted on {}", mounted.dir.display()));
    if args.child.is_child() {
        talk.line(&format!("  log  {}", run_log.path.display()));
    }
    if let Some(text) = &metrics {
        talk.line(&format!("  {text}"));
    }
    if let Some(hint) = mounted.hint() {
        talk.line(&format!("  {hint}"));
    }
    talk.line(&format!("next: nacre lfs df -h {0}; stop: nacre umount {0}", mounted.dir.display()));
    talk.done();
    let lost = mounted.serve(&mut signals, &process)?;
    lost.and(process.stop(&mut signals))
}

/// Makes the mount's island and mounts. A signal ends the wait for the servers, if `signals` are given.
pub(crate) fn attach(
    process: &Process,
    mgs: &[String],
    fs: &FsName,
    dir: &Path,
    options: &Options,
    patience: Patience<'_>,
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
    };
    let interrupts = options.interrupts;
    // Tools reach the island under the name that parameters and metrics have for the mount.
    let name = MountConfig::mount_name(fs, instance);
    tracing::info!(mount = name, dir = %dir.display(), mgs = address, "mount begins");
    let (island, news) = make_island(&process.node, &name, &config, interrupts)?;
    wait_ready(&news, &address, patience)?;
    let mut mounted = nacre_fuse::mount_fuse(
        dir,
        &MountOptions {
            source: format!("{address}:/{fs}"),
            read_only: options.read_only,
            no_suid: options.no_suid,
            no_dev: options.no_dev,
            no_exec: options.no_exec,
            atime: options.kernel_atime(),
            session: SessionConfig { rings: !options.no_uring, ..SessionConfig::default() },
        },
    )?;
    let source = match FuseSource::start(&process.node, &mut mounted, island, process::wake) {
        Ok(source) => source,
        Err(error) => {
            drop(nacre_fuse::unmount_fuse(dir, Unmount::Force));
            return Err(error.into());
        }
    };
    let kept = source.clone();
    process.keep_mount(&name.clone(), move |node| {
        kept.replace_island(make_island(node, &name, &config, interrupts)?.0);
        Ok(())
    });
    Ok(Mounted { dir: mounted.path, address, source })
}

/// The island of a mount, and what it tells on the way to its servers.
fn make_island(
    node: &Node,
    name: &str,
    config: &MountConfig,
    interrupts: Interrupts,
) -> Result<(IslandRef, Receiver<Attach>)> {
    let (sink, news) = FuseSink::new(interrupts);
    let config = config.clone();
    let island = node.add_island(name, None, Some(sink), move |ctx| {
        Box::new(MountIsland::new(ctx, config)) as Box<dyn Logic>
    })?;
    Ok((island, news))
}

/// What ends the wait for the servers.
#[derive(Default)]
pub(crate) struct Patience<'a> {
    pub(crate) signals: Option<&'a mut Signals>,
    pub(crate) limit: Option<Duration>,
}

/// Waits for the first connection, telling the person what is waited for, and why.
pub(crate) fn wait_ready(news: &Receiver<Attach>, address: &str, mut patience: Patience<'_>) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(200);
    let start = Instant::now();
    let mut waits: Option<String> = None;
    loop {
        match news.recv_timeout(LOOK) {
            Ok(Attach::Ready) => return Ok(()),
            Ok(Attach::Hopeless(why)) => bail!("{why}"),
            Ok(Attach::Waits(what)) => {
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
        let within = match patience.limit {
            Some(limit) if start.elapsed() >= limit => Some(format!(" within {} s", limit.as_secs())),
            _ => None,
        };
        if within.is_some() || patience.signals.as_mut().is_some_and(|s| s.pending()) {
            let why = waits.map(|what| format!(": {what}")).unwrap_or_default();
            bail!(
                "given up: the servers at {address} did not answer{}{why}\nhint: are the MGS and the MDT served there?",
                within.unwrap_or_default()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::parse_source;

    #[test]
    fn what_a_user_types_is_an_address_or_refused() {
        crate::replay::replay("text", |bytes| {
            if let Ok((address, fs)) = parse_source(&String::from_utf8_lossy(bytes)) {
                assert_eq!(parse_source(&format!("{address}:/{fs}")).ok(), Some((address, fs)));
            }
        });
    }
}
