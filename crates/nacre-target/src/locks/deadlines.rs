//! Deadlines for the return of revoked locks.
//!
//! Rules: the deadline is one lease after the revocation. If a client misses the deadline, its lease is no longer
//! renewed, so that the client is evicted when the lease has run out, whether or not it has acknowledged the callback.
//! The deadline is extended by work under the lock (a request that names the lock) and by a new connection, but never
//! beyond [`EXTENSION_LEASES_MAX`] leases. A client that is not connected is not judged by the deadline, only by its lease.
//! Not here: callbacks that are not acknowledged at all (`lease.rs`).

use crate::clients::rows::ExportId;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_types::{Instant, LockCookie};

/// The longest extension of a deadline, in leases.
pub(crate) const EXTENSION_LEASES_MAX: u32 = 30;

/// Names a revoked lock of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RevokedLock {
    /// A cancel returns the lock.
    Cookie(LockCookie),
    /// A cancel that names this revoke returns the bits of an inode lock.
    Inode(u64),
}

#[derive(Debug, Clone, Copy)]
struct Revocation {
    /// Describes the kind of lock in the cause of an eviction.
    kind: &'static str,
    since: Instant,
    /// When a request under the lock was last seen.
    used: Instant,
}

/// The revoked locks of all clients. Bounded by their locks and unacknowledged callbacks.
#[derive(Debug, Default)]
pub(crate) struct RevokeDeadlines {
    revoked: BTreeMap<(ExportId, RevokedLock), Revocation>,
    /// No deadline is earlier.
    next_check: Instant,
}

impl RevokeDeadlines {
    /// A callback has revoked a lock. Returns true if it is the only revoked one.
    pub(crate) fn insert(
        &mut self,
        export: ExportId,
        lock: RevokedLock,
        kind: &'static str,
        now: Instant,
        lease: Duration,
    ) -> bool {
        let first = self.revoked.is_empty();
        if first {
            self.next_check = now + lease;
        }
        self.revoked.entry((export, lock)).or_insert(Revocation { kind, since: now, used: now });
        first
    }
    /// A request under the lock extends its deadline.
    pub(crate) fn extend(&mut self, export: ExportId, lock: RevokedLock, now: Instant) {
        if let Some(revocation) = self.revoked.get_mut(&(export, lock)) {
            revocation.used = now;
        }
    }
    /// The client has returned the lock.
    pub(crate) fn remove(&mut self, export: ExportId, lock: RevokedLock) {
        self.revoked.remove(&(export, lock));
    }
    /// The export has ended, and all its locks with it.
    pub(crate) fn remove_client(&mut self, export: ExportId) {
        self.revoked.retain(|(of, _), _| *of != export);
    }
    /// The earliest time at which a deadline may have passed.
    pub(crate) fn next_check(&self) -> Option<Instant> {
        (!self.revoked.is_empty()).then_some(self.next_check)
    }
    /// Clients with a lock whose deadline has passed, and the cause for the log. `connected_since` is `None` for a client that
    /// is not connected or whose lease is ending already.
    pub(crate) fn expired(
        &mut self,
        now: Instant,
        lease: Duration,
        connected_since: impl Fn(ExportId) -> Option<Instant>,
    ) -> Vec<(ExportId, String)> {
        if now < self.next_check {
            return Vec::new();
        }
        let (mut expired, mut next) = (Vec::<(ExportId, String)>::new(), now + lease);
        for ((export, _), revocation) in &self.revoked {
            let Some(connected_since) = connected_since(*export) else { continue };
            let progress = revocation.used.max(connected_since);
            let deadline = (progress + lease).min(revocation.since + lease * EXTENSION_LEASES_MAX);
            if deadline > now {
                next = next.min(deadline);
            } else if expired.last().is_none_or(|(last, _)| last != export) {
                let ms = now.saturating_since(revocation.since).as_millis();
                let kind = revocation.kind;
                expired.push((*export, format!("{kind} for which others wait was not returned for {ms} ms")));
            }
        }
        self.next_check = next;
        expired
    }
}
