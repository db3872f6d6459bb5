//! The work after a connect: replay of changes that the target has lost, the end of the replay, resends; and evictions.
//!
//! After a handshake, requests are sent in the order replay, resend, new. Changes are replayed one at a time, in the
//! order of their transnos. Each carries its former reply, because its outcome must be the same as before.

use super::Import;
use super::request::ImportEffect;
use super::session::Link;
use crate::state::ImportState;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Codec, Instant, ProtocolOutcome, Transno, Xid};
use nacre_wire::target::{ExecutedChange, PingReply};
use nacre_wire::{Frame, Header, Kind, Opcode, flags};

impl<T> Import<T> {
    /// Keeps writes that the target has in its log and that have no reply yet: their bytes may be lost. They are replayed
    /// in their turn, before another client can change the same blocks; the reply comes with the resend.
    pub(super) fn keep_unreplied(&mut self, executed: &[ExecutedChange]) {
        for &ExecutedChange { xid, transno } in executed {
            if let Some(request) = self.queues.unreplied(xid) {
                self.commits.keep_unreplied(transno, request.clone());
            }
        }
    }

    pub(super) fn evicted(&mut self, now: Instant, cause: String) {
        self.evictions += 1;
        self.lease.forget();
        self.commits.clear();
        self.forget_callbacks();
        self.enter(now, ImportState::Evicted);
        self.effects.push_back(ImportEffect::Evicted { cause });
        self.fail_evicted();
    }

    /// Begins what the connect has made necessary: the replay, or the resend at once.
    pub(super) fn begin_recovery(&mut self, now: Instant) {
        if self.commits.replay_due() {
            self.enter(now, ImportState::Replay);
            self.replay_next(now);
        } else {
            self.recover(now);
        }
    }

    /// Replays the first change that the target has lost.
    fn replay_next(&mut self, now: Instant) {
        let Some(entry) = self.commits.first() else {
            self.enter(now, ImportState::ReplayLocks); // no lock is cached yet
            return self.send_replay_done(now);
        };
        let Frame { mut header, body, mut bulk } = entry.request;
        let has_parts = Opcode::from_number(header.opcode).is_some_and(Opcode::fails_in_parts);
        if bulk.is_empty() || has_parts {
            bulk.push(entry.reply); // the change must come out as before
        }
        header.flags |= flags::REPLAY;
        header.transno = entry.transno;
        header.last_xid = Xid(0);
        self.session.set_link(Link::Replaying { at: entry.transno, xid: header.xid, sent: now });
        self.send(header, body, bulk);
    }

    pub(super) fn replay_replied(&mut self, now: Instant, frame: &Frame, at: Transno, sent: Instant) {
        if frame.header.status.is(ProtocolOutcome::NothingLost) {
            // The target has lost no change this time; the list is kept for the next.
            self.note_reply(&frame.header, sent);
            return self.send_replay_done(now);
        }
        self.commits.replayed(at, frame.header.xid, frame.header.transno);
        self.note_reply(&frame.header, sent);
        if let Some(error) = frame.header.status.failure() {
            self.effects.push_back(ImportEffect::ReplayFailed { transno: at, error });
        }
        self.replay_next(now);
    }

    /// Announces the end of the replay. Repeated until the target serves all clients.
    pub(super) fn send_replay_done(&mut self, now: Instant) {
        self.enter(now, ImportState::ReplayWait);
        let mut header = Header::new(Kind::Request, Opcode::Ping.number());
        header.flags |= flags::REPLAY_DONE;
        header.last_xid = self.queues.last_xid();
        header.xid = self.take_xid();
        self.session.set_link(Link::ReplayDone { xid: header.xid, sent: now });
        self.send(header, Bytes::new(), Vec::new());
    }

    pub(super) fn replay_done_replied(&mut self, now: Instant, frame: &Frame, sent: Instant) {
        let recovery_ms = PingReply::from_slice(&frame.body).map_or(0, |reply| reply.recovery_ms);
        if recovery_ms > 0 {
            self.note_reply(&frame.header, sent);
            let again_at = now + self.session.recovery_pause(recovery_ms);
            return self.session.set_link(Link::ReplayWait { again_at });
        }
        // Replayed changes are in the list under their newest transno before the reply says which ones are safe.
        self.commits.settle();
        self.commits.end_replay();
        self.session.recovery_ended();
        self.note_reply(&frame.header, sent);
        self.recover(now);
    }

    fn recover(&mut self, now: Instant) {
        self.enter(now, ImportState::Recover);
        self.session.set_link(Link::Up);
        self.resend(now);
        self.enter(now, ImportState::Full);
        self.pump(now);
    }
}
