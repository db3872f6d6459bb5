//! `cargo xtask trips`: requests to servers and requests of the kernel per operation on a real mount, beside their bars.
//!
//! Counted by the mount itself around many times the same operation: `mdc.*.stats` and `osc.*.stats` count RPCs,
//! `llite.*.fuse_requests` counts requests of the kernel. Requests that no operation causes are left out (pings, the
//! fetch of a sequence, statfs), and so is FORGET, for which no caller waits. Each operation has two bounds: the
//! present number, which no change may exceed, and the bar that it is to reach (`--check` fails if it is exceeded).
//! With strace at hand: between the read of a request and its reply no thread is woken.

use crate::shell::output;
use crate::system::System;
use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{AtFlags, FlockOperation, fcntl_lock, lstat, statat};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

const ITEMS: u32 = 200;
/// Beyond a bound times the items: the first operation of its kind may ask for what the others use.
const FIRST: f64 = 4.0;

/// Options of the measurement.
#[derive(clap::Args, Debug)]
pub struct Trips {
    /// Fail if an operation exceeds its bar
    #[arg(long)]
    check: bool,
    /// Files of the directory for `ls -l`
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    list: u32,
}

impl Trips {
    /// Fails if an operation needs more than before.
    pub fn for_ci() -> Self {
        Self { check: false, list: 2000 }
    }
}

/// RPCs and requests of the kernel per operation; infinite where there is no bound.
#[derive(Clone, Copy)]
struct Bound {
    rpcs: f64,
    fuse: f64,
}
const fn at_most(rpcs: f64, fuse: f64) -> Bound {
    Bound { rpcs, fuse }
}
const ANY: f64 = f64::INFINITY;
/// One GETATTR of the directory after each change in it. `fuse_dir_changed` of kernels up to at least 6.18 invalidates all of
/// its attributes (`fuse_invalidate_attr`, STATX_BASIC_STATS), and the next path walk through it asks for mode and owner:
/// `fuse_permission` with `default_permissions`. No reply and no notification carries attributes of a directory, and without
/// `default_permissions` names in the kernel's cache would be walked unchecked. Kernels that invalidate FUSE_STATX_MODDIR only
/// keep mode and owner, and do not ask.
const PARENT_AGAIN: f64 = 1.0;

struct Case {
    name: &'static str,
    /// Is run once for every item before it is counted.
    again: bool,
    act: fn(&Path) -> std::io::Result<()>,
    today: Bound,
    bar: Bound,
}

/// In order: each works on what the ones before it left.
const CASES: &[Case] = &[
    Case {
        name: "create, close",
        again: false,
        act: |path| File::create_new(path).map(drop),
        today: at_most(1.1, 5.0),
        bar: at_most(1.1, 4.0 + PARENT_AGAIN),
    },
    Case {
        name: "setattr",
        again: false,
        act: |path| fs::set_permissions(path, fs::Permissions::from_mode(0o600)),
        today: at_most(2.0, 5.0),
        bar: at_most(1.0, ANY),
    },
    Case {
        name: "stat again",
        again: true,
        act: |path| Ok(lstat(path).map(drop)?),
        today: at_most(2.0, 5.0),
        bar: at_most(0.0, 0.0),
    },
    Case {
        name: "failing stat again",
        again: true,
        act: |path| match lstat(path.with_extension("missing")).map_err(std::io::Error::from) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other.and(Err(ErrorKind::AlreadyExists.into())),
        },
        today: at_most(1.0, 4.0),
        bar: at_most(0.0, ANY),
    },
    Case {
        name: "open, read, close again",
        again: true,
        act: |path| File::open(path)?.read(&mut [0]).map(drop),
        today: at_most(0.0, 3.0),
        bar: at_most(0.0, 3.0),
    },
    Case {
        name: "rename",
        again: false,
        act: |path| fs::rename(path, path.with_extension("moved")),
        today: at_most(3.0, 11.0),
        bar: at_most(1.0, ANY),
    },
    Case {
        name: "unlink",
        again: false,
        act: |path| fs::remove_file(path.with_extension("moved")),
        today: at_most(1.0, 2.0),
        bar: at_most(1.0, 2.0),
    },
    Case {
        name: "mkdir",
        again: false,
        act: |path| fs::create_dir(path),
        today: at_most(1.0, 3.0),
        bar: at_most(1.0, 2.0 + PARENT_AGAIN),
    },
    Case {
        name: "opendir, closedir again",
        again: true,
        act: |path| fs::read_dir(path).map(drop),
        today: at_most(0.0, 8.0),
        bar: at_most(0.0, ANY),
    },
    Case {
        name: "rmdir",
        again: false,
        act: |path| fs::remove_dir(path),
        today: at_most(1.0, 2.0),
        bar: at_most(1.0, 2.0),
    },
];

