//! `nacre up`: a whole file system on this machine from one command.
//!
//! MGS, one MDT and OSTs as islands of this process, on a directory that is kept between runs (or in memory),
//! mounted through FUSE. Ctrl-C unmounts and stops without loss.

use crate::cmd::mount::{self, Mounted, OptionArgs};
use crate::cmd::serve;
use crate::output::{self, log};
use crate::process::connections::ConnectionArgs;
use crate::process::detach::{self, Talk};
use crate::process::metrics::MetricsArgs;
use crate::process::mount_options::Options;
use crate::process::registry::{self, ProcessKind, RunLog};
use crate::process::store;
use crate::process::{self, Process, Served, Signals};
use crate::query::filesystems;
use crate::query::tool::{self, Tool};
use anyhow::{Context as _, Result, bail, ensure};
use nacre_types::{FsName, TargetKind, TargetName};
use nacre_wire::target::{GetParams, Param};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) const DEFAULT_MOUNT: &str = "/mnt/nacre";
/// What an empty target takes: its log's first segments and its ballast.
const TARGET_BYTES_MIN: u64 = 100 << 20;
/// Tells a data directory of `up` from anything else.
const MARKER: &str = "nacre-up.json";

#[derive(clap::Args, Debug)]
#[command(
    about = "Start a whole file system on this machine and mount it",
    long_about = "Start a whole file system on this machine and mount it.\n\
        \n\
        One process serves a management target (MGS), a metadata target (MDT) and object\n\
        targets (OSTs) from a directory that is kept between runs, and mounts the file\n\
        system. The next `nacre up` with the same mount point (or --dir) finds the same data.\n\
        \n\
        Ctrl-C unmounts and stops without loss. If files are open it says who holds them;\n\
        a second Ctrl-C detaches the mount lazily. A mount point that a killed process\n\
        left behind is cleared.",
    after_help = "Examples:\n\
        \x20 nacre up                                  mount on /mnt/nacre\n\
        \x20 nacre up /mnt/a --dir /data/a --osts 4    a new file system with four OSTs\n\
        \x20 nacre up /mnt/t --ephemeral --detach      in memory, in the background\n\
        \x20 nacre up --listen 10.0.0.1:9988           mounts on other hosts may come, too"
)]
pub(crate) struct UpArgs {
    /// Mount point; created if it does not exist
    #[arg(default_value = DEFAULT_MOUNT)]
    mount: PathBuf,
    /// Data directory (default: a directory under /var/lib/nacre that belongs to the mount point)
    #[arg(long, conflicts_with = "ephemeral")]
    dir: Option<PathBuf>,
    /// Keep everything in memory; the data is lost when it stops
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
        let mut options = self.options.parse()?;
        options.no_uring |= self.no_uring;
        Ok(options)
    }
}
const OSTS: u32 = 2;
const FSNAME: &str = "nacre";

fn parse_fsname(text: &str) -> Result<FsName, String> {
    FsName::parse(text).ok_or_else(|| format!("{text:?}: a name has 1 to 8 of A-Z a-z 0-9 _ -"))
}

