//! `nacre lctl …` (and the link named `lctl`): parameters and devices of every nacre process on this machine.

use crate::{registry, say, tool};
use anyhow::{Result, bail, ensure};
use clap::Subcommand;
use nacre_wire::mgs::KeepParam;
use nacre_wire::settings::{NotKept, check_setting};
use nacre_wire::target::{GetParams, Param, SetParam};
use std::collections::BTreeMap;

#[derive(Subcommand, Debug)]
pub(crate) enum LctlCommand {
    /// Show parameters; `*` matches within a dotted part
    #[command(name = "get_param")]
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
        /// Names, with `*` for anything within a part, `**` for all parts that follow: `mdc.*.stats`, `mdt.**`
        #[arg(required = true, value_name = "PATTERN")]
        patterns: Vec<String>,
    },
    /// Change parameters of the running processes
    #[command(name = "set_param")]
    SetParam {
        /// Keep it: the MGS tells every process, now and whenever it starts. Run it where the MGS runs
        #[arg(short = 'P')]
        permanent: bool,
        /// With -P: forget what is kept (NAME alone)
        #[arg(short = 'd', requires = "permanent")]
        delete: bool,
        /// `mdc.*.max_mod_rpcs_in_flight=7`
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
    },
    /// List the names of parameters, part by part
    #[command(
        name = "list_param",
        after_help = "Examples:\n\
            \x20 nacre lctl list_param '*'           what there is: llite, mdc, mdt, …\n\
            \x20 nacre lctl list_param 'mdc.*'       the connections to metadata targets\n\
            \x20 nacre lctl list_param -F 'mdc.*.*'  their parameters; `=`: can be set\n\
            \x20 nacre lctl list_param -R mdt        everything below"
    )]
    ListParam {
        /// With everything below
        #[arg(short = 'R')]
        recursive: bool,
        /// Mark what can be set with `=`
        #[arg(short = 'F')]
        mark: bool,
        /// Names, with `*` for anything within a part: `mdc.*.stats`
        #[arg(required = true, value_name = "PATTERN")]
        patterns: Vec<String>,
    },
    /// List the islands (targets and mounts) of this machine
    Dl,
}

pub(crate) fn run(command: &LctlCommand) -> Result<()> {
    match command {
        LctlCommand::GetParam { values_only, describe, json, patterns } => {
            let (mut all, mut missing) = (Vec::new(), Vec::new());
            let answers = ask(patterns)?;
            for (pattern, found) in patterns.iter().zip(answers.found) {
                if found.is_empty() {
                    missing.push(format!("'{pattern}'"));
                }
                all.extend(found);
            }
            if *json {
                let map: serde_json::Map<_, _> = all.into_iter().map(|p| (p.name, p.value.into())).collect();
                say::json(&map)?;
            } else {
                all.iter().for_each(|p| print(p, *values_only, *describe));
            }
            if missing.is_empty() {
                return Ok(());
            }
            bail!("get_param: {}", nothing(&missing.join(", "), answers.silent))
        }
        LctlCommand::ListParam { recursive, mark, patterns } => {
            for pattern in patterns {
                let (found, silent) = list(pattern, *recursive)?;
                if found.is_empty() {
                    bail!("list_param: {}", nothing(&format!("'{pattern}'"), silent));
                }
                for (name, writable) in found {
                    say::line(&format!("{name}{}", if *mark && writable { "=" } else { "" }));
                }
            }
            Ok(())
        }
        LctlCommand::SetParam { permanent, delete, settings } => {
            if *permanent {
                return keep(settings, *delete);
            }
            settings.iter().try_for_each(|setting| set(setting))
        }
        LctlCommand::Dl => {
            let mut number = 0;
            let entries = registry::entries()?;
            let states = tool::ask_all(&entries, |entry, island| tool::ping(&entry.socket, island).is_ok());
            for (entry, states) in entries.iter().zip(states) {
                for (island, up) in entry.islands.iter().zip(states) {
                    let kind = match nacre_types::TargetName::parse(island) {
                        Some(name) => match name.kind() {
                            nacre_types::TargetKind::Mgs => "mgs",
                            nacre_types::TargetKind::Mdt => "mdt",
                            nacre_types::TargetKind::Ost => "obdfilter",
                        },
                        None => "llite",
                    };
                    let state = if up { "UP" } else { "DN" };
                    say::line(&format!("{number:3} {state} {kind} {island} {island}_UUID {}", entry.pid));
                    number += 1;
                }
                for (name, why) in &entry.refused {
                    let why = why.lines().next().unwrap_or_default();
                    say::line(&format!("{number:3} DN - {name} {name}_UUID {} refused: {why}", entry.pid));
                    number += 1;
                }
            }
            Ok(())
        }
    }
}