/// The table, and the rows that exceed a bound.
struct Table {
    check: bool,
    exceeded: Vec<String>,
}

impl Table {
    fn row(&mut self, name: &str, items: u32, made: &Counts, today: Bound, bar: Bound) {
        let items = f64::from(items);
        let (rpcs, fuse) = (made.rpcs() as f64, made.fuse() as f64);
        let within = |bound: Bound| rpcs <= bound.rpcs * items + FIRST && fuse <= bound.fuse * items + FIRST;
        let show = |bound: f64| if bound.is_finite() { format!("{bound}") } else { "-".to_owned() };
        let verdict = match (within(bar), within(today)) {
            (true, _) if bar.rpcs.is_infinite() && bar.fuse.is_infinite() => "",
            (true, _) => "reached",
            (false, true) => "NOT reached",
            (false, false) => "NOT reached, and more than before",
        };
        if !within(today) || self.check && !within(bar) {
            self.exceeded.push(format!("{name}: {verdict}"));
        }
        println!(
            "{name:<24} {:>8.4} {:>7} {:>8.4} {:>7}  {verdict:<12}  {}",
            rpcs / items,
            show(bar.rpcs),
            fuse / items,
            show(bar.fuse),
            made.text(items)
        );
    }
}

/// Prints requests per operation, and fails if one has more than its bound.
pub fn run(options: &Trips) -> Result<()> {
    // The wake-ups are counted by the reads of /dev/fuse.
    let mut system = System::up_with(&["-o", "nouring"])?;
    let dir = system.mount().join("trips");
    fs::create_dir(&dir)?;
    // The first create fetches a sequence, and the OSTs grant room.
    File::create_new(dir.join("first"))?;
    let mut table = Table { check: options.check, exceeded: Vec::new() };
    println!("{:<24} {:>8} {:>7} {:>8} {:>7}", "per operation", "RPCs", "bar", "FUSE", "bar");
    for case in CASES {
        let all = || {
            (0..ITEMS).try_for_each(|item| {
                (case.act)(&dir.join(format!("f{item}"))).with_context(|| format!("{} {item}", case.name))
            })
        };
        if case.again {
            all()?;
        }
        let before = Counts::now(&system)?;
        all()?;
        table.row(case.name, ITEMS, &Counts::now(&system)?.since(&before), case.today, case.bar);
    }
    new_files(&system, &mut table, &dir)?;
    on_one_file(&system, &mut table, &dir)?;
    wake_ups(&system, &dir)?;
    list(&mut system, &mut table, options.list)?;
    system.down()?;
    if !table.exceeded.is_empty() {
        bail!("bounds are exceeded: {}", table.exceeded.join("; "));
    }
    Ok(())
}

/// Files that a program creates and then looks at, shortly after another program has looked at their directory and ended.
/// Counted together: reading the counters in between would take a time in which a directory may have no validity.
fn new_files(system: &System, table: &mut Table, dir: &Path) -> Result<()> {
    let file = |item: u32| dir.join(format!("n{item}"));
    let before = Counts::now(system)?;
    output(Command::new("stat").arg(dir))?;
    for item in 0..ITEMS {
        File::create_new(file(item))?;
    }
    for item in 0..ITEMS {
        lstat(file(item))?;
    }
    // The RPCs are those of "create, close".
    let bound = at_most(ANY, 4.0 + PARENT_AGAIN);
    table.row("create, close, stat", ITEMS, &Counts::now(system)?.since(&before), bound, bound);
    Ok(())
}

/// Calls that a program repeats on a file that it has open.
fn on_one_file(system: &System, table: &mut Table, dir: &Path) -> Result<()> {
    type Call = fn(&File, u32) -> std::io::Result<()>;
    // Truncate. The kernel asks for `security.capability` before each truncate (`dentry_needs_remove_privs`): the reply to
    // the one before has brought attributes, so that it no longer knows that there is none. The mount replies from its cache.
    const FTRUNCATE: Bound = at_most(1.0, 2.0);
    let calls: [(&str, Call, Bound); 2] = [
        ("ftruncate", |file, item| file.set_len(u64::from(item % 100)), FTRUNCATE),
        (
            "fcntl lock, unlock",
            |file, _| {
                fcntl_lock(file, FlockOperation::LockExclusive)?;
                Ok(fcntl_lock(file, FlockOperation::Unlock)?)
            },
            at_most(0.0, 2.0),
        ),
    ];
    let file = File::create_new(dir.join("open"))?;
    for (name, call, bound) in calls {
        let before = Counts::now(system)?;
        (0..ITEMS).try_for_each(|item| call(&file, item))?;
        table.row(name, ITEMS, &Counts::now(system)?.since(&before), bound, bound);
    }
    Ok(())
}

