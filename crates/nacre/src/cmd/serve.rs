//! `nacre serve`: a server process with any number of targets.

use crate::output::{self, log};
use crate::process::connections::ConnectionArgs;
use crate::process::islands::Process;
use crate::process::metrics::MetricsArgs;
use crate::process::registry::ProcessKind;
use crate::process::signals::{Signals, Woken};
use crate::process::target_dir::{self, Served};
use crate::process::{self, addresses, data_dir, kept_log, store, takeover};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nacre_net::{Address, NetError};
use nacre_osd_fs::OpenError;
use nacre_rt::RtError;
use nacre_types::{TargetKind, TargetName};
use nacre_wire::params::TargetParam;
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(clap::Args, Debug)]
#[command(
    about = "Serve formatted targets",
    long_about = "Serve formatted targets until Ctrl-C or SIGTERM.\n\
        \n\
        One process serves any number of targets. The servers of a file system may run on any\n\
        number of hosts and start in any order: they wait for those that are not up yet. A\n\
        target that is already served is refused; the message names the process. Stopping or\n\
        killing a server loses no acknowledged change: clients wait and continue when it is\n\
        back.",
    after_help = "Examples:\n\
        \x20 nacre serve /data/mgs /data/mdt0 --listen 10.0.0.1:9988\n\
        \x20 nacre serve /data/ost0 --listen 0.0.0.0:9988 --advertise 10.0.0.2:9988\n\
        \n\
        There is no authentication yet: everyone who reaches the address can read and write\n\
        everything."
)]
pub(crate) struct ServeArgs {
    /// Formatted target directories; `mem:NAME[,MGS-ADDRESS]` makes a target in memory
    #[arg(required = true, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    targets: Vec<String>,
    /// Listen on TCP at this address. Without it only a unix socket in the first target's directory is served:
    /// there is no authentication yet
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Address that clients use, if it differs from --listen
    #[arg(long, value_name = "ADDR:PORT", requires = "listen")]
    advertise: Option<String>,
    /// End the process on this host that serves the targets now (a process that hangs, or is stopped by a signal)
    #[arg(long)]
    takeover: bool,
    /// Time for which a silent client keeps its locks and opens, and the longest time that a recovery waits for one
    #[arg(long, value_name = "SECONDS", default_value_t = default_lease(), value_parser = lease)]
    lease: f64,
    #[command(flatten)]
    connections: ConnectionArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

fn default_lease() -> f64 {
    f64::from(TargetParam::LeaseMs.row().default_u32()) / 1000.0
}

fn lease(text: &str) -> Result<f64, String> {
    let (least_ms, most_ms) = TargetParam::LeaseMs.row().range();
    let (least, most) = (least_ms as f64 / 1000.0, most_ms as f64 / 1000.0);
    match text.parse() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("a number of seconds from {least} to {most} is wanted")),
    }
}

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    log::init(None)?;
    let mut signals = Signals::catch()?;
    if args.takeover {
        for dir in args.targets.iter().filter(|t| !t.starts_with("mem:")) {
            takeover::take_over(Path::new(dir))?;
        }
    }
    let served = args.targets.iter().map(|t| target(t)).collect::<Result<Vec<_>>>()?;
    let mut process = Process::start_with(ProcessKind::Serve, args.connections.config())?;
    let metrics = args.metrics.serve(process.node(), process.socket())?;
    process.set_lease(Duration::from_secs_f64(args.lease));
    let addresses = listen(&process, args, &served)?;
    for target in &served {
        process.serve(target, &addresses)?;
    }
    let fs = served.iter().find_map(|s| match &s.name {
        TargetName::Of { fs, .. } => Some(fs.to_string()),
        TargetName::Mgs => None,
    });
    process.register(ProcessKind::Serve, fs.as_deref(), &[], &[])?;
    for target in &served {
        let ready = process.wait_ready(&target.name.to_string(), Duration::from_secs(60));
        if process.is_refused(&target.name.to_string()) {
            continue;
        }
        ready?;
        output::line(&format!("serving {} at {}", target.name, addresses.join(", ")));
    }
    let elsewhere = served.iter().find(|s| s.name != TargetName::Mgs);
    if let Some(target) = elsewhere.filter(|_| served.iter().all(|s| s.name != TargetName::Mgs)) {
        output::line(&format!(
            "registering with the MGS at {} once it replies",
            target.mgs_nodes.join(" or ")
        ));
    }
    if served.iter().any(|s| s.name.kind() == TargetKind::Mgs) {
        let fs = fs.as_deref().unwrap_or("FS");
        output::line(&format!("mount with: nacre mount {}:/{fs} DIR", addresses[0]));
    }
    if let Some(text) = metrics {
        output::line(&text);
    }
    // A supervisor that waits for it (systemd's Type=notify) starts what depends on the targets.
    drop(sd_notify::notify(&[sd_notify::NotifyState::Ready]));
    if args.listen.is_some() {
        output::line("no authentication yet: everyone who reaches the address can read and write everything");
    }
    while signals.wait() == Woken::Inside {
        if let Err(lost) = process.check_lost() {
            return Err(process.fail(lost));
        }
        process.register(ProcessKind::Serve, fs.as_deref(), &[], &[])?;
    }
    drop(sd_notify::notify(&[sd_notify::NotifyState::Stopping]));
    output::note("stopping");
    process.stop(&mut signals)
}

