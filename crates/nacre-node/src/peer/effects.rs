//! The events of a peer's connection, the effects of its import, and the task that keeps the import's deadlines.

use super::{Handler, Peer, PendingCall};
use crate::event::{ConnId, Effect, Event};
use alloc::rc::Rc;
use alloc::string::String;
use core::cell::RefCell;
use nacre_rpc::{Import, ImportEffect, ImportState};
use nacre_types::{ConnEpoch, Instant};
use nacre_wire::Frame;

impl Peer {
    pub(super) fn handle(&self, conn: ConnId, event: Event) {
        let Some((current, epoch)) = self.conn.get() else { return };
        if current != conn {
            return;
        }
        let now = self.ctx.now();
        match event {
            Event::Opened { .. } => {
                self.absent.set(false);
                self.import.borrow_mut().handle_opened(now, epoch);
            }
            Event::Frame { frame, .. } => {
                let mut import = self.import.borrow_mut();
                let numbers =
                    |i: &Import<PendingCall>| (i.config_version(), i.last_committed(), i.last_stable());
                let before = numbers(&import);
                import.handle_frame(now, epoch, frame);
                if numbers(&import) != before {
                    self.changed.wake_all();
                }
            }
            Event::Closed { reason, absent, .. } => {
                self.forget_conn();
                self.absent.set(absent);
                self.import.borrow_mut().handle_closed(now, epoch, &reason);
            }
            Event::Start
            | Event::Accepted { .. }
            | Event::IoDone { .. }
            | Event::Timer
            | Event::Door(_)
            | Event::Stop => {}
        }
        self.drain();
    }

    fn forget_conn(&self) {
        if let Some((conn, _)) = self.conn.take() {
            self.peers.remove(conn);
        }
    }

    /// Carries out the effects of the import.
    pub(super) fn drain(&self) {
        loop {
            let Some(effect) = self.import.borrow_mut().poll_effect() else { break };
            self.carry_out(effect);
        }
        if self.outage.was_logged() {
            self.log_outage();
        }
        if self.deadline().is_some_and(|at| at < self.armed.get()) {
            self.rearm.wake_all();
        }
    }
    fn deadline(&self) -> Option<Instant> {
        let import = self.import.borrow();
        [import.poll_deadline(), self.outage.deadline(&import)].into_iter().flatten().min()
    }
    fn log_outage(&self) {
        let names = (self.name.as_str(), self.target.as_str());
        self.outage.handle(self.ctx.now(), &self.import.borrow(), names, self.peers.outage_lines());
    }

    fn carry_out(&self, effect: ImportEffect<PendingCall>) {
        match effect {
            ImportEffect::Open { epoch, address } => self.open(epoch, address),
            ImportEffect::Send { epoch, frame } => {
                if let Some(conn) = self.conn_of(epoch) {
                    self.ctx.push(Effect::Send { conn, frame });
                }
            }
            ImportEffect::Close { epoch } => {
                if let Some(conn) = self.conn_of(epoch) {
                    self.forget_conn();
                    self.ctx.push(Effect::Close { conn });
                }
            }
            ImportEffect::Done { token, result } => {
                token.fulfil(result);
                self.changed.wake_all();
            }
            ImportEffect::Callback { frame } => self.deliver(&frame),
            ImportEffect::Evicted { .. } => {
                self.log(&effect);
                call(&self.on_evicted);
            }
            ImportEffect::State { state } => self.entered(state),
            ImportEffect::PingReplied { process, sent } => {
                for peer in self.peers.connected() {
                    peer.import.borrow_mut().handle_neighbour(self.ctx.now(), process, sent);
                    peer.drain();
                }
            }
            ImportEffect::Restarted { .. } => {
                self.log(&effect);
                call(&self.on_restarted);
            }
            ImportEffect::ReplacedConnection { .. } | ImportEffect::ReplayFailed { .. } => self.log(&effect),
            ImportEffect::Recovering { .. } | ImportEffect::Mismatch { .. } | ImportEffect::Lost { .. } => {
                self.log(&effect);
                self.changed.wake_all();
            }
            ImportEffect::Stopped => {
                self.forget_conn();
                self.stopped.set(true);
                self.rearm.wake_all();
                self.changed.wake_all();
            }
        }
    }

