//! One client of a target: its identity, its connection, its lease, its unacknowledged callbacks.

use crate::clients::op_stats::OpStats;
use crate::clients::reply_order::ReplyOrder;
use crate::clients::rows::{ClientRow, ExportId};
use crate::rivals::Contest;
use alloc::string::String;
use nacre_node::{ConnId, Origin};
use nacre_rpc::Export;
use nacre_types::{ClientUuid, Instant, Secret, Timestamp, Xid};
use nacre_wire::target::{Role, features};

/// One client.
pub(crate) struct ClientExport {
    uuid: ClientUuid,
    secret: Secret,
    name: String,
    role: Role,
    // The next three are open to the crate: they are parts with private state, and wrappers would repeat their methods.
    /// Exactly once: admission, replay, callbacks.
    pub(crate) rpc: Export,
    /// The order of replies to this client.
    pub(crate) reply_order: ReplyOrder,
    /// Counters of its operations.
    pub(crate) stats: OpStats,
    conn: Option<ConnId>,
    connected_since: Option<Instant>,
    /// Where its latest connection came from, for people.
    from: String,
    origin: Origin,
    /// Where the connection came from that the latest one has replaced, if from another host.
    replaced_from: String,
    lease_deadline: Instant,
    /// Why the lease is not renewed any more.
    lease_ending: Option<String>,
    /// Since when a callback of the current connection is unacknowledged.
    callback_since: Option<Instant>,
    /// Its row is committed.
    durable: bool,
    /// It has connected since the start of the target.
    seen: bool,
    /// It may rely on volatile locks of an earlier start, until it says that it does not.
    has_former_locks: bool,
    /// Replies that are being reconstructed.
    reconstructions: usize,
    /// Features that both sides know.
    features: u64,
    /// The features in its row: those that a restart will know.
    row_features: u64,
    /// Slots that were agreed at its latest connect.
    max_mod_rpcs: u16,
    /// Of a target: which process has the export.
    contest: Contest,
}

/// A new connection of a client.
pub(crate) struct NewConnection {
    // Fields open to the crate: these are the named parameters of `ClientExport::connect`.
    pub(crate) conn: ConnId,
    pub(crate) from: String,
    pub(crate) origin: Origin,
    pub(crate) features: u64,
    pub(crate) max_mod_rpcs: u16,
    /// See [`nacre_wire::target::Connect::instance`].
    pub(crate) instance: u64,
}

impl ClientExport {
    /// A client that has just connected for the first time.
    pub(crate) fn new(
        (uuid, secret, name, role): (ClientUuid, Secret, String, Role),
        rpc: Export,
        lease_deadline: Instant,
        wall: Timestamp,
    ) -> Self {
        Self {
            uuid,
            secret,
            name,
            role,
            rpc,
            reply_order: ReplyOrder::default(),
            stats: OpStats::new(wall),
            conn: None,
            connected_since: None,
            from: String::new(),
            origin: Origin::Network,
            replaced_from: String::new(),
            lease_deadline,
            lease_ending: None,
            callback_since: None,
            durable: role == Role::Tool,
            seen: true,
            has_former_locks: false,
            reconstructions: 0,
            features: 0,
            row_features: 0,
            max_mod_rpcs: 1,
            contest: Contest::default(),
        }
    }
    /// A client of an earlier start.
    pub(crate) fn restored(row: ClientRow, rpc: Export, lease_deadline: Instant, wall: Timestamp) -> Self {
        let identity = (row.uuid, row.secret, row.name, row.role);
        let mut export = Self::new(identity, rpc, lease_deadline, wall);
        (export.durable, export.seen) = (true, false);
        (export.features, export.row_features) = (row.features, row.features);
        export.has_former_locks = row.features & features::INODE_LOCKS != 0;
        export.contest = Contest::held_by(row.instance);
        if row.local {
            export.origin = Origin::Process;
        }
        export
    }
    /// The row that a restart will need.
    pub(crate) fn row(&self, id: ExportId) -> ClientRow {
        ClientRow {
            uuid: self.uuid,
            secret: self.secret,
            generation: id,
            last_transno: self.rpc.last_transno(),
            name: self.name.clone(),
            role: self.role,
            features: self.features,
            local: self.is_local(),
            instance: self.contest.holder(),
        }
    }
    /// The row is committed with these features.
    pub(crate) fn set_durable(&mut self, features: u64) {
        (self.durable, self.row_features) = (true, features);
    }

    // ---- identity

