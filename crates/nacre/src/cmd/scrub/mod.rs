//! `nacre scrub`: compares the data of running OSTs with its checksums, and names damaged files.
//!
//! The OSTs do the work (`nacre-osd/src/maintenance/scrub.rs`) and show it as a parameter ([`pass`]). This folder starts
//! and stops it on all OSTs of a file system that run on this machine, waits for it, and finds the paths ([`names`]).

mod names;
mod pass;

use crate::output;
use crate::process::registry::ProcessEntry;
use crate::process::{self, registry};
use crate::query::filesystems::{FileSystems, ScopeArgs};
use crate::query::tool::{self, TimeoutArgs, Tool};
use anyhow::{Context as _, Result, bail, ensure};
use nacre_types::{TargetKind, TargetName};
use nacre_wire::target::{GetParams, SetParam};
use names::Names;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Between two looks at the progress.
const LOOK: Duration = Duration::from_millis(250);

#[derive(clap::Args, Debug)]
#[command(
    about = "Compare the data of running OSTs with its checksums, and name damaged files",
    long_about = "Compare the data of running OSTs with its checksums, and name damaged files.\n\
        \n\
        Disks lose and change bytes silently. A read of such bytes fails with EIO, but nobody may read\n\
        them for years. A scrub reads everything that the OSTs hold, in the background and from the\n\
        device, so that damage is found while there is still a copy elsewhere. It changes nothing and\n\
        can run while the file system is used.\n\
        \n\
        It applies to the OSTs of one file system that run on this machine; run it on each host that\n\
        serves OSTs. `start` (the default) begins a pass, unless one runs; with --wait the command ends\n\
        with the pass, and without it (or after ^C) the pass goes on without the command. `status` shows\n\
        the latest pass. A restart of an OST forgets it; the log keeps what it has found.\n\
        \n\
        A pass reads at most 50 MiB/s on each OST (`nacre lctl set_param obdfilter.*.scrub_rate_mb=N`;\n\
        0: no limit). Metadata is stored twice and repaired when it is read; `nacre check` verifies all\n\
        of it on stopped targets.\n\
        \n\
        What to do with a damaged file: write it again from a copy, or remove it. Its other bytes can\n\
        still be read.",
    after_help = "Exit status: 0 no damage (start without --wait: it runs); 1 damage was found, or a pass did not come\n\
        to its end; 2 wrong usage.\n\
        \n\
        Examples:\n\
        \x20 nacre scrub --wait                      a whole pass, then damaged files\n\
        \x20 nacre scrub start --fs /mnt/nacre       in the background\n\
        \x20 nacre scrub status --json"
)]
pub(crate) struct ScrubArgs {
    #[arg(value_enum, default_value_t = Action::Start)]
    action: Action,
    /// Wait for the end of the pass, and show what it has found
    #[arg(long)]
    wait: bool,
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    scope: ScopeArgs,
    #[command(flatten)]
    timeout: TimeoutArgs,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// Begin a pass
    Start,
    /// End the pass that runs
    Stop,
    /// Show the latest pass
    Status,
}

/// The latest pass of an OST: a plain record, in JSON with these keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Pass {
    /// `none`, `running`, `stopped`, `finished` or `failed`.
    state: String,
    /// Seconds since 1970.
    started: u64,
    /// 0: it runs.
    ended: u64,
    objects: u64,
    objects_total: u64,
    bytes: u64,
    bytes_total: u64,
    verified_bytes: u64,
    unverified_regions: u64,
    damaged_places: u64,
    damaged_bytes: u64,
    /// The first places.
    damage: Vec<Place>,
}

/// Damaged bytes of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
struct Place {
    /// Of the file, in brackets.
    fid: String,
    stripe: u64,
    from: u64,
    to: u64,
    /// `checksum`, `lost`, `unreadable`, `quarantined` or `rows`.
    kind: String,
}

/// One OST in the output.
#[derive(Serialize)]
struct Shown {
    target: String,
    #[serde(flatten)]
    pass: Pass,
    /// Damaged files by name.
    files: Vec<DamagedFile>,
    #[serde(skip)]
    mount: Option<PathBuf>,
}
#[derive(Serialize)]
struct DamagedFile {
    fid: String,
    /// Empty: none is known.
    paths: Vec<String>,
}

