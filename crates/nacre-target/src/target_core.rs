//! What the service and the island share: context, storage, exports.
//!
//! Invariants: a change on behalf of a request and its reply record are one transaction; a request whose export
//! has gone changes nothing any more; a callback is kept until its client has acknowledged it or has gone.

use crate::clients::incompat::Incompat;
use crate::clients::op_stats::OpStats;
use crate::clients::{Entry, ExportId, Exports, Note, reply_key};
use crate::fault::Faults;
use crate::lease::Neighbours;
use crate::locks::deadlines::RevokeDeadlines;
use crate::recovery::{RECOVERY_KEY, Recovery, Told};
use crate::registration::Registration;
use crate::request::{ReplyTail, Request};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, OnceCell, RefCell};
use core::time::Duration;
use nacre_node::{Ctx, Lines, Peers, WaitList};
use nacre_osd::{Osd, Pins, Reservation, Tx, table};
use nacre_rpc::{PreVersions, ReplyRecord, SubRecord};
use nacre_types::{ClientUuid, Codec, Errno, Fid, Secret, TargetName, Transno, Xid};
use nacre_wire::late;
use nacre_wire::mgs::KeptParam;

/// How a target is run.
#[derive(Debug, Clone)]
pub struct TargetConfig {
    /// Where this process can be reached, best first; given to the MGS.
    pub addresses: Vec<String>,
    /// Addresses of the MGS (from the label).
    pub mgs_nodes: Vec<String>,
    pub lease_ms: u32,
    pub max_mod_rpcs: u16,
    /// A change that builds on one of another client who may not know of it yet waits for its commit. Off only to
    /// show what it is for.
    pub ack_or_commit: bool,
    /// A change and its reply record are one transaction. Off only to measure what the records cost.
    pub reply_records: bool,
    /// [`crate::Fault`]s may be set: in builds for tests.
    pub fault_points: bool,
    /// What it stores ends with its process.
    pub in_memory: bool,
}

/// Rows and bytes that a reply record adds to a transaction.
pub const RECORD_ROWS: u32 = 1;
pub const RECORD_BYTES: u32 = 96;

