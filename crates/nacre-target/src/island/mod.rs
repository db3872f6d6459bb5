//! The island of a target: events go in, requests become tasks, effects come out.
//!
//! - `inner.rs`: the state that the tasks share; `connections.rs`: the inbound connections.
//! - `start.rs`: start and planned stop.
//! - `route.rs`: passes each event to an import, to the service or to a connection; connections without a lease.
//! - `connect.rs`: admission of a peer as a client; `contest.rs`: two processes in the name of one target.
//! - `export_end.rs`: the end of an export.
//! - `dispatch.rs`: admission and execution of requests; `reply.rs`: replies.
//! - `reap.rs`: evictions; `replay.rs`: recovery.
//!
//! Invariants: a request is admitted only between the start of the service and the beginning of a planned stop. Events
//! that arrive earlier are queued (the queue is bounded). Events that arrive later are dropped: their senders reconnect
//! and resend to the next instance. Each request that has to wait is a task of its own.

mod connect;
mod connections;
mod contest;
mod dispatch;
mod export_end;
mod inner;
mod reap;
mod replay;
mod reply;
mod route;
mod start;

use crate::neighbours::Neighbours;
use crate::service::Service;
use crate::target_core::{TargetConfig, TargetCore};
use alloc::rc::Rc;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use inner::Inner;
use nacre_node::{Ctx, Event, Logic, StoreError, StoreOp};
use nacre_osd::OsdConfig;

/// A served target.
pub struct TargetIsland<S: Service> {
    inner: Rc<Inner<S>>,
}

impl<S: Service> TargetIsland<S> {
    /// A target that opens its store and starts the service at [`Event::Start`].
    pub fn new(ctx: &Rc<Ctx>, config: TargetConfig, mut osd: OsdConfig) -> Self {
        S::tune(&mut osd);
        Self { inner: Rc::new(Inner::new(ctx, config, osd)) }
    }
    /// Connects the target with the others in its process. Call before it starts.
    pub fn with_neighbours(self, neighbours: Arc<dyn Neighbours>) -> Self {
        self.inner.set_neighbours(neighbours);
        self
    }
    /// The core, once the service has started: for drivers in the same process and for tests.
    pub fn core(&self) -> Option<&Rc<TargetCore>> {
        self.inner.started().map(|(core, _)| core)
    }
    /// The service, once it has started.
    pub fn service(&self) -> Option<&Rc<S>> {
        self.inner.service()
    }
}

impl<S: Service> Logic for TargetIsland<S> {
    fn ctx(&self) -> &Rc<Ctx> {
        self.inner.ctx()
    }
    fn handle(&mut self, event: Event) {
        match event {
            Event::Start => {
                self.inner.ctx().spawn(self.inner.clone().start());
            }
            Event::Stop => {
                self.inner.ctx().spawn(self.inner.clone().stop());
            }
            other => self.inner.route(other),
        }
    }
    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        if let Some(core) = self.inner.core() {
            core.osd.log_writes(out);
            if core.ctx.is_barred() {
                out.clear();
            }
            core.faults().end_of_visit(&core.ctx);
        }
    }
    fn log_failed(&mut self, error: &StoreError) {
        if let Some(core) = self.inner.core() {
            core.osd.log_failed(&error.to_string());
        }
    }
}