/// The OSTs that a command applies to.
struct Osts {
    all: FileSystems,
    /// Number of the process, name, and a mount of the file system on this machine.
    chosen: Vec<(usize, String, Option<PathBuf>)>,
    timeout: TimeoutArgs,
}

pub(crate) fn run(args: &ScrubArgs) -> Result<()> {
    let osts = Osts::choose(&args.scope, args.timeout)?;
    let word = match args.action {
        Action::Start => Some("start"),
        Action::Stop => Some("stop"),
        Action::Status => None,
    };
    if let Some(word) = word {
        osts.ask(|tool, name| request(tool, name, word))?;
    }
    let mut shown = if args.wait { osts.wait()? } else { osts.look()? };
    let mut names = Names::default();
    shown.iter_mut().for_each(|ost| ost.find_files(&mut names, args.timeout.limit()));
    if args.json {
        output::json(&shown)?;
    } else {
        print(&shown);
    }
    verdict(&shown, args.wait, args.action)
}

/// Fails if there is damage, or if a pass has not come to its end.
fn verdict(shown: &[Shown], waited: bool, action: Action) -> Result<()> {
    let places: u64 = shown.iter().map(|ost| ost.pass.damaged_places).sum();
    if places > 0 && (waited || action == Action::Status) {
        let s = if places == 1 { "" } else { "s" };
        bail!(
            "{places} damaged place{s} found\nhint: write each file again from a copy (bytes that are overwritten are \
             well again), or remove it; then run `nacre scrub --wait` again"
        );
    }
    let unfinished: Vec<&str> =
        shown.iter().filter(|ost| ost.pass.state != "finished").map(|ost| ost.target.as_str()).collect();
    if waited && action == Action::Start && !unfinished.is_empty() {
        bail!(
            "the pass has not come to its end: {}\nhint: it was stopped, or the target was; the logs say more",
            unfinished.join(", ")
        );
    }
    Ok(())
}

fn is_ost(island: &str) -> bool {
    TargetName::parse(island).is_some_and(|name| name.kind() == TargetKind::Ost)
}
fn param_of(ost: &str) -> String {
    format!("obdfilter.{ost}.scrub")
}
fn request(tool: &mut Tool, ost: &str, word: &str) -> Result<()> {
    let reply = tool.call(&SetParam { name: param_of(ost), value: word.to_owned() })?;
    ensure!(reply.refused.is_empty(), "{}", reply.refused);
    Ok(())
}
/// The number of damaged places that the latest pass of an OST has found.
pub(crate) fn damaged_places(tool: &mut Tool, ost: &str) -> Result<u64> {
    Ok(pass_of(tool, ost)?.damaged_places)
}
fn pass_of(tool: &mut Tool, ost: &str) -> Result<Pass> {
    let params = tool.call(&GetParams { pattern: param_of(ost) })?.params;
    let param = params.first().with_context(|| format!("{ost} is of a version without scrubs"))?;
    Ok(Pass::parse(&param.value))
}

impl Osts {
    fn choose(scope: &ScopeArgs, timeout: TimeoutArgs) -> Result<Self> {
        let all = FileSystems::new(registry::entries()?);
        let islands = |index: usize, entry: &ProcessEntry| {
            let osts = entry.islands.iter().filter(|island| is_ost(island));
            osts.map(|island| (index, island.clone())).collect::<Vec<_>>()
        };
        let osts: Vec<(usize, String)> =
            all.entries().iter().enumerate().flat_map(|(index, entry)| islands(index, entry)).collect();
        let fits: BTreeSet<_> = osts.iter().map(|(index, island)| all.of(*index, island)).collect();
        let chosen = all.choose(scope, "`scrub` without --fs", fits)?;
        let mut found = Vec::new();
        for (index, island) in osts {
            let fs = all.of(index, &island);
            if chosen.as_ref().is_none_or(|chosen| fs.is_of(chosen)) {
                found.push((index, island, all.mounts(&fs).into_iter().next()));
            }
        }
        ensure!(
            !found.is_empty(),
            "no OST runs on this machine\nhint: run it on the hosts that serve OSTs (nacre status shows what runs here)"
        );
        all.announce(chosen.as_ref());
        Ok(Self { all, chosen: found, timeout })
    }

