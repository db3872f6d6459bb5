//! The proof that a change of a request may take effect.
//!
//! A request may have waited for locks, rows or room since its admission, and its client may have died or lost its file
//! locks meanwhile. So a change begins with [`TargetCore::admit_change`], and [`TargetCore::transact`] as well as the stores
//! ask for its result: no change can forget the check.

use crate::request::Request;
use crate::target_core::TargetCore;
use nacre_types::ProtocolOutcome;
use nacre_wire::is_expired;

/// See the module. Used up by the transaction of the change.
///
/// Make it in the visit in which the change takes effect, after every wait. That is the visit of the transaction; only the
/// bytes of a write and the blocks of an allocation take effect before it, and their rows must follow however long that
/// takes.
#[derive(Debug)]
pub struct Admitted<'a> {
    request: &'a Request,
}

impl<'a> Admitted<'a> {
    /// The request whose change this is.
    pub fn request(&self) -> &'a Request {
        self.request
    }
}

impl TargetCore {
    /// Admits the change of a request. Fails if the export of the client has ended with its lease, or if the client has
    /// disconnected: if it lives, it will resend, and if it is dead, no other client may see a new change of it until its
    /// lease ends the export. Fails as well if the deadline that the client has set has passed: others may have the file
    /// locks under which it was sent. A replayed change has no deadline, because its client has the reply.
    ///
    /// # Errors
    /// [`ProtocolOutcome::ExportGone`]: the export has ended. [`ProtocolOutcome::Abandoned`], which no client sees: the next
    /// copy is executed as if this one had been lost on its way. [`ProtocolOutcome::DeadlinePassed`]: the change was not
    /// applied and will not be.
    pub fn admit_change<'a>(&self, request: &'a Request) -> Result<Admitted<'a>, ProtocolOutcome> {
        let mut exports = self.clients().exports_mut();
        let entry = exports.get_mut(request.export).ok_or(ProtocolOutcome::ExportGone)?;
        if request.replayed_transno().is_some() {
            return Ok(Admitted { request });
        }
        if entry.conn().is_none() {
            tracing::debug!(target_name = %self.name, client = %entry.uuid(), xid = %request.header.xid,
                opcode = ?request.opcode, "not applied: its client has disconnected");
            entry.rpc.abandon(request.header.xid);
            return Err(ProtocolOutcome::Abandoned);
        }
        if is_expired(self.clock_ms(), request.header.clock_ms) {
            return Err(ProtocolOutcome::DeadlinePassed);
        }
        Ok(Admitted { request })
    }
}
