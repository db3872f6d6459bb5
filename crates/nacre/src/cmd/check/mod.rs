//! `nacre check`: verifies stopped targets, read-only; given all targets of a file system, also that they agree.
//!
//! The checks of the engine (superblock, log, runs) and those of the meaning of rows are in the crates below. This folder
//! puts them together: the choice of targets, their locks, the comparison of MDT and OSTs ([`cross`]), the report.

mod cross;

use crate::output;
use crate::process::{data_dir, target_dir};
use anyhow::{Context as _, Result, bail};
use cross::Cross;
use nacre_osd::Usage;
use nacre_types::{MdtIndex, Owner, TargetKind, TargetName};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;

/// Sentences shown per target; --json has up to 1000.
const SHOWN_MAX: usize = 20;

#[derive(clap::Args, Debug)]
#[command(
    about = "Verify a stopped target, read-only",
    long_about = "Verify stopped targets, read-only.\n\n\
        It checks the superblock, the log, every block of every run, and that the rows agree\n\
        with each other: names, links, counts, layouts, objects, blocks, usage per owner. If the\n\
        MDT and OSTs of a file system are given (the data directory of an `up` has them all),\n\
        it also checks that every object belongs to a file, or waits to be destroyed, and is not\n\
        longer than its file, and that every file has its objects. If the MGS is given, it also\n\
        checks that each target is the registered one and no old copy (docs/targets.md).\n\n\
        A target that is served is refused; the message names the process. Exit status: 0 no\n\
        damage; 1 damage was found or a target could not be read; 3 no damage in the given\n\
        targets, but others of the file system are missing (they are named, as known from the\n\
        data directory, from the MGS and from the layouts of the MDT).",
    after_help = "Examples:\n\
        \x20 nacre check /var/lib/nacre/mnt-nacre\n\
        \x20 nacre check --data /data/ost0 /data/ost1"
)]
pub(crate) struct CheckArgs {
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
    /// Also read every block of file data and compare its checksum
    #[arg(long)]
    data: bool,
    /// Directory of a target, or the data directory of an `up`
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
}

/// The given targets have no problem, but some targets of the file system were not given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incomplete;
impl Incomplete {
    pub(crate) const STATUS: u8 = 3;
}
impl std::error::Error for Incomplete {}
impl std::fmt::Display for Incomplete {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not every target of the file system was given")
    }
}

