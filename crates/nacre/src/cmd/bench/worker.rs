//! One process of `nacre bench md`: obeys phases on stdin, prints start and end times on stdout.
//!
//! A worker is a process of its own, so that a client is loaded as by separate programs. It reads a line with a
//! phase name, does the phase over its items, and prints `START END OPERATIONS` in nanoseconds of the monotonic clock.

use anyhow::{Context as _, Result, bail};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Timestamps, XattrFlags, fcntl_lock, lstat, setxattr, utimensat,
};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
pub(crate) struct WorkerArgs {
    /// Directory of this worker (its own, or the shared one).
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    rank: u32,
    #[arg(long)]
    items: u32,
    #[arg(long)]
    data_bytes: usize,
}

/// One phase of the load; the name is also the row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    FileCreate,
    FileStat,
    FileRead,
    FileSetattr,
    FileUtime,
    FileTruncate,
    FileSetxattr,
    FileLock,
    FileLink,
    FileSymlink,
    FileRename,
    FileRemove,
    DirCreate,
    DirStat,
    DirSetattr,
    DirRename,
    DirRemove,
}
impl Phase {
    pub(super) const ALL: [Phase; 17] = [
        Phase::FileCreate,
        Phase::FileStat,
        Phase::FileRead,
        Phase::FileSetattr,
        Phase::FileUtime,
        Phase::FileTruncate,
        Phase::FileSetxattr,
        Phase::FileLock,
        Phase::FileLink,
        Phase::FileSymlink,
        Phase::FileRename,
        Phase::FileRemove,
        Phase::DirCreate,
        Phase::DirStat,
        Phase::DirSetattr,
        Phase::DirRename,
        Phase::DirRemove,
    ];
    /// The phases whose operations take a slot. Each works on the files that the one before it left.
    pub(super) const CHANGES: [Phase; 6] = [
        Phase::FileCreate,
        Phase::FileSetattr,
        Phase::FileRemove,
        Phase::DirCreate,
        Phase::DirSetattr,
        Phase::DirRemove,
    ];
    pub(super) fn name(self) -> &'static str {
        match self {
            Phase::FileCreate => "file-create",
            Phase::FileStat => "file-stat",
            Phase::FileRead => "file-read",
            Phase::FileSetattr => "file-setattr",
            Phase::FileUtime => "file-utime",
            Phase::FileTruncate => "file-truncate",
            Phase::FileSetxattr => "file-setxattr",
            Phase::FileLock => "file-lock",
            Phase::FileLink => "file-link",
            Phase::FileSymlink => "file-symlink",
            Phase::FileRename => "file-rename",
            Phase::FileRemove => "file-remove",
            Phase::DirCreate => "dir-create",
            Phase::DirStat => "dir-stat",
            Phase::DirSetattr => "dir-setattr",
            Phase::DirRename => "dir-rename",
            Phase::DirRemove => "dir-remove",
        }
    }
    /// Whether tasks of the client library can run it ([`super::tasks`]).
    pub(super) fn is_in_library(self) -> bool {
        Self::CHANGES.contains(&self) || matches!(self, Phase::FileRename | Phase::DirRename)
    }
    pub(super) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.name() == name)
    }
}

fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    u64::try_from(t.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(t.tv_nsec).unwrap_or(0)
}

pub(crate) fn run(args: &WorkerArgs) -> Result<()> {
    let data = vec![0x5a_u8; args.data_bytes];
    // As mdtest does: what is measured is one name, not the way to it.
    std::env::set_current_dir(&args.dir).with_context(|| args.dir.display().to_string())?;
    let stdin = std::io::stdin().lock();
    let mut stdout = std::io::stdout().lock();
    let mut done = Vec::new();
    for line in stdin.lines() {
        let line = line?;
        let Some(phase) = Phase::parse(line.trim()) else { bail!("unknown phase {line:?}") };
        let removes = match phase {
            Phase::FileRemove => Some(Phase::FileRename),
            Phase::DirRemove => Some(Phase::DirRename),
            _ => None,
        };
        let moved = removes.is_some_and(|rename| done.contains(&rename));
        // These two phases repeat one call on one open file.
        let opened = matches!(phase, Phase::FileTruncate | Phase::FileLock)
            .then(|| OpenOptions::new().write(true).open(format!("file.{}.0", args.rank)))
            .transpose()
            .with_context(|| format!("{} in {}", phase.name(), args.dir.display()))?;
        let start = now_ns();
        for item in 0..args.items {
            one(args, phase, moved, item, &data, opened.as_ref())
                .with_context(|| format!("{} of item {item} in {}", phase.name(), args.dir.display()))?;
        }
        done.push(phase);
        writeln!(stdout, "{start} {} {}", now_ns(), args.items)?;
        stdout.flush()?;
    }
    Ok(())
}

/// `moved`: a rename phase has run on what is to be removed. `opened`: the file of a phase that repeats a call on it.
fn one(
    args: &WorkerArgs,
    phase: Phase,
    moved: bool,
    item: u32,
    data: &[u8],
    opened: Option<&File>,
) -> std::io::Result<()> {
    let path = |prefix: &str| PathBuf::from(format!("{prefix}.{}.{item}", args.rank));
    match phase {
        Phase::FileCreate => {
            let mut f = OpenOptions::new().write(true).create_new(true).open(path("file"))?;
            if !data.is_empty() {
                f.write_all(data)?;
            }
            drop(f);
        }
        // Not `symlink_metadata`, which asks for the birth time too: the kernel has none for a new file and sends a request.
        Phase::FileStat => lstat(path("file")).map(drop)?,
        Phase::FileRead => {
            let mut buf = vec![0; data.len().max(1)];
            let mut f = File::open(path("file"))?;
            while f.read(&mut buf)? != 0 {}
        }
        Phase::FileSetattr => fs::set_permissions(path("file"), Permissions::from_mode(0o600))?,
        Phase::FileUtime => {
            let time = Timespec { tv_sec: i64::from(item), tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, path("file"), &times, AtFlags::empty())?;
        }
        Phase::FileTruncate => {
            opened.ok_or(std::io::ErrorKind::NotFound)?.set_len(u64::from(item % 4096))?;
        }
        Phase::FileSetxattr => {
            setxattr(path("file"), "user.bench", &item.to_le_bytes(), XattrFlags::empty())?;
        }
        Phase::FileLock => {
            let file = opened.ok_or(std::io::ErrorKind::NotFound)?;
            fcntl_lock(file, FlockOperation::LockExclusive)?;
            fcntl_lock(file, FlockOperation::Unlock)?;
        }
        Phase::FileLink => fs::hard_link(path("file"), path("link"))?,
        Phase::FileSymlink => std::os::unix::fs::symlink("target", path("symlink"))?,
        Phase::FileRename => fs::rename(path("file"), path("moved"))?,
        Phase::FileRemove => fs::remove_file(path(if moved { "moved" } else { "file" }))?,
        Phase::DirCreate => fs::create_dir(path("dir"))?,
        Phase::DirStat => lstat(path("dir")).map(drop)?,
        Phase::DirSetattr => fs::set_permissions(path("dir"), Permissions::from_mode(0o700))?,
        Phase::DirRename => fs::rename(path("dir"), path("dmoved"))?,
        Phase::DirRemove => fs::remove_dir(path(if moved { "dmoved" } else { "dir" }))?,
    }
    Ok(())
}