    pub(crate) fn uuid(&self) -> ClientUuid {
        self.uuid
    }
    pub(crate) fn secret(&self) -> Secret {
        self.secret
    }
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
    pub(crate) fn role(&self) -> Role {
        self.role
    }
    pub(crate) fn has_lease(&self) -> bool {
        self.role != Role::Tool
    }
    /// Whether it is in this process.
    pub(crate) fn is_local(&self) -> bool {
        self.origin == Origin::Process
    }
    /// Whether a recovery waits for it: it may still exist.
    pub(crate) fn is_awaited(&self) -> bool {
        self.has_lease() && !self.is_local()
    }
    pub(crate) fn is_durable(&self) -> bool {
        self.durable
    }
    pub(crate) fn is_seen(&self) -> bool {
        self.seen
    }
    pub(crate) fn has_former_locks(&self) -> bool {
        self.has_former_locks
    }
    pub(crate) fn end_former_locks(&mut self) {
        self.has_former_locks = false;
    }
    pub(crate) fn features(&self) -> u64 {
        self.features
    }
    pub(crate) fn row_features(&self) -> u64 {
        self.row_features
    }
    pub(crate) fn has_several_slots(&self) -> bool {
        self.has_lease() && self.features & features::MULTI_MOD_RPCS != 0
    }
    /// Those of `features` which are agreed but not in its row.
    pub(crate) fn unrecorded(&self, features: u64) -> u64 {
        if self.has_lease() { self.features & !self.row_features & features } else { 0 }
    }
    pub(crate) fn max_mod_rpcs(&self) -> u16 {
        self.max_mod_rpcs
    }

    /// Which process has the export of a target.
    pub(crate) fn contest(&self) -> &Contest {
        &self.contest
    }
    pub(crate) fn contest_mut(&mut self) -> &mut Contest {
        &mut self.contest
    }

    // ---- connection

    pub(crate) fn conn(&self) -> Option<ConnId> {
        self.conn
    }
    pub(crate) fn connected_since(&self) -> Option<Instant> {
        self.connected_since
    }
    pub(crate) fn from(&self) -> &str {
        &self.from
    }
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }
    pub(crate) fn replaced_from(&self) -> &str {
        &self.replaced_from
    }
    pub(crate) fn set_replaced_from(&mut self, from: String) {
        self.replaced_from = from;
    }
    /// Takes a new connection. Returns the connection that it replaces, with its origin for people.
    pub(crate) fn connect(
        &mut self,
        new: NewConnection,
        now: Instant,
        lease_deadline: Instant,
    ) -> Option<(ConnId, String)> {
        let old = self.conn.replace(new.conn).filter(|old| *old != new.conn);
        self.connected_since = Some(now);
        (self.seen, self.lease_deadline) = (true, lease_deadline);
        self.callback_since = (self.rpc.unacknowledged_callbacks() > 0).then_some(now);
        (self.features, self.max_mod_rpcs) = (new.features, new.max_mod_rpcs);
        if self.contest.holder() != new.instance {
            self.contest = Contest::held_by(new.instance);
        }
        self.origin = new.origin;
        self.replaced_from.clear();
        let former = core::mem::replace(&mut self.from, new.from);
        old.map(|old| (old, former))
    }
    pub(crate) fn disconnect(&mut self) {
        (self.conn, self.callback_since, self.connected_since) = (None, None, None);
    }

    // ---- lease

    pub(crate) fn lease_deadline(&self) -> Instant {
        self.lease_deadline
    }
    /// Why the lease is not renewed any more.
    pub(crate) fn lease_ending(&self) -> Option<&str> {
        self.lease_ending.as_deref()
    }
    /// Renews the lease, unless it is ending.
    pub(crate) fn renew_lease(&mut self, deadline: Instant) {
        if self.lease_ending.is_none() {
            self.lease_deadline = deadline;
        }
    }
    /// Extends the lease of a client that was seen, unless it is ending.
    pub(crate) fn extend_lease(&mut self, deadline: Instant) {
        if self.seen && self.lease_ending.is_none() {
            self.lease_deadline = self.lease_deadline.max(deadline);
        }
    }
    /// The lease is not renewed any more.
    pub(crate) fn end_lease(&mut self, cause: String) {
        self.lease_ending = Some(cause);
    }

    // ---- callbacks

    /// Since when a callback of the current connection is unacknowledged.
    pub(crate) fn callback_since(&self) -> Option<Instant> {
        self.callback_since
    }
    pub(crate) fn callback_sent(&mut self, now: Instant) {
        self.callback_since.get_or_insert(now);
    }
    pub(crate) fn callback_acknowledged(&mut self, callback: Xid, now: Instant) {
        self.rpc.handle_callback_ack(callback);
        self.callback_since = (self.rpc.unacknowledged_callbacks() > 0).then_some(now);
    }

    // ---- reconstruction of replies

    pub(crate) fn reconstructions(&self) -> usize {
        self.reconstructions
    }
    pub(crate) fn begin_reconstruction(&mut self) {
        self.reconstructions += 1;
    }
    pub(crate) fn end_reconstruction(&mut self) {
        self.reconstructions -= 1;
    }
}