/// The result for one target, or for the comparison between targets.
#[derive(Debug, Default, Serialize)]
struct Found {
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dir: Option<PathBuf>,
    /// It was stopped as planned; if not, the next start reads the log to its end.
    clean: bool,
    /// Counts of rows, objects and bytes, by name.
    counts: BTreeMap<&'static str, u64>,
    problems: u64,
    /// The first problems in words.
    sentences: Vec<String>,
    /// Observations that may be harmless, in words.
    notes: Vec<String>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<()> {
    let Chosen { present, missing } = targets(&args.dirs)?;
    // All locks are taken before anything is printed.
    let opened = present.iter().map(|dir| target_dir::open_read_only(dir)).collect::<Result<Vec<_>>>()?;
    let mut cross = Cross::default();
    let mut found = Vec::new();
    for served in &opened {
        let mut one = target(served, args.data, &mut cross).with_context(|| served.name.to_string())?;
        one.dir = served.place.clone();
        found.push(one);
        if !args.json {
            found.last().into_iter().for_each(print);
        }
    }
    let mut compared = cross.finish();
    for target in &missing {
        compared.not_given.insert(target.name.to_string());
        if !args.json {
            target.print();
        }
    }
    if let Some(between) = compared.found {
        if !args.json {
            print(&between);
        }
        found.push(between);
    }
    let problems: u64 = found.iter().map(|f| f.problems).sum();
    if args.json {
        output::json(
            &serde_json::json!({ "problems": problems, "targets": found, "not_given": compared.not_given }),
        )?;
    }
    if problems > 0 {
        bail!(
            "{problems} problem{} found\nhint: nothing was changed. Keep a copy of these directories before they are \
             served again",
            if problems == 1 { " was" } else { "s were" }
        );
    }
    if !compared.not_given.is_empty() {
        if !args.json {
            output::line(&format!("ok as far as given: {}", not_given(&compared.not_given)));
        }
        return Err(Incomplete.into());
    }
    Ok(())
}

fn not_given(names: &BTreeSet<String>) -> String {
    let were = if names.len() == 1 { "was" } else { "were" };
    format!("{} {were} not given", names.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
}

/// The target directories to check, and the targets that an `up` has lost.
struct Chosen {
    present: Vec<PathBuf>,
    missing: Vec<Missing>,
}

/// A target that is not in its directory below the data directory of an `up`.
struct Missing {
    name: TargetName,
    dir: PathBuf,
    data_dir: PathBuf,
}

impl Missing {
    fn print(&self) {
        output::line(&format!("{:<16} is missing", self.name.to_string()));
        output::line(&format!("  {} does not exist or is empty", self.dir.display()));
        output::line(&format!("  hint: {}", data_dir::ways_for_missing(&self.data_dir, &self.name)));
    }
}

/// Target directories: those given, and those below an `up`'s data directory.
fn targets(dirs: &[PathBuf]) -> Result<Chosen> {
    let (mut present, mut missing) = (Vec::new(), Vec::new());
    for dir in dirs {
        if !dir.exists() {
            bail!("{} does not exist", dir.display());
        }
        if data_dir::is_data_dir(dir) {
            for (name, target) in data_dir::target_dirs(dir)? {
                if data_dir::is_missing(&target) {
                    missing.push(Missing { name, dir: target, data_dir: data_dir::absolute(dir)? });
                } else {
                    present.push(target);
                }
            }
        } else if let Some(lost) = data_dir::lost_marker(dir) {
            bail!("{lost}");
        } else {
            present.push(dir.clone());
        }
    }
    // One that is named twice is looked at once: the second lock would meet the first.
    let mut seen = BTreeSet::new();
    present.retain(|dir| seen.insert(dir.canonicalize().unwrap_or_else(|_| dir.clone())));
    Ok(Chosen { present, missing })
}

fn target(served: &target_dir::Served, data: bool, cross: &mut Cross) -> Result<Found> {
    let kind = served.name.kind();
    let index = MdtIndex(served.name.index());
    let mdt = Rc::new(RefCell::new(Some(nacre_mdt::check::Check::new(index))));
    let seen = Rc::new(RefCell::new(cross::Rows::new(served.name.index())));
    let (mdt_rows, all_rows) = (mdt.clone(), seen.clone());
    let checked = nacre_osd::offline(&*served.store, async move |osd| {
        let report = nacre_osd::check::check_open(&osd, move |table, key, value| {
            if let (TargetKind::Mdt, Some(check)) = (kind, mdt_rows.borrow_mut().as_mut()) {
                check.row(table, key, value);
            }
            all_rows.borrow_mut().row(kind, table, key, value);
        })
        .await;
        let objects = match kind {
            TargetKind::Ost => Some(nacre_ost::check(osd.ctx(), &osd, data).await),
            TargetKind::Mdt | TargetKind::Mgs => None,
        };
        (report, objects, osd.identity())
    });
    let mut found = Found { target: served.name.to_string(), ..Found::default() };
    let (mut report, objects, identity) = match checked {
        Ok(checked) => checked,
        Err(e) => {
            found.problems = 1;
            found.sentences.push(format!("it cannot be opened: {e}"));
            return Ok(found);
        }
    };
    let check = mdt.borrow_mut().take();
    if let (TargetKind::Mdt, Some(check)) = (kind, check) {
        let rows = compared(check, &mut report);
        found.counts.extend([
            ("inodes", rows.inodes),
            ("directories", rows.directories),
            ("entries", rows.entries),
            ("opens", rows.opens),
            ("orphans", rows.orphans),
            ("objects_to_destroy", rows.destroys),
        ]);
        found.add(rows.problems, rows.sentences);
    }
    match objects {
        None => {}
        Some(Err(e)) => found.add(1, vec![format!("its objects cannot be read: {e}")]),
        Some(Ok(objects)) => add_objects(&mut found, objects, data),
    }
    found.clean = report.was_clean;
    found.counts.extend([
        ("rows", report.rows.values().sum()),
        ("log_bytes", report.log_bytes),
        ("runs", report.runs),
        ("run_bytes", report.run_bytes),
    ]);
    found.add(report.problems, report.sentences);
    if report.unread > 0 {
        found.notes.push(String::from(
            "because some of its rows cannot be read, its rows were not compared with each other or with those of other targets",
        ));
        return Ok(found);
    }
    let mut rows = std::mem::replace(&mut *seen.borrow_mut(), cross::Rows::new(0));
    rows.is(identity);
    cross.add(&served.name, rows);
    Ok(found)
}

/// Compares the rows of an MDT with each other and with the accounts, unless some of them cannot be read.
fn compared(
    check: nacre_mdt::check::Check,
    report: &mut nacre_osd::check::Report,
) -> nacre_mdt::check::Report {
    if report.unread > 0 {
        return check.finish_incomplete();
    }
    let rows = check.finish();
    report.compare_usage(&usage(&rows.owners));
    rows
}

/// `data`: the checksums of the bytes were verified.
fn add_objects(found: &mut Found, o: nacre_ost::Checked, data: bool) {
    found.counts.extend([("objects", o.objects), ("data_bytes", o.blocks * 512)]);
    if data {
        found.counts.insert("checksums", o.sums);
    }
    found.add(o.problems, o.descriptions);
    if o.blobs_without_rows > 0 {
        let text = format!("{} files without rows: the next start removes them", o.blobs_without_rows);
        found.notes.push(text);
    }
    found.notes.extend(o.notes);
}

/// Charges of the rows of an MDT: inodes, by user, group and project.
fn usage(owners: &BTreeMap<Owner, u64>) -> BTreeMap<(u8, u32), Usage> {
    let mut all: BTreeMap<(u8, u32), Usage> = BTreeMap::new();
    for (owner, &inodes) in owners {
        for key in [(0, owner.uid), (1, owner.gid), (2, owner.projid)] {
            all.entry(key).or_default().objects += inodes;
        }
    }
    all
}

impl Found {
    fn add(&mut self, problems: u64, sentences: Vec<String>) {
        self.problems += problems;
        self.sentences.extend(sentences);
    }
}

fn print(found: &Found) {
    let verdict = match found.problems {
        0 => "ok".to_owned(),
        1 => "1 problem".to_owned(),
        n => format!("{n} problems"),
    };
    let end = if found.clean { "" } else { " (was not stopped as planned; its log is whole)" };
    let end = if found.problems > 0 || found.dir.is_none() { "" } else { end };
    output::line(&format!("{:<16} {verdict}{end}", found.target));
    let show = |(name, n): (&&str, &u64)| match name.strip_suffix("_bytes") {
        Some(what) => format!("{what} {}", output::human_bytes(*n)),
        None => format!("{} {n}", name.replace('_', " ")),
    };
    let counts: Vec<String> = found.counts.iter().filter(|(_, n)| **n > 0).map(show).collect();
    if !counts.is_empty() {
        output::line(&format!("  {}", counts.join(", ")));
    }
    for sentence in found.sentences.iter().take(SHOWN_MAX) {
        output::line(&format!("  problem: {sentence}"));
    }
    if found.problems > SHOWN_MAX as u64 {
        output::line(&format!("  and {} more", found.problems - SHOWN_MAX as u64));
    }
    for note in found.notes.iter().take(SHOWN_MAX) {
        output::line(&format!("  note: {note}"));
    }
}
