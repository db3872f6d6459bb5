//! `nacre up`: a whole file system on this machine from one command.
//!
//! MGS, one MDT and OSTs as islands of this process, on a directory that is kept between runs (or in memory),
//! mounted through FUSE. Ctrl-C unmounts and stops without loss.

mod admission;
mod banner;
mod name;

use crate::output::{self, log};
use crate::process::connections::ConnectionArgs;
use crate::process::data_dir::{self, DataDir};
use crate::process::detach::{self, Talk};
use crate::process::islands::Process;
use crate::process::kept_log::{LeftLogs, LogFile};
use crate::process::metrics::MetricsArgs;
use crate::process::mount_options::{OptionArgs, Options};
use crate::process::mounted::{self, Keeping, MountPoint, Mounted};
use crate::process::registry::{self, ProcessEntry, ProcessKind, RunLog};
use crate::process::signals::Signals;
use crate::process::target_dir::Served;
use crate::process::{self, addresses, store};
use crate::query::tool::{self, Tool};
use anyhow::{Context as _, Result, bail};
use nacre_target::KeptWrites;
use nacre_types::{FsName, TargetKind, TargetName};
use nacre_wire::target::{GetParams, Param};
use name::free_name;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

#[derive(clap::Args, Debug)]
#[command(
    about = "Start a whole file system on this machine and mount it",
    long_about = "Start a whole file system on this machine and mount it.\n\
        \n\
        One process serves a management target (MGS), a metadata target (MDT) and object\n\
        targets (OSTs) from a directory that is kept between runs, and mounts the file\n\
        system. The next `nacre up` with the same mount point (or --dir) finds the same data.\n\
        \n\
        Ctrl-C unmounts and stops without loss. If files are open, it names their processes;\n\
        a second Ctrl-C detaches the mount lazily.\n\
        \n\
        If a target fails (its disk does, for example), the process ends and says why, and the\n\
        mount stays: calls on it fail, so that nothing is written into the directory below. The\n\
        next `up` takes the place of a mount that a failed or killed process left behind.",
    after_help = "Examples:\n\
        \x20 nacre up                                  mount on /mnt/nacre\n\
        \x20 nacre up /mnt/a --dir /data/a --osts 4    a new file system with four OSTs\n\
        \x20 nacre up /mnt/t --ephemeral --detach      in memory, in the background\n\
        \x20 nacre up --listen 10.0.0.1:9988           other hosts can mount it, too"
)]
pub(crate) struct UpArgs {
    /// Mount point; created if it does not exist
    #[arg(default_value = data_dir::DEFAULT_MOUNT)]
    mount: PathBuf,
    /// Data directory (default: a directory under /var/lib/nacre that belongs to the mount point)
    #[arg(long, conflicts_with = "ephemeral")]
    dir: Option<PathBuf>,
    /// Keep everything in memory; the data is lost when the file system stops
    #[arg(long)]
    ephemeral: bool,
    /// Return once the file system is mounted, and continue in the background
    #[arg(long)]
    detach: bool,
    /// Number of OSTs of a new file system (default: 2)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    osts: Option<u32>,
    /// Name of a new file system (default: nacre, or if this machine has one of that name: that of the data directory or
    /// mount point)
    #[arg(long, value_parser = parse_fsname)]
    fsname: Option<FsName>,
    /// Also listen on TCP, for mounts on other hosts (there is no authentication yet)
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Take the kernel's requests through /dev/fuse only, not through io_uring
    #[arg(long)]
    no_uring: bool,
    #[command(flatten)]
    options: OptionArgs,
    #[command(flatten)]
    connections: ConnectionArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    child: detach::ChildArgs,
}

impl UpArgs {
    fn mount_options(&self) -> Result<Options> {
        self.options.parse(self.no_uring)
    }
}
/// OSTs of a new file system.
const OSTS: u32 = 2;
/// For each target, from its start until it replies.
const START_TIMEOUT: Duration = Duration::from_secs(120);

fn parse_fsname(text: &str) -> Result<FsName, String> {
    FsName::parse(text).ok_or_else(|| format!("{text:?}: a name has 1 to 8 of A-Z a-z 0-9 _ -"))
}

/// The file system that this process serves.
struct FileSystem {
    name: FsName,
    osts: u32,
    /// `None`: in memory.
    data: Option<DataDir>,
}

