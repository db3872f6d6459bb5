//! Leases: how long a silent client keeps what it was granted, and who is given up.
//!
//! Rules: any message renews its client's lease; an answered ping renews those of the client's other exports in this
//! process too ([`Neighbours`]). A client that does not acknowledge its callbacks, or does not give back what others
//! wait for (`locks/deadlines.rs`), is not renewed any more and is told so in every reply. Whoever is overdue, with a message or with an acknowledgement, is given up only after the target has
//! been running, and so reading its sockets, for a while without a gap: time in which this process stood still (SIGSTOP, a
//! machine that was suspended) does not count against its clients. Nobody is evicted before a full lease has passed since the last message, or
//! since the start of the target; who has not connected since then has the lease of that time, if it was longer.

use crate::clients::Entry;
use crate::clients::ExportId;
use crate::connect::Gone;
use crate::island::Inner;
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;
use nacre_osd::{Credits, Pins, table};
use nacre_types::{ClientUuid, Codec, Instant};

/// What the targets of one process know together of their clients, so that an idle client sends one ping per process.
///
/// A client counts a neighbour's answer for an import only when [`Neighbours::hear`] gave the same number with that
/// answer as with the import's own latest one: then no lease has ended in between, and the export stands.
pub trait Neighbours: fmt::Debug + Send + Sync {
    /// Names this process; not 0.
    fn process(&self) -> u64;
    /// A client was heard. Gives how many leases have ended in this process so far.
    fn hear(&self, client: ClientUuid, now: Instant) -> u64;
    /// When the client was heard, if that was after `after`; else counts the end of a lease. One step with regard to
    /// [`Neighbours::hear`].
    fn heard_or_end(&self, client: ClientUuid, after: Instant) -> Option<Instant>;
    /// Counts the end of a lease, whoever was heard; or the start of a target, which knows of no former grant.
    fn end(&self);
    fn ended(&self) -> u64;
}

/// Row of `TARGET`: the longest lease, in milliseconds, that a client may have been told of.
pub(crate) const LEASE_KEY: &[u8] = b"lease";
/// Before somebody is evicted the target has been running for so many steps, each of a 50th of the lease.
const WATCH_STEPS: u32 = 5;

pub(crate) fn lease(core: &TargetCore) -> Duration {
    Duration::from_millis(u64::from(core.config.lease_ms))
}
/// For clients of an earlier start: the lease that they were told of may have been a longer one.
pub(crate) fn earlier_lease(core: &TargetCore) -> Duration {
    core.earlier_lease.get().max(lease(core))
}
pub(crate) fn a_lease_before(core: &TargetCore, now: Instant) -> Instant {
    Instant(now.0.saturating_sub(u64::from(core.config.lease_ms) * 1_000_000))
}
/// What came later than this after its time says that the process stood still.
pub(crate) fn standstill(core: &TargetCore) -> Duration {
    (lease(core) / 20).max(Duration::from_millis(250))
}

impl TargetCore {
    /// The lease of this export is not renewed any more, and every reply says so. It is evicted when it has run out.
    pub fn end_lease(&self, export: ExportId, cause: String) {
        self.with_export(export, |entry| {
            if entry.has_lease() && entry.ending.is_none() {
                if let Some(left_out) = self.lines.allow("lease", self.ctx.now()) {
                    tracing::warn!(target_name = %self.name, client = %entry.uuid, name = entry.name, cause, left_out,
                        "the lease of this client is not renewed any more");
                }
                // The client counts what a neighbour has answered so far: it may use its rights until that has run out.
                match entry.conn {
                    Some(_) => self.leave_neighbours(entry),
                    None => self.note_end(),
                }
                entry.ending = Some(cause);
            }
        });
    }
    /// Who has not acknowledged a callback for a whole lease.
    fn overdue(&self) -> Vec<ExportId> {
        let (now, limit) = (self.ctx.now(), lease(self));
        let overdue = |e: &Entry| e.ending.is_none() && e.callback_since.is_some_and(|at| at + limit <= now);
        self.exports.borrow().iter().filter(|(_, e)| overdue(e)).map(|(id, _)| id).collect()
    }
    fn end_overdue(&self) {
        for id in self.overdue() {
            self.end_lease(id, format!("a callback was not acknowledged for {} ms", self.config.lease_ms));
        }
        for (id, cause) in self.expired_revokes() {
            self.end_lease(id, cause);
        }
    }
    /// From here on a neighbour's answer does not renew what its client has here; what it has renewed counts.
    pub(crate) fn leave_neighbours(&self, entry: &mut Entry) {
        self.note_end();
        let heard = self.neighbours.as_ref().map(|n| n.heard_or_end(entry.uuid, Instant(0)));
        if let Some(at) = heard.flatten().filter(|_| entry.seen && entry.ending.is_none()) {
            entry.lease_until = entry.lease_until.max(at + lease(self));
        }
    }
    pub(crate) fn note_end(&self) {
        if let Some(neighbours) = &self.neighbours {
            neighbours.end();
        }
    }
    /// Process and number of ended leases, for a reply; 0 when this target is alone.
    pub(crate) fn process(&self) -> (u64, u64) {
        self.neighbours.as_ref().map_or((0, 0), |n| (n.process(), n.ended()))
    }
    /// A ping: its client's other exports in this process are renewed by it.
    pub(crate) fn pinged(&self, export: ExportId) -> (u64, u64) {
        let exports = self.exports.borrow();
        match (&self.neighbours, exports.get(export)) {
            (Some(n), Some(entry)) if entry.has_lease() => (n.process(), n.hear(entry.uuid, self.ctx.now())),
            _ => self.process(),
        }
    }

