//! `nacre status`: processes, targets and mounts of this machine.

use crate::cmd::scrub;
use crate::output;
use crate::process::data_dir;
use crate::process::registry::{self, ProcessEntry, ProcessKind};
use crate::query::filesystems;
use crate::query::filesystems::FileSystems;
use crate::query::tool::{self, TimeoutArgs, Tool, Unreachable};
use anyhow::Result;
use nacre_types::{TargetKind, TargetName};
use nacre_wire::target::{GetParams, Param, Ping, Statfs, StatfsReply};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args, Debug)]
#[command(
    about = "Show the nacre processes, targets and mounts of this machine",
    long_about = "Show the nacre processes of this machine with their targets and mounts.\n\
        \n\
        `size` and `available` are those of the target's device: targets that share\n\
        a device show the same space. `objects` counts the inodes of an MDT and the objects\n\
        of an OST. Lines below the table give the reason of each state,\n\
        and damage that a scrub has found.\n\
        \n\
        State:\n\
        \x20 up             the target or mount replies\n\
        \x20 degraded       the mount replies, but has no connection to one of its servers\n\
        \x20 no reply       the process runs but did not reply in time: it is stopped or very busy\n\
        \x20 down           the process ended without a planned stop: the target or mount is not served\n\
        \x20 refused        another target has this name, or this one is an old copy: it is not served\n\
        \x20 no permission  this user may not ask the process (run `status` as the user who started it)",
    after_help = "Exit status:\n\
        \x20 0  healthy: everything is up, or nothing runs here\n\
        \x20 1  failed, or the output was lost\n\
        \x20 2  wrong usage\n\
        \x20 3  something is not up\n\
        \x20 4  nothing is up: no reply from anything that runs here, or no permission to ask\n\
        \n\
        Examples:\n\
        \x20 nacre status\n\
        \x20 nacre status --json --timeout 1"
)]
pub(crate) struct StatusArgs {
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    timeout: TimeoutArgs,
}

/// Exit statuses.
const DEGRADED: u8 = 3;
const UNREACHABLE: u8 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum State {
    #[serde(rename = "up")]
    Up,
    #[serde(rename = "degraded")]
    Degraded,
    #[serde(rename = "no reply")]
    Silent,
    #[serde(rename = "down")]
    Down,
    #[serde(rename = "refused")]
    Refused,
    #[serde(rename = "no permission")]
    Forbidden,
}
impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Degraded => "degraded",
            Self::Silent => "no reply",
            Self::Down => "down",
            Self::Refused => "refused",
            Self::Forbidden => "no permission",
        }
    }
    fn of(error: &anyhow::Error) -> Self {
        match tool::why_unreachable(error) {
            Unreachable::Silent => Self::Silent,
            Unreachable::Forbidden => Self::Forbidden,
            Unreachable::Down => Self::Down,
        }
    }
}

#[derive(Serialize)]
struct Island {
    name: String,
    state: State,
    /// Why it is not up, or what is wrong although it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_avail: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files_used: Option<u64>,
}
impl Island {
    fn new(name: &str, state: State, reasons: Vec<String>) -> Self {
        Self { name: name.into(), state, reasons, bytes_total: None, bytes_avail: None, files_used: None }
    }
    fn with(mut self, space: &StatfsReply) -> Self {
        self.bytes_total = Some(space.bytes_total);
        self.bytes_avail = Some(space.bytes_avail);
        self.files_used = Some(space.files_used);
        self
    }
}

#[derive(Serialize)]
struct Process {
    #[serde(flatten)]
    entry: ProcessEntry,
    state: Vec<Island>,
}

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let (entries, fallen) = registry::with_fallen()?;
    let states = tool::ask_all(&entries, |entry, name| island(entry, name, args.timeout));
    let all = FileSystems::new(entries.clone());
    let processes: Vec<Process> = entries
        .into_iter()
        .zip(states)
        .map(|(entry, mut state)| {
            let refused = entry.refused.iter();
            state.extend(refused.map(|(name, why)| Island::new(name, State::Refused, vec![why.clone()])));
            Process { entry, state }
        })
        .chain(fallen.into_iter().map(down))
        .collect();
    if args.json {
        output::json(&processes)?;
    } else if processes.is_empty() {
        output::line("nothing runs on this machine\nhint: nacre up /mnt/nacre");
    } else {
        table(&processes);
        notes(&processes, &all);
    }
    Ok(exit_status(&processes))
}

