//! The events of a peer's connection, the effects of its import, and the task that keeps the import's deadlines.

use super::{Peer, PendingCall};
use crate::event::{ConnId, Effect, Event};
use alloc::rc::Rc;
use nacre_rpc::{Import, ImportEffect, ImportState};
use nacre_types::Instant;

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
            ImportEffect::Open { epoch, address } => {
                let conn = self.ctx.next_conn();
                self.forget_conn();
                self.conn.set(Some((conn, epoch)));
                self.peers.register(conn, self.me.clone());
                self.ctx.push(Effect::Open { conn, address, target: self.target.clone() });
            }
            ImportEffect::Send { epoch, frame } => {
                if let Some((conn, current)) = self.conn.get()
                    && current == epoch
                {
                    self.ctx.push(Effect::Send { conn, frame });
                }
            }
            ImportEffect::Close { epoch } => {
                if let Some((conn, current)) = self.conn.get()
                    && current == epoch
                {
                    self.forget_conn();
                    self.ctx.push(Effect::Close { conn });
                }
            }
            ImportEffect::Done { token, result } => {
                token.fulfil(result);
                self.changed.wake_all();
            }
            ImportEffect::Callback { frame } => {
                let handler = self.on_callback.borrow().clone();
                match handler {
                    Some(handler) => handler(&frame),
                    None => tracing::warn!(target_name = %self.target, opcode = frame.header.opcode,
                        "callback without a handler"),
                }
                self.import.borrow_mut().callback_done(frame.header.xid);
            }
            ImportEffect::Evicted { cause } => {
                tracing::warn!(target_name = %self.target, client = %self.name, cause,
                    "evicted by the target: locks and opens there are gone, the import reconnects");
                let handler = self.on_evicted.borrow().clone();
                if let Some(handler) = handler {
                    handler();
                }
            }
            ImportEffect::ReplacedConnection { from } => {
                tracing::warn!(target_name = %self.target, client = %self.name, from,
                    "another host was connected with the identity of this client: its connection is closed");
            }
            ImportEffect::State { state } => self.entered(state),
            ImportEffect::Recovering { seconds } => {
                tracing::warn!(target_name = %self.target, client = %self.name, seconds,
                    "waiting: the target is in recovery and takes new clients when those that it knows have come back, \
                     after so many seconds at the latest");
                self.changed.wake_all();
            }
            ImportEffect::PingReplied { process, sent } => {
                for peer in self.peers.connected() {
                    peer.import.borrow_mut().handle_neighbour(self.ctx.now(), process, sent);
                    peer.drain();
                }
            }
            ImportEffect::Restarted { instance } => {
                tracing::info!(target_name = %self.target, instance, "the target was restarted");
                let handler = self.on_restarted.borrow().clone();
                if let Some(handler) = handler {
                    handler();
                }
            }
            ImportEffect::ReplayFailed { transno, error } => {
                tracing::error!(target_name = %self.target, %transno, %error,
                    "a change that the target lost could not be replayed: the target evicts this client");
            }
            ImportEffect::Mismatch { why } => {
                tracing::error!(target_name = %self.target, client = %self.name,
                    "the target is not used, calls that need it fail with EIO: {why}");
                self.changed.wake_all();
            }
            ImportEffect::Lost { reason } => {
                tracing::debug!(target_name = %self.target, reason, "not connected");
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

    fn entered(&self, state: ImportState) {
        tracing::debug!(target_name = %self.target, %state, "import");
        if state == ImportState::Full {
            let import = self.import.borrow();
            if let Some((_, server)) = import.server_time() {
                let offset = server.as_nanos() - self.ctx.wall().as_nanos();
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