    fn open(&self, epoch: ConnEpoch, address: String) {
        let conn = self.ctx.next_conn();
        self.forget_conn();
        self.conn.set(Some((conn, epoch)));
        self.peers.register(conn, self.me.clone());
        self.ctx.push(Effect::Open { conn, address, target: self.target.clone() });
    }
    /// The connection of this epoch, if it is the one in use.
    fn conn_of(&self, epoch: ConnEpoch) -> Option<ConnId> {
        self.conn.get().filter(|(_, current)| *current == epoch).map(|(conn, _)| conn)
    }
    /// Has the handler process a callback, then acknowledges it.
    fn deliver(&self, frame: &Frame) {
        let handler = self.on_callback.borrow().clone();
        match handler {
            Some(handler) => handler(frame),
            None => tracing::warn!(target_name = %self.target, opcode = frame.header.opcode,
                "callback without a handler"),
        }
        self.import.borrow_mut().callback_done(frame.header.xid);
    }

    /// The log line of an effect, if it has one.
    fn log(&self, effect: &ImportEffect<PendingCall>) {
        let (target, client) = (&self.target, &self.name);
        match effect {
            ImportEffect::Evicted { cause } => tracing::warn!(target_name = %target, %client, cause,
                "evicted by the target: its locks and open files there are lost; the client connects again"),
            ImportEffect::ReplacedConnection { from } => tracing::warn!(target_name = %target, %client, from,
                "another host was connected with the identity of this client: its connection is closed"),
            ImportEffect::Recovering { seconds } => tracing::warn!(target_name = %target, %client, seconds,
                "waiting: the target is in recovery and takes new clients when those that it knows have come back, \
                 after so many seconds at the latest"),
            ImportEffect::Restarted { instance } => {
                tracing::info!(target_name = %target, instance, "the target was restarted");
            }
            ImportEffect::ReplayFailed { transno, error } => {
                tracing::error!(target_name = %target, %transno, %error,
                "a change that the target lost could not be replayed: the target evicts this client")
            }
            ImportEffect::Mismatch { why } => tracing::error!(target_name = %target, %client,
                "the target is not used, calls that need it fail with EIO: {why}"),
            ImportEffect::Lost { reason } => tracing::debug!(target_name = %target, reason, "not connected"),
            ImportEffect::Open { .. }
            | ImportEffect::Send { .. }
            | ImportEffect::Close { .. }
            | ImportEffect::Done { .. }
            | ImportEffect::Callback { .. }
            | ImportEffect::State { .. }
            | ImportEffect::PingReplied { .. }
            | ImportEffect::Stopped => {}
        }
    }

    fn entered(&self, state: ImportState) {
        tracing::debug!(target_name = %self.target, %state, "import");
        if state == ImportState::Full {
            let import = self.import.borrow();
            if let Some(server) = import.server_time() {
                // The target has read its clock between these moments. No more is corrected than that proves: hosts whose
                // clocks agree, and all processes of one host, have the same time.
                let (now, wall) = (self.ctx.now(), self.ctx.wall().as_nanos());
                let ahead_of = |moment| {
                    let ago = i128::try_from((now - moment).as_nanos()).unwrap_or(0);
                    server.wall.as_nanos() + ago - wall
                };
                let offset = 0.clamp(ahead_of(server.replied), ahead_of(server.sent));
                self.wall_offset_ns.set(i64::try_from(offset).unwrap_or(0));
            }
            if !self.outage.was_logged() {
                tracing::info!(target_name = %self.target, address = import.current_address(), "connected");
            }
        }
        self.changed.wake_all();
    }

    pub(super) async fn keep_deadlines(self: Rc<Self>) {
        while !self.stopped.get() {
            match self.deadline() {
                Some(at) if at <= self.ctx.now() => {
                    self.import.borrow_mut().handle_timeout(self.ctx.now());
                    self.log_outage();
                    self.drain();
                    self.changed.wake_all();
                }
                Some(at) => {
                    self.armed.set(at);
                    self.ctx.timeout(at, self.rearm.wait()).await;
                }
                None => {
                    self.armed.set(Instant(u64::MAX));
                    self.rearm.wait().await;
                }
            }
        }
    }
}

/// Calls a handler, if one is set. It may set another one.
fn call(handler: &RefCell<Option<Rc<Handler>>>) {
    let handler = handler.borrow().clone();
    if let Some(handler) = handler {
        handler();
    }
}
