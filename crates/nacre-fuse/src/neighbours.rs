//! Neighbours: file systems that are mounted on directories of this mount, and overlayfs with layers on it.
//!
//! The kernel detaches a neighbour when the name on which it is mounted is invalidated by INC_EPOCH or INVAL_ENTRY, also
//! if the name stays what it is. An overlayfs keeps the entries of its layers, and fails with ESTALE for good if one of them is
//! invalidated. So while there are neighbours, names get no validity, and neither is written. Names that
//! were valid before expire as soon as the first neighbour is seen by a thread that waits for changes of the table of
//! mounts (`kernel_cache/expire.rs`). The notifications named above are preceded by a look, too, which costs one poll unless
//! mounts have changed. Only the mounts of this process's name space are seen.

use crate::table;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Builder;

const TABLE: &str = "/proc/self/mountinfo";

/// The neighbours of one mount.
#[derive(Default)]
pub(crate) struct Neighbours {
    /// Empty: nothing is mounted.
    watched: OnceLock<Arc<Watched>>,
    #[cfg(test)]
    pub(crate) pretended: AtomicBool,
}

struct Watched {
    /// The mount point.
    path: PathBuf,
    present: AtomicBool,
    /// Its poll says whether the table has changed since the last one.
    table: Mutex<File>,
    /// Called when there are some and were none at the last look.
    came: Box<dyn Fn() + Send + Sync>,
    stop: OwnedFd,
}

impl Neighbours {
    /// Looks from now on at the mount on `path`. `came` is called when the first neighbour is seen, perhaps more than once.
    ///
    /// # Errors
    /// No table of mounts, or no thread.
    pub(crate) fn watch(&self, path: PathBuf, came: impl Fn() + Send + Sync + 'static) -> io::Result<()> {
        let present = AtomicBool::new(table::has_neighbours(&path));
        let (table, stop) = (Mutex::new(File::open(TABLE)?), eventfd(0, EventfdFlags::CLOEXEC)?);
        let watched = Arc::new(Watched { path, present, table, came: Box::new(came), stop });
        let (own_table, watches) = (File::open(TABLE)?, watched.clone());
        Builder::new().name("fuse-mounts".to_owned()).spawn(move || watches.run(&own_table))?;
        let _first = self.watched.set(watched);
        Ok(())
    }
    /// Whether there were some at the last look.
    pub(crate) fn were_present(&self) -> bool {
        #[cfg(test)]
        if self.pretended.load(Ordering::SeqCst) {
            return true;
        }
        self.watched.get().is_some_and(|watched| watched.present.load(Ordering::SeqCst))
    }
    /// Looks whether there are some.
    pub(crate) fn are_present(&self) -> bool {
        if let Some(watched) = self.watched.get() {
            let table = watched.table.lock().unwrap_or_else(PoisonError::into_inner);
            let mut events = [PollFd::new(&*table, PollFlags::PRI)];
            if poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0) {
                watched.look();
            }
        }
        self.were_present()
    }
}
impl Drop for Neighbours {
    fn drop(&mut self) {
        if let Some(watched) = self.watched.get() {
            // It fails only if it has been written before.
            let _ = rustix::io::write(&watched.stop, &1u64.to_ne_bytes());
        }
    }
}

impl Watched {
    fn look(&self) {
        let are = table::has_neighbours(&self.path);
        if !self.present.swap(are, Ordering::SeqCst) && are {
            (self.came)();
        }
    }
    /// Waits for changes of the table until `stop` is written.
    fn run(&self, table: &File) {
        loop {
            let mut events = [PollFd::new(table, PollFlags::PRI), PollFd::new(&self.stop, PollFlags::IN)];
            match poll(&mut events, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) if events[1].revents().is_empty() => self.look(),
                _ => return,
            }
        }
    }
}
