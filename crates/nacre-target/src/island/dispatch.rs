//! The way of a request: frame, admission, execution.
//!
//! Invariants: only `Export::admit` decides whether a request is executed; every message of a client renews its lease.

use crate::clients::export::ClientExport;
use crate::clients::rows::ExportId;
use crate::fault::Fault;
use crate::island::export_end::ExportEnd;
use crate::island::inner::Inner;
use crate::params::common::set_params;
use crate::record_rows::recovery_rows;
use crate::request::{Reply, Request};
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use nacre_node::{ConnId, Effect};
use nacre_rpc::{Admission, RUNNING_MAX, ReplyRecord};
use nacre_types::{Errno, Failure, Instant, ProtocolOutcome, Transno};
use nacre_wire::matches;
use nacre_wire::target::{Empty, GetParams, ParamList, PingReply, Role};
use nacre_wire::{Class, Frame, Header, Kind, Opcode, flags};

impl<S: Service> Inner<S> {
    pub(crate) fn handle_frame(self: &Rc<Self>, conn: ConnId, frame: Frame) {
        let Some((core, service)) = self.started() else { return };
        let Some(export) = self.conns().received(conn, self.ctx().now()) else { return };
        if self.is_stopping() && !unblocks_others(&frame.header) {
            return; // its sender tries the next instance
        }
        match (frame.header.kind, export) {
            (Kind::Request, _) if frame.header.opcode == Opcode::Connect.number() => {
                self.handle_connect(core, conn, frame);
            }
            (Kind::Request, Some(id)) => self.handle_request(core, service, conn, id, frame),
            (Kind::CallbackAck | Kind::Ack, Some(id)) => self.handle_ack(core, id, &frame.header),
            (Kind::Request | Kind::CallbackAck | Kind::Ack, None) => {
                self.protocol_error(core, conn, "a message before connect");
            }
            (Kind::Hello | Kind::HelloReply | Kind::Reply | Kind::Callback, _) => {
                self.protocol_error(core, conn, "a kind of message that clients do not send");
            }
        }
    }

    fn handle_ack(&self, core: &TargetCore, id: ExportId, header: &Header) {
        core.renew_lease(id);
        let is_callback = header.kind == Kind::CallbackAck;
        {
            let mut exports = core.clients().exports_mut();
            let entry = exports.get_mut(id).filter(|entry| entry.rpc.epoch() == header.epoch);
            let Some(entry) = entry else { return };
            if is_callback {
                entry.callback_acknowledged(header.xid, self.ctx().now());
            }
            entry.rpc.handle_last_xid(header.last_xid);
        }
        if is_callback && let Some(service) = self.service() {
            service.acknowledged(id, header.xid);
        }
    }

    fn handle_request(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        service: &Rc<S>,
        conn: ConnId,
        id: ExportId,
        frame: Frame,
    ) {
        core.renew_lease(id);
        let Some(opcode) = Opcode::from_number(frame.header.opcode) else {
            return self.send_reply(core, conn, &frame.header, Err(Failure::EOPNOTSUPP));
        };
        let class = opcode.class();
        let replay = frame.header.has(flags::REPLAY);
        if core.in_recovery() && class != Class::Import {
            let tool = core.clients().exports().get(id).is_some_and(|e| e.role() == Role::Tool);
            if replay {
                return core.recovery().queue(id, frame);
            }
            if !tool {
                return self.send_reply(core, conn, &frame.header, Err(ProtocolOutcome::TryLater.into()));
            }
        } else if replay && class != Class::Import {
            // Nothing was lost: the client learns that from this reply, and keeps changes that are not stable yet.
            return self.send_reply(core, conn, &frame.header, Err(ProtocolOutcome::NothingLost.into()));
        }
        if core.faults().strikes_change(Fault::RequestLostBefore, class) {
            return self.close(conn);
        }
        match admit(core, id, &frame.header, class) {
            Admission::Execute if class == Class::Import => {
                self.execute_import(core, service, conn, id, opcode, &frame)
            }
            Admission::Execute => self.start_request(core, service, id, opcode, frame, None),
            Admission::Reply(record) => self.start_request(core, service, id, opcode, frame, Some(record)),
            Admission::Drop => {}
            Admission::Error(error) => {
                let what = format!("request {} ({opcode:?}, tag {})", frame.header.xid, frame.header.tag);
                self.send_reply(core, conn, &frame.header, Err(error.into()));
                self.protocol_error(core, conn, &what);
            }
        }
    }

