//! The island of a mount: requests of the kernel in, replies out; and the messages of tools about the mount itself.
//!
//! It owns the client core. This crate uses std, but the value lives inside an island, so it keeps its law: no
//! thread-locals, no globals, no clock, no I/O; what goes out is in effects, which are `Send`.

use crate::client_ops::ClientOps;
use crate::door::{Door, FuseEffect};
use crate::ops::Ops;
use crate::request::FuseRequest;
use crate::tools;
use nacre_client::{Client, MountConfig};
use nacre_node::{Ctx, Effect, Event, Logic};
use std::rc::Rc;
use tracing::warn;

/// A mounted file system as an island.
pub struct MountIsland {
    ctx: Rc<Ctx>,
    client: Rc<Client>,
    door: Rc<Door<ClientOps>>,
    /// `demo-<hex>`: the instance in parameter names.
    instance: String,
    stopping: bool,
}

impl MountIsland {
    /// Starts the client. [`FuseEffect::Ready`] follows when it has reached its servers.
    pub fn new(ctx: &Rc<Ctx>, config: MountConfig) -> Self {
        let instance = format!("{}-{:016x}", config.fs, ctx.random());
        let mount_text = format!("fs: {}\nmount: {}\ninstance: {instance}\n", config.fs, config.name);
        let client = Client::new(ctx, config);
        let door = Door::new(ctx, Rc::new(ClientOps { client: client.clone(), mount_text }));
        Self { ctx: ctx.clone(), client, door, instance, stopping: false }
    }

    /// Planned stop: the kernel's side is unmounted already, so nothing new comes.
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
            Event::Door(item) => match item.downcast::<FuseRequest>() {
                Ok(request) => self.door.handle(*request),
                Err(_) => warn!("something that is no FUSE request came to the door of a mount"),
            },
            Event::Start => {
                let (ctx, client) = (self.ctx.clone(), self.client.clone());
                self.ctx.spawn(async move {
                    let ready = client.ready().await;
                    ctx.push(Effect::Door(Box::new(FuseEffect::Ready(ready))));
                });
            }
            Event::Stop => self.stop(),
            other => {
                let Some(event) = self.client.handle_event(other) else { return };
                let door = self.door.clone();
                let ops: &dyn tools::Parameters = &Parameters { door: &door, instance: &self.instance };
                tools::handle(&self.ctx, ops, event);
            }
        }
    }
}

/// Parameters of the client core and of the door.
struct Parameters<'a> {
    door: &'a Door<ClientOps>,
    instance: &'a str,
}
impl tools::Parameters for Parameters<'_> {
    fn all(&self) -> Vec<nacre_wire::target::Param> {
        let mut params = self.door.ops.params();
        params.push(nacre_wire::target::Param {
            name: format!("llite.{}.stats", self.instance),
            value: self.door.stats().text(self.door.ctx.wall()),
            writable: true,
            help: "requests of the kernel since the mount, in microseconds; any value set clears them"
                .to_owned(),
        });
        params
    }
    fn set(&self, name: &str, value: &str) -> Result<(), String> {
        if name.strip_prefix("llite.").and_then(|n| n.strip_suffix(".stats")) == Some(self.instance) {
            self.door.stats().clear(self.door.ctx.wall());
            return Ok(());
        }
        self.door.ops.set_param(name, value)
    }
}
