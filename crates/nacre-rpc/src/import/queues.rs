//! Requests of an import: those that wait in lanes, those that were sent and have no reply, those that are delayed.
//!
//! Invariants: (1) an xid is assigned after the slot was obtained and in the step that computes `last_xid`, so that xids of
//! one tag and of one connection increase; (2) `last_xid` = lowest xid without a reply - 1; (3) each lane has its bound, and
//! requests leave oldest first; (4) a resent request keeps its xid and its tag.

use super::request::Request;
use crate::slots::Slots;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;
use nacre_types::{ConnEpoch, Instant, Xid};
use nacre_wire::{Class, Frame, Header, Kind, Opcode, flags};

/// Pause before a request with the outcome [`nacre_types::ProtocolOutcome::TryLater`] is sent again.
const IN_PROGRESS_PAUSE: Duration = Duration::from_millis(200);

/// The bound that a request counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lane {
    Read,
    Change,
    Close,
    /// Requests that serve callbacks: no bound holds them back.
    Urgent,
}
impl Lane {
    fn of(class: Class) -> Self {
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
    /// Whether it counts against the requests in flight. A CLOSE is bounded by its slot alone: the requests in flight may
    /// wait for it.
    fn counts(self) -> bool {
        matches!(self, Self::Read | Self::Change)
    }
}

/// A request that waits for its slot.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    serial: u64,
    request: Request,
    token: T,
}

/// A request that was sent and has no reply.
#[derive(Debug)]
pub(super) struct Outstanding<T> {
    frame: Frame,
    class: Class,
    token: T,
    /// When the latest copy was sent.
    sent: Instant,
    deadline: Option<Instant>,
}

impl<T> Outstanding<T> {
    /// The request as it was first sent.
    pub(super) fn header(&self) -> &Header {
        &self.frame.header
    }
    pub(super) fn sent(&self) -> Instant {
        self.sent
    }
    pub(super) fn into_parts(self) -> (Frame, T) {
        (self.frame, self.token)
    }
    fn into_request(self) -> (Request, T) {
        let opcode = Opcode::from_number(self.frame.header.opcode).expect("the number came from an Opcode");
        let request = Request {
            opcode,
            class: self.class,
            flags: self.frame.header.flags,
            body: self.frame.body,
            bulk: self.frame.bulk,
            job: self.frame.header.job,
            deadline: self.deadline,
        };
        (request, self.token)
    }
}

/// See the module. `T` is the caller's token of a call.
#[derive(Debug)]
pub(super) struct Queues<T> {
    slots: Slots,
    unreplied: BTreeMap<Xid, Outstanding<T>>,
    reads: VecDeque<Waiting<T>>,
    changes: VecDeque<Waiting<T>>,
    closes: VecDeque<Waiting<T>>,
    urgent: VecDeque<Waiting<T>>,
    /// Requests with the outcome `TryLater`, by the time at which they return to their lane.
    delayed: BTreeMap<(Instant, u64), Waiting<T>>,
    /// Requests that count against `max_rpcs`.
    in_flight: u16,
    next_xid: u64,
    next_serial: u64,
    resent: u64,
}

