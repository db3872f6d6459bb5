//! How an import sends: new requests while the lease may be used, resends after a reconnect, and the end of calls.

use super::Import;
use super::request::{CallError, ImportEffect};
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_types::{Instant, Xid};
use nacre_wire::{Frame, Header};

impl<T> Import<T> {
    pub(super) fn take_xid(&mut self) -> Xid {
        self.queues.take_xid()
    }
    /// Sends a frame on the current connection.
    pub(super) fn send(&mut self, mut header: Header, body: Bytes, bulk: Vec<Bytes>) {
        let epoch = self.session.epoch();
        header.epoch = epoch;
        self.effects.push_back(ImportEffect::Send { epoch, frame: Frame { header, body, bulk } });
    }

    /// Sends the requests that may be sent now, oldest first.
    pub(super) fn pump(&mut self, now: Instant) {
        if !self.session.is_up() || !self.lease.ok(now) {
            return;
        }
        let (epoch, lease) = (self.session.epoch(), self.lease.length());
        while let Some(waiting) = self.queues.next(self.config.max_rpcs) {
            let deadlines = &self.deadlines;
            let frame = self.queues.begin(now, epoch, waiting, |header, deadline| {
                deadlines.clock_at(now, header, deadline, lease)
            });
            self.keepalive.acknowledged();
            self.effects.push_back(ImportEffect::Send { epoch, frame });
        }
    }

    /// Sends every request without a reply again, in xid order, with its old xid and tag.
    pub(super) fn resend(&mut self, now: Instant) {
        let (epoch, lease, deadlines) = (self.session.epoch(), self.lease.length(), &self.deadlines);
        let copies = self
            .queues
            .resend(now, epoch, |header, deadline| deadlines.clock_at(now, header, deadline, lease));
        self.effects.extend(copies.into_iter().map(|frame| ImportEffect::Send { epoch, frame }));
    }

    pub(super) fn done(&mut self, token: T, result: Result<Frame, CallError>) {
        self.effects.push_back(ImportEffect::Done { token, result });
    }
    fn fail(&mut self, tokens: Vec<T>, error: CallError) {
        tokens.into_iter().for_each(|token| self.done(token, Err(error)));
    }
    /// Ends every call, sent or not.
    pub(super) fn fail_all(&mut self, error: CallError) {
        let ended = self.queues.take_all(false);
        self.fail(ended, error);
    }
    /// Ends every call except those that serve callbacks.
    pub(super) fn fail_calls(&mut self, error: CallError) {
        let ended = self.queues.take_all(true);
        self.fail(ended, error);
    }
    /// Ends the calls that an eviction ends.
    pub(super) fn fail_evicted(&mut self) {
        let (sent, unsent) = self.queues.take_evicted();
        self.fail(sent, CallError::Evicted);
        self.fail(unsent, CallError::EvictedUnsent);
    }
}
