//! Names that all workers change without any order: every outcome is possible, but only errors that a local file system
//! gives, whole records in files, and the same on both mounts as soon as nobody works.

use super::Shared;
use crate::crash::Rng;
use anyhow::{Context as _, Result, ensure};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

const DIR: &str = "wild";
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Appends are of whole records.
const RECORD: &[u8] = b"record.\n";
/// Errors that a local file system gives when several programs change the same names.
const ALLOWED: [Errno; 8] = [
    Errno::NOENT,
    Errno::EXIST,
    Errno::NOTEMPTY,
    Errno::ISDIR,
    Errno::NOTDIR,
    Errno::INVAL,
    Errno::PERM,
    Errno::NODATA,
];

pub(super) fn prepare(root: &Path) -> Result<()> {
    fs::create_dir(root.join(DIR))?;
    Ok(fs::create_dir(root.join(DIR).join("sub"))?)
}

/// One call.
pub(super) fn step(shared: &Shared, worker: usize, rng: &mut Rng) {
    let root = shared.mounts[shared.mount_of(worker)].join(DIR);
    let mut name = || {
        let name = NAMES[rng.below(NAMES.len() as u64) as usize];
        match rng.below(4) {
            0 => Path::new("sub").join(name),
            // Through a name that may be a directory.
            1 => Path::new(NAMES[rng.below(NAMES.len() as u64) as usize]).join(name),
            _ => PathBuf::from(name),
        }
    };
    let (one, two) = (name(), name());
    let (call, (a, b)) = (rng.below(CALLS.len() as u64) as usize, (root.join(&one), root.join(&two)));
    let (text, call) = CALLS[call];
    let text = format!("wild {text} {} {}", one.display(), two.display());
    let outcome = shared.call(worker, &text, || {
        let outcome = call(&a, &b);
        (outcome, outcome.map_or_else(|e| format!(" = {e:?}"), |()| String::new()))
    });
    shared.operations.fetch_add(1, Ordering::Relaxed);
    if let Err(errno) = outcome
        && !ALLOWED.contains(&errno)
    {
        let time_line = shared.time_line("wild");
        shared.violation(format!(
            "worker {worker} on mount {}: {text}: {}\n{time_line}",
            shared.mount_of(worker),
            std::io::Error::from(errno)
        ));
    }
}

type Call = (&'static str, fn(&Path, &Path) -> Result<(), Errno>);

const CALLS: [Call; 17] = [
    ("create", |a, _| open(a, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).map(drop)),
    ("open-create", |a, _| open(a, OFlags::CREATE | OFlags::RDWR).map(drop)),
    ("append", |a, _| {
        let mut file = open(a, OFlags::APPEND | OFlags::WRONLY)?;
        file.write_all(RECORD).map_err(errno)
    }),
    ("empty", |a, _| open(a, OFlags::TRUNC | OFlags::WRONLY).map(drop)),
    ("rename", |a, b| rustix::fs::rename(a, b)),
    ("rename", |a, b| rustix::fs::rename(a, b)),
    ("exchange", |a, b| rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)),
    ("link", |a, b| rustix::fs::linkat(CWD, a, CWD, b, AtFlags::empty())),
    ("unlink", |a, _| rustix::fs::unlink(a)),
    ("mkdir", |a, _| rustix::fs::mkdir(a, Mode::from_raw_mode(0o755))),
    ("rmdir", |a, _| rustix::fs::rmdir(a)),
    ("symlink", |a, _| rustix::fs::symlink("nothing", a)),
    ("chmod", |a, b| {
        let mode = if b.file_name() < a.file_name() { 0o700 } else { 0o755 };
        let file = open(a, OFlags::RDONLY)?;
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode))
    }),
    ("setxattr", |a, b| {
        rustix::fs::lsetxattr(a, "user.b", b.as_os_str().as_encoded_bytes(), XattrFlags::empty())
    }),
    ("stat", |a, _| rustix::fs::statat(CWD, a, AtFlags::SYMLINK_NOFOLLOW).map(drop)),
    ("read", |a, _| {
        let mut file = open(a, OFlags::RDONLY)?;
        if rustix::fs::fstat(&file).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory) {
            let entries = rustix::fs::Dir::new(file)?;
            for entry in entries {
                entry?;
            }
            return Ok(());
        }
        let mut all = Vec::new();
        file.read_to_end(&mut all).map_err(errno)?;
        rustix::fs::fstat(&file)?;
        // A part of a record is a torn append.
        if all.chunks(RECORD.len()).all(|part| part == RECORD) { Ok(()) } else { Err(Errno::BADMSG) }
    }),
    ("list", |_, b| {
        let dir = b.parent().unwrap_or(b);
        for entry in fs::read_dir(dir).map_err(errno)? {
            let entry = entry.map_err(errno)?;
            // A name that another worker has removed since.
            match entry.metadata().map_err(errno) {
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }),
];

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    Ok(File::from(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?))
}

/// While nobody works: all mounts show the same. The number of names compared.
pub(super) fn compare(mounts: &[PathBuf]) -> Result<u64> {
    let mut views = Vec::new();
    for mount in mounts {
        let mut view = BTreeMap::new();
        walk(&mount.join(DIR), Path::new(""), &mut view)?;
        views.push(view);
    }
    for view in views.iter().skip(1) {
        for (name, seen) in view {
            ensure!(
                views[0].get(name) == Some(seen),
                "{}: {:?} on the first mount, {seen} here",
                name.display(),
                views[0].get(name)
            );
        }
        ensure!(
            view.len() == views[0].len(),
            "{} names on the first mount, {} here",
            views[0].len(),
            view.len()
        );
    }
    Ok(views.iter().map(|view| view.len() as u64).sum())
}

fn walk(root: &Path, below: &Path, view: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in fs::read_dir(root.join(below)).with_context(|| below.display().to_string())? {
        let name = below.join(entry?.file_name());
        let path = root.join(&name);
        let meta = fs::symlink_metadata(&path).with_context(|| path.display().to_string())?;
        let mut xattr = [0; 4096];
        let length = rustix::fs::lgetxattr(&path, "user.b", &mut xattr).unwrap_or(0);
        let tail =
            xattr[..length].iter().rev().take(12).rev().map(|byte| char::from(*byte)).collect::<String>();
        let content = if meta.is_file() { fs::read(&path)?.len() } else { 0 };
        let size = if meta.is_dir() { 0 } else { meta.size() };
        let times = (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec());
        let text = format!(
            "{:#x} {:o} {} links {size} bytes, {content} read, xattr {tail:?}, times {times:?}",
            meta.ino(),
            meta.mode(),
            meta.nlink()
        );
        view.insert(name.clone(), text);
        if meta.is_dir() {
            walk(root, &name, view)?;
        }
    }
    Ok(())
}
