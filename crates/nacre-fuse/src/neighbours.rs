//! Neighbours: file systems that are mounted on directories of this mount.
//!
//! The kernel detaches a neighbour when the name on which it is mounted is invalidated, by INVAL_ENTRY or by INC_EPOCH, also
//! if the name stays what it is. So while there are neighbours names get no validity, and no notification about names
//! is written: names that were valid before run out instead (`kernel_cache.rs`). A notification is preceded by a look,
//! which costs one poll unless mounts have changed. Seen are the mounts of this process's name space.

use crate::table;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The neighbours of one mount.
#[derive(Default)]
pub(crate) struct Neighbours {
    present: AtomicBool,
    /// The mount point, and the table of mounts, whose poll says that it has changed. `None`: nothing is mounted.
    watched: Mutex<Option<(PathBuf, File)>>,
}

impl Neighbours {
    /// Looks from now on at the mount on `path`. Without a table of mounts there are no neighbours.
    pub(crate) fn watch(&self, path: PathBuf) {
        if let Ok(table) = File::open("/proc/self/mountinfo") {
            self.present.store(table::has_neighbours(&path), Ordering::SeqCst);
            *self.watched.lock().unwrap_or_else(PoisonError::into_inner) = Some((path, table));
        }
    }
    /// Whether there were some at the last look.
    pub(crate) fn were_present(&self) -> bool {
        self.present.load(Ordering::SeqCst)
    }
    /// Looks whether there are some.
    pub(crate) fn are_present(&self) -> bool {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((path, table)) = &*watched else { return false };
        let mut events = [PollFd::new(table, PollFlags::PRI)];
        let changed = poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0);
        if changed {
            self.present.store(table::has_neighbours(path), Ordering::SeqCst);
        }
        self.were_present()
    }
}