    /// Requests of the import itself are executed at once.
    fn execute_import(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        service: &Rc<S>,
        conn: ConnId,
        id: ExportId,
        opcode: Opcode,
        frame: &Frame,
    ) {
        if opcode == Opcode::Disconnect {
            self.send_reply(core, conn, &frame.header, Ok(Reply::of(&Empty {})));
            self.conns().disconnect(conn, self.ctx().now());
            self.end_export(core, id, ExportEnd::Disconnected);
        } else {
            if frame.header.has(flags::REPLAY_DONE) {
                core.recovery().client_done(id);
            }
            let (process, ended) = core.pinged(id);
            // A tool has nothing to replay, and is served during a recovery.
            let tool = core.clients().exports().get(id).is_some_and(|e| e.role() == Role::Tool);
            let recovery_ms = if tool { 0 } else { core.recovery_ms() };
            let config_version = service.config_version();
            let reply = Reply::of(&PingReply { config_version, recovery_ms, process, ended });
            self.send_reply(core, conn, &frame.header, Ok(reply));
        }
    }

    /// A request that need not wait is executed at once; every other one has a task of its own.
    fn start_request(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        service: &Rc<S>,
        id: ExportId,
        opcode: Opcode,
        frame: Frame,
        record: Option<ReplyRecord>,
    ) {
        let request = request_of::<S>(id, opcode, frame);
        if record.is_none()
            && let Some(result) = service.handle_now(&request)
        {
            self.begin_work();
            return match self.executed(core, &request, self.ctx().now(), &result, false) {
                None => self.finish(core, &request, result, false),
                Some(wait) => {
                    let (this, core) = (self.clone(), core.clone());
                    self.ctx().spawn(async move {
                        this.finish_after(wait, &core, &request, result, false).await;
                    });
                }
            };
        }
        let (this, core, service) = (self.clone(), core.clone(), service.clone());
        // The task of every request is small: the frame is in the request, rare values and futures are in boxes.
        let (request, record) = (Rc::new(request), record.map(Box::new));
        self.ctx().spawn(async move {
            let _result = this.run(&core, &service, request, record).await;
        });
    }

    /// Executes an admitted request, or reconstructs its reply, and sends the reply.
    pub(crate) async fn run(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        service: &Rc<S>,
        request: Rc<Request>,
        record: Option<Box<ReplyRecord>>,
    ) -> Result<(), Failure> {
        self.begin_work();
        let began = self.ctx().now();
        let reconstructed = record.is_some();
        let result = match record {
            Some(record) => {
                let (transno, versions) = (record.transno, record.pre_versions);
                let reply = Box::pin(service.clone().reconstruct(request.clone(), *record)).await;
                reply.map(|reply| Reply { transno, versions, ..reply }).map_err(Failure::from)
            }
            None => self.execute(core, service, &request).await,
        };
        let outcome = result.as_ref().map(|_| ()).map_err(|e| *e);
        match self.executed(core, &request, began, &result, reconstructed) {
            None => self.finish(core, &request, result, reconstructed),
            Some(wait) => Box::pin(self.finish_after(wait, core, &request, result, reconstructed)).await,
        }
        outcome
    }

    /// A request has been executed, which is counted. Returns what its reply has to wait for.
    fn executed(
        &self,
        core: &TargetCore,
        request: &Request,
        began: Instant,
        result: &Result<Reply, Failure>,
        reconstructed: bool,
    ) -> Option<ReplyWait> {
        let id = request.export;
        if !reconstructed && core.faults().strikes_change(Fault::RequestLostAfter, request.opcode.class()) {
            let conn = core.clients().exports().get(id).and_then(ClientExport::conn);
            conn.into_iter().for_each(|conn| self.close(conn));
        }
        if let Some(entry) = core.clients().exports_mut().get_mut(id) {
            let took = self.ctx().now().saturating_since(began);
            let mut all = core.stats.borrow_mut();
            for operation in request.operations() {
                entry.stats.count(operation, took);
                if !reconstructed {
                    all.count(operation, took);
                }
            }
        }
        let transno = result.as_ref().ok().map(|reply| reply.transno).filter(|t| t.0 > 0)?;
        if core.faults().strikes(Fault::CrashAfterCommit) {
            return Some(ReplyWait::Crash(transno));
        }
        self.must_commit(core, request, transno).map(ReplyWait::Commit)
    }

