//! Frames from the target: replies to calls, replies to the import's own requests, callbacks.

use super::Import;
use super::request::ImportEffect;
use super::session::Link;
use nacre_types::{Codec, ConnEpoch, Instant, ProtocolOutcome, Transno, Xid};
use nacre_wire::target::PingReply;
use nacre_wire::{Frame, Header, Kind, flags};

impl<T> Import<T> {
    /// Processes a frame that has arrived on the connection `epoch`.
    pub fn handle_frame(&mut self, now: Instant, epoch: ConnEpoch, frame: Frame) {
        let current = self.session.epoch();
        if epoch != current || frame.header.epoch != current || !self.session.link().is_open() {
            return; // a frame of a closed connection
        }
        self.session.received(now);
        match frame.header.kind {
            Kind::Reply => {
                self.deadlines.set_clock(now, frame.header.clock_ms);
                self.handle_reply(now, frame);
            }
            Kind::Callback => self.handle_callback(now, frame),
            Kind::Hello | Kind::HelloReply | Kind::Request | Kind::CallbackAck | Kind::Ack => {
                self.lose(now, "the target sent a frame that only clients send");
            }
        }
    }

    fn handle_reply(&mut self, now: Instant, frame: Frame) {
        if self.handle_own_reply(now, &frame) {
            return;
        }
        if frame.header.has(flags::REPLAY) {
            return; // a second reply to a replay: the call itself may still wait for its own
        }
        let Some(call) = self.queues.take(&frame.header) else {
            return; // a second reply
        };
        let status = frame.header.status;
        self.note_reply(&frame.header, call.sent());
        self.deadlines.note_duration(now, call.header(), call.sent(), status, self.lease.length());
        if status.is(ProtocolOutcome::TryLater) {
            self.queues.delay(now, call);
        } else {
            if frame.header.transno > Transno(0) {
                self.keepalive.wants_ack(now);
            }
            let (request, token) = call.into_parts();
            self.commits.keep(request, &frame);
            self.done(token, Ok(frame));
        }
        self.pump(now);
    }

    /// Takes lease and commit numbers from a reply to a request that was sent at `sent`.
    pub(super) fn note_reply(&mut self, header: &Header, sent: Instant) {
        if !header.has(flags::LEASE_ENDING) {
            self.lease.renew(sent);
        }
        self.keepalive.replied(sent);
        self.commits.learn(header);
    }

    /// Processes a reply to a request of the import itself; false if it is none.
    fn handle_own_reply(&mut self, now: Instant, frame: &Frame) -> bool {
        let xid = frame.header.xid;
        match self.session.link() {
            Link::Connecting { xid: own, sent } if xid == own => self.connect_replied(now, frame, sent),
            Link::Replaying { at, xid: own, sent } if xid == own => {
                self.replay_replied(now, frame, at, sent);
            }
            Link::ReplayDone { xid: own, sent } if xid == own => {
                self.replay_done_replied(now, frame, sent);
            }
            Link::Leaving { xid: own, .. } if xid == own => self.end(now),
            Link::Down { .. }
            | Link::Opening { .. }
            | Link::Connecting { .. }
            | Link::Queued { .. }
            | Link::Replaying { .. }
            | Link::ReplayDone { .. }
            | Link::ReplayWait { .. }
            | Link::Up
            | Link::Leaving { .. }
            | Link::Gone => match self.keepalive.ping() {
                Some((own, sent)) if xid == own => self.ping_replied(now, frame, sent),
                _ => return false,
            },
        }
        true
    }

    fn ping_replied(&mut self, now: Instant, frame: &Frame, sent: Instant) {
        self.keepalive.forget_ping();
        self.note_reply(&frame.header, sent);
        if let Ok(reply) = PingReply::from_slice(&frame.body) {
            self.admitted.set_config_version(reply.config_version);
            let process = (reply.process, reply.ended);
            self.note_process(&frame.header, process);
            if process.0 != 0 {
                self.effects.push_back(ImportEffect::PingReplied { process, sent });
            }
        }
        self.pump(now);
    }
    /// Takes the server process from a reply; a process that is about to end a lease renews no neighbour.
    pub(super) fn note_process(&mut self, header: &Header, process: (u64, u64)) {
        match header.has(flags::LEASE_ENDING) {
            true => self.keepalive.forget_process(),
            false => self.keepalive.set_process(process),
        }
    }

    fn handle_callback(&mut self, now: Instant, frame: Frame) {
        if matches!(self.session.link(), Link::Connecting { .. } | Link::Queued { .. }) {
            // Its number has no meaning before the target has named its instance.
            return self.lose(now, "a callback before the reply to connect");
        }
        if frame.header.xid <= self.callback_seen {
            self.callback_done(frame.header.xid); // the acknowledgement was lost
            return;
        }
        if frame.header.xid.0 > self.callback_seen.0 + 1 {
            // The target sends the missing ones again, in order, on the next connection.
            return self.lose(now, "a callback is missing");
        }
        self.callback_seen = frame.header.xid;
        self.effects.push_back(ImportEffect::Callback { frame });
    }
    /// Callback numbers begin anew with each instance and each export.
    pub(super) fn forget_callbacks(&mut self) {
        self.callback_seen = Xid(0);
    }
}
