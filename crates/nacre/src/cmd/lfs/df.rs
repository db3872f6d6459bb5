//! `lfs df`, `lfs osts`, `lfs mdts`, `lfs getname`.

use crate::output;
use crate::process::registry;
use crate::query::tool::TimeoutArgs;
use crate::query::watch;
use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize, Serializer};
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
#[command(
    after_help = "A target without room for new files is marked S after its line. A target that is deactivated on this \
mount is an inactive device; a target that is down is shown with the reason."
)]
pub(crate) struct Args {
    /// Inodes instead of space
    #[arg(short, long)]
    inodes: bool,
    /// Sizes for people
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    timeout: TimeoutArgs,
    /// Show this help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Mount point (default: every mount on this machine)
    mount: Option<PathBuf>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ListArgs {
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    timeout: TimeoutArgs,
    /// Mount point (default: every mount on this machine)
    mount: Option<PathBuf>,
}

/// The column of names has at least this width.
const NAME_WIDTH: usize = 20;

/// One target in `nacre.df`.
#[derive(Debug, Serialize, Deserialize)]
struct TargetSpace {
    target: String,
    /// Absent when the target does not reply.
    #[serde(flatten)]
    space: Option<Space>,
    error: Option<String>,
    state: State,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Up,
    /// No room for new files: marked `S`, as in the field.
    Full,
    /// Switched off by the administrator of the mount.
    Inactive,
    Down,
}
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Space {
    bytes_total: u64,
    bytes_free: u64,
    bytes_avail: u64,
    files_used: u64,
    files_free: u64,
    /// Targets with the same number are on one device and share its space; 0: not shared. Readers of JSON round such numbers.
    #[serde(default, serialize_with = "as_text")]
    device: u64,
}

fn as_text<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(number)
}

fn mounts(wanted: Option<&PathBuf>) -> Result<Vec<PathBuf>> {
    let list = match wanted {
        Some(path) => vec![path.clone()],
        None => registry::mounts()?,
    };
    ensure!(!list.is_empty(), "no nacre file system is mounted here\nhint: nacre up /mnt/nacre");
    Ok(list)
}

/// Asks all mounts at the same time. The prefix is `system.` because the kernel then does not ask the servers for
/// permissions, so that a mount replies even if its servers are away.
fn ask(mounts: &[PathBuf], name: &str, timeout: TimeoutArgs) -> Vec<Result<String>> {
    let roots: Vec<PathBuf> = mounts.iter().map(|path| root_of(path)).collect();
    watch::attributes(&roots, &format!("system.{name}"), timeout.limit())
}
/// The mount point above a path.
fn root_of(path: &Path) -> PathBuf {
    let above = std::path::absolute(path).ok().and_then(|path| nacre_fuse::mount_of(&path));
    above.map_or_else(|| path.to_path_buf(), |(root, _)| root)
}

fn targets(mounts: &[PathBuf], timeout: TimeoutArgs) -> Vec<Result<Vec<TargetSpace>>> {
    let parse = |text: Result<String>| {
        let text = text?;
        serde_json::from_str(&text).with_context(|| format!("a mount returned {text:?}"))
    };
    ask(mounts, "nacre.df", timeout).into_iter().map(parse).collect()
}

/// One document, however many mounts there are: of each its reply under `key`, or an error.
fn json<T: Serialize>(mounts: &[PathBuf], replies: Vec<Result<T>>, key: &str) -> Result<()> {
    let mut errors = Vec::new();
    let of = |(mount, reply): (&PathBuf, Result<T>)| match reply {
        Ok(value) => serde_json::json!({ "mount": mount, key: value }),
        Err(error) => {
            let value = serde_json::json!({ "mount": mount, "error": output::sentence(&error) });
            errors.push(error);
            value
        }
    };
    let all: Vec<_> = mounts.iter().zip(replies).map(of).collect();
    output::json(&all)?;
    end(&errors, mounts.len())
}

/// Says which mounts did not reply; the others have been shown.
fn end(errors: &[anyhow::Error], asked: usize) -> Result<()> {
    match errors {
        [] => Ok(()),
        [only] if asked == 1 => bail!("{}", output::sentence(only)),
        several => {
            several.iter().for_each(|error| output::error("nacre", error));
            bail!("{} of {asked} mounts did not reply", several.len())
        }
    }
}

