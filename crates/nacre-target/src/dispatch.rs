//! The way of a request: frame, admission, task, reply.
//!
//! Invariants: `Export::admit` decides, nothing here does; a reply leaves on the epoch of the latest copy of its
//! request or not at all; every message of a client renews its lease.

use crate::clients::ExportId;
use crate::connect::Gone;
use crate::fault::Fault;
use crate::island::Inner;
use crate::locks::deadlines::RevokedLock;
use crate::params::set_params;
use crate::request::{Reply, Request};
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use bytes::Bytes;
use nacre_node::{ConnId, Effect};
use nacre_rpc::{Admission, PreVersions, RUNNING_MAX, ReplyRecord};
use nacre_types::{Codec, Errno, Transno};
use nacre_wire::matches;
use nacre_wire::target::{Empty, GetParams, ParamList, PingReply, Role};
use nacre_wire::{Class, Frame, Header, Kind, Opcode, flags};

impl<S: Service> Inner<S> {
    pub(crate) fn handle_frame(self: &Rc<Self>, conn: ConnId, frame: Frame) {
        let Some((core, service)) = self.started() else { return };
        let export = match self.conns.borrow_mut().get_mut(&conn) {
            Some(c) => {
                c.heard = self.ctx.now();
                c.export
            }
            None => return, // of a connection that was closed here
        };
        if self.stopping.get() && !ends_others(&frame.header) {
            return; // its sender asks the next instance again
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
        self.renew(core, id);
        if let Some(entry) = core.exports.borrow_mut().get_mut(id)
            && entry.rpc.epoch() == header.epoch
        {
            if header.kind == Kind::CallbackAck {
                entry.rpc.handle_callback_ack(header.xid);
                entry.acknowledged = self.ctx.now();
                let more = entry.rpc.unacknowledged_callbacks() > 0;
                entry.callback_since = more.then(|| self.ctx.now());
            }
            entry.rpc.handle_last_xid(header.last_xid);
        } else {
            return;
        }
        if header.kind == Kind::CallbackAck {
            core.lock_returned(id, RevokedLock::Callback(header.xid));
        }
        if header.kind == Kind::CallbackAck
            && let Some(service) = self.service.get()
        {
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
        self.renew(core, id);
        let Some(opcode) = Opcode::from_number(frame.header.opcode) else {
            return self.send_reply(core, conn, &frame.header, Err(Errno::EOPNOTSUPP));
        };
        let class = opcode.class();
        let replay = frame.header.has(flags::REPLAY);
        if core.in_recovery() && class != Class::Import {
            let tool = core.exports.borrow().get(id).is_some_and(|e| e.role == Role::Tool);
            if replay {
                return core.queue_replay(id, frame);
            }
            if !tool {
                return self.send_reply(core, conn, &frame.header, Err(Errno::EINPROGRESS));
            }
        } else if replay && class != Class::Import {
            // Nothing was lost: the client learns it with this reply, and keeps what is not stable yet.
            return self.send_reply(core, conn, &frame.header, Err(Errno::EALREADY));
        }
        if core.faults.strikes_change(Fault::RequestLostBefore, class) {
            return self.close(conn);
        }
        match admit(core, id, &frame.header, class) {
            Admission::Execute if class == Class::Import => {
                self.execute_import(core, service, conn, id, opcode, &frame)
            }
            Admission::Execute => self.spawn(core, service, id, opcode, frame, None),
            Admission::Reply(record) => self.spawn(core, service, id, opcode, frame, Some(record)),
            Admission::Drop => {}
            Admission::Error(error) => {
                let what = format!("request {} ({opcode:?}, tag {})", frame.header.xid, frame.header.tag);
                self.send_reply(core, conn, &frame.header, Err(error));
                self.protocol_error(core, conn, &what);
            }
        }
    }

    /// What belongs to the import itself is answered at once.
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
            if let Some(c) = self.conns.borrow_mut().get_mut(&conn) {
                (c.export, c.since) = (None, self.ctx.now());
            }
            self.drop_export(core, id, Gone::Disconnected);
        } else {
            if frame.header.has(flags::REPLAY_DONE) {
                core.replay_done(id);
            }
            let (process, ended) = core.pinged(id);
            // A tool has nothing to replay, and is answered during a recovery.
            let tool = core.exports.borrow().get(id).is_some_and(|e| e.role == Role::Tool);
            let recovery_ms = if tool { 0 } else { core.recovery_ms() };
            let config_version = service.config_version();
            let reply = Reply::of(&PingReply { config_version, recovery_ms, process, ended });
            self.send_reply(core, conn, &frame.header, Ok(reply));
        }
    }

