//! The end of a connection and of an export.
//!
//! Invariant: the end of an export ends its locks, opens and orphans (the service's `export_gone`) before its row is
//! deleted, so that a crash in the middle repeats it. Every eviction is logged with its cause.

use crate::clients::rows::{ExportId, client_key, reply_end, reply_key};
use crate::island::inner::Inner;
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::rc::Rc;
use alloc::string::String;
use nacre_node::{ConnId, Effect};
use nacre_osd::{Credits, Pins, table};
use nacre_types::{Errno, Tag};

/// Why an export ends.
pub(crate) enum ExportEnd {
    /// The client has disconnected.
    Disconnected,
    /// A client of the same uuid was started anew.
    Replaced,
    /// The client was in the process of an earlier start of this target.
    ProcessEnded,
    /// The target has evicted the client, for this cause.
    Evicted(String),
}

impl<S: Service> Inner<S> {
    /// A connection has ended; the export stays until its lease has run out.
    pub(crate) fn conn_closed(&self, conn: ConnId) {
        let (Some(id), Some(core)) = (self.conns().remove(conn), self.core()) else { return };
        let mut exports = core.clients().exports_mut();
        if let Some(entry) = exports.get_mut(id)
            && entry.conn() == Some(conn)
        {
            entry.disconnect();
            core.leave_neighbours(entry);
            if !entry.has_lease() {
                exports.remove(id);
            }
        }
    }
    /// Closes a connection from this side.
    pub(crate) fn close(&self, conn: ConnId) {
        if self.conns().contains(conn) {
            self.conn_closed(conn);
            self.ctx().push(Effect::Close { conn });
        }
    }

    /// Ends an export at once; a task ends its locks and opens.
    pub(crate) fn end_export(self: &Rc<Self>, core: &Rc<TargetCore>, id: ExportId, end: ExportEnd) {
        let Some(entry) = core.clients().exports_mut().remove(id) else { return };
        core.recovery().client_gone(id);
        core.revoke_deadlines().borrow_mut().remove_client(id);
        core.clients().notify_changed();
        self.log_end(core, (entry.uuid(), entry.name()), &end);
        if let ExportEnd::Evicted(cause) = end {
            core.process_leases().end();
            core.evictions().record(entry.uuid(), &cause);
            if let Some(conn) = entry.conn() {
                self.conns().remove(conn);
                self.ctx().push(Effect::Close { conn });
            }
        }
        if entry.has_lease() {
            self.clean_up(core, id);
        }
    }

    fn log_end(&self, core: &TargetCore, (client, name): (nacre_types::ClientUuid, &str), end: &ExportEnd) {
        let allowed = |kind| core.lines.allow(kind, self.ctx().now());
        match end {
            ExportEnd::Disconnected => {
                if let Some(left_out) = allowed("disconnected") {
                    tracing::info!(target_name = %core.name, %client, name, left_out, "client disconnected");
                }
            }
            ExportEnd::Replaced => {
                if let Some(left_out) = allowed("started anew") {
                    tracing::info!(target_name = %core.name, %client, name, left_out, "client was started anew");
                }
            }
            ExportEnd::ProcessEnded => {
                tracing::info!(target_name = %core.name, %client, name, "client ended with the former server process")
            }
            ExportEnd::Evicted(cause) => {
                if let Some(left_out) = allowed("evicted") {
                    tracing::warn!(target_name = %core.name, %client, name, cause, left_out,
                        "client evicted: its locks, opens and unfinished requests are dropped");
                }
            }
        }
    }

    /// Ends the locks and opens of an export that does not exist any more, and deletes its rows, in a task. A planned stop
    /// waits for it as for a request.
    pub(crate) fn clean_up(self: &Rc<Self>, core: &Rc<TargetCore>, id: ExportId) {
        let (Some(service), core) = (self.service().cloned(), core.clone()) else { return };
        self.begin_work();
        let this = self.clone();
        self.ctx().spawn(async move {
            let cleaned = match service.export_gone(id).await {
                Ok(()) => delete_client(&core, id).await,
                Err(error) => Err(error),
            };
            if let Err(error) = cleaned {
                // The next start finds the row and repeats this.
                tracing::warn!(target_name = %core.name, generation = %id, %error, "client record not deleted");
            }
            this.end_work();
        });
    }
}

async fn delete_client(core: &Rc<TargetCore>, id: ExportId) -> Result<(), Errno> {
    let credits = Credits { rows: 3, row_bytes: 192, frees: true, ..Credits::default() };
    let reservation = core.osd.reserve(credits).await?;
    core.transact_local(&Pins::default(), reservation, |tx| {
        tx.delete_range(table::REPLY, &reply_key(id, Tag(0)), &reply_end(id));
        tx.delete(table::CLIENT, &client_key(id));
        core.clients().incompat().left(tx, id, core.in_recovery());
        Ok(())
    })?;
    Ok(())
}
