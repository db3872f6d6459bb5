//! What an import sends when: requests wait in lanes, each with its bound, and go oldest first; what was not answered goes
//! again with its old xid and tag.

use crate::connection::Link;
use crate::import::{CallError, Import, ImportEffect, Outstanding, Request, Waiting};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use nacre_types::{Instant, ProtocolOutcome, Xid};
use nacre_wire::{Class, Frame, Header, Kind, Opcode, Status, flags};

/// Which bound a request counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Read,
    Change,
    Close,
    Urgent,
}
impl Lane {
    pub(crate) fn of(class: Class) -> Self {
        match class {
            Class::Read | Class::Import => Self::Read,
            Class::Modify => Self::Change,
            Class::Close => Self::Close,
            Class::Callback => Self::Urgent,
        }
    }
    fn has_slot(self) -> bool {
        matches!(self, Self::Change | Self::Close)
    }
    /// A CLOSE is bounded by its slot alone: it may be what the requests in flight wait for.
    fn counts(self) -> bool {
        matches!(self, Self::Read | Self::Change)
    }
}

impl<T> Import<T> {
    pub(crate) fn last_xid(&self) -> Xid {
        match self.unreplied.first_key_value() {
            Some((first, _)) => Xid(first.0 - 1),
            None => Xid(self.next_xid - 1),
        }
    }
    pub(crate) fn take_xid(&mut self) -> Xid {
        let xid = Xid(self.next_xid);
        self.next_xid += 1;
        xid
    }
    /// Sends on the current connection.
    pub(crate) fn send(&mut self, mut header: Header, body: Bytes, bulk: Vec<Bytes>) {
        header.epoch = self.epoch;
        self.effects.push_back(ImportEffect::Send { epoch: self.epoch, frame: Frame { header, body, bulk } });
    }

    /// Sends what may be sent, oldest first.
    pub(crate) fn pump(&mut self, now: Instant) {
        if self.link != Link::Up || !self.lease.ok(now) {
            return;
        }
        while let Some(lane) = self.next_lane() {
            let waiting = self.queue(lane).pop_front().expect("next_lane looked at this head");
            self.send_first(now, lane, waiting);
        }
    }

    /// The queue with the oldest request that may go now.
    fn next_lane(&self) -> Option<Lane> {
        if !self.urgent.is_empty() {
            return Some(Lane::Urgent);
        }
        let room = self.in_flight < self.config.max_rpcs;
        let heads = [
            (Lane::Read, self.reads.front().filter(|_| room)),
            (Lane::Change, self.changes.front().filter(|_| room && self.slots.admits(false))),
            (Lane::Close, self.closes.front().filter(|_| self.slots.admits(true))),
        ];
        heads
            .into_iter()
            .filter_map(|(lane, head)| Some((head?.serial, lane)))
            .min_by_key(|h| h.0)
            .map(|h| h.1)
    }

    fn send_first(&mut self, now: Instant, lane: Lane, waiting: Waiting<T>) {
        let Request { opcode, class, flags, body, bulk, job, until } = waiting.request;
        let mut header = Header::new(Kind::Request, opcode.number());
        header.flags = flags;
        if lane.has_slot() {
            header.tag = self.slots.take(lane == Lane::Close).expect("next_lane asked for the slot");
        }
        self.in_flight += u16::from(lane.counts());
        header.last_xid = self.last_xid();
        header.xid = self.take_xid();
        header.job = job;
        header.epoch = self.epoch;
        let frame = Frame { header, body, bulk };
        let mut copy = frame.clone();
        copy.header.clock_ms = self.clock_at(now, opcode.number(), until);
        let call = Outstanding { frame, class, token: waiting.token, sent: now, until };
        self.unreplied.insert(copy.header.xid, call);
        self.ack_at = None;
        self.effects.push_back(ImportEffect::Send { epoch: self.epoch, frame: copy });
    }

    /// Sends every unanswered request again, in xid order, with its old xid and tag.
    pub(crate) fn resend(&mut self, now: Instant) {
        let last_xid = self.last_xid();
        let mut unreplied = core::mem::take(&mut self.unreplied);
        for call in unreplied.values_mut() {
            call.sent = now;
            let mut frame = call.frame.clone();
            frame.header.clock_ms = self.clock_at(now, frame.header.opcode, call.until);
            frame.header.flags |= flags::RESENT;
            frame.header.epoch = self.epoch;
            frame.header.last_xid = last_xid;
            self.effects.push_back(ImportEffect::Send { epoch: self.epoch, frame });
        }
        self.resent += unreplied.len() as u64;
        self.unreplied = unreplied;
    }

