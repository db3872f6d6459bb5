//! The processes that use a mount, in words.

use crate::process::registry;
use crate::query::tool::{self, Tool};
use anyhow::Result;
use nacre_types::TargetName;
use nacre_wire::target::GetParams;
use std::path::Path;

/// The processes that /proc shows; if there is none, the calls to which the mount's process has not replied.
pub(crate) fn users(mount: &Path) -> String {
    let users = nacre_fuse::users(mount);
    if !users.is_empty() {
        return users;
    }
    let waiting = waiting_calls(mount).unwrap_or_default();
    if waiting.is_empty() {
        return "somebody who is not seen in /proc".to_owned();
    }
    format!("calls that wait for servers or for other mounts: {}", nacre_fuse::shortened(&waiting))
}

/// `cat (pid 7) in lookup for 12 s`, from the process of the mount.
fn waiting_calls(mount: &Path) -> Result<Vec<String>> {
    let processes = registry::entries()?.into_iter().filter(|e| e.mounts.iter().any(|m| m == mount));
    let mut calls = Vec::new();
    for entry in processes {
        for island in entry.islands.iter().filter(|name| TargetName::parse(name).is_none()) {
            let asked = GetParams { pattern: "llite.*.fuse_waiting".to_owned() };
            let params = Tool::connect(&entry.socket, island, tool::TimeoutArgs::default().limit())?
                .call(&asked)?
                .params;
            calls.extend(params.iter().flat_map(|p| p.value.lines()).map(waiting_call));
        }
    }
    Ok(calls)
}

fn waiting_call(line: &str) -> String {
    let mut words = line.split(' ');
    let mut next = || words.next().unwrap_or("?");
    let (operation, pid, ms) = (next(), next(), next().parse::<u64>().unwrap_or(0));
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{} (pid {pid}) in {operation} for {} s", command.trim_end(), ms / 1000)
}