/// What the marker file says.
#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    fsname: String,
    osts: u32,
    /// Every target was formatted: one that is missing now is lost, and must not be made anew.
    #[serde(default)]
    complete: bool,
}
impl Marker {
    fn write(&self, dir: &Path) -> Result<()> {
        let (path, new) = (dir.join(MARKER), dir.join(format!("{MARKER}.new")));
        let write = || {
            let file = std::fs::File::create(&new)?;
            serde_json::to_writer_pretty(&file, self)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// An absolute path without asking a file system that may not answer.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    Ok(std::path::absolute(path)?)
}

/// The data directory that belongs to a mount point.
pub(crate) fn default_dir(mount: &Path) -> Result<PathBuf> {
    let base = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib/nacre")
    } else {
        let home = std::env::var_os("HOME").context("HOME is not set\nhint: --dir DIR")?;
        PathBuf::from(home).join(".local/share/nacre")
    };
    let name = absolute(mount)?.to_string_lossy().trim_matches('/').replace('/', "-");
    Ok(base.join(name))
}

pub(crate) fn is_data_dir(dir: &Path) -> bool {
    dir.join(MARKER).is_file()
}

/// Every target directory of a data directory.
pub(crate) fn target_dirs(dir: &Path) -> Result<Vec<PathBuf>> {
    let marker = read_marker(dir)?;
    let fs = FsName::parse(&marker.fsname).context("the marker file names no file system")?;
    Ok(targets(&fs, marker.osts).into_iter().map(|(_, sub)| dir.join(sub)).collect())
}

pub(crate) fn run(args: &UpArgs) -> Result<()> {
    let mount = absolute(&args.mount)?;
    let dir = match (&args.dir, args.ephemeral) {
        (_, true) => None,
        (Some(dir), _) => Some(absolute(dir)?),
        (None, _) => Some(default_dir(&mount)?),
    };
    if args.detach && !args.child.is_child() {
        return detach::spawn();
    }
    // What can be wrong is found before anything is made.
    let running = registry::entries()?.into_iter().find(|e| e.mounts.contains(&mount));
    if let Some(other) = running {
        bail!(
            "{} is mounted already, by process {}\nhint: nacre down {0} stops it; or name another mount point",
            mount.display(),
            other.pid
        );
    }
    args.mount_options()?;
    mount::check_mount_point(&mount)?;
    let name = match (&args.fsname, &dir) {
        (Some(name), _) => name.clone(),
        (None, Some(dir)) if is_data_dir(dir) => {
            FsName::parse(&read_marker(dir)?.fsname).context("the marker file names no file system")?
        }
        (None, _) => free_name(args.dir.as_deref(), dir.as_deref().filter(|_| args.dir.is_none()), &mount)?,
    };
    let marker = dir.as_deref().map(|dir| prepare(dir, &name, args)).transpose()?;
    let mut run_log = dir.is_none().then(RunLog::new).transpose()?;
    let log_file = match (&dir, &run_log) {
        (Some(dir), _) => dir.join("nacre.log"),
        (None, Some(log)) => log.path.clone(),
        (None, None) => bail!("no place for the log"),
    };
    args.child.detach()?;
    log::init(Some(&log_file)).with_context(|| format!("cannot write the log {}", log_file.display()))?;
    let talk = Talk::new(&args.child);
    let fsname = match &marker {
        Some(m) => FsName::parse(&m.fsname).context("the marker file names no file system")?,
        None => name,
    };
    let osts = marker.as_ref().map_or(args.osts.unwrap_or(OSTS), |m| m.osts);
    let mut signals = Signals::catch()?;
    let mut process = Process::start_with(ProcessKind::Up, args.connections.config())?;
    let metrics = args.metrics.serve(&process.node, &process.socket)?;
    let result = start(args, &mut process, &talk, &mount, dir.as_deref(), &fsname, marker.as_ref(), osts);
    talk.services_end();
    let mounted = match result {
        Ok(mounted) => mounted,
        Err(e) => {
            let e = process.check_lost().err().unwrap_or(e);
            drop(process.stop(&mut signals));
            return Err(e);
        }
    };
    if let Some(log) = &mut run_log {
        log.keep();
    }
    if let Some(text) = metrics {
        talk.line(&format!("\n{text}"));
    }
    banner(&talk, &process, &mounted, dir.as_deref(), &log_file, &fsname);
    talk.done();
    let lost = mounted.serve(&mut signals, &process)?;
    let stopped = process.stop(&mut signals);
    if dir.is_none() {
        output::note("stopped; it was in memory only and is gone");
    } else {
        output::note("stopped; the data is kept, the same command mounts it again");
    }
    lost.and(stopped)
}

/// The name of a new file system for which none was given: one that no other has on this machine, so that patterns and
/// tools can tell them apart. `wanted`: the data directory, if one was given; `default`: the one that is made
/// otherwise.
fn free_name(wanted: Option<&Path>, default: Option<&Path>, mount: &Path) -> Result<FsName> {
    let mut taken: BTreeSet<String> = registry::entries()?
        .iter()
        .flat_map(|e| e.islands.iter().filter_map(|island| filesystems::name_of(island)).chain(e.fs.clone()))
        .collect();
    // Those that do not run now, where their data is by default. Elsewhere nothing is looked at: it may be a mount whose
    // servers are away.
    let base = default.and_then(Path::parent).and_then(|base| std::fs::read_dir(base).ok());
    let kept = base.into_iter().flatten().flatten().filter_map(|entry| read_marker(&entry.path()).ok());
    taken.extend(kept.map(|marker| marker.fsname));
    let place = wanted.unwrap_or(mount).file_name().unwrap_or_default().to_string_lossy();
    new_name(&place, &taken).context("no free name for the file system\nhint: --fsname NAME")
}
/// `nacre`, else `place` as far as a name may be like it, else that with a number.
fn new_name(place: &str, taken: &BTreeSet<String>) -> Option<FsName> {
    let is_good = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let base: String = place.chars().filter(is_good).collect();
    let base = base.trim_start_matches('-');
    let base = if base.is_empty() { FSNAME } else { base };
    let cut = |len: usize| base.get(..len.min(base.len())).unwrap_or(base).trim_end_matches('-');
    let numbered = (2..1000).map(|n: u32| n.to_string()).map(|n| format!("{}{n}", cut(8 - n.len())));
    [FSNAME.to_owned(), cut(8).to_owned()]
        .into_iter()
        .chain(numbered)
        .find(|name| !taken.contains(name))
        .and_then(|name| FsName::parse(&name))
}

fn read_marker(dir: &Path) -> Result<Marker> {
    let path = dir.join(MARKER);
    let text = std::fs::read(&path)?;
    serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))
}

