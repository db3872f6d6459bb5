//! Opening, locking and formatting the directory of a store.

use crate::dirs::{Dirs, OPEN_DIR, names};
use crate::error::OpenError;
use crate::holder::Holder;
use crate::path::{FANOUT, Place, parse_blob, parse_number};
use crate::probe::{Features, probe};
use crate::raw::{read_append, retry, write_all};
use crate::store::{FsConfig, FsStore};
use bytes::Bytes;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;

const DIR_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

impl FsStore {
    /// Opens a formatted directory and takes its lock.
    ///
    /// # Errors
    /// `Busy` names the process that serves it; `NotAStore` when it was never formatted.
    pub fn open(path: &Path, config: &FsConfig) -> Result<Self, OpenError> {
        let (root, text) = open_formatted(path)?;
        let lock = take_lock(root.as_fd(), &text)?;
        Self::build(root, lock, text, config)
    }

    /// Opens a formatted directory of which nothing is going to be changed, and takes its lock as far as the medium
    /// lets: where nothing can be written a lock file that is there is locked as it is.
    ///
    /// # Errors
    /// Those of [`FsStore::open`].
    pub fn open_read_only(path: &Path, config: &FsConfig) -> Result<Self, OpenError> {
        let (root, text) = open_formatted(path)?;
        let lock = match take_lock(root.as_fd(), &text) {
            Err(OpenError::ReadOnly { .. }) => lock_as_it_is(root.as_fd(), &text)?,
            other => other?,
        };
        let dirs = Dirs::open(root, &text)?;
        let features = Features { cached_read: true, ..Features::default() };
        Ok(Self::new(dirs, Lock { read_only: true, ..lock }, text, features, config))
    }

    /// Makes an empty store of a directory, which is made if need be, and takes its lock. With `reformat` the
    /// files of a store that is there are deleted.
    ///
    /// # Errors
    /// `NotEmpty`: there are files and no store; `HoldsStore`, `NoLabel` without `reformat`; `Busy`.
    pub fn format(path: &Path, config: &FsConfig, reformat: bool) -> Result<Self, OpenError> {
        let text = path.display().to_string();
        match std::fs::create_dir(path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(OpenError::Io { what: "making", path: text, source }),
        }
        let root = open_root(path)?;
        let found = names(root.as_fd()).map_err(OpenError::io("reading", &text))?;
        if found.iter().any(|n| n == "super") {
            if !reformat {
                return Err(OpenError::HoldsStore { path: text });
            }
        } else if let Some(example) = found.iter().find(|n| !OURS.contains(&n.as_str())) {
            // Not even with `reformat`: the directories `log` and `objects` that it would delete may belong to another
            // program.
            return Err(OpenError::NotEmpty { path: text, example: example.clone() });
        } else if !reformat {
            refuse_without_label(root.as_fd(), &text)?;
        }
        let lock = take_lock(root.as_fd(), &text)?;
        // The label goes first: what is half deleted is not a store.
        remove(root.as_fd(), "super").map_err(OpenError::io("deleting `super` of", &text))?;
        for name in ["super.new", "ballast", "ballast.new", "mark"] {
            remove(root.as_fd(), name).map_err(OpenError::io("deleting files of", &text))?;
        }
        make_dir(root.as_fd(), "objects").map_err(OpenError::io("making `objects` in", &text))?;
        for place in Place::all().filter(|p| *p != Place::Root) {
            let name = place.path();
            make_dir(root.as_fd(), &name).map_err(OpenError::io("making directories in", &text))?;
            empty(root.as_fd(), place).map_err(OpenError::io("deleting files of", &text))?;
        }
        let objects = rustix::fs::openat(&root, "objects", OPEN_DIR, Mode::empty());
        for dir in [objects.as_ref().map(AsFd::as_fd).map_err(|e| *e), Ok(root.as_fd())] {
            let synced = dir.and_then(|fd| retry(|| rustix::fs::fsync(fd)));
            synced.map_err(OpenError::io("syncing", &text))?;
        }
        Self::build(root, lock, text, config)
    }

    fn build(root: OwnedFd, lock: Lock, path: String, config: &FsConfig) -> Result<Self, OpenError> {
        let dirs = Dirs::open(root, &path)?;
        let features = probe(&dirs).map_err(OpenError::io("trying out", &path))?;
        Ok(Self::new(dirs, lock, path, features, config))
    }

    /// Takes the lock of a directory without opening the store in it, which may be damaged or half formatted.
    ///
    /// # Errors
    /// `Busy` names the process that serves it.
    pub fn lock(path: &Path) -> Result<DirLock, OpenError> {
        let root = open_root(path)?;
        take_lock(root.as_fd(), &path.display().to_string()).map(|lock| DirLock { _lock: lock })
    }

    /// The process that serves the store in this directory now; `None` if there is none.
    pub fn holder(path: &Path) -> Result<Option<Holder>, OpenError> {
        let text = path.display().to_string();
        let root = open_root(path)?;
        if !exists(root.as_fd(), "lock").map_err(OpenError::io("looking into", &text))? {
            return Ok(None);
        }
        match take_lock(root.as_fd(), &text) {
            Ok(_) => Ok(None),
            Err(OpenError::Busy { holder, .. }) => Ok(Some(holder)),
            Err(other) => Err(other),
        }
    }
}

