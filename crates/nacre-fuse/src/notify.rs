//! Notifications to the kernel: the one effect that is never carried out by the thread that leaves the island.
//!
//! A notification may wait inside the kernel for the reply to another request (measured: a sole reader that sends
//! INVAL_INODE while a READ of that inode waits hangs every process on the mount). So a pool of threads that serve no
//! FUSE queue and no socket sends them: one at first, more while all are stuck, at most sixteen, then the queue fills
//! and [`Notifier::submit`] refuses. A thread apart sends the notifications that never wait (epochs, attributes), however
//! many of the others are stuck. The completion is reported to the submitter.
//!
//! Not here: the decision to notify, and the fallback for a late notification (`kernel_cache/`).

use crate::abi::{self, Field, OutHeader, notify};
use crate::gate::{Counted, Gate};
use nacre_types::Fid;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// A notification to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// Forget the attributes of an inode, and its cached pages in a range (`len` 0 = to the end).
    InvalInode { fid: Fid, pages: Option<(u64, u64)> },
    /// Forget a name. Waits for the kernel's lock of the directory; detaches a file system that is mounted on the name.
    InvalEntry { parent: Fid, name: Vec<u8> },
    /// The next use of a name makes a LOOKUP, unless the reply to an earlier one is taken over later. Waits like
    /// `InvalEntry`, and detaches nothing.
    ExpireEntry { parent: Fid, name: Vec<u8> },
    /// A name is gone together with its inode. Waits like `InvalEntry`.
    Delete { parent: Fid, child: Fid, name: Vec<u8> },
    /// Forget all names, at their next use. Takes no lock; detaches file systems that are mounted on directories of
    /// this mount.
    IncEpoch,
}

impl Notification {
    /// The inode whose attributes are to be forgotten.
    pub(crate) fn inode(&self) -> Option<Fid> {
        match self {
            Self::InvalInode { fid, .. } => Some(*fid),
            Self::InvalEntry { .. } | Self::ExpireEntry { .. } | Self::Delete { .. } | Self::IncEpoch => None,
        }
    }
    /// Whether the kernel may detach a file system that is mounted on a directory of this mount.
    fn detaches(&self) -> bool {
        match self {
            Self::IncEpoch => true,
            Self::InvalEntry { name, .. } => name != NO_NAME,
            Self::ExpireEntry { .. } | Self::InvalInode { .. } | Self::Delete { .. } => false,
        }
    }
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; OutHeader::BYTES];
        let code = match self {
            Self::InvalInode { fid, pages } => {
                // A negative offset: attributes only.
                let (off, len) = pages.map_or((-1, 0), |(off, len)| (off.cast_signed(), len.cast_signed()));
                abi::NotifyInvalInode { ino: fid.ino(), off, len }.put(&mut out);
                notify::INVAL_INODE
            }
            Self::InvalEntry { parent, name } | Self::ExpireEntry { parent, name } => {
                let namelen = name.len() as u32;
                let is_expiry = matches!(self, Self::ExpireEntry { .. });
                let flags = if is_expiry { notify::EXPIRE_ONLY } else { 0 };
                abi::NotifyInvalEntry { parent: parent.ino(), namelen, flags }.put(&mut out);
                put_name(&mut out, name);
                notify::INVAL_ENTRY
            }
            Self::Delete { parent, child, name } => {
                let namelen = name.len() as u32;
                abi::NotifyDelete { parent: parent.ino(), child: child.ino(), namelen, padding: 0 }
                    .put(&mut out);
                put_name(&mut out, name);
                notify::DELETE
            }
            Self::IncEpoch => notify::INC_EPOCH,
        };
        let len = u32::try_from(out.len()).expect("a name has at most 255 bytes");
        OutHeader { len, error: code, unique: 0 }.put_in_front(&mut out);
        out
    }
}

/// The result of a notification that was not written because of neighbours.
pub(crate) const HAS_NEIGHBOURS: rustix::io::Errno = rustix::io::Errno::BUSY;

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(name);
    out.push(0);
}

