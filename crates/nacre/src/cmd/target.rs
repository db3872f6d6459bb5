//! `nacre target`: lists the targets of a file system, and admits another target, or an old copy, under a registered name.
//!
//! Both are requests to the MGS. It runs on this machine, or is stopped: then this process serves it for the request.

use crate::output;
use crate::process::islands::Process;
use crate::process::registry::{self, ProcessEntry, ProcessKind};
use crate::process::{data_dir, signals, target_dir};
use crate::query::tool::{self, Refused, Tool};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Subcommand;
use nacre_types::{Errno, FsName, Remembered, TargetKind, TargetName};
use nacre_wire::mgs::{Admit, AdmitReply, AdmitTarget, ListTargets, TargetEntry};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Subcommand, Debug)]
pub(crate) enum TargetCommand {
    /// Show the targets of a file system as the MGS knows them
    #[command(
        long_about = "Show the targets of a file system as the MGS knows them.\n\
            \n\
            The MGS identifies a target by the uuid that mkfs gave it, by the number of times that its store\n\
            was opened (`openings`), and by the highest change that it has reported as durable (`durable`;\n\
            recorded every 30 s, so it may be out of date). `replaced` counts how often another target, or an\n\
            old copy, was admitted under the name.",
        after_help = "Examples:\n\
            \x20 nacre target list demo\n\
            \x20 nacre target list demo --json"
    )]
    List {
        /// Name of the file system
        fs: String,
        #[command(flatten)]
        mgs: MgsArgs,
    },
    /// Admit a new, empty OST in the place of a permanently lost one
    #[command(
        long_about = "Admit a new, empty OST in the place of a permanently lost one.\n\
            \n\
            The MGS refuses a target whose name belongs to another one: a server with a blank disk must not\n\
            turn lost files into zeros. This command admits the next empty target that is started under the\n\
            name. The order is:\n\
            \n\
            \x20 1. nacre mkfs --ost --fsname FS --index N --mgsnode ... DIR     (a new, empty target)\n\
            \x20 2. nacre target replace FS-OSTnnnn                              (where the MGS is served)\n\
            \x20 3. nacre serve DIR\n\
            \n\
            An `up` that does not start because an OST is lost needs no mkfs: after `nacre target replace\n\
            FS-OSTnnnn --mgs DIR` with its data directory, the next `up` formats an empty target in the\n\
            missing or empty directory of the OST.\n\
            \n\
            Mounts and the MDT continue without a restart. New files may be placed on the new OST at once.\n\
            Every stripe that old files had on the lost OST is lost: reading, writing and truncating it fails\n\
            with EIO, and it never reads as zeros. The files can be removed, and `nacre check` lists them.\n\
            Handles that were open for writing on files of that OST fail with EIO. If the lost OST returns,\n\
            it is refused.\n\
            \n\
            Exit status: 0 admitted, 1 not (the message says why), 2 wrong usage.",
        after_help = "Examples:\n\
            \x20 nacre target replace demo-OST0001\n\
            \x20 nacre target replace demo-OST0001 --revoke        it was not needed after all\n\
            \x20 nacre target replace nacre-OST0001 --mgs /var/lib/nacre/mnt-nacre   of an `up` that does not start"
    )]
    Replace(AdmitArgs),
    /// Admit an old copy of a target, and lose the newer changes
    #[command(
        name = "accept-rollback",
        long_about = "Admit an old copy of a target, and lose the newer changes.\n\
            \n\
            A target that comes back with less than it had called durable (a restored backup, a snapshot, a\n\
            store that has lost synced writes, a copy that was opened elsewhere) is refused by the MGS, the MDT\n\
            and every mount. If there is no better copy, this command admits the next one that is started under\n\
            the name:\n\
            \n\
            \x20 1. nacre target accept-rollback FS-OSTnnnn     (where the MGS is served)\n\
            \x20 2. nacre serve DIR\n\
            \n\
            OST: objects are served as they are in the copy, which may be older than the MDT's record of\n\
            their files. Stripes that are not in the copy fail with EIO and never read as zeros.\n\
            MDT: names, sizes and modes are those of the copy. Every mount loses its open files, and\n\
            objects of later files are left on the OSTs (`nacre check` lists them).\n\
            Mounts and other servers continue without a restart.\n\
            \n\
            Exit status: 0 admitted, 1 not (the message says why), 2 wrong usage.",
        after_help = "Examples:\n\
            \x20 nacre target accept-rollback demo-OST0001\n\
            \x20 nacre target accept-rollback demo-MDT0000 --json\n\
            \x20 nacre target accept-rollback demo-OST0001 --revoke   the current copy was found"
    )]
    AcceptRollback(AdmitArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct MgsArgs {
    /// Directory of the MGS, or of the `up` (default: the MGS that runs on this machine and knows the file system)
    #[arg(long, value_name = "DIR")]
    mgs: Option<PathBuf>,
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct AdmitArgs {
    /// Name of the target: FS-OSTnnnn or FS-MDTnnnn, the index in four hexadecimal digits
    target: String,
    /// Withdraw an admission that was not used
    #[arg(long)]
    revoke: bool,
    #[command(flatten)]
    mgs: MgsArgs,
}

pub(crate) fn run(command: &TargetCommand) -> Result<()> {
    match command {
        TargetCommand::List { fs, mgs } => list(fs, mgs),
        TargetCommand::Replace(args) => admit(args, Admit::Replacement),
        TargetCommand::AcceptRollback(args) => admit(args, Admit::Rollback),
    }
}

/// The running MGS for the command, if there is one: that of the directory, the only one of this machine, or the one
/// that knows the file system.
fn running(dir: Option<&Path>, fs: &FsName) -> Result<Option<ProcessEntry>> {
    let entries = registry::entries()?;
    let serving = |e: &ProcessEntry| e.islands.iter().any(|island| island == "MGS");
    let mut found: Vec<ProcessEntry> = entries.into_iter().filter(serving).collect();
    if let Some(dir) = dir {
        let dir = mgs_dir(&data_dir::absolute(dir)?);
        return Ok(found.into_iter().find(|e| e.targets.contains(&dir)));
    }
    if found.len() > 1 {
        let known = |mgs: &mut Tool| mgs.call(&ListTargets { fs: fs.clone() });
        let replies = tool::ask_all(&found, |entry, island| match island {
            "MGS" => Tool::connect(&entry.socket, island, tool::REPLY_TIMEOUT)
                .and_then(|mut mgs| known(&mut mgs))
                .is_ok(),
            _ => false,
        });
        let mut knows = replies.into_iter().map(|islands| islands.contains(&true));
        found.retain(|_| knows.next() == Some(true));
        ensure!(
            !found.is_empty(),
            "none of the MGSs that run on this machine knows a file system {fs}\nhint: nacre status"
        );
    }
    ensure!(
        found.len() < 2,
        "{} MGSs that run on this machine know a file system {fs}\nhint: --mgs with the directory of the one that is meant",
        found.len()
    );
    let none =
        "no MGS runs on this machine\nhint: run this where the MGS is served; one that is stopped: --mgs DIR";
    found.pop().context(none).map(Some)
}

/// Asks the MGS of a file system: a running one, or a stopped one in its directory.
fn ask<T>(args: &MgsArgs, fs: &FsName, question: impl FnOnce(&mut Tool) -> Result<T>) -> Result<T> {
    let dir = args.mgs.as_deref();
    if let Some(entry) = running(dir, fs)? {
        let mut tool = Tool::connect(&entry.socket, "MGS", tool::REPLY_TIMEOUT)?;
        return question(&mut tool);
    }
    let dir = dir.context("no MGS runs on this machine")?;
    let mut signals = signals::Signals::catch()?;
    let served = target_dir::open(&mgs_dir(dir))?;
    ensure!(served.name == TargetName::Mgs, "{} holds {}, not an MGS", dir.display(), served.name);
    let process = Process::start(ProcessKind::Serve)?;
    let reply = (|| {
        process.serve(&served, &[format!("unix:{}", process.socket().display())])?;
        process.wait_ready("MGS", Duration::from_secs(60))?;
        let mut tool = Tool::connect(process.socket(), "MGS", tool::REPLY_TIMEOUT)?;
        question(&mut tool)
    })();
    process.stop(&mut signals)?;
    reply
}

fn mgs_dir(dir: &Path) -> PathBuf {
    if data_dir::is_data_dir(dir) { dir.join("mgs") } else { dir.to_path_buf() }
}

fn admit(args: &AdmitArgs, how: Admit) -> Result<()> {
    let name = TargetName::parse(&args.target);
    let Some(TargetName::Of { fs, kind, index }) = name else {
        bail!("{:?} is no target of a file system\nhint: demo-OST0001, demo-MDT0000", args.target)
    };
    let asked = AdmitTarget { fs: fs.clone(), kind, index, admit: how, revoke: args.revoke };
    let AdmitReply { known, replaced, refused } = ask(&args.mgs, &asked.fs, |mgs| mgs.call(&asked))?;
    if !refused.is_empty() {
        bail!("{}: {refused}", args.target);
    }
    if args.mgs.json {
        return output::json(&serde_json::json!({
            "target": args.target,
            "admitted": (!args.revoke).then_some(word(how)),
            "registered": remembered(&known),
            "replaced": replaced,
        }));
    }
    let name = &args.target;
    if args.revoke {
        output::line(&format!("{name}: nothing is admitted any more but the registered target"));
    } else {
        output::line(&format!("{name}: {} is admitted at its next start", word(how)));
    }
    output::line(&format!("  registered now: {}", sentence(&known, replaced)));
    if !args.revoke {
        let what = match (how, kind) {
            (Admit::Replacement, _) => "stripes that were on the registered OST give EIO from then on",
            (Admit::Rollback, TargetKind::Ost) => "stripes that the copy does not have give EIO from then on",
            (Admit::Rollback, _) => {
                "what is newer than the copy is gone then, and mounts lose what they have open"
            }
        };
        output::line(&format!("  {what}"));
        output::line(&format!(
            "next: {}; take it back: {} --revoke",
            next_step(args, how, kind, index),
            command(args, how)
        ));
    }
    Ok(())
}

/// The start of the admitted target. An `up` formats an empty one itself.
fn next_step(args: &AdmitArgs, how: Admit, kind: TargetKind, index: u32) -> String {
    match args.mgs.mgs.as_deref().filter(|dir| data_dir::is_data_dir(dir)) {
        Some(dir) if (how, kind) == (Admit::Replacement, TargetKind::Ost) => format!(
            "start the `up` again, which formats an empty target in {} if that is missing or empty",
            dir.join(data_dir::ost_dir(index)).display()
        ),
        Some(_) => "start the `up` again".to_owned(),
        None => "nacre serve DIR, or start the `up` again".to_owned(),
    }
}

fn command(args: &AdmitArgs, how: Admit) -> String {
    let verb = match how {
        Admit::Replacement => "replace",
        Admit::Rollback => "accept-rollback",
    };
    let mgs = args.mgs.mgs.as_deref().map(|dir| format!(" --mgs {}", dir.display())).unwrap_or_default();
    format!("nacre target {verb} {}{mgs}", args.target)
}

fn word(how: Admit) -> &'static str {
    match how {
        Admit::Replacement => "an empty target",
        Admit::Rollback => "an old copy",
    }
}

fn sentence(known: &Remembered, replaced: u32) -> String {
    format!(
        "uuid {}, {} openings, durable up to {}, replaced {replaced} times",
        known.uuid, known.incarnation.number, known.committed
    )
}

fn remembered(known: &Remembered) -> serde_json::Value {
    serde_json::json!({
        "uuid": known.uuid.to_string(),
        "openings": known.incarnation.number,
        "durable": known.committed.0,
    })
}

fn list(fs: &str, args: &MgsArgs) -> Result<()> {
    let name = FsName::parse(fs)
        .with_context(|| format!("{fs:?} is no name of a file system: 1 to 8 of A-Z a-z 0-9 _ -"))?;
    let entries = ask(args, &name, |mgs| mgs.call(&ListTargets { fs: name.clone() }))
        .map_err(|error| match error.downcast_ref::<Refused>() {
            Some(refused) if refused.errno() == Errno::ENOENT => {
                anyhow!("the MGS knows no file system {fs}\nhint: nacre status shows those of this machine")
            }
            _ => error.context(format!("the MGS does not list the targets of {fs}")),
        })?
        .targets;
    let target =
        |t: &TargetEntry| TargetName::Of { fs: name.clone(), kind: t.kind, index: t.index }.to_string();
    if args.json {
        let one = |t: &TargetEntry| {
            serde_json::json!({
                "target": target(t), "registered": remembered(&t.known), "replaced": t.replaced,
                "addresses": t.addresses,
            })
        };
        return output::json(&entries.iter().map(one).collect::<Vec<_>>());
    }
    let mut table = output::Table::new(&["target", "uuid", "openings", "durable", "replaced", "addresses"]);
    for t in &entries {
        table.row(vec![
            target(t),
            t.known.uuid.to_string(),
            t.known.incarnation.number.to_string(),
            t.known.committed.to_string(),
            t.replaced.to_string(),
            t.addresses.join(", "),
        ]);
    }
    table.print();
    Ok(())
}