fn exit_status(processes: &[Process]) -> ExitCode {
    let mut states = processes.iter().flat_map(|p| &p.state).map(|island| island.state);
    let is_up = |state| matches!(state, State::Up | State::Degraded);
    match (states.clone().all(|state| state == State::Up), states.any(is_up)) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(DEGRADED),
        (false, false) => ExitCode::from(UNREACHABLE),
    }
}

fn table(processes: &[Process]) {
    let mut table = output::Table::new(&["pid", "kind", "name", "state", "size", "available", "objects"]);
    let text = |v: Option<u64>| v.map(output::human_bytes).unwrap_or_else(|| "-".into());
    for p in processes {
        for i in &p.state {
            table.row(vec![
                p.entry.pid.to_string(),
                format!("{:?}", p.entry.kind).to_lowercase(),
                i.name.clone(),
                i.state.name().into(),
                text(i.bytes_total),
                text(i.bytes_avail),
                i.files_used.map_or("-".into(), |n| n.to_string()),
            ]);
        }
    }
    table.print();
}

/// Reasons, mounts, and names that two file systems share.
fn notes(processes: &[Process], all: &FileSystems) {
    for p in processes {
        let mut told: Vec<&String> = Vec::new();
        for island in &p.state {
            for reason in island.reasons.iter() {
                if !told.contains(&reason) {
                    output::line(reason);
                    told.push(reason);
                }
            }
        }
    }
    for p in processes {
        let mut names = p.state.iter().filter(|i| TargetName::parse(&i.name).is_none());
        for mount in &p.entry.mounts {
            let (name, pid) = (names.next().map_or("", |island| &island.name), p.entry.pid);
            let fs = filesystems::name_of(name).unwrap_or_default();
            output::line(&format!("mounted: {} ({fs}, {name}, pid {pid})", mount.display()));
        }
    }
    let mut names: Vec<_> = all.all().into_iter().filter_map(|fs| fs.name().map(str::to_owned)).collect();
    names.dedup();
    for name in names {
        let same = all.named(&name);
        if same.len() > 1 {
            let list: Vec<_> = same.iter().map(|fs| format!("\n  {}", all.describe(fs))).collect();
            output::line(&format!("{} file systems are named {name}:{}", same.len(), list.concat()));
        }
    }
}

/// A process that ended without stopping its targets: no process serves them, though their directories exist, nor its mounts,
/// which the kernel keeps until they are unmounted.
fn down(mut entry: ProcessEntry) -> Process {
    let has_targets = entry.targets.iter().any(|dir| registry::is_there(dir));
    let mounts = std::mem::take(&mut entry.mounts);
    let is_target = |name: &String| TargetName::parse(name).is_some();
    entry.islands.retain(|name| if is_target(name) { has_targets } else { !mounts.is_empty() });
    let (how, why) = match &entry.failure {
        Some(why) => ("failed", format!(": {why}")),
        None => ("ended without a planned stop", String::new()),
    };
    let ended = format!("down: its process {how} (pid {})", entry.pid);
    let again = |point: Option<&PathBuf>| up_again(&entry, point).map(|command| format!("\nhint: {command}"));
    let hint = if mounts.is_empty() { again(None).unwrap_or_default() } else { String::new() };
    let why = format!("{ended}{why}{hint}");
    let left = |point: &PathBuf| {
        let hint = again(Some(point)).or_else(|| mount_again(&entry, point));
        let hint = hint.map_or("\nhint: ".to_owned(), |hint| format!("{hint}; or "));
        let point = output::name(point);
        format!(
            "{ended}: {point} gives \"Transport endpoint is not connected\"{hint}nacre umount --lazy {point}"
        )
    };
    let state = |name: &String| {
        let mut reasons: Vec<String> =
            if is_target(name) { Vec::new() } else { mounts.iter().map(left).collect() };
        if reasons.is_empty() || why != ended {
            reasons.insert(0, why.clone());
        }
        Island::new(name, State::Down, reasons)
    };
    Process { state: entry.islands.iter().map(state).collect(), entry }
}

/// The command whose mount takes the place of a dead one. Programs never see the directory below it.
fn mount_again(entry: &ProcessEntry, point: &Path) -> Option<String> {
    let (root, source) =
        nacre_fuse::mount_of(point).filter(|(root, _)| entry.kind == ProcessKind::Mount && root == point)?;
    Some(format!("\nhint: nacre mount {source} {}", output::name(&root)))
}