/// Makes the data directory of a new file system, or reads what it is.
fn prepare(dir: &Path, name: &FsName, args: &UpArgs) -> Result<Marker> {
    if is_data_dir(dir) {
        let marker = read_marker(dir)?;
        check_wishes(dir, &marker, args)?;
        return Ok(marker);
    }
    std::fs::create_dir_all(dir)
        .with_context(|| format!("cannot make {}\nhint: --dir DIR", dir.display()))?;
    let empty = std::fs::read_dir(dir)?.next().is_none();
    ensure!(
        empty,
        "{} is not empty and was not made by `nacre up`\nhint: --dir with a new directory",
        dir.display()
    );
    let osts = args.osts.unwrap_or(OSTS);
    let needed = u64::from(osts + 2) * TARGET_BYTES_MIN;
    let space = rustix::fs::statvfs(dir)?;
    let available = space.f_bavail.saturating_mul(space.f_frsize);
    if available < needed {
        // Nothing was made in it.
        drop(std::fs::remove_dir(dir));
        bail!(
            "{} has no space for a new file system: {} are available, {} targets need {}\nhint: --dir on a larger disk, or \
             fewer --osts",
            dir.display(),
            output::human_bytes(available),
            osts + 2,
            output::human_bytes(needed)
        );
    }
    let marker = Marker { fsname: name.to_string(), osts, complete: false };
    marker.write(dir)?;
    Ok(marker)
}

/// What is there already is not made otherwise: a wish for something else is refused.
fn check_wishes(dir: &Path, marker: &Marker, args: &UpArgs) -> Result<()> {
    let Marker { fsname, osts, .. } = marker;
    let other_osts = args.osts.filter(|wanted| wanted != osts).map(|wanted| format!("--osts {wanted}"));
    let other_name = args.fsname.as_ref().filter(|wanted| wanted.as_str() != fsname);
    let Some(wish) = other_name.map(|wanted| format!("--fsname {wanted}")).or(other_osts) else {
        return Ok(());
    };
    bail!(
        "{wish}: {} holds the file system {fsname} with {osts} OSTs already, and that cannot be changed\n\
         hint: leave the option out; or make a new file system: another mount point, --dir with a new directory, or nacre \
         destroy first",
        dir.display()
    )
}

