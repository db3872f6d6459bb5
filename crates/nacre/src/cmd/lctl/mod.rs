//! `nacre lctl …` (and the link named `lctl`): parameters and devices of every nacre process on this machine.

mod set;

use crate::output;
use crate::process::registry;
use crate::query::filesystems::{FileSystem, FileSystems, ScopeArgs};
use crate::query::tool::{self, TimeoutArgs, Unreachable};
use anyhow::{Result, bail};
use clap::Subcommand;
use nacre_wire::params::{explain_unmatched, permanent_rows};
use nacre_wire::target::{GetParams, Param};
use serde::Serialize;
pub(crate) use set::{apply, apply_to};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Subcommand, Debug)]
pub(crate) enum LctlCommand {
    /// Show parameters; `*` matches within a dotted part
    #[command(
        name = "get_param",
        after_help = "Exit status: 0 done; 1 a pattern matches nothing. Devices that do not reply are named on \
                      stderr."
    )]
    GetParam {
        /// Only the values
        #[arg(short = 'n')]
        values_only: bool,
        /// With unit, range, default and meaning
        #[arg(short = 'H', long)]
        describe: bool,
        /// JSON with stable keys
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        scope: ScopeArgs,
        #[command(flatten)]
        timeout: TimeoutArgs,
        /// Names, with `*` for anything within a part, `**` for all parts that follow: `mdc.*.stats`, `mdt.**`
        #[arg(required = true, value_name = "PATTERN")]
        patterns: Vec<String>,
    },
    /// Change parameters of the running processes
    #[command(
        name = "set_param",
        long_about = set_param_help(),
        after_help = "Examples:\n\
            \x20 nacre lctl set_param 'mdc.*.max_mod_rpcs_in_flight=7'\n\
            \x20 nacre lctl set_param --fs /mnt/a 'mdc.*.stats=clear'\n\
            \x20 nacre lctl set_param -P 'osc.*.max_rpcs_in_flight=32'   now, and after every start\n\
            \x20 nacre lctl set_param -P -d 'osc.*.max_rpcs_in_flight'   remove the permanent value"
    )]
    SetParam {
        /// Set permanently: the MGS sends the value to every process, now and at each start. Run it on the host of the MGS
        #[arg(short = 'P')]
        permanent: bool,
        /// With -P: remove the permanent value (NAME alone)
        #[arg(short = 'd', requires = "permanent")]
        delete: bool,
        #[command(flatten)]
        scope: ScopeArgs,
        #[command(flatten)]
        timeout: TimeoutArgs,
        /// `mdc.*.max_mod_rpcs_in_flight=7`
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
    },
    /// List the names of parameters, one part at a time
    #[command(
        name = "list_param",
        after_help = "Examples:\n\
            \x20 nacre lctl list_param '*'           the first parts: llite, mdc, mdt, …\n\
            \x20 nacre lctl list_param 'mdc.*'       the connections to metadata targets\n\
            \x20 nacre lctl list_param -F 'mdc.*.*'  their parameters; `=`: can be set\n\
            \x20 nacre lctl list_param -R mdt        everything below"
    )]
    ListParam {
        /// Also list everything below
        #[arg(short = 'R')]
        recursive: bool,
        /// Mark writable parameters with `=`
        #[arg(short = 'F')]
        mark: bool,
        /// Only the names of one file system: its name, or a mount point of it
        #[arg(long, value_name = "NAME")]
        fs: Option<String>,
        /// JSON with stable keys
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        timeout: TimeoutArgs,
        /// Names, with `*` for anything within a part: `mdc.*.stats`
        #[arg(required = true, value_name = "PATTERN")]
        patterns: Vec<String>,
    },
    /// List the devices (targets and mounts) of this machine
    #[command(
        after_help = "State: UP the device replies, DN it does not, ?? this user may not ask it (exit status 1)."
    )]
    Dl {
        /// JSON with stable keys
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        timeout: TimeoutArgs,
    },
}

