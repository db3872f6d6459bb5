//! The island of a mount: takes requests of the kernel and sends their replies; also serves tools that ask about the mount.
//!
//! It owns the client core. This crate uses std, but the value lives inside an island, so the rules of islands apply:
//! no thread-locals, no globals, no clock, no I/O; only effects leave, which are `Send`.

use crate::client_ops::ClientOps;
use crate::door::{Door, FuseEffect};
use crate::ops::Ops;
use crate::tools;
use nacre_client::{Client, MountConfig};
use nacre_node::{Ctx, Effect, Event, Logic, StoreOp};
use nacre_wire::params::{Arm, BoundParam, FrontParam, bind};
use std::rc::Rc;

/// A mounted file system as an island.
pub struct MountIsland {
    ctx: Rc<Ctx>,
    client: Rc<Client>,
    door: Rc<Door<ClientOps>>,
    stopping: bool,
}

impl MountIsland {
    /// Starts the client. [`FuseEffect::Attach`] reports when it has reached its servers.
    pub fn new(ctx: &Rc<Ctx>, config: MountConfig) -> Self {
        let client = Client::new(ctx, config);
        let door = Door::new(ctx, Rc::new(ClientOps { client: client.clone() }));
        Self { ctx: ctx.clone(), client, door, stopping: false }
    }

    /// Planned stop: the file system is already unmounted, so no new requests come.
    fn stop(&mut self) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        let (ctx, client) = (self.ctx.clone(), self.client.clone());
        self.ctx.spawn(async move {
            client.unmount().await;
            ctx.push(Effect::Stopped);
        });
    }
}

impl Drop for MountIsland {
    fn drop(&mut self) {
        self.door.abandon();
    }
}

impl Logic for MountIsland {
    fn ctx(&self) -> &Rc<Ctx> {
        &self.ctx
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Door(item) => self.door.event(item),
            Event::Start => {
                let (ctx, client) = (self.ctx.clone(), self.client.clone());
                self.ctx.spawn(async move {
                    let tell = |news| ctx.push(Effect::Door(Box::new(FuseEffect::Attach(news))));
                    client.attach(tell).await;
                });
            }
            Event::Stop => self.stop(),
            other => {
                let Some(event) = self.client.handle_event(other) else { return };
                let door = self.door.clone();
                tools::handle(&self.ctx, || params(&door), event);
            }
        }
    }

    fn log_writes(&mut self, out: &mut Vec<StoreOp>) {
        self.client.log_writes(out);
    }
}

/// Parameters of the client core, and of the kernel's requests.
fn params(door: &Door<ClientOps>) -> Vec<BoundParam<'_>> {
    let mut params = door.ops.params();
    params.extend(bind(&format!("llite.{}", door.ops.mount_text()), "", |param| match param {
        FrontParam::FuseRequests => {
            Arm::counters(door.stats().text(door.ctx.wall()), || door.stats().clear(door.ctx.wall()))
        }
        FrontParam::FuseWaiting => Arm::shown(door.waiting_text()),
        FrontParam::KernelCache => Arm::shown(door.kernel_cache_text()),
        FrontParam::Transport => Arm::shown(door.transport()),
    }));
    params
}
