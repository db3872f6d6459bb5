//! Leases: how long a silent client keeps its grants, and which clients are to be evicted.
//!
//! Rules: any message renews its client's lease; a ping reply of another target in this process renews it too
//! ([`Neighbours`](crate::Neighbours)). The lease of a client that does not acknowledge its callbacks, or does not
//! return a revoked lock (`locks/deadlines.rs`), is not renewed any more, and every reply says so. A client whose lease
//! has run out, or whose acknowledgement is overdue, is evicted only after the target has been running without a pause
//! for a while, and has therefore read its sockets. Time in which this process was stopped (SIGSTOP, a suspended
//! machine) does not count against its clients. No client is evicted before a full lease has passed since its last
//! message, or since the start of the target; a client that has not connected since then has the lease of the former
//! start, if that was longer.
//! Not here: the task that evicts (`island/reap.rs`).

use crate::clients::export::ClientExport;
use crate::clients::rows::ExportId;
use crate::target_core::TargetCore;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_types::Instant;

/// Row of `TARGET`: the longest lease, in milliseconds, that a client may have been granted.
pub(crate) const LEASE_KEY: &[u8] = b"lease";

/// The length of a lease.
pub(crate) fn lease(core: &TargetCore) -> Duration {
    Duration::from_millis(u64::from(core.config.lease_ms))
}
/// For clients of an earlier start: their lease may have been a longer one.
pub(crate) fn longest_lease(core: &TargetCore) -> Duration {
    core.former_lease().max(lease(core))
}
pub(crate) fn a_lease_before(core: &TargetCore, now: Instant) -> Instant {
    Instant(now.0.saturating_sub(u64::from(core.config.lease_ms) * 1_000_000))
}
/// If an event is late by more than this, the process was stopped.
pub(crate) fn standstill(core: &TargetCore) -> Duration {
    (lease(core) / 20).max(Duration::from_millis(250))
}

impl TargetCore {
    /// Any message renews the lease of its client.
    pub(crate) fn renew_lease(&self, export: ExportId) {
        let deadline = self.ctx.now() + lease(self);
        self.clients().with(export, |entry| entry.renew_lease(deadline));
    }
    /// The lease of this export is not renewed any more, and every reply says so. It is evicted when it has run out.
    pub fn end_lease(&self, export: ExportId, cause: String) {
        self.clients().with(export, |entry| {
            if entry.has_lease() && entry.lease_ending().is_none() {
                if let Some(left_out) = self.lines.allow("lease", self.ctx.now()) {
                    tracing::warn!(target_name = %self.name, client = %entry.uuid(), name = entry.name(), cause, left_out,
                        "the lease of this client is not renewed any more");
                }
                // The client relies on the replies of neighbours so far until they have run out.
                match entry.conn() {
                    Some(_) => self.leave_neighbours(entry),
                    None => self.process_leases().end(),
                }
                entry.end_lease(cause);
            }
        });
    }
    /// From now on the reply of a neighbour does not renew this export; renewals so far count.
    pub(crate) fn leave_neighbours(&self, entry: &mut ClientExport) {
        self.process_leases().end();
        if let Some(renewed) = self.process_leases().renewed_or_end(entry.uuid(), Instant(0)) {
            entry.extend_lease(renewed + lease(self));
        }
    }
    /// A ping renews its client's other exports in this process. Returns process and number of ended leases.
    pub(crate) fn pinged(&self, export: ExportId) -> (u64, u64) {
        match self.clients().exports().get(export).filter(|entry| entry.has_lease()) {
            Some(entry) => self.process_leases().renew(entry.uuid(), self.ctx.now()),
            None => self.process_leases().process(),
        }
    }

    // ---- for the reaper

    /// Clients that have not acknowledged a callback for a whole lease.
    pub(crate) fn callbacks_overdue(&self) -> Vec<ExportId> {
        let (now, limit) = (self.ctx.now(), lease(self));
        let is_overdue = |e: &ClientExport| {
            e.lease_ending().is_none() && e.callback_since().is_some_and(|at| at + limit <= now)
        };
        self.clients().exports().iter().filter(|(_, e)| is_overdue(e)).map(|(id, _)| id).collect()
    }
    /// Ends the leases of clients with overdue acknowledgements or revoked locks.
    pub(crate) fn end_overdue_leases(&self) {
        for id in self.callbacks_overdue() {
            self.end_lease(id, format!("a callback was not acknowledged for {} ms", self.config.lease_ms));
        }
        for (id, cause) in self.expired_revokes() {
            self.end_lease(id, cause);
        }
    }
    /// Exports whose lease has run out. During a recovery, clients that were never seen are given up by the recovery.
    pub(crate) fn expired_leases(&self) -> Vec<ExportId> {
        let recovering = self.recovery().is_active();
        let exports = self.clients().exports();
        let expired = exports.expired(self.ctx.now());
        expired.filter(|(_, e)| e.is_seen() || !recovering).map(|(id, _)| id).collect()
    }
    /// Why an export is to be evicted now; `None` when a neighbour has renewed its lease after all.
    pub(crate) fn eviction_cause(&self, id: ExportId) -> Option<String> {
        let (now, ms) = (self.ctx.now(), self.config.lease_ms);
        let mut exports = self.clients().exports_mut();
        let entry = exports.get_mut(id)?;
        if entry.lease_deadline() > now {
            return None;
        }
        if let Some(cause) = entry.lease_ending() {
            return Some(String::from(cause));
        }
        if !entry.is_seen() {
            let ms = longest_lease(self).as_millis();
            return Some(format!("not seen for {ms} ms since the target was started"));
        }
        if entry.conn().is_some()
            && let Some(renewed) =
                self.process_leases().renewed_or_end(entry.uuid(), a_lease_before(self, now))
        {
            entry.renew_lease(renewed + lease(self));
            return None;
        }
        Some(format!("no message for {ms} ms"))
    }
}
