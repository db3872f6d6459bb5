//! Callbacks to clients, and the locks that they revoke.

use crate::clients::ExportId;
use crate::lease::lease;
use crate::locks::deadlines::{ClientProgress, RevokedLock};
use crate::target_core::TargetCore;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_node::Effect;
use nacre_types::{Codec, Instant, Xid};
use nacre_wire::Opcode;

impl TargetCore {
    /// Sends a callback to the client of an export. It is kept and resent until acknowledged. Returns its number, for
    /// [`Service::acknowledged`](crate::Service::acknowledged); `None` if the export has ended, or will because its client
    /// has too many unacknowledged callbacks.
    pub fn callback<'a, R: Codec<'a>>(&self, export: ExportId, opcode: Opcode, body: &R) -> Option<Xid> {
        let mut exports = self.exports.borrow_mut();
        let entry = exports.get_mut(export)?;
        match entry.rpc.callback(opcode, Bytes::from(body.to_vec())) {
            Ok(frame) => {
                let number = frame.header.xid;
                if let Some(conn) = entry.conn {
                    entry.callback_since = entry.callback_since.or(Some(self.ctx.now()));
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

    /// A callback has revoked a lock: from now on the client has a deadline to return it. `kind` describes the lock in
    /// the cause of an eviction.
    pub fn revoked(&self, export: ExportId, lock: RevokedLock, kind: &'static str) {
        if self.revoke_deadlines.borrow_mut().insert(export, lock, kind, self.ctx.now(), lease(self)) {
            self.reaper.wake_all();
        }
    }
    /// A request under a lock, revoked or not, extends its deadline.
    pub fn revoked_lock_used(&self, export: ExportId, lock: RevokedLock) {
        self.revoke_deadlines.borrow_mut().extend(export, lock, self.ctx.now());
    }
    /// The client has returned a lock, revoked or not.
    pub fn lock_returned(&self, export: ExportId, lock: RevokedLock) {
        self.revoke_deadlines.borrow_mut().remove(export, lock);
    }
    /// The earliest time at which a client may have missed a deadline.
    pub(crate) fn next_revoke_check(&self) -> Option<Instant> {
        self.revoke_deadlines.borrow().next_check()
    }
    /// Clients that have missed the deadline of a revoked lock, with the cause for the log.
    pub(crate) fn expired_revokes(&self) -> Vec<(ExportId, String)> {
        let exports = self.exports.borrow();
        let progress = |export| {
            let entry = exports.get(export).filter(|e| e.ending.is_none())?;
            Some(ClientProgress::new(entry.connected_since?, entry.acknowledged))
        };
        self.revoke_deadlines.borrow_mut().expired(self.ctx.now(), lease(self), progress)
    }
}