    /// A slow network must not keep out for ever what is not bound to the lease of another target.
    pub(crate) fn note_duration(&mut self, call: &Outstanding<T>, status: Status, now: Instant) {
        if !status.is(ProtocolOutcome::DeadlinePassed) && self.patience.is_zero() {
            return;
        }
        if Opcode::from_number(call.frame.header.opcode).is_some_and(Opcode::changes_object) {
            let patience = (now.saturating_since(call.sent) * 2).max(self.patience * 7 / 8);
            self.patience = if patience > self.lease.length() / 4 { patience } else { Duration::ZERO };
        }
    }

    /// What the target's clock shows at most when a change may be begun at the latest; 0 when its clock is not known.
    fn clock_at(&self, now: Instant, opcode: u16, until: Option<Instant>) -> u32 {
        let (true, Some((shown, at))) =
            (Opcode::from_number(opcode).is_some_and(Opcode::changes_object), self.clock)
        else {
            return 0;
        };
        let until = until.unwrap_or(now + self.patience.max(self.lease.length() / 4));
        let (to_come, over) = (until.saturating_since(at), at.saturating_since(until));
        shown.wrapping_add(to_come.as_millis() as u32).wrapping_sub(over.as_millis() as u32).max(1)
    }

    /// Ends every change that was called for before the eviction was known: the evicted export may have executed it, or
    /// the new one would execute it without the locks under which its caller called. Reads go again under the new
    /// export: they leave no trace. Closes and cancels that were not sent may go: they only give up what is gone.
    pub(crate) fn fail_evicted(&mut self) {
        let mut reads = Vec::new();
        for (_, call) in core::mem::take(&mut self.unreplied) {
            self.free(&call);
            match Lane::of(call.class) {
                Lane::Read => reads.push(call),
                Lane::Change | Lane::Close | Lane::Urgent => {
                    self.done(call.token, Err(CallError::Evicted));
                }
            }
        }
        for call in reads.into_iter().rev() {
            let (request, token) = call.into_request();
            // Serial 0: before everything that has not been sent yet.
            self.reads.push_front(Waiting { serial: 0, request, token });
        }
        let is_change = |w: &mut Waiting<T>| Lane::of(w.request.class) == Lane::Change;
        let delayed: Vec<_> = self.delayed.extract_if(.., |_, w| is_change(w)).collect();
        let unsent = core::mem::take(&mut self.changes).into_iter();
        for w in unsent.chain(delayed.into_iter().map(|(_, w)| w)).collect::<Vec<_>>() {
            self.done(w.token, Err(CallError::Evicted));
        }
    }

    /// Ends everything, sent or not.
    pub(crate) fn fail_all(&mut self, error: CallError) {
        for (_, call) in core::mem::take(&mut self.unreplied) {
            self.free(&call);
            self.done(call.token, Err(error));
        }
        let delayed = core::mem::take(&mut self.delayed).into_values();
        let queues = [&mut self.urgent, &mut self.closes, &mut self.changes, &mut self.reads];
        let waiting: Vec<_> = queues.into_iter().flat_map(core::mem::take).chain(delayed).collect();
        for w in waiting {
            self.done(w.token, Err(error));
        }
    }

    /// Requests whose pause is over go back to their queue.
    pub(crate) fn release_delayed(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let waiting = first.remove();
            self.queue(Lane::of(waiting.request.class)).push_back(waiting);
        }
    }

    pub(crate) fn free(&mut self, call: &Outstanding<T>) {
        let lane = Lane::of(call.class);
        if lane.has_slot() {
            self.slots.release(call.frame.header.tag, lane == Lane::Close);
        }
        self.in_flight -= u16::from(lane.counts());
    }
    fn queue(&mut self, lane: Lane) -> &mut VecDeque<Waiting<T>> {
        match lane {
            Lane::Read => &mut self.reads,
            Lane::Change => &mut self.changes,
            Lane::Close => &mut self.closes,
            Lane::Urgent => &mut self.urgent,
        }
    }
    pub(crate) fn waiting_entry(&mut self, request: Request, token: T) -> Waiting<T> {
        self.next_serial += 1;
        Waiting { serial: self.next_serial, request, token }
    }
    pub(crate) fn enqueue(&mut self, request: Request, token: T) {
        let waiting = self.waiting_entry(request, token);
        self.queue(Lane::of(waiting.request.class)).push_back(waiting);
    }
    pub(crate) fn done(&mut self, token: T, result: Result<Frame, CallError>) {
        self.effects.push_back(ImportEffect::Done { token, result });
    }
}

impl<T> Outstanding<T> {
    pub(crate) fn into_request(self) -> (Request, T) {
        let opcode = Opcode::from_number(self.frame.header.opcode).expect("the number came from an Opcode");
        let request = Request {
            opcode,
            class: self.class,
            flags: self.frame.header.flags,
            body: self.frame.body,
            bulk: self.frame.bulk,
            job: self.frame.header.job,
            until: self.until,
        };
        (request, self.token)
    }
}
