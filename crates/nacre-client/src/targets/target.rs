//! One target of the file system: its import, its name, its counters, and room for what must never wait.

use crate::stats::Stats;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::cell::Cell;
use nacre_node::{Ctx, Gate, Peer, PeerConfig, Peers, RpcError};
use nacre_types::{Codec, Errno, Instant, TargetKind, Timestamp};
use nacre_wire::mdt::{Batch, BatchReply};
use nacre_wire::{Class, Frame, Opcode, Rpc};

/// Requests in flight to an OST, of all kinds.
const OST_RPCS: u16 = 16;
/// Of those, reads and writes without a lock, of each: they may wait at the OST for another mount, which
/// may wait for an operation of ours that holds locks and needs to be sent. So they never take all the room.
const UNLOCKED_MAX: u64 = 6;

/// A target and what was asked of it.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) peer: Rc<Peer>,
    /// Latency per request name.
    pub(crate) requests: Stats,
    /// Since when `rpc_stats` counts, if not since the first request.
    slots_since: Cell<Option<Timestamp>>,
    pub(crate) unlocked_reads: Gate,
    pub(crate) unlocked_writes: Gate,
    /// Changes of objects that came too late, without a lock and with one.
    pub(crate) late: Gate,
    pub(crate) late_locked: Gate,
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
            slots_since: Cell::new(None),
            unlocked_reads: Gate::new(ctx, UNLOCKED_MAX),
            unlocked_writes: Gate::new(ctx, UNLOCKED_MAX),
            late: Gate::new(ctx, 1),
            late_locked: Gate::new(ctx, 1),
        })
    }
    /// One request; waits as long as the target is away.
    pub(crate) async fn call<'a, R: Rpc + Codec<'a>>(&self, request: &R) -> Result<R::Reply, Errno> {
        let _timing = self.requests.time(request_name(R::OPCODE));
        self.peer.call(request).await.map_err(|e| self.explain(R::OPCODE, e))
    }
    /// Like `call`, with flags of the request's header, and with the reply's frame.
    pub(crate) async fn call_whole<'a, R: Rpc + Codec<'a>>(
        &self,
        request: &R,
        flags: u32,
    ) -> Result<(R::Reply, Frame), Errno> {
        let _timing = self.requests.time(request_name(R::OPCODE));
        self.peer.call_whole(request, flags, Vec::new()).await.map_err(|e| self.explain(R::OPCODE, e))
    }
    /// A batch of nothing but closes: it may use the extra slot of CLOSE.
    pub(crate) async fn call_as_close(&self, request: &Batch) -> Result<BatchReply, Errno> {
        let _timing = self.requests.time(request_name(Opcode::Batch));
        let reply = self.peer.call_as(Class::Close, request, 0, Vec::new()).await;
        reply.map(|(reply, _)| reply).map_err(|e| self.explain(Opcode::Batch, e))
    }
    /// Like `call`, with bulk bytes in both directions.
    pub(crate) async fn call_bulk<'a, R: Rpc + Codec<'a>>(
        &self,
        request: &R,
        bulk: Vec<Bytes>,
    ) -> Result<(R::Reply, Vec<Bytes>), Errno> {
        let _timing = self.requests.time(request_name(R::OPCODE));
        self.peer.call_bulk(request, bulk).await.map_err(|e| self.explain(R::OPCODE, e))
    }
    /// A change of an object that must not be begun after `until`; [`nacre_types::ProtocolOutcome::DeadlinePassed`] says that it was not.
    pub(crate) async fn call_until<'a, R: Rpc + Codec<'a>>(
        &self,
        request: &R,
        bulk: Vec<Bytes>,
        until: Option<Instant>,
    ) -> Result<R::Reply, Errno> {
        let _timing = self.requests.time(request_name(R::OPCODE));
        self.peer.call_until(request, bulk, until).await.map_err(|e| self.explain(R::OPCODE, e))
    }
    /// How often another target was admitted in its place.
    pub(crate) fn replaced(&self) -> u32 {
        self.peer.with_import(|import| import.replaced())
    }
    /// Since when `rpc_stats` counts.
    pub(crate) fn slots_since(&self) -> Timestamp {
        self.slots_since.get().unwrap_or(self.requests.start())
    }
    /// `rpc_stats` counts from now on.
    pub(crate) fn clear_slots(&self, now: Timestamp) {
        self.peer.clear_stats();
        self.slots_since.set(Some(now));
    }
    /// `stats` counts from now on; `rpc_stats` goes on.
    pub(crate) fn clear_requests(&self) {
        self.slots_since.set(Some(self.slots_since()));
        self.requests.clear();
    }
    /// What is under way to it, for people; `None` when nothing is.
    pub(crate) fn requests_left(&self) -> Option<String> {
        let (sent, waiting, slots) =
            self.peer.with_import(|i| (i.in_flight(), i.waiting(), i.slots().in_flight()));
        let idle = (sent, waiting, slots) == (0, 0, 0);
        (!idle)
            .then(|| format!("{}: {sent} requests sent, {waiting} waiting, {slots} slots in use", self.name))
    }
    fn explain(&self, opcode: Opcode, error: RpcError) -> Errno {
        if error == RpcError::Evicted {
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
        Opcode::Status => "status",
        Opcode::Shutdown => "shutdown",
        Opcode::RecoveryRows => "recovery_rows",
        Opcode::RegisterTarget => "mgs_target_reg",
        Opcode::ListTargets => "mgs_config_read",
        Opcode::KeepParam => "mgs_set_info",
        Opcode::AdmitTarget => "mgs_admit",
        Opcode::GrantSeq => "seq_query",
        Opcode::Lookup => "mds_lookup",
        Opcode::Getattr => "mds_getattr",
        Opcode::Readdir => "mds_readpage",
        Opcode::Create => "mds_reint_create",
        Opcode::Open => "mds_reint_open",
        Opcode::Close => "mds_close",
        Opcode::Link => "mds_reint_link",
        Opcode::Unlink => "mds_reint_unlink",
        Opcode::Rename => "mds_reint_rename",
        Opcode::Setattr => "mds_reint_setattr",
        Opcode::ReportSize => "mds_report_size",
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
        Opcode::Batch => "mds_batch",
        Opcode::Read => "ost_read",
        Opcode::Write => "ost_write",
        Opcode::Truncate => "ost_punch",
        Opcode::Allocate => "ost_fallocate",
        Opcode::Glimpse => "ldlm_glimpse",
        Opcode::SetOwner => "ost_setattr",
        Opcode::Destroy => "ost_destroy",
        Opcode::SyncObject => "ost_sync",
        Opcode::Enqueue => "ldlm_extent_enqueue",
        Opcode::Cancel => "ldlm_cancel",
        Opcode::Reserve => "ost_reserve",
        Opcode::FreeSpace => "ost_free_space",
        Opcode::LockGranted
        | Opcode::LockBlocking
        | Opcode::FlockGranted
        | Opcode::RevokeDir
        | Opcode::Ended => "callback",
    }
}