/// Writes of a killed `up` must be executed before its targets are served in another way, and not after that.
fn check_nothing_is_left(dir: &Path) -> Result<()> {
    let Some(data) = dir.parent().filter(|data| data_dir::is_data_dir(data)) else { return Ok(()) };
    ensure!(
        !kept_log::has_left_writes(data)?,
        "{}: the `nacre up` of this data directory was killed, and the log of its mount has writes that its OSTs do not have\n\
         hint: start and stop it once: nacre up --dir {}",
        dir.display(),
        data.display()
    );
    Ok(())
}

/// `DIR`, or `mem:NAME[,MGS]`.
fn target(text: &str) -> Result<Served> {
    let Some(rest) = text.strip_prefix("mem:") else {
        check_nothing_is_left(Path::new(text))?;
        let opened = target_dir::open(Path::new(text));
        return opened.map_err(|error| match error.downcast_ref() {
            Some(OpenError::Busy { holder, .. }) => match takeover::hint(holder) {
                Ok(hint) => anyhow!("{error}\n{hint}"),
                Err(unknown) => unknown,
            },
            _ => error,
        });
    };
    let mut parts = rest.split(',');
    let name = parts.next().unwrap_or_default();
    let name = TargetName::parse(name)
        .with_context(|| format!("{name:?} is no target name\nhint: MGS, demo-MDT0000 to demo-MDT03ff, demo-OST0000 to demo-OSTffff"))?;
    let mgs_nodes = parts.map(addresses::shared_address).collect::<Result<Vec<String>>>()?;
    ensure!(
        name == TargetName::Mgs || !mgs_nodes.is_empty(),
        "mem:{name} needs the address of its MGS\nhint: mem:{name},HOST:9988"
    );
    let store = store::memory();
    store::format(&store, &name, &mgs_nodes, false)?;
    Ok(Served { name, store, mgs_nodes, place: None })
}

/// Listens; the addresses under which the targets register.
fn listen(process: &Process, args: &ServeArgs, served: &[Served]) -> Result<Vec<String>> {
    if let Some(text) = &args.listen {
        let advertise = args.advertise.as_deref().map(addresses::shared_address).transpose()?;
        let bound = bind(process, &text.parse::<Address>()?.absolute()?)?.to_string();
        let shown = advertise.unwrap_or(bound);
        if shown.starts_with("0.0.0.0") || shown.starts_with("[::]") {
            bail!(
                "{shown} is no address that others can use\nhint: --listen with a real one, or --advertise HOST:PORT"
            );
        }
        return Ok(vec![shown]);
    }
    let socket = match served.iter().find_map(|s| s.place.as_deref()) {
        Some(dir) => addresses::socket_in(dir, process.socket()),
        None => process.socket().to_owned(),
    };
    let address = format!("unix:{}", socket.display());
    if socket != process.socket() {
        bind(process, &address.parse()?)?;
    }
    Ok(vec![address])
}

/// Listens; a server that was killed a moment ago may have the address still.
fn bind(process: &Process, address: &Address) -> Result<Address> {
    const DYING_MAX: Duration = Duration::from_secs(2);
    let until = Instant::now() + DYING_MAX;
    loop {
        match process.node().listen(address) {
            Err(RtError::Net(NetError::InUse { .. })) if Instant::now() < until => {
                process::pause(Duration::from_millis(20));
            }
            bound => return Ok(bound?),
        }
    }
}