/// A large directory on a mount that has never seen it, and again: names and attributes, as `find -size` asks for them,
/// and `ls -l`, which also asks for the ACL of each file. The bars are those of 100 000 files.
fn list(system: &mut System, table: &mut Table, files: u32) -> Result<()> {
    const RPCS_MAX: f64 = 110.0 / 100_000.0;
    const FUSE_MAX: f64 = 700.0 / 100_000.0;
    let dir = system.mount().join("list");
    fs::create_dir(&dir)?;
    for file in 0..files {
        File::create_new(dir.join(format!("file{file}")))?;
    }
    // Closes of the last files may be sent a moment later: until then these files are open, and others ask for their sizes.
    crate::shell::run(system.nacre().arg("sync").arg(system.mount()))?;
    let (walk, ls) = (at_most(0.02, 0.05), at_most(0.02, 2.1));
    let rows: [(&str, List, Bound, Bound); 4] = [
        ("list, stat: cold", list_and_stat, walk, at_most(RPCS_MAX, FUSE_MAX)),
        ("list, stat: again", list_and_stat, walk, at_most(0.0, FUSE_MAX)),
        ("ls -l: cold", list_with_ls, ls, at_most(RPCS_MAX, ANY)),
        ("ls -l: again", list_with_ls, ls, at_most(0.0, ANY)),
    ];
    println!("{:<24} {:>8} {:>7} {:>8} {:>7}", "per file of a directory", "RPCs", "bar", "FUSE", "bar");
    for pair in rows.chunks(2) {
        let dir = system.second_mount()?.join("list");
        for (name, list, today, bar) in pair {
            let before = Counts::now(system)?;
            list(&dir)?;
            table.row(name, files, &Counts::now(system)?.since(&before), *today, *bar);
        }
    }
    Ok(())
}

type List = fn(&Path) -> Result<()>;

fn list_and_stat(dir: &Path) -> Result<()> {
    let opened = File::open(dir)?;
    for entry in fs::read_dir(dir)? {
        statat(&opened, entry?.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn list_with_ls(dir: &Path) -> Result<()> {
    output(Command::new("ls").arg("-l").arg(dir)).map(drop)
}

/// Samples by name: `mdc.NAME`, `osc.NAME`, and `NAME` for a request of the kernel.
struct Counts(BTreeMap<String, u64>);

impl Counts {
    fn now(system: &System) -> Result<Self> {
        let names = ["llite.*.fuse_requests", "mdc.*.stats", "osc.*.stats"];
        let text = output(system.nacre().args(["lctl", "get_param"]).args(names))?;
        let mut counts = BTreeMap::new();
        let mut kind = "";
        for line in text.lines() {
            if let Some((name, _)) = line.split_once('=') {
                kind = match name.split('.').next() {
                    Some("mdc") => "mdc.",
                    Some("osc") => "osc.",
                    _ => "",
                };
            }
            let mut words = line.split_whitespace();
            // Only requests take time: lines with another unit count something about them.
            let (name, n) = (words.next(), words.next());
            if let (Some(name), Some(n), [Some("samples"), Some("[usecs]")]) =
                (name, n, [words.next(), words.next()])
            {
                let of_no_operation =
                    matches!(name, "obd_ping" | "seq_query" | "statfs" | "connect" | "disconnect")
                        || matches!(name, "forget" | "batch_forget");
                if !of_no_operation {
                    *counts.entry(format!("{kind}{name}")).or_default() += n.parse::<u64>()?;
                }
            }
        }
        Ok(Self(counts))
    }
    fn since(&self, before: &Self) -> Self {
        let made =
            self.0.iter().map(|(name, n)| (name.clone(), n - before.0.get(name).copied().unwrap_or(0)));
        Self(made.filter(|(_, n)| *n > 0).collect())
    }
    fn rpcs(&self) -> u64 {
        self.0.iter().filter(|(name, _)| name.contains('.')).map(|(_, n)| n).sum()
    }
    fn fuse(&self) -> u64 {
        self.0.iter().filter(|(name, _)| !name.contains('.')).map(|(_, n)| n).sum()
    }
    fn text(&self, items: f64) -> String {
        let one = |(name, n): (&String, &u64)| match *n as f64 / items {
            each if each < 0.05 => format!("{n} in all {name}"),
            each => format!("{each:.2} {name}"),
        };
        self.0.iter().map(one).collect::<Vec<_>>().join(", ")
    }
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
    ensure!(requests >= u64::from(ITEMS) * 3, "only {requests} requests were seen");
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