/// A pattern as processes know it. The field has one `fail_loc` per machine; here each target has its own.
fn whole(pattern: &str) -> String {
    match pattern {
        "fail_loc" | "fail_val" => format!("*.*.{pattern}"),
        _ => pattern.replace('/', "."),
    }
}

/// What the islands of this machine say of some patterns.
struct Answers {
    /// Of each pattern, in their order.
    found: Vec<Vec<Param>>,
    /// Islands that did not answer; it was said which.
    silent: usize,
}

/// Parameters of every island on this machine that match, by pattern.
fn ask(patterns: &[String]) -> Result<Answers> {
    let entries = registry::entries()?;
    let one = |entry: &registry::Entry, island: &str| -> Result<Vec<Vec<Param>>> {
        let mut tool = tool::Tool::connect_unix(&entry.socket, island)?;
        let get = |pattern: &String| Ok(tool.call(&GetParams { pattern: whole(pattern) })?.params);
        patterns.iter().map(get).collect()
    };
    let mut answers = Answers { found: vec![Vec::new(); patterns.len()], silent: 0 };
    for answer in tool::ask_all(&entries, one).into_iter().flatten() {
        match answer {
            Ok(params) => {
                answers.found.iter_mut().zip(params).for_each(|(all, params)| all.extend(params));
            }
            Err(e) => {
                say::note(&format!("nacre: {e:#}"));
                answers.silent += 1;
            }
        }
    }
    for all in &mut answers.found {
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|a, b| a.name == b.name);
    }
    Ok(answers)
}

/// Parameters of every island on this machine that match.
pub(crate) fn matching(pattern: &str) -> Result<Vec<Param>> {
    Ok(ask(&[pattern.to_owned()])?.found.concat())
}

/// Why there is nothing to show.
fn nothing(patterns: &str, silent: usize) -> String {
    match silent {
        0 => format!("no parameter matches {patterns}\nhint: nacre lctl list_param '*'"),
        n => format!(
            "no parameter matches {patterns} where somebody answers ({n} did not)\nhint: nacre status"
        ),
    }
}

/// `NAME=VALUE`, a text of several lines below its name.
fn print(p: &Param, values_only: bool, describe: bool) {
    let several = p.value.trim_end().contains('\n');
    match (values_only, several) {
        (true, _) => say::line(p.value.trim_end()),
        (false, true) => say::line(&format!("{}=\n{}", p.name, p.value.trim_end())),
        (false, false) => say::line(&format!("{}={}", p.name, p.value.trim_end())),
    }
    if describe {
        say::line(&format!("    {}", p.help));
    }
}

/// Names that the pattern fits, whole or as far as it goes, and whether they can be set; and how many did not answer.
fn list(pattern: &str, recursive: bool) -> Result<(BTreeMap<String, bool>, usize)> {
    let depth = pattern.split(['.', '/']).count();
    let answers = ask(&[pattern.to_owned(), format!("{pattern}.**")])?;
    let mut names = BTreeMap::new();
    for Param { name, writable, .. } in answers.found.concat() {
        let parts: Vec<&str> = name.split('.').collect();
        let shown = if recursive || pattern.ends_with("**") { depth..=parts.len() } else { depth..=depth };
        for depth in shown {
            names.insert(parts[..depth].join("."), writable && depth == parts.len());
        }
    }
    Ok((names, answers.silent))
}

fn set(setting: &str) -> Result<()> {
    let (done, refused) = try_apply(setting)?;
    done.iter().for_each(|line| say::line(line));
    if refused.is_empty() { Ok(()) } else { bail!("{}", refused.join("\n")) }
}

/// Sets every parameter that matches; one that is refused is an error.
pub(crate) fn apply(setting: &str) -> Result<()> {
    match try_apply(setting)?.1.first() {
        Some(refused) => bail!("{refused}"),
        None => Ok(()),
    }
}

/// Sets every parameter that matches: what was set, and the sentences of those that refuse.
fn try_apply(setting: &str) -> Result<(Vec<String>, Vec<String>)> {
    let Some((name, value)) = setting.split_once('=') else {
        bail!("set_param: {setting:?} is not NAME=VALUE")
    };
    let (mut done, mut refused) = (Vec::new(), Vec::new());
    let one = |entry: &registry::Entry, island: &str| {
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        if let Err(e) = apply_in(entry, island, (name, value), &mut done, &mut refused) {
            refused.push(format!("set_param: {e:#}"));
        }
        (done, refused)
    };
    // One that hangs keeps nobody else from it.
    for (set, not_set) in tool::ask_all(&registry::entries()?, one).into_iter().flatten() {
        done.extend(set);
        refused.extend(not_set);
    }
    if done.is_empty() && refused.is_empty() {
        bail!("set_param: no parameter matches '{name}'\nhint: nacre lctl list_param -FR '*'");
    }
    Ok((done, refused))
}