    /// One task per request.
    fn spawn(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        service: &Rc<S>,
        id: ExportId,
        opcode: Opcode,
        frame: Frame,
        record: Option<ReplyRecord>,
    ) {
        let (this, core, service) = (self.clone(), core.clone(), service.clone());
        self.ctx.spawn(async move {
            let _answered = this.run(&core, &service, id, opcode, frame, record).await;
        });
    }

    /// Executes an admitted request, or rebuilds its reply, and answers it.
    pub(crate) async fn run(
        self: &Rc<Self>,
        core: &Rc<TargetCore>,
        service: &Rc<S>,
        id: ExportId,
        opcode: Opcode,
        frame: Frame,
        record: Option<ReplyRecord>,
    ) -> Result<(), Errno> {
        let Frame { header, body, bulk } = frame;
        let request = Rc::new(Request { export: id, opcode, header, body, bulk });
        self.running.set(self.running.get() + 1);
        let began = self.ctx.now();
        let refilled = record.is_some();
        let result = match record {
            // What is rare is in a box, so that the task of every request is small.
            Some(record) => Box::pin(service.clone().refill(request.clone(), record.clone()))
                .await
                .map(|reply| Reply { transno: record.transno, versions: record.pre_versions, ..reply }),
            None => self.execute(core, service, &request).await,
        };
        if !refilled && core.faults.strikes_change(Fault::RequestLostAfter, request.opcode.class()) {
            let conn = core.exports.borrow().get(id).and_then(|entry| entry.conn);
            conn.into_iter().for_each(|conn| self.close(conn));
        }
        if let Some(entry) = core.exports.borrow_mut().get_mut(id) {
            let took = self.ctx.now().saturating_since(began);
            let mut all = core.stats.borrow_mut();
            service.count_operations(&request, &mut |operation| {
                entry.stats.count(operation, took);
                if !refilled {
                    all.count(operation, took);
                }
            });
        }
        let outcome = result.as_ref().map(|_| ()).map_err(|e| *e);
        if let Some(transno) = result.as_ref().ok().map(|reply| reply.transno).filter(|t| t.0 > 0)
            && core.faults.strikes(Fault::CrashAfterCommit)
        {
            let _durable = Box::pin(core.osd.commit(transno)).await;
            self.ctx.push(Effect::Fatal(format!("fault point {}", Fault::CrashAfterCommit.name())));
            return outcome; // not finished: nobody is answered
        }
        let result = match self.missing(core, &request, &result) {
            None => result,
            Some(missing) => Box::pin(core.osd.commit(missing)).await.map_err(Errno::from).and(result),
        };
        self.finish(core, &request, result, refilled);
        outcome
    }

    /// What has to be committed before this may be answered.
    fn missing(
        &self,
        core: &TargetCore,
        request: &Request,
        result: &Result<Reply, Errno>,
    ) -> Option<Transno> {
        let transno = result.as_ref().ok().map(|reply| reply.transno).filter(|t| t.0 > 0)?;
        if !core.config.ack_or_commit || request.replayed_transno().is_some() {
            return None;
        }
        let exports = core.exports.borrow();
        exports.get(request.export)?.reply_order.must_commit(transno, core.osd.last_committed())
    }

    async fn execute(
        &self,
        core: &Rc<TargetCore>,
        service: &Rc<S>,
        request: &Rc<Request>,
    ) -> Result<Reply, Errno> {
        match request.opcode {
            Opcode::Statfs => Ok(Reply::of(&Box::pin(service.clone().statfs()).await?)),
            Opcode::Sync => {
                Box::pin(service.clone().sync()).await?;
                Box::pin(core.osd.commit(core.osd.last_transno())).await?;
                Ok(Reply::of(&Empty {}))
            }
            Opcode::GetParams => {
                let pattern = request.args::<GetParams>()?.pattern;
                let mut params = core.all_params(&**service);
                // Who the clients are is nobody's business but the administrator's.
                let clients = format!("{}exports.", core.param_prefix());
                let all = core.is_administrator(request);
                params.retain(|p| matches(&pattern, &p.name) && (all || !p.name.starts_with(&clients)));
                Ok(Reply::of(&ParamList { params }))
            }
            Opcode::RecoveryRows => {
                if !core.is_administrator(request) {
                    return Err(Errno::EPERM);
                }
                Ok(Reply::of(&crate::island::recovery_rows(core, &request.args()?).await?))
            }
            Opcode::SetParam if !core.is_administrator(request) => Err(Errno::EPERM),
            Opcode::SetParam => Ok(Reply::of(&set_params(core, &**service, &request.args()?))),
            _ => service.clone().handle(request.clone()).await,
        }
    }

