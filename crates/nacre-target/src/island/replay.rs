//! The recovery of a target, step by step. See `recovery/mod.rs`.

use crate::clients::export::ClientExport;
use crate::clients::rows::ExportId;
use crate::island::dispatch::{admit, request_of};
use crate::island::export_end::ExportEnd;
use crate::island::inner::Inner;
use crate::lease::{longest_lease, standstill};
use crate::recovery::RECOVERY_KEY;
use crate::recovery::state::Step;
use crate::request::{Reply, Request};
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;
use nacre_osd::{Credits, Pins, table};
use nacre_rpc::{Admission, SubRecord};
use nacre_types::{Errno, Instant, Transno};
use nacre_wire::target::ExecutedChange;
use nacre_wire::{Frame, KeptUntil, Opcode};

/// Leases run out without an event: how often they are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

impl TargetCore {
    /// Whether a recovery is under way.
    pub fn in_recovery(&self) -> bool {
        self.recovery().is_active()
    }
    /// Milliseconds until the recovery ends at the latest; 0 when none is under way.
    pub(crate) fn recovery_ms(&self) -> u32 {
        self.recovery().remaining_ms(self.ctx.now())
    }
    /// `last_committed` and `last_stable`, for replies.
    pub(crate) fn commit_numbers(&self) -> (Transno, Transno) {
        match self.recovery().base() {
            Some(base) => (base, Transno(0)),
            None => (self.osd.last_committed(), self.osd.last_stable()),
        }
    }
    /// The changes of a client that the log holds. Their replies may be lost, and the bytes of writes: only the client
    /// knows which, and replays those with the others, in order.
    pub(crate) fn changes_before_loss(&self, export: ExportId) -> Vec<ExecutedChange> {
        let Some(base) = self.recovery().base() else { return Vec::new() };
        let exports = self.clients().exports();
        let records = exports.get(export).into_iter().flat_map(|e| e.rpc.records());
        let before = records.filter(|record| record.transno <= base);
        before.map(|record| ExecutedChange { xid: record.xid, transno: record.transno }).collect()
    }
    /// The results of the parts of a change that the log holds.
    pub fn recorded_results(&self, request: &Request) -> Option<Vec<SubRecord>> {
        let exports = self.clients().exports();
        let mut records = exports.get(request.export)?.rpc.records();
        records.find(|record| record.xid == request.header.xid).map(|record| record.results.clone())
    }
    /// `mdt.*.recovery_status` in the words of Lustre.
    pub(crate) fn recovery_status(&self) -> String {
        let exports = self.clients().exports();
        let connected = exports.iter().filter(|(_, e)| e.has_lease() && e.is_seen()).count();
        self.recovery().status(self.ctx.now(), connected)
    }

    /// Whether a client has not connected, or does not renew its lease.
    fn is_absent(&self, now: Instant, export: ExportId) -> bool {
        let exports = self.clients().exports();
        exports.get(export).is_none_or(|e| !e.is_seen() || e.lease_deadline() <= now)
    }
    fn extend_recovery(&self) {
        self.recovery().set_deadline(self.ctx.now() + longest_lease(self));
    }
}

impl<S: Service> Inner<S> {
    /// The recovery from its begin to its end.
    pub(crate) async fn recover(self: Rc<Self>) {
        let Some((core, service)) = self.started().map(|(c, s)| (c.clone(), s.clone())) else { return };
        core.extend_recovery(); // no client could connect before
        while !self.is_stopping() {
            let now = self.ctx().now();
            match core.recovery().next_step(now, |id| core.is_absent(now, id)) {
                Step::Replay(export, frame) => self.replay(&core, &service, export, frame).await,
                Step::Wait => {
                    let soon = now + CHECK_INTERVAL;
                    let _changed = self.ctx().timeout(soon, core.recovery().wait()).await;
                    if self.ctx().now() > soon + standstill(&core) {
                        core.extend_recovery(); // this process stood still, not its clients
                    }
                }
                Step::GiveUp if self.is_reading(&core).await => {
                    let now = self.ctx().now();
                    core.recovery().give_up_absent(now, |id| core.is_absent(now, id));
                }
                Step::GiveUp => core.extend_recovery(),
                Step::End => {
                    if let Err(error) = self.end_recovery(&core, &service).await {
                        tracing::error!(target_name = %core.name, %error, "the end of the recovery cannot be stored");
                    }
                    return;
                }
            }
        }
    }