/// Every target of the file system: name and directory below the data directory.
fn targets(fs: &FsName, osts: u32) -> Vec<(TargetName, String)> {
    let of = |kind, index| TargetName::Of { fs: fs.clone(), kind, index };
    let mut list = vec![(TargetName::Mgs, "mgs".to_owned()), (of(TargetKind::Mdt, 0), "mdt0".to_owned())];
    list.extend((0..osts).map(|i| (of(TargetKind::Ost, i), format!("ost{i}"))));
    list
}

#[allow(clippy::too_many_arguments, reason = "what `up` is made of, once")]
fn start(
    args: &UpArgs,
    process: &mut Process,
    talk: &Talk,
    mount: &Path,
    dir: Option<&Path>,
    fs: &FsName,
    marker: Option<&Marker>,
    osts: u32,
) -> Result<Mounted> {
    // The address is stable while the data is: another mount finds it again after a restart.
    let socket = dir.map_or_else(|| process.socket.clone(), |d| serve::socket_in(d, &process.socket));
    let mut addresses = vec![format!("unix:{}", socket.display())];
    let list = targets(fs, osts);
    // The stores first: their locks say who else has them.
    let mut all = Vec::new();
    for (name, sub) in &list {
        talk.service(&name.to_string(), "opening");
        all.push(match dir {
            None => {
                let store = store::memory();
                store::format(&store, name, &addresses, false)?;
                Served { name: name.clone(), store, mgs_nodes: Vec::new(), place: None }
            }
            Some(dir) => {
                let complete = marker.is_some_and(|m| m.complete);
                open_or_format(&dir.join(sub), name, &addresses, complete)?
            }
        });
    }
    if let (Some(dir), Some(marker)) = (dir, marker.filter(|m| !m.complete)) {
        Marker { fsname: marker.fsname.clone(), osts: marker.osts, complete: true }.write(dir)?;
    }
    if socket != process.socket {
        // Whoever holds the stores holds the socket: an old one is a dead one.
        process.node.listen(&addresses[0].parse::<nacre_net::Address>()?)?;
    }
    if let Some(text) = &args.listen {
        addresses.push(process.node.listen(&text.parse::<nacre_net::Address>()?.absolute()?)?.to_string());
    }
    for served in all {
        // Where the MGS is follows from where this process listens now, not from the label of a moved directory.
        let served = Served { mgs_nodes: addresses.clone(), ..served };
        talk.service(&served.name.to_string(), "starting");
        process.serve(&served, &addresses)?;
    }
    for (name, _) in &list {
        process.wait_ready(&name.to_string(), Duration::from_secs(120))?;
        talk.service(&name.to_string(), "up");
    }
    // A target that is refused ends here, before anything is mounted.
    wait_for_osts(process, fs, osts)?;
    talk.service(&mount.display().to_string(), "mounting");
    let mounted = mount::attach(
        process,
        &addresses[..1],
        fs,
        mount,
        &args.mount_options()?,
        mount::Patience::default(),
    )?;
    process.register(ProcessKind::Up, Some(fs.as_str()), std::slice::from_ref(&mounted.dir), &[])?;
    talk.service(&mount.display().to_string(), "mounted");
    Ok(mounted)
}

/// Waits until the MDT can place files on every OST, so that the first file has the layout that was asked for. One that
/// is full, or late, is not waited for: new files do without it.
fn wait_for_osts(process: &Process, fs: &FsName, osts: u32) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let mdt = TargetName::Of { fs: fs.clone(), kind: TargetKind::Mdt, index: 0 }.to_string();
    let mut tool = Tool::connect(&process.socket, &mdt, tool::PATIENCE)?;
    let asked = GetParams { pattern: format!("mdt.{mdt}.ost_room.*") };
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
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

