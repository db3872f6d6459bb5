//! The state that the tasks of an island share.

use crate::island::connections::Connections;
use crate::neighbours::Neighbours;
use crate::service::Service;
use crate::target_core::{TargetConfig, TargetCore};
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::sync::Arc;
use core::cell::{Cell, OnceCell, RefCell};
use nacre_node::{Ctx, Effect, Event, WaitList};
use nacre_osd::OsdConfig;

/// Events that may arrive before the target has started.
const EARLY_MAX: usize = 4096;

/// The state of one island.
pub(crate) struct Inner<S: Service> {
    ctx: Rc<Ctx>,
    config: TargetConfig,
    osd_config: OsdConfig,
    neighbours: OnceCell<Arc<dyn Neighbours>>,
    core: OnceCell<Rc<TargetCore>>,
    service: OnceCell<Rc<S>>,
    conns: Connections,
    /// Events that arrived before the service had started.
    early: RefCell<VecDeque<Event>>,
    /// The start has ended, successfully or not.
    start_ended: Cell<bool>,
    stopping: Cell<bool>,
    /// Requests and clean-ups under execution, for which a planned stop waits.
    running: Cell<usize>,
    /// `running` has become 0, or the start has ended.
    idle: WaitList,
}

impl<S: Service> Inner<S> {
    pub(crate) fn new(ctx: &Rc<Ctx>, config: TargetConfig, osd_config: OsdConfig) -> Self {
        Self {
            ctx: ctx.clone(),
            config,
            osd_config,
            neighbours: OnceCell::new(),
            core: OnceCell::new(),
            service: OnceCell::new(),
            conns: Connections::new(ctx),
            early: RefCell::default(),
            start_ended: Cell::new(false),
            stopping: Cell::new(false),
            running: Cell::new(0),
            idle: ctx.wait_list(),
        }
    }
    pub(crate) fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    pub(crate) fn config(&self) -> &TargetConfig {
        &self.config
    }
    pub(crate) fn osd_config(&self) -> &OsdConfig {
        &self.osd_config
    }
    pub(crate) fn conns(&self) -> &Connections {
        &self.conns
    }

    // ---- start

    pub(crate) fn neighbours(&self) -> Option<&Arc<dyn Neighbours>> {
        self.neighbours.get()
    }
    pub(crate) fn set_neighbours(&self, neighbours: Arc<dyn Neighbours>) {
        let _first = self.neighbours.set(neighbours);
    }
    pub(crate) fn core(&self) -> Option<&Rc<TargetCore>> {
        self.core.get()
    }
    pub(crate) fn set_core(&self, core: &Rc<TargetCore>) -> Result<(), String> {
        self.core.set(core.clone()).map_err(|_| String::from("the target was started twice"))
    }
    pub(crate) fn service(&self) -> Option<&Rc<S>> {
        self.service.get()
    }
    pub(crate) fn set_service(&self, service: Rc<S>) -> Result<(), String> {
        self.service.set(service).map_err(|_| String::from("the target was started twice"))
    }
    /// Core and service, once the service has started.
    pub(crate) fn started(&self) -> Option<(&Rc<TargetCore>, &Rc<S>)> {
        Some((self.core.get()?, self.service.get()?))
    }
    pub(crate) fn end_start(&self) {
        self.start_ended.set(true);
        self.idle.wake_all();
    }
    /// Keeps an event until the service has started. Beyond the bound its connection is closed, and the client tries again.
    pub(crate) fn keep_early(&self, event: Event) {
        let mut early = self.early.borrow_mut();
        if early.len() < EARLY_MAX {
            early.push_back(event);
        } else if let Event::Accepted { conn, .. } | Event::Frame { conn, .. } = event {
            self.ctx.push(Effect::Close { conn });
        }
    }
    pub(crate) fn take_early(&self) -> Option<Event> {
        self.early.borrow_mut().pop_front()
    }

    // ---- stop

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }
    pub(crate) fn begin_stop(&self) {
        self.stopping.set(true);
    }
    pub(crate) fn has_start_ended(&self) -> bool {
        self.start_ended.get()
    }
    pub(crate) fn is_idle(&self) -> bool {
        self.running.get() == 0
    }
    pub(crate) async fn wait_idle(&self) {
        self.idle.wait().await;
    }
    /// A request or clean-up begins.
    pub(crate) fn begin_work(&self) {
        self.running.set(self.running.get() + 1);
    }
    /// A request or clean-up has ended.
    pub(crate) fn end_work(&self) {
        self.running.set(self.running.get() - 1);
        if self.is_idle() {
            self.idle.wake_all();
        }
    }
}
