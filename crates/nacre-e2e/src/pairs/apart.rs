//! One mount is stopped, or cut off from all servers, while the other changes its files.
//!
//! Each register is a file, a name or a directory whose state is a number that only grows. The writer on the first mount
//! publishes the number of a change before it begins and again when it is complete. A reader on the second mount notes the
//! latest complete number before its call and the latest begun number after it: the number that it reads must lie between
//! the two, whatever its kernel or client has cached, while the mount is stopped, after it continues, and after an
//! eviction. A reader whose call waits for the stopped mount sees nothing more, so new readers start all the time.

use crate::crash::cluster::{Cluster, MOUNTS, SERVERS};
use crate::system::binary;
use anyhow::{Context as _, Result, bail, ensure};
use nacre_testkit::wait::pause;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How the mount is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum How {
    /// SIGSTOP
    Stop,
    /// Its link is cut
    Cut,
}

/// Before and after the fault.
const AROUND: Duration = Duration::from_secs(3);
/// So long before the fault nothing changes, and the second mount and its kernel get locks and validities of everything.
const QUIET: Duration = Duration::from_secs(4);
/// Readers of each register that start while the mount is away: one in this time.
const NEW_READERS: Duration = Duration::from_millis(700);
/// Between two changes of a register.
const CHANGE_EVERY: Duration = Duration::from_millis(4);
/// Readers that still wait so long after the fault hang.
const HANG: Duration = Duration::from_secs(60);
/// The longest wait of a change of a register for a mount that is away: two leases, and as much again as a margin.
const WAIT_MAX: Duration = Duration::from_secs(40);

struct Register {
    name: &'static str,
    /// The file that there is at first.
    file: &'static str,
    /// Makes the state `number`.
    change: fn(&Path, u64) -> io::Result<()>,
    /// The state that is seen. `at_least`: complete before the call.
    look: fn(&Path, u64) -> io::Result<Seen>,
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    State(u64),
    /// A state before this one cannot be.
    Before(u64),
    /// It is this one or a later one.
    From(u64),
}

fn number(text: &[u8]) -> io::Result<Seen> {
    let text = String::from_utf8_lossy(text);
    let number = text.parse().map_err(|_| io::Error::other(format!("{text:?} is no number")))?;
    Ok(Seen::State(number))
}
fn at(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("at{number}"))
}
fn is_there(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}
/// The state of a register of the name `at{state}`.
fn listed(dir: &Path) -> io::Result<Seen> {
    let mut states = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        states.extend(name.strip_prefix("at").and_then(|n| n.parse::<u64>().ok()));
    }
    match states[..] {
        [state] => Ok(Seen::State(state)),
        // POSIX leaves open whether a listing has a name that is renamed meanwhile; both or neither may be there.
        _ => Ok(Seen::From(0)),
    }
}
fn rename(dir: &Path, state: u64) -> io::Result<()> {
    fs::rename(at(dir, state - 1), at(dir, state))
}

