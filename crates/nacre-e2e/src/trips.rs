//! Messages and wake-ups per operation on a real mount.
//!
//! Counted by the mount itself (`llite.*.stats`: requests of the kernel; `mdc.*.stats`, `osc.*.stats`: requests to
//! targets) around many times the same operation. Rule: every LOOKUP and GETATTR of the kernel is answered from a hold
//! (those of directories) or is one request to the MDT and nothing else, every change is one modifying request, a close
//! is one, and no object server is asked.
//! With strace at hand: between the read of a request and its reply no thread is woken.

use crate::shell::output;
use crate::system::System;
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

const ITEMS: u64 = 200;

/// Samples by name; names of requests to targets begin with `mdc.` or `osc.`.
type Counts = BTreeMap<String, u64>;

/// An operation, the kernel's requests for it beside LOOKUP and GETATTR, and those to the MDT.
struct Case {
    name: &'static str,
    act: fn(&Path) -> std::io::Result<()>,
    kernel: &'static [&'static str],
    mdt: &'static [&'static str],
    /// LOOKUP and GETATTR that are not of a directory that is held.
    asked: u64,
}

const CASES: &[Case] = &[
    Case {
        name: "create",
        act: |path| File::create_new(path).map(drop),
        kernel: &["create", "flush", "close"],
        mdt: &["mds_reint_create", "mds_close"],
        asked: 2,
    },
    Case { name: "stat", act: |path| fs::symlink_metadata(path).map(drop), kernel: &[], mdt: &[], asked: 2 },
    Case {
        name: "open, close",
        act: |path| File::open(path).map(drop),
        kernel: &["open", "flush", "close"],
        mdt: &["mds_reint_open", "mds_close"],
        asked: 2,
    },
    Case {
        name: "rename",
        act: |path| fs::rename(path, path.with_extension("moved")),
        kernel: &["rename"],
        mdt: &["mds_reint_rename"],
        asked: 2,
    },
    Case {
        name: "unlink",
        act: |path| fs::remove_file(path.with_extension("moved")),
        kernel: &["unlink"],
        mdt: &["mds_reint_unlink"],
        asked: 1,
    },
    Case {
        name: "mkdir",
        act: |path| fs::create_dir(path),
        kernel: &["mkdir"],
        mdt: &["mds_reint_create"],
        asked: 1,
    },
    Case {
        name: "rmdir",
        act: |path| fs::remove_dir(path),
        kernel: &["rmdir"],
        mdt: &["mds_reint_unlink"],
        asked: 1,
    },
];

/// Counts messages and wake-ups per operation on a real mount, and fails if one has more than its bound.
pub fn run() -> Result<()> {
    let system = System::up()?;
    let dir = system.mount().join("trips");
    fs::create_dir(&dir)?;
    // The first create fetches a sequence, and the OSTs grant room.
    File::create_new(dir.join("first"))?;
    println!("{:<12} {:>7} {:>8} {:>8}  RPCs to the MDT", "operation", "LOOKUP", "GETATTR", "asked");
    for case in CASES {
        let before = counts(&system)?;
        for item in 0..ITEMS {
            (case.act)(&dir.join(format!("f{item}"))).with_context(|| format!("{} {item}", case.name))?;
        }
        check(case, &difference(&before, &counts(&system)?)).with_context(|| case.name.to_owned())?;
    }
    wake_ups(&system, &dir)?;
    system.down()
}

fn check(case: &Case, made: &Counts) -> Result<()> {
    let count = |name: &str| made.get(name).copied().unwrap_or(0);
    let mut rpcs = String::new();
    for name in case.mdt {
        let of_mdt = count(&format!("mdc.{name}"));
        ensure!(of_mdt == ITEMS, "{of_mdt} × {name} for {ITEMS} operations");
        rpcs += &format!("1 {name}, ");
    }
    // The kernel sends one request for each of these calls, or none.
    let looked = count("lookup") + count("getattr");
    let (asked, held) = (count("mdc.mds_lookup") + count("mdc.mds_getattr"), count("dir_attr_cached"));
    ensure!(looked == asked + held, "{looked} × LOOKUP or GETATTR, but {asked} asked and {held} held");
    // The first of its kind may bring the hold.
    let (least, most) = (ITEMS * case.asked, ITEMS * case.asked + 4);
    ensure!((least..=most).contains(&asked), "{asked} × LOOKUP or GETATTR asked for {ITEMS} operations");
    let known = |name: &str| {
        matches!(name, "lookup" | "getattr" | "dir_attr_cached")
            || case.kernel.contains(&name)
            || name.strip_prefix("mdc.").is_some_and(|rpc| {
                matches!(rpc, "mds_lookup" | "mds_getattr" | "obd_ping" | "seq_query" | "statfs")
                    || case.mdt.contains(&rpc)
            })
            || matches!(name, "osc.obd_ping" | "osc.statfs")
    };
    if let Some((name, n)) = made.iter().find(|(name, _)| !known(name)) {
        bail!("{n} × {name}, which this operation does not need");
    }
    let per = |name: &str| count(name) as f64 / ITEMS as f64;
    let (lookups, getattrs) = (per("lookup"), per("getattr"));
    let asked = asked as f64 / ITEMS as f64;
    println!(
        "{:<12} {lookups:>7.2} {getattrs:>8.2} {asked:>8.2}  {rpcs}{:.2} in all",
        case.name,
        asked + case.mdt.len() as f64
    );
    Ok(())
}