/// Shared by island and service.
pub struct TargetCore {
    pub ctx: Rc<Ctx>,
    pub osd: Rc<Osd>,
    pub peers: Rc<Peers>,
    pub name: TargetName,
    pub config: TargetConfig,
    /// The other targets of this process.
    pub(crate) neighbours: Option<Arc<dyn Neighbours>>,
    pub(crate) exports: RefCell<Exports>,
    /// Counts the starts of the target.
    instance: Cell<u64>,
    pub(crate) incompat: Incompat,
    /// The longest lease that clients of earlier starts may believe in.
    pub(crate) earlier_lease: Cell<Duration>,
    /// `config.max_mod_rpcs` as set since.
    pub(crate) max_mod_rpcs: Cell<u16>,
    /// Exports to be evicted, with the cause.
    pub(crate) doomed: RefCell<Vec<(ExportId, String)>>,
    /// Wakes the task that evicts.
    pub(crate) reaper: WaitList,
    /// Some client of an earlier start may not have connected yet.
    pub(crate) may_be_unseen: Cell<bool>,
    /// A client has connected, or an export has gone.
    pub(crate) clients_changed: WaitList,
    /// Parameters that the MGS keeps, as they were last set here.
    pub(crate) kept: RefCell<Vec<KeptParam>>,
    /// How often a target of this name was replaced or accepted as an old copy, as the MGS has told it.
    pub(crate) replaced: Cell<u32>,
    /// The latest evictions with their causes, for the clients that ask; bounded.
    evictions: RefCell<VecDeque<(ClientUuid, String)>>,
    pub(crate) recovery: RefCell<Option<Recovery>>,
    /// Bytes of objects written by changes up to this may be lost, their rows are not: after an unclean start.
    bytes_lost_to: Cell<Transno>,
    /// The latest recovery that is over.
    pub(crate) recovered: Cell<Option<Told>>,
    pub(crate) registration: OnceCell<Rc<Registration>>,
    /// Operations of all clients, without replies that were rebuilt; those of each client are in its export.
    pub stats: RefCell<OpStats>,
    pub(crate) faults: Faults,
    /// See `identity.rs`.
    pub(crate) secret: Cell<Secret>,
    pub(crate) revoke_deadlines: RefCell<RevokeDeadlines>,
    /// See `locks/restart_wait.rs`.
    pub(crate) volatile_lock_features: u64,
    /// Lines of the log that clients cause.
    pub lines: Lines,
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
            max_mod_rpcs: Cell::new(config.max_mod_rpcs),
            config,
            neighbours,
            exports: RefCell::default(),
            instance: Cell::new(0),
            incompat: Incompat::default(),
            earlier_lease: Cell::default(),
            doomed: RefCell::default(),
            reaper: ctx.wait_list(),
            may_be_unseen: Cell::new(true),
            clients_changed: ctx.wait_list(),
            kept: RefCell::default(),
            replaced: Cell::new(0),
            evictions: RefCell::default(),
            recovery: RefCell::default(),
            bytes_lost_to: Cell::default(),
            recovered: Cell::default(),
            registration: OnceCell::new(),
            stats: RefCell::new(OpStats::new(ctx.wall())),
            faults: Faults::default(),
            secret: Cell::default(),
            revoke_deadlines: RefCell::default(),
            volatile_lock_features,
            lines: Lines::default(),
        })
    }

    /// One change on behalf of a request: the closure's rows, the transno and the reply record are one unit.
    /// The reservation has room for [`RECORD_ROWS`] and [`RECORD_BYTES`] beyond what the closure writes.
    ///
    /// # Errors
    /// Those of the closure; ESTALE when the export was dropped while the task waited.
    pub fn transact<T>(
        &self,
        request: &Request,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, Errno>,
    ) -> Result<(Transno, T), Errno> {
        let (tag, xid) = (request.header.tag, request.header.xid);
        let (keeps, in_rows, waits_for_commit) = {
            let exports = self.exports.borrow();
            let entry = exports.get(request.export).ok_or(Errno::ESTALE)?;
            let keeps = self.config.reply_records && tag.0 != 0 && entry.rpc.keeps_record(tag, xid);
            let note = entry.notes.get(&request.execution());
            (keeps, entry.has_lease(), note.is_some_and(|note| note.reply_waits_for_commit))
        };
        let mut made = None;
        let again = request.replayed_transno();
        let done = self.osd.transact_at(again, pins, reservation, |tx| {
            let value = change(tx)?;
            if let Some(again) = again {
                // So far has the recovery come.
                let base = self.recovery.borrow().as_ref().map_or(again, |r| r.base);
                tx.put(table::TARGET, RECOVERY_KEY, again.max(base).to_vec());
            }
            if keeps {
                let note = self.note(request);
                let record = ReplyRecord {
                    transno: tx.transno(),
                    xid,
                    data: note.data,
                    result: 0,
                    generation: request.export,
                    tag,
                    pre_versions: note.versions,
                    fid: note.fid,
                    results: note.results,
                };
                if in_rows {
                    tx.put(table::REPLY, &reply_key(request.export, tag), record.to_vec());
                }
                made = Some(record);
            }
            Ok::<T, Errno>(value)
        })?;
        if let Some(entry) = self.exports.borrow_mut().get_mut(request.export) {
            if let Some(record) = made {
                entry.rpc.remember(record);
            }
            if again.is_none() && !waits_for_commit {
                entry.reply_order.executed(done.0, self.osd.last_committed());
            }
        }
        Ok(done)
    }
    /// Milliseconds of this target's clock, as clients are told; they come round.
    pub(crate) fn clock_ms(&self) -> u32 {
        ((self.ctx.now().0 / 1_000_000) as u32).max(1)
    }
    /// Asked before a change that may have waited is made. Once the connection of its client is gone it is not: a client
    /// that lives sends it again, and of one that died nobody shall see a change after its end, for as long as its lease
    /// keeps its export. Nor is it when its client has said that it would be too late now: others may have the file locks
    /// under which it was sent. What is replayed was answered.
    ///
    /// # Errors
    /// ENOTCONN, which nobody is told: the next copy is executed as if this one had been lost on its way. ETIME: it was not
    /// made and will not be.
    pub fn still_wanted(&self, request: &Request) -> Result<(), Errno> {
        let mut exports = self.exports.borrow_mut();
        match exports.get_mut(request.export) {
            Some(entry) if entry.conn.is_none() && request.replayed_transno().is_none() => {
                tracing::debug!(target_name = %self.name, client = %entry.uuid, xid = %request.header.xid,
                    opcode = ?request.opcode, "not made: the connection of its client is gone");
                entry.rpc.abandon(request.header.xid);
                Err(Errno::ENOTCONN)
            }
            Some(_)
                if request.replayed_transno().is_none() && late(self.clock_ms(), request.header.clock_ms) =>
            {
                Err(Errno::ETIME)
            }
            Some(_) => Ok(()),
            None => Err(Errno::ESTALE),
        }
    }

    /// A change of the target's own (background work): no reply record.
    pub fn transact_local<T>(
        &self,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, Errno>,
    ) -> Result<(Transno, T), Errno> {
        self.osd.transact(pins, reservation, change)
    }

    fn note(&self, request: &Request) -> Note {
        let exports = self.exports.borrow();
        let entry = exports.get(request.export);
        entry.and_then(|e| e.notes.get(&request.execution()).cloned()).unwrap_or_default()
    }
    fn with_note(&self, request: &Request, set: impl FnOnce(&mut Note)) {
        if let Some(entry) = self.exports.borrow_mut().get_mut(request.export) {
            set(entry.notes.entry(request.execution()).or_default());
        }
    }
    /// The `data` that the record of this request will carry (a disposition). Before or inside the closure of
    /// `transact`.
    pub fn set_record_data(&self, request: &Request, data: u64) {
        self.with_note(request, |note| note.data = data);
    }
    /// The FID that the record of this request will carry (what was opened or made). Same time as `set_record_data`.
    pub fn set_record_fid(&self, request: &Request, fid: Fid) {
        self.with_note(request, |note| note.fid = fid);
    }

    /// The results of a batch that the record of this request will carry. Same time as `set_record_data`.
    pub fn set_record_results(&self, request: &Request, results: Vec<SubRecord>) {
        self.with_note(request, |note| note.results = results);
    }
    /// Versions of what the change depends on, before it: for the record and the reply. Same time as
    /// `set_record_data`.
    pub fn set_record_versions(&self, request: &Request, versions: PreVersions) {
        self.with_note(request, |note| note.versions = versions);
    }

    /// An addition to the reply of this change, once it is executed.
    pub fn set_reply_tail(&self, request: &Request, tail: ReplyTail) {
        self.with_note(request, |note| note.tail = Some(tail));
    }
    /// Call before the change of a request if its handler commits the change before the reply. Then replies to other
    /// changes of the client do not wait for this one: no change of the client can build on it before the reply.
    pub fn reply_waits_for_commit(&self, request: &Request) {
        self.with_note(request, |note| note.reply_waits_for_commit = true);
    }

    /// Evictions that are remembered.
    const EVICTIONS_MAX: usize = 256;
    pub(crate) fn note_eviction(&self, client: ClientUuid, cause: &str) {
        let mut evictions = self.evictions.borrow_mut();
        if evictions.len() >= Self::EVICTIONS_MAX {
            evictions.pop_front();
        }
        evictions.push_back((client, String::from(cause)));
    }
    /// Why a client was evicted, as far as it is remembered.
    pub(crate) fn eviction_cause(&self, client: ClientUuid) -> String {
        let evictions = self.evictions.borrow();
        match evictions.iter().rev().find(|(uuid, _)| *uuid == client) {
            Some((_, cause)) => cause.clone(),
            None => String::from("not known any more: the target was started again since"),
        }
    }
    /// Whether a client is known to have the reply to this request.
    pub fn has_reply(&self, export: ExportId, xid: Xid) -> bool {
        self.exports.borrow().get(export).is_some_and(|e| e.rpc.last_xid() >= xid)
    }
    pub fn has_several_clients(&self) -> bool {
        self.exports.borrow().len() > 1
    }
    /// Who the client of an export is; `None` when the export has gone.
    pub fn client_uuid(&self, export: ExportId) -> Option<ClientUuid> {
        self.exports.borrow().get(export).map(|e| e.uuid)
    }
    /// Whether the bytes of a write may be gone although its rows are there.
    pub fn may_have_lost_bytes(&self, written: Transno) -> bool {
        written <= self.bytes_lost_to.get()
    }
    pub(crate) fn set_bytes_lost_to(&self, last: Transno) {
        self.bytes_lost_to.set(last);
    }
    pub(crate) fn set_instance(&self, instance: u64) {
        self.instance.set(instance);
    }
    /// Counts the starts of this target.
    pub fn instance(&self) -> u64 {
        self.instance.get()
    }

    /// Whether this client is a mount in the target's own process.
    pub fn is_local(&self, export: ExportId) -> bool {
        self.exports.borrow().get(export).is_some_and(Entry::is_local)
    }
    /// Counts anew from now on.
    pub fn clear_stats(&self) {
        *self.stats.borrow_mut() = OpStats::new(self.ctx.wall());
    }
    /// Whether the export is still there.
    pub fn is_connected(&self, export: ExportId) -> bool {
        self.exports.borrow().get(export).is_some()
    }
    /// Drops an export with its locks and opens; within this visit, not within this call.
    pub fn evict(&self, export: ExportId, cause: String) {
        if self.is_connected(export) {
            self.doomed.borrow_mut().push((export, cause));
            self.reaper.wake_all();
        }
    }
    pub(crate) fn with_export(&self, export: ExportId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.exports.borrow_mut().get_mut(export) {
            change(entry);
        }
    }
}
