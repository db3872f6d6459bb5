//! Open descriptors, least recently used ones closed first.
//!
//! Invariants: at most `max` descriptors are kept (those in use by a call under way come on top); one whose file was
//! written and not synced is not closed before it was synced, because the kernel reports a lost write to
//! descriptors that were open, and the report must not be lost with ours.

use nacre_node::FileId;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A file, or one chunk of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) file: FileId,
    pub(crate) chunk: u64,
}

/// An open file.
pub(crate) struct Open {
    fd: OwnedFd,
    /// Written since the last sync began.
    dirty: AtomicBool,
    /// Chunk 0 of a blob: there are more.
    has_chunks: AtomicBool,
}

impl Open {
    pub(crate) fn new(fd: OwnedFd, has_chunks: bool) -> Self {
        Self { fd, dirty: AtomicBool::new(false), has_chunks: AtomicBool::new(has_chunks) }
    }
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    pub(crate) fn mark_dirty(&self) {
        self.dirty.store(true, Ordering::Release);
    }
    /// A sync begins.
    pub(crate) fn mark_clean(&self) {
        self.dirty.store(false, Ordering::Release);
    }
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }
    pub(crate) fn has_chunks(&self) -> bool {
        self.has_chunks.load(Ordering::Acquire)
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

/// Victims looked at for a clean one.
const LOOK: usize = 32;

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

    /// Puts a descriptor in, unless somebody was faster; answers the one to use and one that must go: the caller
    /// syncs it if it is dirty.
    pub(crate) fn put(&self, key: Key, new: Open) -> (Arc<Open>, Option<(Key, Arc<Open>)>) {
        if let Some(found) = self.get(key) {
            return (found, None);
        }
        let new = Arc::new(new);
        let mut lru = self.lock();
        lru.tick += 1;
        let tick = lru.tick;
        if let Some((_, old)) = lru.open.insert(key, (new.clone(), tick)) {
            lru.by_age.remove(&old);
        }
        lru.by_age.insert(tick, key);
        if lru.open.len() <= self.max {
            return (new, None);
        }
        let is_clean = |k: &Key| lru.open.get(k).is_some_and(|(o, _)| !o.is_dirty());
        let victim = lru.by_age.values().take(LOOK).copied().find(is_clean);
        let victim = victim.or_else(|| lru.by_age.values().next().copied());
        let gone = victim.and_then(|key| lru.remove(key).map(|open| (key, open)));
        (new, gone)
    }

    pub(crate) fn remove(&self, key: Key) -> Option<Arc<Open>> {
        self.lock().remove(key)
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
