//! The wait after a restart for locks that no row restores.
//!
//! A client may use such a lock of an earlier start until it reports that it and its kernel no longer do (after the report
//! of the opens that it has made under such locks). The wait for a client that does not return ends with the lease of that
//! client, and any wait at the latest one lease after the start and the end of the recovery.
//! Changes that may conflict with such a lock wait until then. The features in the rows of clients
//! ([`Service::VOLATILE_LOCK_FEATURES`](crate::Service::VOLATILE_LOCK_FEATURES)) show which clients may have such locks;
//! therefore a client is granted one only after its row has the feature.

use crate::clients::export::ClientExport;
use crate::clients::rows::ExportId;
use crate::lease::longest_lease;
use crate::target_core::TargetCore;
use nacre_types::Instant;
use nacre_wire::target::Role;

impl TargetCore {
    /// Whether this client may be granted a lock that no row restores: after a restart its row will show that it may
    /// have had one.
    pub fn may_have_volatile_locks(&self, export: ExportId) -> bool {
        let exports = self.clients().exports();
        exports
            .get(export)
            .is_some_and(|e| e.features() & e.row_features() & self.volatile_lock_features() != 0)
    }
    /// Whether both sides know a feature.
    pub fn has_feature(&self, export: ExportId, feature: u64) -> bool {
        self.clients().exports().get(export).is_some_and(|e| e.features() & feature != 0)
    }
    /// Waits until no client relies on a volatile lock that an earlier start has granted.
    pub async fn former_locks_ended(&self) {
        while let Some(deadline) = self.former_locks_deadline() {
            let _connected = self.ctx.timeout(deadline, self.clients().wait_changed()).await;
        }
    }
    /// When the next lease runs out of a client that may rely on a volatile lock of an earlier start; `None` if there is
    /// no such client.
    pub fn former_locks_deadline(&self) -> Option<Instant> {
        let now = self.ctx.now();
        // A client that has come back has the time of a lease from the end of the recovery: it can report nothing before.
        let latest = self.started().max(self.recovery().ended(now)) + longest_lease(self);
        self.clients().former_locks_deadline(now, latest, |e| {
            e.role() == Role::Client && e.row_features() & self.volatile_lock_features() != 0
        })
    }
    /// The client says that it does not rely on a volatile lock of an earlier start.
    pub fn end_former_locks(&self, export: ExportId) {
        self.clients().with(export, ClientExport::end_former_locks);
        self.clients().notify_changed();
    }
}
