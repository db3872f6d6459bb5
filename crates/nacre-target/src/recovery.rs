//! Recovery: after every start that follows no planned stop the clients of a target make again what its log has lost.
//!
//! Rules: it is due when the target was not stopped as planned, or when an earlier recovery did not end. Nothing else
//! proves that the log is whole: the machine may be another boot, the device may have refused what the kernel's cache
//! still shows, the store may be a copy. Every known client reports, except those that were in the process of the former
//! start and ended with it; one that has not when a lease has passed since the start is given up. Changes are made one at a time in the order of their old
//! numbers, which they get again; before the next one is chosen every client that has not reported the end has one
//! in the queue. Meanwhile `last_committed` is that of the loss, new clients are told how long they have to wait, and
//! the target's own changes have numbers of the next epoch. A gap stays a gap: what an absent client does not replay
//! is lost, and whether a change builds on it is the service's to find out (it gets the versions that the change met
//! when it was made first). A change that fails now ends its client's export when the recovery is over. How far it
//! has come is in the log, so that a second loss begins where the first stopped.
//! Not here: the client's side (`nacre_rpc::Import`), what a change means (the services).

use crate::clients::Entry;
use crate::clients::ExportId;
use crate::connect::Gone;
use crate::dispatch::admit;
use crate::island::Inner;
use crate::lease::{earlier_lease, standstill};
use crate::request::Reply;
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;
use nacre_node::WaitList;
use nacre_osd::{Credits, Pins, table};
use nacre_rpc::Admission;
use nacre_types::{Codec, Errno, Instant, Timestamp, Transno};
use nacre_wire::target::Made;
use nacre_wire::{Frame, Opcode};

/// Row of `TARGET`: the latest change that needs no replay. Only there while a recovery is under way.
pub(crate) const RECOVERY_KEY: &[u8] = b"recovery";

/// A recovery under way.
pub(crate) struct Recovery {
    /// Everything up to this is in the log, durably; what came after is lost.
    pub(crate) base: Transno,
    started: Instant,
    /// Clients that were not seen by then are given up.
    until: Instant,
    /// Clients that have not reported the end of their replay.
    waiting: BTreeSet<ExportId>,
    /// Given up: what they had is lost, also if they come before the end.
    late: BTreeSet<ExportId>,
    /// The next change of each, under its old number.
    queue: BTreeMap<(Transno, ExportId), Frame>,
    /// The latest change that each has made again.
    made: BTreeMap<ExportId, Transno>,
    failed: BTreeMap<ExportId, String>,
    told: Told,
    kick: Rc<WaitList>,
}

/// What `recovery_status` says.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Told {
    start: Timestamp,
    duration: Duration,
    clients: usize,
    completed: usize,
    replayed: u64,
    evicted: usize,
    last_transno: Transno,
}