    /// Asks every OST, all at the same time; the first that does not reply is the error.
    fn ask<T: Send>(&self, question: impl Fn(&mut Tool, &str) -> Result<T> + Sync) -> Result<Vec<T>> {
        let one = |entry: &ProcessEntry, island: &str| {
            let is_meant = |(index, name, _): &&(usize, String, _)| {
                name == island && self.all.entries().get(*index).is_some_and(|e| e.pid == entry.pid)
            };
            self.chosen.iter().find(is_meant)?;
            let asked = Tool::connect(&entry.socket, island, self.timeout.limit());
            Some(asked.and_then(|mut tool| question(&mut tool, island)))
        };
        tool::ask_all(self.all.entries(), one).into_iter().flatten().flatten().collect()
    }

    fn look(&self) -> Result<Vec<Shown>> {
        let passes = self.ask(pass_of)?;
        let of = |(pass, (_, target, mount)): (Pass, &(usize, String, Option<PathBuf>))| Shown {
            target: target.clone(),
            pass,
            files: Vec::new(),
            mount: mount.clone(),
        };
        Ok(passes.into_iter().zip(&self.chosen).map(of).collect())
    }

    /// Until no pass runs.
    fn wait(&self) -> Result<Vec<Shown>> {
        let bar = output::progress_bytes("scrub");
        loop {
            let shown = self.look()?;
            bar.set_length(shown.iter().map(|ost| ost.pass.bytes_total).sum());
            bar.set_position(shown.iter().map(|ost| ost.pass.bytes).sum());
            if !shown.iter().any(|ost| ost.pass.is_running()) {
                bar.finish_and_clear();
                return Ok(shown);
            }
            process::pause(LOOK);
        }
    }
}

impl Shown {
    fn find_files(&mut self, names: &mut Names, limit: Duration) {
        let mut seen = BTreeSet::new();
        for Place { fid, .. } in &self.pass.damage {
            if !seen.insert(fid) {
                continue;
            }
            let paths = self.mount.as_deref().map(|mount| names.of(mount, fid, limit));
            self.files.push(DamagedFile { fid: fid.clone(), paths: paths.unwrap_or_default() });
        }
    }
}

fn print(shown: &[Shown]) {
    let mut table =
        output::Table::new(&["target", "state", "objects", "of", "bytes", "of", "seconds", "damaged"]);
    for Shown { target, pass, .. } in shown {
        let seconds = match pass.ended {
            0 => "-".to_owned(),
            ended => ended.saturating_sub(pass.started).to_string(),
        };
        table.row(vec![
            target.clone(),
            pass.state.clone(),
            pass.objects.to_string(),
            pass.objects_total.to_string(),
            output::human_bytes(pass.bytes),
            output::human_bytes(pass.bytes_total),
            seconds,
            pass.damaged_places.to_string(),
        ]);
    }
    table.print();
    for ost in shown {
        ost.print_damage();
    }
}

impl Shown {
    fn print_damage(&self) {
        for DamagedFile { fid, paths } in &self.files {
            match (paths.as_slice(), &self.mount) {
                ([], None) => output::line(&format!(
                    "{fid} (not mounted on this machine; where it is: nacre lfs fid2path MOUNT '{fid}')"
                )),
                ([], Some(_)) => {
                    output::line(&format!("{fid} (no path was found: it may be removed by now)"))
                }
                (paths, _) => paths.iter().for_each(|path| output::line(&output::name(path))),
            }
            for place in self.pass.damage.iter().filter(|place| place.fid == *fid) {
                output::line(&format!("  {}: {}", self.target, place.sentence()));
            }
        }
        let listed = self.pass.damage.len() as u64;
        if self.pass.damaged_places > listed {
            let more = self.pass.damaged_places - listed;
            output::line(&format!("{}: {more} more damaged places are only counted", self.target));
        }
        if self.pass.unverified_regions > 0 {
            output::line(&format!(
                "{}: {} regions were left out: their check after a crash has not ended; run the scrub again",
                self.target, self.pass.unverified_regions
            ));
        }
    }
}