pub(crate) fn run(command: &LctlCommand) -> Result<()> {
    match command {
        LctlCommand::GetParam { values_only, describe, json, scope, timeout, patterns } => {
            let replies = ask(patterns, scope, *timeout)?;
            let named = patterns.iter().zip(&replies.found);
            let missing: Vec<&str> =
                named.filter(|(_, found)| found.is_empty()).map(|(p, _)| p.as_str()).collect();
            let all: Vec<Shown> = replies.found.into_iter().flatten().collect();
            if *json {
                output::json(&by_name(all))?;
            } else {
                let several = all.iter().any(|shown| shown.of != all[0].of);
                let mut of = String::new();
                for Shown { param, of: file_system } in &all {
                    if several && of != *file_system {
                        output::note(&format!("file system {file_system}:"));
                        of.clone_from(file_system);
                    }
                    print(param, *values_only, *describe);
                }
            }
            if missing.is_empty() {
                return Ok(());
            }
            bail!("get_param: {}", nothing(&missing, replies.silent))
        }
        LctlCommand::ListParam { recursive, mark, fs, json, timeout, patterns } => {
            let scope = ScopeArgs::one_or_all(fs.as_deref());
            let mut all = Vec::new();
            let listed = patterns.iter().try_for_each(|pattern| {
                let (found, silent) = list(pattern, *recursive, &scope, *timeout)?;
                if found.is_empty() {
                    bail!("list_param: {}", nothing(&[pattern], silent));
                }
                for (name, writable) in found {
                    if *json {
                        all.push(serde_json::json!({ "name": name, "writable": writable }));
                    } else {
                        output::line(&format!("{name}{}", if *mark && writable { "=" } else { "" }));
                    }
                }
                Ok(())
            });
            if *json {
                output::json(&all)?;
            }
            listed
        }
        LctlCommand::SetParam { permanent, delete, scope, timeout, settings } => match permanent {
            true => set::set_permanent(settings, *delete, scope, *timeout),
            false => settings.iter().try_for_each(|setting| set::set(setting, scope, *timeout)),
        },
        LctlCommand::Dl { json, timeout } => dl(*json, *timeout),
    }
}

