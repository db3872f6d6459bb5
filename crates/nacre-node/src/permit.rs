//! A permit: the right to move bytes outside an island, until it is revoked.
//!
//! The island grants it, threads outside use it, the island revokes it and continues when the last user has ended.
//! During a use a thread may access store, buffers and sockets, and nothing that waits for an island, a slot, a grant
//! or user memory.
//!
//! Invariants: (1) after [`Permit::revoke`] no use begins; (2) exactly one call reports the end of the last use: the
//! revocation itself if there was no user, else the last [`Permit::end`]. Its caller posts an event to the island. Loom
//! tests: `tests/loom.rs`.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

const REVOKED: u64 = 1 << 63;

/// Result of a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    /// There was no user: the caller posts idle.
    Idle,
    /// The last user will post idle.
    InUse,
    /// It was revoked before.
    Already,
}

/// Counts users; the highest bit marks a revoked permit.
#[derive(Debug)]
pub struct Permit(AtomicU64);

impl Default for Permit {
    fn default() -> Self {
        Self::new()
    }
}

impl Permit {
    /// A permit in force, without users.
    pub fn new() -> Self {
        Self(AtomicU64::new(0))
    }
    /// Begins a use; `false` once revoked. Each `true` is followed by one [`Permit::end`].
    #[must_use]
    pub fn try_use(&self) -> bool {
        let mut seen = self.0.load(Ordering::Relaxed);
        while seen & REVOKED == 0 {
            // Acquire: the use sees the island's writes before the grant.
            match self.0.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }
    /// Ends a use; `true` for the last one of a revoked permit: the caller posts idle.
    #[must_use]
    pub fn end(&self) -> bool {
        // Release: the thread that acts on idle sees the writes of all uses; acquire: for the thread that posts idle.
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        assert!(before & !REVOKED != 0, "a use ended that had not begun");
        before == REVOKED | 1
    }
    /// No use begins after this; uses under way continue.
    pub fn revoke(&self) -> Revoked {
        match self.0.fetch_or(REVOKED, Ordering::AcqRel) {
            0 => Revoked::Idle,
            before if before & REVOKED != 0 => Revoked::Already,
            _ => Revoked::InUse,
        }
    }
    /// Uses that have not ended.
    pub fn users(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & !REVOKED
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn idle_is_said_exactly_once_and_no_use_begins_after_revocation() {
        let p = Permit::new();
        assert!(p.try_use());
        assert!(p.try_use());
        assert_eq!(p.revoke(), Revoked::InUse);
        assert!(!p.try_use());
        assert_eq!(p.revoke(), Revoked::Already);
        assert_eq!((p.end(), p.users(), p.end()), (false, 1, true));
        assert_eq!(Permit::new().revoke(), Revoked::Idle);
    }
}