const REGISTERS: [Register; 8] = [
    Register {
        name: "size",
        file: "file",
        change: |dir, n| OpenOptions::new().write(true).open(dir.join("file"))?.set_len(n),
        look: |dir, _| Ok(Seen::State(fs::metadata(dir.join("file"))?.size())),
    },
    Register {
        name: "mtime",
        file: "file",
        change: |dir, n| {
            let time = Timespec { tv_sec: n.cast_signed(), tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            Ok(rustix::fs::utimensat(CWD, dir.join("file"), &times, AtFlags::empty())?)
        },
        look: |dir, _| Ok(Seen::State(fs::metadata(dir.join("file"))?.mtime().cast_unsigned())),
    },
    Register {
        name: "content",
        file: "file",
        change: |dir, n| {
            let text = format!("{n:016}");
            OpenOptions::new().write(true).open(dir.join("file"))?.write_all_at(text.as_bytes(), 0)
        },
        look: |dir, _| {
            let content = fs::read(dir.join("file"))?;
            if content.is_empty() { Ok(Seen::State(0)) } else { number(&content) }
        },
    },
    Register {
        name: "xattr",
        file: "file",
        change: |dir, n| {
            let value = n.to_string();
            Ok(rustix::fs::setxattr(dir.join("file"), "user.n", value.as_bytes(), XattrFlags::empty())?)
        },
        look: |dir, _| {
            let mut value = [0; 32];
            let length = rustix::fs::getxattr(dir.join("file"), "user.n", &mut value)?;
            number(&value[..length])
        },
    },
    // A name that is gone is not found any more.
    Register {
        name: "old name",
        file: "at0",
        change: rename,
        look: |dir, least| {
            let old = least.saturating_sub(1);
            Ok(if is_there(&at(dir, old))? { Seen::Before(old + 1) } else { Seen::From(old) })
        },
    },
    // A name that was not there is found.
    Register {
        name: "new name",
        file: "at0",
        change: rename,
        look: |dir, least| {
            // Absent names ahead, which the kernel may keep.
            for ahead in 1..4 {
                if is_there(&at(dir, least + ahead))? {
                    return Ok(Seen::From(least + ahead));
                }
            }
            Ok(if is_there(&at(dir, least))? { Seen::From(least) } else { Seen::From(least + 1) })
        },
    },
    Register { name: "listing", file: "at0", change: rename, look: |dir, _| listed(dir) },
    // The attributes of a directory.
    Register {
        name: "subdirectories",
        file: "file",
        change: |dir, n| fs::create_dir(dir.join(format!("sub{n}"))),
        look: |dir, _| Ok(Seen::State(fs::metadata(dir)?.nlink() - 2)),
    },
];

#[derive(Default)]
struct State {
    begun: AtomicU64,
    complete: AtomicU64,
}

struct Shared {
    mounts: [PathBuf; MOUNTS],
    states: [State; REGISTERS.len()],
    stop: AtomicBool,
    quiet: AtomicBool,
    away: AtomicBool,
    looks: AtomicU64,
    /// Looks that began and ended while the mount was away.
    looks_away: AtomicU64,
    waiting: AtomicU64,
    wrong: Mutex<Vec<String>>,
    began: Instant,
    longest: Mutex<Vec<(Duration, String)>>,
}

impl Shared {
    fn dir(&self, mount: usize, register: usize) -> PathBuf {
        self.mounts[mount].join(format!("register{register}"))
    }
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
    fn tell(&self, text: String) {
        let text = format!("[{:.3} s] {text}", self.began.elapsed().as_secs_f64());
        eprintln!("{text}");
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
    fn took(&self, what: &str, time: Duration) {
        if time > Duration::from_secs(1) {
            let text = format!("{what}, until {:.1} s", self.began.elapsed().as_secs_f64());
            self.longest.lock().unwrap_or_else(PoisonError::into_inner).push((time, text));
        }
    }

    /// Changes a register until the end.
    fn write(&self, register: usize) {
        let (dir, state) = (self.dir(0, register), &self.states[register]);
        let Register { name, change, .. } = &REGISTERS[register];
        while !self.is_over() {
            if self.quiet.load(Ordering::SeqCst) {
                pause(CHANGE_EVERY);
                continue;
            }
            let next = state.complete.load(Ordering::SeqCst) + 1;
            state.begun.store(next, Ordering::SeqCst);
            let begun = Instant::now();
            if let Err(error) = change(&dir, next) {
                return self.tell(format!("change {next} of {name}: {error}"));
            }
            let took = begun.elapsed();
            self.took(&format!("change {next} of {name}"), took);
            if took > WAIT_MAX {
                self.tell(format!("change {next} of {name} took {:.1} s", took.as_secs_f64()));
            }
            state.complete.store(next, Ordering::SeqCst);
            pause(CHANGE_EVERY);
        }
    }
    /// Works beside the registers, where the mount that is away has nothing: it must not wait.
    fn beside(&self) {
        let dir = self.mounts[0].join("beside");
        for n in 0.. {
            if self.is_over() {
                return;
            }
            let (begun, name) = (Instant::now(), dir.join(format!("f{n}")));
            let done = fs::write(&name, "x").and_then(|()| fs::remove_file(&name));
            if let Err(error) = done {
                return self.tell(format!("work beside the registers: {error}"));
            }
            let took = begun.elapsed();
            self.took("work beside the registers", took);
            if took > Duration::from_secs(3) {
                self.tell(format!("work beside the registers took {:.1} s", took.as_secs_f64()));
            }
            pause(CHANGE_EVERY);
        }
    }
    /// Looks at a register until the end; `once`: until the mount has been away.
    fn read(&self, register: usize) {
        let (dir, state) = (self.dir(1, register), &self.states[register]);
        let Register { name, look, .. } = &REGISTERS[register];
        while !self.is_over() {
            let (began, away) = (Instant::now(), self.away.load(Ordering::SeqCst));
            let least = state.complete.load(Ordering::SeqCst);
            let seen = look(&dir, least);
            let most = state.begun.load(Ordering::SeqCst);
            let fits = match &seen {
                Ok(Seen::State(seen)) => (least..=most).contains(seen),
                Ok(Seen::Before(limit)) => least < *limit,
                Ok(Seen::From(seen)) => *seen <= most,
                Err(_) => false,
            };
            if !fits {
                self.tell(format!(
                    "{name}: {seen:?} seen in a call of {:.6} s, must be from {least} to {most}; the mount was {}",
                    began.elapsed().as_secs_f64(),
                    if away { "away" } else { "there" },
                ));
                return;
            }
            self.looks.fetch_add(1, Ordering::Relaxed);
            if away && self.away.load(Ordering::SeqCst) {
                self.looks_away.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Stops a mount or cuts it off, each time for so many seconds.
pub(super) fn run(how: How, seconds: &[f64]) -> Result<()> {
    let cluster = Cluster::start(binary()?, &[None, None, None, None], false)?;
    let shared = Shared {
        mounts: [cluster.mount(0), cluster.mount(1)],
        states: Default::default(),
        stop: AtomicBool::new(false),
        quiet: AtomicBool::new(false),
        away: AtomicBool::new(false),
        looks: AtomicU64::new(0),
        looks_away: AtomicU64::new(0),
        waiting: AtomicU64::new(0),
        wrong: Mutex::default(),
        began: Instant::now(),
        longest: Mutex::default(),
    };
    prepare(&shared)?;
    let hung = std::thread::scope(|scope| {
        let shared = &shared;
        let mut readers = Vec::new();
        let mut read = |register| {
            readers.push(scope.spawn(move || {
                shared.waiting.fetch_add(1, Ordering::SeqCst);
                shared.read(register);
                shared.waiting.fetch_sub(1, Ordering::SeqCst);
            }));
        };
        scope.spawn(|| shared.beside());
        for register in 0..REGISTERS.len() {
            scope.spawn(move || shared.write(register));
            read(register);
        }
        let mut outcome = Ok(());
        for seconds in seconds {
            pause(AROUND);
            shared.quiet.store(true, Ordering::SeqCst);
            pause(QUIET);
            outcome = outcome.and(away(&cluster, how, true));
            shared.away.store(true, Ordering::SeqCst);
            shared.quiet.store(false, Ordering::SeqCst);
            let (begun, before) = (Instant::now(), shared.looks_away.load(Ordering::Relaxed));
            let length = Duration::from_secs_f64(*seconds);
            while begun.elapsed() < length {
                pause(NEW_READERS.min(length));
                (0..REGISTERS.len()).for_each(&mut read);
            }
            shared.away.store(false, Ordering::SeqCst);
            outcome = outcome.and(away(&cluster, how, false));
            let looks = shared.looks_away.load(Ordering::Relaxed) - before;
            println!("{how:?} for {seconds} s: {looks} looks while the mount was away");
        }
        pause(AROUND * 3);
        shared.stop.store(true, Ordering::SeqCst);
        let end = Instant::now();
        while shared.waiting.load(Ordering::SeqCst) > 0 && end.elapsed() < HANG {
            pause(Duration::from_millis(50));
        }
        let hung = shared.waiting.load(Ordering::SeqCst);
        if hung > 0 {
            outcome = outcome.and(Err(anyhow::anyhow!("{hung} readers hang")));
            super::watch::abort(&shared.mounts);
        }
        outcome
    });
    finish(cluster, &shared, hung)
}

fn away(cluster: &Cluster, how: How, begins: bool) -> Result<()> {
    let host = SERVERS.len() + 1;
    match how {
        How::Stop => cluster.freeze(host, begins),
        How::Cut => cluster.link(host, !begins),
    }
}

fn prepare(shared: &Shared) -> Result<()> {
    for (at, register) in REGISTERS.iter().enumerate() {
        let dir = shared.dir(0, at);
        fs::create_dir(&dir)?;
        let file = dir.join(register.file);
        drop(File::create_new(&file)?);
        let time = Timespec { tv_sec: 0, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty())?;
        rustix::fs::setxattr(&file, "user.n", b"0", XattrFlags::empty())?;
    }
    fs::create_dir(shared.mounts[0].join("beside"))?;
    // Warm, and both mounts are connected to everything.
    let open = rustix::fs::open(shared.dir(1, 0), OFlags::RDONLY, Mode::empty());
    open.context("the second mount does not show the registers")?;
    Ok(())
}

fn finish(mut cluster: Cluster, shared: &Shared, outcome: Result<()>) -> Result<()> {
    let mut longest = shared.longest.lock().unwrap_or_else(PoisonError::into_inner).clone();
    longest.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    for (time, what) in longest.iter().take(12) {
        println!("  {:.1} s: {what}", time.as_secs_f64());
    }
    let states: Vec<String> = (REGISTERS.iter().zip(&shared.states))
        .map(|(register, state)| format!("{} {}", register.name, state.complete.load(Ordering::SeqCst)))
        .collect();
    println!("{} looks; states: {}", shared.looks.load(Ordering::Relaxed), states.join(", "));
    let wrong = shared.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if !wrong.is_empty() || outcome.is_err() {
        eprint!("{}", cluster.last_lines(12));
    }
    let stopped = outcome.and_then(|()| cluster.stop());
    ensure!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    let left = stopped?;
    if !left.is_empty() {
        bail!("{}", left.join("; "));
    }
    Ok(())
}