/// `complete`: the target was there once.
fn open_or_format(dir: &Path, name: &TargetName, mgs: &[String], complete: bool) -> Result<Served> {
    if !dir.join("super").exists() {
        ensure!(
            !complete,
            "{name} is missing: {} holds a part of the file system and is not there (or has lost its file `super`)\n\
             hint: put it back; or begin anew with nacre destroy",
            dir.display()
        );
        // New, or left half made by an `up` that was ended.
        let store = store::format_dir(dir, false)?;
        store::format(&store, name, mgs, false)?;
        return Ok(Served {
            name: name.clone(),
            store,
            mgs_nodes: mgs.to_vec(),
            place: Some(dir.to_path_buf()),
        });
    }
    let served = process::open_target(dir)?;
    if served.name != *name {
        bail!(
            "{} holds {}, not {name}\nhint: nacre status; is it the right --dir?",
            dir.display(),
            served.name
        );
    }
    Ok(served)
}

fn banner(talk: &Talk, process: &Process, mounted: &Mounted, dir: Option<&Path>, log: &Path, fs: &FsName) {
    // The mount is there a moment before it has found the object targets.
    let mut looks = (0..40).map(|n| {
        process::pause(Duration::from_millis(if n == 0 { 0 } else { 50 }));
        rustix::fs::statvfs(&mounted.dir).ok()
    });
    let space = looks.find(|space| space.as_ref().is_none_or(|s| s.f_blocks > 0)).flatten();
    let capacity = space.map_or_else(
        || "unknown".into(),
        |s| {
            let unit = s.f_frsize;
            format!(
                "{} available of {}",
                output::human_bytes(s.f_bavail * unit),
                output::human_bytes(s.f_blocks * unit)
            )
        },
    );
    let names: Vec<_> = process.node.islands().iter().map(|i| i.name().to_owned()).collect();
    let targets: Vec<_> =
        names.iter().filter(|n| TargetName::parse(n).is_some()).map(String::as_str).collect();
    let data = dir.map_or_else(|| "in memory: gone when it stops".into(), |d| d.display().to_string());
    let down = if talk.is_detached() { "nacre down" } else { "Ctrl-C (or nacre down)" };
    talk.line(&format!("\nfile system {fs} is mounted on {}", mounted.dir.display()));
    talk.line(&format!("  capacity       {capacity}"));
    const SHOWN_MAX: usize = 8;
    let targets = match targets.as_slice() {
        [first, .., last] if targets.len() > SHOWN_MAX => format!("{} from {first} to {last}", targets.len()),
        all => all.join(", "),
    };
    talk.line(&format!("  targets        {targets}"));
    talk.line(&format!("  data           {data}"));
    talk.line(&format!("  log            {}", log.display()));
    talk.line(&format!("  mount another: nacre mount {}:/{fs} DIR", mounted.address));
    if let Some(hint) = mounted.hint() {
        talk.line(&format!("  {hint}"));
    }
    talk.line("  no authentication yet: whoever can reach this address can read and write everything");
    talk.line(&format!(
        "next: copy something to {}, nacre status, nacre lfs df -h; stop: {down}",
        mounted.dir.display()
    ));
}

#[cfg(test)]
mod tests {
    use super::new_name;

    #[test]
    fn a_new_file_system_has_a_name_of_its_own() {
        let name = |place: &str, taken: &[&str]| {
            let taken = taken.iter().map(ToString::to_string).collect();
            new_name(place, &taken).unwrap().to_string()
        };
        assert_eq!(name("data", &[]), "nacre");
        assert_eq!(name("data", &["nacre"]), "data");
        assert_eq!(name("data", &["nacre", "data"]), "data2");
        assert_eq!(name("a long name", &["nacre"]), "alongnam");
        assert_eq!(name("a long name", &["nacre", "alongnam"]), "alongna2");
        assert_eq!(name("nacre", &["nacre"]), "nacre2");
        for odd in ["", "ü", "--", "/"] {
            assert_eq!(name(odd, &["nacre"]), "nacre2", "{odd:?}");
        }
        assert_eq!(name("a-b-c-d-e", &["nacre"]), "a-b-c-d");
    }
}
