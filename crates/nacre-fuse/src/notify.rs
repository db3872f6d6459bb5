//! Notifications to the kernel: the one effect that is never carried out by the thread that leaves the island.
//!
//! A notification may wait inside the kernel for the reply to another request (measured: a sole reader that sends
//! INVAL_INODE while a READ of that inode waits hangs every process on the mount). So a pool of threads that serve no
//! FUSE queue and no socket sends them: two threads, more while all are stuck, at most sixteen, then the queue fills
//! and [`Notifier::submit`] returns the notification. Its completion is reported to the submitter.
//!
//! Not here: the decision to notify, and the consequences of a late notification (the client core).

use crate::abi::{self, Field, OutHeader, notify};
use crate::device::Channel;
use nacre_types::Fid;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

/// A notification to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// Forget the attributes of an inode, and its cached pages in a range (`len` 0 = to the end).
    InvalInode { fid: Fid, pages: Option<(u64, u64)> },
    /// Forget a name. Waits for the kernel's lock of the directory.
    InvalEntry { parent: Fid, name: Vec<u8> },
    /// A name is gone together with its inode. Waits like `InvalEntry`.
    Delete { parent: Fid, child: Fid, name: Vec<u8> },
    /// Forget all names, at their next use. Takes no lock; detaches file systems that are mounted on directories of
    /// this mount.
    IncEpoch,
}

impl Notification {
    fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; OutHeader::BYTES];
        let code = match self {
            Self::InvalInode { fid, pages } => {
                // A negative offset: attributes only.
                let (off, len) = pages.map_or((-1, 0), |(off, len)| (off.cast_signed(), len.cast_signed()));
                abi::NotifyInvalInode { ino: fid.ino(), off, len }.put(&mut out);
                notify::INVAL_INODE
            }
            Self::InvalEntry { parent, name } => {
                let namelen = name.len() as u32;
                abi::NotifyInvalEntry { parent: parent.ino(), namelen, flags: 0 }.put(&mut out);
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

fn put_name(out: &mut Vec<u8>, name: &[u8]) {
    out.extend_from_slice(name);
    out.push(0);
}

/// Receives the kernel's result: `Ok(true)` = done, `Ok(false)` = unknown inode or name.
pub type Done = Box<dyn FnOnce(rustix::io::Result<bool>) + Send>;

struct Job {
    notification: Notification,
    done: Done,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    stopping: bool,
}

struct Shared {
    channel: Arc<Channel>,
    state: Mutex<State>,
    work: Condvar,
}
impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const THREADS_AT_FIRST: usize = 2;
const THREADS_MAX: usize = 16;
const QUEUE_MAX: usize = 1024;

/// The pool. Dropping it waits for the notifications in progress: unmount or abort the connection first.
pub struct Notifier {
    shared: Arc<Shared>,
}

impl Notifier {
    /// # Errors
    /// Threads could not be created.
    pub fn new(channel: Arc<Channel>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { channel, state: Mutex::default(), work: Condvar::new() });
        for _ in 0..THREADS_AT_FIRST {
            grow(&shared, &mut shared.lock())?;
        }
        Ok(Self { shared })
    }
    /// Queues a notification.
    ///
    /// # Errors
    /// Returns the notification if the queue is full because every thread is stuck; the caller uses a fallback or
    /// retries later.
    pub fn submit(&self, notification: Notification, done: Done) -> Result<(), (Notification, Done)> {
        let mut state = self.shared.lock();
        if state.queue.len() >= QUEUE_MAX || state.stopping {
            return Err((notification, done));
        }
        state.queue.push_back(Job { notification, done });
        if state.idle < state.queue.len()
            && state.threads.len() < THREADS_MAX
            && let Err(error) = grow(&self.shared, &mut state)
        {
            tracing::warn!(%error, "no further notifier thread; notifications wait for the present ones");
        }
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }
    /// Threads now, for metrics.
    pub fn threads(&self) -> usize {
        self.shared.lock().threads.len()
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
        for thread in threads {
            // A panicked notifier has been logged by the panic itself.
            drop(thread.join());
        }
    }
}

fn grow(shared: &Arc<Shared>, state: &mut State) -> std::io::Result<()> {
    let name = format!("fuse-notify-{}", state.threads.len());
    let shared = shared.clone();
    state.threads.push(Builder::new().name(name).spawn(move || serve(&shared))?);
    Ok(())
}

fn serve(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some(Job { notification, done }) = state.queue.pop_front() {
            drop(state);
            done(match shared.channel.write_notification(&notification.encode()) {
                Ok(()) => Ok(true),
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(false),
                Err(e) => Err(e),
            });
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