/// A name that no directory has: INVAL_ENTRY of it only waits for the kernel's lock of the directory.
pub(crate) const NO_NAME: &[u8] = b"\x01nacre\x01";

/// Notifications that are written one after the other.
#[derive(Default)]
pub struct Batch {
    /// In the order in which they are written.
    pub notifications: Vec<Notification>,
    /// Replies that were decided before this generation lose their validity first.
    pub generation: u64,
    /// Set when a thread begins to write them.
    pub begun: Arc<AtomicBool>,
    /// Written although file systems that are mounted on directories of this mount will be detached.
    pub is_forced: bool,
}
impl From<Notification> for Batch {
    fn from(notification: Notification) -> Self {
        Self { notifications: vec![notification], ..Self::default() }
    }
}
impl Batch {
    /// Whether the kernel may let one of them wait for the reply to another request.
    fn may_wait(&self) -> bool {
        self.notifications.iter().any(|n| match n {
            Notification::InvalEntry { .. }
            | Notification::ExpireEntry { .. }
            | Notification::Delete { .. } => true,
            Notification::InvalInode { pages, .. } => pages.is_some(),
            Notification::IncEpoch => false,
        })
    }
}

/// Receives the kernel's result: `Ok(true)` = done, `Ok(false)` = an inode or a name was not known, or the first error.
pub type Done = Box<dyn FnOnce(rustix::io::Result<bool>) + Send>;

struct Job {
    batch: Batch,
    done: Done,
}

#[derive(Default)]
struct State {
    /// For the pool.
    queue: VecDeque<Job>,
    /// For the thread whose notifications never wait.
    prompt: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    /// Threads of the pool.
    pool: usize,
    idle: usize,
    stopping: bool,
}

/// Writes a message to the kernel.
type Write = Box<dyn Fn(&[u8]) -> rustix::io::Result<()> + Send + Sync>;

struct Shared {
    write: Write,
    gate: Arc<Gate>,
    state: Mutex<State>,
    work: Condvar,
    prompt_work: Condvar,
}
impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn carry_out(&self, Job { batch, done }: Job) {
        batch.begun.store(true, Ordering::Release);
        self.gate.raise(batch.generation);
        let mut result = Ok(true);
        for notification in &batch.notifications {
            if notification.detaches() && !batch.is_forced && self.gate.neighbours().are_present() {
                result = result.and(Err(HAS_NEIGHBOURS));
                continue;
            }
            self.gate.count(match notification {
                Notification::IncEpoch => Counted::Epochs,
                Notification::InvalInode { .. } => Counted::Inodes,
                Notification::InvalEntry { .. }
                | Notification::ExpireEntry { .. }
                | Notification::Delete { .. } => Counted::Names,
            });
            match (self.write)(&notification.encode()) {
                Ok(()) => {}
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
                    result = result.map(|_| false);
                }
                Err(e) => result = result.and(Err(e)),
            }
        }
        done(result);
    }
}

const THREADS_AT_FIRST: usize = 1;
const THREADS_MAX: usize = 16;
const QUEUE_MAX: usize = 1024;

/// The threads. Dropping it waits for the notifications in progress: unmount or abort the connection first.
pub struct Notifier {
    shared: Arc<Shared>,
}

