//! Connect: the admission of a peer as a client.
//!
//! Invariant: a client's row is committed before the reply to its connect. Not here: the end of an export
//! (`export_end.rs`), evictions (`reap.rs`).

use crate::clients::export::{ClientExport, NewConnection};
use crate::clients::rows::{ExportId, client_key};
use crate::clients::table::Exports;
use crate::island::export_end::ExportEnd;
use crate::island::inner::Inner;
use crate::island::start::GENERATION_KEY;
use crate::lease::lease;
use crate::request::Reply;
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use nacre_node::{ConnId, Effect};
use nacre_osd::{Credits, Pins, table};
use nacre_rpc::Export;
use nacre_types::{Codec, ConnEpoch, Errno, Failure, Generation, ProtocolOutcome};
use nacre_wire::bounds::{NAME_BYTES_MAX, SENTENCE_BYTES_MAX, truncated};
use nacre_wire::target::{Connect, ConnectReply, Role, features};
use nacre_wire::{Frame, Header};

impl<S: Service> Inner<S> {
    pub(crate) fn handle_connect(self: &Rc<Self>, core: &Rc<TargetCore>, conn: ConnId, frame: Frame) {
        let connect = match Connect::from_slice(&frame.body) {
            Ok(connect) => connect,
            Err(error) => return self.protocol_error(core, conn, &error.to_string()),
        };
        if core.is_impostor(&connect) {
            return self.refuse_impostor(core, conn, &frame.header, &connect);
        }
        if let Some((why, mismatch)) = core.refusal(&connect) {
            return self.refuse(core, conn, &frame.header, &connect, why, mismatch);
        }
        if let Some(service) = self.service()
            && let Some((why, for_good)) = self.contest(core, service, &connect)
        {
            return self.refuse(core, conn, &frame.header, &connect, why, for_good);
        }
        let known = core.clients().exports().of_client(connect.client).is_some();
        // Generation 0: it was started anew, or its first connect got no reply, so it does not know its export.
        let anew = connect.generation == Generation(0);
        if core.in_recovery() && connect.role != Role::Tool && (!known || anew) {
            return self.defer(core, conn, &frame.header, &connect, known);
        }
        let id = match self.admit_client(core, conn, frame.header.epoch, &connect) {
            Ok(id) => id,
            Err(error) => {
                self.send_reply(core, conn, &frame.header, Err(error));
                return self.close(conn);
            }
        };
        let is_recorded = |e: &ClientExport| {
            e.is_durable()
                && (!e.has_several_slots() || core.clients().incompat().is_known(id))
                && e.unrecorded(S::VOLATILE_LOCK_FEATURES) == 0
        };
        if core.clients().exports().get(id).is_some_and(is_recorded) {
            return self.reply_connect(core, conn, id, &frame.header, &connect);
        }
        let (this, core) = (self.clone(), core.clone());
        self.ctx().spawn(async move {
            match record_client(&core, id).await {
                Ok(()) => this.reply_connect(&core, conn, id, &frame.header, &connect),
                Err(error) => {
                    // A client that was known before keeps its locks and opens, and its row as it was.
                    let known = core.clients().exports().get(id).is_some_and(ClientExport::is_durable);
                    if !known {
                        core.clients().exports_mut().remove(id);
                    }
                    this.send_reply(&core, conn, &frame.header, Err(error));
                    this.close(conn);
                }
            }
        });
    }

    /// A new client during a recovery: the reply says how long the recovery takes at most, and the client tries again. A
    /// known client that was started anew cannot replay anything.
    fn defer(&self, core: &Rc<TargetCore>, conn: ConnId, header: &Header, connect: &Connect, known: bool) {
        if known && let Some(old) = core.clients().exports().of_client(connect.client) {
            core.recovery().client_gone(old);
        }
        if let Some(left_out) = core.lines.allow("put off", self.ctx().now()) {
            tracing::info!(target_name = %core.name, client = %connect.client, name = connect.name,
                recovery_ms = core.recovery_ms(), left_out, "new client waits for the end of the recovery");
        }
        let reply = self.connect_reply(core, connect, Generation(0));
        self.send_reply(core, conn, header, Ok(Reply::of(&reply)));
    }

