//! `nacre mount`: a process that serves one mount.

use crate::cmd::remount;
use crate::output::log;
use crate::process::detach::{self, Talk};
use crate::process::islands::Process;
use crate::process::metrics::MetricsArgs;
use crate::process::mount_options::OptionArgs;
use crate::process::mounted::{self, Keeping, WaitLimits};
use crate::process::registry::{self, ProcessKind, RunLog};
use crate::process::signals::Signals;
use crate::process::{addresses, data_dir};
use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args, Debug)]
#[command(
    about = "Mount a file system",
    long_about = "Mount a file system.\n\
        \n\
        ADDRESS is that of the management target (MGS): HOST[:PORT], or unix:PATH on the\n\
        same machine. The process serves the mount until it is unmounted, or until\n\
        Ctrl-C. The command waits for servers until --timeout has passed, or until Ctrl-C.\n\
        Once the file system is mounted, calls wait for servers without a limit.",
    after_help = "Examples:\n\
        \x20 nacre mount 10.0.0.1:9988:/demo /mnt/demo\n\
        \x20 nacre mount unix:/var/lib/nacre/mnt-nacre/nacre.sock:/nacre /mnt/b -o ro --detach\n\
        \x20 nacre mount 10.0.0.1:9988:/demo /mnt/demo -o remount,ro    also: mount -o remount,ro /mnt/demo"
)]
pub(crate) struct MountArgs {
    /// File system to mount: HOST[:PORT]:/FS or unix:PATH:/FS
    #[arg(value_name = "ADDRESS:/FS")]
    source: String,
    /// Mount point
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

pub(crate) fn run(args: &MountArgs) -> Result<()> {
    let (address, fs) = addresses::parse_source(&args.source)?;
    let dir = data_dir::absolute(&args.dir)?;
    if let Some(words) = args.options.remount() {
        return remount::run(&dir, &fs, &words);
    }
    let options = args.options.parse(false)?;
    if args.detach && !args.child.is_child() {
        return detach::spawn();
    }
    registry::run_dir()?;
    let mount_point = mounted::prepare(&dir, &options)?;
    args.child.detach()?;
    let mut run_log = RunLog::new()?;
    log::init(args.child.is_child().then_some(run_log.path()))?;
    let talk = Talk::new(&args.child);
    let mut signals = Signals::catch()?;
    let mut process = Process::start(ProcessKind::Mount)?;
    let metrics = args.metrics.serve(process.node(), process.socket())?;
    const DETACHED: u64 = 60;
    let limit = args.timeout.or(args.detach.then_some(DETACHED)).map(Duration::from_secs);
    talk.service(&args.source, "connecting");
    let mounted = mounted::attach(
        &process,
        &[address],
        &fs,
        &dir,
        &options,
        Keeping::InMemory,
        WaitLimits { signals: Some(&mut signals), limit },
    )?;
    mount_point.keep();
    let mgs = [mounted.address().to_owned()];
    process.register(ProcessKind::Mount, Some(fs.as_str()), &[mounted.dir().to_owned()], &mgs)?;
    run_log.keep();
    talk.line(&format!("\nfile system {fs} is mounted on {}", mounted.dir().display()));
    if args.child.is_child() {
        talk.line(&format!("  log  {}", run_log.path().display()));
    }
    if let Some(text) = &metrics {
        talk.line(&format!("  {text}"));
    }
    if let Some(hint) = mounted.hint() {
        talk.line(&format!("  {hint}"));
    }
    talk.line(&format!("next: nacre lfs df -h {0}; stop: nacre umount {0}", mounted.dir().display()));
    talk.done();
    match mounted.serve(&mut signals, &process)? {
        Ok(()) => process.stop(&mut signals),
        Err(lost) => Err(process.fail(lost)),
    }
}
