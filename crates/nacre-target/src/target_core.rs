//! The core of a target: the parts that its service and its island share.
//!
//! Each part has its own file and private state; this file only holds them together. Methods that concern several parts
//! are in `transact.rs` (changes), `lease.rs`, `locks/`, `params/`, `identity.rs` and `admission.rs`.

use crate::clients::evictions::Evictions;
use crate::clients::export::ClientExport;
use crate::clients::op_stats::OpStats;
use crate::clients::rows::ExportId;
use crate::clients::table::Clients;
use crate::fault::Faults;
use crate::locks::deadlines::RevokeDeadlines;
use crate::neighbours::{Neighbours, ProcessLeases};
use crate::params::values::ParamValues;
use crate::recovery::state::RecoveryState;
use crate::registration::Registration;
use crate::shared_device::DeviceShare;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::{Cell, OnceCell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, LogLimiters, Peers};
use nacre_osd::Osd;
use nacre_types::{ClientUuid, Instant, Secret, TargetName, Transno, Xid};
use nacre_wire::ost::Write;

/// How a target is run.
#[derive(Debug, Clone)]
pub struct TargetConfig {
    /// Where this process can be reached, best first; given to the MGS.
    pub addresses: Vec<String>,
    /// Addresses of the MGS (from the label).
    pub mgs_nodes: Vec<String>,
    /// Length of a lease.
    pub lease_ms: u32,
    /// Modifying requests that a client may have in flight, unless set otherwise later.
    pub max_mod_rpcs: u16,
    /// Acknowledge or commit (`locks/uncommitted.rs`). Off only to demonstrate the fault that it prevents.
    pub ack_or_commit: bool,
    /// A change and its reply record are one transaction. Off only to measure the cost of the records.
    pub reply_records: bool,
    /// [`crate::Fault`]s may be set: in builds for tests.
    pub fault_points: bool,
    /// The store ends with its process.
    pub in_memory: bool,
    /// User and group that get the root directory of a new file system.
    pub root_owner: (u32, u32),
    /// Writes that former processes of this machine had acknowledged and that this OST may not have.
    pub kept_writes: Vec<KeptWrites>,
}

/// The writes to one OST that a killed process had acknowledged.
#[derive(Debug, Clone)]
pub struct KeptWrites {
    /// Identity of the log in which they were found: they are executed once.
    pub log: u64,
    /// Writes that do not overlap, with their bytes.
    pub writes: Vec<(Write, Vec<Bytes>)>,
}

/// Shared by island and service.
pub struct TargetCore {
    /// Tasks, time and effects of the island.
    pub ctx: Rc<Ctx>,
    /// The engine.
    pub osd: Rc<Osd>,
    /// Imports of this target.
    pub peers: Rc<Peers>,
    /// The name of this target.
    pub name: TargetName,
    /// How it is run.
    pub config: TargetConfig,
    /// Operations of all clients, without reconstructed replies; those of each client are in its export.
    pub stats: RefCell<OpStats>,
    /// Limits the lines that clients cause in the log.
    pub lines: LogLimiters,
    clients: Clients,
    evictions: Evictions,
    recovery: RecoveryState,
    params: ParamValues,
    process_leases: ProcessLeases,
    revoke_deadlines: RefCell<RevokeDeadlines>,
    /// See `locks/restart_wait.rs`.
    volatile_lock_features: u64,
    faults: Faults,
    registration: OnceCell<Rc<Registration>>,
    /// When it was started.
    started: Instant,
    /// Counts the starts of the target.
    instance: Cell<u64>,
    /// The longest lease that clients of earlier starts may rely on.
    former_lease: Cell<Duration>,
    /// How often a target of this name was replaced or accepted as an old copy, as the MGS has reported it.
    replaced: Cell<u32>,
    /// See `identity.rs`.
    secret: Cell<Secret>,
}

impl TargetCore {
    pub(crate) fn new(
        ctx: &Rc<Ctx>,
        osd: Rc<Osd>,
        name: TargetName,
        config: TargetConfig,
        neighbours: Option<Arc<dyn Neighbours>>,
        volatile_lock_features: u64,
    ) -> Rc<Self> {
        Rc::new(Self {
            ctx: ctx.clone(),
            osd,
            peers: Rc::new(Peers::default()),
            name,
            params: ParamValues::new(config.max_mod_rpcs),
            config,
            stats: RefCell::new(OpStats::new(ctx.wall())),
            lines: LogLimiters::default(),
            clients: Clients::new(ctx),
            evictions: Evictions::new(ctx),
            recovery: RecoveryState::new(ctx),
            process_leases: ProcessLeases::new(neighbours),
            revoke_deadlines: RefCell::default(),
            volatile_lock_features,
            faults: Faults::default(),
            registration: OnceCell::new(),
            started: ctx.now(),
            instance: Cell::new(0),
            former_lease: Cell::default(),
            replaced: Cell::new(0),
            secret: Cell::default(),
        })
    }