    /// Ends an execution after what its reply has to wait for.
    async fn finish_after(
        &self,
        wait: ReplyWait,
        core: &Rc<TargetCore>,
        request: &Request,
        result: Result<Reply, Failure>,
        reconstructed: bool,
    ) {
        match wait {
            ReplyWait::Crash(transno) => {
                let _durable = core.osd.commit(transno).await;
                self.ctx().push(Effect::Fatal(format!("fault point {}", Fault::CrashAfterCommit.name())));
                // Not finished: no reply leaves.
            }
            ReplyWait::Commit(earlier) => {
                let result = core.osd.commit(earlier).await.map_err(Failure::from).and(result);
                self.finish(core, request, result, reconstructed);
            }
        }
    }

    async fn execute(
        &self,
        core: &Rc<TargetCore>,
        service: &Rc<S>,
        request: &Rc<Request>,
    ) -> Result<Reply, Failure> {
        match request.opcode {
            Opcode::Statfs => Ok(Reply::of(&Box::pin(service.clone().statfs()).await?)),
            Opcode::Sync | Opcode::Commit => {
                if request.opcode == Opcode::Sync {
                    Box::pin(service.clone().sync()).await?;
                }
                Box::pin(core.osd.commit(core.osd.last_transno())).await?;
                Ok(Reply::of(&Empty {}))
            }
            Opcode::GetParams => {
                let pattern = request.args::<GetParams>()?.pattern;
                let mut params = core.all_params(&**service);
                // Only the administrator may see the clients.
                let clients = format!("{}.exports.", core.param_prefix());
                let all = core.is_administrator(request);
                params.retain(|p| matches(&pattern, &p.name) && (all || !p.name.starts_with(&clients)));
                Ok(Reply::of(&ParamList { params }))
            }
            Opcode::RecoveryRows => {
                if !core.is_administrator(request) {
                    return Err(Failure::EPERM);
                }
                Ok(Reply::of(&Box::pin(recovery_rows(core, &request.args()?)).await?))
            }
            Opcode::SetParam if !core.is_administrator(request) => Err(Failure::EPERM),
            Opcode::SetParam => Ok(Reply::of(&set_params(core, &**service, &request.args()?))),
            _ => service.clone().handle(request.clone()).await,
        }
    }
}

/// The request in a frame that was admitted.
pub(crate) fn request_of<S: Service>(id: ExportId, opcode: Opcode, frame: Frame) -> Request {
    let request = Request::new(id, opcode, frame);
    S::counter(opcode).into_iter().for_each(|name| request.count_operation(name));
    request
}

/// What the reply to a change has to wait for.
enum ReplyWait {
    /// The commit of earlier changes.
    Commit(Transno),
    /// The commit of the change itself, after which the target ends (a fault point).
    Crash(Transno),
}

/// Whether a message is handled while the target stops: running requests may wait for it.
fn unblocks_others(header: &Header) -> bool {
    match header.kind {
        Kind::CallbackAck | Kind::Ack => true,
        Kind::Request => match Opcode::from_number(header.opcode) {
            Some(Opcode::Ping | Opcode::Disconnect) => true,
            Some(opcode) => opcode.class() == Class::Callback,
            None => false,
        },
        Kind::Hello | Kind::HelloReply | Kind::Reply | Kind::Callback => false,
    }
}

/// Admits a request. Reconstructed replies are counted and bounded.
pub(crate) fn admit(core: &TargetCore, id: ExportId, header: &Header, class: Class) -> Admission {
    let mut exports = core.clients().exports_mut();
    let Some(entry) = exports.get_mut(id) else { return Admission::Drop };
    match entry.rpc.admit(header, class) {
        Admission::Reply(_) if entry.reconstructions() >= RUNNING_MAX => Admission::Error(Errno::EPROTO),
        Admission::Reply(record) => {
            entry.begin_reconstruction();
            Admission::Reply(record)
        }
        other => other,
    }
}