/// Kind and index of `demo-OST001f`, as the field shows it: `OST:31`.
fn bracket(target: &str) -> String {
    match nacre_types::TargetName::parse(target) {
        Some(name) => format!("{:?}:{}", name.kind(), name.index()).to_uppercase(),
        None => target.into(),
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mounts = mounts(args.mount.as_ref())?;
    let replies = targets(&mounts, args.timeout);
    if args.json {
        return json(&mounts, replies, "targets");
    }
    let (asked, mut errors) = (mounts.len(), Vec::new());
    for (mount, reply) in mounts.iter().zip(replies) {
        let list = match reply {
            Ok(list) => list,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let unit = if args.inodes {
            "Inodes"
        } else if args.human_readable {
            "bytes"
        } else {
            "1K-blocks"
        };
        let (used, free, percent) =
            if args.inodes { ("IUsed", "IFree", "IUse%") } else { ("Used", "Available", "Use%") };
        let width = list.iter().map(|t| uuid(t).len()).max().unwrap_or(0).max(NAME_WIDTH);
        output::line(&format!(
            "{:<width$} {unit:>11} {used:>11} {free:>11} {percent:>4}  Mounted on",
            "UUID"
        ));
        for t in &list {
            let uuid = format!("{:<width$}", uuid(t));
            let Some(space) = t.space else {
                let why = match t.state {
                    State::Inactive => "inactive device",
                    _ => t.error.as_deref().unwrap_or("no reply"),
                };
                output::line(&format!("{uuid}: {why}"));
                continue;
            };
            let mark = if t.state == State::Full { " S" } else { "" };
            let place = format!("{}[{}]{mark}", output::name(mount), bracket(&t.target));
            output::line(&row(args, &uuid, space, &place));
        }
        output::line("");
        let name = format!("{:<width$}", "filesystem_summary:");
        output::line(&row(args, &name, summary(&list), &output::name(mount)));
    }
    end(&errors, asked)
}

/// The name of a target as the field prints it.
fn uuid(target: &TargetSpace) -> String {
    format!("{}_UUID", target.target)
}

/// The whole file system: space of the OSTs, each device once, and files of the MDT. As for statfs(2), a new file takes
/// an inode of the MDT and at least one object of an OST.
fn summary(list: &[TargetSpace]) -> Space {
    let mut sum = Space::default();
    let mut inodes_free = None;
    let mut devices: Vec<Space> = Vec::new();
    for t in list {
        let Some(space) = t.space else { continue };
        if !t.target.contains("-OST") {
            sum.files_used += space.files_used;
            inodes_free = Some(inodes_free.unwrap_or(0) + space.files_free);
            continue;
        }
        match devices.iter_mut().find(|d| d.device == space.device && d.device != 0) {
            Some(d) => {
                d.bytes_total = d.bytes_total.max(space.bytes_total);
                d.bytes_free = d.bytes_free.min(space.bytes_free);
                d.bytes_avail = d.bytes_avail.min(space.bytes_avail);
                d.files_free = d.files_free.min(space.files_free);
            }
            None => devices.push(space),
        }
    }
    for d in devices {
        sum.bytes_total += d.bytes_total;
        sum.bytes_free += d.bytes_free;
        sum.bytes_avail += d.bytes_avail;
        sum.files_free += d.files_free;
    }
    sum.files_free = inodes_free.map_or(sum.files_free, |inodes| inodes.min(sum.files_free));
    sum
}

fn row(args: &Args, name: &str, s: Space, place: &str) -> String {
    let show = |bytes: u64| {
        if args.human_readable { output::human_bytes(bytes) } else { (bytes / 1024).to_string() }
    };
    let (total, used, free, a, b) = if args.inodes {
        let total = s.files_used + s.files_free;
        (total.to_string(), s.files_used.to_string(), s.files_free.to_string(), s.files_used, total)
    } else {
        let used = s.bytes_total.saturating_sub(s.bytes_free);
        (show(s.bytes_total), show(used), show(s.bytes_avail), used, used + s.bytes_avail)
    };
    let percent = (a * 100).div_ceil(b.max(1));
    format!("{name} {total:>11} {used:>11} {free:>11} {percent:>3}%  {place}")
}

/// A target of `lfs osts` and `lfs mdts`.
#[derive(Serialize)]
struct Listed {
    index: u32,
    target: String,
    state: State,
}
impl Listed {
    fn new(t: TargetSpace) -> Self {
        Self { index: index_of(&t), target: t.target, state: t.state }
    }
}
fn index_of(t: &TargetSpace) -> u32 {
    nacre_types::TargetName::parse(&t.target).map_or(0, |name| name.index())
}

pub(super) fn list(args: &ListArgs, kind: &str) -> Result<()> {
    let mounts = mounts(args.mount.as_ref())?;
    let is_wanted = |t: &TargetSpace| t.target.contains(&format!("-{kind}"));
    let replies = targets(&mounts, args.timeout);
    if args.json {
        let listed =
            |list: Vec<TargetSpace>| list.into_iter().filter(is_wanted).map(Listed::new).collect::<Vec<_>>();
        return json(&mounts, replies.into_iter().map(|reply| reply.map(listed)).collect(), "targets");
    }
    let mut errors = Vec::new();
    for reply in replies {
        let list = match reply {
            Ok(list) => list,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        output::line(if kind == "OST" { "OBDS:" } else { "MDTS:" });
        for t in list.iter().filter(|t| is_wanted(t)) {
            let index = index_of(t);
            let state = if t.space.is_some() { "ACTIVE" } else { "INACTIVE" };
            output::line(&format!("{index}: {}_UUID {state}", t.target));
        }
    }
    end(&errors, mounts.len())
}

pub(super) fn getname(args: &ListArgs) -> Result<()> {
    let mounts = mounts(args.mount.as_ref())?;
    let replies = ask(&mounts, "nacre.mount", args.timeout);
    if args.json {
        let name = |reply: Result<String>| reply.map(|name| name.trim().to_owned());
        return json(&mounts, replies.into_iter().map(name).collect(), "name");
    }
    let mut errors = Vec::new();
    for reply in replies {
        match reply {
            Ok(name) => output::line(name.trim()),
            Err(error) => errors.push(error),
        }
    }
    end(&errors, mounts.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_room_for_as_many_files_as_both_kinds_of_targets() {
        let target = |name: &str, files_free| TargetSpace {
            target: name.to_owned(),
            space: Some(Space { files_used: 1, files_free, ..Space::default() }),
            error: None,
            state: State::Up,
        };
        let free = |mdt, ost| {
            let list = [target("a-MDT0000", mdt), target("a-OST0000", ost), target("a-OST0001", ost)];
            let sum = summary(&list);
            assert_eq!(sum.files_used, 1, "objects are no files");
            sum.files_free
        };
        assert_eq!((free(0, 50), free(30, 50), free(500, 50)), (0, 30, 100));
    }
}
