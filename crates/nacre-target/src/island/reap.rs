//! The reaper: evicts clients whose lease has run out, and those that others have asked to evict.

use crate::island::export_end::ExportEnd;
use crate::island::inner::Inner;
use crate::lease::{LEASE_KEY, lease, longest_lease, standstill};
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::rc::Rc;
use nacre_osd::{Credits, Pins, table};
use nacre_types::Codec;

/// Before an eviction the target has been running for so many steps, each of a 50th of the lease.
const WATCH_STEPS: u32 = 5;

impl<S: Service> Inner<S> {
    /// Evicts clients when they are due. Ends with the target.
    pub(crate) async fn reap(self: Rc<Self>) {
        let Some(core) = self.core().cloned() else { return };
        while !self.is_stopping() {
            for (id, cause) in core.evictions().take_requested() {
                self.end_export(&core, id, ExportEnd::Evicted(cause));
            }
            let revoke_is_due = core.next_revoke_check().is_some_and(|at| at <= self.ctx().now());
            if !core.expired_leases().is_empty() || !core.callbacks_overdue().is_empty() || revoke_is_due {
                if self.is_reading(&core).await && !self.is_stopping() {
                    core.end_overdue_leases();
                    for id in core.expired_leases() {
                        if let Some(cause) = core.eviction_cause(id) {
                            self.end_export(&core, id, ExportEnd::Evicted(cause));
                        }
                    }
                }
                continue;
            }
            let next = core.clients().exports().next_lease_deadline();
            let next = next.into_iter().chain(core.next_revoke_check()).min();
            match next {
                // Never at once: during a recovery, expired clients that were never seen are left alone.
                Some(at) => {
                    let at = at.max(self.ctx().now() + lease(&core) / 10);
                    let _woken = self.ctx().timeout(at, core.evictions().wait()).await;
                }
                None => core.evictions().wait().await,
            }
        }
    }

    /// After a start with a shorter lease than before: once the former one has passed, no client relies on it any more. A
    /// start before that has to wait as long again.
    pub(crate) async fn forget_former_lease(self: Rc<Self>) {
        let Some(core) = self.core().cloned() else { return };
        let deadline = self.ctx().now() + longest_lease(&core);
        while self.ctx().now() < deadline && !self.is_stopping() {
            let _woken = self.ctx().timeout(deadline, core.evictions().wait()).await;
        }
        if self.is_stopping() || core.former_lease() <= lease(&core) {
            return;
        }
        let credits = Credits { rows: 1, row_bytes: 64, frees: true, ..Credits::default() };
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

    /// Waits for a while; returns whether this target was running without a gap, so that all that had arrived was read.
    pub(crate) async fn is_reading(&self, core: &TargetCore) -> bool {
        let step = lease(core) / 50;
        for _ in 0..WATCH_STEPS {
            let due = self.ctx().now() + step;
            self.ctx().sleep(step).await;
            if self.ctx().now() > due + standstill(core) {
                tracing::info!(target_name = %core.name, "this process stood still: clients get time to renew their leases");
                return false;
            }
        }
        true
    }
}