    /// Replays one change under its old transno.
    async fn replay(self: &Rc<Self>, core: &Rc<TargetCore>, service: &Rc<S>, export: ExportId, frame: Frame) {
        let Some(opcode) = Opcode::from_number(frame.header.opcode) else { return };
        let old = frame.header.transno;
        let Some(base) = core.recovery().base() else { return };
        // Rows of a write may be in the log although its bytes are lost, unless they were stable: then bytes that another
        // client wrote later may be there.
        let safe =
            if opcode.kept_until() == KeptUntil::Stable { base.min(core.osd.last_stable()) } else { base };
        if old <= safe.max(core.recovery().replayed(export)) {
            return self.repeat_reply(core, export, opcode, &frame);
        }
        let result = match admit(core, export, &frame.header, opcode.class()) {
            Admission::Execute => {
                let request = Rc::new(request_of::<S>(export, opcode, frame));
                self.run(core, service, request, None).await
            }
            Admission::Reply(record) => {
                let request = Rc::new(request_of::<S>(export, opcode, frame));
                self.run(core, service, request, Some(Box::new(record))).await
            }
            Admission::Drop => return, // of a connection that is gone: the client sends it again
            Admission::Error(error) => Err(error.into()),
        };
        let failure = result.err().map(|error| {
            tracing::error!(target_name = %core.name, generation = %export, transno = %old, ?opcode, %error,
                "a change with a reply cannot be replayed: its client is evicted after the recovery");
            format!("its change {old} cannot be replayed: {error}")
        });
        core.recovery().executed(export, old, failure);
    }

    /// The change was not lost, or its client has lost the reply and begun its replay again. The record may have been
    /// replaced since, and other changes may have built on it: the reply is the former one.
    fn repeat_reply(&self, core: &Rc<TargetCore>, export: ExportId, opcode: Opcode, frame: &Frame) {
        let conn = core.clients().exports().get(export).and_then(ClientExport::conn);
        if let Some(conn) = conn {
            let former = frame.bulk.first().filter(|_| !opcode.has_data());
            let body = former.map(|body| body[..].to_vec()).unwrap_or_default();
            let reply = Reply { body, transno: frame.header.transno, ..Reply::default() };
            self.send_reply(core, conn, &frame.header, Ok(reply));
        }
    }

    async fn end_recovery(self: &Rc<Self>, core: &Rc<TargetCore>, service: &Rc<S>) -> Result<(), Errno> {
        service.clone().sync().await?;
        let credits = Credits { rows: 2, row_bytes: 128, frees: true, ..Credits::default() };
        let reservation = core.osd.reserve(credits).await?;
        let (transno, ()) = core.transact_local(&Pins::default(), reservation, |tx| {
            tx.delete(table::TARGET, RECOVERY_KEY);
            core.clients().incompat().clear_unused(tx);
            Ok(())
        })?;
        core.osd.commit(transno).await?;
        let Some(abandoned) = core.recovery().end(self.ctx().now(), transno) else { return Ok(()) };
        core.osd.freeze_stable(false);
        service.clone().recovered();
        let absent: Vec<ExportId> = {
            let exports = core.clients().exports();
            let is_absent =
                |id, e: &ClientExport| e.has_lease() && (!e.is_seen() || abandoned.is_given_up(id));
            exports.iter().filter(|(id, e)| is_absent(*id, e)).map(|(id, _)| id).collect()
        };
        let evicted = absent.len() + abandoned.failed().len();
        for id in absent {
            let ms = longest_lease(core).as_millis();
            let cause = format!(
                "not seen for {ms} ms after the start of the target, or its replay had not ended by then"
            );
            self.end_export(core, id, ExportEnd::Evicted(cause));
        }
        for (id, cause) in abandoned.failed() {
            self.end_export(core, *id, ExportEnd::Evicted(cause.clone()));
        }
        if let Some(summary) = core.recovery().record_evicted(evicted) {
            summary.log(&core.name);
        }
        service.clone().sync().await // `last_stable` is reported again
    }
}