impl Notifier {
    /// `write` writes a message to the connection; it may wait.
    ///
    /// # Errors
    /// Threads could not be created.
    pub fn new(
        write: impl Fn(&[u8]) -> rustix::io::Result<()> + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        Self::with_gate(write, Arc::default())
    }
    pub(crate) fn with_gate(
        write: impl Fn(&[u8]) -> rustix::io::Result<()> + Send + Sync + 'static,
        gate: Arc<Gate>,
    ) -> std::io::Result<Self> {
        let write = Box::new(write);
        let (work, prompt_work) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { write, gate, state: Mutex::default(), work, prompt_work });
        let notifier = Self { shared: shared.clone() };
        let mut state = shared.lock();
        let prompt = shared.clone();
        state
            .threads
            .push(Builder::new().name("fuse-notify".to_owned()).spawn(move || serve_prompt(&prompt))?);
        for _ in 0..THREADS_AT_FIRST {
            grow(&shared, &mut state)?;
        }
        drop(state);
        Ok(notifier)
    }
    /// Queues notifications.
    ///
    /// # Errors
    /// Returns `done` if the queue is full: of those that may wait because every thread is stuck, and the caller uses a
    /// fallback; of the others for a moment only.
    pub fn submit(&self, batch: impl Into<Batch>, done: Done) -> Result<(), Done> {
        let batch = batch.into();
        let may_wait = batch.may_wait();
        let mut guard = self.shared.lock();
        let state = &mut *guard;
        let queue = if may_wait { &mut state.queue } else { &mut state.prompt };
        if queue.len() >= QUEUE_MAX || state.stopping {
            return Err(done);
        }
        queue.push_back(Job { batch, done });
        if state.idle < state.queue.len()
            && state.pool < THREADS_MAX
            && let Err(error) = grow(&self.shared, state)
        {
            tracing::warn!(%error, "a further notifier thread cannot be started; notifications wait for the present ones");
        }
        drop(guard);
        if may_wait { &self.shared.work } else { &self.shared.prompt_work }.notify_one();
        Ok(())
    }
    /// A validity has been given, and none was running: the clocks are watched from now on.
    pub(crate) fn watch_clocks(&self) {
        // The state is locked so that a thread which is about to sleep does not miss it.
        drop(self.shared.lock());
        self.shared.prompt_work.notify_one();
    }
    /// Threads of the pool now, for metrics.
    pub fn threads(&self) -> usize {
        self.shared.lock().pool
    }
}
impl Drop for Notifier {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.lock();
            state.stopping = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.work.notify_all();
        self.shared.prompt_work.notify_all();
        let this = std::thread::current().id();
        for thread in threads {
            // One of these threads may hold the last reference to the mount. A panicked notifier has been logged by the
            // panic itself.
            if thread.thread().id() != this {
                drop(thread.join());
            }
        }
    }
}

fn grow(shared: &Arc<Shared>, state: &mut State) -> std::io::Result<()> {
    let name = format!("fuse-notify-{}", state.pool);
    let shared = shared.clone();
    state.threads.push(Builder::new().name(name).spawn(move || serve(&shared))?);
    state.pool += 1;
    Ok(())
}

fn serve(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.queue.pop_front() {
            drop(state);
            shared.carry_out(job);
            state = shared.lock();
        } else if state.stopping {
            return;
        } else {
            state.idle += 1;
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

/// Serves the notifications that never wait, and watches the clocks.
fn serve_prompt(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.prompt.pop_front() {
            drop(state);
            shared.carry_out(job);
            state = shared.lock();
        } else if state.stopping {
            return;
        } else if let Some(after) = shared.gate.next_look() {
            let (guard, _) =
                shared.prompt_work.wait_timeout(state, after).unwrap_or_else(PoisonError::into_inner);
            drop(guard);
            if shared.gate.was_suspended() {
                // At once; then the island has the attributes forgotten too.
                let batch = Batch { is_forced: true, ..Notification::IncEpoch.into() };
                shared.carry_out(Job { batch, done: Box::new(|_| {}) });
                shared.gate.forget_everything();
            }
            state = shared.lock();
        } else {
            state = shared.prompt_work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_have_the_kernels_lengths() {
        let len = |n: Notification| {
            let bytes = n.encode();
            let header = OutHeader::take(&mut &bytes[..]).unwrap();
            assert_eq!((header.len as usize, header.unique), (bytes.len(), 0));
            (header.error, bytes.len())
        };
        assert_eq!(len(Notification::IncEpoch), (8, 16));
        assert_eq!(len(Notification::InvalInode { fid: Fid::ROOT, pages: None }), (2, 40));
        assert_eq!(len(Notification::InvalEntry { parent: Fid::ROOT, name: b"ab".to_vec() }), (3, 35));
        let delete = Notification::Delete { parent: Fid::ROOT, child: Fid::ROOT, name: b"ab".to_vec() };
        assert_eq!(len(delete), (6, 43));
    }
}
