//! The island of a mount: requests of the kernel in, replies out; and the messages of tools about the mount itself.
//!
//! It owns the client core. This crate uses std, but the value lives inside an island, so the rules of islands apply:
//! no thread-locals, no globals, no clock, no I/O; only effects leave, which are `Send`.

use crate::client_ops::ClientOps;
use crate::door::{Door, FuseEffect};
use crate::ops::Ops;
use crate::tools;
use nacre_client::{Client, MountConfig};
use nacre_node::{Ctx, Effect, Event, Logic};
use nacre_wire::settings::parse_clear;
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
                tools::handle(&self.ctx, &Parameters { door: &door }, event);
            }
        }
    }
}

/// Parameters of the client core, and the counters of the kernel's requests.
struct Parameters<'a> {
    door: &'a Door<ClientOps>,
}
impl Parameters<'_> {
    fn requests_name(&self) -> String {
        format!("llite.{}.fuse_requests", self.door.ops.mount_text())
    }
}
impl tools::Parameters for Parameters<'_> {
    fn all(&self) -> Vec<nacre_wire::target::Param> {
        let mut params = self.door.ops.params();
        params.push(nacre_wire::target::Param {
            name: self.requests_name(),
            value: self.door.stats().text(self.door.ctx.wall()),
            writable: true,
            help: "Requests of the kernel: samples, microseconds: least, greatest, sum, sum of squares. \
                   Write `clear` to clear."
                .to_owned(),
        });
        params.push(nacre_wire::target::Param {
            name: format!("llite.{}.fuse_waiting", self.door.ops.mount_text()),
            value: self.door.waiting_text(),
            writable: false,
            help: "Calls that wait for an answer: operation, pid of the caller (0: not known), milliseconds so far."
                .to_owned(),
        });
        params.push(nacre_wire::target::Param {
            name: format!("llite.{}.kernel_cache", self.door.ops.mount_text()),
            value: self.door.kernel_cache_text(),
            writable: false,
            help: "What the kernel was told to forget: all names by an epoch, names, attributes of inodes; names whose \
                   notification waited in the kernel, so that an epoch followed; replies whose validity had ended before \
                   they were written; replies written too late, and suspends of the machine, after which everything was \
                   forgotten."
                .to_owned(),
        });
        params.push(nacre_wire::target::Param {
            name: format!("llite.{}.transport", self.door.ops.mount_text()),
            value: self.door.transport(),
            writable: false,
            help: "How the kernel's requests come: through io_uring, answered on the CPU of the caller, or through \
                   /dev/fuse, and why."
                .to_owned(),
        });
        params
    }
    fn set(&self, name: &str, value: &str) -> Result<(), String> {
        if name == self.requests_name() {
            parse_clear(name, value)?;
            self.door.stats().clear(self.door.ctx.wall());
            return Ok(());
        }
        self.door.ops.set_param(name, value)
    }
}
