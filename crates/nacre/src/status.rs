//! `nacre status`: processes, targets and mounts of this machine.

use crate::registry::{self, Entry};
use crate::{say, tool};
use anyhow::Result;
use nacre_types::TargetKind;
use nacre_wire::target::{Ping, Statfs};
use serde::Serialize;

#[derive(clap::Args, Debug)]
#[command(
    about = "Show the nacre processes, targets and mounts of this machine",
    long_about = "Show the nacre processes of this machine with their targets and mounts.\n\
        \n\
        `size` and `available` are those of the device a target is on: targets that share\n\
        a device show the same space. `objects` counts the inodes of an MDT and the objects\n\
        of an OST.",
    after_help = "Examples:\n\
        \x20 nacre status\n\
        \x20 nacre status --json"
)]
pub(crate) struct StatusArgs {
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
}

const UP: &str = "up";
const SILENT: &str = "no answer";
const REFUSED: &str = "refused";

#[derive(Serialize)]
struct Island {
    name: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_avail: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files_used: Option<u64>,
}

#[derive(Serialize)]
struct Process {
    #[serde(flatten)]
    entry: Entry,
    state: Vec<Island>,
}

pub(crate) fn run(args: &StatusArgs) -> Result<()> {
    let (entries, fallen) = registry::with_fallen()?;
    let states = tool::ask_all(&entries, island);
    let processes: Vec<Process> = entries
        .into_iter()
        .zip(states)
        .map(|(entry, mut state)| {
            state.extend(entry.refused.keys().map(|name| not_served(name, REFUSED)));
            Process { entry, state }
        })
        .chain(fallen.into_iter().map(down))
        .collect();
    if args.json {
        return say::json(&processes);
    }
    if processes.is_empty() {
        say::line("nothing runs on this machine\nhint: nacre up /mnt/nacre");
        return Ok(());
    }
    let mut table = say::Table::new(&["pid", "kind", "name", "state", "size", "available", "objects"]);
    let text = |v: Option<u64>| v.map(say::human_bytes).unwrap_or_else(|| "-".into());
    for p in &processes {
        for i in &p.state {
            table.row(vec![
                p.entry.pid.to_string(),
                format!("{:?}", p.entry.kind).to_lowercase(),
                i.name.clone(),
                i.state.into(),
                text(i.bytes_total),
                text(i.bytes_avail),
                i.files_used.map_or("-".into(), |n| n.to_string()),
            ]);
        }
    }
    table.print();
    for silent in processes.iter().filter(|p| p.state.iter().any(|island| island.state == SILENT)) {
        say::line(&format!(
            "no answer: the process may be stopped or busy (pid {}); `nacre status` waits 2 s",
            silent.entry.pid
        ));
    }
    for why in processes.iter().flat_map(|p| p.entry.refused.values()) {
        say::line(why);
    }
    for p in &processes {
        for mount in &p.entry.mounts {
            say::line(&format!("mounted: {} (pid {})", mount.display(), p.entry.pid));
        }
    }
    Ok(())
}

/// A process that ended without taking leave: its targets are in their directories, and nobody serves them.
fn down(mut entry: Entry) -> Process {
    entry.mounts.clear();
    entry.islands.retain(|name| nacre_types::TargetName::parse(name).is_some());
    Process { state: entry.islands.iter().map(|name| not_served(name, "down")).collect(), entry }
}

fn not_served(name: &str, state: &'static str) -> Island {
    Island { name: name.to_owned(), state, bytes_total: None, bytes_avail: None, files_used: None }
}

fn island(entry: &Entry, name: &str) -> Island {
    let has_space = nacre_types::TargetName::parse(name).is_some_and(|t| t.kind() != TargetKind::Mgs);
    let (mut answers, mut space) = (false, None);
    if let Ok(mut tool) = tool::Tool::connect_unix(&entry.socket, name) {
        let asked = has_space.then(|| tool.call(&Statfs {}));
        answers = match asked {
            Some(Ok(found)) => {
                space = Some(found);
                true
            }
            Some(Err(error)) if tool::is_no_answer(&error) => false,
            Some(Err(_)) | None => tool.call(&Ping {}).is_ok(),
        };
    }
    Island {
        name: name.into(),
        state: if answers { UP } else { SILENT },
        bytes_total: space.map(|s| s.bytes_total),
        bytes_avail: space.map(|s| s.bytes_avail),
        files_used: space.map(|s| s.files_used),
    }
}