/// A line of `lctl dl`.
#[derive(Serialize)]
struct Device {
    number: usize,
    state: &'static str,
    kind: &'static str,
    name: String,
    uuid: String,
    pid: i32,
    /// Why it is not served.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}
impl Device {
    fn line(&self) -> String {
        let Self { number, state, kind, name, uuid, pid, refused } = self;
        let refused = refused.as_ref().map(|why| format!(" refused: {why}")).unwrap_or_default();
        format!("{number:3} {state} {kind} {name} {uuid} {pid}{refused}")
    }
}

fn dl(json: bool, timeout: TimeoutArgs) -> Result<()> {
    let mut devices = Vec::new();
    let mut add = |state, kind, name: &str, pid, refused| {
        let (number, uuid) = (devices.len(), format!("{name}_UUID"));
        devices.push(Device { number, state, kind, name: name.to_owned(), uuid, pid, refused });
    };
    let entries = registry::entries()?;
    let states = tool::ask_all(&entries, |entry, island| tool::ping(&entry.socket, island, timeout.limit()));
    let mut forbidden = Vec::new();
    for (entry, states) in entries.iter().zip(states) {
        for (island, state) in entry.islands.iter().zip(states) {
            let kind = match nacre_types::TargetName::parse(island) {
                Some(name) => match name.kind() {
                    nacre_types::TargetKind::Mgs => "mgs",
                    nacre_types::TargetKind::Mdt => "mdt",
                    nacre_types::TargetKind::Ost => "obdfilter",
                },
                None => "llite",
            };
            let shown = match &state {
                Ok(()) => "UP",
                Err(error) if tool::why_unreachable(error) == Unreachable::Forbidden => "??",
                Err(_) => "DN",
            };
            add(shown, kind, island, entry.pid, None);
            forbidden
                .extend(state.err().filter(|error| tool::why_unreachable(error) == Unreachable::Forbidden));
        }
        for (name, why) in &entry.refused {
            let why = why.lines().next().unwrap_or_default();
            add("DN", "-", name, entry.pid, Some(why.to_owned()));
        }
    }
    if json {
        output::json(&devices)?;
    } else {
        devices.iter().for_each(|device| output::line(&device.line()));
    }
    tool::report_unreachable(&forbidden);
    if forbidden.is_empty() { Ok(()) } else { bail!("dl: the state of some devices is not known") }
}

/// Values by name. If several file systems have the same name, the keys name their MGS.
fn by_name(all: Vec<Shown>) -> serde_json::Map<String, serde_json::Value> {
    let mut names = BTreeMap::<String, usize>::new();
    all.iter().for_each(|shown| *names.entry(shown.param.name.clone()).or_default() += 1);
    let key = |shown: &Shown| match names.get(&shown.param.name) {
        Some(1) | None => shown.param.name.clone(),
        Some(_) => format!("{} ({})", shown.param.name, shown.of),
    };
    all.iter().map(|shown| (key(shown), shown.param.value.clone().into())).collect()
}

/// A pattern as processes know it. The field has one `fail_loc` per machine; here each target has its own.
fn whole(pattern: &str) -> String {
    match pattern {
        "fail_loc" | "fail_val" => format!("*.*.{pattern}"),
        _ => pattern.replace('/', "."),
    }
}

/// A parameter, and its file system in words.
struct Shown {
    param: Param,
    of: String,
}

/// The parameters of the islands of this machine that match some patterns.
struct Replies {
    /// Of each pattern, in their order.
    found: Vec<Vec<Shown>>,
    /// Islands that did not reply; each was reported.
    silent: usize,
}

/// The reply of one island.
struct Asked {
    entry: usize,
    island: String,
    fs: FileSystem,
    /// The matching parameters of each pattern.
    params: Result<Vec<Vec<Param>>>,
}

/// Asks every island of this machine at the same time.
fn ask_islands(all: &FileSystems, patterns: &[String], timeout: TimeoutArgs) -> Vec<Asked> {
    let one = |entry: &registry::ProcessEntry, island: &str| -> Result<Vec<Vec<Param>>> {
        let mut tool = tool::Tool::connect(&entry.socket, island, timeout.limit())?;
        let get = |pattern: &String| Ok(tool.call(&GetParams { pattern: whole(pattern) })?.params);
        patterns.iter().map(get).collect()
    };
    let replies = tool::ask_all(all.entries(), one).into_iter().enumerate();
    let of_entry = |(index, params): (usize, Vec<_>)| {
        let islands = all.entries()[index].islands.clone().into_iter().zip(params);
        islands
            .map(|(island, params)| Asked { entry: index, fs: all.of(index, &island), island, params })
            .collect::<Vec<_>>()
    };
    replies.flat_map(of_entry).collect()
}

/// The file systems in which a parameter matches.
fn fits(asked: &[Asked]) -> BTreeSet<FileSystem> {
    let has = |a: &&Asked| a.params.as_ref().is_ok_and(|params| params.iter().any(|p| !p.is_empty()));
    asked.iter().filter(has).map(|a| a.fs.clone()).collect()
}

fn quoted(patterns: &[impl AsRef<str>]) -> String {
    patterns.iter().map(|p| format!("'{}'", p.as_ref())).collect::<Vec<_>>().join(", ")
}

/// Parameters of the chosen file system that match, by pattern.
fn ask(patterns: &[String], scope: &ScopeArgs, timeout: TimeoutArgs) -> Result<Replies> {
    let all = FileSystems::new(registry::entries()?);
    let mut asked = ask_islands(&all, patterns, timeout);
    let chosen = all.choose(scope, &quoted(patterns), fits(&asked))?;
    all.announce(chosen.as_ref());
    asked.retain(|a| chosen.as_ref().is_none_or(|fs| a.fs.is_of(fs)));
    let mut replies = Replies { found: Vec::new(), silent: 0 };
    replies.found.resize_with(patterns.len(), Vec::new);
    let mut errors = Vec::new();
    for Asked { fs, params, .. } in asked {
        match params {
            Ok(params) => {
                let of = all.describe(&fs);
                for (found, params) in replies.found.iter_mut().zip(params) {
                    found.extend(params.into_iter().map(|param| Shown { param, of: of.clone() }));
                }
            }
            Err(e) => errors.push(e),
        }
    }
    tool::report_unreachable(&errors);
    replies.silent = errors.len();
    for found in &mut replies.found {
        found.sort_by(|a, b| (&a.of, &a.param.name).cmp(&(&b.of, &b.param.name)));
    }
    Ok(replies)
}

/// Parameters of every island on this machine that match.
pub(crate) fn matching(pattern: &str) -> Result<Vec<Param>> {
    let replies = ask(&[pattern.to_owned()], &ScopeArgs::all(), TimeoutArgs::default())?;
    Ok(replies.found.into_iter().flatten().map(|shown| shown.param).collect())
}

/// The message when no parameter matches.
fn nothing(patterns: &[&str], silent: usize) -> String {
    let named = quoted(patterns);
    match silent {
        0 => {
            let whole: Vec<String> = patterns.iter().map(|pattern| whole(pattern)).collect();
            let hint = hint(&whole, "nacre lctl list_param '*'");
            format!("no parameter matches {named}\nhint: {hint}")
        }
        n => format!(
            "no parameter of the processes that replied matches {named}; {n} did not reply\nhint: nacre status"
        ),
    }
}

/// The explanation of the table of parameters for patterns that match nothing, or else `otherwise`.
fn hint(patterns: &[impl AsRef<str>], otherwise: &str) -> String {
    let known: Vec<String> = patterns.iter().filter_map(|p| explain_unmatched(p.as_ref())).collect();
    if known.is_empty() { otherwise.to_owned() } else { known.join("; ") }
}

/// The long help of `set_param`, with the parameters that can be set permanently.
fn set_param_help() -> String {
    let mut text = "Change parameters of the running processes of one file system.\n\n\
        The reply shows the value in effect, which may be less than the requested one. A value \
        out of range is refused. The value `clear` (or 0) clears a counter.\n\n\
        Parameters that can also be set permanently; `get_param -H` describes them:\n"
        .to_owned();
    for (name, row) in permanent_rows() {
        text.push_str(&format!("  {name}  {}, default {}\n", row.values(), row.default_text()));
    }
    text
}

/// `NAME=VALUE`, a text of several lines below its name.
fn print(p: &Param, values_only: bool, describe: bool) {
    let several = p.value.trim_end().contains('\n');
    match (values_only, several) {
        (true, _) => output::line(p.value.trim_end()),
        (false, true) => output::line(&format!("{}=\n{}", p.name, p.value.trim_end())),
        (false, false) => output::line(&format!("{}={}", p.name, p.value.trim_end())),
    }
    if describe {
        output::line(&format!("    {}", p.help));
    }
}

/// Names that the pattern fits, whole or as far as it goes, and whether they can be set; and how many did not reply.
fn list(
    pattern: &str,
    recursive: bool,
    scope: &ScopeArgs,
    timeout: TimeoutArgs,
) -> Result<(BTreeMap<String, bool>, usize)> {
    let depth = pattern.split(['.', '/']).count();
    let replies = ask(&[pattern.to_owned(), format!("{pattern}.**")], scope, timeout)?;
    let mut names = BTreeMap::new();
    for Shown { param: Param { name, writable, .. }, .. } in replies.found.into_iter().flatten() {
        let parts: Vec<&str> = name.split('.').collect();
        let shown = if recursive || pattern.ends_with("**") { depth..=parts.len() } else { depth..=depth };
        for depth in shown {
            names.insert(parts[..depth].join("."), writable && depth == parts.len());
        }
    }
    Ok((names, replies.silent))
}
