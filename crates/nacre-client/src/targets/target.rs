//! One target of the file system: its import, its name, its counters, and reserved capacity for requests that must
//! never wait.

use crate::stats::Stats;
use crate::targets::bulk_rpcs::BulkRpcs;
use crate::targets::space_grant::SpaceGrant;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::Cell;
use nacre_node::{Call, Ctx, Gate, Inside, Peer, PeerConfig, Peers, Reply, RpcError};
use nacre_types::{Codec, Errno, Failure, TargetKind, Timestamp};
use nacre_wire::params::ImportParam;
use nacre_wire::{Opcode, Rpc};

/// Requests in flight to an OST, of all kinds.
const OST_RPCS: u16 = ImportParam::OscMaxRpcs.row().default_u16();
/// Of those, reads and writes without a lock, of each: they may wait at the OST for another mount, which
/// may wait for an operation of ours that holds locks and needs to be sent. So they never take all the room.
const UNLOCKED_MAX: u64 = 6;

/// The smallest value of `max_pages_per_rpc`, in bytes.
pub(crate) const RPC_BYTES_MIN: u64 = 1 << 20;
const RPC_PAGE_BYTES: u64 = 4096;

/// A target and the counters of its requests. The fields that other files reach never change, or guard their own state.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) peer: Rc<Peer>,
    /// Latency per request name.
    pub(crate) requests: Stats,
    bulk: BulkRpcs,
    /// Since when `rpc_stats` counts, if not since the first request.
    slots_since: Cell<Option<Timestamp>>,
    unlocked_reads: Gate,
    unlocked_writes: Gate,
    /// Changes of objects that the target rejected as late and that are sent again one at a time: those without a lock of the
    /// target, and those under one.
    resends: Gate,
    resends_under_lock: Gate,
    grant: SpaceGrant,
    /// Largest request that reads or writes, in pages.
    rpc_pages_max: Cell<u32>,
}

impl Target {
    /// Starts to connect at once.
    pub(crate) fn new(ctx: &Rc<Ctx>, peers: &Rc<Peers>, config: PeerConfig, kind: TargetKind) -> Rc<Self> {
        let name = config.target.clone();
        let peer = Peer::new(ctx, peers, config);
        if kind == TargetKind::Ost {
            peer.set_max_rpcs(OST_RPCS);
        }
        Rc::new(Self {
            name,
            peer,
            requests: Stats::new(ctx),
            bulk: BulkRpcs::default(),
            slots_since: Cell::new(None),
            unlocked_reads: Gate::new(ctx, UNLOCKED_MAX),
            unlocked_writes: Gate::new(ctx, UNLOCKED_MAX),
            resends: Gate::new(ctx, 1),
            resends_under_lock: Gate::new(ctx, 1),
            grant: SpaceGrant::new(ctx),
            rpc_pages_max: Cell::new(ImportParam::MaxPagesPerRpc.row().default_u32()),
        })
    }
    /// Largest request that reads or writes.
    pub(crate) fn rpc_bytes_max(&self) -> u64 {
        u64::from(self.rpc_pages_max.get()) * RPC_PAGE_BYTES
    }
    pub(crate) fn rpc_pages_max(&self) -> u32 {
        self.rpc_pages_max.get()
    }
    pub(crate) fn set_rpc_pages_max(&self, pages: u32) {
        self.rpc_pages_max.set(pages);
    }
    /// One request; waits as long as the target is away.
    pub(crate) async fn call<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, Failure> {
        self.send(self.request(request)).await.map(|reply| reply.body)
    }
    /// Begins a request that needs more than its message; [`Target::send`] sends it.
    pub(crate) fn request<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Call<'_, R> {
        self.peer.request(request)
    }
    /// Sends a request and waits for its reply, however long the target is away.
    pub(crate) async fn send<R: Rpc>(&self, call: Call<'_, R>) -> Result<Reply<R::Reply>, Failure> {
        self.send_once(call).await.map_err(|e| self.explain(R::OPCODE, e))
    }
    /// The same with the protocol's error, for a caller that handles an eviction itself.
    pub(crate) async fn send_once<R: Rpc>(&self, call: Call<'_, R>) -> Result<Reply<R::Reply>, RpcError> {
        let _timing = self.requests.time(request_name(R::OPCODE));
        call.send().await
    }
    /// Waits until written data can be sent to it (`Peer::data_room`).
    pub(crate) async fn data_room(&self) -> Result<(), Errno> {
        self.peer.data_room().await
    }
    /// Waits until one more read without a lock of the target may be sent.
    pub(crate) async fn unlocked_read(&self) -> Inside<'_> {
        self.unlocked_reads.enter().await
    }
    /// Waits until one more write without a lock of the target may be sent.
    pub(crate) async fn unlocked_write(&self) -> Inside<'_> {
        self.unlocked_writes.enter().await
    }
    /// Waits until it is the turn of a change that was rejected as late. Changes under a lock have a turn of their own, because
    /// others may wait at the target for such a lock.
    pub(crate) async fn resend_turn(&self, under_lock: bool) -> Inside<'_> {
        if under_lock { &self.resends_under_lock } else { &self.resends }.enter().await
    }
    /// How often another target was admitted in its place.
    pub(crate) fn replaced(&self) -> u32 {
        self.peer.with_import(|import| import.replaced())
    }
    /// Space that an OST keeps for this mount.
    pub(crate) fn grant(&self) -> &SpaceGrant {
        &self.grant
    }
    /// Reads and writes of objects.
    pub(crate) fn bulk(&self) -> &BulkRpcs {
        &self.bulk
    }
    /// Since when `rpc_stats` counts.
    pub(crate) fn slots_since(&self) -> Timestamp {
        self.slots_since.get().unwrap_or(self.requests.start())
    }
    /// `rpc_stats` counts from now on.
    pub(crate) fn clear_slots(&self, now: Timestamp) {
        self.peer.clear_stats();
        self.bulk.clear();
        self.slots_since.set(Some(now));
    }
    /// `stats` starts again at zero; `rpc_stats` is not reset.
    pub(crate) fn clear_requests(&self) {
        self.slots_since.set(Some(self.slots_since()));
        self.requests.clear();
    }
    /// The requests under way to the target, for people; `None` if there are none.
    pub(crate) fn requests_left(&self) -> Option<String> {
        let (sent, waiting, slots) =
            self.peer.with_import(|i| (i.in_flight(), i.waiting(), i.slots().in_flight()));
        let idle = (sent, waiting, slots) == (0, 0, 0);
        (!idle)
            .then(|| format!("{}: {sent} requests sent, {waiting} waiting, {slots} slots in use", self.name))
    }
    /// The error for the caller of an operation; logs what it does not tell.
    pub(crate) fn explain(&self, opcode: Opcode, error: RpcError) -> Failure {
        if matches!(error, RpcError::Evicted | RpcError::EvictedUnsent) {
            tracing::warn!(
                target_name = %self.name,
                ?opcode,
                "evicted by the target while a request was under way: the caller gets EIO"
            );
        }
        if error == RpcError::Inactive {
            tracing::debug!(target_name = %self.name, ?opcode, "deactivated: the caller gets EIO");
        }
        error.into()
    }
}

