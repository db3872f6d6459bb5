//! Callbacks to clients, and the locks that they revoke.

use crate::clients::export::ClientExport;
use crate::clients::rows::ExportId;
use crate::lease::lease;
use crate::locks::deadlines::RevokedLock;
use crate::target_core::TargetCore;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_node::Effect;
use nacre_types::{Codec, Instant, Xid};
use nacre_wire::Opcode;
use nacre_wire::target::Role;

/// A client that is alive acknowledges a callback within this time.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(2);

impl TargetCore {
    /// Sends a callback to the client of an export. It is kept and resent until acknowledged. Returns its number, for
    /// [`Service::acknowledged`](crate::Service::acknowledged); `None` if the export has ended, or will because its client
    /// has too many unacknowledged callbacks.
    pub fn callback<'a, R: Codec<'a>>(&self, export: ExportId, opcode: Opcode, body: &R) -> Option<Xid> {
        let mut exports = self.clients().exports_mut();
        let entry = exports.get_mut(export)?;
        match entry.rpc.callback(opcode, Bytes::from(body.to_vec())) {
            Ok(frame) => {
                let number = frame.header.xid;
                if let Some(conn) = entry.conn() {
                    entry.callback_sent(self.ctx.now());
                    self.ctx.push(Effect::Send { conn, frame });
                }
                Some(number)
            }
            Err(full) => {
                drop(exports);
                self.end_lease(export, full.to_string());
                None
            }
        }
    }

    /// Sends a callback to every connected client, and waits until all have acknowledged it, or for a short time. Returns
    /// how many have not.
    pub async fn callback_all<'a, R: Codec<'a>>(&self, opcode: Opcode, body: &R) -> usize {
        let is_connected = |e: &ClientExport| e.role() == Role::Client && e.conn().is_some();
        let clients: Vec<ExportId> =
            self.clients().exports().iter().filter(|(_, e)| is_connected(e)).map(|(id, _)| id).collect();
        for client in &clients {
            self.callback(*client, opcode, body);
        }
        let silent = || {
            let exports = self.clients().exports();
            let waits = |id: &&ExportId| {
                exports.get(**id).is_some_and(|e| is_connected(e) && e.rpc.unacknowledged_callbacks() > 0)
            };
            clients.iter().filter(waits).count()
        };
        let deadline = self.ctx.now() + ACKNOWLEDGE_TIMEOUT;
        while silent() > 0 && self.ctx.now() < deadline {
            self.ctx.sleep(ACKNOWLEDGE_TIMEOUT / 200).await;
        }
        silent()
    }

    /// A callback has revoked a lock: from now on the client has a deadline to return it. `kind` describes the lock in
    /// the cause of an eviction.
    pub fn revoked(&self, export: ExportId, lock: RevokedLock, kind: &'static str) {
        if self.revoke_deadlines().borrow_mut().insert(export, lock, kind, self.ctx.now(), lease(self)) {
            self.evictions().wake_reaper();
        }
    }
    /// A request under a lock, revoked or not, extends its deadline.
    pub fn revoked_lock_used(&self, export: ExportId, lock: RevokedLock) {
        self.revoke_deadlines().borrow_mut().extend(export, lock, self.ctx.now());
    }
    /// The client has returned a lock, revoked or not.
    pub fn lock_returned(&self, export: ExportId, lock: RevokedLock) {
        self.revoke_deadlines().borrow_mut().remove(export, lock);
    }
    /// The earliest time at which a client may have missed a deadline.
    pub(crate) fn next_revoke_check(&self) -> Option<Instant> {
        self.revoke_deadlines().borrow().next_check()
    }
    /// Clients that have missed the deadline of a revoked lock, with the cause for the log.
    pub(crate) fn expired_revokes(&self) -> Vec<(ExportId, String)> {
        let exports = self.clients().exports();
        let connected_since =
            |export| exports.get(export).filter(|e| e.lease_ending().is_none())?.connected_since();
        self.revoke_deadlines().borrow_mut().expired(self.ctx.now(), lease(self), connected_since)
    }
}