    /// Refuses a client that means another target, or a later state of this one.
    fn refuse(
        &self,
        core: &Rc<TargetCore>,
        conn: ConnId,
        header: &Header,
        connect: &Connect,
        refused: String,
        mismatch: bool,
    ) {
        let reply = ConnectReply { refused, mismatch, ..self.connect_reply(core, connect, Generation(0)) };
        self.send_reply(core, conn, header, Ok(Reply::of(&reply)));
        if mismatch && let Some(left_out) = core.lines.allow("mismatch", self.ctx().now()) {
            tracing::warn!(target_name = %core.name, client = %connect.client, name = connect.name, left_out,
                "client refused: {}", reply.refused);
        }
        self.close(conn);
    }

    /// Refuses a connect in the name of another client; the export of that client is not affected.
    fn refuse_impostor(&self, core: &Rc<TargetCore>, conn: ConnId, header: &Header, connect: &Connect) {
        if let Some(left_out) = core.lines.allow("impostor", self.ctx().now()) {
            let from = self.conns().origin(conn).map(|(from, _)| from);
            tracing::warn!(target_name = %core.name, client = %connect.client, name = connect.name, from, left_out,
                "connect refused: it names a client that is known with another secret");
        }
        self.send_reply(core, conn, header, Err(Failure::EACCES));
        self.close(conn);
    }

    fn connect_reply(&self, core: &TargetCore, connect: &Connect, id: ExportId) -> ConnectReply {
        let (process, ended) = core.process_leases().process();
        let evicted =
            connect.generation != Generation(0) && connect.generation != id && connect.role != Role::Tool;
        let cause = if evicted { core.evictions().cause(connect.client) } else { String::new() };
        let replaced_from = |e: &ClientExport| e.replaced_from().to_string();
        ConnectReply {
            target: core.osd.label().uuid,
            features: connect.features & features::ALL,
            max_mod_rpcs: agreed_slots(core, connect),
            lease_ms: core.config.lease_ms,
            generation: id,
            evicted,
            cause: truncated(&cause, SENTENCE_BYTES_MAX).to_string(),
            instance: core.instance(),
            server_time: self.ctx().wall(),
            recovery_ms: if id == Generation(0) { core.recovery_ms() } else { 0 },
            process,
            ended,
            local: core.is_local(id),
            executed: core.changes_before_loss(id),
            replaced: core.clients().exports().get(id).map_or_else(String::new, replaced_from),
            incarnation: core.osd.identity().latest(),
            refused: String::new(),
            mismatch: false,
        }
    }

    /// Finds or creates the export and ties it to the connection.
    fn admit_client(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        conn: ConnId,
        epoch: ConnEpoch,
        connect: &Connect,
    ) -> Result<ExportId, Failure> {
        let known = match connect.role {
            Role::Tool => self.conns().export(conn),
            Role::Client | Role::Target => core.clients().exports().of_client(connect.client),
        };
        let known = known.filter(|&id| !self.replaces(core, id, conn, connect));
        let (from, origin) = self.conns().origin(conn).ok_or(Errno::ENOTCONN)?;
        let lease_deadline = self.ctx().now() + lease(core);
        let mut exports = core.clients().exports_mut();
        let id = match known {
            Some(id) => id,
            None => self.new_export(core, &mut exports, connect)?,
        };
        let entry = exports.get_mut(id).ok_or(ProtocolOutcome::ExportGone)?;
        let max_mod_rpcs = agreed_slots(core, connect);
        // Callbacks are taken out when the reply is sent: it precedes them.
        entry.rpc.connect(epoch, max_mod_rpcs)?;
        entry.reply_order.connected(entry.rpc.last_transno());
        let features = connect.features & features::ALL;
        let instance = connect.instance;
        let new = NewConnection { conn, from, origin, features, max_mod_rpcs, instance };
        let replaced = entry.connect(new, self.ctx().now(), lease_deadline);
        if let Some((_, former)) = &replaced {
            self.note_replaced(core, entry, former);
        }
        drop(exports);
        if let Some((old, _)) = replaced {
            self.conns().remove(old);
            self.ctx().push(Effect::Close { conn: old });
        }
        self.conns().connect(conn, id);
        core.evictions().wake_reaper();
        core.clients().notify_changed();
        Ok(id)
    }