    /// Whose lease has run out.
    fn suspects(&self) -> Vec<ExportId> {
        let exports = self.exports.borrow();
        let recovering = self.in_recovery();
        // Whoever was never seen is given up at the end of a recovery.
        let counts = |e: &Entry| e.seen || !recovering;
        let expired = exports.expired(self.ctx.now());
        expired.filter(|id| exports.get(*id).is_some_and(counts)).collect()
    }
    /// Why an export is to be evicted now; `None` when it has been renewed after all.
    fn verdict(&self, id: ExportId) -> Option<String> {
        let (now, ms) = (self.ctx.now(), self.config.lease_ms);
        let mut exports = self.exports.borrow_mut();
        let entry = exports.get_mut(id)?;
        if entry.lease_until > now {
            return None;
        }
        if let Some(cause) = &entry.ending {
            return Some(cause.clone());
        }
        if !entry.seen {
            let ms = earlier_lease(self).as_millis();
            return Some(format!("not seen for {ms} ms since the target was started"));
        }
        if let Some(n) = self.neighbours.as_ref().filter(|_| entry.conn.is_some())
            && let Some(at) = n.heard_or_end(entry.uuid, a_lease_before(self, now))
        {
            entry.lease_until = at + lease(self);
            return None;
        }
        Some(format!("nothing heard for {ms} ms"))
    }
}

impl<S: Service> Inner<S> {
    /// Any message renews the lease of its client.
    pub(crate) fn renew(&self, core: &TargetCore, id: ExportId) {
        core.with_export(id, |entry| {
            if entry.ending.is_none() {
                entry.lease_until = self.ctx.now() + lease(core);
            }
        });
    }

    /// Evicts whose lease has run out, and whom others have found guilty. Ends with the target.
    pub(crate) async fn reap(self: Rc<Self>) {
        let Some(core) = self.core.get().cloned() else { return };
        while !self.stopping.get() {
            let doomed = core::mem::take(&mut *core.doomed.borrow_mut());
            for (id, cause) in doomed {
                self.drop_export(&core, id, Gone::Evicted(cause));
            }
            let revoke_is_due = core.next_revoke_check().is_some_and(|at| at <= self.ctx.now());
            if !core.suspects().is_empty() || !core.overdue().is_empty() || revoke_is_due {
                if self.is_reading(&core).await && !self.stopping.get() {
                    core.end_overdue();
                    for id in core.suspects() {
                        if let Some(cause) = core.verdict(id) {
                            self.drop_export(&core, id, Gone::Evicted(cause));
                        }
                    }
                }
                continue;
            }
            let next = core.exports.borrow().next_lease_end();
            let next = next.into_iter().chain(core.next_revoke_check()).min();
            match next {
                // Never at once: a recovery leaves those alone who were not seen.
                Some(at) => {
                    let at = at.max(self.ctx.now() + lease(&core) / 10);
                    let _woken = self.ctx.timeout(at, core.reaper.wait()).await;
                }
                None => core.reaper.wait().await,
            }
        }
    }

    /// After a start with a shorter lease than before: once the former one has passed, nobody believes in it any more. A
    /// start that comes earlier has to wait as long again.
    pub(crate) async fn forget_earlier_lease(self: Rc<Self>) {
        let Some(core) = self.core.get().cloned() else { return };
        let until = self.ctx.now() + earlier_lease(&core);
        while self.ctx.now() < until && !self.stopping.get() {
            let _woken = self.ctx.timeout(until, core.reaper.wait()).await;
        }
        if self.stopping.get() || core.earlier_lease.get() <= lease(&core) {
            return;
        }
        let credits = Credits { rows: 1, row_bytes: 64, object_bytes: 0, frees: true };
        let forgotten = match core.osd.reserve(credits).await {
            Ok(reservation) => core.transact_local(&Pins::default(), reservation, |tx| {
                tx.put(table::TARGET, LEASE_KEY, core.config.lease_ms.to_vec());
                Ok(())
            }),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = forgotten {
            tracing::warn!(target_name = %core.name, %error, "the next start waits for a lease that is not in force any more");
        }
    }

    /// Whether this target has been running for a while without a gap: what came has been read then.
    pub(crate) async fn is_reading(&self, core: &TargetCore) -> bool {
        let step = lease(core) / 50;
        for _ in 0..WATCH_STEPS {
            let due = self.ctx.now() + step;
            self.ctx.sleep(step).await;
            if self.ctx.now() > due + standstill(core) {
                tracing::info!(target_name = %core.name, "this process stood still: its clients get time to be heard");
                return false;
            }
        }
        true
    }
}
