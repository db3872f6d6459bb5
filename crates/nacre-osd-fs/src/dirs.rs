//! Directories of the store: their paths, and the set of those with entries that are not durable.
//!
//! Only the store's own directory is kept open. The others are reached by path below it (one more path component costs
//! less than a table of descriptors, of which a process with many stores has too few) and opened for a listing or a
//! sync. A sync through a new descriptor is sufficient: the kernel keeps a failed write-back for the next opener.

use crate::error::OpenError;
use crate::path::Place;
use crate::raw::retry;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

struct Directory {
    /// Counts entries made and removed. Begins with 1: a process that was killed may have left some.
    changes: AtomicU64,
    /// Value of `changes` at the last sync.
    synced: AtomicU64,
    /// Held during a sync: those who wait for it are mostly served by the next one together.
    syncing: Mutex<()>,
}

/// All directories of one store.
pub(crate) struct Dirs {
    root: OwnedFd,
    all: Vec<Directory>,
}

pub(crate) const OPEN_DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl Dirs {
    /// Looks whether they are all there.
    pub(crate) fn open(root: OwnedFd, path: &str) -> Result<Self, OpenError> {
        for place in Place::all().filter(|p| *p != Place::Root) {
            match rustix::fs::statat(&root, place.path(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {}
                Ok(_) | Err(Errno::NOENT) => return Err(OpenError::NotAStore { path: path.into() }),
                Err(errno) => {
                    return Err(OpenError::io("looking at", &format!("{path}/{}", place.path()))(errno));
                }
            }
        }
        let new =
            || Directory { changes: AtomicU64::new(1), synced: AtomicU64::new(0), syncing: Mutex::default() };
        Ok(Self { root, all: Place::all().map(|_| new()).collect() })
    }

    /// The store's own directory: paths of all files begin there.
    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
    fn at(&self, place: Place) -> &Directory {
        self.all.get(place.index()).expect("`open` made one per place")
    }
    /// An entry was made or removed.
    pub(crate) fn changed(&self, place: Place) {
        self.at(place).changes.fetch_add(1, Ordering::AcqRel);
    }
    /// Makes all entries made or removed so far durable, through what `open` gives.
    pub(crate) fn sync(
        &self,
        place: Place,
        open: impl FnOnce() -> Result<OwnedFd, Errno>,
    ) -> Result<(), Errno> {
        let dir = self.at(place);
        let needed = dir.changes.load(Ordering::Acquire);
        if dir.synced.load(Ordering::Acquire) >= needed {
            return Ok(());
        }
        let _syncing = dir.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = dir.changes.load(Ordering::Acquire);
        if dir.synced.load(Ordering::Acquire) < needed {
            let fd = open()?;
            retry(|| rustix::fs::fsync(&fd))?;
            dir.synced.fetch_max(changes, Ordering::AcqRel);
        }
        Ok(())
    }
}

/// Names in a directory, without `.` and `..`. Names that are not UTF-8 are not ours and come out changed.
pub(crate) fn names(fd: BorrowedFd<'_>) -> Result<Vec<String>, Errno> {
    let mut out = Vec::new();
    for entry in rustix::fs::Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy();
        if name != "." && name != ".." {
            out.push(name.into_owned());
        }
    }
    Ok(out)
}