    fn new_export(
        &self,
        core: &TargetCore,
        exports: &mut Exports,
        connect: &Connect,
    ) -> Result<ExportId, Errno> {
        if exports.len() >= Exports::MAX {
            return Err(Errno::ENOMEM);
        }
        let generation = exports.next_generation(connect.role);
        let (uuid, name) = (connect.client, connect.name.clone());
        if connect.role == Role::Tool {
            tracing::debug!(target_name = %core.name, name, "a tool connects");
        } else if let Some(left_out) = core.lines.allow("new client", self.ctx().now()) {
            tracing::info!(target_name = %core.name, client = %uuid, name, %generation, left_out, "new client");
        }
        let identity = (uuid, connect.secret, name, connect.role);
        let deadline = self.ctx().now() + lease(core);
        Ok(exports.insert(ClientExport::new(identity, Export::new(generation), deadline, self.ctx().wall())))
    }

    /// A target uses its own uuid: when it connects from another opening of its store, or without a generation on a later
    /// connection, it was started anew and its former export has to end. (A mount's uuid is new at each start.) Whether the
    /// former process lives was checked before (`contest.rs`).
    fn replaces(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        id: ExportId,
        conn: ConnId,
        connect: &Connect,
    ) -> bool {
        let later = {
            let exports = core.clients().exports();
            let is_other = |e: &ClientExport| {
                e.contest().holder() != connect.instance || connect.generation == Generation(0)
            };
            exports.get(id).is_some_and(|e| is_other(e) && e.conn().is_none_or(|old| old < conn))
        };
        let anew = connect.role == Role::Target && later;
        if anew {
            self.end_export(core, id, ExportEnd::Replaced);
        }
        anew
    }

    /// A new connection has replaced a standing one: records where that came from, if from another host.
    fn note_replaced(&self, core: &TargetCore, entry: &mut ClientExport, former: &str) {
        if host(entry.from()) == host(former) {
            return;
        }
        if let Some(left_out) = core.lines.allow("take-over", self.ctx().now()) {
            tracing::warn!(target_name = %core.name, client = %entry.uuid(), name = entry.name(), from = entry.from(),
                former, left_out, "another host has taken over the connection of a client");
        }
        entry.set_replaced_from(former.to_string());
    }

    fn reply_connect(
        &self,
        core: &Rc<TargetCore>,
        conn: ConnId,
        id: ExportId,
        header: &Header,
        connect: &Connect,
    ) {
        let callbacks = {
            let exports = core.clients().exports();
            let Some(entry) = exports.get(id) else { return };
            if entry.conn() != Some(conn) || entry.rpc.epoch() != header.epoch {
                return; // it has connected again meanwhile
            }
            entry.rpc.callbacks()
        };
        let reply = self.connect_reply(core, connect, id);
        self.ctx().push(Effect::Admit { conn });
        self.send_reply(core, conn, header, Ok(Reply::of(&reply)));
        for frame in callbacks {
            self.ctx().push(Effect::Send { conn, frame });
        }
    }
}

/// Slots of a client: one if it does not support several. Not fewer if the client asks for fewer: it may raise its own
/// limit while it is connected.
fn agreed_slots(core: &TargetCore, connect: &Connect) -> u16 {
    let several = connect.features & features::MULTI_MOD_RPCS != 0;
    if several { core.params().max_mod_rpcs() } else { 1 }
}

/// Writes the client's row and waits until it is durable.
async fn record_client(core: &Rc<TargetCore>, id: ExportId) -> Result<(), Failure> {
    // `frees`: on a full disk a client must be able to connect and delete.
    let credits =
        Credits { rows: 3, row_bytes: 1024 + 2 * NAME_BYTES_MAX as u32, frees: true, ..Credits::default() };
    let reservation = core.osd.reserve(credits).await?;
    let row = core.clients().exports().get(id).ok_or(ProtocolOutcome::ExportGone)?.row(id);
    let (transno, ()) = core.transact_local(&Pins::default(), reservation, |tx| {
        tx.put(table::CLIENT, &client_key(id), row.to_vec());
        tx.put(table::TARGET, GENERATION_KEY, core.clients().exports().last_generation().to_vec());
        core.clients().incompat().came(tx, id, row.features);
        Ok(())
    })?;
    core.osd.commit(transno).await?;
    let mut exports = core.clients().exports_mut();
    exports.get_mut(id).ok_or(ProtocolOutcome::ExportGone)?.set_durable(row.features);
    Ok(())
}

/// Of `HOST:PORT` the host; anything else as it is.
fn host(from: &str) -> &str {
    from.rsplit_once(':').map_or(from, |(host, _)| host)
}