pub(crate) fn run(args: &UpArgs) -> Result<()> {
    let mount = data_dir::absolute(&args.mount)?;
    let dir = match (&args.dir, args.ephemeral) {
        (_, true) => None,
        (Some(dir), _) => Some(data_dir::absolute(dir)?),
        (None, _) => Some(data_dir::default_dir(&mount)?),
    };
    if args.detach && !args.child.is_child() {
        return detach::spawn();
    }
    let mount_point = check_before_anything_is_made(args, &mount)?;
    let mut fs = file_system(args, &mount, dir.as_deref())?;
    let mut run_log = dir.is_none().then(RunLog::new).transpose()?;
    let log_file = match (&dir, &run_log) {
        (Some(dir), _) => dir.join("nacre.log"),
        (None, Some(log)) => log.path().to_owned(),
        (None, None) => bail!("no place for the log"),
    };
    args.child.detach()?;
    log::init(Some(&log_file)).with_context(|| format!("cannot write the log {}", log_file.display()))?;
    let talk = Talk::new(&args.child);
    let mut signals = Signals::catch()?;
    let mut process = Process::start_with(ProcessKind::Up, args.connections.config())?;
    let metrics = args.metrics.serve(process.node(), process.socket())?;
    let result = start(args, &mut process, &talk, &mount, &mut fs);
    talk.services_end();
    let Started { mounted, kept_log, listens } = match result {
        Ok(started) => started,
        Err(e) => {
            let e = process.check_lost().err().unwrap_or(e);
            drop(process.stop(&mut signals));
            return Err(e);
        }
    };
    mount_point.keep();
    if let Some(log) = &mut run_log {
        log.keep();
    }
    if let Some(text) = metrics {
        talk.line(&format!("\n{text}"));
    }
    banner::show(&talk, &process, &mounted, &fs, listens.as_deref(), &log_file);
    talk.done();
    if let Err(lost) = mounted.serve(&mut signals, &process)? {
        return Err(process.fail(lost));
    }
    process.stop(&mut signals)?;
    if let Some(log) = kept_log {
        log.delete();
    }
    output::note(match dir {
        None => "stopped; it was in memory only and is gone",
        Some(_) => "stopped; the data is kept, the same command mounts it again",
    });
    Ok(())
}

/// Refuses what can be refused while nothing was made that would be left behind.
fn check_before_anything_is_made(args: &UpArgs, mount: &Path) -> Result<MountPoint> {
    registry::run_dir()?;
    if let Some(other) = registry::entries()?.into_iter().find(|e| e.mounts.iter().any(|m| m == mount)) {
        wait_if_stopping(&other, mount)?;
    }
    mounted::prepare(mount, &args.mount_options()?)
}

/// Waits for the end of a process that was unmounted from `mount` a moment ago and stops its targets, which are often those
/// of this command; a process that is mounted there is an error, unless it was just killed.
fn wait_if_stopping(other: &ProcessEntry, mount: &Path) -> Result<()> {
    const STOP_MAX: Duration = Duration::from_secs(30);
    const KILL_MAX: Duration = Duration::from_millis(500);
    if nacre_fuse::mounted_type(mount).is_some() {
        if other.ends_within(KILL_MAX)? {
            return Ok(());
        }
        let stop = if other.kind == ProcessKind::Mount { "umount" } else { "down" };
        bail!(
            "{} is mounted already, by process {}\nhint: nacre {stop} {0} stops it; or name another mount point",
            mount.display(),
            other.pid
        );
    }
    output::note(&format!(
        "waiting for process {}, which was unmounted from {} and stops",
        other.pid,
        mount.display()
    ));
    if !other.ends_within(STOP_MAX)? {
        bail!(
            "process {} was mounted on {} and has not stopped within {STOP_MAX:?}\nhint: it has its mount in another mount name \
             space, or see its log",
            other.pid,
            mount.display()
        );
    }
    Ok(())
}

/// Opens the data directory, or makes it; its file system.
fn file_system(args: &UpArgs, mount: &Path, dir: Option<&Path>) -> Result<FileSystem> {
    let wanted = args.fsname.as_ref();
    let data = match dir {
        Some(dir) if data_dir::is_data_dir(dir) => Some(DataDir::open(dir, wanted, args.osts)?),
        _ => None,
    };
    let (name, osts) = match &data {
        Some(data) => (data.name()?, data.osts()),
        None => {
            let free = || free_name(args.dir.as_deref(), dir.filter(|_| args.dir.is_none()), mount);
            (wanted.cloned().map_or_else(free, Ok)?, args.osts.unwrap_or(OSTS))
        }
    };
    let create = |dir| DataDir::create(dir, &name, osts);
    let data = match data {
        None => dir.map(create).transpose()?,
        data => data,
    };
    Ok(FileSystem { name, osts, data })
}

/// What runs when `up` is ready.
struct Started {
    mounted: Mounted,
    kept_log: Option<Arc<LogFile>>,
    /// The address for other hosts.
    listens: Option<String>,
}

