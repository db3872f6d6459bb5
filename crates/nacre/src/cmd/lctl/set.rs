//! `lctl set_param`: for the running processes, or with -P for good.

use super::{Asked, ask_islands, fits, hint, whole};
use crate::output;
use crate::process::{self, registry};
use crate::query::filesystems::{FileSystem, FileSystems, ScopeArgs};
use crate::query::tool;
use crate::query::tool::{TimeoutArgs, Tool, Unreachable};
use anyhow::{Result, bail, ensure};
use nacre_types::TargetName;
use nacre_wire::mgs::SetPermanentParam;
use nacre_wire::params::{CLEAR, Kind, NotPermanent, check_permanent, row_of};
use nacre_wire::target::{GetParams, Param, SetParam};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

pub(super) fn set(setting: &str, scope: &ScopeArgs, timeout: TimeoutArgs) -> Result<()> {
    let all = FileSystems::new(registry::entries()?);
    let done = try_apply(&all, setting, scope, timeout)?;
    all.announce(done.of.as_ref());
    done.set.iter().for_each(|line| output::line(line));
    done.clamped.iter().for_each(|line| output::note(line));
    if done.refused.is_empty() { Ok(()) } else { bail!("{}", done.refused.join("\n")) }
}

/// Sets every parameter that matches; one that is refused is an error.
pub(crate) fn apply(setting: &str) -> Result<()> {
    apply_among(registry::entries()?, setting)
}
/// The same in one process.
pub(crate) fn apply_to(process: registry::ProcessEntry, setting: &str) -> Result<()> {
    apply_among(vec![process], setting)
}
fn apply_among(processes: Vec<registry::ProcessEntry>, setting: &str) -> Result<()> {
    let all = FileSystems::new(processes);
    match try_apply(&all, setting, &ScopeArgs::all(), TimeoutArgs::default())?.refused.first() {
        Some(refused) => bail!("{refused}"),
        None => Ok(()),
    }
}

/// The result of a setting.
#[derive(Default)]
struct Done {
    of: Option<FileSystem>,
    /// `NAME=VALUE` of the values now in effect.
    set: Vec<String>,
    /// Sentences about values that are in effect in place of the requested ones.
    clamped: Vec<String>,
    /// Sentences about processes that refused, or did not reply.
    refused: Vec<String>,
}

/// Sets every matching parameter of the chosen file system. No parameter is set before the file system is known.
fn try_apply(all: &FileSystems, setting: &str, scope: &ScopeArgs, timeout: TimeoutArgs) -> Result<Done> {
    let Some((name, value)) = setting.split_once('=') else {
        bail!("set_param: {setting:?} is not NAME=VALUE")
    };
    let asked = ask_islands(all, &[name.to_owned()], timeout);
    let of = all.choose(scope, &format!("'{name}'"), fits(&asked))?;
    let is_meant = |a: &Asked| of.as_ref().is_none_or(|fs| a.fs.is_of(fs));
    let mut done = Done::default();
    let (mut found, mut forbidden) = (Vec::new(), Vec::new());
    for a in asked.into_iter().filter(is_meant) {
        match a.params {
            Ok(params) => {
                let names: Vec<String> = params.into_iter().flatten().map(|p| p.name).collect();
                found.push(((a.entry, a.island), names));
            }
            Err(e) if tool::why_unreachable(&e) == Unreachable::Forbidden => forbidden.push(e),
            Err(e) => done.refused.push(format!("set_param: {e:#}")),
        }
    }
    // One cause, however many targets and mounts a process has.
    done.refused.extend(tool::forbidden(&forbidden).map(|why| format!("set_param: {why}")));
    let names_of = |entry: &registry::ProcessEntry, island: &str| {
        let is_it = |(index, name): &(usize, String)| {
            all.entries().get(*index).is_some_and(|e| e.pid == entry.pid) && name == island
        };
        found.iter().find(|(place, _)| is_it(place)).map(|(_, names)| names.clone()).unwrap_or_default()
    };
    let one = |entry: &registry::ProcessEntry, island: &str| {
        let (names, mut done) = (names_of(entry, island), Done::default());
        if let Err(e) = apply_in(entry, island, (&names, value), timeout, &mut done) {
            done.refused.push(format!("set_param: {e:#}"));
        }
        done
    };
    // A device that hangs does not delay the others.
    for part in tool::ask_all(all.entries(), one).into_iter().flatten() {
        done.set.extend(part.set);
        done.clamped.extend(part.clamped);
        done.refused.extend(part.refused);
    }
    if done.set.is_empty() && done.refused.is_empty() {
        let hint = hint(&[&whole(name)], "nacre lctl list_param -FR '*'");
        bail!("set_param: no parameter matches '{name}'\nhint: {hint}");
    }
    done.of = of;
    Ok(done)
}