impl TargetCore {
    /// Whether clients make again what the log may have lost.
    pub fn in_recovery(&self) -> bool {
        self.recovery.borrow().is_some()
    }
    /// Milliseconds until the recovery ends at the latest; 0 when none is under way.
    pub(crate) fn recovery_ms(&self) -> u32 {
        let recovery = self.recovery.borrow();
        let Some(r) = &*recovery else { return 0 };
        let left = r.until.saturating_since(self.ctx.now());
        u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1)
    }
    /// What replies say of durability.
    pub(crate) fn commit_numbers(&self) -> (Transno, Transno) {
        match &*self.recovery.borrow() {
            Some(r) => (r.base, Transno(0)),
            None => (self.osd.last_committed(), self.osd.last_stable()),
        }
    }
    /// Begins a recovery; nothing waits for clients when there are none.
    pub(crate) fn begin_recovery(&self, base: Transno) {
        let waiting: BTreeSet<ExportId> =
            self.exports.borrow().iter().filter(|(_, e)| e.is_awaited()).map(|(id, _)| id).collect();
        let told = Told { start: self.ctx.wall(), clients: waiting.len(), ..Told::default() };
        self.osd.hold_stable(true);
        self.set_bytes_lost_to(base);
        *self.recovery.borrow_mut() = Some(Recovery {
            base,
            started: self.ctx.now(),
            until: self.ctx.now() + earlier_lease(self),
            waiting,
            late: BTreeSet::new(),
            queue: BTreeMap::new(),
            made: BTreeMap::new(),
            failed: BTreeMap::new(),
            told,
            kick: Rc::new(self.ctx.wait_list()),
        });
    }
    /// What the log holds of a client's changes. The answers may be lost, and of writes the bytes: only the client knows
    /// which, and makes those again with the others, in their order.
    pub(crate) fn made_before_loss(&self, export: ExportId) -> Vec<Made> {
        let Some(base) = self.recovery.borrow().as_ref().map(|r| r.base) else { return Vec::new() };
        let exports = self.exports.borrow();
        let records = exports.get(export).into_iter().flat_map(|e| e.rpc.records());
        let made = records.filter(|record| record.transno <= base);
        made.map(|record| Made { xid: record.xid, transno: record.transno }).collect()
    }
    /// A client has made again everything that it had.
    pub(crate) fn replay_done(&self, export: ExportId) {
        if let Some(r) = &mut *self.recovery.borrow_mut()
            && (r.waiting.remove(&export) || r.late.remove(&export))
        {
            r.told.completed += 1;
            r.kick.wake_all();
        }
    }
    /// An export has gone: nobody waits for it.
    pub(crate) fn leave_recovery(&self, export: ExportId) {
        if let Some(r) = &mut *self.recovery.borrow_mut() {
            r.waiting.remove(&export);
            r.late.remove(&export);
            r.queue.retain(|(_, id), _| *id != export);
            r.kick.wake_all();
        }
    }
    /// A change that is to be made again; its latest copy counts.
    pub(crate) fn queue_replay(&self, export: ExportId, frame: Frame) {
        if let Some(r) = &mut *self.recovery.borrow_mut() {
            let (at, epoch) = (frame.header.transno, frame.header.epoch);
            if r.queue
                .iter()
                .any(|((queued, id), f)| *id == export && *queued > at && f.header.epoch == epoch)
            {
                return; // a late copy of one that was answered
            }
            r.queue.retain(|(_, id), _| *id != export);
            r.queue.insert((frame.header.transno, export), frame);
            r.kick.wake_all();
        }
    }
    /// `mdt.*.recovery_status` in the field's words.
    pub(crate) fn recovery_status(&self) -> String {
        if let Some(r) = &*self.recovery.borrow() {
            let connected = self.exports.borrow().iter().filter(|(_, e)| e.has_lease() && e.seen).count();
            let status = if connected == 0 { "WAITING_FOR_CLIENTS" } else { "RECOVERING" };
            return format!(
                "status: {status}\nrecovery_start: {}\ntime_remaining: {}\nconnected_clients: {connected}/{}\n\
                 completed_clients: {}\nreplayed_requests: {}\nqueued_requests: {}\nnext_transno: {}\n",
                r.told.start.sec,
                self.recovery_ms().div_ceil(1000),
                r.told.clients,
                r.told.completed,
                r.told.replayed,
                r.queue.len(),
                r.queue.first_key_value().map_or(r.base.0 + 1, |((transno, _), _)| transno.0),
            );
        }
        match self.recovered.get() {
            None => String::from("status: INACTIVE\n"),
            Some(t) => format!(
                "status: COMPLETE\nrecovery_start: {}\nrecovery_duration: {}\ncompleted_clients: {}/{}\n\
                 evicted_clients: {}\nreplayed_requests: {}\nlast_transno: {}\nVBR: {}\nIR: DISABLED\n",
                t.start.sec,
                t.duration.as_secs(),
                t.completed,
                t.clients,
                t.evicted,
                t.replayed,
                t.last_transno,
                // In the field's words: whether replays had to do with changes missing.
                if t.evicted > 0 { "ENABLED" } else { "DISABLED" },
            ),
        }
    }

    /// Whoever is here and renews its lease is waited for; the others have had theirs.
    fn is_late(&self, recovery: &Recovery, export: ExportId) -> bool {
        let (now, exports) = (self.ctx.now(), self.exports.borrow());
        now >= recovery.until && exports.get(export).is_none_or(|e| !e.seen || e.lease_until <= now)
    }
    fn give_up_late(&self) {
        let mut recovery = self.recovery.borrow_mut();
        let Some(r) = &mut *recovery else { return };
        let late: Vec<ExportId> = r.waiting.iter().copied().filter(|id| self.is_late(r, *id)).collect();
        for id in late {
            r.waiting.remove(&id);
            r.late.insert(id);
        }
    }
    /// Clients have a lease from now on.
    fn prolong_recovery(&self) {
        if let Some(r) = &mut *self.recovery.borrow_mut() {
            r.until = self.ctx.now() + earlier_lease(self);
        }
    }

    /// What is to be done next.
    fn next_step(&self) -> Step {
        let mut recovery = self.recovery.borrow_mut();
        let Some(r) = &mut *recovery else { return Step::End };
        if r.waiting.iter().any(|id| self.is_late(r, *id)) {
            return Step::GiveUp;
        }
        let ready = r.waiting.iter().all(|id| r.queue.keys().any(|(_, of)| of == id));
        if ready && let Some(((_, export), frame)) = r.queue.pop_first() {
            return Step::Replay(export, frame);
        }
        if ready { Step::End } else { Step::Wait }
    }
}