/// The command that serves the targets of an `up` again, as far as it is known.
fn up_again(entry: &ProcessEntry, mount: Option<&PathBuf>) -> Option<String> {
    let is_left = |dir: &&PathBuf| entry.kind == ProcessKind::Up && registry::is_there(dir);
    let data = entry.targets.iter().find(is_left).and_then(|dir| dir.parent())?;
    let is_default = |mount: &PathBuf| data_dir::default_dir(mount).is_ok_and(|dir| dir == data);
    let dir = match mount.is_some_and(is_default) {
        true => String::new(),
        false => format!(" --dir {}", output::name(data)),
    };
    let mended = if entry.failure.is_some() { "mend the cause, then " } else { "" };
    let mount = output::name(mount.map_or(Path::new("MOUNT"), PathBuf::as_path));
    Some(format!("{mended}nacre up {mount}{dir}"))
}

fn island(entry: &ProcessEntry, name: &str, timeout: TimeoutArgs) -> Island {
    ask(entry, name, timeout).unwrap_or_else(|error| {
        let state = State::of(&error);
        let reason = match state {
            State::Silent => format!(
                "no reply: the process may be stopped or busy (pid {}); asked for {} s",
                entry.pid,
                timeout.limit().as_secs()
            ),
            State::Forbidden => format!("no permission (pid {}): {error:#}", entry.pid),
            _ => format!("{error:#}"),
        };
        Island::new(name, state, vec![reason])
    })
}

fn ask(entry: &ProcessEntry, name: &str, timeout: TimeoutArgs) -> Result<Island> {
    let mut tool = Tool::connect(&entry.socket, name, timeout.limit())?;
    let up = |reasons: Vec<String>| {
        Island::new(name, if reasons.is_empty() { State::Up } else { State::Degraded }, reasons)
    };
    match TargetName::parse(name).map(|target| target.kind()) {
        None => {
            let params = tool.call(&GetParams { pattern: "*.*.import".into() })?.params;
            Ok(up(params.iter().filter_map(|import| missing(name, import)).collect()))
        }
        Some(TargetKind::Mgs) => tool.call(&Ping {}).map(|_| up(Vec::new())),
        Some(TargetKind::Mdt | TargetKind::Ost) => match tool.call(&Statfs {}) {
            Ok(space) => {
                let mut island = up(Vec::new()).with(&space);
                island.reasons.extend(damage(&mut tool, name));
                Ok(island)
            }
            Err(error) if tool::why_unreachable(&error) == Unreachable::Silent => Err(error),
            // It says that it cannot tell.
            Err(_) => tool.call(&Ping {}).map(|_| up(Vec::new())),
        },
    }
}

/// The damage that the latest scrub of an OST has found, which serves all the same.
fn damage(tool: &mut Tool, name: &str) -> Option<String> {
    let is_ost = TargetName::parse(name)?.kind() == TargetKind::Ost;
    let places = if is_ost { scrub::damaged_places(tool, name).ok()? } else { 0 };
    (places > 0).then(|| {
        let s = if places == 1 { "" } else { "s" };
        format!("damaged: the scrub of {name} has found {places} damaged place{s}\nhint: nacre scrub status")
    })
}

/// Why a mount has no connection to a server, if so.
fn missing(mount: &str, import: &Param) -> Option<String> {
    let value = |key: &str| {
        let find =
            |line: &str| line.trim().strip_prefix(key).map(|text| text.trim_matches([' ', '"']).to_owned());
        import.value.lines().find_map(find)
    };
    let state = value("state:").filter(|state| state != "FULL")?;
    let target = value("target:").unwrap_or_default();
    let target = target.strip_suffix("_UUID").unwrap_or(&target);
    let why = value("last_error:").map(|error| format!(": {error}")).unwrap_or_default();
    Some(format!("degraded: {mount} has no connection to {target} ({state}){why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_import_of_a_mount_says_which_server_is_missing() {
        let import = |state: &str, error: &str| Param {
            name: "osc.d-OST0000-osc-1.import".into(),
            value: format!("import:\n    name: n\n    target: d-OST0000_UUID\n    state: {state}\n{error}"),
            writable: false,
            help: String::new(),
        };
        assert_eq!(missing("d-1", &import("FULL", "")), None);
        assert_eq!(
            missing("d-1", &import("DISCONN", "       last_error: \"no route\"\n")).as_deref(),
            Some("degraded: d-1 has no connection to d-OST0000 (DISCONN): no route")
        );
    }
}