    // ---- parts

    /// The share of this target, which starts, in a device that other targets of the process may use, too.
    pub fn share_device(&self, device: u64) -> DeviceShare {
        self.process_leases.share_device(device, &alloc::format!("{}", self.name))
    }
    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }
    pub(crate) fn evictions(&self) -> &Evictions {
        &self.evictions
    }
    pub(crate) fn recovery(&self) -> &RecoveryState {
        &self.recovery
    }
    pub(crate) fn params(&self) -> &ParamValues {
        &self.params
    }
    pub(crate) fn process_leases(&self) -> &ProcessLeases {
        &self.process_leases
    }
    pub(crate) fn revoke_deadlines(&self) -> &RefCell<RevokeDeadlines> {
        &self.revoke_deadlines
    }
    pub(crate) fn started(&self) -> Instant {
        self.started
    }
    pub(crate) fn volatile_lock_features(&self) -> u64 {
        self.volatile_lock_features
    }
    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }
    /// The registration with the MGS; `None` for the MGS itself.
    pub(crate) fn registration(&self) -> Option<&Rc<Registration>> {
        self.registration.get()
    }
    /// A second registration of one target would be a bug, and harmless: the first one is kept.
    pub(crate) fn set_registration(&self, registration: &Rc<Registration>) {
        let _first = self.registration.set(registration.clone());
    }

    // ---- this start

    /// Counts the starts of this target.
    pub fn instance(&self) -> u64 {
        self.instance.get()
    }
    pub(crate) fn set_instance(&self, instance: u64) {
        self.instance.set(instance);
    }
    pub(crate) fn former_lease(&self) -> Duration {
        self.former_lease.get()
    }
    pub(crate) fn set_former_lease(&self, lease: Duration) {
        self.former_lease.set(lease);
    }
    /// How often an administrator has admitted another target, or an old copy, under this name.
    pub fn replaced(&self) -> u32 {
        self.replaced.get()
    }
    pub(crate) fn set_replaced(&self, replaced: u32) {
        self.replaced.set(replaced);
    }
    pub(crate) fn secret(&self) -> Secret {
        self.secret.get()
    }
    pub(crate) fn set_secret(&self, secret: Secret) {
        self.secret.set(secret);
    }
    /// This target's clock in milliseconds, as sent to clients; it wraps around and is never 0.
    pub(crate) fn clock_ms(&self) -> u32 {
        ((self.ctx.now().0 / 1_000_000) as u32).max(1)
    }

    // ---- clients

    /// Whether a client is known to have the reply to this request.
    pub fn has_reply(&self, export: ExportId, xid: Xid) -> bool {
        self.clients.exports().get(export).is_some_and(|e| e.rpc.last_xid() >= xid)
    }
    /// Whether the target has more than one client.
    pub fn has_several_clients(&self) -> bool {
        self.clients.exports().len() > 1
    }
    /// The uuid of a client; `None` when the export has ended.
    pub fn client_uuid(&self, export: ExportId) -> Option<ClientUuid> {
        self.clients.exports().get(export).map(ClientExport::uuid)
    }
    /// Whether this client is a mount in the target's own process.
    pub fn is_local(&self, export: ExportId) -> bool {
        self.clients.exports().get(export).is_some_and(ClientExport::is_local)
    }
    /// Whether the export still exists.
    pub fn is_connected(&self, export: ExportId) -> bool {
        self.clients.exports().get(export).is_some()
    }
    /// Ends an export with its locks and opens, later in this visit.
    pub fn evict(&self, export: ExportId, cause: String) {
        if self.is_connected(export) {
            self.evictions.request(export, cause);
        }
    }

    // ---- for the services

    /// Whether the bytes of a write may be lost although its rows are not.
    pub fn may_have_lost_bytes(&self, written: Transno) -> bool {
        written <= self.recovery.bytes_lost_to()
    }
    /// Clears the counters of operations.
    pub fn clear_stats(&self) {
        *self.stats.borrow_mut() = OpStats::new(self.ctx.wall());
    }
}