enum Step {
    Replay(ExportId, Frame),
    /// Somebody's time is over.
    GiveUp,
    Wait,
    End,
}

impl<S: Service> Inner<S> {
    /// The recovery from its begin to its end.
    pub(crate) async fn recover(self: Rc<Self>) {
        let Some((core, service)) = self.started().map(|(c, s)| (c.clone(), s.clone())) else { return };
        core.prolong_recovery(); // nobody could come before
        while !self.stopping.get() {
            match core.next_step() {
                Step::Replay(export, frame) => self.replay(&core, &service, export, frame).await,
                Step::Wait => {
                    let kick = match &*core.recovery.borrow() {
                        Some(r) => r.kick.clone(),
                        None => return,
                    };
                    // Leases run out without an event.
                    let soon = self.ctx.now() + Duration::from_millis(100);
                    let _kicked = self.ctx.timeout(soon, kick.wait()).await;
                    if self.ctx.now() > soon + standstill(&core) {
                        core.prolong_recovery(); // this process stood still, not its clients
                    }
                }
                Step::GiveUp if self.is_reading(&core).await => core.give_up_late(),
                Step::GiveUp => core.prolong_recovery(),
                Step::End => {
                    if let Err(error) = self.end_recovery(&core, &service).await {
                        tracing::error!(target_name = %core.name, %error, "the recovery cannot be made durable");
                    }
                    return;
                }
            }
        }
    }

    /// One change again, with its old number.
    async fn replay(self: &Rc<Self>, core: &Rc<TargetCore>, service: &Rc<S>, export: ExportId, frame: Frame) {
        let Some(opcode) = Opcode::from_number(frame.header.opcode) else { return };
        let old = frame.header.transno;
        let (base, made) = match &*core.recovery.borrow() {
            Some(r) => (r.base, r.made.get(&export).copied().unwrap_or_default()),
            None => return,
        };
        // Of a write the rows may be there and the bytes lost, unless they were stable: then another's later bytes may be.
        let safe = if opcode.changes_bytes() { base.min(core.osd.last_stable()) } else { base };
        if old <= safe.max(made) {
            // It was not lost, or its client has lost the answer and begun again. Its record may have been replaced
            // since, and others may have built on it: it is as it was.
            let conn = core.exports.borrow().get(export).and_then(|e| e.conn);
            if let Some(conn) = conn {
                let answer = frame.bulk.first().filter(|_| opcode != Opcode::Write);
                let body = answer.map(|body| body[..].to_vec()).unwrap_or_default();
                let reply = Reply { body, transno: old, ..Reply::default() };
                self.send_reply(core, conn, &frame.header, Ok(reply));
            }
            return;
        }
        let result = match admit(core, export, &frame.header, opcode.class()) {
            Admission::Execute => self.run(core, service, export, opcode, frame, None).await,
            Admission::Reply(record) => self.run(core, service, export, opcode, frame, Some(record)).await,
            Admission::Drop => return, // of a connection that is gone: it comes again
            Admission::Error(error) => Err(error),
        };
        let mut recovery = core.recovery.borrow_mut();
        let Some(r) = &mut *recovery else { return };
        r.told.replayed += 1;
        r.made.insert(export, old);
        if let Err(error) = result {
            tracing::error!(target_name = %core.name, generation = %export, transno = %old, ?opcode, %error,
                "a change that was answered cannot be made again: its client is evicted after the recovery");
            let why = match error {
                Errno::EOVERFLOW => String::from("it builds on a change of a client that did not come back"),
                error => error.to_string(),
            };
            r.failed.entry(export).or_insert_with(|| format!("its change {old} cannot be made again: {why}"));
        }
    }

