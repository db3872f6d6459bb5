//! Directories of the store: their descriptors, and which of them have entries that are not durable.

use crate::error::OpenError;
use crate::path::Place;
use crate::raw::retry;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

struct Directory {
    fd: OwnedFd,
    /// Counts entries made and removed. Begins with 1: a process that was killed may have left some.
    changes: AtomicU64,
    /// Value of `changes` at the last sync.
    synced: AtomicU64,
}

/// All directories of one store.
pub(crate) struct Dirs(Vec<Directory>);

pub(crate) const OPEN_DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl Dirs {
    /// Opens them all; they must be there.
    pub(crate) fn open(root: OwnedFd, path: &str) -> Result<Self, OpenError> {
        let mut all = Vec::with_capacity(Place::COUNT);
        for place in Place::all() {
            let fd = match place {
                Place::Root => root.try_clone().map_err(|e| OpenError::Io {
                    what: "opening",
                    path: path.into(),
                    source: e,
                })?,
                Place::Log | Place::Runs | Place::Objects(_) => {
                    match rustix::fs::openat(&root, place.path(), OPEN_DIR, Mode::empty()) {
                        Err(Errno::NOENT) => return Err(OpenError::NotAStore { path: path.into() }),
                        other => {
                            other.map_err(OpenError::io("opening", &format!("{path}/{}", place.path())))?
                        }
                    }
                }
            };
            all.push(Directory { fd, changes: AtomicU64::new(1), synced: AtomicU64::new(0) });
        }
        Ok(Self(all))
    }

    fn at(&self, place: Place) -> &Directory {
        self.0.get(place.index()).expect("`open` made one per place")
    }
    pub(crate) fn fd(&self, place: Place) -> BorrowedFd<'_> {
        self.at(place).fd.as_fd()
    }
    /// An entry was made or removed.
    pub(crate) fn changed(&self, place: Place) {
        self.at(place).changes.fetch_add(1, Ordering::AcqRel);
    }
    /// Makes all entries made or removed so far durable.
    pub(crate) fn sync(&self, place: Place) -> Result<(), Errno> {
        let dir = self.at(place);
        let changes = dir.changes.load(Ordering::Acquire);
        if dir.synced.load(Ordering::Acquire) < changes {
            retry(|| rustix::fs::fsync(&dir.fd))?;
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
