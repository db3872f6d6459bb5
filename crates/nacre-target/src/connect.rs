//! Who is a client: connect, disconnect, the end of an export.
//!
//! Invariants: a client's row is committed before its connect is answered; an export that goes takes its locks,
//! opens and orphans with it (the service's `export_gone`) before its row is deleted, so that a crash in the
//! middle repeats it. Every eviction is logged with its cause. When one is due is `lease.rs`.

use crate::clients::{ClientRow, Entry, ExportId, Exports, client_key, reply_end, reply_key};
use crate::island::{GENERATION_KEY, Inner};
use crate::lease::{a_lease_before, lease};
use crate::rivals::{Contest, Verdict, who_answers};
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use nacre_node::{ConnId, Effect, Origin};
use nacre_osd::{Credits, Pins, table};
use nacre_rpc::Export;
use nacre_types::{ClientUuid, Codec, ConnEpoch, Errno, Generation, Instant, Secret, Tag};
use nacre_wire::bounds::{NAME_BYTES_MAX, SENTENCE_BYTES_MAX, cut};
use nacre_wire::target::{Connect, ConnectReply, Role, features};
use nacre_wire::{Frame, Header};

/// Why an export goes.
pub(crate) enum Gone {
    /// The client said so.
    Disconnected,
    /// A client of the same uuid was started anew.
    Replaced,
    /// It was in the process of an earlier start of this target.
    WithItsProcess,
    Evicted(String),
}