/// Serves every target and mounts.
fn start(
    args: &UpArgs,
    process: &mut Process,
    talk: &Talk,
    mount: &Path,
    fs: &mut FileSystem,
) -> Result<Started> {
    // The address is stable while the data is: another mount finds it again after a restart.
    let socket = fs.data.as_ref().map_or_else(
        || process.socket().to_owned(),
        |data| addresses::socket_in(data.path(), process.socket()),
    );
    let mut addresses = vec![format!("unix:{}", socket.display())];
    let targets = data_dir::targets(&fs.name, fs.osts);
    // The stores come first: their locks say whether another process serves them.
    let opened = open_targets(talk, &targets, fs, &addresses)?;
    let mut left = fs.data.as_ref().map(|data| LeftLogs::read(data.path())).transpose()?;
    if socket != process.socket() {
        // This process holds the locks of the stores, so an existing socket is that of a dead process.
        process.node().listen(&addresses[0].parse::<nacre_net::Address>()?)?;
    }
    let listens = match &args.listen {
        Some(text) => {
            Some(process.node().listen(&text.parse::<nacre_net::Address>()?.absolute()?)?.to_string())
        }
        None => None,
    };
    addresses.extend(listens.clone());
    let kept_writes = left_writes(left.as_mut(), &opened)?;
    for (served, kept_writes) in opened.into_iter().zip(kept_writes) {
        // The MGS is where this process listens now; the label of a directory that was moved has an old address.
        let served = Served { mgs_nodes: addresses.clone(), ..served };
        talk.service(&served.name.to_string(), "starting");
        process.serve_after(kept_writes, &served, &addresses)?;
    }
    for (name, _) in &targets {
        process.wait_ready(&name.to_string(), START_TIMEOUT)?;
        talk.service(&name.to_string(), "up");
    }
    if let Some(left) = left {
        left.delete();
    }
    // A target that is refused ends here, before anything is mounted.
    wait_for_osts(process, &fs.name, fs.osts)?;
    talk.service(&mount.display().to_string(), "mounting");
    let limits = mounted::WaitLimits::default();
    let options = args.mount_options()?;
    let log = fs.data.as_ref().filter(|_| options.write_back(true)).map(|data| LogFile::create(data.path()));
    let log = log.transpose();
    let keeping = match &log {
        Ok(None) => Keeping::InMemory,
        Ok(Some(log)) => Keeping::Logged(log.clone()),
        Err(error) => {
            tracing::warn!(%error, "writes are not kept in memory: the log of kept writes cannot be made");
            Keeping::Nothing
        }
    };
    let mounted = mounted::attach(process, &addresses[..1], &fs.name, mount, &options, keeping, limits)?;
    let mounts = [mounted.dir().to_owned()];
    process.register(ProcessKind::Up, Some(fs.name.as_str()), &mounts, &[])?;
    talk.service(&mount.display().to_string(), "mounted");
    Ok(Started { mounted, kept_log: log.ok().flatten(), listens })
}

/// Opens or formats the store of every target.
fn open_targets(
    talk: &Talk,
    targets: &[(TargetName, String)],
    fs: &mut FileSystem,
    addresses: &[String],
) -> Result<Vec<Served>> {
    let mut opened = Vec::new();
    for (name, sub) in targets {
        talk.service(&name.to_string(), "opening");
        opened.push(match &fs.data {
            None => {
                let store = store::memory();
                store::format(&store, name, addresses, false)?;
                Served { name: name.clone(), store, mgs_nodes: Vec::new(), place: None }
            }
            Some(data) => {
                data.target(sub, name, addresses, || admission::is_replacement_admitted(&opened, name))?
            }
        });
    }
    if let Some(data) = &mut fs.data {
        data.set_complete()?;
    }
    Ok(opened)
}

/// The writes that a killed process has left for each target. Those for a lost OST are lost with it: an OST that takes its
/// place must be empty.
fn left_writes(left: Option<&mut LeftLogs>, opened: &[Served]) -> Result<Vec<Vec<KeptWrites>>> {
    let Some(left) = left else { return Ok(vec![Vec::new(); opened.len()]) };
    let mut all = Vec::new();
    for served in opened {
        let mut kept = left.take(&served.name);
        if !kept.is_empty() && admission::is_replacement(opened, served)? {
            tracing::error!(ost = %served.name, "writes that a killed process had acknowledged are lost with their OST");
            // The new OST records the logs as followed: no later start executes them either.
            kept.iter_mut().for_each(|log| log.writes.clear());
        }
        all.push(kept);
    }
    Ok(all)
}

/// Waits until the MDT can place files on every OST, so that the first file has the layout that was asked for. An OST that
/// is full or slow is not waited for: new files are placed on the others.
fn wait_for_osts(process: &Process, fs: &FsName, osts: u32) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(10);
    let mdt = TargetName::Of { fs: fs.clone(), kind: TargetKind::Mdt, index: 0 }.to_string();
    let mut tool = Tool::connect(process.socket(), &mdt, tool::REPLY_TIMEOUT)?;
    let asked = GetParams { pattern: format!("mdt.{mdt}.ost_room.*") };
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        let rooms = tool.call(&asked)?.params;
        let settled = |room: &&Param| {
            let has = |word| room.value.split(' ').any(|w| w == word);
            has("up=1") && (!has("reserved=0") || has("full=1"))
        };
        if rooms.iter().filter(settled).count() >= osts as usize {
            return Ok(());
        }
        process.check_lost()?;
        process::pause(Duration::from_millis(2));
    }
    tracing::warn!(osts, "not every OST can take files yet");
    Ok(())
}