/// The names that the directory of a store may contain, even if its formatting was interrupted.
const OURS: [&str; 11] = [
    "super",
    "super.new",
    "ballast",
    "ballast.new",
    "mark",
    "lock",
    "log",
    "runs",
    "objects",
    "nacre.sock",
    "lost+found",
];
const _: () = assert!(FANOUT == 256, "`Place::all` counts with a u8");

fn open_root(path: &Path) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(OpenError::io("opening", &path.display().to_string()))
}

/// The lock of a store's directory: it ends with the descriptor, that is with the process. A plain record, which the store
/// takes apart.
pub(crate) struct Lock {
    /// `None`: on a read-only medium without a lock file, where nobody can serve it.
    pub(crate) fd: Option<OwnedFd>,
    pub(crate) read_only: bool,
}

/// The lock of a store that is not open, until it is dropped: no process can serve the store meanwhile.
pub struct DirLock {
    _lock: Lock,
}

fn open_formatted(path: &Path) -> Result<(OwnedFd, String), OpenError> {
    let text = path.display().to_string();
    let root = open_root(path)?;
    for name in ["log", "runs", "objects"] {
        if !exists(root.as_fd(), name).map_err(OpenError::io("looking into", &text))? {
            return Err(OpenError::NotAStore { path: text });
        }
    }
    refuse_without_label(root.as_fd(), &text)?;
    Ok((root, text))
}

/// A label that is missing must not make a store look like an empty directory.
fn refuse_without_label(root: BorrowedFd<'_>, path: &str) -> Result<(), OpenError> {
    let look = || -> Result<Option<String>, Errno> {
        if exists(root, "super")? {
            return Ok(None);
        }
        for place in Place::all().filter(|place| *place != Place::Root) {
            let found = match rustix::fs::openat(root, place.path(), OPEN_DIR, Mode::empty()) {
                Ok(dir) => names(dir.as_fd())?.into_iter().find(|name| is_of_store(place, name)),
                Err(Errno::NOENT) => None,
                Err(e) => return Err(e),
            };
            if let Some(name) = found {
                return Ok(Some(format!("{}/{name}", place.path())));
            }
        }
        Ok(None)
    };
    match look().map_err(OpenError::io("looking into", path))? {
        Some(example) => Err(OpenError::NoLabel { path: String::from(path), example }),
        None => Ok(()),
    }
}
/// Whether this is a file, or a chunk directory, of ours.
fn is_of_store(place: Place, name: &str) -> bool {
    match place {
        Place::Root => false,
        Place::Log | Place::Runs => parse_number(name).is_some(),
        Place::Objects(_) => parse_blob(name.strip_suffix(".d").unwrap_or(name)).is_some(),
    }
}

fn take_lock(root: BorrowedFd<'_>, path: &str) -> Result<Lock, OpenError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::openat(root, "lock", flags, FILE_MODE)
        .map_err(OpenError::io("opening the lock file of", path))?;
    try_lock(lock.as_fd(), path)?;
    // Written over, not cut: on a full device the block that it has must not go to others.
    let mut text = Holder::me().to_text();
    let before = rustix::fs::fstat(&lock).map_or(0, |stat| usize::try_from(stat.st_size).unwrap_or(0));
    while text.len() < before {
        text.push('\n');
    }
    write_all(lock.as_fd(), 0, &[Bytes::from(text)])
        .map_err(OpenError::io("writing the lock file of", path))?;
    Ok(Lock { fd: Some(lock), read_only: false })
}

/// On a medium where nothing can be written.
fn lock_as_it_is(root: BorrowedFd<'_>, path: &str) -> Result<Lock, OpenError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = match rustix::fs::openat(root, "lock", flags, Mode::empty()) {
        Err(Errno::NOENT) => None,
        other => Some(other.map_err(OpenError::io("opening the lock file of", path))?),
    };
    if let Some(fd) = &fd {
        try_lock(fd.as_fd(), path)?;
    }
    Ok(Lock { fd, read_only: true })
}

fn try_lock(lock: BorrowedFd<'_>, path: &str) -> Result<(), OpenError> {
    match rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let mut text = Vec::new();
            read_append(lock, 0, 4096, &mut text).map_err(OpenError::io("reading the lock file of", path))?;
            let holder = Holder::from_text(&String::from_utf8_lossy(&text));
            Err(OpenError::Busy { path: path.into(), holder })
        }
        Err(e) => Err(OpenError::io("locking", path)(e)),
    }
}

pub(crate) fn exists(dir: BorrowedFd<'_>, name: &str) -> Result<bool, Errno> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

fn make_dir(dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    match rustix::fs::mkdirat(dir, name, DIR_MODE) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Unlinks; succeeds if the name does not exist.
pub(crate) fn remove(dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Deletes our files in a directory, and the chunk directories of our objects. Files with other names stay: with
/// `--reformat` a directory may have been named by mistake.
fn empty(root: BorrowedFd<'_>, place: Place) -> Result<(), Errno> {
    let dir = rustix::fs::openat(root, place.path(), OPEN_DIR, Mode::empty())?;
    for name in names(dir.as_fd())?.iter().filter(|name| is_of_store(place, name)) {
        if matches!(place, Place::Objects(_)) && name.ends_with(".d") {
            remove_chunks(dir.as_fd(), name)?;
        } else {
            remove(dir.as_fd(), name)?;
        }
    }
    Ok(())
}

/// Deletes a chunk directory with its files.
pub(crate) fn remove_chunks(dir: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let chunks = match rustix::fs::openat(dir, name, OPEN_DIR, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    for chunk in names(chunks.as_fd())? {
        remove(chunks.as_fd(), &chunk)?;
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e),
    }
}