fn apply_in(
    entry: &registry::ProcessEntry,
    island: &str,
    (names, value): (&[String], &str),
    timeout: TimeoutArgs,
    done: &mut Done,
) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let mut tool = Tool::connect(&entry.socket, island, timeout.limit())?;
    for name in names {
        let set = format!("{name}={value}");
        match tool.call(&SetParam { name: name.clone(), value: value.into() })?.refused {
            none if none.is_empty() => {
                let asked = value.trim();
                let is_request = row_of(name).is_some_and(|row| matches!(row.kind, Kind::Work(_)));
                let now = if is_request { asked.to_owned() } else { now(&mut tool, name)? };
                done.set.push(format!("{name}={now}"));
                // A value without its unit is the same value.
                if now.trim_end_matches('%') != asked.trim_end_matches('%') && now != CLEAR {
                    done.clamped.push(format!("nacre: {name}: {asked} was asked for, {now} holds"));
                }
            }
            why if why.starts_with(&set) => done.refused.push(format!("set_param: setting {why}")),
            why => done.refused.push(format!("set_param: {why}")),
        }
    }
    Ok(())
}

/// The value in effect, which another parameter may have bounded. A text of several lines is a counter that was
/// cleared.
fn now(tool: &mut Tool, name: &str) -> Result<String> {
    let now = tool.call(&GetParams { pattern: name.to_owned() })?.params.into_iter().next();
    let Some(Param { value, .. }) = now else { bail!("{name} is gone meanwhile") };
    let value = value.trim_end();
    Ok(if value.contains('\n') { CLEAR.to_owned() } else { value.to_owned() })
}

/// Makes the MGS keep or forget parameters, and prints the values that are then in effect on this machine. If one
/// setting of a command is refused, none is kept.
pub(super) fn set_permanent(
    settings: &[String],
    delete: bool,
    scope: &ScopeArgs,
    timeout: TimeoutArgs,
) -> Result<()> {
    let settings = settings
        .iter()
        .map(|text| permanent_setting(text, delete))
        .collect::<Result<Vec<SetPermanentParam>>>()?;
    let all = FileSystems::new(registry::entries()?);
    let (chosen, mut mgs) = mgs(&all, scope, timeout)?;
    all.announce(chosen.as_ref());
    for SetPermanentParam { name, value } in &settings {
        let mut known = value.is_some();
        for tool in &mut mgs {
            known = known || is_kept(tool, name)?;
            tool.call(&SetPermanentParam { name: name.clone(), value: value.clone() })?;
        }
        ensure!(
            known,
            "set_param: '{name}' is not kept\nhint: nacre lctl get_param 'mgs.MGS.live.*' shows what is"
        );
        match value {
            Some(value) => output::line(&format!("{name}={value} (kept)")),
            None => output::line(&format!("{name} (forgotten)")),
        }
    }
    for SetPermanentParam { name, value } in &settings {
        if let Some(value) = value {
            say_what_holds(&all, chosen.as_ref(), name, value.trim(), timeout);
        }
    }
    Ok(())
}