    /// Sends the reply, if anybody still waits for it there.
    fn finish(
        &self,
        core: &Rc<TargetCore>,
        request: &Request,
        mut result: Result<Reply, Errno>,
        refilled: bool,
    ) {
        self.running.set(self.running.get() - 1);
        if self.running.get() == 0 {
            self.idle.wake_all();
        }
        let conn = {
            let mut exports = core.exports.borrow_mut();
            let Some(entry) = exports.get_mut(request.export) else { return };
            let epoch = if refilled {
                entry.refills -= 1;
                Some(request.header.epoch).filter(|epoch| *epoch == entry.rpc.epoch())
            } else {
                let note = entry.notes.remove(&request.execution());
                if let (Some(note), Ok(reply)) = (note, &mut result) {
                    reply.versions = note.versions;
                    reply.tail = note.tail.or(reply.tail.take());
                }
                entry.rpc.finish(request.header.xid, request.header.epoch)
            };
            let conn = epoch.and(entry.conn);
            if let (Some(_), Ok(reply)) = (conn, &result) {
                entry.reply_order.replied(reply.transno);
            }
            conn
        };
        let Some(conn) = conn else { return };
        if core.faults.strikes_change(Fault::ReplyLost, request.opcode.class()) {
            return self.close(conn);
        }
        let unreadable = result.as_ref().is_err_and(|e| *e == Errno::EPROTO);
        let extra = if refilled { flags::RECONSTRUCTED } else { 0 };
        self.send_reply_with(core, conn, &request.header, result, extra);
        if unreadable {
            let what =
                format!("the body of request {} ({:?}) cannot be read", request.header.xid, request.opcode);
            self.protocol_error(core, conn, &what);
        }
    }

    pub(crate) fn send_reply(
        &self,
        core: &TargetCore,
        conn: ConnId,
        request: &Header,
        result: Result<Reply, Errno>,
    ) {
        self.send_reply_with(core, conn, request, result, 0);
    }

    fn send_reply_with(
        &self,
        core: &TargetCore,
        conn: ConnId,
        request: &Header,
        result: Result<Reply, Errno>,
        extra_flags: u32,
    ) {
        let export = self.conns.borrow().get(&conn).and_then(|c| c.export);
        let (epoch, ending) = match export
            .and_then(|id| core.exports.borrow().get(id).map(|e| (e.rpc.epoch(), e.ending.is_some())))
        {
            Some(state) => state,
            None => (request.epoch, false),
        };
        let mut header = Header::new(Kind::Reply, request.opcode);
        header.flags = extra_flags | request.flags & flags::REPLAY;
        header.flags |= if ending { flags::LEASE_ENDING } else { 0 };
        header.xid = request.xid;
        header.tag = request.tag;
        header.epoch = epoch;
        header.job = request.job;
        (header.last_committed, header.last_stable) = core.commit_numbers();
        header.clock_ms = core.clock_ms();
        let reply = result.unwrap_or_else(|error| {
            header.status = error.0;
            Reply::default()
        });
        header.transno = reply.transno;
        let mut body = reply.body;
        if let Some(tail) = &reply.tail {
            header.flags |= tail.flag;
            body.extend_from_slice(&tail.bytes);
            body.extend((tail.bytes.len() as u32).to_le_bytes());
        }
        if reply.versions != PreVersions::default() {
            header.flags |= flags::VERSIONS;
            body.extend(reply.versions.to_vec());
        }
        let frame = Frame { header, body: Bytes::from(body), bulk: reply.bulk };
        self.ctx.push(Effect::Send { conn, frame });
    }

    /// Says once per connection what was wrong, and closes it.
    pub(crate) fn protocol_error(&self, core: &TargetCore, conn: ConnId, what: &str) {
        let from = self.conns.borrow().get(&conn).map(|c| c.from.clone());
        if let Some(from) = from {
            let allowed = core.lines.allow("protocol error", self.ctx.now());
            if let Some(left_out) = allowed {
                tracing::warn!(target_name = %core.name, from, what, left_out,
                    "protocol error: connection closed");
            }
            self.close(conn);
        }
    }
}

/// What is admitted while the target stops: it may be what running requests wait for.
fn ends_others(header: &Header) -> bool {
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

/// What becomes of a request; replies that are rebuilt are counted and bounded.
pub(crate) fn admit(core: &TargetCore, id: ExportId, header: &Header, class: Class) -> Admission {
    let mut exports = core.exports.borrow_mut();
    let Some(entry) = exports.get_mut(id) else { return Admission::Drop };
    match entry.rpc.admit(header, class) {
        Admission::Reply(_) if entry.refills >= RUNNING_MAX => Admission::Error(Errno::EPROTO),
        Admission::Reply(record) => {
            entry.refills += 1;
            Admission::Reply(record)
        }
        other => other,
    }
}