fn counts(system: &System) -> Result<Counts> {
    let text =
        output(system.nacre().args(["lctl", "get_param", "llite.*.stats", "mdc.*.stats", "osc.*.stats"]))?;
    let mut counts = Counts::new();
    let mut kind = "";
    for line in text.lines() {
        if line.contains(".stats=") {
            kind = match line.split('.').next() {
                Some("mdc") => "mdc.",
                Some("osc") => "osc.",
                _ => "",
            };
        }
        let mut words = line.split_whitespace();
        if let (Some(name), Some(n), Some("samples")) = (words.next(), words.next(), words.next()) {
            *counts.entry(format!("{kind}{name}")).or_default() += n.parse::<u64>()?;
        }
    }
    Ok(counts)
}

fn difference(before: &Counts, after: &Counts) -> Counts {
    let made = after.iter().map(|(name, n)| (name.clone(), n - before.get(name).copied().unwrap_or(0)));
    made.filter(|(_, n)| *n > 0).collect()
}

/// Creates while strace watches every thread of the process: only the loop that reads requests may do anything.
fn wake_ups(system: &System, dir: &Path) -> Result<()> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        println!("wake-ups: not counted, there is no strace");
        return Ok(());
    }
    let pid = system.pid()?;
    let file = tempfile::NamedTempFile::new()?;
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=read,write,futex", "-p", &pid.to_string(), "-o"]).arg(file.path());
    let mut strace = strace.stdin(Stdio::null()).spawn()?;
    let attached = || fs::read_to_string(format!("/proc/{pid}/status"));
    while attached()?.lines().any(|l| l == "TracerPid:\t0") {
        super::pause();
    }
    for item in 0..ITEMS {
        File::create_new(dir.join(format!("w{item}")))?;
    }
    crate::shell::run(Command::new("kill").args(["-INT", &strace.id().to_string()]))?;
    strace.wait()?;
    let (requests, woken) = wakes_within_requests(&fs::read_to_string(file.path())?);
    println!("wake-ups between the read of a request and its reply: {woken} in {requests} requests");
    ensure!(requests >= ITEMS * 3, "only {requests} requests were seen");
    // A commit interval may end meanwhile: its sync thread is woken once a second.
    ensure!(woken * 100 <= requests, "{woken} wake-ups in {requests} requests");
    Ok(())
}

/// Requests seen, and calls of FUTEX_WAKE or writes to an eventfd by a thread that is within one.
fn wakes_within_requests(trace: &str) -> (u64, u64) {
    let mut within: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut requests, mut woken) = (0, 0);
    for line in trace.lines() {
        let Some((thread, call)) = line.trim_start().split_once(' ') else { continue };
        let call = call.trim_start();
        let fd = call.split_once('(').and_then(|(_, rest)| rest.split([',', ')']).next()).unwrap_or("");
        // 1114112 bytes is the read buffer of /dev/fuse.
        if call.starts_with("read(") && call.contains(", 1114112) = ") && !call.contains(" = -1 ") {
            requests += 1;
            within.insert(thread, fd);
        } else if call.starts_with("write(") {
            if within.get(thread).is_some_and(|fuse| *fuse == fd) {
                within.remove(thread);
            } else if within.contains_key(thread) {
                woken += 1;
            }
        } else if call.contains("FUTEX_WAKE") && within.contains_key(thread) {
            woken += 1;
        }
    }
    (requests, woken)
}