/// The chosen MGS, or all of them if that was requested.
fn mgs(
    all: &FileSystems,
    scope: &ScopeArgs,
    timeout: TimeoutArgs,
) -> Result<(Option<FileSystem>, Vec<Tool>)> {
    let is_mgs = |island: &String| TargetName::parse(island) == Some(TargetName::Mgs);
    let serving: Vec<usize> =
        (0..all.entries().len()).filter(|index| all.entries()[*index].islands.iter().any(is_mgs)).collect();
    if serving.is_empty() {
        bail!(
            "set_param: no MGS runs on this machine\nhint: run nacre lctl set_param -P where the MGS is served"
        );
    }
    let fits: BTreeSet<FileSystem> = serving.iter().map(|index| all.of(*index, "MGS")).collect();
    let chosen = all.choose(scope, "`set_param -P` without --fs", fits)?;
    let is_meant = |index: &&usize| chosen.as_ref().is_none_or(|fs| all.of(**index, "MGS").is_of(fs));
    let mut tools = Vec::new();
    for index in serving.iter().filter(is_meant) {
        tools.push(Tool::connect(&all.entries()[*index].socket, "MGS", timeout.limit())?);
    }
    ensure!(!tools.is_empty(), "set_param: the MGS of that file system does not run on this machine");
    Ok((chosen, tools))
}

/// Waits a moment until the processes of this machine have received a kept parameter, and names those in which another
/// value is in effect: a server may allow less.
fn say_what_holds(
    all: &FileSystems,
    chosen: Option<&FileSystem>,
    name: &str,
    value: &str,
    timeout: TimeoutArgs,
) {
    const LOOK: Duration = Duration::from_millis(100);
    const SPREAD: Duration = Duration::from_secs(4);
    let until = Instant::now() + timeout.limit().min(SPREAD);
    loop {
        let asked = ask_islands(all, &[name.to_owned()], timeout);
        let meant = asked.into_iter().filter(|a| chosen.is_none_or(|fs| a.fs.is_of(fs)));
        let params = meant.filter_map(|a| a.params.ok()).flatten().flatten();
        let others: Vec<Param> = params.filter(|p| p.writable && p.value.trim() != value).collect();
        if others.is_empty() {
            return;
        }
        if Instant::now() >= until {
            for p in others {
                let (name, now) = (p.name, p.value.trim());
                output::note(&format!(
                    "nacre: {name}: {now} is in effect, {value} is kept: the server allows no more, or the process has not got it yet"
                ));
            }
            return;
        }
        process::pause(LOOK);
    }
}

/// Whether the MGS has a value for a name; `mgs.MGS.live.*` shows it with every file system.
fn is_kept(mgs: &mut Tool, name: &str) -> Result<bool> {
    let shown = mgs.call(&GetParams { pattern: "mgs.MGS.live.*".into() })?.params;
    let kept = format!("kept: {name}=");
    Ok(shown.is_empty() || shown.iter().any(|p| p.value.lines().any(|line| line.starts_with(&kept))))
}

/// A setting of `set_param -P`; a bad one is refused as by `set_param` without `-P`.
fn permanent_setting(setting: &str, delete: bool) -> Result<SetPermanentParam> {
    let (name, value) = match setting.split_once('=') {
        Some((name, _)) if delete => (name, None),
        None if delete => (setting, None),
        Some((name, value)) => (name, Some(value.to_owned())),
        None => bail!("set_param: {setting:?} is not NAME=VALUE"),
    };
    let name = name.replace('/', ".");
    match value.as_deref().map_or(Ok(()), |value| check_permanent(&name, value)) {
        Ok(()) => Ok(SetPermanentParam { name, value }),
        Err(NotPermanent::Unknown) => {
            let those = "nacre lctl set_param --help lists those that can";
            let hint = if row_of(&name).is_some() { those.to_owned() } else { hint(&[&name], those) };
            bail!("set_param: no parameter that can be kept matches '{name}'\nhint: {hint}")
        }
        Err(NotPermanent::Value(why)) => bail!("set_param: setting {why}"),
    }
}