fn apply_in(
    entry: &registry::Entry,
    island: &str,
    (name, value): (&str, &str),
    done: &mut Vec<String>,
    refused: &mut Vec<String>,
) -> Result<()> {
    let mut tool = tool::Tool::connect_unix(&entry.socket, island)?;
    let params = tool.call(&GetParams { pattern: whole(name) })?.params;
    tool.wait_for(tool::PATIENCE_LONG)?;
    for p in params {
        let set = format!("{}={value}", p.name);
        match tool.call(&SetParam { name: p.name.clone(), value: value.into() })?.refused {
            none if none.is_empty() => done.push(as_it_is(&mut tool, p.name, value)?),
            why if why.starts_with(&set) => refused.push(format!("set_param: setting {why}")),
            why => refused.push(format!("set_param: {why}")),
        }
    }
    Ok(())
}

/// `NAME=VALUE` with the value that holds now: another one may have bounded it. Of a text, what was asked for.
fn as_it_is(tool: &mut tool::Tool, name: String, asked: &str) -> Result<String> {
    let now = tool.call(&GetParams { pattern: name.clone() })?.params.into_iter().next();
    let value = now.map(|p| p.value).filter(|value| !value.trim_end().contains('\n'));
    Ok(format!("{name}={}", value.as_deref().unwrap_or(asked).trim_end()))
}

/// Tells the MGS of this machine (each, if several run) to keep parameters, or to forget them. Nothing is kept of a
/// command of which something is refused.
fn keep(settings: &[String], delete: bool) -> Result<()> {
    let all = settings.iter().map(|text| kept(text, delete)).collect::<Result<Vec<KeepParam>>>()?;
    let mut mgs = Vec::new();
    for entry in registry::entries()?.iter().filter(|e| e.islands.iter().any(|island| island == "MGS")) {
        let mut tool = tool::Tool::connect_unix(&entry.socket, "MGS")?;
        tool.wait_for(tool::PATIENCE_LONG)?;
        mgs.push(tool);
    }
    if mgs.is_empty() {
        bail!(
            "set_param: no MGS runs on this machine\nhint: run `lctl set_param -P` where the MGS is served"
        );
    }
    for KeepParam { name, value } in &all {
        let mut known = value.is_some();
        for tool in &mut mgs {
            known = known || is_kept(tool, name)?;
            tool.call(&KeepParam { name: name.clone(), value: value.clone() })?;
        }
        ensure!(
            known,
            "set_param: '{name}' is not kept\nhint: nacre lctl get_param 'mgs.MGS.live.*' shows what is"
        );
        match value {
            Some(value) => say::line(&format!("{name}={value} (kept)")),
            None => say::line(&format!("{name} (forgotten)")),
        }
    }
    Ok(())
}

/// Whether the MGS has a value for a name; `mgs.MGS.live.*` shows it with every file system.
fn is_kept(mgs: &mut tool::Tool, name: &str) -> Result<bool> {
    let shown = mgs.call(&GetParams { pattern: "mgs.MGS.live.*".into() })?.params;
    let kept = format!("kept: {name}=");
    Ok(shown.is_empty() || shown.iter().any(|p| p.value.lines().any(|line| line.starts_with(&kept))))
}

/// What `set_param -P` asks for; refused as `set_param` without it would be.
fn kept(setting: &str, delete: bool) -> Result<KeepParam> {
    let (name, value) = match setting.split_once('=') {
        Some((name, _)) if delete => (name, None),
        None if delete => (setting, None),
        Some((name, value)) => (name, Some(value.to_owned())),
        None => bail!("set_param: {setting:?} is not NAME=VALUE"),
    };
    let name = name.replace('/', ".");
    match value.as_deref().map_or(Ok(()), |value| check_setting(&name, value)) {
        Ok(()) => Ok(KeepParam { name, value }),
        Err(NotKept::Unknown) => {
            bail!(
                "set_param: no parameter that can be kept matches '{name}'\nhint: nacre lctl list_param -FR '*'"
            )
        }
        Err(NotKept::Value(why)) => bail!("set_param: setting {why}"),
    }
}
