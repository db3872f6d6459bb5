//! Messages to the thread of a ring: replies that other threads have decided, and lock requests that begin to wait.
//!
//! Invariants: the kernel takes a reply only from the thread that owns the slot, so every other thread posts it here; the
//! thread is woken at most once per sleep.

use crate::gate::Terms;
use bytes::Bytes;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tracing::error;

/// A message of another thread to the thread of a ring, about the request in a slot.
pub(super) enum Post {
    /// Its reply.
    Reply {
        slot: u32,
        commit_id: u64,
        /// With its header.
        head: Vec<u8>,
        bulk: Vec<Bytes>,
        terms: Option<Box<Terms>>,
    },
    /// It is a lock request of the process `pid`, and begins to wait.
    Waits { slot: u32, commit_id: u64, pid: u32 },
}

/// The shared part of a ring.
pub(super) struct Hub {
    posts: Mutex<Vec<Post>>,
    /// The thread is in the kernel or about to go there; the thread that clears this wakes it.
    sleeps: AtomicBool,
    wake: OwnedFd,
    stopping: AtomicBool,
    /// The kernel has released the mount.
    gone: AtomicBool,
}
impl Hub {
    pub(super) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            posts: Mutex::default(),
            sleeps: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopping: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        })
    }
    fn lock(&self) -> MutexGuard<'_, Vec<Post>> {
        self.posts.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn post(&self, post: Post) {
        self.lock().push(post);
        self.rouse();
    }
    fn rouse(&self) {
        // SeqCst: the sleeping thread publishes its sleep and then reads what was just written here.
        if self.sleeps.swap(false, Ordering::SeqCst)
            && let Err(error) = rustix::io::write(&self.wake, &1u64.to_ne_bytes())
        {
            error!(%error, "cannot wake the thread of a ring");
        }
    }
    /// The thread is to end.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.rouse();
    }
    pub(super) fn mount_is_gone(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.rouse();
    }
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    // ---- for the thread of the ring

    /// Publishes that the thread sleeps. False: there are messages, and it must not.
    pub(super) fn begin_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        // Writes of threads that could not yet see the sleep are seen here.
        self.lock().is_empty()
    }
    pub(super) fn end_sleep(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
    }
    /// Readable when the thread was woken.
    pub(super) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }
    /// After a wake-up, before the messages are taken.
    pub(super) fn clear_wake(&self) {
        let mut count = [0; 8];
        let _spurious = rustix::io::read(&self.wake, &mut count);
    }
    /// Exchanges the messages for an empty list.
    pub(super) fn take_posts(&self, posts: &mut Vec<Post>) {
        std::mem::swap(&mut *self.lock(), posts);
    }
}

/// The destination of the reply to a request from a ring.
#[derive(Clone)]
pub struct Ticket {
    hub: Arc<Hub>,
    slot: u32,
    commit_id: u64,
}
impl Ticket {
    pub(super) fn new(hub: Arc<Hub>, slot: u32, commit_id: u64) -> Self {
        Self { hub, slot, commit_id }
    }
    pub(crate) fn reply(&self, head: Vec<u8>, bulk: Vec<Bytes>, terms: Option<Box<Terms>>) {
        let Self { slot, commit_id, .. } = *self;
        self.hub.post(Post::Reply { slot, commit_id, head, bulk, terms });
    }
    /// The request waits for a lock.
    pub(crate) fn waits(&self, pid: u32) {
        let Self { slot, commit_id, .. } = *self;
        self.hub.post(Post::Waits { slot, commit_id, pid });
    }
}
