//! Neighbours: file systems that are mounted on directories of this mount, and overlayfs with layers on it.
//!
//! The kernel detaches a neighbour when the name on which it is mounted is invalidated by INC_EPOCH or INVAL_ENTRY, also
//! if the name stays what it is. An overlayfs keeps the entries of its layers, and fails with ESTALE for good if one of them is
//! invalidated. So while there are neighbours, names get no validity, and neither is written. Names that
//! were valid before expire as soon as the first neighbour is seen by a thread that waits for changes of the table of
//! mounts (`kernel_cache/expire.rs`), which delays changes. So names get no validity for [`AFTERWARDS`] either: who has mounted
//! one file system probably mounts another. The notifications named above are preceded by a look, too, which costs one poll unless
//! mounts have changed. Only the mounts of this process's name space are seen.

use crate::table;
use nacre_types::Instant;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::Duration;

/// Names have no validity for this time after the last neighbour has gone.
const AFTERWARDS: Duration = Duration::from_secs(60);

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
    /// When the last neighbour had gone (nanoseconds of [`nacre_rt::now`]); 0 = there was none.
    gone_at: AtomicU64,
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
        let (came, gone_at) = (Box::new(came), AtomicU64::new(0));
        let watched = Arc::new(Watched { path, present, gone_at, table, came, stop });
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
    /// Whether there were some at the last look, or a short time ago.
    pub(crate) fn were_lately(&self, now: Instant) -> bool {
        let gone_at = self.watched.get().map_or(0, |watched| watched.gone_at.load(Ordering::SeqCst));
        self.were_present() || gone_at != 0 && now < Instant(gone_at) + AFTERWARDS
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
        match (self.present.swap(are, Ordering::SeqCst), are) {
            (false, true) => (self.came)(),
            (true, false) => self.gone_at.store(nacre_rt::now().0, Ordering::SeqCst),
            _ => {}
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