    async fn end_recovery(self: &Rc<Self>, core: &Rc<TargetCore>, service: &Rc<S>) -> Result<(), Errno> {
        service.clone().sync().await?;
        let credits = Credits { rows: 2, row_bytes: 128, object_bytes: 0, frees: true };
        let reservation = core.osd.reserve(credits).await?;
        let (transno, ()) = core.transact_local(&Pins::default(), reservation, |tx| {
            tx.delete(table::TARGET, RECOVERY_KEY);
            core.incompat.clear_unused(tx);
            Ok(())
        })?;
        core.osd.commit(transno).await?;
        let Some(r) = core.recovery.borrow_mut().take() else { return Ok(()) };
        core.osd.hold_stable(false);
        service.clone().recovered();
        let absent: Vec<ExportId> = {
            let exports = core.exports.borrow();
            let absent = |id: &ExportId, e: &Entry| e.has_lease() && (!e.seen || r.late.contains(id));
            exports.iter().filter(|(id, e)| absent(id, e)).map(|(id, _)| id).collect()
        };
        let evicted = absent.len() + r.failed.len();
        for id in absent {
            let ms = earlier_lease(core).as_millis();
            let cause =
                format!("not seen for {ms} ms since the target was started, or not to the end of its replay");
            self.drop_export(core, id, Gone::Evicted(cause));
        }
        for (id, cause) in r.failed {
            self.drop_export(core, id, Gone::Evicted(cause));
        }
        let told = Told {
            duration: self.ctx.now().saturating_since(r.started),
            last_transno: transno,
            evicted,
            ..r.told
        };
        core.recovered.set(Some(told));
        tracing::info!(target_name = %core.name, clients = told.clients, completed = told.completed, evicted,
            replayed = told.replayed, milliseconds = told.duration.as_millis() as u64, "recovery over");
        service.clone().sync().await // what is stable may be said again
    }

    /// Whether changes may have been lost since the latest start, and up to where they were not.
    pub(crate) async fn find_loss(&self, core: &Rc<TargetCore>) -> Result<Option<Transno>, Errno> {
        let unfinished = match core.osd.get(table::TARGET, RECOVERY_KEY).await? {
            Some(row) => Some(Transno::from_slice(&row)?),
            None => None,
        };
        let nobody = core.exports.borrow().iter().all(|(_, e)| !e.is_awaited());
        let nothing = core.osd.was_clean() || S::COMMITS_BEFORE_ANSWERS || nobody;
        Ok(unfinished.or((!nothing).then(|| core.osd.last_transno())))
    }
}

/// For the log.
pub(crate) fn announce(core: &TargetCore) {
    let clients = core.recovery.borrow().as_ref().map_or(0, |r| r.waiting.len());
    let name = core.name.to_string();
    tracing::warn!(
        target_name = name,
        clients,
        lease_ms = earlier_lease(core).as_millis() as u64,
        "not stopped as planned: in recovery until every known client has reported or a lease has passed"
    );
}
