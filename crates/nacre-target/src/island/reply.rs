//! Replies, and the end of a connection that violates the protocol.
//!
//! Invariant: a reply leaves on the epoch of the latest copy of its request or not at all.

use crate::clients::rows::ExportId;
use crate::fault::Fault;
use crate::island::inner::Inner;
use crate::request::{Reply, Request};
use crate::service::Service;
use crate::target_core::TargetCore;
use alloc::format;
use alloc::rc::Rc;
use bytes::Bytes;
use nacre_node::{ConnId, Effect};
use nacre_rpc::PreVersions;
use nacre_types::{Codec, Failure, Transno};
use nacre_wire::{Frame, Header, Kind, flags};

impl<S: Service> Inner<S> {
    /// The transno up to which changes must be committed before the reply to this one may leave.
    pub(crate) fn must_commit(
        &self,
        core: &TargetCore,
        request: &Request,
        transno: Transno,
    ) -> Option<Transno> {
        if !core.config.ack_or_commit || request.replayed_transno().is_some() {
            return None;
        }
        let exports = core.clients().exports();
        exports.get(request.export)?.reply_order.must_commit(transno, core.osd.last_committed())
    }

    /// Ends an execution: sends the reply, if its client still waits for it on this epoch.
    pub(crate) fn finish(
        &self,
        core: &Rc<TargetCore>,
        request: &Request,
        mut result: Result<Reply, Failure>,
        reconstructed: bool,
    ) {
        self.end_work();
        let conn = {
            let mut exports = core.clients().exports_mut();
            let Some(entry) = exports.get_mut(request.export) else { return };
            let epoch = if reconstructed {
                entry.end_reconstruction();
                Some(request.header.epoch).filter(|epoch| *epoch == entry.rpc.epoch())
            } else {
                if let Ok(reply) = &mut result {
                    let mut note = request.note();
                    reply.versions = note.versions;
                    reply.tail = note.tail.take().or(reply.tail.take());
                }
                entry.rpc.finish(request.header.xid, request.header.epoch)
            };
            let conn = epoch.and(entry.conn());
            if let (Some(_), Ok(reply)) = (conn, &result) {
                entry.reply_order.replied(reply.transno);
            }
            conn
        };
        let Some(conn) = conn else { return };
        if core.faults().strikes_change(Fault::ReplyLost, request.opcode.class()) {
            return self.close(conn);
        }
        let unreadable = result.as_ref().is_err_and(|e| *e == Failure::EPROTO);
        let extra = if reconstructed { flags::RECONSTRUCTED } else { 0 };
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
        result: Result<Reply, Failure>,
    ) {
        self.send_reply_with(core, conn, request, result, 0);
    }

    fn send_reply_with(
        &self,
        core: &TargetCore,
        conn: ConnId,
        request: &Header,
        result: Result<Reply, Failure>,
        extra_flags: u32,
    ) {
        let state = |id: ExportId| {
            core.clients().exports().get(id).map(|e| (e.rpc.epoch(), e.lease_ending().is_some()))
        };
        let (epoch, ending) = self.conns().export(conn).and_then(state).unwrap_or((request.epoch, false));
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
            header.status = error.into();
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
        self.ctx().push(Effect::Send { conn, frame });
    }

    /// Logs a violation of the protocol once per connection, and closes it.
    pub(crate) fn protocol_error(&self, core: &TargetCore, conn: ConnId, what: &str) {
        if let Some((from, _)) = self.conns().origin(conn) {
            if let Some(left_out) = core.lines.allow("protocol error", self.ctx().now()) {
                tracing::warn!(target_name = %core.name, from, what, left_out,
                    "protocol error: connection closed");
            }
            self.close(conn);
        }
    }
}
