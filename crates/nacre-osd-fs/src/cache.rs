//! A cache of open descriptors; the least recently used ones are closed first.
//!
//! Invariant: at most `max` descriptors are cached; those that calls are using are not counted.
//! A descriptor is closed without a sync even if its file was written: the kernel keeps a write-back error with the
//! inode and reports it to the first sync after the next open, and the object layer syncs within its interval.
//! (Syncing before closing was tried: 1.7 ms per new object once more objects than descriptors were dirty.)

use crate::read_ahead::ReadAhead;
use nacre_node::FileId;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file, or one chunk of a blob: a plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) file: FileId,
    pub(crate) chunk: u64,
}

/// An open file.
pub(crate) struct Open {
    fd: OwnedFd,
    /// Chunk 0 of a blob: there are more.
    has_chunks: AtomicBool,
    read_ahead: ReadAhead,
    /// Writes past the cache that are under way.
    past_cache: AtomicU32,
}

impl Open {
    pub(crate) fn new(fd: OwnedFd, has_chunks: bool) -> Self {
        Self {
            fd,
            has_chunks: AtomicBool::new(has_chunks),
            read_ahead: ReadAhead::default(),
            past_cache: AtomicU32::new(0),
        }
    }
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    pub(crate) fn has_chunks(&self) -> bool {
        self.has_chunks.load(Ordering::Acquire)
    }
    /// The readers of this file.
    pub(crate) fn read_ahead(&self) -> &ReadAhead {
        &self.read_ahead
    }
    /// Writes past the cache that are under way: others wait for them in the kernel.
    pub(crate) fn past_cache(&self) -> &AtomicU32 {
        &self.past_cache
    }
    pub(crate) fn set_has_chunks(&self) {
        self.has_chunks.store(true, Ordering::Release);
    }
}

#[derive(Default)]
struct Lru {
    open: HashMap<Key, (Arc<Open>, u64)>,
    by_age: BTreeMap<u64, Key>,
    tick: u64,
}

/// See the module.
pub(crate) struct Cache {
    lru: Mutex<Lru>,
    max: usize,
}

impl Cache {
    pub(crate) fn new(max: usize) -> Self {
        Self { lru: Mutex::default(), max: max.max(1) }
    }
    fn lock(&self) -> MutexGuard<'_, Lru> {
        // Plain maps: consistent between any two statements that could panic.
        self.lru.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, key: Key) -> Option<Arc<Open>> {
        let mut lru = self.lock();
        let Lru { open, by_age, tick } = &mut *lru;
        let (found, age) = open.get_mut(&key)?;
        by_age.remove(age);
        *tick += 1;
        *age = *tick;
        by_age.insert(*tick, key);
        Some(found.clone())
    }

    /// Adds a descriptor, unless another thread was faster; returns the one to use.
    pub(crate) fn put(&self, key: Key, new: Open) -> Arc<Open> {
        let mut gone = None;
        let mut lru = self.lock();
        if let Some((found, _)) = lru.open.get(&key) {
            return found.clone();
        }
        let new = Arc::new(new);
        lru.tick += 1;
        let tick = lru.tick;
        lru.open.insert(key, (new.clone(), tick));
        lru.by_age.insert(tick, key);
        if lru.open.len() > self.max
            && let Some(oldest) = lru.by_age.values().next().copied()
        {
            gone = lru.remove(oldest);
        }
        // Closed outside the lock.
        drop(lru);
        drop(gone);
        new
    }

    pub(crate) fn remove(&self, key: Key) -> Option<Arc<Open>> {
        self.lock().remove(key)
    }

    /// Closes half of what is kept, the oldest; whether anything was. For a process that has no descriptor left.
    pub(crate) fn shrink(&self) -> bool {
        let mut gone = Vec::new();
        let mut lru = self.lock();
        for _ in 0..lru.open.len().div_ceil(2) {
            let oldest = lru.by_age.values().next().copied();
            gone.extend(oldest.and_then(|oldest| lru.remove(oldest)));
        }
        // Closed outside the lock.
        drop(lru);
        !gone.is_empty()
    }

    /// Descriptors kept.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }
}

impl Lru {
    fn remove(&mut self, key: Key) -> Option<Arc<Open>> {
        let (open, age) = self.open.remove(&key)?;
        self.by_age.remove(&age);
        Some(open)
    }
}