impl<T> Queues<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: Slots::new(1),
            unreplied: BTreeMap::new(),
            reads: VecDeque::new(),
            changes: VecDeque::new(),
            closes: VecDeque::new(),
            urgent: VecDeque::new(),
            delayed: BTreeMap::new(),
            in_flight: 0,
            next_xid: 1,
            next_serial: 0,
            resent: 0,
        }
    }
    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }
    pub(super) fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }
    /// Requests that were sent again so far.
    pub(super) fn resent(&self) -> u64 {
        self.resent
    }
    /// Requests that were sent and have no reply.
    pub(super) fn in_flight(&self) -> usize {
        self.unreplied.len()
    }
    /// Requests that were not sent yet.
    pub(super) fn waiting(&self) -> usize {
        let queues = [&self.reads, &self.changes, &self.closes, &self.urgent];
        queues.iter().map(|q| q.len()).sum::<usize>() + self.delayed.len()
    }
    /// The request of an xid that has no reply.
    pub(super) fn unreplied(&self, xid: Xid) -> Option<&Frame> {
        self.unreplied.get(&xid).map(|call| &call.frame)
    }

    pub(super) fn last_xid(&self) -> Xid {
        match self.unreplied.first_key_value() {
            Some((first, _)) => Xid(first.0 - 1),
            None => Xid(self.next_xid - 1),
        }
    }
    pub(super) fn take_xid(&mut self) -> Xid {
        let xid = Xid(self.next_xid);
        self.next_xid += 1;
        xid
    }

    pub(super) fn enqueue(&mut self, request: Request, token: T) {
        let waiting = self.waiting_entry(request, token);
        self.queue(Lane::of(waiting.request.class)).push_back(waiting);
    }
    fn waiting_entry(&mut self, request: Request, token: T) -> Waiting<T> {
        self.next_serial += 1;
        Waiting { serial: self.next_serial, request, token }
    }
    fn queue(&mut self, lane: Lane) -> &mut VecDeque<Waiting<T>> {
        match lane {
            Lane::Read => &mut self.reads,
            Lane::Change => &mut self.changes,
            Lane::Close => &mut self.closes,
            Lane::Urgent => &mut self.urgent,
        }
    }

    /// The oldest request that may be sent now.
    pub(super) fn next(&mut self, max_rpcs: u16) -> Option<Waiting<T>> {
        let lane = self.next_lane(max_rpcs)?;
        self.queue(lane).pop_front()
    }
    fn next_lane(&self, max_rpcs: u16) -> Option<Lane> {
        if !self.urgent.is_empty() {
            return Some(Lane::Urgent);
        }
        let room = self.in_flight < max_rpcs;
        let heads = [
            (Lane::Read, self.reads.front().filter(|_| room)),
            (Lane::Change, self.changes.front().filter(|_| room && self.slots.admits(false))),
            (Lane::Close, self.closes.front().filter(|_| self.slots.admits(true))),
        ];
        let oldest = heads.into_iter().filter_map(|(lane, head)| Some((head?.serial, lane)));
        oldest.min_by_key(|(serial, _)| *serial).map(|(_, lane)| lane)
    }

    /// Gives a request of [`Queues::next`] its slot and its xid. Returns the copy to send; `clock` tells its deadline.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        epoch: ConnEpoch,
        waiting: Waiting<T>,
        clock: impl FnOnce(&Header, Option<Instant>) -> u32,
    ) -> Frame {
        let Request { opcode, class, flags, body, bulk, job, deadline } = waiting.request;
        let lane = Lane::of(class);
        let mut header = Header::new(Kind::Request, opcode.number());
        header.flags = flags;
        if lane.has_slot() {
            header.tag = self.slots.take(lane == Lane::Close).expect("next_lane asked for the slot");
        }
        self.in_flight += u16::from(lane.counts());
        header.last_xid = self.last_xid();
        header.xid = self.take_xid();
        header.job = job;
        header.epoch = epoch;
        let frame = Frame { header, body, bulk };
        let mut copy = frame.clone();
        copy.header.clock_ms = clock(&copy.header, deadline);
        let call = Outstanding { frame, class, token: waiting.token, sent: now, deadline };
        self.unreplied.insert(copy.header.xid, call);
        copy
    }

    /// Copies of every request without a reply, in xid order, to be sent again on a new connection.
    pub(super) fn resend(
        &mut self,
        now: Instant,
        epoch: ConnEpoch,
        clock: impl Fn(&Header, Option<Instant>) -> u32,
    ) -> Vec<Frame> {
        let last_xid = self.last_xid();
        self.resent += self.unreplied.len() as u64;
        let copies = self.unreplied.values_mut().map(|call| {
            call.sent = now;
            let mut frame = call.frame.clone();
            frame.header.clock_ms = clock(&frame.header, call.deadline);
            frame.header.flags |= flags::RESENT;
            frame.header.epoch = epoch;
            frame.header.last_xid = last_xid;
            frame
        });
        copies.collect()
    }

    /// Takes the request that a reply belongs to and frees its slot; `None` for a second reply.
    pub(super) fn take(&mut self, reply: &Header) -> Option<Outstanding<T>> {
        let call = self.unreplied.remove(&reply.xid)?;
        self.free(&call);
        Some(call)
    }
    fn free(&mut self, call: &Outstanding<T>) {
        let lane = Lane::of(call.class);
        if lane.has_slot() {
            self.slots.release(call.frame.header.tag, lane == Lane::Close);
        }
        self.in_flight -= u16::from(lane.counts());
    }

    /// Returns a request to its lane after a pause, because its outcome was `TryLater`.
    pub(super) fn delay(&mut self, now: Instant, call: Outstanding<T>) {
        let (request, token) = call.into_request();
        let waiting = self.waiting_entry(request, token);
        self.delayed.insert((now + IN_PROGRESS_PAUSE, waiting.serial), waiting);
    }
    /// When the first delayed request returns to its lane.
    pub(super) fn delayed_until(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|(key, _)| key.0)
    }
    pub(super) fn release_delayed(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            let waiting = first.remove();
            self.queue(Lane::of(waiting.request.class)).push_back(waiting);
        }
    }

    /// Removes the requests that an eviction ends, and returns their tokens. The first ones were sent: changes, closes and
    /// cancels that the evicted export may have executed. The others are changes that no export has executed; the new one
    /// would execute them without the locks of their caller, so that the caller decides. Reads are sent again, they leave
    /// no trace. Closes and cancels that were not sent stay: they release only what the eviction has taken already.
    pub(super) fn take_evicted(&mut self) -> (Vec<T>, Vec<T>) {
        let (mut ended, mut reads) = (Vec::new(), Vec::new());
        for (_, call) in core::mem::take(&mut self.unreplied) {
            self.free(&call);
            match Lane::of(call.class) {
                Lane::Read => reads.push(call),
                Lane::Change | Lane::Close | Lane::Urgent => ended.push(call.token),
            }
        }
        for call in reads.into_iter().rev() {
            let (request, token) = call.into_request();
            // Serial 0: before every request that was not sent yet.
            self.reads.push_front(Waiting { serial: 0, request, token });
        }
        let is_change = |w: &mut Waiting<T>| Lane::of(w.request.class) == Lane::Change;
        let delayed: Vec<_> = self.delayed.extract_if(.., |_, w| is_change(w)).collect();
        let waiting = core::mem::take(&mut self.changes).into_iter();
        let unsent = waiting.chain(delayed.into_iter().map(|(_, w)| w)).map(|w| w.token).collect();
        (ended, unsent)
    }

    /// Removes every request, and returns the tokens. With `keep_urgent` requests that serve callbacks stay: they are sent
    /// when the target is there again.
    pub(super) fn take_all(&mut self, keep_urgent: bool) -> Vec<T> {
        let mut ended = Vec::new();
        for (xid, call) in core::mem::take(&mut self.unreplied) {
            if keep_urgent && Lane::of(call.class) == Lane::Urgent {
                self.unreplied.insert(xid, call);
                continue;
            }
            self.free(&call);
            ended.push(call.token);
        }
        let urgent = if keep_urgent { VecDeque::new() } else { core::mem::take(&mut self.urgent) };
        let queues = [&mut self.closes, &mut self.changes, &mut self.reads];
        let waiting = urgent.into_iter().chain(queues.into_iter().flat_map(core::mem::take));
        ended.extend(waiting.map(|w| w.token));
        ended.extend(core::mem::take(&mut self.delayed).into_values().map(|w| w.token));
        ended
    }
}