impl<S: Service> Inner<S> {
    /// An entry that is connected to nothing yet, with a full lease.
    pub(crate) fn new_entry(
        &self,
        core: &TargetCore,
        uuid: ClientUuid,
        secret: Secret,
        name: String,
        role: Role,
        rpc: Export,
    ) -> Entry {
        Entry {
            uuid,
            secret,
            name,
            role,
            rpc,
            conn: None,
            lease_until: self.ctx.now() + lease(core),
            ending: None,
            connected_since: None,
            acknowledged: Instant(0),
            callback_since: None,
            durable: role == Role::Tool,
            seen: true,
            refills: 0,
            notes: alloc::collections::BTreeMap::new(),
            reply_order: Default::default(),
            from: String::new(),
            origin: Origin::Network,
            replaced: String::new(),
            features: 0,
            row_features: 0,
            max_mod_rpcs: 1,
            stats: crate::clients::op_stats::OpStats::new(self.ctx.wall()),
            contest: Contest::default(),
        }
    }

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
        if let Some(service) = self.service.get()
            && let Some((why, for_good)) = self.contest(core, service, &connect)
        {
            return self.refuse(core, conn, &frame.header, &connect, why, for_good);
        }
        let known = core.exports.borrow().of_client(connect.client).is_some();
        // Or its first connect was never answered: it does not know that it is waited for.
        let anew = connect.generation == Generation(0);
        if core.in_recovery() && connect.role != Role::Tool && (!known || anew) {
            return self.put_off(core, conn, &frame.header, &connect, known);
        }
        let id = match self.admit_client(core, conn, frame.header.epoch, &connect) {
            Ok(id) => id,
            Err(error) => {
                self.send_reply(core, conn, &frame.header, Err(error));
                return self.close(conn);
            }
        };
        let durable = core.exports.borrow().get(id).is_some_and(|e| {
            let slots = e.has_lease() && e.features & features::MULTI_MOD_RPCS != 0;
            let unrecorded = e.features & !e.row_features & S::VOLATILE_LOCK_FEATURES;
            e.durable && (!slots || core.incompat.is_known(id)) && !(e.has_lease() && unrecorded != 0)
        });
        if durable {
            self.answer_connect(core, conn, id, &frame.header, &connect);
        } else {
            let (this, core) = (self.clone(), core.clone());
            self.ctx.spawn(async move {
                match this.keep_client(&core, id).await {
                    Ok(()) => this.answer_connect(&core, conn, id, &frame.header, &connect),
                    Err(error) => {
                        // One that was known before has locks and opens, and its row as it was.
                        let known = core.exports.borrow().get(id).is_some_and(|e| e.durable);
                        if !known {
                            core.exports.borrow_mut().remove(id);
                        }
                        this.send_reply(&core, conn, &frame.header, Err(error));
                        this.close(conn);
                    }
                }
            });
        }
    }

    /// A new client during recovery: it is told how long it takes at the most, and asks again. Of one that was
    /// started anew nothing can be replayed any more.
    fn put_off(&self, core: &Rc<TargetCore>, conn: ConnId, header: &Header, connect: &Connect, known: bool) {
        if known && let Some(old) = core.exports.borrow().of_client(connect.client) {
            core.leave_recovery(old);
        }
        if let Some(left_out) = core.lines.allow("put off", self.ctx.now()) {
            tracing::info!(target_name = %core.name, client = %connect.client, name = connect.name,
                recovery_ms = core.recovery_ms(), left_out, "new client waits for the end of the recovery");
        }
        let reply = self.connect_reply(core, connect, Generation(0));
        self.send_reply(core, conn, header, Ok(crate::Reply::of(&reply)));
    }

    /// Why a connect in the name of a target is not taken, because another process has that name, and whether that is for
    /// good; `None`: it is taken.
    fn contest(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        service: &S,
        connect: &Connect,
    ) -> Option<(String, bool)> {
        let now = self.ctx.now();
        let mut exports = core.exports.borrow_mut();
        let id = exports.of_client(connect.client).filter(|_| connect.role == Role::Target)?;
        let entry = exports.get_mut(id)?;
        let known = service.whereabouts(connect.client).filter(|known| !known.addresses.is_empty());
        let is_renewed = entry.seen && entry.ending.is_none();
        let heard = is_renewed.then(|| a_lease_before(core, entry.lease_until));
        let (name, place) = match &known {
            Some(known) => (known.name.to_string(), format!(" ({})", known.addresses.join(", "))),
            None => (connect.name.clone(), String::new()),
        };
        match entry.contest.judge(connect.instance, now, entry.conn.is_some(), heard, known.as_ref()) {
            Verdict::Admit => None,
            Verdict::Refuse => Some((
                format!(
                    "{name} is being served by another process{place}, which lives. The store that was started here is a \
                     copy of its store, or the same store opened a second time: only one of them may be used\nhint: stop \
                     the other process first to go on with this store, or leave this one off"
                ),
                true,
            )),
            Verdict::Wait { begins, asks } => {
                let left_ms = entry.lease_until.saturating_since(now).as_millis();
                if begins && let Some(left_out) = core.lines.allow("rival", now) {
                    tracing::warn!(target_name = %core.name, client = %connect.client, name, left_ms, left_out,
                        "a second process connects in the name of a target: it waits until the first one is known to \
                         live or to have ended");
                }
                if let Some(known) = known.filter(|_| asks) {
                    let (holder, instance) = (entry.contest.holder(), connect.instance);
                    let (core, client) = (core.clone(), connect.client);
                    self.ctx.spawn(async move {
                        let who = (client, holder);
                        let found = who_answers(&core.ctx, &core.peers, who, &known, &core.name).await;
                        core.with_export(id, |entry| entry.contest.probed(instance, found, core.ctx.now()));
                    });
                }
                let why = format!(
                    "{name} may be served by another process still{place}: waiting for its answer, or {left_ms} ms for \
                     the end of its lease"
                );
                Some((why, false))
            }
        }
    }

    /// A client that means another target, or this one with more than it has.
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
        self.send_reply(core, conn, header, Ok(crate::Reply::of(&reply)));
        if mismatch && let Some(left_out) = core.lines.allow("mismatch", self.ctx.now()) {
            tracing::warn!(target_name = %core.name, client = %connect.client, name = connect.name, left_out,
                "client refused: {}", reply.refused);
        }
        self.close(conn);
    }

    fn connect_reply(&self, core: &TargetCore, connect: &Connect, id: ExportId) -> ConnectReply {
        let (process, ended) = core.process();
        let evicted =
            connect.generation != Generation(0) && connect.generation != id && connect.role != Role::Tool;
        ConnectReply {
            target: core.osd.label().uuid,
            features: connect.features & features::ALL,
            max_mod_rpcs: agreed_slots(core, connect),
            lease_ms: core.config.lease_ms,
            generation: id,
            evicted,
            cause: if evicted {
                cut(&core.eviction_cause(connect.client), SENTENCE_BYTES_MAX).to_string()
            } else {
                String::new()
            },
            instance: core.instance(),
            server_time: self.ctx.wall(),
            recovery_ms: if id == Generation(0) { core.recovery_ms() } else { 0 },
            process,
            ended,
            local: core.is_local(id),
            made: core.made_before_loss(id),
            replaced: core.exports.borrow().get(id).map_or_else(String::new, |e| e.replaced.clone()),
            incarnation: core.osd.identity().latest(),
            refused: String::new(),
            mismatch: false,
        }
    }

    /// Finds or makes the export and ties it to the connection.
    fn admit_client(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        conn: ConnId,
        epoch: ConnEpoch,
        connect: &Connect,
    ) -> Result<ExportId, Errno> {
        let known = match connect.role {
            Role::Tool => self.conns.borrow().get(&conn).and_then(|c| c.export),
            Role::Client | Role::Target => core.exports.borrow().of_client(connect.client),
        };
        let known = known.filter(|&id| !self.replaces(core, id, conn, connect));
        let mut exports = core.exports.borrow_mut();
        let id = match known {
            Some(id) => id,
            None => {
                if exports.len() >= Exports::MAX {
                    return Err(Errno::ENOMEM);
                }
                let generation = exports.next_generation(connect.role);
                let (uuid, name) = (connect.client, connect.name.clone());
                if connect.role == Role::Tool {
                    tracing::debug!(target_name = %core.name, name, "a tool asks");
                } else if let Some(left_out) = core.lines.allow("new client", self.ctx.now()) {
                    tracing::info!(target_name = %core.name, client = %uuid, name, %generation, left_out,
                        "new client");
                }
                let rpc = Export::new(generation);
                exports.insert(self.new_entry(core, uuid, connect.secret, name, connect.role, rpc))
            }
        };
        let entry = exports.get_mut(id).ok_or(Errno::ESTALE)?;
        // Callbacks are taken out when the answer is sent: it goes before them.
        entry.rpc.connect(epoch, agreed_slots(core, connect))?;
        entry.reply_order.connected(entry.rpc.last_transno());
        let old = entry.conn.replace(conn).filter(|old| *old != conn);
        entry.connected_since = Some(self.ctx.now());
        (entry.seen, entry.lease_until) = (true, self.ctx.now() + lease(core));
        entry.callback_since = (entry.rpc.unacknowledged_callbacks() > 0).then(|| self.ctx.now());
        if entry.contest.holder() != connect.instance {
            entry.contest = Contest::held_by(connect.instance);
        }
        entry.features = connect.features & features::ALL;
        entry.max_mod_rpcs = agreed_slots(core, connect);
        if let Some(c) = self.conns.borrow().get(&conn) {
            let former = core::mem::replace(&mut entry.from, c.from.clone());
            entry.origin = c.origin;
            entry.replaced =
                if old.is_some() { self.note_replaced(core, entry, &former) } else { String::new() };
        }
        drop(exports);
        if let Some(old) = old {
            self.conns.borrow_mut().remove(&old);
            self.ctx.push(Effect::Close { conn: old });
        }
        if let Some(c) = self.conns.borrow_mut().get_mut(&conn) {
            c.export = Some(id);
        }
        core.reaper.wake_all();
        if let Some(service) = self.service.get() {
            service.connected(id);
        }
        core.clients_changed.wake_all();
        Ok(id)
    }

    /// A target uses its own uuid: when it comes from another opening of its store, or without a generation on a later
    /// connection, it was started anew and nothing of its former export is wanted. (A mount's uuid is new at each start.)
    /// Whether the former process lives was looked at before (`rivals.rs`).
    fn replaces(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        id: ExportId,
        conn: ConnId,
        connect: &Connect,
    ) -> bool {
        let later = {
            let exports = core.exports.borrow();
            let other =
                |e: &Entry| e.contest.holder() != connect.instance || connect.generation == Generation(0);
            exports.get(id).is_some_and(|e| other(e) && e.conn.is_none_or(|old| old < conn))
        };
        let anew = connect.role == Role::Target && later;
        if anew {
            self.drop_export(core, id, Gone::Replaced);
        }
        anew
    }

    /// Writes the client's row and waits until it is durable.
    async fn keep_client(&self, core: &Rc<TargetCore>, id: ExportId) -> Result<(), Errno> {
        // On a full disk a client must be able to come in and delete.
        let credits =
            Credits { rows: 3, row_bytes: 1024 + 2 * NAME_BYTES_MAX as u32, object_bytes: 0, frees: true };
        let reservation = core.osd.reserve(credits).await?;
        let row = {
            let exports = core.exports.borrow();
            let entry = exports.get(id).ok_or(Errno::ESTALE)?;
            ClientRow {
                uuid: entry.uuid,
                secret: entry.secret,
                generation: id,
                last_transno: entry.rpc.last_transno(),
                name: entry.name.clone(),
                role: entry.role,
                features: entry.features,
                local: entry.is_local(),
                instance: entry.contest.holder(),
            }
        };
        let (transno, ()) = core.transact_local(&Pins::default(), reservation, |tx| {
            tx.put(table::CLIENT, &client_key(id), row.to_vec());
            tx.put(table::TARGET, GENERATION_KEY, core.exports.borrow().last_generation().to_vec());
            core.incompat.came(tx, id, row.features);
            Ok(())
        })?;
        core.osd.commit(transno).await?;
        let mut exports = core.exports.borrow_mut();
        let entry = exports.get_mut(id).ok_or(Errno::ESTALE)?;
        (entry.durable, entry.row_features) = (true, row.features);
        Ok(())
    }

    fn answer_connect(
        &self,
        core: &Rc<TargetCore>,
        conn: ConnId,
        id: ExportId,
        header: &Header,
        connect: &Connect,
    ) {
        let callbacks = {
            let exports = core.exports.borrow();
            let Some(entry) = exports.get(id) else { return };
            if entry.conn != Some(conn) || entry.rpc.epoch() != header.epoch {
                return; // it has connected again meanwhile
            }
            entry.rpc.callbacks()
        };
        let reply = self.connect_reply(core, connect, id);
        self.ctx.push(Effect::Admit { conn });
        self.send_reply(core, conn, header, Ok(crate::Reply::of(&reply)));
        for frame in callbacks {
            self.ctx.push(Effect::Send { conn, frame });
        }
    }

    /// The connection is gone; the export stays until its lease has run out.
    pub(crate) fn conn_gone(&self, conn: ConnId) {
        let export = self.conns.borrow_mut().remove(&conn).and_then(|c| c.export);
        let (Some(id), Some(core)) = (export, self.core.get()) else { return };
        let mut exports = core.exports.borrow_mut();
        if let Some(entry) = exports.get_mut(id)
            && entry.conn == Some(conn)
        {
            (entry.conn, entry.callback_since, entry.connected_since) = (None, None, None);
            core.leave_neighbours(entry);
            if !entry.has_lease() {
                exports.remove(id);
            }
        }
    }

    // ---- the end of an export

    /// Takes the export away at once; what it held goes in a task.
    pub(crate) fn drop_export(self: &Rc<Self>, core: &Rc<TargetCore>, id: ExportId, why: Gone) {
        let Some(entry) = core.exports.borrow_mut().remove(id) else { return };
        core.leave_recovery(id);
        core.revoke_deadlines.borrow_mut().remove_client(id);
        core.clients_changed.wake_all();
        let (client, name) = (entry.uuid, entry.name.as_str());
        let may_say = |kind| core.lines.allow(kind, self.ctx.now());
        match why {
            Gone::Disconnected => {
                if let Some(left_out) = may_say("disconnected") {
                    tracing::info!(target_name = %core.name, %client, name, left_out, "client disconnected");
                }
            }
            Gone::Replaced => {
                if let Some(left_out) = may_say("started anew") {
                    tracing::info!(target_name = %core.name, %client, name, left_out, "client was started anew");
                }
            }
            Gone::WithItsProcess => {
                tracing::info!(target_name = %core.name, %client, name, "client ended with the former server process")
            }
            Gone::Evicted(cause) => {
                core.note_end();
                core.note_eviction(client, &cause);
                if let Some(left_out) = may_say("evicted") {
                    tracing::warn!(target_name = %core.name, %client, name, cause, left_out,
                        "client evicted: its locks, opens and unfinished requests are dropped");
                }
                if let Some(conn) = entry.conn {
                    self.conns.borrow_mut().remove(&conn);
                    self.ctx.push(Effect::Close { conn });
                }
            }
        }
        if !entry.has_lease() {
            return;
        }
        self.clear_after(core, id);
    }

    /// What an export that is not there any more has left, in a task.
    pub(crate) fn clear_after(self: &Rc<Self>, core: &Rc<TargetCore>, id: ExportId) {
        let (Some(service), core) = (self.service.get().cloned(), core.clone()) else { return };
        // A planned stop waits for it as for a request.
        self.running.set(self.running.get() + 1);
        let this = self.clone();
        self.ctx.spawn(async move {
            let gone = match service.export_gone(id).await {
                Ok(()) => forget_client(&core, id).await,
                Err(error) => Err(error),
            };
            if let Err(error) = gone {
                // The row is found at the next start and does the same again.
                tracing::warn!(target_name = %core.name, generation = %id, %error, "client record not deleted");
            }
            this.running.set(this.running.get() - 1);
            if this.running.get() == 0 {
                this.idle.wake_all();
            }
        });
    }
}

/// Slots of a client: one for who does not know of them.
fn agreed_slots(core: &TargetCore, connect: &Connect) -> u16 {
    let many = connect.features & features::MULTI_MOD_RPCS != 0;
    // Not less where the client asks for less: it may raise its own limit while it is connected.
    if many { core.max_mod_rpcs.get() } else { 1 }
}

async fn forget_client(core: &Rc<TargetCore>, id: ExportId) -> Result<(), Errno> {
    let credits = Credits { rows: 3, row_bytes: 192, object_bytes: 0, frees: true };
    let reservation = core.osd.reserve(credits).await?;
    core.transact_local(&Pins::default(), reservation, |tx| {
        tx.delete_range(table::REPLY, &reply_key(id, Tag(0)), &reply_end(id));
        tx.delete(table::CLIENT, &client_key(id));
        core.incompat.left(tx, id, core.in_recovery());
        Ok(())
    })?;
    Ok(())
}