/// Name of a request's line in `mdc.*.stats` and `osc.*.stats`.
fn request_name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Connect => "connect",
        Opcode::Disconnect => "disconnect",
        Opcode::Ping => "obd_ping",
        Opcode::GetParams => "get_params",
        Opcode::SetParam => "set_param",
        Opcode::Statfs => "statfs",
        Opcode::Sync => "sync",
        Opcode::Commit => "commit",
        Opcode::Status => "status",
        Opcode::Shutdown => "shutdown",
        Opcode::RecoveryRows => "recovery_rows",
        Opcode::RegisterTarget => "mgs_target_reg",
        Opcode::ListTargets => "mgs_config_read",
        Opcode::SetPermanentParam => "mgs_set_info",
        Opcode::AdmitTarget => "mgs_admit",
        Opcode::GrantSeq => "seq_query",
        Opcode::Lookup => "mds_lookup",
        Opcode::Getattr => "mds_getattr",
        Opcode::Settle => "mds_settle",
        Opcode::Readdir => "mds_readpage",
        Opcode::Create => "mds_reint_create",
        Opcode::Open => "mds_reint_open",
        Opcode::Close => "mds_close",
        Opcode::Link => "mds_reint_link",
        Opcode::Unlink => "mds_reint_unlink",
        Opcode::Rename => "mds_reint_rename",
        Opcode::Setattr => "mds_reint_setattr",
        Opcode::ReportSize => "mds_report_size",
        Opcode::ReadData => "mds_read_data",
        Opcode::StoreData => "mds_store_data",
        Opcode::MoveData => "mds_move_data",
        Opcode::Readlink => "mds_readlink",
        Opcode::Getxattr => "mds_getxattr",
        Opcode::Setxattr => "mds_reint_setxattr",
        Opcode::Listxattr => "mds_listxattr",
        Opcode::Removexattr => "mds_reint_removexattr",
        Opcode::Flock => "ldlm_flock_enqueue",
        Opcode::FlockTest => "ldlm_flock_test",
        Opcode::FlockCancel => "ldlm_flock_cancel",
        Opcode::SetLayout => "mds_reint_setlayout",
        Opcode::GetLayout => "mds_getlayout",
        Opcode::FidLinks => "mds_fid_links",
        Opcode::Reclaim => "mds_reclaim",
        Opcode::CancelInodeLocks => "ldlm_cancel",
        Opcode::FormerLocksEnded => "former_locks_ended",
        Opcode::AwaitInodeLocks => "await_inode_locks",
        Opcode::ReportOpens => "mds_report_opens",
        Opcode::Batch => "mds_batch",
        other => object_request_name(other),
    }
}
/// The same for requests to OSTs.
fn object_request_name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::Read => "ost_read",
        Opcode::Write => "ost_write",
        Opcode::WriteMany => "ost_write_many",
        Opcode::Truncate => "ost_punch",
        Opcode::Allocate => "ost_fallocate",
        Opcode::Punch => "ost_punch_hole",
        Opcode::Seek => "ost_seek",
        Opcode::Glimpse => "ldlm_glimpse",
        Opcode::SetOwner => "ost_setattr",
        Opcode::Destroy => "ost_destroy",
        Opcode::SyncObject => "ost_sync",
        Opcode::Enqueue => "ldlm_extent_enqueue",
        Opcode::Cancel => "ldlm_cancel",
        Opcode::Reserve => "ost_reserve",
        Opcode::FreeSpace => "ost_free_space",
        Opcode::Grant => "ost_grant",
        _ => "callback",
    }
}
